"""datasets/labels.py: label files that are written can be read again, with the boxes that were detected."""

import numpy as np
import pytest
from test_results import CLASSES, collect

from datasets.formats import read, read_classes
from datasets.labels import KINDS, LabelFiles, voc_text, yolo_text


def write(folder, kind):
    collect(folder, LabelFiles(kind, CLASSES, ["x/pic.png", "y/pic.png"])).finish()


def test_the_annotation_file_can_be_read_again(tmp_path):
    write(tmp_path, "txt")
    data = read(str(tmp_path / "out/labels/annotations.txt"), "train")
    assert data.classes == CLASSES and data.path(0) == str(tmp_path / "images/x/pic.png")
    boxes, labels, _ = data.boxes_of(0)
    np.testing.assert_allclose(boxes, [[10.25, 20, 30, 50.5], [0, 0, 80, 9]], atol=1e-4)
    assert labels.tolist() == [0, 1] and len(data.boxes_of(1)[0]) == 0  # the box outside of the image is left out


def test_yolo_labels_can_be_read_again(tmp_path):
    write(tmp_path, "yolo")
    out = tmp_path / "out"
    (tmp_path / "images").rename(out / "images")
    (out / "data.yaml").write_text(f"train: images\nval: images\nnames: {list(CLASSES)}\n", encoding="utf-8")
    data = read(str(out / "data.yaml"), "train")
    np.testing.assert_allclose(data.boxes_of(0)[0], [[10.25, 20, 30, 50.5], [0, 0, 80, 9]], atol=1e-3)
    assert read_classes(str(out / "labels/classes.txt")) == CLASSES
    assert (out / "labels/y/pic.txt").read_text() == ""


def test_voc_labels_can_be_read_again(tmp_path):
    write(tmp_path, "voc")
    voc = tmp_path / "voc"
    (tmp_path / "out/labels/x").rename(tmp_path / "out/labels/Annotations")
    (tmp_path / "out/labels").rename(voc)
    (tmp_path / "images/x").rename(voc / "JPEGImages")
    data = read(str(voc), "train", CLASSES)
    np.testing.assert_allclose(data.boxes_of(0)[0], [[10.25, 20, 30, 50.5], [0, 0, 80, 9]], atol=0.01)
    assert data.labels.tolist() == [0, 1] and data.path(0) == str(voc / "JPEGImages/pic.png")


def test_label_files_without_boxes():
    none = np.zeros((0, 4))
    assert yolo_text(none, [], 10, 10) == "" and "<object>" not in voc_text("a.jpg", none, [], 9, 9)


@pytest.mark.parametrize("kind", KINDS)
def test_images_that_would_share_a_label_file_are_refused(kind):
    for images in (["a.jpg", "a.png"], ["classes.jpg"]):
        if kind == "txt":
            LabelFiles(kind, CLASSES, images)
        else:
            with pytest.raises(ValueError, match="would share (a|classes)"):
                LabelFiles(kind, CLASSES, images)
