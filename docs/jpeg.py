"""Writing of the images of the pages, in light and dark."""

from pathlib import Path

import cv2
import numpy as np

GAP, QUALITY = 12, 80  # pixels between images, quality of a JPEG
DARK = (23, 17, 13)  # BGR, the background of a page of GitHub in dark mode


def write_jpeg(output: str | Path, image: np.ndarray) -> None:
    data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1]
    Path(output).write_bytes(data.tobytes())


def side_by_side(images: list[np.ndarray]) -> np.ndarray:
    """Returns images of one height next to each other."""
    gap = np.full((images[0].shape[0], GAP, 3), DARK, np.uint8)
    return np.concatenate([part for image in images for part in (image, gap)][:-1], 1)


def write_dark(drawing: Path) -> None:
    """Writes a drawing on white, NAME.png, as NAME_dark.png: the lightness is inverted, and the hue stays."""
    hls = cv2.cvtColor(cv2.imread(str(drawing)), cv2.COLOR_BGR2HLS)
    hls[..., 1] = 255 - hls[..., 1]
    dark = np.array(DARK) + cv2.cvtColor(hls, cv2.COLOR_HLS2BGR) * (1 - np.array(DARK) / 255)
    cv2.imwrite(str(drawing.with_stem(f"{drawing.stem}_dark")), dark.round().astype(np.uint8))
