"""YOLO label files of trackers and with key points are refused; polygons of all kinds are read."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from files import paint, text

from datasets.errors import DataError
from datasets.formats import label_kinds
from datasets.formats.read import read

FILES = 3


def write(folder: Path, rows: list[list[float]]) -> str:
    """Writes a YOLO folder with the rows, without classes, in the label files of three images."""
    text(folder / "classes.txt", "cat\n")
    for number in range(FILES):
        paint(folder / "images" / f"{number}.png")
        own = rows[number::FILES]
        text(folder / "labels" / f"{number}.txt", "".join("0 " + " ".join(f"{v:g}" for v in row) + "\n" for row in own))
    return str(folder)


def poses(
    rng: np.random.Generator, count: int, points: int, step: int, sides: tuple[float, float]
) -> list[list[float]]:
    """Returns rows of x, y, width, height and key points inside the box; those that are not visible are 0, 0."""
    rows = []
    for _ in range(count):
        size = rng.uniform(*sides, 2)
        center = rng.uniform(size / 2, 1 - size / 2)
        row = [*center, *size]
        for _ in range(points):
            visible = int(rng.integers(0, 3))
            place = center + rng.uniform(-0.5, 0.5, 2) * size if visible else np.zeros(2)
            row += [*place, visible][:step]
        rows.append(row)
    return rows


def polygons(rng: np.random.Generator, count: int, corners: int, jitter: float, fixed: bool) -> list[list[float]]:
    """Returns rows with the corners of small polygons, anywhere or all at one place."""
    rows, place = [], rng.uniform(0.1, 0.5, 2)
    for _ in range(count):
        angles = np.arange(corners) * 2 * np.pi / corners + rng.uniform(0, 7)
        points = np.stack([np.cos(angles), np.sin(angles) * rng.uniform(0.3, 1)], 1) * rng.uniform(0.02, 0.09)
        points += rng.normal(0, jitter * 0.05, points.shape) + (place if fixed else rng.uniform(0.1, 0.9, 2))
        rows.append(points.clip(0, 1).ravel().tolist())
    return rows


@pytest.mark.parametrize("highest", [1, 40])
def test_labels_of_a_tracker_are_refused(tmp_path: Path, highest: int) -> None:
    """class x y width height confidence id; some lines may be corrected by hand."""
    rng = np.random.default_rng(0)
    rows = [[*rng.uniform(0.4, 0.6, 2), 0.2, 0.3, rng.uniform(), int(rng.integers(0, highest + 1))] for _ in range(9)]
    for number, some in enumerate((rows, rows[:1], [[0.5, 0.5, 0.1, 0.1], *rows])):
        with pytest.raises(DataError, match=r"labels.\d\.txt:\d: 6 numbers.* track.* first four") as caught:
            read(write(tmp_path / str(number), some), "train")
        assert "fraction" not in str(caught.value)


@pytest.mark.parametrize(("points", "step"), [(3, 2), (5, 2), (17, 2), (2, 3), (3, 3), (17, 3)])
@pytest.mark.parametrize("sides", [(0.05, 0.2), (0.05, 0.5)])
def test_labels_with_key_points_are_refused(tmp_path: Path, points: int, step: int, sides: tuple) -> None:
    rows = poses(np.random.default_rng(points), 12, points, step, sides)
    with pytest.raises(DataError, match=r"labels.0\.txt:1: \d+ numbers.*key points.* first four"):
        read(write(tmp_path, rows), "train")


def test_lines_without_any_point_are_read_as_before(tmp_path: Path) -> None:
    for row in ([0.0] * 10, [0, 0, 0.01, 0.01, 0, 0, 0, 0, 0, 0], [np.nan] * 6, [0.5, 0.5, 0.1, 0.1, np.inf, 1]):
        kinds = label_kinds.LabelKinds()
        kinds.add("0 " + " ".join(map(str, row)), "a.txt:1")
        kinds.add("0 a b c d e f", "a.txt:2")
        kinds.refuse()


def test_the_label_files_of_one_split_decide_together(tmp_path: Path) -> None:
    """One line that no tracker writes makes all of them polygons."""
    rows = [[0.5, 0.5, 0.2, 0.3, 0.9, 1]] * 5
    assert len(read(write(tmp_path / "a", [*rows, [0.5, 0.5, 0.2, 0.3, 0.9, 0.4]]), "train").boxes) == 6
    closed = [0.5, 0.5, 0.2, 0.3, 0.9, 1, 0.5, 0.5]  # the fix for polygons
    assert len(read(write(tmp_path / "b", [*rows, closed]), "train").boxes) == 6


KINDS = list(itertools.product((3, 4, 5, 8, 32), (1, 3, 60), (0, 0.2), (False, True)))


@pytest.mark.parametrize("seed", range(10))
def test_polygons_with_equally_many_corners_are_read(tmp_path: Path, seed: int) -> None:
    """Triangles, rotated boxes and outlines, of small objects anywhere or all at one place."""
    rng = np.random.default_rng(seed)
    for number, kind in enumerate(KINDS):
        kinds = label_kinds.LabelKinds()
        for row in polygons(rng, kind[1], kind[0], kind[2], kind[3]):
            kinds.add("0 " + " ".join(f"{v:.6f}" for v in row), f"{number}.txt")
        kinds.refuse()
    rows = polygons(rng, 60, 3, 0.2, False)
    assert len(read(write(tmp_path, rows), "train").boxes) == 60
