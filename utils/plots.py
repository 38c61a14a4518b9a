"""Curves and tables as pictures. Drawn with the letters of `draw`, so that class names of any script can be read."""

from collections.abc import Sequence

import cv2
import numpy as np

from utils.draw import colour_of, put_text, text_width
from utils.metrics import Curve

INK, PALE, GRID = (60, 50, 45), (150, 140, 135), (232, 230, 228)  # BGR
SIZE = 16  # pixels of the letters
SIDE, MARGIN = 640, 76  # pixels of the square of a curve, and beside it
LEGEND = 24  # classes named beside the curves
CELL, MOST_CELLS = 40, 1600  # pixels of a cell of the confusion matrix, and of all in a row at most


def precision_recall(curves: dict[str, Curve]) -> np.ndarray:
    """Curves by class name -> a picture [H, W, 3]: precision over recall at IoU .5, with the area under each as AP."""
    curves = {name: curve for name, curve in curves.items() if curve.boxes}
    areas = {name: curve.average_precision() for name, curve in curves.items()}
    ranking = sorted(areas, key=areas.get, reverse=True)
    named = ranking if len(ranking) <= LEGEND else ranking[: LEGEND // 2] + ranking[-LEGEND // 2 :]
    legend = max([text_width(f"{name} 0.000", SIZE) for name in named] + [text_width("mean of 99 classes 0.000", SIZE)])
    page = np.full((SIDE + 2 * MARGIN, SIDE + 2 * MARGIN + legend + 80, 3), 255, np.uint8)
    _axes(page)
    colours = {name: colour_of(label) for label, name in enumerate(curves)}
    recalls = np.linspace(0, 1, 1001)
    heights = [np.zeros(len(recalls))]
    for name, curve in curves.items():
        envelope = np.append(np.maximum.accumulate(curve.precision[::-1])[::-1], 0)
        heights.append(envelope[np.searchsorted(curve.recall, recalls)])
        if name in named:
            _line(page, recalls, heights[-1], colours[name], 1 if len(named) > 6 else 2)
    mean = np.mean(heights[1:] or heights, axis=0)
    _line(page, recalls, mean, INK, 4)
    x, y = SIDE + MARGIN + 30, MARGIN + SIZE
    rows = [(f"mean of {len(curves)} classes", float(np.mean(list(areas.values()) or [0])), INK)]
    rows += [(name, areas[name], colours[name]) for name in named]
    for name, value, colour in rows:
        cv2.line(page, (x, y - SIZE // 3), (x + 22, y - SIZE // 3), colour, 3, cv2.LINE_AA)
        put_text(page, f"{name} {value:.3f}", x + 32, y, SIZE, INK)
        y += 24
    return page


def _axes(page: np.ndarray) -> None:
    for tenth in range(11):
        at = round(SIDE * tenth / 10)
        cv2.line(page, (MARGIN + at, MARGIN), (MARGIN + at, MARGIN + SIDE), GRID, 1)
        cv2.line(page, (MARGIN, MARGIN + at), (MARGIN + SIDE, MARGIN + at), GRID, 1)
        if tenth % 2 == 0:
            text = f"{tenth / 10:.1f}"
            wide = text_width(text, SIZE)
            put_text(page, text, MARGIN + at - wide // 2, MARGIN + SIDE + 24, SIZE, INK)
            put_text(page, text, MARGIN - wide - 10, MARGIN + SIDE - at + SIZE // 3, SIZE, INK)
    put_text(page, "precision", MARGIN, MARGIN - 16, SIZE, INK)
    put_text(page, "recall", MARGIN + SIDE - text_width("recall", SIZE), MARGIN + SIDE + 52, SIZE, INK)
    put_text(page, "at IoU 0.5", MARGIN + SIDE - text_width("at IoU 0.5", SIZE), MARGIN - 16, SIZE, PALE)


def _line(page: np.ndarray, x: np.ndarray, y: np.ndarray, colour: tuple, width: int) -> None:
    points = np.stack([MARGIN + x * SIDE, MARGIN + (1 - y) * SIDE], 1)
    cv2.polylines(page, [np.round(points * 16).astype(np.int32)], False, colour, width, cv2.LINE_AA, 4)


def confusion(matrix: np.ndarray, classes: Sequence[str]) -> np.ndarray:
    """Counts [C + 1, C + 1] (`mistakes.confusion_matrix`) -> a picture [H, W, 3], shaded by the share of each row."""
    names = [*classes, "background"]
    cell = max(min(CELL, MOST_CELLS // len(names)), 12)
    size = max(min(SIZE, cell * 3 // 4), 10)
    left = max(text_width(name, size) for name in names) + 60
    side = cell * len(names)
    page = np.full((left + side + 40, left + side + 40, 3), 255, np.uint8)
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    turned = np.full((side, left - 12, 3), 255, np.uint8)  # names of the columns, before they are turned upright
    for i, name in enumerate(names):
        y = left + i * cell + (cell + size * 2 // 3) // 2
        put_text(page, name, left - 10 - text_width(name, size), y, size, INK)
        put_text(turned, name, 0, y - left, size, INK)
        for j in range(len(names)):
            _cell(page, left + j * cell, left + i * cell, cell, int(matrix[i, j]), share[i, j], i == j)
    page[: left - 12, left : left + side] = np.rot90(turned)
    put_text(page, "true", 12, left - 10, size, PALE)
    put_text(page, "found", left - text_width("found", size) - 10, 24, size, PALE)
    return page


def _cell(page: np.ndarray, x: int, y: int, side: int, count: int, share: float, right: bool) -> None:
    """Green on the diagonal, red off it, deeper with the share."""
    deep = np.array((90, 160, 40) if right else (60, 70, 225))
    colour = np.round(255 - (255 - deep) * share**0.5).astype(int).tolist() if count else (250, 250, 250)
    cv2.rectangle(page, (x + 1, y + 1), (x + side - 1, y + side - 1), colour, -1)
    text = str(count) if count < 10_000 else f"{count // 1000}k"
    size = min(side * 2 // 5, SIZE)
    if count and size >= 8 and text_width(text, size) < side:
        at = x + (side - text_width(text, size)) // 2, y + (side + size * 2 // 3) // 2
        put_text(page, text, *at, size, (255, 255, 255) if share > 0.5 else INK)
