"""Writing of the JPEG images of the pages."""

from pathlib import Path

import cv2
import numpy as np

GAP, QUALITY = 12, 80  # pixels between images, quality of a JPEG


def write_jpeg(output: str | Path, image: np.ndarray) -> None:
    data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1]
    Path(output).write_bytes(data.tobytes())


def side_by_side(images: list[np.ndarray]) -> np.ndarray:
    """Returns images of one height next to each other."""
    gap = np.full((images[0].shape[0], GAP, 3), 255, np.uint8)
    return np.concatenate([part for image in images for part in (image, gap)][:-1], 1)
