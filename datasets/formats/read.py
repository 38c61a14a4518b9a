"""Reading of data sets in any accepted format: `read`.

formats.py or folder.py choose the reader, which returns a Source, and finish.py makes Annotations of it."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    data = replace(data, notes=(*notes, *_labeled_twice(data)))
    if are_chosen_later:
        complete = split in ("train", "all")
        data = choose_classes(data, options.classes, parse_merge(options.merge), options.select, complete)
    return data


def _labeled_twice(data: Annotations) -> list[str]:
    """Returns a note about images that occur several times. Each trains as if the boxes of the others were not there."""
    first: dict[str, int] = {}
    pairs = ((first.setdefault(os.path.normpath(data.path(index)), index), index) for index in range(len(data)))
    again = [(one, other) for one, other in pairs if one != other]
    if not again:
        return []
    fix = "keep one per image"
    if data.lines[again[0][1]]:
        fix += ", or write all its boxes in one line"
    text = f"images that are labeled more than once: {len(again)}; each copy trains with only its own boxes: {fix}"
    rows = [f"  {_places(data, one, other)}" for one, other in again[:10]]
    if len(again) > 10:
        rows.append(f"  ... and {len(again) - 10} more")
    return [printable("\n".join([f"{data.source}: {text}", *rows]))]


def _places(data: Annotations, *indices: int) -> str:
    """Returns the path of an image, and the different places of its boxes."""
    places = []
    for index in indices:
        line = f"line {data.lines[index]}" if data.lines[index] else ""
        places.append(": ".join(filter(None, (data.files[index], line))))
    places = list(dict.fromkeys(filter(None, places)))
    path = data.path(indices[0])
    return f"{path}: {' and '.join(places)}" if len(places) > 1 else path
