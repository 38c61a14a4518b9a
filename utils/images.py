"""Reading images, the same way for training, evaluation and prediction; the letterbox and its inverse.

Every image becomes uint8 BGR: gray is repeated in three channels, 16 bits become 8 (see utils/value_range.py), transparency
is ignored, palettes are resolved, and the EXIF orientation is applied.
"""

import io
import itertools
import os
import stat
import struct
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import cv2
import numpy as np
from PIL import Image

from utils import jpeg
from utils.files import IMAGE_SUFFIXES, files_under, left_instead
from utils.value_range import FULL, NO_LIMITS, ValueRange, limits_of, to_8_bits

A = TypeVar("A")
B = TypeVar("B")

FILL = 114  # gray of the padding; the released YOLOX and YOLOv9 weights were trained with it
LETTERBOXES = ("corner", "center", "stretch")  # see `fit`
AREA_BELOW = 0.5  # images that shrink to less than this are averaged: bilinear interpolation would skip pixels
READERS = 4  # threads that decode images while the network computes
MAX_PIXELS = int(os.environ.get("OPENCV_IO_MAX_IMAGE_PIXELS") or 1 << 28)  # larger images are not decoded
FORMATS = ("JPEG", "PNG", "BMP", "DIB", "WEBP", "TIFF", "GIF", "JPEG2000", "PPM", "MPO")  # that Pillow may open

set_log_level = cv2.setLogLevel if hasattr(cv2, "setLogLevel") else cv2.utils.logging.setLogLevel  # OpenCV 4 and 5
set_log_level(0)  # it would print a page about what an ImageError has in a line
Image.MAX_IMAGE_PIXELS = None  # MAX_PIXELS counts
warnings.filterwarnings("ignore", module=r"PIL\.")  # about EXIF data that are damaged, and do not count then
_LARGE = 1 << 25  # pixels of images from which on the size of the file must fit
_PIXELS_PER_BYTE = 1 << 14  # of a large image at most; the best compression of a gray PNG reaches 8,256

_JPEG_EXIF_MARK = b"Exif\0\0"
_TIFF_MARKS = (b"II*\0", b"MM\0*")
_PNG_MARK = b"\x89PNG\r\n\x1a\n"
_FIX = "save it again as JPEG or PNG with 8 or 16 bits, or remove it"
_FLAGS = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2}  # reduction -> how OpenCV decodes a JPEG
_FLAGS |= {4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8}
TURNS = {  # EXIF orientation -> function that returns the image upright
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: np.rot90(image, -1),
    7: lambda image: image[::-1, ::-1].transpose(1, 0, 2),
    8: lambda image: np.rot90(image),
}


class ImageError(ValueError):
    """An image cannot be read; the message names the file and the fix."""


def read_image(path: str, whole: bool = False, value_range: ValueRange | None = None) -> np.ndarray:
    """Reads an image file -> uint8 [H, W, 3] BGR, upright. Any path that the system can open. Raises ImageError.

    What is missing of a JPEG that is cut off becomes gray; with `whole` such a file is an ImageError. `value_range`: the values
    of a 16-bit file that become 0 and 255; None: the upper eight bits are kept.
    """
    data = read_bytes(path)
    if whole:
        require_whole(data, path)
    return decode_image(data, path, value_range=value_range)


def decode_with_limits(data: bytes, path: str, value_range: ValueRange | None) -> tuple[np.ndarray, tuple[int, int]]:
    """Decodes the bytes of a whole image file, and returns the `limits_of` its values, too. Raises ImageError naming `path`."""
    require_whole(data, path)
    image = decode_deep(data, path)
    if (limits := limits_of(image)) != NO_LIMITS:
        image = decode_image(data, path, value_range=value_range)
    return image, limits


def require_whole(data: bytes, path: str) -> None:
    """Raises ImageError if these are the contents of a JPEG that is cut off."""
    if jpeg.is_cut_off(data):
        raise ImageError(f"{path}: the JPEG is cut off: fetch it again, or remove it")


def read_reduced(path: str, reduction: int, value_range: ValueRange | None = None) -> np.ndarray:
    """Reads an image smaller by the factor `reduction` (1, 2, 4, 8). A JPEG is decoded smaller, which is faster.

    The sides are divided and rounded up, so that coordinates are divided by exactly the reduction (up to a pixel for images
    that EXIF mirrors or rotates).
    """
    data = read_bytes(path)
    if data.startswith(jpeg.MARK):
        return decode_image(data, path, reduction)
    return shrink(decode_image(data, path, value_range=value_range), reduction)


def shrink(image: np.ndarray, reduction: int) -> np.ndarray:
    """Averages squares of `reduction` x `reduction` pixels; the last row and column of pixels are repeated to whole squares."""
    height, width = image.shape[:2]
    below, right = -height % reduction, -width % reduction
    if below or right:
        image = cv2.copyMakeBorder(image, 0, below, 0, right, cv2.BORDER_REPLICATE)
    sides = (width + right) // reduction, (height + below) // reduction
    return cv2.resize(image, sides, interpolation=cv2.INTER_AREA) if reduction > 1 else image


def decode_image(data: bytes, path: str, reduction: int = 1, value_range: ValueRange | None = None) -> np.ndarray:
    """Decodes the bytes of an image file -> uint8 [H, W, 3] BGR, upright. Raises ImageError naming `path`."""
    if value_range in (None, FULL) or data.startswith(jpeg.MARK):
        return _decode(data, path, _FLAGS[reduction])
    image = decode_deep(data, path)
    return to_8_bits(image, value_range) if image.dtype == np.uint16 else image


def decode_deep(data: bytes, path: str) -> np.ndarray:
    """Decodes as `decode_image` does, but a 16-bit file -> uint16 [H, W, 3]."""
    return _decode(data, path, cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH)


def _decode(data: bytes, path: str, flags: int) -> np.ndarray:
    """Decodes the bytes of an image file with these flags of OpenCV, upright."""
    check_header(data, path)
    if data.startswith(jpeg.MARK) and not data.endswith(jpeg.END):
        data += jpeg.END  # without it, versions of OpenCV differ in what they do with a file that is cut off
    tiff = data.startswith(_TIFF_MARKS)  # OpenCV ignores IMREAD_IGNORE_ORIENTATION for this format
    flags |= 0 if tiff else cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image: np.ndarray | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except (cv2.error, MemoryError):
        image = None
    if image is None:
        raise _not_decoded(data, path)
    image = image.view({"int8": np.uint8, "int16": np.uint16}.get(image.dtype.name, image.dtype))  # none is below 0
    orientation = 1 if tiff else read_orientation(data)
    return image if orientation == 1 else np.ascontiguousarray(TURNS[orientation](image))


def _not_decoded(data: bytes, path: str) -> ImageError:
    return ImageError(f"{path}: {left_instead(data[:100]) or f'cannot be decoded: {_FIX}'}")


def check_header(data: bytes, path: str) -> None:
    """Raises ImageError for a damaged header, pixels below 0, and more pixels than MAX_PIXELS or than the file can hold."""
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            sample_format = getattr(image, "tag_v2", {}).get(339, ())  # TIFF 6.0, section 19: 2 is signed, as of a CT
    except Exception as error:  # damaged headers raise many kinds of errors
        raise _not_decoded(data, path) from error
    if width * height > MAX_PIXELS:
        fix = "cut it into tiles, or set OPENCV_IO_MAX_IMAGE_PIXELS higher"
        raise ImageError(f"{path}: {width}x{height} are more than {MAX_PIXELS:,} pixels: {fix}")
    if width * height > max(_LARGE, len(data) * _PIXELS_PER_BYTE):
        raise ImageError(f"{path}: {len(data)} bytes cannot hold {width}x{height} pixels: fetch it again, or remove it")
    with suppress(cv2.error):  # decoding reports it
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if 2 in sample_format else None
        if pixels is not None and pixels.min() < 0:
            raise ImageError(f"{path}: pixels below 0: add an offset, and save 8 or 16 unsigned bits")
    place = len(_PNG_MARK)  # OpenCV takes the memory of a PNG's chunk before it reads it
    kind = b""
    while data.startswith(_PNG_MARK) and kind != b"IEND" and place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        if place + 8 + length > len(data):
            raise ImageError(f"{path}: the PNG is cut off: fetch it again, or remove it")
        place += 12 + length


def read_bytes(path: str) -> bytes:
    """Returns the contents of a file. Raises ImageError for files that are missing, empty, huge or cannot be opened."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise ImageError(f"{path}: is a folder, a device or a pipe, not a file: remove it")
        if status.st_size > 4 * MAX_PIXELS:
            raise ImageError(f"{path}: a file of {status.st_size:,} bytes is no image: remove it")
        data = Path(path).read_bytes()
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            raise ImageError(f"{path}: {error.strerror}: correct the file or its permissions") from error
        raise ImageError(f"{path}: there is no such file: correct the path") from error
    if not data:
        raise ImageError(f"{path}: the file is empty: fetch it again, or remove it")
    return data


def read_orientation(data: bytes) -> int:
    """Returns the EXIF orientation (1..8) of an image file with these contents; 1 is upright, and the default."""
    marks = [_JPEG_EXIF_MARK]
    if not data.startswith(jpeg.MARK):
        marks += [b"eXIf", b"EXIF"]  # PNG, WebP
    if not data.startswith(_TIFF_MARKS) and not any(mark in data for mark in marks):
        return 1
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            orientation = int(image.getexif().get(0x0112, 1))
            return orientation if orientation in TURNS else 1
    except Exception:  # damaged EXIF data raise many kinds of errors
        return 1


def frame_count(data: bytes) -> int:
    """Returns the number of images in a file, such as an animated GIF or a TIFF with pages. Only the first one is read."""
    if data.startswith(jpeg.MARK):  # the second image of a camera is a preview
        return 1
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            return getattr(image, "n_frames", 1)
    except Exception:  # damaged files raise many kinds of errors
        return 1


def images_under(folder: str) -> list[str]:
    """Returns the sorted paths of all images in a folder and its subfolders; see `utils.files.files_under`."""
    return [name for name in files_under(folder) if name.lower().endswith(IMAGE_SUFFIXES)]


class LetterboxTransform(NamedTuple):
    """Where an image is in the network's input: `x_in = x * scale_x + left`, `y_in = y * scale_y + top`."""

    width: float  # of the original image
    height: float
    scale_x: float
    scale_y: float
    left: float
    top: float


def fit(width: int, height: int, size: tuple[int, int], kind: str) -> tuple[LetterboxTransform, tuple[slice, slice]]:
    """Returns the letterbox transform of an image into `size` = (height, width), and the rows and columns that the image fills.

    `kind`: "corner" (padding right and below) and "center" (padding on both sides) keep the aspect ratio, and truncate sides to
    whole pixels, as in the evaluation of the released weights; "stretch" fills the input. Raises ValueError for another kind.
    """
    if kind not in LETTERBOXES:
        raise ValueError(f'letterbox "{kind}": must be one of {", ".join(LETTERBOXES)}')
    if kind == "stretch":
        stretched = LetterboxTransform(float(width), float(height), size[1] / width, size[0] / height, 0.0, 0.0)
        return stretched, (slice(0, size[0]), slice(0, size[1]))
    scale = min(size[0] / height, size[1] / width)
    new_width, new_height = (max(int(side * scale + 1e-6), 1) for side in (width, height))  # 720 * (416 / 720) < 416
    left = top = 0
    if kind == "center":
        left, top = (size[1] - new_width) // 2, (size[0] - new_height) // 2
    place = slice(top, top + new_height), slice(left, left + new_width)
    return LetterboxTransform(float(width), float(height), scale, scale, float(left), float(top)), place


def letterbox(
    image: np.ndarray, size: tuple[int, int], kind: str, fill: int = FILL
) -> tuple[np.ndarray, LetterboxTransform]:
    """Fits an image [h, w, 3] into `size` = (height, width) -> new image [H, W, 3] padded with `fill`, its transform.

    Images that shrink to less than a half are averaged. From a half on, interpolation is bilinear, or cubic for "stretch", as in
    the evaluation of the released weights. Evaluation, prediction and the program in docs/deploy.md do the same."""
    transform, place = fit(image.shape[1], image.shape[0], size, kind)
    output = np.full((*size, 3), fill, np.uint8)
    inside = output[place]
    method = cv2.INTER_CUBIC if kind == "stretch" else cv2.INTER_LINEAR
    if transform.scale_x * transform.scale_y < AREA_BELOW**2:
        method = cv2.INTER_AREA
    cv2.resize(image, inside.shape[1::-1], dst=inside, interpolation=method)
    return output, transform


def boxes_to_input(boxes: np.ndarray, transform: LetterboxTransform) -> np.ndarray:
    """Maps boxes [n, 4] xyxy of the original image into the network's input -> float32 [n, 4] (not clipped)."""
    scale = np.array([transform.scale_x, transform.scale_y] * 2)
    return (boxes * scale + np.array([transform.left, transform.top] * 2)).astype(np.float32)


def into_original(boxes, transform):
    """Maps boxes `[..., 4]` xyxy of the network's input back into the original image; the inverse of `boxes_to_input`.

    `transform [..., 6]` holds letterbox transforms and broadcasts to the boxes. Tensors or arrays.
    """
    return (boxes - transform[..., [4, 5, 4, 5]]) / transform[..., [2, 3, 2, 3]]


def prefetch(function: Callable[[A], B], items: Iterable[A], limit: int, threads: int = 1) -> Generator[B]:
    """Yields `function(item)` for all items in order, while threads compute up to `limit` results in advance.

    Only `function` runs in the threads; the items are read in the caller's thread. An exception of `function` is raised in
    the place of its result. When the generator ends or is closed, started calls finish and no thread is left.
    """
    waiting: deque = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > limit:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def batched(items: Iterable[A], size: int) -> Iterator[list[A]]:
    """Yields lists of `size` items; the last one may be shorter."""
    items = iter(items)
    while block := list(itertools.islice(items, size)):
        yield block
