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
from datasets.formats.class_names import PARTS, ClassList, ClassLists, darknet_config, list_in, yaml_config, yaml_names
from datasets.formats.file import File, Folder, images_of, text_lines, unread_image_notes
from datasets.formats.source import Source
from datasets.formats.splits import SPLIT_NAMES, add_splits
from datasets.formats.typed_json import BOM
from datasets.store import Split
from utils.files import files_under
from utils.text import clean_name

MAIN = "data.yaml"
_YOLO = re.compile(rb"^[\"']?(train|val|valid|validation|test)[\"']? *:", re.IGNORECASE | re.MULTILINE)
_NAMES = re.compile(rb"^[\"']?names[\"']? *:", re.IGNORECASE | re.MULTILINE)
_DARKNET = re.compile(rb"^\s*(train|valid|names) *=", re.IGNORECASE | re.MULTILINE)


def matches(file: File) -> bool:
    """Returns whether a file in the data set itself is a data file, yaml or darknet."""
    if "/" in file.place:
        return False
    head = _beginning(file)
    return bool(_DARKNET.search(head) if file.suffix == ".data" else file.name.lower() == MAIN or _YOLO.search(head))


def read_data_file(file: File, split: Split) -> Source:
    """Reads the first split of a data file, yaml or darknet, whose name is in `split` (empty: all splits). Raises DataError.

    `image_root` replaces the folder `path` of the file."""
    path = Path(file.path)
    config = _with_images(path, _config(path))
    keys = [key for key in PARTS if config.get(key)]
    chosen = [key for key in split if key in keys][:1] if split else keys
    if not chosen:
        missing = " or ".join(name for name in split if name in PARTS) or "train"
        fix = ", or val=.2 splits off a fifth of the training images" if "val" in split else ""
        raise DataError(f"{path}: no entry {missing}: add it, with a folder or a list of images{fix}")
    images: list[str] = []
    labels: list[str] = []
    notes: list[str] = []
    for key in chosen:
        entries = config[key] if isinstance(config[key], list) else [config[key]]
        for entry in entries:
            found, own, unread = _images(path, config.get("path"), key, entry, file.image_root)
            images += found
            labels += own
            notes += unread
    source = yolo.read_images(str(path), images, ClassLists(yaml_names(path, config)), notes, labels)
    add_splits(source, path, map(SPLIT_NAMES.get, keys), split)
    return source


def _class_list(path: Path, config: dict[str, Any]) -> ClassList | None:
    """Returns the class names in the contents of a data file, None if it only has their number. Raises DataError."""
    return ClassList(str(path), tuple(map(clean_name, yaml_names(path, config)))) if config.get("names") else None


def read_folder(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads the data file of a folder. Raises DataError for class lists in the folder that differ."""
    path, others = _data_files(folder, names)
    source = read_data_file(File(path, folder.image_root), folder.split)
    source.has_yolo_labels = True
    own = _class_list(path, _config(path))
    if (
        own and path.suffix.lower() != ".data"
    ):  # darknet keeps names of other data sets in its folder, and names its own
        lists: list[ClassList | None] = []
        for other in others:
            with suppress(DataError):  # it cannot be read
                lists.append(_class_list(other, _config(other)))
        # a labeling tool writes its list next to the label files, and the order of its names may be another one
        places = {str(folder.path), *(os.path.dirname(source.files[index]) for index in range(len(source)))}
        lists += map(list_in, sorted(places))
        for found in filter(None, lists):
            own.require_equal(found)
    if others:
        text = f"{folder.path}: data files that are not read, because there is {path.name}: {len(others)}, for example "
        source.notes.append(one_line(text + others[0].name))
    return [source]


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


def _images(
    path: Path, root: str | None, key: str, entry: str, image_root: str | None
) -> tuple[list[str], list[str], list[str]]:
    """Returns (images of one entry, their label files, notes). An entry is a folder, a list of images, or one image.

    With `image_root`, the lists and the label files may stay next to the data file."""
    own = [path.parent / root, path.parent] if root else [path.parent]
    bases = own
    if image_root:
        bases = [Path(os.path.abspath(image_root)), *(own if entry.lower().endswith(".txt") else ())]
    place = _place(path, root, key, entry, bases)
    if not place.exists():
        fix = "image_root=" if image_root else "`path`"
        raise DataError(f"{path}: {key}: there is no {bases[0] / entry}: correct the entry or {fix}")
    if place.is_dir():
        files = files_under(place)
        notes = unread_image_notes(place, files)
        images = [os.path.join(place, name) for name in images_of(files)]
        if not images:
            why = "".join(f" ({note})" for note in notes)
            raise DataError(f"{path}: {key}: no images in {place}: correct the entry{why}")
        return images, list(map(yolo.label_file, images)), notes
    if place.suffix.lower() != ".txt":
        return [str(place)], [yolo.label_file(str(place))], []
    names = [line.strip() for _, line in text_lines(place) if line.strip()]
    images = image_paths.locate_all(place, names, [str(place.parent), *map(str, bases)])
    near = [str(place.parent), *map(str, own)] if image_root else []
    return images, [yolo.label_of(*pair, near) for pair in zip(images, names, strict=True)], []


def _place(path: Path, root: str | None, key: str, entry: str, bases: Sequence[Path]) -> Path:
    """Returns where an entry is in the folders `bases`. Raises DataError for control characters.

    Some labeling services export `../train/images` for `train/images`, or `data/train.txt` for `train.txt`. The folder that
    names the split is never cut off: `test/images` does not become `images`."""
    try:
        bare = check_path(entry).replace("\\", "/").rstrip("/")
        check_path(root or "")
    except ValueError as error:
        raise DataError(f"{path}: {key}: {error}") from error
    while bare.startswith("../"):
        bare = bare[3:]
    steps = bare.lower().split("/")
    keep = next((count for count, step in enumerate(reversed(steps), 1) if step in SPLIT_NAMES), 1)
    places = [base / name for base in bases for name in (entry, bare)]
    found = Path(image_paths.locate(bare, list(map(str, bases)), keep))
    return next((place for place in places if place.exists()), found)
