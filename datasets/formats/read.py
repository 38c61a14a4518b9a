"""Reads data sets in any accepted format: `read`. Here the user's options are applied, once for all formats.

formats.py or folder.py choose the reader, which returns a Source, and labels.py makes Annotations of it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from datasets.classes import choose_classes, ignore_class, join, merge_command, merge_fix, parse_merge, similar_names
from datasets.errors import DataError, check_path
from datasets.formats.file import Folder
from datasets.formats.folder import read_folder, unread_notes
from datasets.formats.formats import read_file
from datasets.formats.labels import resolve_labels
from datasets.formats.options import ReadOptions
from datasets.formats.splits import split_in
from datasets.store import Annotations, Split
from utils.files import missing_text, real_path
from utils.remote_cache import is_archive, local, shown
from utils.text import first_names, printable

SPLITS: dict[str, Split] = {
    "train": ("train", "trainval"),
    "val": ("val", "valid", "validation", "test"),
    "test": ("test",),
    "all": (),
}
IGNORED = "__ignore__"  # the class by which LabelMe marks what is no object: ignore regions, in any format


def read(source: str | os.PathLike, split: str, options: ReadOptions | None = None) -> Annotations:
    """Reads a data set: a file or a folder in any accepted format, also at an address or in an archive. Raises DataError.

    Several with commas between them are one. `split`: train, val, test or all, if the source has splits."""
    source, options = check_path(os.fspath(source)), options or ReadOptions()
    sets = sets_of(source)
    if len(sets) > 1:
        data = _read_sets(sets, source, split, options)
    else:
        data = _read_set(source, split, options)
    return replace(data, source=shown(data.source), notes=tuple(map(shown, data.notes)))


def sets_of(source: str) -> list[str]:
    """Returns the sets of train=A,B; a path with commas that exists is one set."""
    if "," not in source or os.path.exists(source):
        return [source]
    return [word.strip() for word in source.split(",") if word.strip()]


def _read_set(source: str, split: str, options: ReadOptions, is_one_of_several: bool = False) -> Annotations:
    """Reads one set. If it `is_one_of_several`, its own classes count before those of the options. Raises DataError."""
    given, source = source, local(source, alone=bool(options.image_root))
    if options.image_root:
        options = replace(options, image_root=local(options.image_root))
    if not os.path.exists(source):
        raise DataError(f"{source}: {missing_text(source)}")
    try:
        path = _set_in(Path(source)) if is_archive(given) else Path(source)
        return _annotations(path, split, options, is_one_of_several)
    except OSError as error:  # such as a name that is too long
        raise DataError(f"{error.filename or source}: {error.strerror}: correct the path or the file") from error


def _annotations(path: Path, split: str, options: ReadOptions, is_one_of_several: bool) -> Annotations:
    """Returns the annotations of a file or a folder, with the options applied."""
    root = options.image_root
    if root is not None and not os.path.isdir(root):
        raise DataError(f"image_root={root}: there is no such folder: correct the path")
    reading = read_folder(Folder(path, SPLITS[split], root)) if path.is_dir() else None
    sources = reading.sources if reading else [read_file(path, SPLITS[split], root)]
    has_ignored = not is_one_of_several and any(IGNORED in (found.names or ()) for found in sources)
    # from all classes
    are_chosen_later = bool(options.merge or options.select or options.ignored_classes) or has_ignored
    parts = []
    for found in sources:
        has_names = found.names is not None and not found.names_are_numbers
        classes = None if are_chosen_later or (is_one_of_several and has_names) else options.classes
        if is_one_of_several and classes is None and not has_names and not options.all_labeled:
            fix = (
                "write its classes.txt, one name per line (or names: into its data.yaml), or all_labeled=true if all classes "
                "are annotated in all sets"
            )
            raise DataError(
                f"{found.path}: the classes of this set are numbers, so it is not known what was annotated: {fix}"
            )
        parts.append(resolve_labels(found, options, classes))
    data = join(parts, str(path))
    notes = [*data.notes, *map(printable, unread_notes(reading, data) if reading else ())]
    data = _merge_images(replace(data, notes=tuple(notes)))
    return _with_chosen_classes(data, options, split) if are_chosen_later else data


def _set_in(folder: Path) -> Path:
    """Returns the folder of the data set in an unpacked archive, which often holds that folder only; train/ is a split of it."""
    inside = [path for path in folder.iterdir() if not path.name.startswith((".", "__MACOSX"))]
    is_outer = len(inside) == 1 and inside[0].is_dir() and not split_in(f"{inside[0].name}/")
    return _set_in(inside[0]) if is_outer else folder


def _with_chosen_classes(data: Annotations, options: ReadOptions, split: str) -> Annotations:
    """Returns the data with the classes of the options, and the boxes of ignore_regions= as ignore regions. Raises DataError."""
    merge, is_complete = parse_merge(options.merge), split in ("train", "all")
    present = {merge.get(name, name) for name in data.classes}
    missing = [name for name in options.ignored_classes if name not in present]
    if is_complete and missing:
        fix = "write crowd, or a class of the data"
        raise DataError(f"ignore_regions=: there is no class {missing[0]!r} in {data.source}: {fix}")
    ignored = [name for name in (*options.ignored_classes, IGNORED) if name in present]
    classes = options.classes and tuple(dict.fromkeys((*options.classes, *ignored)))
    if merge or classes:
        is_complete = is_complete and (bool(merge) or options.select)
        data = choose_classes(data, classes, merge, options.select, is_complete)
    for name in ignored:
        data = ignore_class(data, name)
    return data


# ---- several sets


def _read_sets(sets: list[str], source: str, split: str, options: ReadOptions) -> Annotations:
    """Reads several sets as one, each with its own classes. Without all_labeled, a set lacks annotations of the other classes.

    Raises DataError, also for names of different sets that may be meant as one."""
    ignored = [*options.ignored_classes, IGNORED]
    crowd = tuple(name for name in options.ignore_regions if name not in ignored)
    names = None if options.select or options.ignored_classes else options.classes
    own = replace(options, classes=names, select=False, merge=None, ignore_regions=crowd)
    parts = [_read_set_with_all_classes(one, split, own) for one in sets]
    _require_clear_names(parts, source, parse_merge(options.merge))
    data = join(parts, source, federated=not options.all_labeled)
    notes = [sets_text(sets, parts, data, ignored)]
    if split in ("train", "all") and not options.all_labeled:
        notes += without_boxes(sets, parts, ignored)
    data = _merge_images(replace(data, notes=(*data.notes, *notes)))
    return _with_chosen_classes(data, options, split)


def _read_set_with_all_classes(source: str, split: str, options: ReadOptions) -> Annotations:
    """Reads one of several sets. Its classes are those of its training split, too: the other splits may have no box of some."""
    data = _read_set(source, split, options, is_one_of_several=True)
    if split == "train" or "train" not in data.other_splits:
        return data
    names = (*data.classes, *_read_set(source, "train", options, is_one_of_several=True).classes)
    return choose_classes(data, tuple(dict.fromkeys(names)), {}, select=False, complete=False)


def _require_clear_names(parts: Sequence[Annotations], source: str, merge: Mapping[str, str]) -> None:
    """Raises DataError for class names of different sets that differ in case or spaces only, and for numbers next to names."""
    of_sets = [{merge.get(name, name) for name in data.classes} for data in parts]
    for group in similar_names(dict.fromkeys(name for names in of_sets for name in names)):
        if not any(names.issuperset(group) for names in of_sets):
            named = ", ".join(map(repr, group))
            raise DataError(f"{source}: classes of different sets that look alike: {named}: {merge_fix([group])}")
    numbered = [data for data, names in zip(parts, of_sets, strict=True) if names and all(map(str.isdecimal, names))]
    if 0 < len(numbered) < len(parts):
        pairs = [f"{name}:class {name}" for name in numbered[0].classes[:10]]
        text = (
            f"the classes of this set are numbers, those of the others names: name them, as in {merge_command(pairs)}"
        )
        raise DataError(f"{numbered[0].source}: {text}")


def sets_text(sets: Sequence[str], parts: Sequence[Annotations], data: Annotations, ignored: Sequence[str]) -> str:
    """Returns the table of several sets: images and annotated classes. `ignored`: names that are no classes."""
    rows = [("set", "images", "annotated classes")]
    for name, part in zip(sets, parts, strict=True):
        names = data.classes if data.annotated is None else part.classes
        names = tuple(name for name in names if name not in ignored)
        rows.append((name, str(len(part)), f"{len(names)} {first_names(names)}"))
    wide, narrow = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"  {name:{wide}}  {images:>{narrow}}  {classes}" for name, images, classes in rows]
    title = "sets that are trained together; in training, a class that is not annotated is background"
    return printable("\n".join([f"{data.source}: {title}", *lines]))


def without_boxes(sets: Sequence[str], parts: Sequence[Annotations], ignored: Sequence[str]) -> Iterator[str]:
    """Yields a note for each set with classes that it lists without a box, while another set has boxes of them.

    Several teams may share a list of classes of which each labels some."""
    boxes = [dict(zip(data.classes, data.boxes_per_class().tolist(), strict=True)) for data in parts]
    labeled = {name for counts in boxes for name, count in counts.items() if count}.difference(ignored)
    for one, data, counts in zip(sets, parts, boxes, strict=True):
        annotated = np.array(data.classes, object)[data.annotated_mask().any(0)]
        if names := [name for name in annotated if not counts[name] and name in labeled]:
            text = f"{one}: no boxes of {first_names(names)}, which its list of classes has: detections of them count as false"
            yield printable(f"{text}; if they are not annotated there, take them out of the list")


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
    kinds = data.crowd.astype(int)  # 0: box, 1: crowd region, 2: ignore region
    if data.is_ignored is not None:
        kinds += data.is_ignored
    for place in np.flatnonzero(several[owner[image[order]]]).tolist():
        row = order[place]
        box = owners[image[row]], *data.boxes[row].tolist(), int(data.labels[row]), int(kinds[row])
        keep[place] = seen.setdefault(box, image[row]) == image[row]
    rows = order[keep]
    starts = np.concatenate([[0], np.cumsum(np.bincount(owner[image[rows]], minlength=len(data)))])
    example = next(one for other, one in enumerate(owners) if one != other)
    text = f"{data.source}: images with several label files or lines, merged: {int(several.sum())}"
    text += f"; equal boxes in them, counted once: {len(order) - len(rows)}; for example {data.path(example)}"
    if data.annotated is not None:
        annotated = np.zeros_like(data.annotated)
        np.bitwise_or.at(annotated, owner, data.annotated)
        data = replace(data, annotated=annotated)
    merged = replace(
        data.with_rows(rows, starts).select(np.array(sorted(first.values()))), notes=(*data.notes, printable(text))
    )
    return merged if merged.annotated is None else merged.with_annotated(merged.annotated_mask())
