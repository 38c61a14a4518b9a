"""Tells from the first bytes of a file, and from its suffix where these are unknown, whether it is an image or a video."""

import os
from collections.abc import Iterable

from datasets.formats.file import UNREAD_SUFFIXES
from utils.images import IMAGE_SUFFIXES

IMAGE, VIDEO, OTHER = "image", "video", ""
UNREAD = "unread"  # an image in a format that is not read
MISNAMED = "misnamed"  # an image or a video with the suffix of other files

VIDEO_SUFFIXES = (
    *(".mp4", ".m4v", ".mov", ".3gp", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts", ".wmv", ".flv"),
    ".ogv",
)
TYPESCRIPT = ".ts"  # also the suffix of source code
HEAD = 512  # bytes
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"\0\0\0\x0cjP  ")
_TIFF = (b"II*\0", b"MM\0*")  # the raw files of many cameras are TIFF files inside
_VIDEOS = (b"\x1aE\xdf\xa3", b"FLV\x01", b"\0\0\x01\xba", b"\0\0\x01\xb3", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11")
_OLD_MOVS = (b"moov", b"mdat", b"wide")
_STILLS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1", b"avif", b"avis", b"crx ")  # of ISO files
_SOUNDS = (b"M4A ", b"M4B ")
_PACKETS = ((0, 188), (4, 192))  # of MPEG transport streams: place of the first one, distance of the next


def kind_of(path: str) -> str:
    """Returns IMAGE, VIDEO, UNREAD or OTHER of a file. The contents decide."""
    suffix, head = os.path.splitext(path)[1].lower(), _head(path)
    kind = _kind_of_head(head, suffix)
    if kind or (head and suffix == TYPESCRIPT):
        return kind
    return kind_of_suffix(suffix)


def kinds_of(paths: Iterable[str]) -> dict[str, str]:
    """Returns the kinds of the files of several that look like images or videos: IMAGE, VIDEO, UNREAD or MISNAMED."""
    kinds = {}
    for path in paths:
        kind, suffix = kind_of(path), os.path.splitext(path)[1].lower()
        if kind in (IMAGE, VIDEO) and suffix and not kind_of_suffix(suffix):
            kind = MISNAMED
        if kind:
            kinds[path] = kind
    return kinds


def kind_of_suffix(suffix: str) -> str:
    """Returns the kind of files with a suffix such as ".mp4"."""
    kinds = ((IMAGE_SUFFIXES, IMAGE), (VIDEO_SUFFIXES, VIDEO), (UNREAD_SUFFIXES, UNREAD))
    return next((kind for suffixes, kind in kinds if suffix in suffixes), OTHER)


def _kind_of_head(head: bytes, suffix: str) -> str:
    """Returns the kind of a file with these first bytes, OTHER if they are unknown."""
    riff = head[8:12] if head.startswith(b"RIFF") else b""
    brand = head[8:12] if head[4:8] == b"ftyp" else b""
    if head.startswith(_TIFF):
        return UNREAD if suffix in UNREAD_SUFFIXES else IMAGE
    if head.startswith(_IMAGES) or riff == b"WEBP":
        return IMAGE
    if brand in _STILLS:
        return UNREAD
    if brand and brand not in _SOUNDS:
        return VIDEO
    if riff == b"AVI " or head.startswith(_VIDEOS) or head[4:8] in _OLD_MOVS:
        return VIDEO
    if any(head[first : first + step + 1 : step] == b"GG" for first, step in _PACKETS):
        return VIDEO
    return OTHER


def _head(path: str) -> bytes:
    """Returns the first bytes of a file, b"" if it cannot be opened: its reader reports the error."""
    try:
        with open(path, "rb") as file:
            return file.read(HEAD)
    except OSError:
        return b""
