"""predict.py with labels=: what a person corrected between two calls is kept, and the folder stays a data set."""

import shutil

import cv2
import numpy as np
import pytest
from lively import lively_checkpoint
from refused import mentions, refused

import predict
from deploy.label_files import ONE_FILE, PER_IMAGE
from utils.config import ConfigError
from utils.outputs import OwnFiles


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return str(lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt"))


@pytest.fixture
def data(tmp_path):
    """A folder with three images, in which the model detects something."""
    (tmp_path / "images").mkdir()
    for seed in range(3):
        image = np.random.default_rng(seed).integers(0, 256, (48, 64, 3), dtype=np.uint8)
        cv2.imwrite(str(tmp_path / f"images/{seed}.png"), image)
    return tmp_path


def run(weights, data, **more):
    options = {"device": "cpu", "confidence": 0.5, "save": False, "output": str(data), "source": str(data / "images")}
    predict.main(predict.Config(weights, **options | more))


@pytest.mark.parametrize("kind", PER_IMAGE)
def test_corrected_labels_are_kept_and_counted_and_the_others_are_written_again(weights, data, kind, capsys):
    run(weights, data, labels=kind)
    zero, one, two = (data / "labels" / f"{number}{PER_IMAGE[kind]}" for number in range(3))
    first = two.read_text()
    zero.write_text("corrected")
    one.write_text("")
    capsys.readouterr()
    for _ in range(2):  # also in the call after next
        run(weights, data, labels=kind, confidence=0.9)
        assert (zero.read_text(), one.read_text()) == ("corrected", "")
        assert two.read_text() != first
        printed = capsys.readouterr().out
        assert all(mentions(printed, word) for word in (zero.name, one.name, "2 files", "overwrite=true"))
        assert not mentions(printed, two.name)
    run(weights, data, labels=kind, overwrite=True)
    assert zero.read_text() not in ("corrected", "") and two.read_text() == first


@pytest.mark.parametrize("kind", PER_IMAGE)
def test_a_label_file_that_was_deleted_stays_deleted_until_the_folder_is_new(weights, data, kind, capsys):
    """Its image is one without objects."""
    run(weights, data, labels=kind)
    file = data / "labels" / f"1{PER_IMAGE[kind]}"
    text = file.read_text()
    file.unlink()
    capsys.readouterr()
    run(weights, data, labels=kind)
    printed = capsys.readouterr().out
    assert not file.exists() and mentions(printed, file.name) and mentions(printed, "1 file")
    run(weights, data, labels=kind, overwrite=True)
    assert file.read_text() == text
    shutil.rmtree(data / "labels")
    run(weights, data, labels=kind)
    assert file.read_text() == text


@pytest.mark.parametrize("name", ["data.yaml", "classes.txt"])
def test_what_makes_the_folder_a_data_set_is_written_again_if_it_was_deleted(weights, data, name):
    run(weights, data, labels="yolo")
    file = data / "labels" / name
    contents = file.read_text()
    file.unlink()
    run(weights, data, labels="yolo")
    assert file.read_text() == contents


def test_a_correction_that_equals_a_prediction_stays_a_correction(weights, data):
    """A person emptied a file; a call whose model detects nothing there does not make it a prediction."""
    run(weights, data, labels="yolo")
    (data / "labels/0.txt").write_text("")
    run(weights, data, labels="yolo", confidence=1.0)
    run(weights, data, labels="yolo")
    assert (data / "labels/0.txt").read_text() == ""


def test_labels_of_another_program_are_kept(weights, data):
    (data / "labels").mkdir()
    (data / "labels/1.txt").write_text("0 .5 .5 .5 .5\n")
    run(weights, data, labels="yolo")
    assert (data / "labels/1.txt").read_text() == "0 .5 .5 .5 .5\n" and (data / "labels/0.txt").exists()


def test_an_edited_data_file_and_list_of_classes_are_kept(weights, data):
    run(weights, data, labels="yolo")
    for name in ("data.yaml", "classes.txt"):
        path = data / "labels" / name
        path.write_text(path.read_text() + {"data.yaml": "# mine\n", "classes.txt": "a class that I added\n"}[name])
    run(weights, data, labels="yolo")
    assert (data / "labels/data.yaml").read_text().endswith("# mine\n")
    assert (data / "labels/classes.txt").read_text().endswith("a class that I added\n")


def test_labels_with_the_numbers_of_other_classes_are_refused(weights, data):
    run(weights, data, labels="yolo")
    names = data / "labels/classes.txt"
    names.write_text("other\n" + names.read_text())
    with refused(ConfigError, "classes.txt", "overwrite=true", "output="):
        run(weights, data, labels="yolo")


@pytest.mark.parametrize("kind", ONE_FILE)
def test_a_corrected_file_of_all_images_is_refused_before_the_prediction(weights, data, kind):
    run(weights, data, labels=kind)
    run(weights, data, labels=kind)  # as it was written, it is replaced
    path = data / "labels" / ONE_FILE[kind]
    path.write_text(path.read_text() + " ")
    (data / "detections.json").unlink()
    with refused(ConfigError, path.name, "overwrite=true"):
        run(weights, data, labels=kind)
    assert path.read_text().endswith(" ") and not (data / "detections.json").exists()
    run(weights, data, labels=kind, overwrite=True)
    assert not path.read_text().endswith(" ")


def test_drawn_images_replace_no_image_of_another_origin(weights, data, tmp_path):
    image = (data / "images/0.png").read_bytes()
    (tmp_path / "old").mkdir()
    (tmp_path / "old/0.png").write_bytes(image)
    with refused(ConfigError, "0.png", "output="):
        run(weights, data, output=str(tmp_path / "old"), save=True)
    assert (tmp_path / "old/0.png").read_bytes() == image
    run(weights, data, output=str(tmp_path / "new"), save=True)
    run(weights, data, output=str(tmp_path / "new"), save=True)  # its own


def test_the_results_of_an_evaluation_are_not_replaced(weights, data):
    for name in ("detections.json", "metrics.json"):
        (data / name).write_text("[]")
    with refused(ConfigError, "detections.json", "output="):
        run(weights, data)
    assert (data / "detections.json").read_text() == "[]"


def test_only_corrections_that_differ_from_what_would_be_written_are_counted(tmp_path):
    OwnFiles(tmp_path).write("a.txt", "1")
    (tmp_path / "a.txt").write_text("2")
    files = OwnFiles(tmp_path)
    files.write("a.txt", "2")
    assert files.kept == []
    files.write("a.txt", "3")
    assert files.kept == ["a.txt"] and (tmp_path / "a.txt").read_text() == "2"


def test_a_record_that_was_cut_off_makes_files_corrected_ones(tmp_path):
    first = OwnFiles(tmp_path)
    for name in ("a.txt", "b.txt"):
        first.write(name, "1")
    record = tmp_path / OwnFiles.RECORD
    record.write_bytes(record.read_bytes()[:-5])
    again = OwnFiles(tmp_path)
    assert (again.is_changed("a.txt"), again.is_changed("b.txt"), again.is_changed("c.txt")) == (False, True, False)
