"""YOLO lines with more than four numbers are polygons; it is an error if all of them are a box with key points in it."""

from pathlib import Path

import numpy as np
import pytest
from files import paint, text
from refused import refused

from datasets.errors import DataError
from datasets.formats.read import read
from datasets.store import Annotations


def found(folder: Path, rows: list[list[float]]) -> Annotations:
    """The data of a folder with the rows, without classes, in the label files of three images."""
    text(folder / "classes.txt", "cat\n")
    for number in range(3):
        paint(folder / "images" / f"{number}.png")
        lines = ("0 " + " ".join(f"{value:g}" for value in row) + "\n" for row in rows[number::3])
        text(folder / "labels" / f"{number}.txt", "".join(lines))
    return read(str(folder), "train")


def poses(rng: np.random.Generator, points: int, step: int) -> list[list[float]]:
    """Rows of x, y, width, height and key points in the box; those that are not visible are 0, 0."""
    rows = []
    for _ in range(12):
        size = rng.uniform(0.1, 0.5, 2)
        center = rng.uniform(size / 2, 1 - size / 2)
        row = [*center, *size]
        for _ in range(points):
            visible = int(rng.integers(0, 2))
            row += [*(center + rng.uniform(-0.5, 0.5, 2) * size if visible else (0, 0)), visible][:step]
        rows.append(row)
    return rows


@pytest.mark.parametrize(("points", "step"), [(3, 2), (17, 2), (2, 3), (4, 3), (16, 3)])
def test_boxes_with_key_points_are_refused(tmp_path: Path, points: int, step: int) -> None:
    rows = poses(np.random.default_rng(points), points, step)
    with refused(DataError, "0.txt:1", "12", "first four numbers"):
        found(tmp_path / "all", rows)
    assert len(found(tmp_path / "one", [*rows, [0.1, 0.1, 0.1, 0.8, 0.8, 0.8, 0.8, 0.1]]).boxes) == 13


def test_the_advice_for_key_points_is_followed(tmp_path: Path) -> None:
    rows = [row[:4] for row in poses(np.random.default_rng(0), 3, 2)]
    x, y, width, height = rows[0]
    box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2] * np.array([40, 20, 40, 20])
    assert np.allclose(found(tmp_path, rows).boxes[0], box, atol=1e-3)


def test_key_points_whose_visibility_is_2_are_refused(tmp_path: Path) -> None:
    with refused(DataError, "0.txt:1", "2", "class x y width height"):
        found(tmp_path, [[0.5, 0.5, 0.2, 0.2, 0.5, 0.5, 2, 0.5, 0.6, 2]])


def test_tracks_behind_a_box_are_refused(tmp_path: Path) -> None:
    with refused(DataError, "2.txt:2", "7", "class x y width height"):
        found(tmp_path / "several", [[0.5, 0.5, 0.2, 0.3, 0.9, 1]] * 5 + [[0.5, 0.5, 0.2, 0.3, 0.9, 7]])
    with refused(DataError, "0.txt:1", "5 numbers", "class x y width height"):
        found(tmp_path / "confidence", [[0.5, 0.5, 0.2, 0.3, 0.9]])


@pytest.mark.parametrize("corners", [3, 4, 5, 8, 32])
def test_polygons_with_equally_many_corners_are_read_without_a_word(tmp_path: Path, corners: int) -> None:
    rng = np.random.default_rng(corners)
    angles = np.arange(corners) * 2 * np.pi / corners
    outline = np.stack([np.cos(angles), np.sin(angles)], 1) * 0.05
    rows = [(np.roll(outline, rng.integers(corners), 0) + rng.uniform(0.1, 0.9, 2)).ravel().tolist() for _ in range(30)]
    data = found(tmp_path, rows)
    assert len(data.boxes) == 30 and not data.notes
