"""What to do with a format that is not read: each advice is followed to its end, and gives the boxes that the file has."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from files import boxes, coco, cvat, paint, text, voc
from refused import refused

from datasets.errors import DataError
from datasets.formats.formats import NOT_READ
from datasets.formats.read import read

CORNERS = {"cat": (1, 2, 9, 8), "dog": (20, 5, 30, 15)}  # in a.png, which has 40 x 20 pixels
XYWH = {name: [x1, y1, x2 - x1, y2 - y1] for name, (x1, y1, x2, y2) in CORNERS.items()}


def as_drawn(source: Path) -> None:
    """Asserts that the boxes of a.png are read, with the names of their classes."""
    ((path, corners, labels, _),) = boxes(read(str(source), "train"))
    assert Path(path).name.endswith("a.png") and np.allclose(corners, list(CORNERS.values()))
    assert labels == ["cat", "dog"]


ROWS = {  # a file of a format without a shorter fix than to write lines
    "CrowdHuman": ("a.odgt", {"ID": "a", "gtboxes": [{"tag": n, "fbox": box, "extra": {}} for n, box in XYWH.items()]}),
    "Ultralytics NDJSON": ("a.ndjson", {"type": "dataset", "task": "detect", "class_names": {"0": "cat"}}),
    "Grounding DINO (ODVG)": ("a.jsonl", {"filename": "a.png", "detection": {"instances": [{"bbox": [1, 2, 9, 8]}]}}),
    "Scalabel or BDD100K": ("b.json", [{"name": "a.png", "labels": [{"category": "cat", "box2d": {"x1": 1}}]}]),
    "Datumaro": ("a.json", {"categories": {"label": {}}, "items": []}),
    "FiftyOne": ("labels.json", {"classes": ["cat"], "labels": {"a": [{"label": 0, "bounding_box": [0, 0, 1, 1]}]}}),
    "Azure Custom Vision": ("a.json", [{"id": "7", "regions": [{"tagName": "cat", "left": 0.1, "width": 0.2}]}]),
    "Edge Impulse": ("info.labels", {"version": 1, "files": [{"path": "a.png", "boundingBoxes": [{"label": "cat"}]}]}),
    "Colabeler": ("outputs/a.xml", "<?xml version='1.0'?><doc><path>a.png</path><outputs><object/></outputs></doc>"),
    "HRSC2016": ("Annotations/a.xml", "<HRSC_Image><HRSC_Objects><HRSC_Object/></HRSC_Objects></HRSC_Image>"),
    "Labelbox": ("x.ndjson", {"data_row": {"id": "c"}}),
    "KITTI": ("label_2/a.txt", "Car 0.00 0 -1.58 20.0 10.0 60.0 50.0 1.65 1.67 3.64 -0.65 1.71 46.70 -1.59\n"),
    "DOTA": ("labelTxt/a.txt", "imagesource:GoogleEarth\ngsd:0.1\n1 2 3 4 5 6 7 8 plane 0\n"),
    "VisDrone": ("annotations/a.txt", "1,2,8,6,1,4,0,0\n20,5,10,10,1,4,0,0\n"),
    "MOT": ("gt/gt.txt", "1,1,20,10,40,40,1,1,0.86\n"),
    "WIDER FACE": ("wider_face_train_bbx_gt.txt", "0--Parade/a.jpg\n1\n20 10 40 40 0 0 0 0 0 0 \n"),
    "the OIDv4 toolkit": ("Cat/Label/a.txt", "Domestic cat 20.5 10.0 60.2 50.1\n"),
    "TFRecord": ("train/pets.tfrecord", "x"),
    "Hugging Face (Parquet)": ("data/train-0.parquet", "x"),
    "MATLAB": ("digitStruct.mat", "x"),
    "no known format": ("a.xml", "<svg/>"),
    "no known format, with": ("x.jsonl", {"imageGcsUri": "gs://b/a.png", "boundingBoxAnnotations": []}),
}
VIA_CSV = "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,region_attributes\nb.jpg,1,,1,0,,\n"
EXPORTS = {  # a tool -> what it exported; its other exports, which the error names, are read in test_tool_exports.py
    "VoTT": ("x.json", {"assets": {"1": {"asset": {"name": "b.jpg"}, "regions": []}}}, "Pascal VOC"),
    "VIA's CSV": ("x.csv", VIA_CSV, "JSON"),
}
OTHERS = {"COCO detections", "a table with semicolons", "YOLO labels with class names", "an archive"}  # a test for each


def test_the_advice_for_each_format_is_followed_here() -> None:
    assert {row.name for row in NOT_READ} == {*ROWS, *EXPORTS, *OTHERS} - {"no known format", "no known format, with"}
    assert {row.name for row in NOT_READ if row.fix} == {*EXPORTS, *OTHERS}


@pytest.mark.parametrize("kind", EXPORTS)
def test_an_export_that_is_not_read_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    name, contents, other = EXPORTS[kind]
    paint(tmp_path / "b.jpg"), text(tmp_path / name, contents)
    for source in (tmp_path, tmp_path / name):
        with refused(DataError, tmp_path / name, kind, other):
            read(str(source), "train")


@pytest.mark.parametrize("kind", ROWS)
def test_the_lines_that_an_error_asks_for_are_read(tmp_path: Path, kind: str) -> None:
    """With the file still there."""
    name, contents = ROWS[kind]
    paint(tmp_path / "a.png")
    path = text(tmp_path / name, contents)
    for source in (tmp_path, path):
        with refused(DataError, path, kind, "classes.txt") as caught:
            read(str(source), "train")
    file, form = re.search(r"into (\S+), (PATH .*?) \.\.\.,", str(caught.value)).groups()
    path_word, first, second = form.split(" ")
    assert path_word == "PATH" and first == second
    rows = []
    for label, row in enumerate(CORNERS.values()):
        values = {**dict(zip(("x1", "y1", "x2", "y2"), row, strict=True)), "CLASS": label}
        rows.append(",".join(str(values[word]) for word in first.split(",")))
    text(tmp_path / file, f"a.png {' '.join(rows)}\n"), text(tmp_path / "classes.txt", "cat\ndog\n")
    as_drawn(tmp_path / file), as_drawn(tmp_path)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("named", ["", "{}_list.txt"])
def test_lists_of_paddlex_name_image_and_label_file(tmp_path: Path, named: str, split: str) -> None:
    for part, cls in (("train", "cat"), ("val", "dog")):
        paint(tmp_path / "JPEGImages" / f"{part} 1.png"), text(tmp_path / f"Annotations/{part} 1.xml", voc(cls))
        text(tmp_path / f"{part}_list.txt", f"JPEGImages/{part} 1.png Annotations/{part} 1.xml\n")
    ((path, _, names, _),) = boxes(read(str(tmp_path / named.format(split)), split))
    assert Path(path).stem == f"{split} 1" and names == ["cat" if split == "train" else "dog"]


XML = {"VOC": voc, "CVAT": lambda name: cvat("a.png").replace("cat", name)}


@pytest.mark.parametrize("kind", XML)
@pytest.mark.parametrize("encoding", ["gb2312", "GBK", "Shift_JIS", "utf-16", "iso-8859-1"])
def test_xml_is_read_in_its_encoding(tmp_path: Path, kind: str, encoding: str) -> None:
    name = "é" if encoding == "iso-8859-1" else "日本"
    paint(tmp_path / "a.png")
    words = f'<?xml version="1.0" encoding="{encoding}"?>{XML[kind](name)}'
    (tmp_path / "a.xml").write_bytes(words.encode(encoding))
    assert read(str(tmp_path), "train").classes == (name,)


@pytest.mark.parametrize("kind", XML)
def test_an_ampersand_is_written_as_the_error_says(tmp_path: Path, kind: str) -> None:
    paint(tmp_path / "a.png")
    path = text(tmp_path / "a.xml", f"<?xml version='1.0'?>\n{XML[kind]('salt & pepper')}")
    with refused(DataError, path, "line 2", "&amp;") as caught:
        read(str(tmp_path), "train")
    assert str(caught.value).count(str(path)) == 1
    text(path, path.read_text().replace("&", "&amp;"))
    assert read(str(tmp_path), "train").classes == ("salt & pepper",)


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


def test_detections_are_no_labels_but_the_file_with_the_labels_is_read(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    path = text(tmp_path / "x.json", [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}])
    with refused(DataError, path, "labels"):
        read(str(path), "train")
    assert read(str(text(tmp_path / "y.json", coco("a.png"))), "train").classes == ("cat",)
