"""Reading of data sets in any accepted format: `read`.

formats.py or folder.py choose the reader, which returns a Source, and finish.py makes Annotations of it."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from datasets.classes import choose_classes, join, parse_merge
from datasets.errors import DataError, check_path
from datasets.formats.annotation_file import is_names, read_classes
from datasets.formats.file import Folder
from datasets.formats.finish import ReadOptions, finish
from datasets.formats.folder import left_over, read_folder
from datasets.formats.formats import read_file
from datasets.store import Annotations, Split
from utils.text import printable

SPLITS: dict[str, Split] = {
    "train": ("train", "trainval"),
    "val": ("val", "valid", "validation", "test"),
    "test": ("test",),
    "all": (),
}


def read_options(
    classes: str | None = None,
    merge: str | None = None,
    image_root: str | None = None,
    bad_boxes: str = "drop",
    bad_images: str = "error",
) -> ReadOptions:
    """Returns the options that a script has as constants. `classes`: cat,dog selects classes; a file of names does not.

    Raises DataError for a file of classes that cannot be read."""
    names = read_classes(classes) if classes else None
    return ReadOptions(names, is_names(classes), merge, image_root, bad_boxes, bad_images)


def options_of(config: Mapping[str, Any], classes: tuple[str, ...]) -> ReadOptions:
    """Returns the options of a training with the constants `config`, for data of a model with the classes `classes`."""
    return ReadOptions(
        classes=classes,
        select=is_names(config.get("classes")),
        merge=config.get("merge"),
        image_root=config.get("image_root"),
        bad_boxes=config.get("bad_boxes") or "drop",
        bad_images=config.get("bad_images") or "error",
    )


def read(source: str | os.PathLike, split: str, options: ReadOptions | None = None) -> Annotations:
    """Reads a data set: a file or a folder in any accepted format. Raises DataError.

    `split`: train, val, test or all, if the source has splits."""
    source = check_path(os.fspath(source))
    if not os.path.exists(source):
        raise DataError(f"{source}: no such file or folder in {os.getcwd()}: correct the path")
    try:
        return _read(Path(source), split, options or ReadOptions())
    except DataError:
        raise
    except OSError as error:  # such as a name that is too long
        raise DataError(f"{error.filename or source}: {error.strerror}: correct the path or the file") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"  # a list instead of text, ...
        raise DataError(f"{source}: not in the form of its format ({what}): export the data again") from error


def _read(path: Path, split: str, options: ReadOptions) -> Annotations:
    root = options.image_root
    if root is not None and not os.path.isdir(root):
        raise DataError(f"image_root={root}: there is no such folder: correct the path")
    reading = read_folder(Folder(path, SPLITS[split], root)) if path.is_dir() else None
    sources = reading.sources if reading else [read_file(path, SPLITS[split], root)]
    are_chosen_later = bool(options.merge) or options.select  # from all classes of the data
    classes = None if are_chosen_later else options.classes
    data = join([finish(source, options, classes) for source in sources], str(path))
    notes = [*data.notes, *map(printable, left_over(reading, data) if reading else ())]
    data = _united(replace(data, notes=tuple(notes)))
    if are_chosen_later:
        complete = split in ("train", "all")
        data = choose_classes(data, options.classes, parse_merge(options.merge), options.select, complete)
    return data


def _united(data: Annotations) -> Annotations:
    """Returns the data with each image once, with the boxes of all its label files or lines, and a note that counts them.

    Labels may be made class by class. A box that several of them have is there once."""
    first: dict[str, int] = {}
    owners = [first.setdefault(os.path.normpath(data.path(index)), index) for index in range(len(data))]
    if len(first) == len(data):
        return data
    owner, image = np.array(owners), data.image_of_boxes()
    order = np.argsort(owner[image], kind="stable")
    several = np.bincount(owner, minlength=len(data)) > 1
    seen: dict[tuple, int] = {}  # box -> the copy of the image that has it first
    keep = np.ones(len(order), bool)
    for place in np.flatnonzero(several[owner[image[order]]]).tolist():
        row = order[place]
        box = owners[image[row]], *data.boxes[row].tolist(), int(data.labels[row]), bool(data.crowd[row])
        keep[place] = seen.setdefault(box, image[row]) == image[row]
    rows = order[keep]
    starts = np.concatenate([[0], np.cumsum(np.bincount(owner[image[rows]], minlength=len(data)))])
    pairs = [(one, other) for other, one in enumerate(owners) if one != other]
    text = f"images with several label files or lines, whose boxes are united: {int(several.sum())}"
    text += f"; equal boxes in them, counted once: {len(order) - len(rows)}"
    shown = [f"  {_places(data, one, other)}" for one, other in pairs[:10]]
    if len(pairs) > 10:
        shown.append(f"  ... and {len(pairs) - 10} more")
    note = printable("\n".join([f"{data.source}: {text}", *shown]))
    if data.looked_for is not None:
        looked_for = np.zeros_like(data.looked_for)
        np.bitwise_or.at(looked_for, owner, data.looked_for)
        data = replace(data, looked_for=looked_for)
    return replace(data.with_rows(rows, starts).select(sorted(first.values())), notes=(*data.notes, note))


def _places(data: Annotations, *indices: int) -> str:
    """Returns the path of an image, and the different places of its boxes."""
    places = []
    for index in indices:
        line = f"line {data.lines[index]}" if data.lines[index] else ""
        places.append(": ".join(filter(None, (data.files[index], line))))
    places = list(dict.fromkeys(filter(None, places)))
    path = data.path(indices[0])
    return f"{path}: {' and '.join(places)}" if len(places) > 1 else path
