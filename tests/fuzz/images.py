"""Fuzzer of image files: JPEG, PNG, BMP, TIFF and WebP, intact and damaged, and small files that promise huge images."""

import io
import random
import zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from datasets.cache import ImageCache
from datasets.errors import DataError
from datasets.scan import scan
from utils.images import read_image, read_reduced

from . import damage
from .harness import Case, Failure, Fuzzer

MODES = {
    "jpg": ("RGB", "L", "CMYK"),
    "png": ("RGB", "L", "RGBA", "P", "I;16"),
    "bmp": ("RGB", "L"),
    "tif": ("RGB", "L"),
    "webp": ("RGB",),
}
FORMATS = {"jpg": "JPEG", "tif": "TIFF"}
EXACT = ("RGB", "L")  # modes whose pixels another reader returns without a conversion that readers round differently
SIDES = (5000, 16384, 30000, 46341, 65500)
LARGE = 10_000_000  # pixels; such an image is read once


def encoded(rng: random.Random, suffix: str, mode: str) -> bytes:
    """The bytes of a small image of smooth noise, at times with an orientation in its EXIF data."""
    pixels = np.random.default_rng(rng.getrandbits(32)).integers(0, 256, (8, 8, 3), np.uint8)
    size = rng.choice(((1, 1), (17, 9), (48, 32), (64, 64), (130, 70)))
    image = Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR)
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    else:
        image = image.convert(mode)
    options: dict = {"progressive": rng.random() < 0.4} if suffix == "jpg" else {}
    if suffix in ("jpg", "png", "webp") and rng.random() < 0.3:
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = rng.randrange(10)
    out = io.BytesIO()
    image.save(out, FORMATS.get(suffix, suffix.upper()), **options)
    return out.getvalue()


def bomb(rng: random.Random) -> tuple[str, bytes]:
    """A small JPEG or PNG that promises many pixels."""
    width, height = rng.choice(SIDES), rng.choice(SIDES)
    if rng.random() < 0.5:
        raw = bytearray(encoded(rng, "jpg", "RGB"))
        place = max(raw.find(b"\xff\xc0"), raw.find(b"\xff\xc2"))
        raw[place + 5 : place + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
        return "jpg", bytes(raw)
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, rng.choice((0, 2, 6)), 0, 0, 0])
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(100_000))), (b"IEND", b""))
    parts = [
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big") for kind, data in chunks
    ]
    return "png", b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def make(rng: random.Random) -> Case:
    suffix = rng.choice(tuple(MODES))
    mode = rng.choice(MODES[suffix])
    data, how = encoded(rng, suffix, mode), rng.random()
    if how < 0.04:
        suffix, data = bomb(rng)
        return {f"bomb.{suffix}": data}
    if how < 0.2:
        return {f"intact_{mode.replace(';', '')}.{suffix}": data}
    change = rng.choice((damage.flip, damage.cut, damage.repeat, damage.insert))
    return {f"damaged.{suffix}": change(rng, data)}


def run(folder: Path) -> None:
    (path,) = (str(path) for path in folder.iterdir())
    first, again = scan([path]), scan([path])
    same = (first.problems, first.repairable) == (again.problems, again.repairable)
    if not same or not all(np.array_equal(a, b) for a, b in zip(first[:4], again[:4], strict=True)):
        raise Failure("a second scan, from the cache, finds something else")
    intact = Path(path).name.startswith("intact")
    if intact and first.problems:
        raise Failure(f"an intact image is refused: {first.problems}")
    if intact:
        check_pixels(path)
    if not first.problems:
        check_readings(path, tuple(first.sizes[0]))
    else:
        raise DataError(f"{path}: {first.problems}; replace the image")  # as a run does, unless bad_images repairs it


def check_readings(path: str, size: tuple[int, int]) -> None:
    """Compares the readings of training, evaluation, prediction and the cache with each other and with the scan."""
    image = read_image(path)
    if image.shape != (*size, 3):
        raise Failure(f"{image.shape}, but the scan found {size}")
    if size[0] * size[1] > LARGE:
        return
    if not np.array_equal(read_image(path, whole=True), image):
        raise Failure("the prediction reads other pixels")
    for reduction in (1, 2, 8):
        expected = read_reduced(path, reduction)
        if expected.shape[:2] != tuple(-(-side // reduction) for side in size):
            raise Failure(f"{expected.shape} of {size} at reduction {reduction}")
        if not all(np.array_equal(ImageCache(1e9, 0.0).read(path, reduction), expected) for _ in range(2)):
            raise Failure("the cache returns other pixels")


def check_pixels(path: str) -> None:
    """Compares an intact image with the reading of Pillow."""
    if not any(f"_{mode}." in path for mode in EXACT):
        return
    with Image.open(path) as file:
        expected = np.asarray(ImageOps.exif_transpose(file).convert("RGB"))[..., ::-1].astype(int)
    difference = np.abs(read_image(path) - expected)
    if difference.max() > (40 if path.endswith((".jpg", ".webp")) else 0) or difference.mean() > 4:
        raise Failure(f"pixels differ from Pillow's by up to {difference.max()}")


FUZZERS = {"image": Fuzzer("image", make, run)}
