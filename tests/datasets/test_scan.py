"""The scan of all images before training: sizes and orientations are right, and no bad image or box passes silently."""

import io
import os
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import PIL
import pytest
from files import read_annotation_file
from PIL import Image
from refused import refused

import datasets.scan
import utils.images
from datasets.cache import ImageCache
from datasets.check_images import check_images, repeated_boxes
from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.scan import scan
from datasets.store import Annotations
from utils.files import cache_folder
from utils.images import ImageError, read_image


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))


def blank(width: int = 48, height: int = 32) -> Image.Image:
    return Image.new("RGB", (width, height), (10, 200, 90))


def truncated(folder: Path, name: str) -> str:
    data = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (100, 120, 3), np.uint8)
    Image.fromarray(noise).save(data, Path(name).suffix[1:].replace("jpg", "jpeg"))
    (folder / name).write_bytes(data.getvalue()[: len(data.getvalue()) * 2 // 3])
    return str(folder / name)


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_sizes_are_those_of_the_upright_image(tmp_path: Path, suffix: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{suffix}"
    blank().save(path, exif=exif)
    found = scan([str(path)])
    assert found.sizes.tolist() == [list(read_image(str(path)).shape[:2])]
    assert found.orientations.tolist() == [orientation] and not found.problems


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_data_are_ignored(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 9  # no such orientation
    for data in (b"Exif\0\0II*\0\xff\xff\xff\xff", exif):
        blank().save(tmp_path / "a.jpg", exif=data)
        assert read_image(str(tmp_path / "a.jpg")).shape == (32, 48, 3)
        assert scan([str(tmp_path / "a.jpg")]).sizes.tolist() == [[32, 48]]


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "bmp"])
def test_truncated_images_are_found(tmp_path: Path, suffix: str) -> None:
    found = scan([truncated(tmp_path, f"cut.{suffix}")])
    assert list(found.problems) == [0] and f"cut.{suffix}" in found.problems[0]


def test_scan_keeps_the_order_and_raises_no_error(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{i % 7}.png") for i in range(1200)]  # more than one block
    for i in range(6):
        blank(10 + i, 20).save(paths[i])
    found = scan(paths)  # 6.png is missing
    assert set(found.problems) == {i for i in range(1200) if i % 7 == 6}
    assert found.sizes[:7].tolist() == [[20, 10 + i] for i in range(6)] + [[0, 0]]
    assert np.array_equal(found.sizes[7:14], found.sizes[:7])
    assert len(scan([]).sizes) == 0
    assert list(scan(["a\0.png", "\udcff.png"]).problems) == [0, 1]  # names that the system or the cache cannot have


def test_results_are_cached_by_path_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    blank(40, 20).save(path)
    bad = truncated(tmp_path, "bad.png")
    first = scan([str(path), bad])
    examined = []
    examine = datasets.scan._examine
    monkeypatch.setattr(datasets.scan, "_examine", lambda path: (examined.append(path), examine(path))[1])
    again = scan([str(path), bad])
    assert examined == [] and again.problems == first.problems
    assert all(np.array_equal(a, b) for a, b in zip(first[:4], again[:4], strict=True))
    blank(60, 30).save(path)
    os.utime(path, ns=(1, 1))
    assert scan([str(path), bad]).sizes.tolist()[0] == [30, 60] and examined == [str(path)]


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [(utils.images, "MAX_PIXELS", 700), (cv2, "__version__", "0"), (PIL, "__version__", "0")],
    ids=["limit", "OpenCV", "Pillow"],
)
def test_another_limit_of_pixels_or_another_decoder_scans_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module, name, value
) -> None:
    blank(40, 20).save(tmp_path / "a.png")
    with monkeypatch.context() as before:
        before.setattr(module, name, value)
        assert len(scan([str(tmp_path / "a.png")]).problems) == (name == "MAX_PIXELS")
    examined = []
    examine = datasets.scan._examine
    monkeypatch.setattr(datasets.scan, "_examine", lambda path: (examined.append(path), examine(path))[1])
    assert not scan([str(tmp_path / "a.png")]).problems and len(examined) == 1


def test_scan_works_without_a_usable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blank().save(tmp_path / "a.png")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "file" / "inside"))
    assert scan([str(tmp_path / "a.png")]).sizes.tolist() == [[32, 48]]
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "images-2.sqlite").write_bytes(b"no database" * 100)
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "damaged"))
    assert scan([str(tmp_path / "a.png")]).sizes.tolist() == [[32, 48]]


def test_digests_are_equal_for_equal_content(tmp_path: Path) -> None:
    for name, width in (("a", 40), ("b", 40), ("c", 42)):
        blank(width).save(tmp_path / f"{name}.png")
    a, b, c = scan([str(tmp_path / f"{name}.png") for name in "abc"]).digests.tolist()
    assert a == b != c and 0 not in (a, c)


def data(folder: Path, text: str) -> Annotations:
    blank().save(folder / "a.png")  # 48 x 32
    (folder / "train.txt").write_text(text, encoding="utf-8")
    return read_annotation_file(str(folder / "train.txt"), ("cat",))


def test_unreadable_images_are_an_error_or_left_out_and_listed(tmp_path: Path) -> None:
    found = data(tmp_path, "a.png 1,2,3,4,0\nmissing.png 1,2,3,4,0\ncut.png 1,2,3,4,0 5,6,7,8,0\na.png 5,5,9,9,0\n")
    truncated(tmp_path, "cut.png")
    with refused(DataError, "2 of 4", "bad_images=", "train.txt:2", "missing.png", "train.txt:3", "cut.png"):
        check_images(found)

    good, report = check_images(found, ReadOptions(bad_images="skip"))
    assert good.lines.tolist() == [1, 4] and good.sizes.tolist() == [[32, 48]] * 2 and good.image_ids.tolist() == [1, 4]
    assert good.boxes.tolist() == [[1, 2, 3, 4], [5, 5, 9, 9]]
    assert "left out: 2" in report[0] and "missing.png" in report[0]


def test_a_data_set_without_any_readable_image_is_an_error(tmp_path: Path) -> None:
    with refused(DataError, "1 of 1", "train.txt:1"):
        check_images(data(tmp_path, "missing.png 1,2,3,4,0\n"), ReadOptions(bad_images="skip"))


def test_boxes_partly_outside_are_kept_and_counted(tmp_path: Path) -> None:
    good, report = check_images(data(tmp_path, "a.png -3,2,20,20,0 1,1,48,32,0 40,20,60.5,32,0\n"))
    assert len(good.boxes) == 3 and good.boxes[0].tolist() == [-3, 2, 20, 20]
    assert len(report) == 1 and "clipped: 2" in report[0]


@pytest.mark.parametrize(("far", "is_warning"), [(1, False), (2, True), (15, True)])
def test_a_tenth_of_boxes_that_reach_out_of_their_images_is_a_warning_with_the_probable_reason(
    tmp_path: Path, far: int, is_warning: bool
) -> None:
    """A pixel is rounding; what lies wholly outside counts, too."""
    boxes = ["1,1,49,32,0"] * (20 - far) + ["30,10,78,30,0"] * (far - 1) + ["50,10,78,30,0"]
    found = data(tmp_path, f"a.png {' '.join(boxes)}\n")
    _, report = check_images(found, ReadOptions(bad_boxes="drop"))
    warnings = [
        note
        for note in report
        if note.startswith("WARNING") and f"of 20 boxes, {far} reach out" in note and "corners" in note
    ]
    assert bool(warnings) == is_warning == ("corners" in "".join(report))
    if is_warning:
        with refused(DataError, f"of 20 boxes, {far} reach out", "corners"):
            check_images(found, ReadOptions(bad_boxes="error"))


def test_a_tenth_of_images_with_another_size_or_unreadable_or_of_repeated_boxes_is_a_warning(tmp_path: Path) -> None:
    for count, is_warning in ((10, True), (40, False)):
        found = data(tmp_path, "a.png 1,2,3,4,0 5,6,7,8,0\n" * (count - 2) + "gone.png 1,2,3,4,0\n" * 2)
        others = "".join(f" 1,2,{3 + n},9,0" for n in range(count - 3))
        sizes = found.sizes.copy()
        sizes[:2] = 10
        _, report = check_images(replace(found, sizes=sizes), ReadOptions(bad_images="skip"))
        report += repeated_boxes(data(tmp_path, "a.png" + " 1,2,3,4,0" * 3 + others + "\n"))
        assert [note.startswith("WARNING") for note in report] == [is_warning] * 3


def test_boxes_wholly_outside_are_an_error_or_dropped(tmp_path: Path) -> None:
    found = data(tmp_path, "a.png 1,1,5,5,0\na.png 48,2,60,20,0 2,2,6,6,0 -9,-9,0,0,0\n")
    with refused(DataError, "train.txt:2", "48,2,60,20", "48x32", "bad_boxes="):
        check_images(found, ReadOptions(bad_boxes="error"))
    good, report = check_images(found)
    assert good.boxes.tolist() == [[1, 1, 5, 5], [2, 2, 6, 6]] and good.starts.tolist() == [0, 1, 2]
    assert "left out: 2" in report[0]


def test_a_jpeg_that_is_cut_off_can_be_repaired(tmp_path: Path) -> None:
    """Two end bytes missing: all pixels are there. With more missing, the rest is gray; both are counted and listed."""
    noise = np.random.default_rng(0).integers(0, 255, (100, 120, 3), np.uint8)
    for name, progressive in (("a.jpg", False), ("b.jpg", True), ("whole.jpg", False)):
        Image.fromarray(noise).save(tmp_path / name, progressive=progressive)
    intact = read_image(str(tmp_path / "a.jpg"))
    a, b = ((tmp_path / name).read_bytes() for name in ("a.jpg", "b.jpg"))
    (tmp_path / "a.jpg").write_bytes(a[:-2])
    (tmp_path / "b.jpg").write_bytes(b[: len(b) // 2])
    found = data(tmp_path, "a.jpg 1,2,3,4,0\nwhole.jpg 1,2,3,4,0\nb.jpg 5,6,7,8,0\n")
    with refused(DataError, "2 of 3", "bad_images=skip", "bad_images=repair", "2 JPEGs", "a.jpg", "b.jpg"):
        check_images(found)
    assert len(check_images(found, ReadOptions(bad_images="skip"))[0]) == 1
    for _ in range(2):  # the second time from the cache
        good, report = check_images(found, ReadOptions(bad_images="repair"))
        assert len(good) == 3 and good.sizes.tolist() == [[100, 120]] * 3
        assert "used: 2" in report[0] and "a.jpg" in report[0] and "b.jpg" in report[0]
    assert np.array_equal(read_image(good.path(0)), intact)
    assert np.array_equal(ImageCache(1e9).read(good.path(0), 1), intact)
    assert np.array_equal(read_image(good.path(2)), read_image(good.path(2)))
    with refused(ImageError, "a.jpg"):
        read_image(good.path(0), whole=True)
    truncated(tmp_path, "cut.png")
    with refused(DataError, "1 of 2", "cut.png"):
        check_images(data(tmp_path, "a.jpg 1,2,3,4,0\ncut.png 1,2,3,4,0\n"), ReadOptions(bad_images="repair"))


def test_a_replaced_file_of_the_same_size_and_time_is_read_again(tmp_path: Path) -> None:
    """As tar and rsync -t leave it: only the inode and the time of change differ."""
    path = tmp_path / "a.bmp"
    blank(40, 20).save(path)
    os.utime(path, ns=(5, 5))
    cache = ImageCache(1e9)
    before = scan([str(path)]).digests[0], cache.read(str(path), 1)
    Image.new("RGB", (40, 20), (200, 1, 1)).save(tmp_path / "new.bmp")
    os.utime(tmp_path / "new.bmp", ns=(5, 5))
    os.replace(tmp_path / "new.bmp", path)
    assert scan([str(path)]).digests[0] != before[0]
    for images in (cache, ImageCache(1e9)):
        assert np.array_equal(images.read(str(path), 1), read_image(str(path)))


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_a_user_without_a_home_folder_has_no_cache_in_the_working_folder(monkeypatch) -> None:
    """As in containers that start with the number of a user whom the system does not know."""
    monkeypatch.delenv("THAW_CACHE", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert cache_folder().is_absolute() and not cache_folder().is_relative_to(os.getcwd())


def test_only_the_user_may_open_the_cache_folder(tmp_path: Path) -> None:
    blank().save(tmp_path / "a.png")
    scan([str(tmp_path / "a.png")])
    ImageCache(1e9).read(str(tmp_path / "a.png"), 1)
    for folder in (tmp_path / "cache", tmp_path / "cache" / "decoded-2"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_files_with_several_images_are_noted(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (48, 32), (level, 0, 0)) for level in (10, 90, 200)]
    frames[0].save(tmp_path / "a.tif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "b.tif")
    (tmp_path / "train.txt").write_text("".join(f"{tmp_path / name} 1,1,9,9,0\n" for name in ("a.tif", "b.tif")))
    for _ in range(2):  # the second time from the cache
        _, report = check_images(read_annotation_file(str(tmp_path / "train.txt"), names=("a",)))
        (note,) = [line for line in report if "a.tif" in line]
        assert ": 1, for example" in note
