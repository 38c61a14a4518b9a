"""YOLO data files, data.yaml or obj.data of darknet, with the images and classes of all splits -> Source."""

import codecs
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets.errors import DataError, check_path, one_line
from datasets.formats import image_paths, yolo
from datasets.formats.annotation_file import text_lines
from datasets.formats.class_lists import ClassList, ClassLists, require_agreement
from datasets.formats.file import File, Folder, images_of, unread_notes
from datasets.formats.source import Source
from datasets.formats.splits import SPLIT_NAMES, add_splits
from datasets.formats.typed_json import BOM
from datasets.formats.yolo_config import PARTS, darknet_config, yaml_config, yaml_names
from datasets.store import Split
from utils.files import files_under
from utils.text import clean_name

MAIN = "data.yaml"
_YOLO = re.compile(rb"^[\"']?(train|val|valid|validation|test)[\"']? *:", re.IGNORECASE | re.MULTILINE)
_NAMES = re.compile(rb"^[\"']?names[\"']? *:", re.IGNORECASE | re.MULTILINE)
_DARKNET = re.compile(rb"^\s*(train|valid|names) *=", re.IGNORECASE | re.MULTILINE)


def claims(file: File) -> bool:
    """Returns whether a file in the data set itself is a data file, yaml or darknet."""
    if "/" in file.place:
        return False
    head = _beginning(file)
    return bool(_DARKNET.search(head) if file.suffix == ".data" else file.name.lower() == MAIN or _YOLO.search(head))


def read(file: File, split: Split) -> Source:
    """Reads the first split of a data file, yaml or darknet, whose name is in `split` (empty: all splits). Raises DataError.

    `image_root` replaces the folder `path` of the file."""
    path, image_root = Path(file.path), file.image_root
    config = _with_images(path, _config(path))
    keys = [key for key in PARTS if config.get(key)]
    chosen = [key for key in split if key in keys][:1] if split else keys
    if not chosen:
        missing = " or ".join(name for name in split if name in PARTS) or "train"
        fix = ", or val=.2 splits off a fifth of the training images" if "val" in split else ""
        raise DataError(f"{path}: no entry {missing}: add it, with a folder or a list of images{fix}")
    images, labels, notes = [], [], []
    for key in chosen:
        entries = config[key] if isinstance(config[key], list) else [config[key]]
        for entry in entries:
            found, own, unread = _images(path, config.get("path"), key, entry, image_root)
            images += found
            labels += own
            notes += unread
    names = yaml_names(path, config)
    if config.get("names"):
        require_agreement(_names_of(path, config), yolo.label_folders(images, labels))
    found = yolo.read_images(str(path), images, ClassLists(names), notes, labels)
    add_splits(found, path, map(SPLIT_NAMES.get, keys), split)
    return found


def _data_files(folder: Folder, names: Iterable[str]) -> tuple[Path, list[Path]]:
    """Returns (the data file of a folder, others, which are not read). `names`: those that look like data files.

    It is data.yaml, or the only other yaml file, or else the only darknet file. Raises DataError if there are several."""
    found = sorted(names, key=lambda name: (name.lower().endswith(".data"), name.lower() != MAIN, name))
    first = found[0]
    rivals = [name for name in found if name.lower().endswith(".data") == first.lower().endswith(".data")]
    if first.lower() != MAIN and len(rivals) > 1:
        raise DataError(f"{folder.path}: several data files ({', '.join(rivals[:5])}): name one of them")
    yamls = [name for name in folder.of_suffix((".yaml", ".yml")) if "/" not in name and name not in found]
    found += [name for name in yamls if _NAMES.search(_beginning(folder.file(name)))]
    return folder.path / first, [folder.path / name for name in found[1:]]


def _beginning(file: File) -> bytes:
    """Returns the beginning of a text without a byte order mark, and of UTF-16 without zeros."""
    head = file.head
    for mark in (BOM, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        head = head.removeprefix(mark)
    return head.replace(b"\0", b"")


def read_folder(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads the data file of a folder; others are named. Raises DataError."""
    path, others = _data_files(folder, names)
    images, labels = _all_images(path, folder.image_root)
    source = read(File(path, folder.image_root), folder.split)
    source.notes += _unread_notes(path, images, others, folder.image_root)
    source.listed, source.format = images, "YOLO"
    source.label_files += labels
    if not folder.image_root:
        source.label_files += [str(folder.path / file) for file in yolo.usual_labels(folder.files)]
    return [source]


def _unread_notes(path: Path, images: Iterable[str], others: Sequence[Path], image_root: str | None) -> list[str]:
    """Returns a note about data files that are not read, `others`, because `path` is, which names `images`.

    Raises DataError if one of them names classes of the same images differently: it may be the right one."""
    config = _config(path)
    for other in others:
        try:
            own, names = _names_of(path, config), _names_of(other, _config(other))
        except DataError:  # the note names the file
            continue
        difference = own.has_names and names.has_names and own.difference(names)
        theirs = _all_images(other, image_root)[0] if difference else ()
        if not set(map(os.path.abspath, images)).isdisjoint(map(os.path.abspath, theirs)):
            what = f"name classes of the same images differently ({difference})"
            raise DataError(f"{path} and {other} {what}: give the right one instead of the folder, or remove the other")
    if not others:
        return []
    shown = ", ".join(other.name for other in others[:5])
    if len(others) > 5:
        shown += ", ..."
    return [one_line(f"{path.parent}: data files that are not read, because there is {path.name}: {shown}")]


def _config(path: Path) -> dict[str, Any]:
    """Returns the contents of a data file, yaml or darknet. Raises DataError."""
    return darknet_config(path) if path.suffix.lower() == ".data" else yaml_config(path)


def _with_images(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Returns the contents of a data file with images.

    A file with names only, as supervision writes it, has its images in images/, and their splits are its subfolders."""
    images = path.parent / "images"
    if any(config.get(key) for key in PARTS) or not images.is_dir():
        return config
    folders = {name.lower(): f"images/{name}" for name in sorted(os.listdir(images)) if (images / name).is_dir()}
    splits = {key: folders[key] for key in PARTS if key in folders}
    return config | (splits or {"train": "images"})


def _names_of(path: Path, config: dict[str, Any]) -> ClassList:
    """Returns the class names in the contents of a data file. Raises DataError."""
    return ClassList(str(path), tuple(map(clean_name, yaml_names(path, config))))


def _all_images(path: Path, image_root: str | None) -> tuple[list[str], list[str]]:
    """Returns the images that all entries of a data file name, and their label files. Entries that are wrong have none."""
    config, images, labels = _config(path), [], []
    for key in PARTS:
        entries = config.get(key) or []
        for entry in entries if isinstance(entries, list) else [entries]:
            with suppress(DataError):
                found, own, _ = _images(path, config.get("path"), key, entry, image_root)
                images += found
                labels += own
    return images, labels


def _images(
    path: Path, root: str | None, key: str, entry: str, image_root: str | None
) -> tuple[list[str], list[str], list[str]]:
    """Returns (images of one entry, their label files, notes). An entry is a folder, a list of images, or one image.

    Some labeling services export `../train/images` for `train/images`, or `data/train.txt` for `train.txt`. The folder that
    names the split is never cut off: `test/images` does not become `images`."""
    try:
        bare = check_path(entry).replace("\\", "/").rstrip("/")
        check_path(root or "")
    except ValueError as error:
        raise DataError(f"{path}: {key}: {error}") from error
    while bare.startswith("../"):
        bare = bare[3:]
    own = [path.parent / root, path.parent] if root else [path.parent]
    bases = own
    if image_root:  # lists and label files may stay next to the data file
        bases = [Path(os.path.abspath(image_root)), *(own if entry.lower().endswith(".txt") else ())]
    places = [base / name for base in bases for name in (entry, bare)]
    steps = bare.lower().split("/")
    keep = next((count for count, step in enumerate(reversed(steps), 1) if step in SPLIT_NAMES), 1)
    found = Path(image_paths.locate(bare, list(map(str, bases)), keep))
    place = next((place for place in places if os.path.exists(place)), found)
    if not os.path.exists(place):
        fix = "image_root=" if image_root else "`path`"
        raise DataError(f"{path}: {key}: there is no {places[0]}: correct the entry or {fix}")
    if place.is_dir():
        files = files_under(place)
        notes = unread_notes(place, files)
        names = images_of(files)
        if not names:
            why = "".join(f" ({note})" for note in notes)
            raise DataError(f"{path}: {key}: no images in {place}: correct the entry{why}")
        images = [os.path.join(place, name) for name in names]
        return images, list(map(yolo.label_file, images)), notes
    if place.suffix.lower() != ".txt":
        return [str(place)], [yolo.label_file(str(place))], []
    names = [line.strip() for _, line in text_lines(str(place)) if line.strip()]
    images = image_paths.locate_all(place, names, [str(place.parent), *map(str, bases)])
    near = [str(place.parent), *map(str, own)] if image_root else []
    return images, [_label_of(*pair, near) for pair in zip(images, names, strict=True)], []


def _label_of(image: str, name: str, near: Sequence[str]) -> str:
    """Returns the label file of an image that a list calls `name`: next to the image, or in the folders `near`."""
    label = yolo.label_file(image)
    if os.path.exists(label) or not near:
        return label
    found = image_paths.locate(f"{os.path.splitext(name)[0]}.txt", near)
    return found if os.path.exists(found) else label
