"""predict.py with labels=: label files and drawn images that exist are never replaced without being asked."""

import cv2
import pytest
from files import noise
from lively import lively_checkpoint
from refused import refused, told

import predict
from deploy.label_files import ONE_FILE, PER_IMAGE
from utils.config import ConfigError


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return str(lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt"))


@pytest.fixture
def data(tmp_path):
    """A folder with three images, in which the model detects something."""
    (tmp_path / "images").mkdir()
    for seed in range(3):
        cv2.imwrite(str(tmp_path / f"images/{seed}.png"), noise(seed))
    return tmp_path


def run(weights, data, **more):
    options = {"device": "cpu", "confidence": 0.5, "save": False, "output": str(data), "source": str(data / "images")}
    predict.main(predict.Config(weights, **options | more))


@pytest.mark.parametrize("kind", PER_IMAGE)
def test_label_files_that_exist_are_left_alone_and_counted(weights, data, kind, capsys):
    run(weights, data, labels=kind)
    zero, one, two = (data / "labels" / f"{number}{PER_IMAGE[kind]}" for number in range(3))
    texts = {path: path.read_bytes() for path in (data / "labels").iterdir()}
    zero.write_text("corrected")
    one.unlink()
    run(weights, data, labels=kind, confidence=0.9)
    assert zero.read_text() == "corrected" and two.read_bytes() == texts[two] and one.read_bytes() != texts[one]
    told(capsys.readouterr().out, data / "labels", f"{len(texts) - 1} files", "overwrite=true")
    run(weights, data, labels=kind, overwrite=True)
    assert {path: path.read_bytes() for path in (data / "labels").iterdir()} == texts


@pytest.mark.parametrize("kind", ONE_FILE)
def test_a_file_of_all_images_that_exists_is_refused_before_the_prediction(weights, data, kind):
    run(weights, data, labels=kind)
    path = data / "labels" / ONE_FILE[kind]
    path.write_text("corrected")
    (data / "detections.json").unlink()
    with refused(ConfigError, path.name, "overwrite=true", "output="):
        run(weights, data, labels=kind)
    assert path.read_text() == "corrected" and not (data / "detections.json").exists()
    run(weights, data, labels=kind, overwrite=True)
    assert path.read_text() != "corrected"


def test_label_files_with_the_numbers_of_other_classes_are_refused(weights, data):
    run(weights, data, labels="yolo")
    names = data / "labels/classes.txt"
    names.write_text(names.read_text() + "a class that a person added\n")
    run(weights, data, labels="yolo")
    names.write_text("other\n" + names.read_text())
    with refused(ConfigError, "classes.txt", "overwrite=true", "output="):
        run(weights, data, labels="yolo")


def test_drawn_images_replace_no_image_of_another_program(weights, data, tmp_path):
    image = (data / "images/0.png").read_bytes()
    (tmp_path / "old").mkdir()
    (tmp_path / "old/0.png").write_bytes(image)
    with refused(ConfigError, "0.png", "output="):
        run(weights, data, output=str(tmp_path / "old"), save=True)
    assert (tmp_path / "old/0.png").read_bytes() == image
    for _ in range(2):  # its own
        run(weights, data, output=str(tmp_path / "new"), save=True)


def test_the_results_of_an_evaluation_are_not_replaced(weights, data):
    for name in ("detections.json", "metrics.json"):
        (data / name).write_text("[]")
    with refused(ConfigError, "detections.json", "output="):
        run(weights, data)
    assert (data / "detections.json").read_text() == "[]"
