"""Fuzzers of image files: JPEG, PNG, BMP, TIFF, WebP and GIF, intact and damaged, and small files that promise huge images."""

import io
import os
import random
import zlib
from pathlib import Path

import cv2
import numpy as np
from files import read_annotation_file
from PIL import Image, ImageOps

from datasets.cache import ImageCache
from datasets.check_images import check_images
from datasets.formats.options import ReadOptions
from datasets.scan import scan
from utils.images import ImageError, decode_with_limits, read_bytes, read_image, read_reduced
from utils.jpeg import is_cut_off

from . import spoil
from .harness import Case, Failure, Fuzzer

MODES = {
    "jpg": ("RGB", "L", "CMYK"),
    "png": ("RGB", "L", "RGBA", "LA", "P", "1", "I;16"),
    "bmp": ("RGB", "L", "P", "1"),
    "tif": ("RGB", "L", "RGBA", "I;16"),
    "webp": ("RGB", "RGBA"),
    "gif": ("L", "P"),
}
LARGE = 10_000_000  # pixels; such an image is read once, because the limit of time is for one reading
if tuple(map(int, cv2.__version__.split(".")[:2])) < (4, 11):
    del MODES["gif"]  # older versions of OpenCV cannot read it
EXACT = ("RGB", "L")  # modes whose pixels another reader returns without a conversion that readers round differently


def drawn(rng: random.Random, mode: str) -> Image.Image:
    """A small image of smooth noise."""
    numbers = np.random.default_rng(rng.getrandbits(32))
    size = rng.choice(((1, 1), (17, 9), (48, 32), (64, 64), (130, 70)))
    image = Image.fromarray(numbers.integers(0, 256, (8, 8, 3), np.uint8)).resize(size, Image.Resampling.BILINEAR)
    if mode == "I;16":
        return Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    return image.convert(mode) if mode != "LA" else image.convert("L").convert("LA")


def encoded(rng: random.Random, suffix: str, mode: str) -> bytes:
    """The bytes of an image file."""
    out, image = io.BytesIO(), drawn(rng, mode)
    options = {"exif": exif(rng)} if suffix in ("jpg", "png", "webp") and rng.random() < 0.3 else {}
    if suffix == "jpg":
        options |= {
            "quality": rng.choice((30, 95)),
            "progressive": rng.random() < 0.4,
            "subsampling": rng.choice((0, 2)),
        }
    if suffix == "tif":
        options |= {"compression": rng.choice((None, "tiff_lzw", "tiff_deflate", "packbits"))}
    if suffix == "webp":
        options |= {"lossless": rng.random() < 0.5}
    if suffix == "gif" and rng.random() < 0.3:
        options |= {"save_all": True, "append_images": [image]}
    formats = {"jpg": "JPEG", "tif": "TIFF"}
    image.save(out, formats.get(suffix, suffix.upper()), **options)
    return out.getvalue()


def exif(rng: random.Random) -> Image.Exif:
    """EXIF data with an orientation."""
    found = Image.Exif()
    found[0x0112] = rng.randrange(0, 10)
    return found


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG with its checksum."""
    return spoil.be32(len(data)) + kind + data + spoil.be32(zlib.crc32(kind + data))


def png(width: int, height: int, depth: int, color: int, pixels: bytes) -> bytes:
    """A PNG with these values in its header, whatever its pixels are."""
    head = spoil.be32(width) + spoil.be32(height) + bytes([depth, color, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def with_jpeg_size(data: bytes, width: int, height: int) -> bytes:
    """A JPEG with another size in its header."""
    raw = bytearray(data)
    for marker in (b"\xff\xc0", b"\xff\xc2"):
        place = data.find(marker)
        if place > 0:
            raw[place + 5 : place + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(raw)


def bomb(rng: random.Random) -> tuple[str, bytes]:
    """A small file that promises many pixels."""
    side = rng.choice((5000, 8000, 16384, 16385, 30000, 46341, 65500, 2**20, 2**31 - 1, 2**32 - 1))
    other = rng.choice((side, 1, 5000))
    kind = rng.choice(("png chunk", *MODES))
    if kind == "png":
        rows = rng.choice((10, 4000))
        pixels = zlib.compress(bytes(rows * (side // 8 + 1) % 4_000_000))
        return "png", png(side, other, rng.choice((1, 8, 16)), rng.choice((0, 2, 6)), pixels)
    if kind == "png chunk":
        data = bytearray(png(64, 64, 8, 0, zlib.compress(bytes(64 * 65))))
        data[33:37] = spoil.be32(rng.choice(spoil.EXTREME))
        return "png", bytes(data)
    if kind == "jpg":
        return "jpg", with_jpeg_size(encoded(rng, "jpg", "RGB"), min(side, 65535), min(other, 65535))
    data = bytearray(encoded(rng, kind, MODES[kind][0]))
    if kind == "bmp":
        data[18:22], data[22:26] = side.to_bytes(4, "little"), other.to_bytes(4, "little")
        data[30] = rng.choice((0, 1, 2, 3))
    elif kind == "gif":
        place = rng.choice((6, data.index(b",") + 5))
        data[place : place + 4] = min(side, 65535).to_bytes(2, "little") + min(other, 65535).to_bytes(2, "little")
    elif kind == "webp":
        place = data.find(b"VP8X") + 12 if b"VP8X" in data else 21
        data[place : place + 6] = (side % 2**24).to_bytes(3, "little") + (other % 2**24).to_bytes(3, "little")
    else:
        data = bytearray(spoil.overwrite(rng, bytes(data), len(data)))
    return kind, bytes(data)


def make(rng: random.Random) -> Case:
    suffix = rng.choice(tuple(MODES))
    mode = rng.choice(MODES[suffix])
    data, name = encoded(rng, suffix, mode), f"intact_{mode.replace(';', '')}.{suffix}"
    how = rng.random()
    if how < 0.04:
        suffix, data = bomb(rng)
        name = f"bomb.{suffix}"
    elif how < 0.85:
        name, data = f"damaged.{suffix}", spoil.spoil(rng, data, rng.choice((32, 64, 300)))
        if rng.random() < 0.05:
            name = f"damaged.{rng.choice(tuple(MODES))}"
    return {name: data, "train.txt": f"{name} 1,1,9,9,0\n".encode()}


def run(folder: Path) -> None:
    (path,) = (str(path) for path in folder.iterdir() if path.name != "train.txt")
    first, again = scan([path]), scan([path])
    arrays = zip((*first[:4], first.limits), (*again[:4], again.limits), strict=True)
    words = (first.problems, first.repairable) == (again.problems, again.repairable)
    if not words or not all(np.array_equal(a, b) for a, b in arrays):
        raise Failure("wrong", "a second scan, from the cache, finds something else")
    found = read_annotation_file(str(folder / "train.txt"), ("cat",), "drop")
    if "intact" in path:
        check_intact(path, bool(first.problems))
    if not first.problems:
        check_readings(path, tuple(first.sizes[0]), whole=True)
        check_images(found, ReadOptions(bad_boxes="drop"))
        return
    if first.repairable:
        cut_off = is_cut_off(Path(path).read_bytes())
        check_readings(
            path, tuple(first.sizes[0]), whole=not cut_off
        )  # the prediction reads what is damaged in the middle
        good, notes = check_images(found, ReadOptions(bad_boxes="drop", bad_images="repair"))
        if len(good) != 1 or not any("used: 1" in note for note in notes):
            raise Failure("wrong", f"a repaired image is not counted: {notes}")
    check_images(found, ReadOptions(bad_boxes="drop"))
    raise Failure("wrong", f"training takes an image with a problem: {first.problems}")


def check_readings(path: str, size: tuple[int, int], whole: bool) -> None:
    """Compares the readings of training, evaluation, prediction and the cache with each other and with the scan."""
    image, large = read_image(path), size[0] * size[1] > LARGE
    if image.shape != (*size, 3) or not (large or np.array_equal(image, read_image(path))):
        raise Failure("wrong", f"{image.shape}, but the scan found {size}; or a second reading differs")
    if large:
        return
    try:
        if not np.array_equal(read_image(path, whole=True), image) or not whole:
            raise Failure("wrong", "the prediction reads an image that is cut off, or other pixels")
    except ImageError as error:
        if whole:
            raise Failure("wrong", f"the scan accepts what the prediction refuses: {error}") from error
    with_range = read_image(path, value_range=(10, 3000))
    if with_range.shape != image.shape or with_range.dtype != np.uint8:
        raise Failure("wrong", f"{with_range.dtype} {with_range.shape} with a range of values")
    if whole and not np.array_equal(decode_with_limits(read_bytes(path), path, None)[0], image):
        raise Failure("wrong", "the prediction reads other pixels")
    for reduction in (1, 2, 8):
        expected = read_reduced(path, reduction)
        if expected.shape[:2] != tuple(-(-side // reduction) for side in size):
            raise Failure("wrong", f"{expected.shape} of {size} at reduction {reduction}")
        for _ in range(2):
            cached = ImageCache(1e9, 0.0).read(path, reduction)
            if not np.array_equal(cached, expected):
                raise Failure("wrong", "the cache returns other pixels")


def check_intact(path: str, problem: bool) -> None:
    """Compares an intact image with the reading of Pillow."""
    if problem:
        raise Failure("wrong", "an intact image is refused")
    mode = os.path.basename(path).partition("_")[2].partition(".")[0]
    with Image.open(path) as file:
        expected = np.asarray(ImageOps.exif_transpose(file).convert("RGB"))[..., ::-1].astype(int)
    if mode in EXACT:
        lossy = path.endswith((".jpg", ".webp"))
        difference = np.abs(read_image(path) - expected)
        if difference.max() > (40 if lossy else 0) or difference.mean() > 4:
            raise Failure("wrong", f"pixels differ from Pillow's by up to {difference.max()}")


FUZZERS = (Fuzzer("image", make, run, (ValueError,), fraction=4.0),)
