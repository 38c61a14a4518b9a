"""deploy/label_files.py: label files that are written can be read again, with the boxes that were detected."""

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from detections import CLASSES, collect
from refused import refused

from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from deploy.label_files import KINDS, ONE_FILE, Labeled, LabelFiles
from utils.draw import write_image


def write(folder, kind):
    images = {f"{place}/pic.png": str(folder / "images" / place / "pic.png") for place in "xy"}
    collect(folder, LabelFiles(kind, CLASSES, images, "run/best.pt")).finish()


def test_the_annotation_file_can_be_read_again(tmp_path):
    write(tmp_path, "txt")
    data = read(str(tmp_path / "out/labels/annotations.txt"), "train")
    assert data.classes == CLASSES and data.path(0) == str(tmp_path / "images/x/pic.png")
    boxes, labels, _ = data.boxes_of(0)
    np.testing.assert_allclose(boxes, [[10.25, 20, 30, 50.5], [0, 0, 80, 9]], atol=1e-4)
    assert labels.tolist() == [0, 1] and len(data.boxes_of(1)[0]) == 0  # the box outside of the image is left out


def test_yolo_labels_next_to_their_images_are_data_to_train_on(tmp_path):
    classes = ('the "red", big: one', "no", "1")  # names that YAML would read as something else
    images = {f"{place}/pic.png": str(tmp_path / "out/images" / place / "pic.png") for place in "xy"}
    pixels = np.zeros((100, 80, 3), np.uint8)
    labels, boxes = LabelFiles("yolo", classes, images), np.array([[10.0, 20, 30, 50], [0, 0, 80, 9]])
    for name, path in images.items():
        write_image(path, pixels)
        labels.add(
            tmp_path / "out/labels", Labeled(name, path, (80, 100), boxes, np.array([0, 2]), np.array([0.9, 0.8]))
        )
    labels.finish(tmp_path / "out/labels")
    data = read(str(tmp_path / "out"), "train")
    assert data.classes == classes and len(data) == 2 and data.labels.tolist() == [0, 2, 0, 2]
    np.testing.assert_allclose(data.boxes, [*boxes, *boxes], atol=1e-3)


def test_voc_labels_can_be_read_again(tmp_path):
    write(tmp_path, "voc")
    voc = tmp_path / "voc"
    (tmp_path / "out/labels/x").rename(tmp_path / "out/labels/Annotations")
    (tmp_path / "out/labels").rename(voc)
    (tmp_path / "images/x").rename(voc / "JPEGImages")
    data = read(str(voc), "train", ReadOptions(classes=CLASSES))
    np.testing.assert_allclose(data.boxes_of(0)[0], [[10.25, 20, 30, 50.5], [0, 0, 80, 9]], atol=0.01)
    assert data.labels.tolist() == [0, 1] and data.path(0) == str(voc / "JPEGImages/pic.png")


def test_a_name_that_an_annotation_file_cannot_hold_is_refused_before_the_detections():
    with refused(ValueError, "a\\nb.jpg", "rename"):
        LabelFiles("txt", CLASSES, ["a.jpg", "a\nb.jpg"])


@pytest.mark.parametrize("kind", KINDS)
def test_images_that_would_share_a_label_file_are_refused(kind):
    for images, shared in ((["a.jpg", "a.png"], "a.*"), (["classes.jpg"], "classes.*")):
        images = {name: name for name in images}
        if kind in ONE_FILE:
            LabelFiles(kind, CLASSES, images)
        else:
            with refused(ValueError, shared):
                LabelFiles(kind, CLASSES, images)


def test_a_coco_file_has_scores_and_can_be_read_again(tmp_path):
    write(tmp_path, "coco")
    file = tmp_path / "out/labels/coco.json"
    contents = json.loads(file.read_text(encoding="utf-8"))
    assert [image["file_name"] for image in contents["images"]] == ["x/pic.png", "y/pic.png"]
    assert [annotation["score"] for annotation in contents["annotations"]] == [0.9, 0.5]
    data = read(str(file), "train", ReadOptions(image_root=str(tmp_path / "images")))
    np.testing.assert_allclose(data.boxes_of(0)[0], [[10.25, 20, 30, 50.5], [0, 0, 80, 9]], atol=1e-4)
    assert data.classes == CLASSES and data.labels.tolist() == [0, 1] and len(data) == 2
    assert data.path(0) == str(tmp_path / "images/x/pic.png")


def test_label_studio_gets_predictions_in_per_cent_with_scores(tmp_path):
    write(tmp_path, "labelstudio")
    tasks = json.loads((tmp_path / "out/labels/labelstudio.json").read_text(encoding="utf-8"))
    assert [task["data"]["image"] for task in tasks] == [
        f"/data/local-files/?d={str(tmp_path)[1:]}/images/{place}/pic.png" for place in "xy"
    ]
    (prediction,) = tasks[0]["predictions"]
    assert prediction["model_version"] == "run/best.pt" and prediction["score"] == 0.7
    values = [[region["value"][key] for key in ("x", "y", "width", "height")] for region in prediction["result"]]
    percent = [[12.8125, 33.3333, 24.6875, 50.8333], [0, 0, 100, 15]]
    np.testing.assert_allclose(values, percent, atol=1e-4)
    assert [region["value"]["rectanglelabels"] for region in prediction["result"]] == [[name] for name in CLASSES]
    assert [region["score"] for region in prediction["result"]] == [0.9, 0.5]
    view = ET.parse(tmp_path / "out/labels/labelstudio.xml").getroot()
    assert [label.get("value") for label in view.findall("RectangleLabels/Label")] == list(CLASSES)
