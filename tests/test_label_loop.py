"""The loop of docs/labels.md: predict, correct, add images, predict again, train. A drawn image is never trained on."""

import json
import re
import shlex
import xml.etree.ElementTree as ET

import cv2
import numpy as np
import pytest
from files import noise
from lively import lively_checkpoint
from refused import refused, told

import evaluate
import predict
from datasets.check_images import check_images
from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from deploy import video
from deploy.label_files import KINDS, ONE_FILE
from utils.config import ConfigError
from utils.draw import write_image
from utils.images import read_image

BOX = [16.0, 12, 32, 36]  # of the corrected image, 64 x 48 pixels, of the class green


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return str(lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt"))


def run(weights, source, output, **more):
    options = {"device": "cpu", "confidence": 0.5, "max_detections": 3, "crops": True}
    predict.main(predict.Config(weights, source, output, **options | more))


def correct(labels, kind):
    """Replaces the boxes of the image 0 by BOX, as a person with a tool; Label Studio's tasks all get annotations."""
    if kind == "yolo":
        (labels / "0.txt").write_text("2 .375 .5 .25 .5\n")
    elif kind == "txt":
        lines = (labels / "annotations.txt").read_text().splitlines()
        lines[0] = f"{lines[0].rsplit(' ', 3)[0]} {','.join(f'{side:g}' for side in BOX)},2"
        (labels / "annotations.txt").write_text("\n".join(lines))
    elif kind == "voc":
        root = ET.parse(labels / "0.xml").getroot()
        first, *others = root.findall("object")
        for node in others:
            root.remove(node)
        first.find("name").text = "green"
        for side, value in zip(first.find("bndbox"), BOX, strict=True):
            side.text = str(value)
        ET.ElementTree(root).write(labels / "0.xml")
    elif kind == "coco":
        contents = json.loads((labels / "coco.json").read_text())
        contents["annotations"] = [row for row in contents["annotations"] if row["image_id"] != 1]
        contents["annotations"].append({"id": 99, "image_id": 1, "category_id": 3, "bbox": [16, 12, 16, 24]})
        (labels / "coco.json").write_text(json.dumps(contents))
    else:
        tasks = json.loads((labels / "labelstudio.json").read_text())
        for task in tasks:
            task["annotations"] = task.pop("predictions")
        region = tasks[0]["annotations"][0]["result"][0]
        region["value"] |= {"x": 25, "y": 25, "width": 25, "height": 50, "rectanglelabels": ["green"]}
        tasks[0]["annotations"][0]["result"] = [region]
        (labels / "labelstudio.json").write_text(json.dumps(tasks))


def trained_on(source, image_root=None):
    """{file name: boxes} of what a training reads, whose pixels are those of the original images."""
    data, _ = check_images(read(str(source), "train", ReadOptions(image_root=image_root)))
    for index in range(len(data)):
        original = read_image(f"new images/{data.path(index).rpartition('/')[2]}")
        assert np.array_equal(data.image(index), original), data.path(index)
    return {data.path(index).rpartition("/")[2]: (data.boxes_of(index)[0], data) for index in range(len(data))}


@pytest.mark.parametrize("kind", KINDS)
def test_corrected_predictions_and_added_images_are_trained_on(weights, tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    for seed in range(3):
        write_image(f"new images/{seed}.png", noise(seed))
    run(weights, "new images", "found", labels=kind)
    correct(tmp_path / "found/labels", kind)
    write_image("new images/added.jpg", noise(3))
    if kind in ONE_FILE:  # the corrected file is not replaced
        with refused(ConfigError, ONE_FILE[kind], "output="):
            run(weights, "new images", "found", labels=kind)
        run(weights, "new images/added.jpg", "more", labels=kind)
        if kind == "labelstudio":
            correct(tmp_path / "more/labels", kind)
    else:
        run(weights, "new images", "found", labels=kind)
    images = {}
    for command in re.findall("python train.py (.*)", capsys.readouterr().out):
        words = dict(word.split("=") for word in shlex.split(command))
        images |= trained_on(words["train"].removesuffix("/EXPORT.json"), words.get("image_root"))
        assert words["weights"] == weights and {"model", "image_size"} <= words.keys()
    assert images.keys() == {"0.png", "1.png", "2.png", "added.jpg"} and len(images["1.png"][0]) == 3
    boxes, data = images["0.png"]
    np.testing.assert_allclose(boxes, [BOX], atol=0.01)
    assert "green" in data.classes
    for folder in ("found", "found/labels", "found/drawn", "."):  # either it works, or it is refused
        try:
            trained_on(folder)
        except DataError as error:
            assert "image_root=" in str(error) or "found/labels" in str(error) or "label the images first" in str(error)
    if kind != "txt":  # its lines hold the whole paths of the images
        with pytest.raises(DataError):
            trained_on("found/labels", "found/drawn")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "labelstudio"])
def test_frames_of_a_video_are_trained_on_without_their_boxes(weights, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    with video.writing(lambda: tmp_path / "film.mp4", 10) as write:
        for seed in range(3):
            write("film", noise(seed))
    run(weights, "film.mp4", "found", labels=kind)
    for drawn in ("found/drawn/film.mp4", "found/drawn"):
        with refused(ConfigError, "film.mp4", "source="):
            run(weights, drawn, "again", labels=kind)
    assert len(list(video.Video("found/drawn/film.mp4").frames(0))) == 3
    (tmp_path / "found/images").rename(tmp_path / "new images")
    (tmp_path / "found/images").symlink_to(tmp_path / "new images")
    images = trained_on("found/labels" if kind == "txt" else "found")
    assert len(images) == 3 and all(len(boxes) == 3 for boxes, _ in images.values())


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_images_in_several_folders_are_trained_on_or_the_way_is_named(
    weights, tmp_path, monkeypatch, capsys, kind
):
    """A folder with an image and a video, whose frames are written elsewhere; old data are added."""
    monkeypatch.chdir(tmp_path)
    write_image("new images/0.png", noise(0)), write_image("new images/old.png", noise(1))
    with video.writing(lambda: tmp_path / "new images" / "film.mp4", 10) as write:
        write("film", noise(2))
    run(weights, "new images", "found", labels=kind)
    text = capsys.readouterr().out
    if kind != "txt":
        told(text, "labels=txt", "new images", "found/images")
        return
    (command,) = re.findall("python train.py (.*)", text)
    words = dict(word.split("=") for word in shlex.split(command))
    (tmp_path / "old.txt").write_text("new images/old.png 1,1,9,9,0\n")
    (tmp_path / "classes.txt").write_text((tmp_path / "found/labels/classes.txt").read_text())
    assert words.keys() >= {"weights", "val"} and "image_root" not in words
    assert len(read(words["train"], "train")) == 3
    assert len(read(f"old.txt,{words['train']}", "train")) == 3


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp", ".tif"])
def test_the_mark_of_a_drawn_image_changes_no_pixel(tmp_path, suffix):
    image = cv2.GaussianBlur(noise(), (9, 9), 0)
    for is_drawn in (False, True):
        write_image(tmp_path / f"{is_drawn}{suffix}", image, is_drawn)
    plain, drawn = (read_image(str(tmp_path / f"{is_drawn}{suffix}"), whole=True) for is_drawn in (False, True))
    assert np.array_equal(plain, drawn)


def test_the_boxes_of_an_evaluation_are_no_data_set_unless_their_file_is_named(weights, tmp_path):
    """A run folder has them, too: its validation images would become training images."""
    for seed in range(2):
        write_image(tmp_path / f"{seed}.png", noise(seed))
    (tmp_path / "val.txt").write_text("0.png 1,1,9,9,0\n")
    (tmp_path / "classes.txt").write_text("red\nblue\ngreen\n")
    folder = tmp_path / "run" / "evaluation"
    evaluate.main(evaluate.Config(weights, str(tmp_path / "val.txt"), str(folder), device="cpu", report=False))
    for place in (folder, folder.parent):
        with pytest.raises(DataError):
            read(str(place), "train")
    assert len(read(str(folder / "ground_truth.json"), "train")) == 1
    (folder.parent / "train.txt").write_text(f"{tmp_path / '1.png'} 1,1,9,9,0\n")
    assert read(str(folder.parent), "train").path(0).endswith("1.png")
