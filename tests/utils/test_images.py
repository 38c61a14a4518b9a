"""utils/images.py: every file becomes the same pixels, the letterbox and its inverse agree, prefetching changes no result."""

import os
import struct
import subprocess
import sys
import threading
import zlib
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import official
import pytest
import torch
from painted import assert_under_its_box, painted_sample
from PIL import Image, ImageOps
from refused import refused

import utils.images
from utils.boxes import clip
from utils.images import (
    FILL,
    LETTERBOXES,
    ImageError,
    boxes_to_input,
    decode_deep,
    fit,
    frame_count,
    into_original,
    letterbox,
    prefetch,
    read_image,
    read_reduced,
)
from utils.jpeg import is_cut_off

SIZES = [(160, 160), (96, 224), (256, 128)]


def quarters(width: int = 48, height: int = 32) -> Image.Image:
    """Four colors, so that every rotation and mirror image differs."""
    pixels = np.zeros((height, width, 3), np.uint8)
    colors = ((0, 0, (250, 10, 10)), (0, 1, (10, 250, 10)), (1, 0, (10, 10, 250)), (1, 1, (200, 200, 10)))
    for row, column, color in colors:
        pixels[row * height // 2 :, column * width // 2 :] = color
    return Image.fromarray(pixels)


# ---- reading


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_exif_orientation_is_applied(tmp_path: Path, suffix: str) -> None:
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"{orientation}.{suffix}"
        quarters().save(path, exif=exif, quality=95)
        image = read_image(str(path))
        with Image.open(path) as file:
            expected = np.asarray(ImageOps.exif_transpose(file).convert("RGB"))[:, :, ::-1]
        assert image.shape == expected.shape == ((32, 48, 3) if orientation < 5 else (48, 32, 3))
        assert np.abs(image.astype(int) - expected).mean() < 6
        assert image.flags.c_contiguous


def test_every_mode_is_converted_to_bgr(tmp_path: Path) -> None:
    """Gray is repeated, of 16 bits the upper eight are kept, transparency is ignored, palettes are resolved."""
    gray = np.arange(0, 256, dtype=np.uint8).reshape(16, 16)
    color = np.dstack([gray, gray.T, 255 - gray])  # RGB
    alpha = np.where(gray > 100, 255, 7).astype(np.uint8)
    deep = gray.astype(np.uint16) * 256 + 200
    palette = Image.fromarray(gray).convert("P")
    palette.putpalette([value for i in range(256) for value in (i, 255 - i, 7)])
    expected = {
        "L": (Image.fromarray(gray), np.dstack([gray] * 3)),
        "LA": (Image.fromarray(np.dstack([gray, alpha])), np.dstack([gray] * 3)),
        "RGB": (Image.fromarray(color), color[:, :, ::-1]),
        "RGBA": (Image.fromarray(np.dstack([color, alpha])), color[:, :, ::-1]),
        "I16": (Image.fromarray(deep), np.dstack([gray] * 3)),
        "P": (palette, np.dstack([np.full_like(gray, 7), 255 - gray, gray])),
        "1": (Image.fromarray(gray > 100), np.dstack([(gray > 100).astype(np.uint8) * 255] * 3)),
    }
    for name, (file, pixels) in expected.items():
        file.save(tmp_path / f"{name}.png")
        image = read_image(str(tmp_path / f"{name}.png"))
        assert image.dtype == np.uint8 and np.array_equal(image, pixels), name


def test_unreadable_files_are_errors_with_a_fix(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "float.tif").write_bytes(cv2.imencode(".tif", np.zeros((8, 8), np.float32))[1].tobytes())
    for name, has_content in (
        ("empty.jpg", False),
        ("text.jpg", True),
        ("float.tif", True),
        ("missing.jpg", False),
    ):
        with refused(ImageError, name) as caught:
            read_image(str(tmp_path / name))
        assert ("PNG" in str(caught.value)) == has_content  # another format helps only where there are contents


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_pixels_below_zero_are_refused(tmp_path: Path, dtype: type) -> None:
    """OpenCV would take -1 for 255."""
    cv2.imwrite(str(tmp_path / "map.tif"), np.full((8, 8), 100, dtype))
    assert decode_deep((tmp_path / "map.tif").read_bytes(), "map.tif").dtype == np.dtype(
        dtype.__name__.replace("i", "ui")
    )
    cv2.imwrite(str(tmp_path / "ct.tif"), np.full((8, 8), -1, dtype))
    with refused(ImageError, "ct.tif", "offset"):
        read_image(str(tmp_path / "ct.tif"))


@pytest.mark.parametrize("reduction", [1, 2, 4, 8])
def test_reduced_sides_are_divided_and_rounded_up(tmp_path: Path, reduction: int) -> None:
    for side in (64, 121, 127):
        noise = np.random.default_rng(0).integers(0, 255, (side, side + 7, 3), np.uint8)
        cv2.imwrite(str(tmp_path / "a.jpg"), noise)
        cv2.imwrite(str(tmp_path / "a.png"), noise)
        for name in ("a.jpg", "a.png"):
            image = read_reduced(str(tmp_path / name), reduction)
            assert image.shape == (-(-side // reduction), -(-(side + 7) // reduction), 3)


# ---- letterbox


@pytest.mark.parametrize("kind", ["corner", "center"])
@pytest.mark.parametrize("shape", [(480, 640), (333, 500), (100, 37), (1, 1), (1, 700), (700, 1)])
def test_letterbox_keeps_the_aspect_ratio_and_pads(kind: str, shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    output, transform = letterbox(image, (96, 160), kind)
    ratio = min(96 / shape[0], 160 / shape[1])
    height, width = max(int(shape[0] * ratio), 1), max(int(shape[1] * ratio), 1)
    method = cv2.INTER_AREA if ratio < 0.5 else cv2.INTER_LINEAR
    left, top = int(transform.left), int(transform.top)
    assert transform[:4] == (shape[1], shape[0], ratio, ratio)
    assert (left, top) == ((0, 0) if kind == "corner" else ((160 - width) // 2, (96 - height) // 2))
    inside = output[top : top + height, left : left + width].copy()
    np.testing.assert_array_equal(inside, cv2.resize(image, (width, height), interpolation=method))
    output[top : top + height, left : left + width] = FILL
    assert output.shape == (96, 160, 3) and (output == FILL).all()


@pytest.mark.parametrize("shape", [(480, 640), (50, 400), (37, 100), (1, 700)])
def test_a_stretched_image_fills_the_input(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    output, transform = letterbox(image, (96, 160), "stretch")
    shrinks = 96 * 160 < 0.25 * shape[0] * shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    np.testing.assert_array_equal(output, cv2.resize(image, (160, 96), interpolation=method))
    assert transform == (shape[1], shape[0], 160 / shape[1], 96 / shape[0], 0, 0)


def test_a_stretched_image_equals_that_of_the_official_evaluation() -> None:
    reference = official.reference("paddle_preprocessing")  # RGB, from 50 x 70 to 64 x 96, divided by 255
    output, transform = letterbox(np.ascontiguousarray(reference["image"][..., ::-1]), (64, 96), "stretch")
    theirs = (reference["ppyoloe"] * 255).round()[::-1].transpose(1, 2, 0)
    assert np.abs(output - theirs).max() <= 1 and np.abs(output - theirs).mean() < 0.01
    assert (transform.scale_y, transform.scale_x) == pytest.approx(reference["scale_factor"].tolist())


@pytest.mark.parametrize("side", [416, 640])
def test_the_longer_side_of_an_image_fills_the_input(side: int) -> None:
    """720 * (416 / 720) is less than 416."""
    for width in range(side, 6000):
        _, (rows, columns) = fit(width, width // 3, (side, side), "corner")
        assert columns.stop == side and rows.stop == (width // 3) * side // width


def test_an_unknown_letterbox_is_an_error() -> None:
    with refused(ValueError, '"middle"', *LETTERBOXES):
        letterbox(np.zeros((4, 4, 3), np.uint8), (32, 32), "middle")


@pytest.mark.parametrize("kind", LETTERBOXES)
def test_boxes_to_input_stay_over_their_objects(kind: str) -> None:
    for seed in range(40):
        sample = painted_sample(np.random.default_rng(seed))
        output, transform = letterbox(sample.image, SIZES[seed % 3], kind)
        boxes = boxes_to_input(sample.boxes, transform)
        assert boxes.dtype == np.float32
        assert_under_its_box(output, clip(boxes, *output.shape[1::-1]), 0, rotated=False)


@pytest.mark.parametrize("kind", LETTERBOXES)
def test_into_original_is_the_inverse_of_boxes_to_input(kind: str) -> None:
    rng = np.random.default_rng(0)
    for height, width in rng.integers(20, 2000, (50, 2)):
        boxes = np.sort(rng.uniform(0, (width, height), (5, 2, 2)), 1).reshape(5, 4)
        transform = letterbox(np.zeros((height, width, 3), np.uint8), (96, 160), kind)[1]
        moved = boxes_to_input(boxes, transform)
        tensor = torch.tensor(transform, dtype=torch.float64)
        np.testing.assert_allclose(into_original(torch.from_numpy(moved).double(), tensor), boxes, atol=1e-2, rtol=1e-5)
        np.testing.assert_allclose(into_original(moved.astype(float), np.array(transform)), boxes, atol=1e-2, rtol=1e-5)


# ---- prefetch


@pytest.mark.parametrize("limit, threads", [(0, 1), (3, 1), (3, 4), (100, 4)])
def test_prefetch_returns_the_results_of_map_in_order(limit: int, threads: int) -> None:
    done = [threading.Event() for _ in range(20)]

    def last_first(item):
        if threads > 1 and item % 4 < 3:  # three of four wait for the next one
            done[item + 1].wait(5)
        done[item].set()
        return item * item

    assert list(prefetch(last_first, range(20), limit, threads)) == [i * i for i in range(20)]


@pytest.mark.parametrize("limit", [0, 1, 7])
def test_prefetch_computes_at_most_the_limit_in_advance(limit: int) -> None:
    taken = []
    results = prefetch(lambda item: item, (taken.append(i) or i for i in range(100)), limit, 4)
    for count in range(1, 50):
        next(results)
        assert len(taken) == count + limit
    results.close()
    assert len(taken) == 49 + limit


@pytest.mark.parametrize("limit", [0, 5])
def test_errors_are_raised_in_the_place_of_their_result(limit: int) -> None:
    found = []
    with pytest.raises(ZeroDivisionError):
        for result in prefetch(lambda item: 1 / (item - 3), range(10), limit):
            found.append(result)
    assert len(found) == 3


def test_no_thread_is_left_after_ctrl_c_or_closing() -> None:
    done, before = [], threading.active_count()

    def items():
        yield from range(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(prefetch(done.append, items(), 8))
    assert done == list(range(5)) and threading.active_count() == before
    done.clear()
    with closing(prefetch(done.append, range(100), 8, 2)) as results:
        next(results)
    assert sorted(done) == list(range(9)) and threading.active_count() == before


# ---- hostile files


def png_of(width: int, height: int, pixels: bytes = b"", length: int | None = None) -> bytes:
    """A PNG with this size in its header, and another length of its pixels than they have."""
    data = b"\x89PNG\r\n\x1a\n"
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    for kind, body in ((b"IHDR", head), (b"IDAT", pixels), (b"IEND", b"")):
        size = len(body) if length is None or kind != b"IDAT" else length
        data += struct.pack(">I", size) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return data


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (png_of(16385, 16384), ("16385x16384", "268,435,456", "OPENCV_IO_MAX_IMAGE_PIXELS")),
        (png_of(2**31 - 1, 2**31 - 1), ()),
        (png_of(16000, 16000), ("57 bytes", "16000x16000")),
        (png_of(64, 64, zlib.compress(bytes(64 * 193)), 2**31 - 1), ("PNG",)),
    ],
)
def test_small_files_that_promise_much_are_refused_before_they_are_decoded(
    tmp_path: Path, monkeypatch, data, named
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(data)
    monkeypatch.setattr(cv2, "imdecode", None)
    with refused(ImageError, "a.png", *named):
        read_image(str(path))


def test_the_limit_of_pixels_can_be_raised(tmp_path: Path, monkeypatch) -> None:
    quarters().save(tmp_path / "a.png")
    monkeypatch.setattr(utils.images, "MAX_PIXELS", 48 * 32 - 1)
    with refused(ImageError, "a.png", "48x32", "1,535", "OPENCV_IO_MAX_IMAGE_PIXELS"):
        read_image(str(tmp_path / "a.png"))
    monkeypatch.setattr(utils.images, "MAX_PIXELS", 48 * 32)
    assert read_image(str(tmp_path / "a.png")).shape == (32, 48, 3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of POSIX")
def test_devices_pipes_and_folders_are_no_images(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    for path in ("/dev/zero", tmp_path / "pipe.jpg", tmp_path / "folder.jpg"):
        with refused(ImageError, path):
            read_image(str(path))


def test_a_jpeg_with_anything_after_its_end_is_not_cut_off(tmp_path: Path) -> None:
    """Phones append videos and second images."""
    quarters().save(tmp_path / "a.jpg", exif=b"Exif\0\0\xff\xd9\xff\xda")
    data = (tmp_path / "a.jpg").read_bytes()
    assert not is_cut_off(data) and is_cut_off(data[:-2]) and is_cut_off(data[:-3]) and not is_cut_off(b"\x89PNG")
    (tmp_path / "b.jpg").write_bytes(data + b"\xff\xda moov \xff\xc0")
    assert np.array_equal(read_image(str(tmp_path / "b.jpg"), whole=True), read_image(str(tmp_path / "a.jpg")))


# ---- frames and EXIF


def test_files_with_several_images_are_counted(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((8, 8, 3), level, np.uint8)) for level in (0, 90, 200)]
    for suffix in ("gif", "png", "webp", "tif", "jpg"):
        frames[0].save(tmp_path / f"one.{suffix}")
        assert frame_count((tmp_path / f"one.{suffix}").read_bytes()) == 1
        if suffix != "jpg":
            frames[0].save(tmp_path / f"all.{suffix}", save_all=True, append_images=frames[1:])
            assert frame_count((tmp_path / f"all.{suffix}").read_bytes()) == 3
            if suffix in ("png", "tif") or cv2.__version__ >= "5":  # OpenCV 4.10 reads no GIF and no animated WebP
                assert read_image(str(tmp_path / f"all.{suffix}")).max() < 3, suffix


def test_damaged_exif_data_print_nothing(tmp_path: Path) -> None:
    quarters().save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\0garbage")
    program = f"from utils.images import read_image; print(read_image({str(tmp_path / 'a.jpg')!r}).shape)"
    done = subprocess.run([sys.executable, "-W", "default", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout.strip() == "(32, 48, 3)"
