"""predict.py: addresses of images, chosen classes, chosen frames and tracks."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from files import names_in, noise
from lively import lively_checkpoint
from refused import refused, told
from web import serving

import predict
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from deploy import predictor, tracking, video
from deploy.detector import Detector
from utils.config import ConfigError, override
from utils.images import read_image


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")


@pytest.fixture
def film(tmp_path):
    with video.writing(lambda: tmp_path / "film.mp4", 10) as write:
        for seed in range(7):
            write("film", noise(seed))
    return tmp_path / "film.mp4"


def run(weights, source, output, **more):
    more = {"device": "cpu", "confidence": 0.5, **more}
    return predict.main(predict.Config(str(weights), str(source), output and str(output), **more))


def entries(folder):
    return json.loads((Path(folder) / "detections.json").read_text(encoding="utf-8"))


def answers(path, image, suffix=".png"):
    return {path: (200, {"Content-Type": "image/png"}, cv2.imencode(suffix, image)[1].tobytes())}


def test_the_image_of_an_address_is_drawn_under_its_name(weights, tmp_path):
    path, name = "/a/bus.png?w=1", "bus.png"
    cv2.imwrite(str(tmp_path / "a.png"), noise())
    run(weights, tmp_path / "a.png", tmp_path / "of_file")
    with serving(answers(path, noise())) as address:
        run(weights, address + path, tmp_path / "out", labels="yolo")
    stem = Path(name).stem
    assert names_in(tmp_path / "out") == sorted(
        [
            f"drawn/{name}",
            "detections.json",
            f"images/{name}",
            f"labels/{stem}.txt",
            "labels/classes.txt",
        ]
    )
    assert np.array_equal(read_image(str(tmp_path / "out/drawn" / name)), read_image(str(tmp_path / "of_file/a.png")))
    assert np.array_equal(read_image(str(tmp_path / "out/images" / name)), noise())


@pytest.mark.parametrize("source", ["http://127.0.0.1:1/stream", "rtsp://[::1/a", "PAGE"])
def test_a_source_that_is_not_there_is_named_and_leaves_no_folder(weights, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    with serving({"/page.jpg": (200, {"Content-Type": "text/html"}, b"<html>")}) as address:
        source = source.replace("PAGE", f"{address}/page.jpg")
        for output in (None, "out"):
            with refused(ValueError, source) as caught:
                run(weights, source, output)
            assert "\n" not in str(caught.value) and "ffmpeg" not in str(caught.value)
    assert not names_in(tmp_path)


def test_only_some_classes_are_detected_and_a_wrong_name_is_answered_with_the_nearest(weights, tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), noise())
    run(weights, tmp_path / "a.png", tmp_path / "all")
    run(weights, tmp_path / "a.png", tmp_path / "some", only="green, blue")
    wanted = [one for one in entries(tmp_path / "all") if one["class"] in ("blue", "green")]
    assert 0 < len(wanted) < len(entries(tmp_path / "all")) and entries(tmp_path / "some") == wanted
    with refused(ValueError, "only=", "gren", "green"):
        run(weights, tmp_path / "a.png", tmp_path / "out", only="blue,gren")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("batch_size", [1, 4])
def test_every_third_frame_has_the_detections_of_that_frame_and_the_drawn_video_plays_as_long(
    weights, film, tmp_path, batch_size
):
    run(weights, film, tmp_path / "all", batch_size=1)
    run(weights, film, tmp_path / "some", every=3, batch_size=batch_size)
    some = entries(tmp_path / "some")
    assert sorted({one["frame"] for one in some}) == [0, 3, 6]
    wanted = [one for one in entries(tmp_path / "all") if one["frame"] % 3 == 0]
    assert [one["class"] for one in some] == [one["class"] for one in wanted]
    np.testing.assert_allclose([one["bbox"] for one in some], [one["bbox"] for one in wanted], atol=1e-2)
    drawn = video.Video(str(tmp_path / "some/film.mp4"))
    assert drawn.length == 3 and drawn.rate == pytest.approx(10 / 3, rel=0.01)


def test_the_frames_of_a_video_with_labels_are_data_to_train_on(weights, film, tmp_path):
    run(weights, film, tmp_path / "out", every=3, labels="yolo", max_detections=1)
    frames = [f"film.mp4_{number:06}.jpg" for number in (0, 3, 6)]
    assert names_in(tmp_path / "out/images") == frames
    data = read(str(tmp_path / "out/images"), "train", ReadOptions(classes=("red", "blue", "green")))
    assert len(data) == len(data.labels) == len(entries(tmp_path / "out")) == 3
    assert len(read(str(tmp_path / "out"), "train").labels) == 3


def test_options_of_videos_are_refused_for_images(weights, tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), noise())
    for options, name in (({"every": 2}, "every=2"), ({"track": True}, "track=true"), ({"every": 0}, "every")):
        with refused(ConfigError, name):
            run(weights, tmp_path / "a.png", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_tracks_are_written_and_the_order_of_the_frames_counts(weights, film, tmp_path, monkeypatch):
    """With a tracker that gives each detection the number of its frame."""

    class Counting:
        def __init__(self, rate, confidence):
            self.frames = 0
            assert (rate, confidence) == (5, 0.5)

        def update(self, result):
            self.frames += 1
            result.tracks = np.full(len(result), self.frames)
            return result[result.scores >= 0.5]

    monkeypatch.setattr(predictor, "require_trackers", lambda: None)
    monkeypatch.setattr(predictor, "Tracker", Counting)
    run(weights, film, tmp_path / "out", track=True, every=2, batch_size=3)
    run(weights, film, tmp_path / "plain", every=2, batch_size=3)
    tracked = entries(tmp_path / "out")
    assert [one["track_id"] for one in tracked] == [one["frame"] // 2 + 1 for one in tracked]
    assert [one["bbox"] for one in tracked] == [one["bbox"] for one in entries(tmp_path / "plain")]


def test_an_object_that_moves_keeps_its_number_in_a_video(shared, tmp_path):
    """A photograph of a bear moves over a gray video."""
    pytest.importorskip("trackers", reason="pip install trackers")
    bear = cv2.resize(cv2.imread(str(shared / "data/coco_val326/images/000000000285.jpg")), (220, 260))
    with video.writing(lambda: tmp_path / "film.mp4", 25) as write:
        for step in range(10):
            frame = np.full((320, 416, 3), 114, np.uint8)
            frame[30:290, 20 + 8 * step : 240 + 8 * step] = bear
            write("film", frame)
    words = {"checkpoint": shared / "weights/yolox_nano.pth", "model": "yolox_nano", "source": tmp_path / "film.mp4"}
    words |= {"output": tmp_path / "out", "device": "cpu", "track": "true", "only": "bear"}
    predict.main(override(predict.Config(), [f"{name}={value}" for name, value in words.items()]))
    found = entries(tmp_path / "out")
    assert [one["frame"] for one in found] == list(range(10))
    assert {one["track_id"] for one in found if one["frame"] > 1} == {1} and found[0]["track_id"] == tracking.NEW


def test_images_with_false_alarms_become_backgrounds(weights, tmp_path, capsys):
    """Only images with a detection, without boxes; which images these are depends on the confidence."""
    (tmp_path / "in").mkdir()
    for seed in range(4):
        cv2.imwrite(str(tmp_path / f"in/{seed}.png"), noise(seed))
    scores = {f"{n}.png": max(one["score"] for one in rows) for n, rows in best_of(weights, tmp_path / "in").items()}
    middle = sorted(scores.values())[1]  # two images have a higher one
    run(weights, tmp_path / "in", tmp_path / "out", labels="txt", negatives=True, confidence=middle + 1e-6)
    data = read(str(tmp_path / "out/labels/annotations.txt"), "train", ReadOptions())
    assert {Path(data.path(i)).name for i in range(len(data))} == {n for n, score in scores.items() if score > middle}
    assert len(data) == 2 and len(data.labels) == 0
    told(capsys.readouterr().out, tmp_path / "out/labels", "2 of 4")
    with refused(ConfigError, "negatives=true", "labels=txt"):
        run(weights, tmp_path / "in", tmp_path / "other", negatives=True)


def best_of(weights, folder):
    """The detections of each image of a folder, by the name of the image without its suffix."""
    results = Detector(weights, confidence=0.01, device="cpu")(folder)
    return {Path(one.path).stem: one.rows() for one in results}
