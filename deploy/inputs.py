"""Sources of images: files, folders, patterns, addresses of images, videos and cameras."""

import glob
import http.client
import os
import urllib.request
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import numpy as np

from datasets.formats.file import UNREAD_SUFFIXES
from utils.files import files_under
from utils.images import IMAGE_SUFFIXES, ImageError
from utils.remote import without_keys
from utils.remote_cache import local_source
from utils.text import brief, first_line

TIMEOUT = 20.0  # seconds without an answer after which a download ends
MAX_BYTES = 64 << 20  # of a downloaded image
HEADERS = {"User-Agent": "Thaw", "Accept": "image/*,*/*"}  # some servers refuse programs without a name
KEPT = "%/:=&?~#+!$,;'@()*[]"  # characters of an address that are not escaped
_VIDEOS = "mp4 m4v mov 3gp avi mkv webm mpg mpeg ts mts m2ts wmv flv ogv"
VIDEO_SUFFIXES = tuple(f".{name}" for name in _VIDEOS.split())
SUFFIXES = (tuple(IMAGE_SUFFIXES), VIDEO_SUFFIXES, tuple(UNREAD_SUFFIXES))  # of the fields of Files
WEB_ERRORS = (OSError, http.client.HTTPException, ValueError)  # ValueError: no address


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
    return is_live(source) or (not os.path.isdir(source) and source.lower().endswith(VIDEO_SUFFIXES))


def is_web_address(source: str) -> bool:
    """Whether the source is an address of a web server."""
    return source.lower().startswith(("http://", "https://"))


def is_image_address(source: str) -> bool:
    """Whether the source is the address of an image on a web server."""
    return is_web_address(source) and path_of(source).suffix.lower() in IMAGE_SUFFIXES


def download(address: str) -> bytes:
    """Returns the file at the address of an image. Raises ImageError with the reason and the fix."""
    shown = brief(without_keys(address))
    try:
        request = urllib.request.Request(quote(address, KEPT), headers=HEADERS)
        # unlike urlopen, it reads the proxies from the environment at every call
        opener = urllib.request.build_opener()
        with opener.open(request, timeout=TIMEOUT) as response:
            data = response.read(MAX_BYTES + 1)
    except WEB_ERRORS as error:
        fix = "correct the address, or download the image and give its file"
        why = f"cannot be downloaded ({without_keys(first_line(error))}): {fix}"
        raise ImageError(f"{shown}: {why}") from error
    if len(data) > MAX_BYTES:
        raise ImageError(f"{shown}: more than {MAX_BYTES >> 20} MiB: download the image and give its file")
    return data


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


class Files(NamedTuple):
    """Sorted paths of the files of a source, by their suffixes."""

    images: list[str]
    videos: list[str]
    unread: list[str]  # images in formats that are not read


def files_of(source: str) -> Files:
    """Returns the files of a folder or of a pattern that are images or videos, or the source itself if it is a file."""
    if os.path.isfile(source):
        return Files([source], [], [])
    paths = [path for path in matching(source) if not os.path.isdir(path)]
    if os.path.isdir(source):
        paths = [os.path.join(source, name) for name in files_under(source)]
    images, videos, unread = ([path for path in paths if path.lower().endswith(some)] for some in SUFFIXES)
    return Files(images, videos, unread)


def listed(images: Any) -> list:
    """Returns the images of an argument of Detector as a list of paths, addresses, arrays and PIL images.

    A folder or a pattern stands for all its images. Raises ImageError for one without images, ValueError for a video.
    """
    is_array = isinstance(images, np.ndarray) and images.ndim != 4
    if is_array or isinstance(images, str | os.PathLike) or is_pillow(images):
        images = [images]
    if not isinstance(images, Iterable):
        raise TypeError(f"give an image, a path, or a list of them, not {type(images).__name__}")
    found: list = []
    for image in images:
        if isinstance(image, str | os.PathLike):
            found += _files_of(os.fspath(image))
        else:
            found.append(image)
    return found


def _files_of(source: str) -> list[str]:
    """Returns the paths of the images of a path, a pattern or an address."""
    source = local_source(source)
    shown = brief(without_keys(source))
    if is_web_address(source) and path_of(source).suffix.lower() not in VIDEO_SUFFIXES:
        return [source]
    if is_stream(source):
        raise ValueError(f"{shown} is a video or a camera: write `for result in detector.stream({shown!r})`")
    paths = files_of(source).images
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
    if not isinstance(image, np.ndarray):
        what, fix = type(image).__name__, "give a path, or convert it"
    elif image.dtype != np.uint8:
        what, fix = f"{image.dtype} {list(image.shape)}", "scale it to 0-255 and write image.astype(np.uint8)"
    elif image.ndim != 3 or image.shape[2] != 3:
        what = f"uint8 {list(image.shape)}"
        fix = "write cv2.cvtColor(image, cv2.COLOR_GRAY2BGR) for gray, image[..., :3] for transparency"
    else:
        return
    raise TypeError(f"an image must be a path or a uint8 array [H, W, 3] in BGR order, not {what}: {fix}")
