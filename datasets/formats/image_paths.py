"""Paths of images and label files: found by the names that annotations have for them."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

from datasets.formats.file import UNREAD_SUFFIXES, Folder, composed, folded, of_suffix, stem_of
from datasets.formats.splits import SPLIT_NAMES, split_in, split_of
from utils.files import files_under, real_path
from utils.images import IMAGE_SUFFIXES, images_under

SUFFIXES = (*IMAGE_SUFFIXES, *UNREAD_SUFFIXES)
DIGITS = "0123456789"  # of train2017
MAX_CUT = 50  # folders of another computer before the path of a file
IMAGE_FOLDERS = ("jpegimages", "images", "image", "imgs", "img", "photos")
_GLUED = re.compile(rf"({'|'.join(map(re.escape, SUFFIXES))})(?=\w[^/\\]*[/\\])", re.IGNORECASE)  # a.jpgimages/b.jpg
_UPLOAD = re.compile(r"^[0-9a-f]{8}-")  # Label Studio writes it before the names of uploaded files


def meant(names: Iterable[str], there: Collection[str]) -> dict[str, str]:
    """Returns which of the names `there` each of `names` means: itself, else the only one that is equal when composed (macOS
    decomposes names), else the only one that differs in case. What is another name's own is not meant."""
    wanted, rest = dict.fromkeys(names), dict.fromkeys(there)
    found = {name: name for name in wanted if name in rest}
    for form in (composed, folded):
        if len(found) == len(wanted):
            break
        used = set(found.values())
        free = _by_form(form, (name for name in rest if name not in used))
        for key, same in _by_form(form, (name for name in wanted if name not in found)).items():
            if len(same) == 1 and len(free.get(key, ())) == 1:
                found[same[0]] = free[key][0]
    return found


def _by_form(form: Callable[[str], str], names: Iterable[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(form(name), []).append(name)
    return groups


def existing(path: str) -> str | None:
    """Returns the path of a file or folder as the disk spells it, see `meant`; None if there is none."""
    if os.path.exists(path):
        return path
    place, name = os.path.split(path)
    above = existing(place or ".") if name and place != path else None
    there = above and meant([name], _by_folded(above, changed(above)).get(folded(name), ())).get(name)
    return os.path.join(above if place else "", there) if above and there else None


def entries(folder: str) -> tuple[str, ...]:
    """Returns the names in a folder, () for a folder that cannot be listed. They are kept until the folder changes."""
    return _entries(folder, changed(folder))


def changed(folder: str) -> int:
    """Returns when the names in a folder changed, 0 if it cannot be asked."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=1000)
def _entries(folder: str, time: int) -> tuple[str, ...]:
    return tuple(sorted(os.listdir(folder or "."))) if time and os.access(folder or ".", os.R_OK) else ()


@lru_cache(maxsize=100)
def _by_folded(folder: str, time: int) -> dict[str, list[str]]:
    return _by_form(folded, _entries(folder, time))


class ImageFinder:
    """Finds the images of an annotation file or a list, which has the names `names` for them: in `image_root`, in `folders`,
    or near the file.

    annotations/instances_train2017.json has its images next to it, in images/, ../train2017 or ../images/train2017, or in
    another folder of its split, such as ../training.
    """

    def __init__(self, source: str, names: Iterable[str], image_root: str | None, folders: Sequence[str] = ()) -> None:
        self.folder = os.path.dirname(source)
        words = re.split(r"[_.\s-]+", os.path.splitext(os.path.basename(source))[0])
        self._words = {part for word in words for part in (word, word.rstrip(DIGITS))}
        self._splits = {SPLIT_NAMES[word.lower()] for word in self._words if word.lower() in SPLIT_NAMES}
        groups = [["", *folders, "images", *self._named(""), *self._named(".."), "../images", ".."]]
        if image_root:
            root = os.path.abspath(image_root)
            groups.insert(0, [root, os.path.join(root, "images"), *self._named(root)])
        self._groups = [[root for root in group if os.path.isdir(self._join(root) or ".")] for group in groups]
        self._default = os.path.abspath(image_root) if image_root else ""
        self._names = list(dict.fromkeys(names))
        self._found = {name: path for name in self._names if (path := self._as_written(name)) is not None}
        self.doubts: dict[str, str] = {}  # what is wrong with names that are not found because several images have them
        for group in self._groups:
            self._search(group)
        forms = {composed(name): path for name, path in self._found.items()}  # both forms of one name are one image
        self._found = {name: forms[composed(name)] for name in self._names if composed(name) in forms} | self._found

    def _named(self, top: str) -> list[str]:
        """Returns the folders in `top`, and in its folder images, that have a name or the split of the annotation file."""
        found = []
        for place in (top, os.path.join(top, "images")):
            for name in entries(self._join(place) or "."):
                if name in self._words or SPLIT_NAMES.get(name.lower().rstrip(DIGITS)) in self._splits:
                    found.append(os.path.join(place, name))
        return found

    def find(self, name: str) -> str:
        """Returns the path of an image relative to the folder of the annotation file."""
        return self._found.get(name) or os.path.join(self._default, name.replace("\\", "/"))

    def _join(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)

    def _as_written(self, name: str) -> str | None:
        for own in dict.fromkeys((name, name.replace("\\", "/"))):  # on Linux a name may hold a backslash
            for root in (root for group in self._groups for root in group):
                if os.path.exists(self._join(root, own)):
                    return os.path.join(root, own)
        return None

    def _search(self, group: Sequence[str]) -> None:
        """Looks for the names that were not found, which are of another computer or of a server, by their last parts.

        The image that has the most last parts of a name is meant, if there is one such image. Two names never become one image.
        The folder above the file is not searched as a whole: it may be the home of the user."""
        rest = [name for name in self._names if name and name not in self._found]
        if not rest:
            return
        used = {real_path(self._join(path)) for path in self._found.values()}
        images = self._by_base(group, used)
        wanted = Counter(short for name in self._names for short in short_names(name))
        bases = meant((short for name in rest for short in short_names(name)), images)
        taken: dict[str, str] = {}
        for name in rest:
            if glued := _GLUED.search(name):
                end = glued.end()
                self.doubts[name] = f"{name}: two paths without a line end between {name[:end]} and {name[end:]}"
                continue
            for short in (short for short in short_names(name) if short in bases):
                least = 1 if wanted[short] == 1 else 2
                there = _most_last_parts(name, images[bases[short]], least)
                if len(there) > 1:
                    shown = " or ".join(os.path.normpath(self._join(path)) for path in there[:5])
                    fix = "write its path, or image_root=FOLDER names the folder of the images"
                    self.doubts[name] = f"{name} may be {shown}: {fix}"
                elif there:
                    taken[name] = there[0]
                    break
        users = Counter(taken.values())
        for name, path in taken.items():
            if users[path] == 1:
                self._found[name] = path
                self.doubts.pop(name, None)
            else:
                self.doubts[name] = f"{name} and another name are both {self._join(path)}: correct the paths"

    def _by_base(self, group: Sequence[str], used: Collection[str]) -> dict[str, dict[str, str]]:
        """Returns {last part, with and without suffix: {real path: path}} of the images in folders that are not `used`."""
        index: dict[str, dict[str, str]] = {}
        for root in group:
            real = os.path.realpath(self._join(root))
            for name in images_under(real) if root != ".." else ():
                base = os.path.basename(name)
                if f"{real}/{name}" not in used:
                    for short in (base, os.path.splitext(base)[0]):  # some tables have names without suffix
                        index.setdefault(short, {}).setdefault(f"{real}/{name}", os.path.join(root, name))
        return index


def _most_last_parts(name: str, images: dict[str, str], least: int) -> list[str]:
    """Returns the paths of `images` (real path: path) that share the most last parts with `name`, `least` or more of them.

    A file in the folder of another split (train, val, test) is another file of the same name."""
    split = split_in(name.replace("\\", "/"))
    own = {real: path for real, path in images.items() if None in (split, other := split_in(path)) or other == split}
    parts = folded(name).replace("\\", "/").split("/")[::-1]
    shared = {own[real]: len(os.path.commonprefix([parts[1:], folded(real).split("/")[-2::-1]])) + 1 for real in own}
    most = max(shared.values(), default=0)
    return [path for path, count in shared.items() if count == most >= least]


def short_names(name: str) -> dict[str, None]:
    """Returns the last part of a path or URL, as written and without what Label Studio puts before it.

    In a URL, what follows `?` or `#` is ignored, except the path after `?d=` of Label Studio."""
    name = name.replace("\\", "/")
    name = name.partition("?d=")[2] or name
    base = unquote(re.split("[?#]", name)[0] if "://" in name else name).rpartition("/")[2]
    return dict.fromkeys([base, _UPLOAD.sub("", base)])


class Stems:
    """Finds the file that belongs to another one: the same name without suffix, in the most similar place."""

    def __init__(self, files: Iterable[str], askers: Iterable[str], names: Iterable[str] = ()) -> None:
        """`askers`: all paths that files are asked for. `names`: the file names that belong to them, if any."""
        self._files = defaultdict(list)
        for file in files:
            self._files[stem_of(file)].append(file)
        self._meant = meant(map(stem_of, askers), self._files)
        self._named = meant((stem_of(name) for name in names if name), self._files)

    def nearest(self, path: str, name: str = "") -> str | None:
        """Returns the first file of `all_nearest`, None if there is none."""
        return next(iter(self.all_nearest(path, name)), None)

    def all_nearest(self, path: str, name: str = "") -> list[str]:
        """Returns the files with the stem of `path` that share most folder names with it, or else the files `name`.

        `name`, a file name that belongs to `path`, also decides between suffixes. A file in the folder of another split (train,
        val, test) is another file of the same name. Several files fit equally well."""
        split = split_in(path)
        stem = self._meant.get(stem_of(path)) or self._named.get(stem_of(name), "")
        candidates = self._files.get(stem, [])
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
    stems = {stem_of(path) for label, name in some for path in (label, name) if path}
    if meant(stems, set(map(stem_of, images))):
        return str(folder.path), images
    top = Path(os.path.abspath(folder.path))
    only_labels = all("/" not in file or split_in(file) for file in folder.of_suffix(suffix))
    alone = split_of(top.name) or len(os.listdir(top.parent)) == 1  # otherwise other data sets lie two folders above
    for place in (top.parent, top.parent.parent)[: 2 if alone else 1] if only_labels else ():
        inside = [entry for entry in sorted(place.iterdir()) if entry.is_dir() and entry not in (top, top.parent)]
        for near in [place / entry.name / top.name for entry in inside] + inside + [place]:
            if meant(stems, set(map(stem_of, of_suffix(entries(str(near)), SUFFIXES)))):
                names = entries(str(near)) if near == place else files_under(near)
                return str(near), of_suffix(names, SUFFIXES)
    return str(folder.path), images


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
    places = [
        os.path.join(folder, rest) for rest in (name, *("/".join(parts[cut:]) for cut in cuts)) for folder in folders
    ]
    return next(filter(None, map(existing, places)), places[0])
