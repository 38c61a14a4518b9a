"""Transforms of images together with their boxes. Inputs are never changed; all randomness comes from `rng`.

Images are uint8 BGR [H, W, 3], boxes float32 [n, 4] xyxy. Coordinates are continuous: pixel `i` covers `i .. i + 1`.
An image is resampled once: all geometry is composed into one matrix [2, 3] from the image to the output, and `paint`
resamples the visible part of the image directly into the output.
"""

from dataclasses import dataclass, replace

import cv2
import numpy as np

from datasets.store import Sample
from utils.images import AREA_BELOW, FILL, LetterboxTransform, fit, letterbox, shrink

Size = tuple[int, int]  # height, width
Range = tuple[float, float]  # from, to

MIN_SIDE = 1.0  # pixels; a thinner box covers no whole pixel, and its loss is noise
MIN_VISIBLE = 0.1  # fraction of a box's area; from less of an object a person cannot tell its class
FLIP = {(True, False): 1, (False, True): 0, (True, True): -1}  # code of cv2.flip: left to right, top to bottom, both


@dataclass(frozen=True)
class Augment:
    """Settings of the augmentation, which `augment`, `mosaic` and `mixup` apply. Probabilities are in 0..1."""

    mosaic: float  # probability that a sample is made of four images
    mixup: float  # probability that a second image is blended in
    flip: float  # probability that an image is flipped left to right (for each image of a mosaic)
    rotation: float  # largest angle in degrees, in both directions
    scale: Range  # range of the size, relative to the letterboxed size
    translate: float  # largest shift in each direction, as a fraction of the input's sides
    shear: float  # largest angle in degrees, in both directions
    hsv: tuple[float, float, float] = (5, 30, 30)  # see transforms.shift_colors
    flip_vertical: float = 0.0  # the same top to bottom

    @property
    def max_images_per_sample(self) -> int:
        """The largest number of images that a training sample is made of."""
        images = 4 if self.mosaic > 0 else 1
        return 2 * images if self.mixup > 0 else images

    def without_geometry(self) -> "Augment":
        """Returns the settings of the no-augmentation epochs: letterboxed single images with flips and color shifts."""
        return replace(self, mosaic=0.0, mixup=0.0, rotation=0.0, scale=(1.0, 1.0), translate=0.0, shear=0.0)


def compose(second: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Returns the matrix [2, 3] of `first` followed by `second`."""
    matrix = second[:, :2] @ first
    matrix[:, 2] += second[:, 2]
    return matrix


def regions_of(boxes: np.ndarray) -> np.ndarray:
    """Returns an ignore region for each box [r, 4], as a matrix float64 [r, 2, 3]: so it can rotate with its image.

    The matrix maps the points of the region to the unit square."""
    regions = np.zeros((len(boxes), 2, 3))
    sides = boxes[:, 2:] - boxes[:, :2]
    regions[:, [0, 1], [0, 1]] = 1 / sides
    regions[:, :, 2] = -boxes[:, :2] / sides
    return regions


def move_regions(regions: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns the ignore regions [r, 2, 3] of an image after it was transformed by `matrix` [2, 3]."""
    if not len(regions):
        return regions
    return regions @ np.linalg.inv(np.vstack([matrix, (0, 0, 1)]))


def letterbox_matrix(transform: LetterboxTransform, flipped: bool, flipped_vertically: bool = False) -> np.ndarray:
    """Returns the matrix [2, 3] that moves an image into the input, and flips it there if wanted.

    `flipped`: left to right; `flipped_vertically`: top to bottom."""
    scale_x, scale_y, left, top = transform[2:]
    x = [-scale_x, 0, left + transform.width * scale_x] if flipped else [scale_x, 0, left]
    y = [0, -scale_y, top + transform.height * scale_y] if flipped_vertically else [0, scale_y, top]
    return np.array([x, y])


def random_vertical_flips(rng: np.random.Generator, count: int, settings: Augment) -> np.ndarray:
    """Returns which of `count` images are flipped top to bottom, bool [count].

    No random value is drawn if it is off, so that samples stay as they were before the setting existed."""
    if not settings.flip_vertical:
        return np.zeros(count, bool)
    return rng.random(count) < settings.flip_vertical


def random_affine(rng: np.random.Generator, source: Size, target: Size, settings: Augment) -> np.ndarray:
    """Returns a random matrix float64 [2, 3] that takes the center of an area of size `source` near the center of size `target`.

    The number of random values is fixed, so that one setting does not change the values of another."""
    shear = settings.shear
    angle, slant_x, slant_y = np.radians(rng.uniform(-1, 1, 3) * (settings.rotation, shear, shear))
    zoom = rng.uniform(*settings.scale)
    cos, sin = zoom * np.cos(angle), zoom * np.sin(angle)
    linear = np.array([[cos, -sin], [sin, cos]]) @ [[1, np.tan(slant_x)], [np.tan(slant_y), 1]]
    middle = (0.5 + rng.uniform(-1, 1, 2) * settings.translate) * target[::-1]
    return np.column_stack([linear, middle - linear @ np.array(source[::-1]) / 2])


def _around(first: np.ndarray, last: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first and last corners [..., 2] of the bounding boxes of boxes that `matrix` transforms."""
    center = (first + last) / 2 @ matrix[:, :2].T + matrix[:, 2]
    half = (last - first) / 2 @ np.abs(matrix[:, :2]).T
    return center - half, center + half


def move_boxes(sample: Sample, matrix: np.ndarray, window: np.ndarray, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Returns the boxes [n, 4] and labels [n] of a sample moved by `matrix`, clipped to the output of `size`.

    Only `window` (xyxy) of the image is visible. Boxes that are too thin (MIN_SIDE) or too hidden (MIN_VISIBLE) are left out.
    """
    _, boxes, labels, _ = sample
    if not len(boxes):
        return np.zeros((0, 4), np.float32), labels
    first, last = (np.minimum(np.maximum(c, window[:2]), window[2:]) for c in (boxes[:, :2], boxes[:, 2:]))
    low, high = _around(first, last, matrix)
    visible_low, visible_high = (np.minimum(np.maximum(corner, 0), size[::-1]) for corner in (low, high))
    sides = visible_high - visible_low
    # Visible fraction = (fraction inside the window) * (fraction of the moved box inside the output), without dividing.
    visible = (last - first).prod(1) * sides.prod(1)
    whole = (boxes[:, 2:] - boxes[:, :2]).prod(1) * (high - low).prod(1)
    keep = (sides > MIN_SIDE).all(1) & (visible > MIN_VISIBLE * whole)
    return np.concatenate([visible_low, visible_high], 1)[keep].astype(np.float32), labels[keep]


def _snap(scale: float, shift: float, start: int, stop: int, limit: int) -> tuple[int, int, int, int]:
    """Rounds one axis of a resize, `output = source * scale + shift`, to whole pixels.

    Takes source pixels start..stop to an output of `limit` pixels. Returns start and stop of the visible part in the output,
    then in the source. Nothing is visible if the output's stop <= start.
    """
    low, high = sorted((start * scale + shift, stop * scale + shift))
    to_start, to_stop = round(min(max(low, 0), limit)), round(min(max(high, 0), limit))
    low, high = sorted(((to_start - shift) / scale, (to_stop - shift) / scale))
    from_start = min(max(round(low), start), stop - 1)
    return to_start, to_stop, from_start, max(min(round(high), stop), from_start + 1)


def _resize_into(output: np.ndarray, image: np.ndarray, matrix: np.ndarray, window: np.ndarray) -> np.ndarray:
    """`paint` without rotation and shear: resizes the visible part, rounded to whole pixels. Returns the rounded matrix."""
    x1, x2, left, right = _snap(matrix[0, 0], matrix[0, 2], window[0], window[2], output.shape[1])
    y1, y2, top, bottom = _snap(matrix[1, 1], matrix[1, 2], window[1], window[3], output.shape[0])
    if x2 <= x1 or y2 <= y1:
        return matrix
    source, target = image[top:bottom, left:right], output[y1:y2, x1:x2]
    flipped, flipped_vertically = bool(matrix[0, 0] < 0), bool(matrix[1, 1] < 0)
    if flipped or flipped_vertically:
        resized = cv2.resize(source, (x2 - x1, y2 - y1), interpolation=cv2.INTER_LINEAR)
        cv2.flip(resized, FLIP[flipped, flipped_vertically], dst=target)
    else:
        cv2.resize(source, (x2 - x1, y2 - y1), dst=target, interpolation=cv2.INTER_LINEAR)
    scale_x, scale_y = (x2 - x1) / (right - left), (y2 - y1) / (bottom - top)
    x = [-scale_x, 0, x2 + left * scale_x] if flipped else [scale_x, 0, x1 - left * scale_x]
    y = [0, -scale_y, y2 + top * scale_y] if flipped_vertically else [0, scale_y, y1 - top * scale_y]
    return np.array([x, y])


def _warp_into(output: np.ndarray, image: np.ndarray, matrix: np.ndarray, window: np.ndarray) -> None:
    """`paint` in general: warps the window into its bounding rectangle in the output; other pixels stay as they are."""
    low, high = _around(window[:2], window[2:], matrix)
    corners = np.clip([np.floor(low), np.ceil(high)], 0, output.shape[1::-1])
    (x1, y1), (x2, y2) = corners.astype(int)
    if x2 <= x1 or y2 <= y1:
        return
    source, target = image[window[1] : window[3], window[0] : window[2]], output[y1:y2, x1:x2]
    indices = matrix.copy()  # OpenCV's coordinates are pixel centers: +.5 in the image, -.5 in the output
    indices[:, 2] += matrix[:, :2] @ (window[:2] + 0.5) - (x1 + 0.5, y1 + 0.5)
    # OpenCV 5 warps four channels twice as fast as three, with the same result; the conversion costs a tenth of that
    four, painted = cv2.cvtColor(source, cv2.COLOR_BGR2BGRA), cv2.cvtColor(target, cv2.COLOR_BGR2BGRA)
    options = {"flags": cv2.INTER_LINEAR, "borderMode": cv2.BORDER_TRANSPARENT}
    cv2.warpAffine(four, indices, (x2 - x1, y2 - y1), dst=painted, **options)
    cv2.cvtColor(painted, cv2.COLOR_BGRA2BGR, dst=target)


def _reduced(sample: Sample, matrix: np.ndarray, window: np.ndarray) -> tuple[Sample, np.ndarray, np.ndarray]:
    """Averages the visible part of an image that `matrix` shrinks to less than a half, as `letterbox` does, but by 2, 4, 8, ...

    Returns the sample, the matrix and the window for the smaller image. Bilinear interpolation does the rest: averages over
    any area would take three times as long."""
    zoom, reduction = abs(np.linalg.det(matrix[:, :2])) ** 0.5, 1
    x1, y1, x2, y2 = window
    while zoom * reduction < AREA_BELOW and 2 * reduction <= min(x2 - x1, y2 - y1):
        reduction *= 2
    if reduction == 1:
        return sample, matrix, window
    columns, rows = (x2 - x1) // reduction, (y2 - y1) // reduction
    image = shrink(sample.image[y1 : y1 + rows * reduction, x1 : x1 + columns * reduction], reduction)
    boxes = (sample.boxes - (x1, y1, x1, y1)) / reduction
    matrix = compose(matrix, np.array([[reduction, 0, x1], [0, reduction, y1]]))
    return Sample(image, boxes, sample.labels), matrix, np.array([0, 0, columns, rows])


def paint(
    output: np.ndarray, sample: Sample, matrix: np.ndarray, window: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Resamples a sample by `matrix` [2, 3] into `output`, IN PLACE, and returns its boxes and labels there.

    `window` (xyxy in the image, rounded to whole pixels) is the visible part; None: all of it."""
    height, width = sample.image.shape[:2]
    whole = np.array([0, 0, width, height])
    window = whole if window is None else np.rint(window).astype(int).clip(0, whole[[2, 3, 2, 3]])
    if (window[2:] > window[:2]).all():
        sample, matrix, window = _reduced(sample, matrix, window)
        if matrix[0, 1] == 0 and matrix[1, 0] == 0:
            matrix = _resize_into(output, sample.image, matrix, window)
        else:
            _warp_into(output, sample.image, matrix, window)
    return move_boxes(sample, matrix, window, output.shape[:2])


def shift_colors(image: np.ndarray, rng: np.random.Generator, hsv: tuple[float, float, float]) -> None:
    """Shifts hue, saturation and value of `image`, IN PLACE, each with probability 1/2 by at most `hsv` up or down.

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
    cv2.add(converted, (0, saturation, value, 0), dst=converted)  # type: ignore[call-overload]  # clips; stubs lack scalars
    cv2.cvtColor(converted, cv2.COLOR_HSV2BGR, dst=image)


def augment(sample: Sample, size: Size, rng: np.random.Generator, kind: str, settings: Augment) -> Sample:
    """Augments one sample: flips, letterbox of `kind` into `size` = (height, width), random affine map, color shifts.

    If the affine map is the identity, the result is exactly `letterbox` of the image, and the padding keeps its color."""
    flipped = bool(rng.random() < settings.flip)
    affine = random_affine(rng, size, size, settings)
    flipped_vertically = bool(random_vertical_flips(rng, 1, settings)[0])
    height, width = sample.image.shape[:2]
    transform, inner = fit(width, height, size, kind)
    matrix = compose(affine, letterbox_matrix(transform, flipped, flipped_vertically))
    if np.array_equal(affine, np.eye(2, 3)):
        image = sample.image
        if flipped or flipped_vertically:
            image = cv2.flip(image, FLIP[flipped, flipped_vertically])
        output, _ = letterbox(image, size, kind)
        boxes, labels = move_boxes(sample, matrix, np.array([0, 0, width, height]), size)
        shift_colors(output[inner], rng, settings.hsv)
    else:
        output = np.full((*size, 3), FILL, np.uint8)
        boxes, labels = paint(output, sample, matrix)
        shift_colors(output, rng, settings.hsv)
    return Sample(output, boxes, labels, move_regions(sample.ignore, matrix))
