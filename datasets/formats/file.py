"""Files and folders that may hold labels. What a file is, is decided by its beginning, see formats.py."""

import os
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from datasets.errors import DataError, one_line, open_file
from datasets.formats.typed_json import Contents, open_json
from datasets.store import Split
from utils.files import files_under
from utils.images import IMAGE_SUFFIXES

HEAD = 1 << 16  # bytes
DEEPEST = 3  # keys of a path in JSON
BLANKS = b"\xef\xbb\xbf \t\r\n"  # before JSON, with a byte order mark
CLASS_FILES = ("classes.txt", "_classes.txt", "labels.txt", "predefined_classes.txt")  # never lists of images
UNREAD_SUFFIXES = (".heic", ".heif", ".avif", ".jxl", ".svg", ".psd", ".tga", ".dng", ".cr2", ".nef", ".arw", ".raw")
_ENCODING = re.compile(rb"""encoding=["']([\w.-]+)["']""")
_BARE = re.compile(rb"&(?!(amp|lt|gt|quot|apos|#\d+|#x[\da-fA-F]+);)|<(?![\w/!?:])|<(?=\d)")  # characters of no markup
_TOKEN = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"(\s*:)?|[{}\[\]]')


class File:
    """A file by its path, with its beginning and its contents as JSON, which are read once."""

    def __init__(
        self, path: str | os.PathLike, image_root: str | None = None, has_image: bool | None = None, place: str = ""
    ) -> None:
        """`has_image`: whether an image has its name, None: not known. `place`: its path in the folder that is read, if any."""
        self.path = os.fspath(path)
        self.name = os.path.basename(self.path)
        self.suffix = os.path.splitext(self.name)[1].lower()
        self.image_root, self.has_image, self.place = image_root, has_image, place

    @cached_property
    def head(self) -> bytes:
        """The first 64 KB. Raises DataError for a device."""
        with open_file(self.path) as file:
            return file.read(HEAD)

    @cached_property
    def json(self) -> Contents:
        """The top level of a JSON file. Raises DataError naming file and line."""
        return open_json(self.path)

    @cached_property
    def keys(self) -> set[str]:
        """The paths of the keys in the beginning of a file with JSON or JSON Lines, see `key_paths`."""
        return key_paths(self.head)


def key_paths(head: bytes) -> set[str]:
    """Returns the paths of the keys in the beginning of a JSON text: {"images": [{"id": 1}]} has images and images.id.

    In a list at the top they begin with "[]". Each path is there a second time with "*" before its last key."""
    found: set[str] = set()
    opened: list[str | None] = []  # the key before each bracket that is open
    key = None
    is_list = head.lstrip(BLANKS)[:1] == b"["
    for token in _TOKEN.finditer(head):
        if token[2]:
            key = token[1].decode("utf-8", "replace")
            path = [*filter(None, opened), key]
            if len(path) <= DEEPEST:
                path = ["[]", *path] if is_list else path
                found |= {".".join(path), ".".join([*path[:-2], "*", path[-1]] if len(path) > 1 else path)}
        elif token[0] in (b"{", b"["):
            opened.append(key)
            key = None
        elif token[0] in (b"}", b"]"):
            opened[-1:] = []
    return found


class Folder:
    """A folder that may hold a data set, and where its images are: in it, or in `image_root`."""

    def __init__(self, path: Path, split: Split, image_root: str | None) -> None:
        self.path, self.split, self.image_root = path, split, image_root
        self.image_folder = os.path.abspath(image_root) if image_root else str(path)
        self.files = files_under(path)

    @cached_property
    def images(self) -> list[str]:
        """The images, relative to `image_folder`."""
        return images_of(files_under(self.image_folder) if self.image_root else self.files)

    @cached_property
    def stems(self) -> set[str]:
        """The names of the images without suffix, also of those in the folder if there is an `image_root`."""
        images = (*self.images, *(images_of(self.files) if self.image_root else ()))
        return {folded(stem_of(image)) for image in images}

    def has_image(self, stem: str) -> bool:
        """Returns whether an image has this name without suffix, in whatever case and form of its accents."""
        return folded(stem) in self.stems

    def of_suffix(self, suffixes: str | tuple[str, ...]) -> list[str]:
        """Returns the files with one of these suffixes."""
        return of_suffix(self.files, suffixes)

    def file(self, name: str) -> File:
        """Returns a file in the folder."""
        stem = stem_of(name)
        has_image = self.has_image(stem) or self.has_image(stem_of(stem))  # Supervisely writes a.png.json
        return File(self.path / name, self.image_root, has_image, name)


def text_lines(path: str | os.PathLike) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line) of a UTF-8 file, with or without a byte order mark. Raises DataError."""
    with open_file(path) as file:
        for number, raw in enumerate((row for line in file for row in line.rstrip(b"\r\n").splitlines() or [b""]), 1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                how = " (in Excel: Save As, CSV UTF-8)" if str(path).lower().endswith(".csv") else ""
                raise DataError(f"{path}:{number}: not UTF-8 text: save the file as UTF-8{how}") from error


def parse_xml(path: str | os.PathLike) -> ElementTree.Element:
    """Returns the root element of an XML file. Raises DataError."""
    with open_file(path) as file:
        data = file.read()
    try:
        try:
            return ElementTree.fromstring(data)
        except ValueError:  # an encoding of several bytes per character, such as gb2312, which the parser does not know
            declared = _ENCODING.search(data[:200])
            name = declared[1].decode().lower() if declared else "utf-8"
            return ElementTree.fromstring(data.decode("gb18030" if name in ("gb2312", "gbk") else name))
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        if bare := _BARE.search(data):
            line, code = data.count(b"\n", 0, bare.start()) + 1, {b"&": "&amp;", b"<": "&lt;"}[bare[0]]
            raise DataError(
                f"{path}: not valid XML (line {line}): write {code} for the character {bare[0].decode()}"
            ) from error
        raise DataError(f"{path}: not valid XML ({error}): export the file again, as UTF-8") from error


def stem_of(path: str) -> str:
    """Returns the file name in a path with "/", without its suffix."""
    return os.path.splitext(path.rpartition("/")[2])[0]


def composed(name: str) -> str:
    """Returns a name in the form in which a letter and its accent are one character, as NFC has it."""
    return unicodedata.normalize("NFC", name)


def folded(name: str) -> str:
    """Returns what names that differ in case only have in common."""
    return composed(composed(name).casefold())


def of_suffix(files: Iterable[str], suffixes: str | tuple[str, ...]) -> list[str]:
    """Returns the files that end with one of `suffixes`, in upper or lower case."""
    return [file for file in files if file.lower().endswith(suffixes)]


def images_of(files: Iterable[str]) -> list[str]:
    """Returns the images among `files` that can be read."""
    return of_suffix(files, IMAGE_SUFFIXES)


def unread_image_notes(source: object, files: Iterable[str]) -> list[str]:
    """Returns a note about images in formats that are not read, if there are any."""
    unread = of_suffix(files, UNREAD_SUFFIXES)
    if not unread:
        return []
    count = f"images in a format that is not read: {len(unread)}, for example {one_line(unread[0])}"
    return [f"{source}: {count}: convert them to JPEG or PNG"]
