"""utils/results.py: label files come back through the readers as the boxes that were found."""

import json

import cv2
import numpy as np
import pytest

from datasets.annotations import annotation_line
from datasets.formats import read, read_classes
from utils.detector import Found
from utils.results import Results, voc_text, yolo_text

CLASSES = ("红细胞", "a/b")


def found(boxes, labels):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    scores = np.linspace(0.9, 0.5, len(boxes), dtype=np.float32)
    return Found(boxes, scores, np.array(labels, np.int64), tuple(CLASSES[label] for label in labels))


def write_picture(path, height=60, width=80):
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(".png", image)[1].tobytes())
    return image


def collect(tmp_path, kind, crops=False):
    """Two pictures of one name in two folders, one of them with a box outside and one half outside."""
    results = Results(tmp_path / "out", CLASSES, (7, 90), crops, kind, annotation_line)
    (tmp_path / "out").mkdir()
    for folder, boxes, labels in (
        ("x", [[10.25, 20, 30, 50.5], [-5, 0, 200, 9]], [0, 1]),
        ("y", [[90, 90, 99, 99]], [1]),
    ):
        path = tmp_path / "images" / folder / "pic.png"
        results.add(f"{folder}/pic.png", str(path), write_picture(path), found(boxes, labels))
    return results


def test_json_has_boxes_as_found_with_ids_and_names(tmp_path):
    text = collect(tmp_path, None).finish()
    entries = json.loads((tmp_path / "out/detections.json").read_text(encoding="utf-8"))
    assert [(e["image_id"], e["category_id"], e["class"], e["file_name"]) for e in entries] == [
        (1, 7, "红细胞", "x/pic.png"),
        (1, 90, "a/b", "x/pic.png"),
        (2, 90, "a/b", "y/pic.png"),
    ]
    assert entries[1]["bbox"] == [-5, 0, 205, 9] and entries[0]["score"] == pytest.approx(0.9)
    assert text.startswith("2 images") and "2 a/b, 1 红细胞" in text


def test_annotation_file_reads_back(tmp_path):
    collect(tmp_path, "txt").finish()
    data = read(str(tmp_path / "out/labels/annotations.txt"), "train")
    assert data.classes == CLASSES and data.path(0) == str(tmp_path / "images/x/pic.png")
    boxes, labels, _ = data.boxes_of(0)
    np.testing.assert_allclose(boxes, [[10.25, 20, 30, 50.5], [0, 0, 80, 9]], atol=1e-4)
    assert labels.tolist() == [0, 1] and len(data.boxes_of(1)[0]) == 0  # nothing of the box is in the picture


def test_yolo_labels_read_back(tmp_path):
    collect(tmp_path, "yolo").finish()
    out = tmp_path / "out"
    (tmp_path / "images").rename(out / "images")
    (out / "data.yaml").write_text(f"train: images\nval: images\nnames: {list(CLASSES)}\n", encoding="utf-8")
    data = read(str(out / "data.yaml"), "train")
    np.testing.assert_allclose(data.boxes_of(0)[0], [[10.25, 20, 30, 50.5], [0, 0, 80, 9]], atol=1e-3)
    assert read_classes(str(out / "labels/classes.txt")) == CLASSES
    assert (out / "labels/y/pic.txt").read_text() == ""


def test_voc_labels_read_back(tmp_path):
    collect(tmp_path, "voc").finish()
    voc = tmp_path / "voc"
    (tmp_path / "out/labels/x").rename(tmp_path / "out/labels/Annotations")
    (tmp_path / "out/labels").rename(voc)
    (tmp_path / "images/x").rename(voc / "JPEGImages")
    data = read(str(voc), "train", CLASSES)
    np.testing.assert_allclose(data.boxes_of(0)[0], [[10.25, 20, 30, 50.5], [0, 0, 80, 9]], atol=0.01)
    assert data.labels.tolist() == [0, 1] and data.path(0) == str(voc / "JPEGImages/pic.png")


def test_texts_of_no_boxes():
    assert yolo_text(np.zeros((0, 4)), [], 10, 10) == "" and "<object>" not in voc_text(
        "a.jpg", np.zeros((0, 4)), [], 9, 9
    )


def test_crops_hold_the_pixels_of_their_boxes(tmp_path):
    collect(tmp_path, None, crops=True)
    image = cv2.imread(str(tmp_path / "images/x/pic.png"))
    first = tmp_path / "out/crops/红细胞/x/pic.png_1.png"
    crop = cv2.imdecode(np.frombuffer(first.read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    assert (crop == image[20:51, 10:30]).all()
    assert len(list((tmp_path / "out/crops").rglob("*.png"))) == 2  # the box outside has no pixels; a/b is one folder
    assert (tmp_path / "out/crops/a_b/x/pic.png_2.png").exists()


def test_frames_are_numbered_and_have_no_label_files(tmp_path):
    results = Results(tmp_path, CLASSES, (7, 90), True, "yolo", annotation_line)
    for frame in range(2):
        results.add("v.mp4", "v.mp4", np.zeros((20, 20, 3), np.uint8), found([[1, 1, 9, 9]], [0]), frame)
    results.finish()
    assert [e["frame"] for e in json.loads((tmp_path / "detections.json").read_text(encoding="utf-8"))] == [0, 1]
    assert {p.name for p in (tmp_path / "crops/红细胞").iterdir()} == {"v.mp4_000000_1.png", "v.mp4_000001_1.png"}
    assert [path.name for path in (tmp_path / "labels").iterdir()] == ["classes.txt"]


def test_unreadable_pictures_are_listed_ten_at_most(tmp_path):
    results = Results(tmp_path, CLASSES, (7, 90), False, None, annotation_line)
    results.unread = [f"bad{i}.jpg: broken" for i in range(12)]
    text = results.finish()
    assert "12 pictures could not be read" in text and "bad9.jpg" in text and "bad10.jpg" not in text
    assert "and 2 more" in text and "found: nothing" in text
