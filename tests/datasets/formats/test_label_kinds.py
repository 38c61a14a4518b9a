"""YOLO label files of trackers and with key points are refused; polygons of all kinds are read."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from files import paint, text
from refused import refused

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
    for line, some in enumerate((rows, [[0.5, 0.5, 0.1, 0.1], *rows]), start=1):
        with refused(DataError, f"0.txt:{line}", "6 numbers", "track") as caught:
            read(write(tmp_path / str(line), some), "train")
        assert "fraction" not in str(caught.value)


@pytest.mark.parametrize(("points", "step"), [(3, 2), (5, 2), (17, 2), (2, 3), (3, 3), (17, 3)])
@pytest.mark.parametrize("sides", [(0.05, 0.2), (0.05, 0.5)])
def test_labels_with_key_points_are_refused(tmp_path: Path, points: int, step: int, sides: tuple) -> None:
    rows = poses(np.random.default_rng(points), 12, points, step, sides)
    with refused(DataError, "0.txt:1", f"{4 + points * step} numbers", "key points"):
        read(write(tmp_path, rows), "train")


def test_numbers_that_are_no_box_are_read_as_before() -> None:
    for row in ([0.0] * 10, [np.nan] * 6, [0.5, 0.5, 0.1, 0.1, np.inf, 1]):
        kinds = label_kinds.LabelKinds()
        kinds.add(row, "a.txt:1")
        assert kinds.check() == []


def confident(rng: np.random.Generator, count: int, points: int, tail: int) -> list[list[float]]:
    """Returns rows of a box, key points with confidences, and the first `tail` of the confidence of the box and the track."""
    rows = poses(rng, count, points, 2, (0.1, 0.9))
    for row in rows:
        pairs = [row[first : first + 2] for first in range(4, len(row), 2)]
        row[4:] = [value for pair in pairs for value in (*pair, rng.uniform(0, 1))]
        row += [rng.uniform(0.3, 1), int(rng.integers(0, 2))][:tail]
    return rows


@pytest.mark.parametrize(("points", "tail"), [(2, 0), (4, 0), (5, 0), (5, 1), (4, 2), (17, 1), (5, 2)])
def test_key_points_with_confidences_are_refused(tmp_path: Path, points: int, tail: int) -> None:
    """As the predictions of pose models, of objects of all sizes."""
    rows = confident(np.random.default_rng(points), 12, points, tail)
    with refused(DataError, "0.txt:1", f"{len(rows[0])} numbers", "key points"):
        read(write(tmp_path, rows), "train")


def test_key_points_that_are_unknown_may_be_negative(tmp_path: Path) -> None:
    rows = poses(np.random.default_rng(0), 12, 5, 2, (0.1, 0.9))
    rows = [row[:4] + [value or -1 for value in row[4:]] for row in rows]
    with refused(DataError, "0.txt:1", "14 numbers", "key points"):
        read(write(tmp_path, rows), "train")


@pytest.mark.parametrize("swapped", [False, True])
def test_labels_of_a_tracker_may_reach_over_the_border(tmp_path: Path, swapped: bool) -> None:
    ends = (1, 0.9) if swapped else (0.9, 1)
    rows = [[0.5, 0.5, 0.2, 0.3, *ends], [0.02, 0.5, 0.1, 0.3, *ends]] * 4
    with refused(DataError, "0.txt:1", "6 numbers", "track"):
        read(write(tmp_path, rows), "train")


def test_polygons_of_a_tracker_are_refused(tmp_path: Path) -> None:
    """class x1 y1 x2 y2 ... confidence id: the last two numbers would be a corner."""
    rng = np.random.default_rng(0)
    rows = [polygons(rng, 1, corners, 0.2, False)[0] + [rng.uniform(0.3, 0.9), 1] for corners in range(6, 15)]
    with refused(DataError, "0.txt:1", "polygon", "track"):
        read(write(tmp_path, rows), "train")


TRACKED = [0.5, 0.5, 0.2, 0.3, 0.9, 1]


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([[*TRACKED[:5], 0.4]], id="a line that no tracker writes"),
        pytest.param([[*TRACKED, 0.5, 0.5]], id="a closed polygon, the fix"),
        pytest.param([[0.1, 0.1, 0.1, 0.8, 0.8, 0.8, 0.8, 0.1]] * 5, id="as many polygons"),
    ],
)
def test_other_lines_make_an_error_a_note(tmp_path: Path, others: list[list[float]]) -> None:
    found = read(write(tmp_path, [TRACKED] * 5 + others), "train")
    assert len(found.boxes) == 5 + len(others)
    assert [note for note in found.notes if "0.txt:1: 6 numbers" in note and "track" in note]


def test_most_lines_decide(tmp_path: Path) -> None:
    """A polygon between lines of a tracker or with key points, which has another count of corners."""
    polygon = [0.1, 0.1, 0.1, 0.8, 0.8, 0.8, 0.8, 0.1]
    for number, rows in enumerate(([TRACKED] * 5, confident(np.random.default_rng(0), 12, 5, 1))):
        with refused(DataError, "0.txt:1", f"{len(rows[0])} numbers"):
            read(write(tmp_path / str(number), [*rows, polygon]), "train")


def test_a_box_with_a_fifth_number_names_the_fix(tmp_path: Path) -> None:
    with refused(DataError, "0.txt:1", "5 numbers", "class x y width height"):
        read(write(tmp_path, [[0.5, 0.5, 0.2, 0.3, 0.9]]), "train")


KINDS = list(itertools.product((3, 4, 5, 8, 32), (1, 3, 60), (0, 0.2), (False, True)))


@pytest.mark.parametrize("seed", range(10))
def test_polygons_with_equally_many_corners_are_read(tmp_path: Path, seed: int) -> None:
    """Triangles, rotated boxes and outlines, of small objects anywhere or all at one place."""
    rng = np.random.default_rng(seed)
    for number, (corners, count, jitter, fixed) in enumerate(KINDS):
        kinds = label_kinds.LabelKinds()
        for row in polygons(rng, count, corners, jitter, fixed):
            kinds.add(row, f"{number}.txt")
        kinds.check()
    rows = polygons(rng, 60, 3, 0.2, False)
    found = read(write(tmp_path, rows), "train")
    assert len(found.boxes) == 60
    assert not [note for note in found.notes if "polygon" in note]
