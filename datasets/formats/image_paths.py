"""Paths of images: found by the names that annotations have for them."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from urllib.parse import unquote

from datasets.errors import DataError
from datasets.formats.file import UNREAD_SUFFIXES, Folder, of_suffix, stem_of
from datasets.formats.splits import SPLIT_NAMES, split_in, split_of
from utils.files import files_under
from utils.images import IMAGE_SUFFIXES, images_under

SUFFIXES = (*IMAGE_SUFFIXES, *UNREAD_SUFFIXES)
DIGITS = "0123456789"  # of train2017
MAX_CUT = 50  # folders of another computer before the path of a file
IMAGE_FOLDERS = ("jpegimages", "images", "image", "imgs", "img", "photos")
_UPLOAD = re.compile(r"^[0-9a-f]{8}-")  # Label Studio writes it before the names of uploaded files


class ImageFinder:
    """Finds the images of an annotation file, for which it has the names `names`, in `image_root` or near the file.

    annotations/instances_train2017.json has its images next to it, in images/, ../train2017 or ../images/train2017, or in
    another folder of its split, such as ../training.
    """

    def __init__(self, source: str, names: Iterable[str], image_root: str | None) -> None:
        self.folder = os.path.dirname(source)
        words = re.split(r"[_.\s-]+", os.path.splitext(os.path.basename(source))[0])
        self._words = {part for word in words for part in (word, word.rstrip(DIGITS))}
        self._splits = {SPLIT_NAMES[word.lower()] for word in self._words if word.lower() in SPLIT_NAMES}
        groups = [["", "images", *self._named(""), *self._named(".."), "../images", ".."]]
        if image_root:
            root = os.path.abspath(image_root)
            groups.insert(0, [root, os.path.join(root, "images"), *self._named(root)])
        self._groups = [[root for root in group if os.path.isdir(self._join(root) or ".")] for group in groups]
        self._default = os.path.abspath(image_root) if image_root else ""
        self._names = set(names)
        self._several: dict[str, list[str]] = {}  # name -> images that have it

    def _named(self, top: str) -> list[str]:
        """Returns the folders in `top`, and in its folder images, that have a name or the split of the annotation file."""
        found = []
        for place in (top, os.path.join(top, "images")):
            path = self._join(place) or "."
            names = sorted(os.listdir(path)) if os.path.isdir(path) and os.access(path, os.R_OK) else []
            for name in names:
                if name in self._words or SPLIT_NAMES.get(name.lower().rstrip(DIGITS)) in self._splits:
                    found.append(os.path.join(place, name))
        return found

    def find(self, name: str) -> str:
        """Returns the path of an image relative to the folder of the annotation file.

        A name of another computer, or of a server, counts by its last part, where only one image has it."""
        written, name = name, name.replace("\\", "/")
        for own in dict.fromkeys((written, name)):  # on Linux a name may hold a backslash
            for root in (root for group in self._groups for root in group):
                if os.path.exists(self._join(root, own)):
                    return os.path.join(root, own)
        for images in self._by_base:
            for short in short_names(name):
                there = list(images.get(short, {}).values())
                if len(there) == 1 and self._wanted[short] == 1:  # two images never become one
                    self._several.pop(written, None)
                    return there[0]
                if len(there) > 1:
                    self._several.setdefault(written, there)
        return os.path.join(self._default, name)

    def doubt(self, name: str) -> str:
        """Returns what is wrong with a name that `find` did not find because several images have it, otherwise ""."""
        there = self._several.get(name, ())
        if not there:
            return ""
        shown = " or ".join(os.path.normpath(self._join(path)) for path in there[:5])
        return f"{name} may be {shown}: write its path, or image_root=FOLDER names the folder of the images"

    def _join(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    @cached_property
    def _wanted(self) -> Counter[str]:
        return Counter(short for name in self._names for short in short_names(name))

    @cached_property
    def _by_base(self) -> list[dict[str, dict[str, str]]]:
        """{last part: {real path: path}} of all images, in `image_root` and near the file.

        The folder above the file is not searched as a whole: it may be the home of the user."""
        found = []
        for group in self._groups:
            index: dict[str, dict[str, str]] = {}
            for root in group:
                real = os.path.realpath(self._join(root))
                for name in images_under(real) if root != ".." else ():
                    base = os.path.basename(name)
                    for short in (base, os.path.splitext(base)[0]):  # some tables have names without suffix
                        index.setdefault(short, {}).setdefault(f"{real}/{name}", os.path.join(root, name))
            found.append(index)
        return found


def short_names(name: str) -> dict[str, None]:
    """Returns the last part of a path or URL, as written and without what Label Studio puts before it.

    In a URL, what follows `?` or `#` is ignored, except the path after `?d=` of Label Studio."""
    name = name.replace("\\", "/")
    name = name.partition("?d=")[2] or name
    base = unquote(re.split("[?#]", name)[0] if "://" in name else name).rpartition("/")[2]
    return dict.fromkeys([base, _UPLOAD.sub("", base)])


class Stems:
    """Finds the file that belongs to another one: the same name without suffix, in the most similar place."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = defaultdict(list)
        for file in files:
            self._files[stem_of(file)].append(file)

    def nearest(self, path: str, name: str = "") -> str | None:
        """Returns the first file of `all_nearest`, None if there is none."""
        return next(iter(self.all_nearest(path, name)), None)

    def all_nearest(self, path: str, name: str = "") -> list[str]:
        """Returns the files with the stem of `path` that share most folder names with it, or else the files `name`.

        `name`, a file name that belongs to `path`, also decides between suffixes. A file in the folder of another split (train,
        val, test) is another file of the same name. Several files fit equally well."""
        split = split_in(path)
        candidates = self._files.get(stem_of(path)) or [file for file in self._files.get(stem_of(name), ()) if name]
        candidates = [file for file in candidates if None in (split, own := split_in(file)) or own == split]

        def fits(file: str) -> tuple:
            *places, own = file.lower().split("/")
            image_folder = any(place in IMAGE_FOLDERS for place in places)
            return _shared(path, file), own == name.lower(), image_folder, -len(places)

        fitting = list(map(fits, candidates))
        best = max(fitting, default=None)
        return [file for file, fit in zip(candidates, fitting, strict=True) if fit == best]


def images_of_labels(folder: Folder, suffix: str, labels: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    """Returns (folder of the images, images relative to it) of label files that label one image each: in `image_root`, or in
    the folder, or next to a folder that holds nothing but label files, such as Annotations or Annotations/train.

    `labels`: the path of each label file, and the name of its image in it."""
    images, some = folder.of_suffix(SUFFIXES), labels[:: max(len(labels) // 50, 1)]
    if folder.image_root is not None:
        return folder.image_root, of_suffix(files_under(folder.image_root), SUFFIXES)
    index = Stems(images)
    if any(index.nearest(os.path.relpath(label, folder.path), os.path.basename(name)) for label, name in some):
        return str(folder.path), images
    top = Path(os.path.abspath(folder.path))
    only_labels = all("/" not in file or split_in(file) for file in folder.of_suffix(suffix))
    alone = split_of(top.name) or len(os.listdir(top.parent)) == 1  # otherwise other data sets lie two folders above
    for place in (top.parent, top.parent.parent)[: 2 if alone else 1] if only_labels else ():
        inside = [entry for entry in sorted(place.iterdir()) if entry.is_dir() and entry not in (top, top.parent)]
        for near in [place / entry.name / top.name for entry in inside] + inside + [place]:
            if any(_has_image(near, Path(label).stem, name) for label, name in some):
                names = os.listdir(near) if near == place else files_under(near)
                return str(near), of_suffix(sorted(names), SUFFIXES)
    return str(folder.path), images


def _has_image(folder: Path, stem: str, name: str) -> bool:
    names = [name, *(stem + suffix for suffix in (".jpg", ".png", ".jpeg", ".JPG", ".PNG", ".JPEG", ".bmp"))]
    return any(own and os.path.isfile(folder / own) for own in names)


def doubts(label: object, root: str, images: Sequence[str]) -> list[str]:
    """Returns a problem if several `images` in `root` fit a label file equally well; none of them is then the right one."""
    if len(images) < 2:
        return []
    if len(set(map(os.path.dirname, images))) > 1:
        fix = "give the folders of images and label files the same names, such as images/a and labels/a"
    else:
        fix = "write the name of its image with suffix into it, or take the others out"
    shown = " or ".join(os.path.join(root, image) for image in images[:5])
    return [f"{label}: its image may be {shown}: {fix}"]


def most_alike(path: str, others: Sequence[str]) -> list[str]:
    """Returns the paths in `others` that share the most folder names with `path`."""
    shared = [_shared(path, other) for other in others]
    most = max(shared, default=0)
    return [other for other, count in zip(others, shared, strict=True) if count == most]


def _shared(path: str, other: str) -> int:
    """Returns the number of folder names that two paths share, ignoring case."""
    return len({*path.lower().split("/")[:-1]}.intersection(other.lower().split("/")[:-1]))


def locate(name: str, folders: Sequence[str], keep: int = 1) -> str:
    """Returns the path of the file `name` in the first of `folders` that has it, or else in the first one.

    The first folders of `name` may come from another computer or from an export: data/, C:\\pets\\. The last `keep` parts
    are never cut off."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    cuts = range(min(len(parts) - keep + 1, MAX_CUT))
    for rest in (name, *("/".join(parts[cut:]) for cut in cuts)):
        for folder in folders:
            place = os.path.join(folder, rest)
            if os.path.exists(place):
                return place
    return os.path.join(folders[0], name)


def locate_all(source: object, names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Returns `locate` of each name. Raises DataError if two different names would be one file."""
    found = {name: locate(name, folders) for name in names}
    owner = {place: name for name, place in found.items()}
    for name, place in found.items():
        if owner[place] != name:
            raise DataError(f"{source}: {name} and {owner[place]} are both {place}: correct the paths")
    return [found[name] for name in names]


def in_root(names: Sequence[str], image_root: str) -> list[str]:
    """Returns the names, with the paths of those that are in `image_root`."""
    places = [os.path.abspath(os.path.join(image_root, name)) for name in names]
    return [place if os.path.exists(place) else name for name, place in zip(names, places, strict=True)]
