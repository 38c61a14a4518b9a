"""deploy/inputs.py: every way to give an image leads to the same detections; what is no image is an error with its name."""

import gc
import threading
import weakref

import cv2
import numpy as np
import pytest
from files import noise, write_noise
from lively import lively_checkpoint
from PIL import Image
from web import serving

import export
from deploy import inputs, video
from deploy.detector import Detector
from deploy.inputs import matching
from utils.boxes import pairwise_iou
from utils.images import ImageError

LOW = {"confidence": 0.3, "device": "cpu"}
PNG = {"Content-Type": "image/png"}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt")


@pytest.fixture(scope="module")
def detector(weights):
    return Detector(weights, **LOW)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")


def encoded(image, suffix=".png"):
    return cv2.imencode(suffix, image)[1].tobytes()


def assert_same(results, others):
    assert len(results) == len(others) > 0
    for one, other in zip(results, others, strict=True):
        assert len(one) > 0 and one.names == other.names
        np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-2)  # rounding depends on the batch
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        (tmp_path / "in/sub").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"in/{'sub/' if number == 2 else ''}{number}.png").write_bytes(encoded(noise(number)))
    (tmp_path / "in/notes.txt").touch()
    return tmp_path / "in"


def test_folders_patterns_and_lists_of_them_stand_for_their_images(detector, folder):
    arrays = [noise(number) for number in range(3)]
    expected = detector(arrays)
    assert_same(detector(folder), expected)
    assert_same(detector(str(folder)), expected)
    assert_same(detector(f"{folder}/*.png"), expected[:2])
    assert_same(detector([folder / "sub", f"{folder}/*.png", arrays[1]]), [expected[2], *expected[:2], expected[1]])
    assert_same(detector(np.stack(arrays)), expected)
    assert [result.path for result in detector(folder)] == [
        str(folder / name) for name in ("0.png", "1.png", "sub/2.png")
    ]


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P"])
def test_a_pillow_image_has_the_detections_of_its_file(detector, tmp_path, mode):
    image = Image.fromarray(noise(0)[..., ::-1]).convert(mode)
    image.save(tmp_path / "a.png")
    (of_image,), (of_file,) = detector(image), detector(tmp_path / "a.png")
    assert_same([of_image], [of_file])
    assert np.array_equal(of_image.draw(), of_file.draw())


def test_images_of_the_web_have_the_detections_of_their_files(detector):
    redirect = (302, {"Location": "/a.png"}, b"")
    answers = {"/a.png": (200, PNG, encoded(noise(0))), "/b%20%C3%A9.png?w=9": (200, {}, encoded(noise(1)))}
    with serving(answers | {"/photo": (200, PNG, encoded(noise(2))), "/old.jpg": redirect}) as address:
        names = ("a.png", "b é.png?w=9", "photo", "old.jpg")
        results = detector([f"{address}/{name}" for name in names])
        assert_same(detector(f"{address}/photo"), results[2:3])
    assert_same(results, detector([noise(0), noise(1), noise(2), noise(0)]))
    assert results[0].path == f"{address}/a.png"
    assert np.array_equal(results[2].image, noise(2))  # without the server


def endless(request):
    request.send_response(200)
    request.end_headers()
    try:
        while True:
            request.wfile.write(bytes(1 << 16))
    except OSError:
        pass


def silent(request):
    request.rfile.read()


BAD = {
    "/page.jpg": (200, {"Content-Type": "text/html"}, b"<html>"),
    "/cut.jpg": (200, {"Content-Length": "99999"}, encoded(noise(), ".jpg")[:-99]),
    "/endless.jpg": endless,
    "/silent.jpg": silent,
    "/loop.jpg": (302, {"Location": "/loop.jpg"}, b""),
}


@pytest.mark.parametrize("path", [*BAD, "/missing.jpg"])
def test_an_address_without_an_image_is_an_error_with_the_address(detector, path, monkeypatch):
    monkeypatch.setattr(inputs, "TIMEOUT", 0.5)
    monkeypatch.setattr(inputs, "MAX_BYTES", 1 << 20)
    before = threading.active_count()
    with serving(BAD) as address, pytest.raises(ImageError) as caught:
        detector([f"{address}{path}"])
    assert path in str(caught.value) and "\n" not in str(caught.value) and threading.active_count() <= before + 2


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:1/a.jpg", "http://[::1/a.jpg", "https://"],
)
def test_an_address_without_a_server_is_an_error_with_the_address(detector, address):
    with pytest.raises(ImageError) as caught:
        detector(address)
    assert address in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address, name",
    [
        ("http://a.b/c/d.jpg?x=1#y", "d.jpg"),
        ("http://a.b/%E5%9B%BE%20(1).png", "图 (1).png"),
        ("http://a.b/..", "image"),
        ("http://a.b/x/%2e%2e%2f%2e%2e", "image"),
        ("http://a.b/x/..%5Cy.png", "y.png"),
        ("http://a.b/a:b.png", "a_b.png"),
        ("http://a.b", "image"),
    ],
)
def test_the_name_of_an_address_is_a_file_name_inside_any_folder(address, name):
    assert inputs.name_of(address) == name


@pytest.fixture
def film(tmp_path):
    with video.writing(lambda: tmp_path / "film.mp4", 10) as write:
        for number in range(9):
            write("film", noise(number))
    return tmp_path / "film.mp4"


def test_a_stream_gives_the_frames_of_a_video_and_a_call_refuses_it(detector, film):
    frames = list(video.Video(str(film)).frames(0))
    results = list(detector.stream(film))
    assert_same(results, detector(frames))
    assert all(np.array_equal(result.image, frame) for result, frame in zip(results, frames, strict=True))
    for images in (film, str(film), [str(film)], "0", "rtsp://camera/1"):
        with pytest.raises(ValueError, match="stream"):
            detector(images)


def test_a_stream_holds_only_the_images_of_a_few_batches(detector):
    made = []

    def images():
        for seed in range(60):
            image = noise(seed)
            made.append(weakref.ref(image))
            yield image

    def alive():
        return sum(image() is not None for image in made)

    for _ in detector.stream(images()):
        if alive() > 2 * detector.batch_size:
            gc.collect()  # garbage in cycles does not count
        assert alive() <= 2 * detector.batch_size
    assert len(made) == 60


@pytest.mark.parametrize(
    "images, part",
    [
        ("nowhere.jpg", "nowhere.jpg"),
        ("nowhere/*.jpg", "nowhere/*.jpg"),
        ("EMPTY", "EMPTY"),
        ("ftp://a.b/c.jpg", "ftp://a.b/c.jpg"),
        ("nowhere.mp4", "nowhere.mp4"),
    ],
)
def test_a_path_without_an_image_is_an_error_with_the_path(detector, tmp_path, monkeypatch, images, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    for call in (detector, lambda one: list(detector.stream(one))):
        with pytest.raises(ValueError) as caught:
            call(images)
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "image, fix",
    [
        (np.zeros((9, 9), np.uint8), "GRAY2BGR"),
        (np.zeros((9, 9, 4), np.uint8), ":3"),
        (np.zeros((9, 9, 3), np.float32), "astype"),
        (7, "path"),
    ],
)
def test_an_array_of_another_kind_is_an_error_with_its_conversion(detector, image, fix):
    with pytest.raises(TypeError) as caught:
        detector([image])
    assert fix in str(caught.value)


@pytest.mark.parametrize("confidence", [0.2, "per_class"])
@pytest.mark.parametrize("tile", [None, 48])
def test_only_some_classes_leaves_out_exactly_the_others(tmp_path, confidence, tile):
    thresholds = {"red": 0.2, "blue": 0.4, "green": 0.1}
    options = {"confidence": confidence, "device": "cpu", "tile": tile, "max_detections": 3000}
    weights = lively_checkpoint(tmp_path / "best.pt", thresholds=thresholds, metrics={"confidence": 0.3})
    (every,) = Detector(weights, **options)(noise())
    assert set(every.names) == {"red", "blue", "green"}
    for only in (["blue"], "blue", ["green", "red"]):
        (some,) = Detector(weights, only=only, **options)(noise())
        assert_same([some], [every[np.isin(every.names, only)]])
    with pytest.raises(ValueError, match="bleu.*blue"):
        Detector(weights, only=["red", "bleu"], **options)
    with pytest.raises(ValueError, match="only="):
        Detector(weights, only=[], **options)


@pytest.mark.parametrize("tile", [None, 48])
def test_class_agnostic_detection_keeps_no_two_boxes_at_one_place(weights, tile):
    options = LOW | {"tile": tile, "nms_iou": 0.2, "max_detections": 3000}
    detectors = [Detector(weights, class_agnostic=agnostic, **options) for agnostic in (False, True)]
    (plain,), (agnostic,) = (one(noise(0, 90, 140)) for one in detectors)
    assert 0 < len(agnostic) < len(plain)
    inside = agnostic.boxes[((agnostic.boxes > 0) & (agnostic.boxes < [140, 90] * 2)).all(1)]  # NMS is before clipping
    overlaps = pairwise_iou(inside, inside) - np.eye(len(inside))
    assert len(inside) > 3
    assert overlaps.max() <= 0.2 + 1e-4 or tile  # boxes of tiles that grow together may overlap more
    assert agnostic.scores[0] == plain.scores[0]


def test_exported_files_take_class_agnostic_only_without_nms_inside(weights, tmp_path):
    for outputs in ("raw", "detections"):
        export.main(export.Config(str(weights), str(tmp_path / f"{outputs}.onnx"), check_images=2, outputs=outputs))
    options = {"class_agnostic": True, "device": "cpu", "confidence": 0.3}
    assert_same(Detector(tmp_path / "raw.onnx", **options)(noise()), Detector(weights, **options)(noise()))
    with pytest.raises(ValueError, match="outputs=raw"):
        Detector(tmp_path / "detections.onnx", **options)


def test_an_existing_folder_is_no_pattern(tmp_path):
    folder = tmp_path / "photos [1]"
    write_noise(folder / "a.png")
    assert matching(f"{folder}/*.png") == [str(folder / "a.png")]
