"""Reading of data sets in any accepted format: `read`.

formats.py or folder.py choose the reader, which returns a Source, and finish.py makes Annotations of it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from datasets.classes import choose_classes, ignore_class, join, parse_merge, similar_names
from datasets.errors import DataError, check_path
from datasets.formats.annotation_file import is_names, read_classes
from datasets.formats.file import Folder
from datasets.formats.finish import ReadOptions, finish
from datasets.formats.folder import left_over, read_folder, real_path
from datasets.formats.formats import read_file
from datasets.formats.source import Source
from datasets.groups import check_split_by
from datasets.store import Annotations, Classes, Split
from utils.files import missing_text
from utils.remote_cache import local, shown
from utils.text import first_names, printable, split_names

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
    split_by: str | None = None,
    all_labeled: bool = False,
    ignore_regions: str | None = None,
) -> ReadOptions:
    """Returns the options that a script has as constants. `classes`: cat,dog selects classes; a file of names does not.

    Raises DataError for a file of classes that cannot be read, and ConfigError for a pattern split_by= that is wrong."""
    names = read_classes(classes) if classes else None
    select, split_by = is_names(classes), check_split_by(split_by)
    options = ReadOptions(names, select, merge, image_root, bad_boxes, bad_images, split_by)
    return replace(options, all_labeled=all_labeled, ignore_regions=_names(ignore_regions))


def options_of(config: Mapping[str, Any], classes: tuple[str, ...]) -> ReadOptions:
    """Returns the options of a training with the constants `config`, for data of a model with the classes `classes`."""
    return ReadOptions(
        classes=classes,
        select=is_names(config.get("classes")),
        merge=config.get("merge"),
        image_root=config.get("image_root"),
        bad_boxes=config.get("bad_boxes") or "drop",
        bad_images=config.get("bad_images") or "error",
        all_labeled=bool(config.get("all_labeled")),
        ignore_regions=_names(config.get("ignore_regions")),
    )


def _names(text: str | None) -> tuple[str, ...]:
    """Returns the names in text with commas between them, each one once; () for None."""
    return tuple(dict.fromkeys(filter(None, split_names(text or ""))))


def read(source: str | os.PathLike, split: str, options: ReadOptions | None = None) -> Annotations:
    """Reads a data set: a file or a folder in any accepted format, also at an address or in an archive. Raises DataError.

    Several with commas between them are one. `split`: train, val, test or all, if the source has splits."""
    source, options = check_path(os.fspath(source)), options or ReadOptions()
    if len(sets := sets_of(source)) > 1:
        return _with_addresses(_read_sets(sets, source, split, options))
    source = local(source, alone=bool(options.image_root))
    if options.image_root:
        options = replace(options, image_root=local(options.image_root))
    if not os.path.exists(source):
        raise DataError(f"{source}: {missing_text(source)}")
    try:
        return _with_addresses(_read(Path(source), split, options))
    except DataError:
        raise
    except OSError as error:  # such as a name that is too long
        raise DataError(f"{error.filename or source}: {error.strerror}: correct the path or the file") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"  # a list instead of text, ...
        raise DataError(f"{source}: not in the form of its format ({what}): export the data again") from error


def _with_addresses(data: Annotations) -> Annotations:
    """Returns the data with addresses in place of the paths in the cache that stand for them."""
    return replace(data, source=shown(data.source), notes=tuple(map(shown, data.notes)))


def _read(path: Path, split: str, options: ReadOptions) -> Annotations:
    root = options.image_root
    if root is not None and not os.path.isdir(root):
        raise DataError(f"image_root={root}: there is no such folder: correct the path")
    reading = read_folder(Folder(path, SPLITS[split], root)) if path.is_dir() else None
    sources = reading.sources if reading else [read_file(path, SPLITS[split], root)]
    opened = _ignore_classes(options)
    are_chosen_later = bool(options.merge) or options.select or bool(opened)  # from all classes of the data
    given = [None if are_chosen_later else _list_for(one, options) for one in sources]
    data = join([finish(one, options, classes) for one, classes in zip(sources, given, strict=True)], str(path))
    notes = [*data.notes, *map(printable, left_over(reading, data) if reading else ())]
    data = _merge_images(replace(data, notes=tuple(notes)))
    return _with_chosen_classes(data, options, split) if are_chosen_later else data


def _ignore_classes(options: ReadOptions) -> list[str]:
    """Returns the classes of ignore_regions=."""
    return [name for name in options.ignore_regions if name != "crowd"]


def _with_chosen_classes(data: Annotations, options: ReadOptions, split: str) -> Annotations:
    """Returns the data with the classes of the options, and the boxes of ignore_regions= as open regions. Raises DataError."""
    merge, complete = parse_merge(options.merge), split in ("train", "all")
    present = {merge.get(name, name) for name in data.classes}
    missing = [name for name in _ignore_classes(options) if name not in present]
    if complete and missing:
        fix = "write crowd, or a class of the data"
        raise DataError(f"ignore_regions=: there is no class {missing[0]!r} in {data.source}: {fix}")
    opened = [name for name in _ignore_classes(options) if name in present]
    classes = options.classes and tuple(dict.fromkeys((*options.classes, *opened)))
    if merge or classes:
        complete = complete and (bool(merge) or options.select)
        data = choose_classes(data, classes, merge, options.select, complete)
    for name in opened:
        data = ignore_class(data, name)
    return data


def _list_for(source: Source, options: ReadOptions) -> Classes:
    """Returns the classes that a source must have; None: its own."""
    has_own = source.names is not None and not source.names_are_numbers
    return None if options.is_one_of_sets and has_own else options.classes


def sets_of(source: str) -> list[str]:
    """Returns the sets of train=A,B; a path with commas that exists is one set."""
    if "," not in source or os.path.exists(source):
        return [source]
    return [word.strip() for word in source.split(",") if word.strip()]


def _read_sets(sets: list[str], source: str, split: str, options: ReadOptions) -> Annotations:
    """Reads several sets as one, each with its own classes. Without all_labeled, others were not looked for in its images.

    Raises DataError, also for names of different sets that may be meant as one."""
    opened = _ignore_classes(options)
    crowd = tuple(name for name in options.ignore_regions if name not in opened)
    names = None if options.select or opened else options.classes
    own = replace(options, classes=names, select=False, merge=None, ignore_regions=crowd, is_one_of_sets=True)
    parts = [_read_set(one, split, own) for one in sets]
    _require_clear_names(parts, source, parse_merge(options.merge))
    data = join(parts, source, apart=not options.all_labeled)
    notes = [sets_text(sets, parts, data, opened)]
    if split in ("train", "all") and not options.all_labeled:
        notes += without_boxes(sets, parts, opened)
    data = _merge_images(replace(data, notes=(*data.notes, *notes)))
    return _with_chosen_classes(data, options, split)


def _read_set(one: str, split: str, options: ReadOptions) -> Annotations:
    """Reads one of several sets. Its classes are those of its training split, too: the other splits may have no box of some."""
    data = read(one, split, options)
    if split == "train" or "train" not in data.other_splits:
        return data
    names = (*data.classes, *read(one, "train", options).classes)
    return choose_classes(data, tuple(dict.fromkeys(names)), {}, select=False, complete=False)


def _require_clear_names(parts: Sequence[Annotations], source: str, merge: Mapping[str, str]) -> None:
    """Raises DataError for class names of different sets that differ in case or spaces only, and for numbers next to names."""
    of_sets = [{merge.get(name, name) for name in data.classes} for data in parts]
    for group in similar_names(dict.fromkeys(name for names in of_sets for name in names)):
        if not any(names.issuperset(group) for names in of_sets):
            fix = ",".join(f"{name}:{group[0]}" for name in group[1:])
            named = ", ".join(map(repr, group))
            raise DataError(
                f"{source}: classes of different sets that differ in case or spaces only: {named}: merge={fix}"
            )
    numbered = [data for data, names in zip(parts, of_sets, strict=True) if names and all(map(str.isdecimal, names))]
    if 0 < len(numbered) < len(parts):
        text = (
            "the classes of this set are numbers, and those of the others are names: write its names into classes.txt"
        )
        raise DataError(f"{numbered[0].source}: {text}")


def sets_text(sets: Sequence[str], parts: Sequence[Annotations], data: Annotations, opened: Sequence[str]) -> str:
    """Returns the table of several sets: images, and the classes that were looked for in them. `opened`: no classes."""
    rows = [("set", "images", "classes looked for")]
    for name, part in zip(sets, parts, strict=True):
        names = data.classes if data.annotated is None else part.classes
        names = tuple(name for name in names if name not in opened)
        rows.append((name, str(len(part)), f"{len(names)} {first_names(names)}"))
    wide, narrow = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"  {name:{wide}}  {images:>{narrow}}  {classes}" for name, images, classes in rows]
    return printable("\n".join([f"{data.source}: sets that are trained together", *lines]))


def without_boxes(sets: Sequence[str], parts: Sequence[Annotations], opened: Sequence[str]) -> Iterator[str]:
    """Yields a note for each set with classes that it lists without a box, while another set has boxes of them.

    Several teams may share a list of classes of which each labels some."""
    boxes = [dict(zip(data.classes, data.boxes_per_class().tolist(), strict=True)) for data in parts]
    labeled = {name for counts in boxes for name, count in counts.items() if count}.difference(opened)
    for one, data, counts in zip(sets, parts, boxes, strict=True):
        annotated = np.array(data.classes, object)[data.annotated_mask().any(0)]
        if names := [name for name in annotated if not counts[name] and name in labeled]:
            text = f"{one}: no boxes of {first_names(names)}, which its list of classes has: they are background in its images"
            yield printable(f"{text}; if they were not looked for there, take them out of the list")


def _merge_images(data: Annotations) -> Annotations:
    """Returns the data with each image once, with the boxes of all its label files or lines, and a note that counts them.

    Labels may be made class by class. A box that several of them have is there once."""
    first: dict[str, int] = {}
    owners = [first.setdefault(real_path(data.path(index)), index) for index in range(len(data))]
    if len(first) == len(data):
        return data
    owner, image = np.array(owners), data.image_of_boxes()
    order = np.argsort(owner[image], kind="stable")
    several = np.bincount(owner, minlength=len(data)) > 1
    seen: dict[tuple, int] = {}  # box -> the copy of the image that has it first
    keep = np.ones(len(order), bool)
    kinds = data.crowd.astype(int)  # 0: box, 1: crowd region, 2: open region
    if data.is_ignored is not None:
        kinds += data.is_ignored
    for place in np.flatnonzero(several[owner[image[order]]]).tolist():
        row = order[place]
        box = owners[image[row]], *data.boxes[row].tolist(), int(data.labels[row]), int(kinds[row])
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
    if data.annotated is not None:
        annotated = np.zeros_like(data.annotated)
        np.bitwise_or.at(annotated, owner, data.annotated)
        data = replace(data, annotated=annotated)
    united = replace(data.with_rows(rows, starts).select(sorted(first.values())), notes=(*data.notes, note))
    return united if united.annotated is None else united.with_annotated(united.annotated_mask())


def _places(data: Annotations, *indices: int) -> str:
    """Returns the path of an image, and the different places of its boxes."""
    places = []
    for index in indices:
        line = f"line {data.lines[index]}" if data.lines[index] else ""
        places.append(": ".join(filter(None, (data.files[index], line))))
    places = list(dict.fromkeys(filter(None, places)))
    path = data.path(indices[0])
    return f"{path}: {' and '.join(places)}" if len(places) > 1 else path
