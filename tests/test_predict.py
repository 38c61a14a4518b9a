"""predict.py: every kind of source, no image overwritten or lost, and the boxes of the evaluation."""

import json
import os
import shutil
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from files import names_in, write_noise
from lively import tiny_checkpoint
from PIL import Image
from refused import mentions, refused, told

import evaluate
import predict
from deploy import predictor, sources, video
from deploy.detector import Detector
from deploy.inputs import is_source
from deploy.load import is_checkpoint
from predict import Config, main
from utils.config import ConfigError, override
from utils.images import read_image
from utils.script import run_script


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt")


def run(weights, source, output, **more):
    more = {"device": "cpu", "confidence": 0.5, **more}
    return main(Config(checkpoint=str(weights), source=source and str(source), output=output and str(output), **more))


def entries(folder):
    return json.loads((Path(folder) / "detections.json").read_text(encoding="utf-8"))


def test_one_image_is_drawn_and_its_boxes_are_written(weights, tmp_path, capsys):
    image = write_noise(tmp_path / "in/图 (1).png")
    assert run(weights, tmp_path / "in/图 (1).png", tmp_path / "out") == tmp_path / "out"
    assert names_in(tmp_path / "out") == ["detections.json", "图 (1).png"]
    drawn = read_image(str(tmp_path / "out/图 (1).png"))
    assert drawn.shape == image.shape and (drawn != image).any()
    detections = entries(tmp_path / "out")
    assert detections and {entry["file_name"] for entry in detections} == {"图 (1).png"}
    assert {entry["class"] for entry in detections} <= {"red", "blue"} and min(
        entry["score"] for entry in detections
    ) >= 0.5
    printed = capsys.readouterr().out
    assert "1 image," in printed and printed.strip().endswith(str(tmp_path / "out"))


def test_same_names_in_two_folders_and_with_two_endings_stay_apart(weights, tmp_path):
    names = ["a.jpg", "a.png", "x/a.jpg", "y/a.jpg", "a.1.jpg", "a.2.jpg"]
    for seed, name in enumerate(names):
        write_noise(tmp_path / "in" / name, seed)
    run(weights, tmp_path / "in", tmp_path / "out", confidence=0.6)
    assert names_in(tmp_path / "out") == sorted([*names, "detections.json"])
    assert {entry["file_name"] for entry in entries(tmp_path / "out")} == set(names)
    assert len({(tmp_path / "out" / name).read_bytes() for name in names}) == len(names)


def test_no_drawn_image_replaces_another(weights, tmp_path):
    names = ["a.gif", "a.gif.png", "a.gif.png.png", "b.png", "b.png.jpg"]
    for seed, name in enumerate(names):
        write_noise(tmp_path / "in" / name, seed, width=64 + 2 * seed)
    run(weights, tmp_path / "in", tmp_path / "out", confidence=0.0)
    drawn = {
        name: read_image(str(tmp_path / "out" / name)).shape[1]
        for name in names_in(tmp_path / "out")
        if "/" not in name and name != "detections.json"
    }
    assert drawn == {"a.gif.png.png.png": 64, "a.gif.png": 66, "a.gif.png.png": 68, "b.png": 70, "b.png.jpg": 72}


def test_source_images_are_never_overwritten(weights, tmp_path, monkeypatch):
    write_noise(tmp_path / "in/a.png")
    monkeypatch.chdir(tmp_path / "in")
    before = (tmp_path / "in/a.png").read_bytes()
    for source in ("a.png", ".", "*.png", str(tmp_path / "in")):
        with refused(ValueError, "output=."):
            run(weights, source, ".")
    assert (tmp_path / "in/a.png").read_bytes() == before


def test_a_source_video_is_never_overwritten(weights, film, tmp_path):
    before = film.read_bytes()
    with refused(ValueError, f"output={tmp_path}"):
        run(weights, film, tmp_path)
    assert film.read_bytes() == before and names_in(tmp_path).count("detections.json") == 0


def test_results_inside_the_source_folder_are_not_predicted_again(weights, tmp_path):
    write_noise(tmp_path / "in/a.png")
    for _ in range(2):
        run(weights, tmp_path / "in", tmp_path / "in/out")
    assert names_in(tmp_path / "in") == ["a.png", "out/a.png", "out/detections.json"]


def test_predict_equals_evaluate(weights, painted, tmp_path):
    """Both programs write the same boxes for the same images and thresholds."""
    data, limits = painted(6, "val"), {"confidence": 0.3, "nms_iou": 0.65, "device": "cpu"}
    evaluate.main(evaluate.Config(str(weights), str(data), str(tmp_path / "evaluated"), workers=0, **limits))
    run(weights, tmp_path / "val_*.png", tmp_path / "predicted", **limits)
    images = json.loads((tmp_path / "evaluated/ground_truth.json").read_text())["images"]
    names = {image["id"]: Path(image["file_name"]).name for image in images}
    wanted = sorted(
        (names[d["image_id"]], d["category_id"], -d["score"], *d["bbox"]) for d in entries(tmp_path / "evaluated")
    )
    got = sorted((d["file_name"], d["category_id"], -d["score"], *d["bbox"]) for d in entries(tmp_path / "predicted"))
    assert len(wanted) == len(got) > 30
    assert [row[:2] for row in wanted] == [row[:2] for row in got]
    np.testing.assert_allclose([row[2:] for row in wanted], [row[2:] for row in got], atol=1e-2)


def test_a_broken_image_is_reported_and_does_not_stop_the_others(weights, tmp_path, capsys):
    for number in range(5):
        write_noise(tmp_path / f"in/{number}.png", number)
    (tmp_path / "in/2.png").write_bytes(b"no image")
    run(weights, tmp_path / "in", tmp_path / "out", batch_size=2)
    assert names_in(tmp_path / "out") == ["0.png", "1.png", "3.png", "4.png", "detections.json"]
    told(capsys.readouterr().out, "1 image could", "2.png")
    assert {e["file_name"] for e in entries(tmp_path / "out")} == {"0.png", "1.png", "3.png", "4.png"}


def test_a_file_with_several_images_is_noted(weights, tmp_path, capsys):
    frames = [Image.new("RGB", (48, 32), (level, 0, 0)) for level in (10, 90, 200)]
    for name in ("a.tif", "b.tif"):
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:])
    run(weights, tmp_path / "*.tif", tmp_path / "out")
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert ".tif" in note and "3 images" in note


@pytest.mark.parametrize("source", ["nowhere", "nowhere.jpg", "*.jpg", "empty"])
def test_a_source_without_images_is_an_error_that_names_the_folder(weights, tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with refused(ValueError, f"source={source}", tmp_path):
        run(weights, source, "out")
    assert not (tmp_path / "out").exists()


def test_the_defaults_are_the_newest_run_and_its_validation_images(painted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_checkpoint(tmp_path / "runs/a/best.pt", val=str(painted(20, "val")))
    folder = main(Config(device="cpu", confidence=0.6))
    assert len(list(folder.glob("val_*.png"))) == sources.EXAMPLES


def test_a_checkpoint_whose_validation_images_are_gone_asks_for_a_source(painted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tiny_checkpoint(tmp_path / "best.pt", val=str(tmp_path / "moved"))
    with refused(ValueError, path, "source=FOLDER", tmp_path / "moved"):
        run(path, None, tmp_path / "out")


def test_the_name_of_a_run_is_its_checkpoint_unless_a_file_has_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_checkpoint(tmp_path / "runs/mask-2026-11-25-1/best.pt")
    (tmp_path / "runs/mask-2026-11-25-1/environment.json").touch()
    write_noise(tmp_path / "a.png")
    words = {"checkpoint": is_checkpoint, "source": is_source}
    assert override(Config(), ["mask", "a.png"], words) == Config(checkpoint="mask", source="a.png")
    with refused(ConfigError, "'masc'", "checkpoint=masc"):
        override(Config(), ["masc", "a.png"], words)
    (tmp_path / "mask").mkdir()
    assert override(Config(), ["mask"], words) == Config(source="mask")
    with refused(ConfigError, "source=a.png", "mask"):
        override(Config(), ["mask", "a.png"], words)


@pytest.fixture
def film(tmp_path):
    with video.writing(lambda: tmp_path / "film.mp4", 10) as write:
        for level in range(20, 220, 40):
            write("film", np.full((48, 64, 3), level, np.uint8))
    return tmp_path / "film.mp4"


def test_a_video_is_drawn_frame_by_frame(weights, film, tmp_path):
    run(weights, film, tmp_path / "out", batch_size=2, confidence=0.3)
    assert names_in(tmp_path / "out") == ["detections.json", "film.mp4"]
    frames = frames_in(tmp_path / "out/film.mp4")
    assert len(frames) == 5 and frames[0].shape == (48, 64, 3) and frames[0].std() > 10  # boxes are drawn
    detections = entries(tmp_path / "out")
    assert {entry["frame"] for entry in detections} == set(range(5))
    assert all(entry["image_id"] == entry["frame"] + 1 and entry["file_name"] == "film.mp4" for entry in detections)


def test_all_images_and_videos_of_a_folder_are_predicted_and_other_formats_are_named(weights, film, tmp_path, capsys):
    write_noise(tmp_path / "in/a.png")
    (tmp_path / "in/x").mkdir()
    for name in ("b.mp4", "x/b.mp4", "d.avi", "d.avi.mp4"):
        (tmp_path / "in" / name).write_bytes(film.read_bytes())
    (tmp_path / "in/damaged.mov").write_bytes(film.read_bytes()[:300])
    (tmp_path / "in/phone.heic").write_bytes(b"")
    (tmp_path / "in/notes.txt").write_text("")
    run(weights, tmp_path / "in", tmp_path / "out", confidence=0.3)
    videos = ["b.mp4", "d.avi.mp4", "d.avi.mp4.mp4", "x/b.mp4"]
    assert names_in(tmp_path / "out") == sorted(["a.png", "detections.json", *videos])
    frames = [entry["file_name"] for entry in entries(tmp_path / "out") if entry.get("frame") == 4]
    assert set(frames) == {"b.mp4", "x/b.mp4", "d.avi", "d.avi.mp4"}
    told(capsys.readouterr().out, "damaged.mov", "phone.heic", "2 images")


def test_a_damaged_video_is_an_error_that_keeps_the_frames_before_the_damage(weights, tmp_path, capsys):
    noise = np.random.default_rng(0).integers(0, 256, (120, 160, 3), dtype=np.uint8)
    with video.writing(lambda: tmp_path / "film.mp4", 10) as write:
        for number in range(60):
            write("film", np.roll(noise, number, 1))
    data = bytearray((tmp_path / "film.mp4").read_bytes())
    half = len(data) // 2
    data[half : half + 65536] = bytes(65536)
    (tmp_path / "film.mp4").write_bytes(data)
    with refused(ValueError, "film.mp4") as caught:
        run(weights, tmp_path / "film.mp4", tmp_path / "out", confidence=0.0, max_detections=1)
    frames = frames_in(tmp_path / "out/film.mp4")
    assert 0 < len(frames) < 60 and f"{len(frames)} of 60" in str(caught.value)
    assert [entry["frame"] for entry in entries(tmp_path / "out")] == list(range(len(frames)))
    assert f"{len(frames)} images" in capsys.readouterr().out


@pytest.mark.parametrize("source", ["http://127.0.0.1:1/a.jpg", "x" * 5000, "no.mp4", "bad.mp4"])
def test_a_source_that_cannot_be_opened_is_one_line_and_leaves_no_folder(
    weights, tmp_path, monkeypatch, capsys, source
):
    monkeypatch.chdir(tmp_path)
    Path("bad.mp4").write_bytes(b"no video")
    for output in (None, "out"):
        with pytest.raises(ValueError) as caught:
            run(weights, source, output)
        assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 1000
        assert names_in(".") == ["bad.mp4"] and not Path("runs").exists()
        assert "images" not in capsys.readouterr().out


@pytest.mark.parametrize("source, word", [("0", "source=0"), ("7", "7")])
def test_a_camera_that_is_not_there_is_one_line_whose_fix_is_not_this_camera(weights, tmp_path, capfd, source, word):
    with refused(ValueError, f"source={source}") as caught:
        run(weights, source, tmp_path / "out")
    assert not mentions(str(caught.value).partition(";")[2], word)
    assert capfd.readouterr().err == ""  # OpenCV would print a page


def test_digits_are_a_camera_unless_there_is_such_a_file(tmp_path, monkeypatch):
    opened = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cv2, "VideoCapture", lambda source: opened.append(source) or SimpleNamespace(isOpened=bool))
    for _ in range(2):
        with refused(ValueError, "source=0"):
            video.Video("0")
        Path("0").touch()
    assert opened == [0, "0"]


def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_read(tmp_path):
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file/new"):
        with refused(ConfigError, f"output={output}"):
            run(tmp_path / "none.pt", tmp_path, output)


def frames_in(path):
    return list(video.Video(str(path)).frames(0))


def test_sigterm_keeps_the_video_and_the_boxes(weights, film, tmp_path, monkeypatch):
    network, calls, before = Detector.network, [], signal.getsignal(signal.SIGTERM)

    def ended(self, batch):
        calls.append(1)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return network(self, batch)

    monkeypatch.setattr(Detector, "network", ended)
    words = {"checkpoint": weights, "source": film, "output": tmp_path / "out", "batch_size": 1, "device": "cpu"}
    try:
        with pytest.raises(SystemExit) as stopped:
            run_script(lambda: predict.command([f"{name}={value}" for name, value in words.items()]), "", "")
        assert stopped.value.code == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(frames_in(tmp_path / "out/film.mp4")) == 3 and len(calls) == 4


def test_an_image_that_is_wider_than_its_format_allows_costs_a_line_and_keeps_its_boxes(weights, tmp_path, capsys):
    cv2.imwrite(str(tmp_path / "wide.png"), np.zeros((8, 16384, 3), np.uint8))
    for name in ("wide.webp", "wide.JPEG"):  # a PNG by its content
        (tmp_path / "in").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "wide.png", tmp_path / "in" / name)
    write_noise(tmp_path / "in/z.png", 1)
    run(weights, tmp_path / "in", tmp_path / "out", batch_size=1)
    told = capsys.readouterr().out
    assert "wide.webp" in told and "16384x8" in told
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["detections.json", "wide.JPEG", "z.png"]


def test_an_image_that_cannot_be_written_is_an_error_that_keeps_what_was_detected(weights, tmp_path, monkeypatch):
    for number in range(6):
        write_noise(tmp_path / f"in/{number}.png", number)
    write, threads = predictor.write_image, threading.active_count()

    def full(path, image, is_drawn):
        if path.name == "2.png":
            raise OSError("full")
        write(path, image, is_drawn)

    monkeypatch.setattr(predictor, "write_image", full)
    with pytest.raises(OSError, match="full"):
        run(weights, tmp_path / "in", tmp_path / "out", batch_size=2)
    assert threading.active_count() == threads and (tmp_path / "out/1.png").is_file()
    assert {"0.png", "1.png"} <= {entry["file_name"] for entry in entries(tmp_path / "out")}


@pytest.mark.parametrize(
    "source, options, name",
    [
        ("a.png", {"confidence": 1.0}, "a.png"),
        ("a.png", {"confidence": 0.01, "max_detections": 1, "save": False, "crops": True}, "a.png_1.png"),
        ("a.png", {"confidence": 0.01, "save": False}, "detections.json"),
        ("film.mp4", {"confidence": 1.0}, "film.mp4"),
    ],
)
def test_a_full_disk_is_an_error_that_names_the_file(weights, film, tmp_path, capsys, source, options, name):
    """No file can become larger than 300 bytes."""
    resource = pytest.importorskip("resource", reason="POSIX only")
    write_noise(tmp_path / "a.png")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        with refused(OSError, name):
            run(weights, tmp_path / source, tmp_path / "out", **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_q_in_the_window_ends_and_keeps_the_results(weights, tmp_path, monkeypatch):
    for number in range(4):
        write_noise(tmp_path / f"in/{number}.png", number)
    shown = []
    monkeypatch.setattr(predict, "require_window", lambda: None)
    monkeypatch.setattr(video, "show", lambda image, wait: shown.append((image.copy(), wait)) or len(shown) < 2)
    run(weights, tmp_path / "in", tmp_path / "out", show=True)
    assert len(shown) == 2 and shown[0][1] == 0
    assert names_in(tmp_path / "out") == ["0.png", "1.png", "detections.json"]
    assert {entry["file_name"] for entry in entries(tmp_path / "out")} == {"0.png", "1.png"}


def test_coco_weights_use_the_category_ids_of_coco(shared, tmp_path):
    main(
        Config(
            checkpoint=str(shared / "weights/yolox_nano.pth"),
            model="yolox_nano",
            source=str(shared / "data/coco_val326/images/000000000285.jpg"),
            output=str(tmp_path / "out"),
            device="cpu",
        )
    )
    assert [(entry["class"], entry["category_id"]) for entry in entries(tmp_path / "out")] == [("bear", 23)]
