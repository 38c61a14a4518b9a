"""utils/value_range.py: images of 10 to 14 bits in 16-bit files train, predict and export with one range of values."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from files import read_annotation_file
from lively import lively_checkpoint
from small import config, only_run, train_quietly

import export
from datasets import demo
from datasets.check_images import check_images
from datasets.formats.options import ReadOptions, read_options
from datasets.scan import scan
from datasets.sources import read_splits, read_train_and_val
from deploy.detector import Detector
from utils import checkpoint
from utils.images import decode_with_limits, read_bytes, read_image, read_reduced
from utils.value_range import FULL, NO_LIMITS, choose, limits_of, to_8_bits

TWELVE = (0, 4095)


def write(path, image) -> str:
    path.write_bytes(cv2.imencode(path.suffix, image)[1].tobytes())
    return str(path)


def ramp(low: int, high: int, channels: int = 1) -> np.ndarray:
    """A 16-bit image with all values from `low` to `high`."""
    values = np.linspace(low, high, 64 * 96).round().astype(np.uint16).reshape(64, 96)
    return np.dstack([values] * channels) if channels > 1 else values


def data_set(folder, values: list[tuple[int, int]], suffix=".png", name="train"):
    """An annotation file of 16-bit images, each a ramp over its values."""
    lines = []
    for i, pair in enumerate(values):
        write(folder / f"{name}_{i}{suffix}", ramp(*pair))
        lines.append(f"{name}_{i}{suffix} 5,5,40,40,0\n")
    (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "classes.txt").write_text("part\n", encoding="utf-8")
    return str(folder / f"{name}.txt")


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ([], None),
        ([NO_LIMITS, NO_LIMITS], None),
        ([(0, 3987)], TWELVE),
        ([(12, 1000), NO_LIMITS, (3, 900)], (0, 1023)),
        ([(21_000, 26_000), (24_000, 31_000)], (21_000, 31_000)),
        ([(0, 60_000)], FULL),
        ([(0, 4000), (50, 40_000)], FULL),
        ([(5000, 5000)], FULL),
    ],
)
def test_the_range_of_a_data_set(limits, expected):
    assert choose(np.array(limits, np.int32).reshape(-1, 2)) == expected


def test_the_range_becomes_0_to_255_and_other_values_are_clipped():
    image = np.dstack([np.array([[0, 21_000, 26_000, 31_000, 65_535]], np.uint16)] * 3)
    assert to_8_bits(image, (21_000, 31_000))[0, :, 1].tolist() == [0, 0, 128, 255, 255]


def test_limits_leave_out_dead_pixels():
    image = ramp(100, 4000, 3)
    image[0, :3], image[1, :3] = 65535, 0
    assert limits_of(image) == pytest.approx((100, 4000), abs=5)
    image[:8] = 50_000
    assert limits_of(image)[1] == 50_000


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_12_bit_files_use_all_8_bits(tmp_path, suffix, channels):
    path = write(tmp_path / f"a{'.ppm' if channels == 3 and suffix == '.pgm' else suffix}", ramp(0, 4095, channels))
    assert read_image(path).max() in (15, 16)  # the upper eight bits; OpenCV rounds the bits of colored TIFFs
    image = read_image(path, value_range=TWELVE)
    assert image.dtype == np.uint8 and image.min() == 0 and image.max() == 255 and len(np.unique(image)) == 256
    again, limits = decode_with_limits(read_bytes(path), path, TWELVE)
    assert np.array_equal(image, again) and limits == pytest.approx(TWELVE, abs=8)
    assert np.array_equal(read_reduced(path, 1, TWELVE), image) and read_reduced(path, 4, TWELVE).shape == (16, 24, 3)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
def test_8_bit_files_do_not_change_by_a_bit(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))
    for value_range in (FULL, TWELVE, (21_000, 31_000)):
        assert np.array_equal(read_image(path, value_range=value_range), read_image(path))
        image, limits = decode_with_limits(read_bytes(path), path, value_range)
        assert np.array_equal(image, read_image(path)) and limits == NO_LIMITS
    assert scan([path]).limits.tolist() == [list(NO_LIMITS)]


def test_validation_images_take_the_range_of_the_training_and_those_outside_are_named(tmp_path):
    sources = {
        "train": data_set(tmp_path, [(0, 4000)] * 3),
        "val": data_set(tmp_path, [(0, 300), (9, 9000)], name="val"),
    }
    write(tmp_path / "val_2.png", np.full((64, 96, 3), 77, np.uint8))  # 8 bits, which stay as they are
    with open(sources["val"], "a", encoding="utf-8") as file:
        file.write("val_2.png 5,5,40,40,0\n")
    for _ in range(2):  # then from the cache of the scan
        lines = []
        train, val = read_splits(sources, ReadOptions(bad_boxes="drop"), lines.append)
        assert train.value_range == val.value_range == TWELVE and val.image(2).max() == 77
        assert any("4,095" in line for line in lines)
        (outside,) = (line for line in lines if "val_1.png" in line)
        assert outside.endswith("are clipped") and "other values: 1;" in outside


# ---- a training and what comes after it


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """The generated images as 12-bit files: an annotation file for training and one for validation."""
    folder = tmp_path_factory.mktemp("deep")
    for name, count in (("train", 8), ("val", 4)):
        lines = []
        for number in range(count):
            image, boxes, labels = demo.draw_image(number + 100 * (name == "val"))
            write(folder / f"{name}{number}.png", image.astype(np.uint16) * 16)
            words = [f"{','.join(f'{v:g}' for v in box)},{label}" for box, label in zip(boxes, labels, strict=True)]
            lines.append(" ".join([f"{name}{number}.png", *words]) + "\n")
        (folder / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "classes.txt").write_text("\n".join(demo.CLASSES) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def trained(deep, tmp_path_factory):
    """The run folder of a training on the 12-bit files, and the text that it printed."""
    folder, _, text = train_quietly(config(deep, tmp_path_factory.mktemp("runs"), epochs=2, freeze_epochs=0))
    return folder, text


def test_a_fraction_as_validation_data_keeps_the_range(deep, tmp_path):
    """Both splits come from one data set, and have its range: without it, their images would be nearly black."""
    options = config(deep, tmp_path, val=".25", epochs=1, freeze_epochs=0)
    train, val = read_train_and_val(options.train, options.val, read_options(), print)
    assert train.value_range == val.value_range == TWELVE and len(train) + len(val) == 8
    assert min(data.image(i).max() for data in (train, val) for i in range(len(data))) > 200


def test_prediction_reads_the_same_pixels_as_the_training(trained, deep, tmp_path, capsys):
    folder, _ = trained
    detector = Detector(folder / "best.pt", device="cpu", confidence=0.01)
    data, _ = check_images(read_annotation_file(str(deep / "val.txt")))
    path = data.path(0)
    assert np.array_equal(detector.read(path), data.image(0)) and data.image(0).max() > 200
    (of_file,), (of_array) = detector(path), detector(data.image(0))
    assert len(of_file.scores) and np.array_equal(of_file.boxes, of_array[0].boxes)
    assert capsys.readouterr().out == ""
    detector([write(tmp_path / "a.png", ramp(0, 30_000))] * 2)
    assert capsys.readouterr().out.count("a.png") == 1
    of_8_bits = Detector(lively_checkpoint(tmp_path / "other.pt"), device="cpu")
    assert of_8_bits.read(path).max() <= 15 and "val0.png" in capsys.readouterr().out  # the image becomes dark


@pytest.mark.slow
def test_an_exported_file_reads_the_same_pixels(trained, deep, tmp_path):
    folder, _ = trained
    file = export.main(export.Config(str(folder / "best.pt"), str(tmp_path / "a.onnx"), check_images=2))
    ours, theirs = (Detector(path, device="cpu", confidence=0.05) for path in (folder / "best.pt", file))
    assert theirs.loaded.value_range == TWELVE
    path = str(deep / "val1.png")
    assert np.array_equal(ours.read(path), theirs.read(path))


def test_a_resumed_run_keeps_its_range(trained, deep):
    """Also if this version of the program would choose another one."""
    folder, _ = trained
    last = checkpoint.load(folder / "last.pt", "resuming")
    for part in (last, last["resume"]):
        part["value_range"] = (0, 8191)
    checkpoint.save(folder / "last.pt", last)
    cfg = config(deep, folder.parent, epochs=3, freeze_epochs=0, resume=str(folder))
    train_quietly(replace(cfg, no_aug_epochs=1))
    assert tuple(checkpoint.load(folder / "last.pt")["value_range"]) == (0, 8191)
    assert only_run(folder.parent) == folder
