import io
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

import datasets.images
from datasets.annotations import Annotations, DataError, read_annotation_file
from datasets.images import ImageError, pictures_under, prepare, read_image, scan


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))


def quarters(width: int = 48, height: int = 32) -> Image.Image:
    """Four colours, so that every turn and mirror image differs."""
    pixels = np.zeros((height, width, 3), np.uint8)
    for row, column, colour in (
        (0, 0, (250, 10, 10)),
        (0, 1, (10, 250, 10)),
        (1, 0, (10, 10, 250)),
        (1, 1, (200, 200, 10)),
    ):
        pixels[row * height // 2 :, column * width // 2 :] = colour
    return Image.fromarray(pixels)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tif"])
def test_exif_orientation_is_applied_the_same_to_pictures_and_sizes(
    tmp_path: Path, kind: str, orientation: int
) -> None:
    """PITFALLS 26."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{kind}"
    quarters().save(path, exif=exif, quality=95)
    image = read_image(str(path))
    with Image.open(path) as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))[:, :, ::-1]
    assert image.shape == expected.shape == ((32, 48, 3) if orientation < 5 else (48, 32, 3))
    assert np.abs(image.astype(int) - expected).mean() < 6
    assert image.flags.c_contiguous
    found = scan([str(path)])
    assert found.sizes.tolist() == [list(image.shape[:2])]
    assert found.orientations.tolist() == [orientation] and not found.problems


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_is_no_orientation(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    quarters().save(path, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert read_image(str(path)).shape == (32, 48, 3)
    assert scan([str(path)]).sizes.tolist() == [[32, 48]]
    exif = Image.Exif()
    exif[0x0112] = 9  # no such orientation
    quarters().save(path, exif=exif)
    assert read_image(str(path)).shape == (32, 48, 3)
    assert scan([str(path)]).sizes.tolist() == [[32, 48]]


def test_every_mode_is_converted_in_its_defined_way(tmp_path: Path) -> None:
    """PITFALLS 38: gray repeated, 16 bits: the upper eight, transparency ignored, palette resolved."""
    gray = np.arange(0, 256, dtype=np.uint8).reshape(16, 16)
    colour = np.dstack([gray, gray.T, 255 - gray])  # RGB
    alpha = np.where(gray > 100, 255, 7).astype(np.uint8)
    deep = gray.astype(np.uint16) * 256 + 200
    palette = Image.fromarray(gray).convert("P")
    palette.putpalette([value for i in range(256) for value in (i, 255 - i, 7)])
    expected = {
        "L": (Image.fromarray(gray), np.dstack([gray] * 3)),
        "LA": (Image.fromarray(np.dstack([gray, alpha])), np.dstack([gray] * 3)),
        "RGB": (Image.fromarray(colour), colour[:, :, ::-1]),
        "RGBA": (Image.fromarray(np.dstack([colour, alpha])), colour[:, :, ::-1]),
        "I16": (Image.fromarray(deep), np.dstack([gray] * 3)),
        "P": (palette, np.dstack([np.full_like(gray, 7), 255 - gray, gray])),
        "1": (Image.fromarray(gray > 100), np.dstack([(gray > 100).astype(np.uint8) * 255] * 3)),
    }
    for name, (picture, pixels) in expected.items():
        picture.save(tmp_path / f"{name}.png")
        image = read_image(str(tmp_path / f"{name}.png"))
        assert image.dtype == np.uint8 and np.array_equal(image, pixels), name


def test_any_path_can_be_read(tmp_path: Path) -> None:
    """PITFALLS 28."""
    for name in ("图 片/猫 (1).png", "é.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        quarters().save(path)
        assert read_image(str(path)).shape == (32, 48, 3)
        assert not scan([str(path)]).problems


def test_what_cannot_be_read_is_named_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "float.tif").write_bytes(cv2.imencode(".tif", np.zeros((8, 8), np.float32))[1].tobytes())
    for name, words in (
        ("empty.jpg", "empty"),
        ("text.jpg", "JPEG or PNG"),
        ("float.tif", "JPEG or PNG"),
        ("missing.jpg", "no such file"),
        ("folder\\missing.jpg", "instead of" if os.sep == "/" else "no such file"),
    ):
        with pytest.raises(ImageError, match=words) as caught:
            read_image(str(tmp_path / name))
        assert name in str(caught.value)


def truncated(folder: Path, name: str) -> str:
    data = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (100, 120, 3), np.uint8)
    Image.fromarray(noise).save(data, Path(name).suffix[1:].replace("jpg", "jpeg"))
    (folder / name).write_bytes(data.getvalue()[: len(data.getvalue()) * 2 // 3])
    return str(folder / name)


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "bmp"])
def test_scan_finds_truncated_pictures(tmp_path: Path, kind: str) -> None:
    """PITFALLS 29."""
    found = scan([truncated(tmp_path, f"cut.{kind}")])
    assert list(found.problems) == [0] and f"cut.{kind}" in found.problems[0]


def test_scan_never_raises_and_keeps_the_order(tmp_path: Path) -> None:
    paths = []
    for i in range(1200):  # more than one block
        paths.append(str(tmp_path / f"{i % 7}.png"))
    for i in range(6):
        quarters(10 + i, 20).save(paths[i])
    found = scan(paths)  # 6.png is missing
    assert set(found.problems) == {i for i in range(1200) if i % 7 == 6}
    assert found.sizes[:7].tolist() == [[20, 10 + i] for i in range(6)] + [[0, 0]]
    assert np.array_equal(found.sizes[7:14], found.sizes[:7])
    assert len(scan([]).sizes) == 0


def test_scan_is_cached_by_path_size_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    quarters(40, 20).save(path)
    bad = truncated(tmp_path, "bad.png")
    first = scan([str(path), bad])
    looked = []
    examine = datasets.images._examine
    monkeypatch.setattr(datasets.images, "_examine", lambda path: (looked.append(path), examine(path))[1])
    again = scan([str(path), bad])
    assert looked == [] and again.problems == first.problems
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(first[:3], again[:3], strict=True))
    quarters(60, 30).save(path)
    os.utime(path, ns=(1, 1))
    assert scan([str(path), bad]).sizes.tolist()[0] == [30, 60] and looked == [str(path)]


def test_scan_works_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quarters().save(tmp_path / "a.png")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "file" / "inside"))
    assert scan([str(tmp_path / "a.png")]).sizes.tolist() == [[32, 48]]
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "pictures-1.sqlite").write_bytes(b"no database" * 100)
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "damaged"))
    assert scan([str(tmp_path / "a.png")]).sizes.tolist() == [[32, 48]]


def test_digests_tell_equal_content(tmp_path: Path) -> None:
    for name, width in (("a", 40), ("b", 40), ("c", 42)):
        quarters(width).save(tmp_path / f"{name}.png")
    a, b, c = scan([str(tmp_path / f"{name}.png") for name in "abc"]).digests.tolist()
    assert a == b != c and 0 not in (a, c)


def test_pictures_under_a_folder(tmp_path: Path) -> None:
    for name in ("b.JPG", "a.png", "x/y/c.webp", "notes.txt", ".hidden.png", "x/._c.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert pictures_under(str(tmp_path)) == ["a.png", "b.JPG", "x/y/c.webp"]


def data(folder: Path, text: str) -> Annotations:
    quarters().save(folder / "a.png")  # 48 x 32
    (folder / "train.txt").write_text(text, encoding="utf-8")
    return read_annotation_file(str(folder / "train.txt"), ("cat",))


def test_pictures_that_cannot_be_read_stop_the_run_or_are_left_out(tmp_path: Path) -> None:
    found = data(tmp_path, "a.png 1,2,3,4,0\nmissing.png 1,2,3,4,0\ncut.png 1,2,3,4,0 5,6,7,8,0\na.png 5,5,9,9,0\n")
    truncated(tmp_path, "cut.png")
    with pytest.raises(DataError, match="skip_bad_images=True") as caught:
        prepare(found)
    assert (
        "train.txt:2: " in str(caught.value) and "train.txt:3: " in str(caught.value) and "2 of 4" in str(caught.value)
    )
    good, report = prepare(found, skip_bad_images=True)
    assert good.lines.tolist() == [1, 4] and good.sizes.tolist() == [[32, 48]] * 2 and good.image_ids.tolist() == [1, 4]
    assert good.boxes.tolist() == [[1, 2, 3, 4], [5, 5, 9, 9]]
    assert "left out: 2" in report[0] and "missing.png" in report[0]


def test_a_set_of_bad_pictures_only_is_an_error_anyway(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 of 1"):
        prepare(data(tmp_path, "missing.png 1,2,3,4,0\n"), skip_bad_images=True)


def test_boxes_reaching_outside_are_kept_and_counted(tmp_path: Path) -> None:
    """PITFALLS 19."""
    good, report = prepare(data(tmp_path, "a.png -3,2,20,20,0 1,1,48,32,0 40,20,60.5,32,0\n"))
    assert len(good.boxes) == 3 and good.boxes[0].tolist() == [-3, 2, 20, 20]
    assert len(report) == 1 and report[0].endswith("clipped: 2")


def test_boxes_wholly_outside_obey_bad_boxes(tmp_path: Path) -> None:
    """PITFALLS 20, after clipping."""
    found = data(tmp_path, "a.png 1,1,5,5,0\na.png 48,2,60,20,0 2,2,6,6,0 -9,-9,0,0,0\n")
    with pytest.raises(DataError, match="train.txt:2: box 48,2,60,20 lies outside its picture of 48x32") as caught:
        prepare(found)
    assert 'bad_boxes="drop"' in str(caught.value)
    good, report = prepare(found, bad_boxes="drop")
    assert good.boxes.tolist() == [[1, 1, 5, 5], [2, 2, 6, 6]] and good.starts.tolist() == [0, 1, 2]
    assert "left out: 2" in report[0]


def test_real_pictures_decode_as_opencv_does(shared: Path) -> None:
    for path in sorted((shared / "data" / "raccoon" / "images").iterdir())[:20]:
        assert np.array_equal(read_image(str(path)), cv2.imread(str(path))), path
