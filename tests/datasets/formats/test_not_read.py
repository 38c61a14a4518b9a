"""What to do with a format that is not read: each advice is followed to its end, and gives the boxes that the file has."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from files import boxes, paint, text
from refused import refused

from datasets.errors import DataError
from datasets.formats.read import read

CORNERS = {"cat": (1, 2, 9, 8), "dog": (20, 5, 30, 15)}  # in a.png, which has 40 x 20 pixels
XYWH = {name: [x1, y1, x2 - x1, y2 - y1] for name, (x1, y1, x2, y2) in CORNERS.items()}


def as_drawn(source: Path) -> None:
    """Asserts that the boxes of a.png are read, with the names of their classes."""
    ((path, corners, labels, _),) = boxes(read(str(source), "train"))
    assert Path(path).name.endswith("a.png") and np.allclose(corners, list(CORNERS.values()))
    assert labels == ["cat", "dog"]


ROWS = {  # a file of a format that has no converter
    "CrowdHuman": ("a.odgt", {"ID": "a", "gtboxes": [{"tag": n, "fbox": box, "extra": {}} for n, box in XYWH.items()]}),
    "Ultralytics": ("a.ndjson", {"type": "dataset", "task": "detect", "class_names": {"0": "cat"}}),
    "Grounding DINO": ("a.jsonl", {"filename": "a.png", "detection": {"instances": [{"bbox": CORNERS["cat"]}]}}),
    "Scalabel": ("a.json", {"frames": [{"name": "a.png", "labels": []}], "config": {}}),
    "BDD100K": ("b.json", [{"name": "a.png", "labels": [{"category": "cat", "box2d": {"x1": 1}}]}]),
    "VisDrone": ("a.txt", "1,2,8,6,1,4,0,0\n20,5,10,10,1,4,0,0\n"),
}


@pytest.mark.parametrize("kind", ROWS)
def test_the_lines_that_an_error_asks_for_are_read(tmp_path: Path, kind: str) -> None:
    name, contents = ROWS[kind]
    paint(tmp_path / "a.png")
    path = text(tmp_path / name, contents)
    with refused(DataError, path, kind, "classes.txt") as caught:
        read(str(tmp_path), "train")
    file, form = re.search(r"into (\S+), (PATH .*?) \.\.\.,", str(caught.value)).groups()
    path.unlink()
    path_word, first, second = form.split(" ")
    assert path_word == "PATH" and first == second
    rows = []
    for label, row in enumerate(CORNERS.values()):
        values = {**dict(zip(("x1", "y1", "x2", "y2"), row, strict=True)), "CLASS": label}
        rows.append(",".join(str(values[word]) for word in first.split(",")))
    text(tmp_path / file, f"a.png {' '.join(rows)}\n"), text(tmp_path / "classes.txt", "cat\ndog\n")
    as_drawn(tmp_path / file), as_drawn(tmp_path)


def test_a_table_with_semicolons_is_named_csv(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    rows = "".join(f"a.png;{';'.join(map(str, row))};{name}\n" for name, row in CORNERS.items())
    path = text(tmp_path / "gt.txt", rows)
    with refused(DataError, path, ".csv", "class"):
        read(str(tmp_path), "train")
    path.rename(path.with_suffix(".csv"))
    as_drawn(tmp_path)


def test_names_in_yolo_labels_become_numbers(tmp_path: Path) -> None:
    paint(tmp_path / "images" / "a.png")
    row = "{} .125 .25 .2 .3\n{} .625 .5 .25 .5\n"
    path = text(tmp_path / "labels" / "a.txt", row.format("cat", "dog"))
    text(tmp_path / "classes.txt", "cat\ndog\n")
    with refused(DataError, path, "numbers"):
        read(str(tmp_path), "train")
    path.write_text(row.format(0, 1))
    as_drawn(tmp_path)


def test_an_archive_is_unpacked(tmp_path: Path) -> None:
    paint(tmp_path / "set" / "a.png")
    (
        text(tmp_path / "set" / "classes.txt", "cat\ndog\n"),
        text(tmp_path / "set" / "b.txt", "a.png 1,2,9,8,0 20,5,30,15,1\n"),
    )
    path = shutil.make_archive(str(tmp_path / "zip" / "pets"), "zip", tmp_path / "set")
    with refused(DataError, path, "unpack"):
        read(str(tmp_path / "zip"), "train")
    shutil.unpack_archive(path, tmp_path / "new")
    as_drawn(tmp_path / "new")


def kitti(folder: Path) -> None:
    paint(folder / "image_2" / "a.png")
    rows = (f"{n} 0 0 0 {' '.join(map(str, row))} 1 1 1 1 1 1 1\n" for n, row in CORNERS.items())
    text(folder / "label_2" / "a.txt", "".join(rows))


def wider_face(folder: Path) -> None:
    paint(folder / "WIDER_train" / "images" / "0--Parade" / "0_Parade_a.jpg")
    rows = "".join(f"{' '.join(map(str, box))} 0 0 0 0 0 0\n" for box in XYWH.values())
    text(folder / "wider_face_split" / "wider_face_train_bbx_gt.txt", f"0--Parade/0_Parade_a.jpg\n2\n{rows}")


def datumaro(folder: Path) -> None:
    paint(folder / "images" / "default" / "a.png")
    shapes = [
        {"id": n, "type": "bbox", "attributes": {}, "group": 0, "label_id": n, "z_order": 0, "bbox": box}
        for n, box in enumerate(XYWH.values())
    ]
    labels = [{"name": name, "parent": "", "attributes": []} for name in CORNERS]
    items = [{"id": "a", "annotations": shapes, "image": {"path": "a.png", "size": [20, 40]}}]
    contents = {"info": {}, "categories": {"label": {"labels": labels, "attributes": []}}, "items": items}
    text(folder / "annotations" / "default.json", contents)


def command_for(folder: Path, new: Path) -> str:
    """The Python program that the error about a folder names, with the paths of this test."""
    with refused(DataError, folder, "datumaro") as caught:
        read(str(folder), "train")
    (code,) = re.findall(r'python -c "(.*)"', str(caught.value))
    return code.replace("NEW_FOLDER", str(new)).replace("FOLDER", str(folder))


@pytest.mark.parametrize("write", [kitti, wider_face, datumaro])
def test_the_command_of_a_converter_is_python(tmp_path: Path, write) -> None:
    write(tmp_path / "set")
    compile(command_for(tmp_path / "set", tmp_path / "new"), "command", "exec")


@pytest.mark.slow
@pytest.mark.parametrize("write", [kitti, wider_face, datumaro])
def test_what_datumaro_converts_is_read(tmp_path: Path, write) -> None:
    pytest.importorskip("datumaro")
    write(tmp_path / "set")
    subprocess.run([sys.executable, "-c", command_for(tmp_path / "set", tmp_path / "new")], check=True)
    ((_, corners, names, _),) = boxes(read(str(tmp_path / "new"), "train"))
    assert corners == [list(row) for row in CORNERS.values()]
    assert names == (["face", "face"] if write is wider_face else ["cat", "dog"])
