"""The sizes of boxes in a network's input, and whether a larger input is worth its time."""

from typing import NamedTuple

import numpy as np

from datasets.scan import clipped_boxes
from datasets.store import Annotations
from utils.boxes import area

HARD = 12  # pixels of the network's input; smaller objects are hard to find
MEDIUM = 32  # pixels; if half of the objects are smaller, a larger input gained 7 to 15 points of mAP (choosing.md)
EASY = 48  # objects of this size are found in a smaller input too
MEASURED = 640  # pixels; the largest input for which that was measured
LARGEST_INPUT = 1280  # pixels; the advice goes no further

Size = tuple[int, int]  # height, width


class Advice(NamedTuple):
    """What the sizes of boxes mean for the size of the network's input."""

    text: str  # "" without boxes
    growth: float  # of the input that it proposes, 1: no larger input


def sides_at(annotations: Annotations, size: Size, letterbox: str = "corner") -> np.ndarray:
    """Returns the sizes of all boxes except crowd regions in a network's input of this size: the root of their area, [K].

    The sizes of the images must be known. `letterbox`: of the model, see `utils.images.fit`."""
    rows = np.flatnonzero(~annotations.crowd)
    shape = annotations.sizes[annotations.image_of_boxes()[rows]].astype(float)  # height, width
    scales = np.array(size) / shape
    scale = np.sqrt(scales.prod(1)) if letterbox == "stretch" else scales.min(1)
    return np.sqrt(area(clipped_boxes(annotations)[rows])) * scale


def advice(sides: np.ndarray, size: Size) -> Advice:
    """Returns whether the network's input fits the sizes of the boxes, from their `sides_at`."""
    at = f"{size[0]}x{size[1]}" if size[0] != size[1] else f"{size[0]}"
    if not len(sides):
        return Advice("", 1)
    max_growth = LARGEST_INPUT / max(size)  # growth of the input
    needed = HARD / max(float(np.quantile(sides, 0.1)), 1e-6)
    wanted = min(MEDIUM / max(float(np.median(sides)), 1e-6), MEASURED / max(size))
    growth = max(needed, wanted)  # one target: an input that is taken as advised is large enough
    larger = _larger(size, growth)
    for fraction, words in ((0.5, "half"), (0.25, "a quarter"), (0.1, "a tenth")):
        if np.quantile(sides, fraction) < HARD:
            fixes = [larger] if max_growth > 1 else []
            if needed > max_growth:
                fixes.append("cut the images into tiles")
            return Advice(f"{words} of the boxes are below {HARD} pixels at {at}: {', or '.join(fixes)}", growth)
    if wanted > 1:
        text = f"half of the boxes are below {MEDIUM} pixels at {at}: {larger} is slower, and probably more accurate"
        return Advice(text, growth)
    if np.quantile(sides, 0.05) > EASY and max(size) > 320:
        text = f"nearly all boxes are above {EASY} pixels at {at}: a smaller image_size= is faster and may do as well"
        return Advice(text, 1)
    return Advice(f"the boxes are large enough at {at}: a larger image_size= gains less than with small boxes", 1)


def _larger(size: Size, factor: float) -> str:
    """Returns the constant of an input that is at least `factor` times as large, but not above LARGEST_INPUT."""
    factor = min(factor, LARGEST_INPUT / max(size))
    height, width = (-(-int(side * factor) // 32) * 32 for side in size)
    return f"image_size={height},{width}"
