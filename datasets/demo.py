"""The demo: a small generated data set of shapes on cluttered backgrounds, with which train.py starts.

Boxes are exact: the bounding box of the visible pixels of a shape. The constants below make the data set easy enough for
the smallest model to learn it from scratch in minutes. The same version of OpenCV draws the same images.
"""

import tempfile
from pathlib import Path

import cv2
import numpy as np

from utils.config import require_writable

CLASSES = ("circle", "square", "triangle", "star", "heart")
IMAGES = {"train": 160, "val": 40}  # few enough to train on two CPU cores in minutes
SIZES = ((240, 320), (320, 320), (320, 240), (280, 320))  # height, width
SHAPES = (2, 6)  # shapes per image, from .. to
EMPTY = 0.05  # fraction of images without shapes
SIDE = (48, 150)  # pixels, uniform in the log
HOLLOW = 0.15  # fraction of shapes drawn as outlines
MIN_VISIBLE = 0.75  # fraction of a shape's area that later shapes leave visible
CLUTTER = 12  # strokes, arcs and specks per image
NOISE = 7.0  # standard deviation of the pixel noise, of 255
SEED = 20
QUALITY = 92  # JPEG

# Two colors per class, BGR: without them the smallest model takes three times as long to learn the shapes
PAINT = {
    "circle": ((60, 76, 231), (34, 126, 230)),
    "square": ((219, 152, 52), (170, 96, 30)),
    "triangle": ((113, 204, 46), (72, 140, 24)),
    "star": ((15, 196, 241), (245, 245, 240)),
    "heart": ((180, 105, 255), (182, 89, 155)),
}
FRACTION = 4  # fractional bits of the coordinates passed to OpenCV


def _outline(shape: str, points: int = 64) -> np.ndarray:
    """Returns the corners float [k, 2] of a shape with radius 1 around the origin; y points down."""
    if shape == "heart":
        t = np.linspace(-0.78 * np.pi, 0.78 * np.pi, points)  # the tip is a straight line
        t = np.append(t, np.pi)
        y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
        return np.stack([16 * np.sin(t) ** 3, y], 1) / 17
    corners = {"circle": points, "square": 4, "triangle": 3, "star": 10}[shape]
    angles = 2 * np.pi * (np.arange(corners) / corners - 0.25)
    radii = np.where(np.arange(corners) % 2, 0.5, 1.0) if shape == "star" else np.ones(corners)
    return radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)


def _mask(rng: np.random.Generator, shape: str, size: tuple[int, int]) -> np.ndarray:
    """Draws one shape at a random position inside `size` = (height, width) -> its mask uint8 [H, W], 0..255."""
    side = np.exp(rng.uniform(*np.log(SIDE)))
    turn = rng.uniform(-0.6, 0.6) if shape == "heart" else rng.uniform(0, 2 * np.pi)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    corners = _outline(shape) @ rotation.T
    low, high = corners.min(0), corners.max(0)
    hollow = rng.random() < HOLLOW
    pen = max(side * (0.16 if hollow else 0.08), 2.0)  # a round pen rounds the corners
    corners = (corners - low) / (high - low).max() * (side - pen) + pen / 2
    corners += rng.uniform(2, np.array(size[::-1]) - corners.max(0) - pen / 2 - 2)
    drawn = np.rint(corners * 2**FRACTION).astype(np.int32)
    mask = np.zeros(size, np.uint8)
    cv2.polylines(mask, [drawn], True, 255, round(pen), cv2.LINE_AA, FRACTION)
    if not hollow:
        cv2.fillPoly(mask, [drawn], 255, cv2.LINE_AA, FRACTION)
    return mask


def _background(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """Draws a muted color gradient with blotches and clutter -> float32 [H, W, 3]."""
    height, width = size
    corners = rng.uniform(75, 205) + rng.uniform(-30, 30, 3) + rng.uniform(-35, 35, (2, 2, 3))
    ground = cv2.resize(corners.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    blotches = rng.normal(0, 14, (6, 8, 1)).astype(np.float32)
    ground = ground + cv2.resize(blotches, (width, height), interpolation=cv2.INTER_CUBIC)[..., None]
    marks = ground.copy()
    for _ in range(CLUTTER):
        color = (ground[rng.integers(height), rng.integers(width)] + rng.uniform(-70, 70, 3)).tolist()
        x, y = (int(v) for v in rng.uniform(0, (width, height)))
        kind, pen = rng.integers(4), int(rng.integers(1, 5))
        if kind == 0:
            end = tuple(int(v) for v in (x, y) + rng.normal(0, 120, 2))
            cv2.line(marks, (x, y), end, color, pen)
        elif kind == 1:
            axes, start = tuple(int(v) for v in rng.uniform(15, 90, 2)), rng.uniform(0, 360)
            cv2.ellipse(marks, (x, y), axes, rng.uniform(0, 180), start, start + rng.uniform(40, 150), color, pen)
        elif kind == 2:
            steps = np.cumsum(rng.normal(0, 16, (7, 2)), 0) + (x, y)
            cv2.polylines(marks, [steps.astype(np.int32)], False, color, pen)
        else:
            cv2.circle(marks, (x, y), int(rng.integers(1, 5)), color, -1)
    return cv2.GaussianBlur(marks, (0, 0), 0.7)


def _paint(canvas: np.ndarray, mask: np.ndarray, shape: str, rng: np.random.Generator) -> None:
    """Paints a shape, with a shadow and lit from above, onto the canvas float32 [H, W, 3], in place."""
    shadow = np.zeros_like(mask)
    shadow[4:, 3:] = mask[:-4, :-3]
    canvas *= 1 - 0.35 / 255 * cv2.GaussianBlur(shadow, (0, 0), 4)[..., None].astype(np.float32)
    color = np.array(PAINT[shape][rng.integers(2)]) + rng.uniform(-20, 20, 3)
    rows = np.flatnonzero(mask.any(1))
    light = np.interp(np.arange(len(mask)), (rows[0], rows[-1]), (1.12, 0.85))[:, None, None]
    alpha = mask.astype(np.float32)[..., None] / 255
    canvas += alpha * (light * color - canvas)


def draw_image(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws image `number` of the demo -> image uint8 [H, W, 3] BGR, boxes int64 [n, 4] xyxy, labels int64 [n]."""
    rng = np.random.default_rng((SEED, number))
    size = SIZES[rng.integers(len(SIZES))]
    canvas = _background(rng, size)
    count = 0 if rng.random() < EMPTY else rng.integers(SHAPES[0], SHAPES[1] + 1)
    visible: list[np.ndarray] = []  # pixels of each shape
    areas: list[int] = []  # number of its pixels when it was drawn
    labels: list[int] = []
    for _ in range(count):
        label = int(rng.integers(len(CLASSES)))
        for _ in range(20):  # positions to try
            mask = _mask(rng, CLASSES[label], size)
            left = [pixels & (mask < 128) for pixels in visible]
            if all(pixels.sum() >= MIN_VISIBLE * area for pixels, area in zip(left, areas, strict=True)):
                visible, areas, labels = [*left, mask >= 128], [*areas, (mask >= 128).sum()], [*labels, label]
                _paint(canvas, mask, CLASSES[label], rng)
                break
    canvas += rng.normal(0, NOISE, canvas.shape)
    boxes = np.array([cv2.boundingRect(pixels.astype(np.uint8)) for pixels in visible], np.int64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    return np.rint(canvas.clip(0, 255)).astype(np.uint8), boxes, np.array(labels, np.int64)


def _write(folder: Path) -> None:
    """Draws all images and writes them with their annotation files."""
    (folder / "images").mkdir(parents=True)
    number = 0
    for part, count in IMAGES.items():
        lines = []
        for _ in range(count):
            image, boxes, labels = draw_image(number)
            name = f"images/{number:04}.jpg"
            (folder / name).write_bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes())
            fields = (f"{x1},{y1},{x2},{y2},{label}" for (x1, y1, x2, y2), label in zip(boxes, labels, strict=True))
            lines.append(" ".join([name, *fields]))
            number += 1
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")


def draw(folder: str | Path) -> bool:
    """Draws the demo into `folder`: images/, train.txt, val.txt (annotation files) and classes.txt.

    Returns False, and changes nothing, if the demo is there already. A temporary folder is renamed when it is complete, so
    that an interrupted drawing is never used. Raises FileExistsError if `folder` holds anything else.
    """
    folder = Path(folder)
    complete = [folder / name for name in ("train.txt", "val.txt", "classes.txt")]
    if all(path.is_file() for path in complete):
        return False
    if folder.exists():
        raise FileExistsError(
            f"{folder} exists, but is not a complete demo: move or delete it, and it will be drawn again"
        )
    require_writable(f"the demo, {folder}", folder, "start in a folder that you may write to, or name your own train=")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        _write(Path(temporary) / "demo")
        (Path(temporary) / "demo").rename(folder)
    return True
