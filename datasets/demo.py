"""The small drawn data set that train.py starts with: shapes on cluttered grounds, the same for the same OpenCV.

Boxes are exact: the extent of what is seen of a shape, counted in its mask. How hard it is, the constants below decide;
they are set so that the smallest model learns it from nothing in minutes.
"""

import os
import shutil
from pathlib import Path

import cv2
import numpy as np

CLASSES = ("circle", "square", "triangle", "star", "heart")
PICTURES = {"train": 160, "val": 40}  # few enough for two CPU cores (RULES.md 10)
SIZES = ((240, 320), (320, 320), (320, 240), (280, 320))  # height, width
SHAPES = (2, 6)  # a picture, from .. to
EMPTY = 0.05  # share of pictures without any
SIDE = (48, 150)  # pixels; small ones are as frequent as large ones by ratio
HOLLOW = 0.15  # share of shapes drawn as outlines
MIN_SHOWN = 0.75  # of a shape's area, whatever lies over it; otherwise the upper one is put elsewhere
CLUTTER = 12  # strokes, arcs and specks in a picture
NOISE = 7.0  # standard deviation of the grain, of 255
SEED = 20
QUALITY = 92  # JPEG

# Two colours a class, BGR: without them the smallest model needs three times as long to tell the shapes apart
PAINT = {
    "circle": ((60, 76, 231), (34, 126, 230)),
    "square": ((219, 152, 52), (170, 96, 30)),
    "triangle": ((113, 204, 46), (72, 140, 24)),
    "star": ((15, 196, 241), (245, 245, 240)),
    "heart": ((180, 105, 255), (182, 89, 155)),
}
FRACTION = 4  # bits after the point in the coordinates handed to OpenCV


def _outline(shape: str, points: int = 64) -> np.ndarray:
    """Corners float [k, 2] of a shape with radius 1 around the origin, y downwards."""
    if shape == "heart":
        t = np.linspace(-0.78 * np.pi, 0.78 * np.pi, points)  # the last bit to the tip is straight
        t = np.append(t, np.pi)
        y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t))
        return np.stack([16 * np.sin(t) ** 3, y], 1) / 17
    corners = {"circle": points, "square": 4, "triangle": 3, "star": 10}[shape]
    angles = 2 * np.pi * (np.arange(corners) / corners - 0.25)
    radii = np.where(np.arange(corners) % 2, 0.5, 1.0) if shape == "star" else np.ones(corners)
    return radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)


def _mask(rng: np.random.Generator, shape: str, size: tuple[int, int]) -> np.ndarray:
    """Draws one shape somewhere wholly inside `size` = (height, width) -> its coverage uint8 [H, W], 0..255."""
    side = np.exp(rng.uniform(*np.log(SIDE)))
    turn = rng.uniform(-0.6, 0.6) if shape == "heart" else rng.uniform(0, 2 * np.pi)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    corners = _outline(shape) @ rotation.T
    low, high = corners.min(0), corners.max(0)
    hollow = rng.random() < HOLLOW
    pen = max(side * (0.16 if hollow else 0.08), 2.0)  # a round pen softens the corners
    corners = (corners - low) / (high - low).max() * (side - pen) + pen / 2
    corners += rng.uniform(2, np.array(size[::-1]) - corners.max(0) - pen / 2 - 2)
    drawn = np.rint(corners * 2**FRACTION).astype(np.int32)
    mask = np.zeros(size, np.uint8)
    cv2.polylines(mask, [drawn], True, 255, round(pen), cv2.LINE_AA, FRACTION)
    if not hollow:
        cv2.fillPoly(mask, [drawn], 255, cv2.LINE_AA, FRACTION)
    return mask


def _ground(rng: np.random.Generator, size: tuple[int, int]) -> np.ndarray:
    """A muted gradient with blotches and clutter -> float32 [H, W, 3]."""
    height, width = size
    corners = rng.uniform(75, 205) + rng.uniform(-30, 30, 3) + rng.uniform(-35, 35, (2, 2, 3))
    ground = cv2.resize(corners.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    blotches = rng.normal(0, 14, (6, 8, 1)).astype(np.float32)
    ground += cv2.resize(blotches, (width, height), interpolation=cv2.INTER_CUBIC)[..., None]
    marks = ground.copy()
    for _ in range(CLUTTER):
        colour = (ground[rng.integers(height), rng.integers(width)] + rng.uniform(-70, 70, 3)).tolist()
        x, y = (int(v) for v in rng.uniform(0, (width, height)))
        kind, pen = rng.integers(4), int(rng.integers(1, 5))
        if kind == 0:
            end = tuple(int(v) for v in (x, y) + rng.normal(0, 120, 2))
            cv2.line(marks, (x, y), end, colour, pen)
        elif kind == 1:
            axes, start = tuple(int(v) for v in rng.uniform(15, 90, 2)), rng.uniform(0, 360)
            cv2.ellipse(marks, (x, y), axes, rng.uniform(0, 180), start, start + rng.uniform(40, 150), colour, pen)
        elif kind == 2:
            steps = np.cumsum(rng.normal(0, 16, (7, 2)), 0) + (x, y)
            cv2.polylines(marks, [steps.astype(np.int32)], False, colour, pen)
        else:
            cv2.circle(marks, (x, y), int(rng.integers(1, 5)), colour, -1)
    return cv2.GaussianBlur(marks, (0, 0), 0.7)


def _paint(picture: np.ndarray, mask: np.ndarray, shape: str, rng: np.random.Generator) -> None:
    """Lays a shape, with its shadow and a light from above, over the picture float32 [H, W, 3], in place."""
    shadow = np.zeros_like(mask)
    shadow[4:, 3:] = mask[:-4, :-3]
    picture *= 1 - 0.35 / 255 * cv2.GaussianBlur(shadow, (0, 0), 4)[..., None].astype(np.float32)
    colour = np.array(PAINT[shape][rng.integers(2)]) + rng.uniform(-20, 20, 3)
    rows = np.flatnonzero(mask.any(1))
    light = np.interp(np.arange(len(mask)), (rows[0], rows[-1]), (1.12, 0.85))[:, None, None]
    alpha = mask.astype(np.float32)[..., None] / 255
    picture += alpha * (light * colour - picture)


def picture(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws picture `number` -> image uint8 [H, W, 3] BGR, boxes int64 [n, 4] xyxy, labels int64 [n]."""
    rng = np.random.default_rng((SEED, number))
    size = SIZES[rng.integers(len(SIZES))]
    canvas = _ground(rng, size)
    wanted = 0 if rng.random() < EMPTY else rng.integers(SHAPES[0], SHAPES[1] + 1)
    seen, areas, labels = [], [], []  # of every shape: the pixels still seen, how many it had
    for _ in range(wanted):
        label = int(rng.integers(len(CLASSES)))
        for _ in range(20):  # places tried
            mask = _mask(rng, CLASSES[label], size)
            left = [pixels & (mask < 128) for pixels in seen]
            if all(pixels.sum() >= MIN_SHOWN * area for pixels, area in zip(left, areas, strict=True)):
                seen, areas, labels = [*left, mask >= 128], [*areas, (mask >= 128).sum()], [*labels, label]
                _paint(canvas, mask, CLASSES[label], rng)
                break
    canvas += rng.normal(0, NOISE, canvas.shape)
    boxes = np.array([cv2.boundingRect(pixels.astype(np.uint8)) for pixels in seen], np.int64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    return np.rint(canvas.clip(0, 255)).astype(np.uint8), boxes, np.array(labels, np.int64)


def _write(folder: Path) -> None:
    (folder / "images").mkdir(parents=True)
    number = 0
    for part, count in PICTURES.items():
        lines = []
        for _ in range(count):
            image, boxes, labels = picture(number)
            name = f"images/{number:04}.jpg"
            (folder / name).write_bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes())
            fields = (f"{x1},{y1},{x2},{y2},{label}" for (x1, y1, x2, y2), label in zip(boxes, labels, strict=True))
            lines.append(" ".join([name, *fields]))
            number += 1
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n", encoding="utf-8")


def draw(folder: str | Path) -> bool:
    """Draws the demo into `folder`: images/, train.txt, val.txt (annotation files) and classes.txt.

    Returns False, and touches nothing, if it is there already. It is drawn beside and renamed when complete, so that an
    interrupted drawing is never taken for the demo. Anything else that has its place raises FileExistsError.
    """
    folder = Path(folder)
    complete = [folder / name for name in ("train.txt", "val.txt", "classes.txt")]
    if all(path.is_file() for path in complete):
        return False
    if folder.exists():
        raise FileExistsError(f"{folder} is there, but is not a complete demo: move or delete it, and it is drawn anew")
    beside = folder.with_name(f".{folder.name}-{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        _write(beside)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return True
