"""The demo: exact boxes, the same files every time, never a partial data set."""

import errno
import hashlib
import os
import tempfile

import cv2
import numpy as np
import pytest
from refused import refused

from datasets import demo
from datasets.formats.read import read
from utils.config import ConfigError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "demo"
    assert demo.draw(folder) is True
    return folder


def digest(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path.relative_to(folder)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]


@pytest.mark.parametrize(("part", "count"), [pytest.param("train", 160, marks=pytest.mark.slow), ("val", 40)])
def test_the_demo_is_a_valid_data_set(folder, part, count):
    annotations = read(str(folder / f"{part}.txt"), part)
    assert annotations.classes == demo.CLASSES and len(annotations) == count
    per_class = annotations.boxes_per_class()
    assert (per_class >= count // 3).all()
    empty = 0
    for i in range(count):
        height, width = cv2.imread(annotations.path(i)).shape[:2]
        boxes = annotations.boxes_of(i)[0]
        empty += len(boxes) == 0
        assert (boxes[:, :2] >= 0).all() and (boxes[:, 2:] <= (width, height)).all()
        assert ((boxes[:, 2:] - boxes[:, :2]).max(1) > 0.5 * demo.SIDE[0]).all()
    assert 1 <= empty <= 0.15 * count


def test_the_demo_is_small_and_reproducible(folder, tmp_path, monkeypatch):
    images = list((folder / "images").iterdir())
    assert len(images) <= 200 and sum(path.stat().st_size for path in images) < 8e6
    monkeypatch.setattr(demo, "IMAGES", {"train": 6, "val": 2})
    demo.draw(tmp_path / "one")
    np.random.seed(1)
    demo.draw(tmp_path / "two")
    assert digest(tmp_path / "one") == digest(tmp_path / "two")
    # the first image does not depend on the number of images
    assert (tmp_path / "one/images/0000.jpg").read_bytes() == (folder / "images/0000.jpg").read_bytes()


def test_boxes_are_the_bounding_boxes_of_visible_pixels(monkeypatch):
    """Without noise, clutter, light and shadow, the pixels of a shape's color fill its box and are nowhere else."""
    monkeypatch.setattr(demo, "_background", lambda rng, size: np.zeros((*size, 3), np.float32))
    monkeypatch.setattr(demo, "NOISE", 0.0)

    def flat(canvas, mask, shape, rng):
        canvas[mask >= 128] = 10 * next(colors)

    monkeypatch.setattr(demo, "_paint", flat)
    shapes = 0
    for number in range(30):
        colors = iter(range(1, 26))
        image, boxes, labels = demo.draw_image(number)
        assert len(boxes) == len(labels) and boxes.shape[1] == 4
        for i, box in enumerate(boxes):
            rows, columns = np.nonzero((image == 10 * (i + 1)).all(2))
            assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            shapes += 1
    assert shapes > 60


def test_at_least_the_minimum_of_every_shape_is_visible(monkeypatch):
    """Where there is no room for a shape, none is drawn and there is no box."""
    monkeypatch.setattr(demo, "SHAPES", (40, 40))
    masks, kept = [], []
    original = demo._mask
    monkeypatch.setattr(demo, "_mask", lambda *a: masks.append(original(*a)) or masks[-1])
    monkeypatch.setattr(demo, "_paint", lambda canvas, mask, shape, rng: kept.append(mask >= 128))
    _, boxes, _ = demo.draw_image(1)
    assert 5 < len(kept) == len(boxes) < len(masks)
    for i, mask in enumerate(kept):
        over = np.any(kept[i + 1 :], axis=0) if i + 1 < len(kept) else np.zeros_like(mask)
        assert (mask & ~over).sum() >= demo.MIN_VISIBLE * mask.sum()


def test_an_existing_demo_is_not_changed(folder):
    (folder / "train.txt").open("a").close()
    before = digest(folder), os.stat(folder / "train.txt").st_mtime_ns
    assert demo.draw(folder) is False
    assert (digest(folder), os.stat(folder / "train.txt").st_mtime_ns) == before


def test_other_files_are_not_overwritten(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/train.txt").write_text("mine")
    with refused(FileExistsError, tmp_path / "demo"):
        demo.draw(tmp_path / "demo")
    assert [path.name for path in tmp_path.rglob("*")] == ["demo", "train.txt"]


def test_an_interrupted_drawing_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "IMAGES", {"train": 4, "val": 2})
    original = demo.draw_image

    def interrupted(number):
        if number == 5:
            raise KeyboardInterrupt
        return original(number)

    monkeypatch.setattr(demo, "draw_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.draw(tmp_path / "data" / "demo")
    assert list((tmp_path / "data").iterdir()) == []
    monkeypatch.setattr(demo, "draw_image", original)
    assert demo.draw(tmp_path / "data" / "demo") is True
    assert len(list((tmp_path / "data/demo/images").iterdir())) == 6


def test_a_demo_that_cannot_be_written_names_the_fix(tmp_path, monkeypatch):
    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", read_only)
    with refused(ConfigError, tmp_path, "train="):
        demo.draw(tmp_path / "data" / "demo")
