"""Pictures and their boxes, moved together. No sample passed in is changed; all chance comes from the `rng` passed in.

Images are uint8 BGR [H, W, 3]; boxes float32 [n, 4] xyxy. Coordinates are continuous: pixel `i` covers `i .. i + 1`.
A picture is resampled once: every change of its geometry is a matrix [2, 3] from the picture to the output, matrices
are multiplied, and `paint` writes what can be seen of the picture straight into the output.
"""

from typing import NamedTuple

import cv2
import numpy as np

from datasets.annotations import Sample

FILL = 114  # the gray of padding that the released YOLOX and YOLOv9 weights were trained with
MIN_SIDE = 1.0  # pixels; a thinner box has no pixel of its own, and a loss on it is noise
MIN_VISIBLE = 0.1  # of a box's area: of less than a tenth not even a person can tell what it belongs to


class Frame(NamedTuple):
    """Where a picture lies in the network's input: `x_in = x * scale + left`, `y_in = y * scale + top`."""

    width: float  # of the original picture
    height: float
    scale: float
    left: float
    top: float


def fit(width: int, height: int, size: tuple[int, int], kind: str) -> tuple[Frame, tuple[slice, slice]]:
    """How a `width` x `height` picture is fitted into `size` = (height, width), aspect ratio kept.

    Returns its frame, and the rows and columns it takes: cut, not rounded, to whole pixels, as released figures want.
    `kind`: "corner" (padding right and below) or "centre" (padding on both sides); anything else is a ValueError.
    """
    if kind not in ("corner", "centre"):
        raise ValueError(f'letterbox "{kind}": must be "corner" or "centre"')
    scale = min(size[0] / height, size[1] / width)
    new_width, new_height = max(int(width * scale), 1), max(int(height * scale), 1)
    left, top = ((size[1] - new_width) // 2, (size[0] - new_height) // 2) if kind == "centre" else (0, 0)
    place = slice(top, top + new_height), slice(left, left + new_width)
    return Frame(float(width), float(height), scale, float(left), float(top)), place


def letterbox(image: np.ndarray, size: tuple[int, int], kind: str, fill: int = FILL) -> tuple[np.ndarray, Frame]:
    """Fits a picture [h, w, 3] into `size` = (height, width) -> new image [H, W, 3], padded with `fill`; its frame."""
    frame, place = fit(image.shape[1], image.shape[0], size, kind)
    output = np.full((*size, 3), fill, np.uint8)
    inside = output[place]
    cv2.resize(image, inside.shape[1::-1], dst=inside, interpolation=cv2.INTER_LINEAR)
    return output, frame


def boxes_into(boxes: np.ndarray, frame: Frame) -> np.ndarray:
    """Boxes [n, 4] xyxy of the original picture -> float32 [n, 4] xyxy of the network's input (not clipped)."""
    shift = np.array([frame.left, frame.top, frame.left, frame.top])
    return (boxes * frame.scale + shift).astype(np.float32)


def compose(second: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The matrix [2, 3] that does `first` and then `second`."""
    matrix = second[:, :2] @ first
    matrix[:, 2] += second[:, 2]
    return matrix


def placement(scale: float, left: float, top: float, width: int, mirrored: bool) -> np.ndarray:
    """The matrix [2, 3] of a picture `width` wide, put at `left`, `top`, `scale` times as large, mirrored or not."""
    if mirrored:
        return np.array([[-scale, 0, left + width * scale], [0, scale, top]])
    return np.array([[scale, 0, left], [0, scale, top]])


def random_affine(
    rng: np.random.Generator,
    source: tuple[int, int],
    target: tuple[int, int],
    rotation: float,
    scale: tuple[float, float],
    translate: float,
    shear: float,
) -> np.ndarray:
    """Draws the matrix float64 [2, 3] that takes the centre of `source` (height, width) near the centre of `target`.

    `rotation` and `shear`: up to so many degrees to either side; `scale`: from, to; `translate`: up to this share of
    the target. The number of draws is always the same, so that one range does not change what is drawn for another.
    """
    angle, slant_x, slant_y = np.radians(rng.uniform(-1, 1, 3) * (rotation, shear, shear))
    zoom = rng.uniform(*scale)
    cos, sin = zoom * np.cos(angle), zoom * np.sin(angle)
    linear = np.array([[cos, -sin], [sin, cos]]) @ [[1, np.tan(slant_x)], [np.tan(slant_y), 1]]
    middle = (0.5 + rng.uniform(-1, 1, 2) * translate) * target[::-1]
    return np.column_stack([linear, middle - linear @ np.array(source[::-1]) / 2])


def _around(first: np.ndarray, last: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Corners [..., 2] of the boxes around moved boxes, through their centres and the absolute linear part."""
    centre = (first + last) / 2 @ matrix[:, :2].T + matrix[:, 2]
    half = (last - first) / 2 @ np.abs(matrix[:, :2]).T
    return centre - half, centre + half


def move_boxes(
    boxes: np.ndarray, labels: np.ndarray, matrix: np.ndarray, window: np.ndarray, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [n, 4] and labels [n] of a picture after `matrix`, clipped: those still worth learning.

    Only `window` (xyxy) of the picture and only `size` = (height, width) of the output are seen. A turned box gets the
    box around its corners. Left out: sides of MIN_SIDE or less, and boxes of which no more than MIN_VISIBLE is left.
    """
    if not len(boxes):
        return np.zeros((0, 4), np.float32), labels
    first, last = (np.minimum(np.maximum(c, window[:2]), window[2:]) for c in (boxes[:, :2], boxes[:, 2:]))
    low, high = _around(first, last, matrix)
    seen_low, seen_high = (np.minimum(np.maximum(corner, 0), size[::-1]) for corner in (low, high))
    sides = seen_high - seen_low
    seen = (last - first).prod(1) * sides.prod(1)
    whole = (boxes[:, 2:] - boxes[:, :2]).prod(1) * (high - low).prod(1)
    keep = (sides > MIN_SIDE).all(1) & (seen > MIN_VISIBLE * whole)
    return np.concatenate([seen_low, seen_high], 1)[keep].astype(np.float32), labels[keep]


def _snap(scale: float, shift: float, start: int, stop: int, limit: int) -> tuple[int, int, int, int]:
    """One axis, `x' = x * scale + shift`, in whole pixels: from, to in the output, where source pixels start..stop
    come to lie (nothing seen: to <= from), and from, to in the source, the nearest to what is seen there."""
    low, high = sorted((start * scale + shift, stop * scale + shift))
    to_start, to_stop = round(min(max(low, 0), limit)), round(min(max(high, 0), limit))
    low, high = sorted(((to_start - shift) / scale, (to_stop - shift) / scale))
    from_start = min(max(round(low), start), stop - 1)
    return to_start, to_stop, from_start, max(min(round(high), stop), from_start + 1)


def _resize_into(output: np.ndarray, image: np.ndarray, matrix: np.ndarray, window: np.ndarray) -> np.ndarray:
    """`paint` without turning: a resize of the part seen, between whole pixels. Returns the matrix that it comes to."""
    x1, x2, left, right = _snap(matrix[0, 0], matrix[0, 2], window[0], window[2], output.shape[1])
    y1, y2, top, bottom = _snap(matrix[1, 1], matrix[1, 2], window[1], window[3], output.shape[0])
    if x2 <= x1 or y2 <= y1:
        return matrix
    part, place, mirrored = image[top:bottom, left:right], output[y1:y2, x1:x2], matrix[0, 0] < 0
    if mirrored:
        cv2.flip(cv2.resize(part, (x2 - x1, y2 - y1), interpolation=cv2.INTER_LINEAR), 1, dst=place)
    else:
        cv2.resize(part, (x2 - x1, y2 - y1), dst=place, interpolation=cv2.INTER_LINEAR)
    scale_x, scale_y = (x2 - x1) / (right - left), (y2 - y1) / (bottom - top)
    x_shift = x2 + left * scale_x if mirrored else x1 - left * scale_x
    return np.array([[-scale_x if mirrored else scale_x, 0, x_shift], [0, scale_y, y1 - top * scale_y]])


def _warp_into(output: np.ndarray, image: np.ndarray, matrix: np.ndarray, window: np.ndarray) -> None:
    """`paint` in general: a warp of the window into the rectangle around it; what it does not cover stays."""
    low, high = _around(window[:2], window[2:], matrix)
    (x1, y1), (x2, y2) = (
        np.clip(corner, 0, output.shape[1::-1]).astype(int) for corner in (np.floor(low), np.ceil(high))
    )
    if x2 <= x1 or y2 <= y1:
        return
    part = image[window[1] : window[3], window[0] : window[2]]
    indices = matrix.copy()  # OpenCV counts from the middle of pixels: +.5 in the picture, -.5 in the output
    indices[:, 2] += matrix[:, :2] @ (window[:2] + 0.5) - (x1 + 0.5, y1 + 0.5)
    # OpenCV 5 warps four channels in half the time of three, to the same bits; conversion costs a tenth of that
    place = output[y1:y2, x1:x2]
    part, four = cv2.cvtColor(part, cv2.COLOR_BGR2BGRA), cv2.cvtColor(place, cv2.COLOR_BGR2BGRA)
    options = {"flags": cv2.INTER_LINEAR, "borderMode": cv2.BORDER_TRANSPARENT}
    cv2.warpAffine(part, indices, (x2 - x1, y2 - y1), dst=four, **options)
    cv2.cvtColor(four, cv2.COLOR_BGRA2BGR, dst=place)


def paint(
    output: np.ndarray, sample: Sample, matrix: np.ndarray, window: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Resamples a sample under `matrix` [2, 3] into `output`, IN PLACE -> its boxes and labels there.

    `window` (xyxy in the picture, rounded to whole pixels): the part that may be seen; None: all. Without rotation
    and shear the picture's edges move to the nearest whole pixels, by up to half a pixel, and the boxes with them.
    """
    height, width = sample.image.shape[:2]
    whole = np.array([0, 0, width, height])
    window = whole if window is None else np.rint(window).astype(int).clip(0, whole[[2, 3, 2, 3]])
    if (window[2:] > window[:2]).all():
        if matrix[0, 1] == 0 and matrix[1, 0] == 0:
            matrix = _resize_into(output, sample.image, matrix, window)
        else:
            _warp_into(output, sample.image, matrix, window)
    return move_boxes(sample.boxes, sample.labels, matrix, window, output.shape[:2])


def shift_colours(image: np.ndarray, rng: np.random.Generator, hsv: tuple[float, float, float]) -> None:
    """Adds to hue, saturation and value of `image`, IN PLACE, each with probability 1/2, up to `hsv` to either side.

    In OpenCV's 8-bit units: hue 0..179 wraps, saturation and value 0..255 are clipped. YOLOX: 5, 30, 30.
    """
    shifts = np.rint(rng.uniform(-1, 1, 3) * hsv).astype(int) * (rng.random(3) < 0.5)
    if not shifts.any():
        return
    hue, saturation, value = shifts.tolist()
    converted = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
    if hue:
        table = ((np.arange(256) + hue) % 180).astype(np.uint8)
        cv2.insertChannel(cv2.LUT(cv2.extractChannel(converted, 0), table), converted, 0)
    cv2.add(converted, (0, saturation, value, 0), dst=converted)  # clips
    cv2.cvtColor(converted, cv2.COLOR_HSV2BGR, dst=image)


def augment(
    sample: Sample,
    size: tuple[int, int],
    rng: np.random.Generator,
    kind: str,
    flip: float,
    rotation: float,
    scale: tuple[float, float],
    translate: float,
    shear: float,
    hsv: tuple[float, float, float],
) -> Sample:
    """One sample -> `size` = (height, width): letterboxed as `kind` says, then moved as `random_affine` draws.

    `flip`: how often it is mirrored (before it is fitted, so that padding stays where the family has it). Where nothing
    moves, the picture is exactly that of `letterbox`, and colours change inside it only: padding is as in evaluation.
    """
    mirrored = bool(rng.random() < flip)
    affine = random_affine(rng, size, size, rotation, scale, translate, shear)
    height, width = sample.image.shape[:2]
    frame, place = fit(width, height, size, kind)
    matrix = compose(affine, placement(frame.scale, frame.left, frame.top, width, mirrored))
    if np.array_equal(affine, np.eye(2, 3)):
        output, _ = letterbox(cv2.flip(sample.image, 1) if mirrored else sample.image, size, kind)
        boxes, labels = move_boxes(sample.boxes, sample.labels, matrix, np.array([0, 0, width, height]), size)
        shift_colours(output[place], rng, hsv)
    else:
        output = np.full((*size, 3), FILL, np.uint8)
        boxes, labels = paint(output, sample, matrix)
        shift_colours(output, rng, hsv)
    return Sample(output, boxes, labels)
