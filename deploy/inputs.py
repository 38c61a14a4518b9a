"""Sources of images: files, folders, patterns, addresses of images, videos and cameras."""

import glob
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import numpy as np

from deploy.file_kinds import IMAGE, VIDEO, VIDEO_SUFFIXES, kind_of, kinds_of
from utils.files import files_under
from utils.images import IMAGE_SUFFIXES, ImageError
from utils.remote import without_keys
from utils.remote_cache import local_source
from utils.text import brief, first_line

TIMEOUT = 20.0  # seconds without an answer after which a download ends
SECONDS = 60.0  # of a whole download
MAX_BYTES = 64 << 20  # of a downloaded image
BLOCK = 1 << 16  # bytes that are read at a time
HEADERS = {"User-Agent": "Thaw", "Accept": "image/*,*/*"}  # some servers refuse programs without a name
NO_IMAGE = ("text/", "video/", "audio/", "multipart/")  # beginnings of types of contents that are no image
KEPT = "%/:=&?~#+!$,;'@()*[]"  # characters of an address that are not escaped


def is_source(word: str) -> bool:
    """Whether a word on the command line is the path or the address of images."""
    return "://" in word or word.isdecimal() or os.path.exists(word) or bool(matching(word))


def matching(pattern: str) -> list[str]:
    """Returns the sorted paths that match a glob pattern. A folder that exists is no pattern, as in "photos [1]/*.png"."""
    folder, name = os.path.split(pattern)
    if os.path.isdir(folder):
        pattern = os.path.join(glob.escape(folder), name)
    return sorted(glob.glob(pattern, recursive=True))


def is_live(source: str) -> bool:
    """Whether the source is a camera number or the address of a stream, which do not end by themselves."""
    if "://" in source:
        return not is_image_address(source)
    return source.isdecimal() and not os.path.exists(source)


def is_stream(source: str) -> bool:
    """Whether the source is a sequence of frames: a live source or a video file."""
    return is_live(source) or (not os.path.isdir(source) and kind_of(source) == VIDEO)


def is_web_address(source: str) -> bool:
    """Whether the source is an address of a web server."""
    return source.lower().startswith(("http://", "https://"))


def is_image_address(source: str) -> bool:
    """Whether the source is the address of an image on a web server.

    An address whose path has no suffix is one if the server answers with an image.
    """
    if not is_web_address(source):
        return False
    suffix = path_of(source).suffix.lower()
    return suffix in IMAGE_SUFFIXES or (not suffix and _content_type(source).startswith("image/"))


@lru_cache(64)
def _content_type(address: str) -> str:
    """Returns the type of the contents that a server announces, "" if it does not answer."""
    try:
        with _open(address) as response:
            return response.headers.get("Content-Type", "").lower()
    except (OSError, http.client.HTTPException, ValueError):
        return ""


def _open(address: str):
    """Opens an address. Raises OSError, HTTPException or ValueError."""
    opener = urllib.request.build_opener()  # unlike urlopen, it reads the proxies from the environment at every call
    return opener.open(urllib.request.Request(quote(address, KEPT), headers=HEADERS), timeout=TIMEOUT)


def download(address: str) -> bytes:
    """Returns the file at the address of an image. Raises ImageError with the reason and the fix."""
    shown, end = brief(without_keys(address)), time.monotonic() + SECONDS
    try:
        with _open(address) as response:
            kind, size = response.headers.get("Content-Type", ""), int(response.headers.get("Content-Length") or 0)
            if kind.lower().startswith(NO_IMAGE):
                raise ImageError(f"{shown}: the server answers with {brief(kind)}: give the address of an image")
            data = bytearray()
            while size <= MAX_BYTES and len(data) <= MAX_BYTES and (block := response.read1(BLOCK)):
                data += block
                if time.monotonic() > end:
                    raise TimeoutError(f"{len(data):,} bytes in {SECONDS:g} seconds")
    except ImageError:
        raise
    except urllib.error.HTTPError as error:
        reason = str(error.reason).partition("\n")[0]
        why = f"the server answers {error.code} {brief(reason)}"
        raise ImageError(f"{shown}: {why}: correct the address, or download the image and give its file") from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: no address, no number in a header
        why = without_keys(first_line(error))
        raise ImageError(
            f"{shown}: cannot be downloaded ({why}): correct the address, or download the image and give its file"
        ) from error
    if size > MAX_BYTES or len(data) > MAX_BYTES:
        raise ImageError(f"{shown}: more than {MAX_BYTES >> 20} MiB: download the image and give its file")
    if len(data) < size:
        raise ImageError(f"{shown}: the connection was cut after {len(data):,} of {size:,} bytes: try again")
    return bytes(data)


def path_of(address: str) -> PurePosixPath:
    """Returns the path in an address, empty if the address cannot be divided into its parts."""
    try:
        return PurePosixPath(urlsplit(address).path)
    except ValueError:  # such as an IPv6 address without its end
        return PurePosixPath()


def name_of(address: str) -> str:
    """Returns a file name for the image at an address: the last part of its path."""
    name = PurePosixPath(unquote(str(path_of(address))).replace("\\", "/")).name
    name = "".join("_" if character in ':*?"<>|' or character < " " else character for character in name)
    return name if name.strip(". ") else "image"


def kinds_in(source: str) -> dict[str, str]:
    """Returns the kinds of an image, or of the files in a folder or of a pattern, sorted; see `deploy.file_kinds.kinds_of`."""
    if os.path.isdir(source):
        return kinds_of(os.path.join(source, name) for name in files_under(source))
    if os.path.isfile(source):
        return {source: IMAGE}
    return kinds_of(path for path in matching(source) if os.path.isfile(path))


def listed(images: Any) -> list:
    """Returns the images of an argument of Detector as a list of paths, addresses, arrays and PIL images.

    A folder or a pattern stands for all its images. Raises ImageError for one without images, ValueError for a video.
    """
    if isinstance(images, str | os.PathLike | np.ndarray) or is_pillow(images):
        several = isinstance(images, np.ndarray) and images.ndim == 4
        images = list(images) if several else [images]
    if not isinstance(images, Iterable):
        raise TypeError(f"give an image, a path, or a list of them, not {type(images).__name__}")
    found = []
    for image in images:
        found += _files_of(os.fspath(image)) if isinstance(image, str | os.PathLike) else [image]
    return found


def _files_of(source: str) -> list[str]:
    """Returns the paths of the images of a path, a pattern or an address."""
    source = local_source(source)
    shown = brief(without_keys(source))
    suffix = path_of(source).suffix.lower() if "://" in source else ""
    if is_web_address(source) and suffix not in VIDEO_SUFFIXES:
        return [source]
    if suffix in IMAGE_SUFFIXES:
        raise ImageError(f"{shown}: only http:// and https://: download the image and give its file")
    if is_stream(source):
        raise ValueError(f"{shown} is a video or a camera: write `for result in detector.stream({shown!r})`")
    kinds = kinds_in(source)
    paths = [path for path, kind in kinds.items() if kind == IMAGE]
    if others := [path for path, kind in kinds.items() if kind != IMAGE]:
        print(f"note: {shown}: {len(others)} videos or files of other formats are not read, such as {others[0]}")
    if not paths and (os.path.isdir(source) or glob.has_magic(source)):
        known = " ".join(IMAGE_SUFFIXES)
        raise ImageError(f"{shown}: no images there: give another folder or pattern (known suffixes: {known})")
    return paths or [source]


def is_pillow(image: object) -> bool:
    """Whether this is an image of Pillow, which is not imported here."""
    return all(hasattr(image, name) for name in ("__array_interface__", "mode", "convert"))


def of_pillow(image: Any) -> np.ndarray:
    """Returns an image of Pillow as uint8 [H, W, 3] BGR, without transparency. Raises TypeError for more than 8 bits."""
    if image.mode.startswith(("I", "F")):
        raise TypeError(f"a Pillow image of mode {image.mode} has no range from 0 to 255: give the path of its file")
    return np.ascontiguousarray(np.asarray(image.convert("RGB"))[..., ::-1])


def require_image(image: object) -> None:
    """Raises TypeError unless the image is an array uint8 [H, W, 3]."""
    fix = "give a path, or convert it"
    if not isinstance(image, np.ndarray):
        what = type(image).__name__
    elif image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3:
        return
    else:
        what = f"{image.dtype} {list(image.shape)}"
        if image.dtype != np.uint8:
            fix = "scale it to 0-255 and write image.astype(np.uint8)"
        elif image.ndim == 2:
            fix = "write cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)"
        elif image.ndim == 3 and image.shape[2] == 4:
            fix = "write image[..., :3]"
    raise TypeError(f"an image must be a path or a uint8 array [H, W, 3] in BGR order, not {what}: {fix}")
