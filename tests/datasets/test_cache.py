"""The cache of decoded images changes no sample, whatever happens to its files, and stays within its limits."""

import multiprocessing as mp
import os
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from files import read_annotation_file
from painted import assert_under_its_box, painted_sample

import datasets.cache
from datasets.cache import ImageCache
from datasets.dataset import DetectionDataset, Key
from datasets.formats.annotation_file import annotation_line
from datasets.mosaic import Augment
from utils.images import read_image, read_reduced

HOW = Augment(mosaic=0.6, mixup=0.3, flip=0.5, rotation=0, scale=(0.3, 0.6), translate=0.1, shear=0, hsv=(0, 0, 0))
FOLDER = "decoded-2"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("THAW_CACHE_GB", raising=False)
    return tmp_path / "cache" / FOLDER


def jpeg(path: Path, seed: int, side: int = 120) -> str:
    image = np.random.default_rng(seed).integers(0, 255, (side, side + 7, 3), np.uint8)
    path.write_bytes(cv2.imencode(".jpg", image)[1].tobytes())
    return str(path)


def data(folder: Path, **options) -> DetectionDataset:
    """Twelve painted images of 120 to 900 pixels as JPEGs, with known sizes."""
    lines, sizes = [], []
    for i in range(12):
        rng = np.random.default_rng(i)
        one = painted_sample(rng, i % 4)
        image = cv2.resize(one.image, None, fx=3, fy=3, interpolation=cv2.INTER_NEAREST)
        path = folder / f"{i}.jpg"
        if not path.exists():
            path.write_bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes())
        lines.append(annotation_line(path.name, one.boxes * 3, one.labels, np.zeros(len(one.labels), bool)))
        sizes.append(image.shape[:2])
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    found = replace(read_annotation_file(str(folder / "train.txt")), sizes=np.array(sizes, np.int32))
    return DetectionDataset(found, "corner", HOW, **options)


def samples(found: DetectionDataset) -> list:
    return [found[Key(epoch, i, i, (160, 160))] for epoch in range(2) for i in range(12)]


def assert_same(first: list, second: list) -> None:
    for a, b in zip(first, second, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("files, memory", [(1e9, None), (1e9, 0.0), (3e5, 0.0), (0.0, 4e5), (None, None)])
def test_caches_do_not_change_a_sample(tmp_path: Path, cache: Path, files, memory) -> None:
    expected = samples(data(tmp_path, cache=ImageCache(0.0, 0.0)))
    kept = data(tmp_path, cache=ImageCache(files, memory))
    assert_same(samples(kept), expected)
    assert_same(samples(kept), expected)
    assert_same(samples(data(tmp_path, cache=ImageCache(files, memory))), expected)  # a later run
    assert any(cache.iterdir()) if files != 0 and cache.exists() else not cache.exists()


def test_a_later_run_decodes_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = jpeg(tmp_path / "a.jpg", 0)
    first = [ImageCache(1e9).read(path, reduction) for reduction in (1, 2, 4, 8)]
    monkeypatch.setattr(datasets.cache, "read_reduced", None)
    for reduction, image in zip((1, 2, 4, 8), first, strict=True):
        assert np.array_equal(ImageCache(1e9).read(path, reduction), image)


@pytest.mark.parametrize("damage", ["cut", "empty", "zeroed", "one bit", "noise", "longer"])
def test_a_damaged_cache_file_is_decoded_again(tmp_path: Path, cache: Path, damage: str) -> None:
    path = jpeg(tmp_path / "a.jpg", 0)
    expected = ImageCache(1e9).read(path, 1)
    (file,) = cache.iterdir()
    raw = bytearray(file.read_bytes())
    raw[5000] ^= 4 * (damage == "one bit")
    raw = {"cut": raw[:-9], "empty": b"", "zeroed": bytes(len(raw)), "noise": os.urandom(len(raw))}.get(damage, raw)
    file.write_bytes(bytes(raw) + b"x" * (damage == "longer"))
    assert np.array_equal(ImageCache(1e9).read(path, 1), expected)
    assert np.array_equal(ImageCache(1e9).read(path, 1), expected)


def test_a_changed_image_is_decoded_again(tmp_path: Path) -> None:
    path, kept = jpeg(tmp_path / "a.jpg", 0), ImageCache(1e9)
    old = kept.read(path, 1)
    jpeg(tmp_path / "a.jpg", 1)
    os.utime(path, ns=(5, 5))
    for images in (kept, ImageCache(1e9)):
        assert np.array_equal(images.read(path, 1), read_image(path)) and not np.array_equal(old, read_image(path))


def test_a_full_or_read_only_disk_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = jpeg(tmp_path / "a.jpg", 0)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "file" / "inside"))
    assert np.array_equal(ImageCache(1e9).read(path, 1), read_image(path))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(datasets.cache.os, "replace", full)
    assert np.array_equal(ImageCache(1e9).read(path, 1), read_image(path))
    assert not list((tmp_path / "other" / FOLDER).iterdir())  # no partial file is left


def test_files_stay_within_their_limit_and_unused_ones_are_removed(tmp_path: Path, cache: Path) -> None:
    paths = [jpeg(tmp_path / f"{i}.jpg", i) for i in range(40)]  # 45,720 bytes each, decoded
    kept = ImageCache(10 * 46_000.0, 0.0)
    for path in paths:
        kept.read(path, 1)
    before = {f.name: f.stat().st_size for f in cache.iterdir()}
    assert 5 * 46_000 < sum(before.values()) <= 10 * 46_000
    for file in cache.iterdir():
        os.utime(file, (1, 1))  # of 1970
    other = jpeg(tmp_path / "other.jpg", 99)
    full = ImageCache(sum(before.values()) + 1.0, 0.0)
    full.read(other, 1)
    after = {f.name: f.stat().st_size for f in cache.iterdir()}
    assert set(after) - set(before) and len(after) <= len(before)


def test_memory_stays_within_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [jpeg(tmp_path / f"{i}.jpg", i) for i in range(12)]
    kept = ImageCache(0.0, 5 * 46_000.0)
    for path in paths * 2:
        kept.read(path, 1)
    assert len(kept._kept) == 5 and kept._bytes == sum(image.nbytes for image in kept._kept.values()) <= 5 * 46_000
    monkeypatch.setattr(datasets.cache, "KEPT", 3)
    kept.read(paths[0], 1)
    assert len(kept._kept) == 3 and not ImageCache(0.0, 0.0)._kept
    assert 0 < datasets.cache.free_memory() < 1e14


def fill(paths: list[str]) -> None:
    kept = ImageCache(1e9, 0.0)
    for path in paths * 3:
        assert np.array_equal(kept.read(path, 1), read_image(path))


def test_several_processes_may_write_at_once(tmp_path: Path, cache: Path) -> None:
    paths = [jpeg(tmp_path / f"{i}.jpg", i) for i in range(15)]
    processes = [mp.get_context("fork").Process(target=fill, args=(paths,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0, 0] and len(list(cache.iterdir())) == 15


@pytest.mark.parametrize("text, files", [("0", 0.0), ("1.5", 1.5e9), ("", None)])
def test_the_limit_of_the_files_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, files) -> None:
    monkeypatch.setenv("THAW_CACHE_GB", text)
    assert ImageCache()._files == files


@pytest.mark.parametrize("text", ["much", "-1", "nan", "inf"])
def test_a_wrong_limit_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("THAW_CACHE_GB", text)
    with pytest.raises(ValueError, match=f"THAW_CACHE_GB={text}"):
        ImageCache()


def test_boxes_stay_over_their_objects_in_images_that_are_decoded_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reductions = []
    monkeypatch.setattr(datasets.cache, "read_reduced", lambda *how: (reductions.append(how[1]), read_reduced(*how))[1])
    found, kept = data(tmp_path, cache=ImageCache(0.0, 0.0)), 0
    found.augment = replace(HOW, mosaic=0.5, mixup=0.0)
    for epoch in range(8):
        for i in range(12):
            item = found[Key(epoch, i, i, (160, 160))]
            kept += len(item.boxes)
            for label in set(item.labels.tolist()) if len(item.labels) == 1 else ():
                assert_under_its_box(item.image, item.boxes, label, rotated=True)
    assert kept > 50 and {2, 4} & set(reductions)


@pytest.mark.parametrize("letterbox", ["corner", "stretch"])
def test_an_image_is_never_decoded_smaller_than_it_is_drawn(tmp_path: Path, letterbox: str) -> None:
    found, larger = data(tmp_path), {"corner": min, "stretch": max}[letterbox]
    found.letterbox = letterbox
    for size in ((32, 32), (160, 160), (640, 640), (96, 416)):
        for largest in (0.5, 1.0, 1.5, 2.0):
            for index in range(12):
                height, width = found.annotations.sizes[index]
                scale = largest * larger(size[0] / height, size[1] / width)
                reduction = found._reduction(index, size, largest)
                assert reduction in (1, 2, 4, 8) and (reduction == 1 or reduction * scale <= 1)
                assert reduction == 8 or 2 * reduction * scale > 1
    found = DetectionDataset(replace(found.annotations, sizes=np.zeros((12, 2), np.int32)), "corner", HOW)
    assert found._reduction(0, (32, 32), 1.0) == 1  # of unknown size
