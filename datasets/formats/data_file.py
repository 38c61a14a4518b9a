"""YOLO data files, data.yaml or obj.data of darknet, with the images and classes of all splits -> Source."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from datasets.errors import DataError, check_path, one_line
from datasets.formats import image_paths, yolo
from datasets.formats.class_names import (
    PARTS,
    ClassLists,
    darknet_config,
    data_file_list,
    list_in,
    yaml_config,
    yaml_names,
)
from datasets.formats.file import File, Folder, images_of, unread_image_notes
from datasets.formats.source import Source
from datasets.formats.splits import SPLIT_NAMES, add_splits
from datasets.formats.typed_json import BOM
from datasets.store import Split
from utils.files import files_under

MAIN = "data.yaml"
_YOLO = re.compile(rb"^[\"']?(train|val|valid|validation|test)[\"']? *:", re.IGNORECASE | re.MULTILINE)
_DARKNET = re.compile(rb"^\s*(train|valid|names) *=", re.IGNORECASE | re.MULTILINE)


def matches(file: File) -> bool:
    """Returns whether a file in the data set itself is a data file, yaml or darknet."""
    if "/" in file.place:
        return False
    head = file.head.removeprefix(BOM)
    return bool(_DARKNET.search(head) if file.suffix == ".data" else file.name.lower() == MAIN or _YOLO.search(head))


def read_data_file(file: File, split: Split) -> Source:
    """Reads the first split of a data file, yaml or darknet, whose name is in `split` (empty: all splits). Raises DataError.

    `image_root` replaces the folder `path` of the file."""
    path = Path(file.path)
    config = _with_images(path, darknet_config(path) if path.suffix.lower() == ".data" else yaml_config(path))
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
    source.names_are_numbers = not config.get("names")
    add_splits(source, path, map(SPLIT_NAMES.get, keys), split)
    return source


def read_folder(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads the data file of a folder: data.yaml, or the only other yaml file, or else the only darknet file.

    Raises DataError if there are several, and for class lists in the folder that differ."""
    found = sorted(names, key=lambda name: (name.lower().endswith(".data"), name.lower() != MAIN, name))
    path, is_darknet = folder.path / found[0], found[0].lower().endswith(".data")
    rivals = [name for name in found if name.lower().endswith(".data") == is_darknet]
    if found[0].lower() != MAIN and len(rivals) > 1:
        raise DataError(f"{folder.path}: several data files ({', '.join(rivals[:5])}): name one of them")
    source = read_data_file(File(path, folder.image_root), folder.split)
    source.has_yolo_labels = True
    if not is_darknet and (own := data_file_list(path)):  # darknet names its own list, among those of other data sets
        # a labeling tool writes its list next to the label files, and the order of its names may be another one
        places = {str(folder.path), *(os.path.dirname(source.files[index]) for index in range(len(source)))}
        for other in filter(None, map(list_in, sorted(places))):
            own.require_equal(other)
        for other in filter(None, (data_file_list(folder.path / name) for name in rivals if name != path.name)):
            if difference := own.difference(other):
                raise DataError(
                    f"{path} and {other.file} differ ({difference}): name the one that is meant, as in train={path}"
                )
    if others := found[1:]:
        text = f"{folder.path}: data files that are not read, because there is {path.name}: {len(others)}, for example "
        source.notes.append(one_line(text + others[0]))
    return [source]


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
    return *yolo.find_listed(str(place), image_root, list(map(str, own))), []


def _place(path: Path, root: str | None, key: str, entry: str, bases: Sequence[Path]) -> Path:
    """Returns where an entry is in the folders `bases`. Raises DataError for control characters.

    Some labeling services export `../train/images` for `train/images`, or `data/train.txt` for `train.txt`. The folder that
    names the split is never cut off: `test/images` does not become `images`."""
    try:
        bare = check_path(entry).replace("\\", "/").rstrip("/")
        check_path(root or "")
    except ValueError as error:
        raise DataError(f"{path}: {key}: {error}") from error
    steps = enumerate(reversed(bare.lower().split("/")), 1)
    keep = next((count for count, step in steps if step in SPLIT_NAMES), 1)
    return Path(image_paths.locate(bare, list(map(str, bases)), keep))
