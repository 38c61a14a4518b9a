"""Result: the detections in one image, as arrays, as rows of a table, and drawn over the image."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from deploy import video
from utils.draw import color_of, draw_labeled, write_image
from utils.images import read_image
from utils.text import pip
from utils.value_range import ValueRange

NOTEBOOK = 4096  # pixels: the longest side of what a notebook shows; a JPEG has at most 65,500


@dataclass(eq=False)
class Result:
    """The detections in one image, best first. Without detections, all arrays have length 0.

    `len(result)` is the number of detections. `result[0]`, `result[:5]` and `result[result.scores > 0.7]` are Results with some
    of them. The Result of an image file has the path of the file, and reads it again where it needs the image.
    """

    boxes: np.ndarray  # float32 [n, 4] xyxy, pixels of the image; clipped to it, except with official weights
    scores: np.ndarray  # float32 [n]
    labels: np.ndarray  # int64 [n]
    names: tuple[str, ...]  # class names of the labels
    path: str | None = None  # of the image file; None for an array
    pixels: np.ndarray | None = field(default=None, repr=False)  # uint8 [H, W, 3] BGR; None: they are in the file
    tracks: np.ndarray | None = None  # int64 [n] numbers of the objects in a video, -1: none yet; None: not tracked
    value_range: ValueRange | None = field(default=None, repr=False)  # of a 16-bit file, as in training

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, index: Any) -> "Result":
        """Returns a Result with the detections at an index, a slice, a mask or an array of indices."""
        chosen = np.atleast_1d(np.arange(len(self))[index])
        fields = {"boxes": self.boxes, "scores": self.scores, "labels": self.labels, "tracks": self.tracks}
        some = {name: values[chosen] for name, values in fields.items() if values is not None}
        return replace(self, names=tuple(self.names[i] for i in chosen), **some)

    @property
    def image(self) -> np.ndarray:
        """The image uint8 [H, W, 3] BGR. Raises ImageError if its file cannot be read, ValueError if there is no image."""
        if self.pixels is not None:
            return self.pixels
        if self.path is None:
            raise ValueError("this Result has no image: set `result.pixels` to an array uint8 [H, W, 3] in BGR order")
        return read_image(self.path, whole=True, value_range=self.value_range)

    def draw(self) -> np.ndarray:
        """Returns a copy of the image, uint8 [H, W, 3] BGR, with the boxes, class names and scores.

        With `tracks`, the number of each object stands before its class and chooses the color.
        """
        order = np.argsort(self.scores, kind="stable")  # the best box is on top
        texts = [f"{self.names[i]} {self.scores[i]:.2f}" for i in order]
        colors = [color_of(int(self.labels[i])) for i in order]
        if self.tracks is not None:
            for place, track in enumerate(self.tracks[order].tolist()):
                if track >= 0:
                    texts[place], colors[place] = f"#{track} {texts[place]}", color_of(track)
        return draw_labeled(self.image, self.boxes[order], texts, colors)

    def save(self, path: str | Path) -> None:
        """Writes the drawn image in the format of its suffix, such as .jpg or .png, and creates the folder."""
        write_image(path, self.draw(), is_drawn=True)

    def show(self) -> None:
        """Shows the drawn image in a notebook, or in a window until a key is pressed. Raises ValueError without a screen."""
        ipython = sys.modules.get("IPython")
        if ipython and hasattr(ipython.get_ipython(), "kernel"):
            from IPython.display import display  # only where a notebook has loaded it

            display(self)
        else:
            video.show(self.draw(), 0)

    def rows(self) -> list[dict[str, Any]]:
        """Returns a dictionary per detection with x1, y1, x2, y2, score and class, for `pandas.DataFrame` or JSON.

        With `tracks`, also track.
        """
        rows = []
        for box, score, name in zip(self.boxes.tolist(), self.scores.tolist(), self.names, strict=True):
            rows.append(dict(zip(("x1", "y1", "x2", "y2"), box, strict=True)) | {"score": score, "class": name})
        if self.tracks is not None:
            rows = [row | {"track": track} for row, track in zip(rows, self.tracks.tolist(), strict=True)]
        return rows

    def to_supervision(self):
        """Returns the detections as `supervision.Detections`, with the class names in `data["class_name"]`.

        Raises ImportError with the pip command if the package supervision is missing.
        """
        try:
            import supervision  # loads supervision
        except ImportError as error:
            fix = pip("install supervision")
            raise ImportError(f"to_supervision() needs supervision ({error}): {fix}") from error
        names = {"class_name": np.array(self.names, dtype=str)}
        detections = supervision.Detections(self.boxes, confidence=self.scores, class_id=self.labels, data=names)
        detections.tracker_id = self.tracks
        return detections

    def _repr_jpeg_(self) -> bytes | None:
        """Returns the drawn image as JPEG, which notebooks show for a Result, with sides of at most NOTEBOOK pixels."""
        if self.pixels is None and self.path is None:
            return None
        drawn = self.draw()
        if (scale := NOTEBOOK / max(drawn.shape)) < 1:
            size = [max(round(side * scale), 1) for side in drawn.shape[1::-1]]
            drawn = cv2.resize(drawn, size, interpolation=cv2.INTER_AREA)
        return cv2.imencode(".jpg", drawn)[1].tobytes()
