"""Every label file and every image in a folder is read, named as not read, or an error."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from files import boxes, coco, copy, cvat, paint, text, voc
from refused import refused

from datasets.errors import DataError
from datasets.formats.file import Folder
from datasets.formats.folder import read_folder
from datasets.formats.formats import format_of
from datasets.formats.read import read

TOOLS = Path(__file__).parents[2] / "data" / "tools"
SETS = sorted(str(path.relative_to(TOOLS)) for path in TOOLS.glob("*/*") if path.is_dir())
LABEL = "0 .5 .5 .2 .2\n"
TABLE = "image,x1,y1,x2,y2,class\n"


SHAPE = {"label": "cat", "points": [[1, 2], [9, 8]], "shape_type": "rectangle"}
REGION = {
    "shape_attributes": {"name": "rect", "x": 1, "y": 2, "width": 8, "height": 6},
    "region_attributes": {"c": "cat"},
}
RESULT = {"id": "a", "original_width": 40, "original_height": 20, "value": {"x": 1, "y": 1, "width": 9, "height": 9}}
RESULT["value"] |= {"rotation": 0, "rectanglelabels": ["cat"]}
STRAYS = {  # name of a label file of the image more/stray.png -> its contents
    "more/stray.xml": voc("cat"),
    "more/cvat.xml": cvat("stray.png"),
    "more/stray.json": {"imagePath": "stray.png", "shapes": [SHAPE]},
    "more/coco.json": coco("stray.png"),
    "more/via.json": {"stray.png1": {"filename": "stray.png", "regions": [REGION]}},
    "more/tasks.json": [{"data": {"image": "stray.png"}, "annotations": [{"result": [RESULT]}]}],
    "more/metadata.jsonl": {"file_name": "stray.png", "objects": {"bbox": [[1, 2, 8, 6]], "category": ["cat"]}},
    "more/boxes.csv": TABLE + "stray.png,1,2,9,8,cat\n",
    "more/list.txt": "stray.png 1,2,9,8,0\n",
    "more/stray.txt": LABEL,
    "ds/ann/stray.png.json": {"objects": [{"classTitle": "cat", "points": {"exterior": [[1, 2], [9, 8]]}}]},
}


@pytest.mark.parametrize("part", ["train", pytest.param("all", marks=pytest.mark.slow)])
@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("name", SETS)
def test_a_stray_label_file_changes_nothing_or_is_an_error(tmp_path: Path, name: str, stray: str, part: str) -> None:
    """The data sets as other tools write them, each with a label file of another format, and an image without labels."""
    root = tmp_path / "set"
    copy(TOOLS / name, root)
    before = boxes(read(str(root), part))
    paint(root / "unused" / "extra.png"), paint(root / "more" / "stray.png"), text(root / stray, STRAYS[stray])
    try:
        found = read(str(root), part)
    except DataError as error:
        assert str(root) in str(error)
        return
    rows = [row for row in boxes(found) if not {"more", "unused"}.intersection(Path(row[0]).parts)]
    assert rows == before


@pytest.mark.parametrize("part", ["train", "all"])
@pytest.mark.parametrize("name", SETS)
def test_nothing_is_reported_for_the_files_of_real_tools(tmp_path: Path, name: str, part: str) -> None:
    """Nor for texts, settings and other files that no reader takes for labels."""
    root = tmp_path / "set"
    copy(TOOLS / name, root)
    before = read(str(root), part)
    others = {
        "requirements.txt": "numpy==2.0\nopencv-python\n",
        "README.txt": "1 2 3 4 5\nPhotos of cats\n",
        "notes/tracker.txt": "1,1,10,20,30,40,1,-1,-1,-1\n",
        "package.json": {"name": "x", "files": ["images/"], "dependencies": {"a": "1"}},
        "settings/config.yaml": "epochs: 3\n",
        "log.csv": "epoch,AP,loss\n1,.2,3\n",
        "app/AndroidManifest.xml": "<manifest package='x'><application/></manifest>",
    }
    if "voc" in name or "cvat" in name:
        del others["app/AndroidManifest.xml"]  # next to XML files with labels it is an error
    for file, words in others.items():
        text(root / file, words)
    found = read(str(root), part)
    assert found.notes == before.notes and len(found) == len(before)


# ---- suffixes in upper case


def in_upper_case(path: Path) -> Path:
    return path.rename(path.with_suffix(path.suffix.upper()))


@pytest.mark.parametrize("kind", ["labels", "images"])
@pytest.mark.parametrize("name", SETS)
def test_suffixes_may_be_in_upper_case(tmp_path: Path, name: str, kind: str) -> None:
    """Files that another file names keep their names."""
    root = tmp_path / "set"
    copy(TOOLS / name, root)
    before = [row[1:] for row in boxes(read(str(root), "all"))]
    files = [path for path in root.rglob("*") if path.is_file()]
    images = {path for path in files if path.suffix == ".png"}
    words = b"".join(path.read_bytes() for path in files if path not in images)
    for path in files:
        if (path in images) == (kind == "images") and path.name.encode() not in words:
            in_upper_case(path)
    found = read(str(root), "all")
    assert [row[1:] for row in boxes(found)] == before
    assert all(os.path.isfile(place) for row in range(len(found)) if (place := found.files[row]) and ":" not in place)


# ---- one stray file hides a data set


def yolo(root: Path, count: int, place: str = "") -> None:
    text(root / "classes.txt", "cat\n")
    for i in range(count):
        paint(root / "images" / place / f"{i}.png"), text(root / "labels" / place / f"{i}.txt", LABEL)


@pytest.mark.parametrize("part", ["train", "val"])
def test_all_splits_of_the_format_that_is_read_count(tmp_path: Path, part: str) -> None:
    """The split val has fewer images than the label files of the other format, but both splits together have not."""
    for name, numbers in (("train", range(6)), ("val", range(6, 8))):
        for i in numbers:
            paint(tmp_path / "images" / name / f"{i}.png")
            text(tmp_path / "annotations" / name / f"{i}.xml", voc("cat"))
            text(tmp_path / "labels" / name / f"{i}.txt", LABEL)
    assert any("YOLO" in note and ": 8" in note for note in read(str(tmp_path), part).notes)


@pytest.mark.parametrize("head", ["photo_of,sx,sy,px,py,kind", "image,x1,y1,y2,extent,class", "a,b,c,d,e,f"])
def test_a_table_whose_header_is_not_known_is_named_or_an_error(tmp_path: Path, head: str) -> None:
    yolo(tmp_path, 2)
    table = text(tmp_path / "boxes.csv", f"{head}\n0.png,1,2,9,8,cat\n")
    (note,) = read(str(tmp_path), "train").notes
    assert "boxes.csv" in note
    for label in (*tmp_path.glob("labels/*.txt"), tmp_path / "classes.txt"):
        label.unlink()
    text(tmp_path / "more.csv", TABLE + "1.png,1,2,9,8,cat\n")
    with refused(DataError, "boxes.csv:1"):
        read(str(tmp_path), "all")
    table.write_text("epoch,loss,map,a,b,c\n1,.2,.3,4,5,6\n", encoding="utf-8")
    assert len(read(str(tmp_path), "all").boxes) == 1


@pytest.mark.parametrize("source", ["", "data.yaml", "list.txt"])
@pytest.mark.parametrize("other", ["images/0.txt", "labels/0.TXT"])
def test_two_label_files_of_an_image_that_differ_are_an_error_that_names_both(
    tmp_path: Path, source: str, other: str
) -> None:
    """One of them counted, without a word."""
    yolo(tmp_path, 3)
    text(tmp_path / "data.yaml", "train: images\nnames: [cat]\n")
    text(tmp_path / "list.txt", "".join(f"images/{i}.png\n" for i in range(3)))
    text(tmp_path / other, "0 0.5 .5 .2 .2\n")
    with refused(DataError, "labels/0.txt", tmp_path / other):
        read(str(tmp_path / source), "train")
    text(tmp_path / "labels/0.txt", f"{LABEL}0 .3 .3 .1 .1\n")
    for same in (f"0 .3 .3 .1 .1\n{LABEL}", f"{LABEL}0 .3 .3 .1 .1\n".replace("\n", "\r\n")):
        (tmp_path / other).write_bytes(same.encode())
        assert len(read(str(tmp_path / source), "train").boxes) == 4


# ---- files of COCO for other tasks


NAMES = ("captions", "keypoints", "stuff", "panoptic", "image_info", "plain")


@pytest.mark.parametrize("name", NAMES)
def test_a_coco_file_with_boxes_is_read_whatever_its_name(tmp_path: Path, name: str) -> None:
    paint(tmp_path / "a.png"), paint(tmp_path / "b.png")
    text(tmp_path / "boxes_train.json", coco("a.png")), text(tmp_path / f"{name}_train.json", coco("b.png"))
    with pytest.raises(DataError, match=f"{name}_train.json"):  # both may be meant
        read(str(tmp_path), "train")
    assert sorted(Path(row[0]).name for row in boxes(read(str(tmp_path), "all"))) == ["a.png", "b.png"]


@pytest.mark.parametrize("stray", STRAYS)
def test_what_a_format_matches_is_a_label_file_of_it_and_of_no_other(tmp_path: Path, stray: str) -> None:
    """One table serves both: which format a folder has, and which label files in it are left over."""
    name = stray.removeprefix("more/")
    paint(tmp_path / "stray.png"), text(tmp_path / name, STRAYS[stray]), text(tmp_path / "classes.txt", "cat\n")
    folder = Folder(tmp_path, (), None)
    assert read_folder(folder).row is format_of(folder.file(name))


# ---- files that cannot be read as text


CANNOT_BE_READ = {  # file -> its contents
    "a.json": json.dumps(coco("images/0.png")).encode("utf-16"),
    "without_mark.json": json.dumps(coco("images/0.png")).encode("utf-16-le"),
    "cut.json": b'{"info": {"year": 20',
    "empty.json": b"",
    "a.xml": b"<annot",
    "empty.xml": b"",
    "a.csv": f"{TABLE}images/0.png,1,2,9,8,cat\n".encode("utf-16"),
    "without_mark.tsv": f"{TABLE}images/0.png,1,2,9,8,cat\n".encode("utf-16-be"),
    "empty.csv": b"",
    "a.jsonl": json.dumps(STRAYS["more/metadata.jsonl"]).encode("utf-16"),
    "empty.ndjson": b"",
    "old/0.txt": LABEL.encode("utf-16"),
    "old.txt": "images/0.png 1,2,9,8,0\n".encode("utf-16"),
}


@pytest.mark.parametrize("name", CANNOT_BE_READ)
def test_a_file_that_cannot_be_read_is_named_or_an_error(tmp_path: Path, name: str) -> None:
    """A COCO file in UTF-16, as PowerShell writes it, counted as nothing, also if it was the only label file."""
    yolo(tmp_path, 2)
    assert not read(str(tmp_path), "train").notes
    text(tmp_path / name, "").write_bytes(CANNOT_BE_READ[name])
    text(tmp_path / "data.yaml", "train: images\nnames: [cat]\n")
    (note,) = read(str(tmp_path), "train").notes
    assert str(tmp_path / name) in note
    (tmp_path / "data.yaml").unlink()
    if ".jsonl" not in name and ".ndjson" not in name:  # JSON Lines are tried before YOLO
        (note,) = read(str(tmp_path), "train").notes
        assert str(tmp_path / name) in note
    shutil.rmtree(tmp_path / "labels")
    text(tmp_path / "README.txt", "Photos of cats\n")
    with refused(DataError, tmp_path / name):
        read(str(tmp_path), "train")


def test_a_file_that_may_not_be_opened_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yolo(tmp_path, 2)
    text(tmp_path / "a.json", coco("images/0.png"))

    def refuse(path: str | Path, mode: str) -> Any:
        if Path(path).name == "a.json":
            raise PermissionError(13, "Permission denied", str(path))
        return open(path, mode)

    monkeypatch.setattr("datasets.errors.open", refuse, raising=False)
    with refused(DataError, tmp_path / "a.json", "Permission denied"):
        read(str(tmp_path), "train")


@pytest.mark.parametrize("kind", ["yolo", "voc", "csv"])
def test_problems_of_labels_and_of_images_are_told_together(tmp_path: Path, kind: str) -> None:
    wrong = {"yolo": "labels/0.txt", "voc": "0.xml", "csv": "boxes.csv"}[kind]
    text(tmp_path / "classes.txt", "cat\n")
    for name in "012":
        paint(tmp_path / f"images/{name}.png")
        if kind == "yolo":
            text(tmp_path / f"labels/{name}.txt", "0 .5 .5 .2 .2\n" if name != "0" else "0 .5 .5 .2\n")
        elif kind == "voc":
            end = "<xmax>9</xmax>" if name != "0" else "<xmax>a</xmax>"
            box = f"<bndbox><xmin>1</xmin><ymin>2</ymin>{end}<ymax>8</ymax></bndbox>"
            text(tmp_path / f"images/{name}.xml", f"<annotation><object><name>cat</name>{box}</object></annotation>")
    if kind == "csv":
        rows = ["path,x1,y1,x2,y2,class", "0.png,1,2,b,8,cat", *(f"{name}.png,1,2,9,8,cat" for name in "12")]
        text(tmp_path / "boxes.csv", "\n".join(rows) + "\n")
    (tmp_path / "images/2.png").write_bytes(b"no image")
    with refused(DataError, wrong, "2.png", "problems: 2"):
        read(str(tmp_path / "boxes.csv" if kind == "csv" else tmp_path), "train")
