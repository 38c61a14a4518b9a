"""Selects, orders and merges the classes of annotations, and joins annotations."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from shlex import quote
from typing import Any

import numpy as np

from datasets.errors import DataError, one_line
from datasets.store import Annotations, Classes, Strings, unknown_class
from utils.text import as_spelled, check_class_names, clean_name, first_names, look_of, nearest, printable, split_names

_NO_OBJECT = re.compile("(ignore|dontcare).*|nan|null")  # looks of classes of regions, and of empty cells
_ESCAPE = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U000[0-9a-f]{5})")  # as `printable` writes a character


def parse_merge(text: str | None) -> dict[str, str]:
    """Returns {class: the class that it becomes} of merge=truck:car,van:car. Raises DataError.

    A pair with a comma in a name is in double quotes; \\u200b is the character that a message shows so."""
    shown = _ESCAPE.sub(lambda code: chr(int(code[1][1:], 16)), text or "")
    pairs = [pair.partition(":") for pair in split_names(shown) if text]
    merge: dict[str, str] = {}
    for old, _, new in pairs:
        old, new = clean_name(old), clean_name(new)
        if merge.setdefault(old, new) != new:
            raise DataError(f"merge={text}: class {old!r} is named twice: name the class that it becomes once")
    if not all(old and new for old, new in merge.items()):
        raise DataError(f"merge={text}: write class:class pairs, as in merge=truck:car,van:car")
    check_class_names(merge.values(), f"merge={text}", DataError)
    return merge


def choose_classes(
    data: Annotations, classes: Classes, merge: Mapping[str, str], select: bool, complete: bool
) -> Annotations:
    """Merges classes by name, and then gives `data` the classes `classes` in that order (None: the classes of the data).

    With `select` boxes of other classes are left out with a note, otherwise they are an error. `complete`: every name must
    be a class of the data. Without it, data that have exactly `classes` are returned unchanged, because a run writes its
    validation data with merged classes. Raises DataError."""
    if data.classes == classes and not complete:
        return data
    names = as_spelled([merge.get(name, name) for name in data.classes], classes or ())
    final = tuple(dict.fromkeys(names)) if classes is None else classes
    for option, wanted, there in (("merge", merge, data.classes), ("classes", final if select else (), names)):
        known = set(there)
        missing = [name for name in wanted if name not in known]
        if complete and missing:
            only = first_names(tuple(dict.fromkeys(there)))  # merged classes have the same name
            fix = f"did you mean {near!r}?" if (near := nearest(missing[0], known)) else "correct it"
            raise DataError(f"{option}=: there is no class {missing[0]!r} in {data.source}, only {only}: {fix}")
    order = {name: index for index, name in enumerate(final)}
    table = np.array([order.get(name, -1) for name in names], np.int32)
    labels = table[data.labels] if len(table) else data.labels
    notes, others = list(data.notes), Counter(names[label] for label in data.labels[labels < 0].tolist())
    if others and not select:
        raise DataError(f"{data.source}: {unknown_class(next(iter(others)), final)}")
    if others:
        counts = ", ".join(f"{name} {number}" for name, number in others.most_common(10))
        notes.append(f"{data.source}: boxes of other classes, left out: {others.total()} ({counts})")
    annotated = _annotated_of(data, names, final)
    data = replace(data, labels=labels).keep_boxes(labels >= 0)
    data = replace(
        data, classes=final, category_ids=ids_of(names, data.category_ids.tolist(), final), notes=tuple(notes)
    )
    return data if annotated is None else data.with_annotated(annotated)


def ids_of(names: Sequence[str], ids: Sequence[int], classes: Sequence[str]) -> np.ndarray:
    """Returns the id of each of `classes`: that of the first of `names` that is equal, or one after the largest."""
    known = dict(zip(reversed(names), reversed(ids), strict=True))
    new_ids = count(max(ids, default=-1) + 1)
    return np.array([known[name] if name in known else next(new_ids) for name in classes], np.int64)


def _annotated_of(data: Annotations, names: Sequence[str], final: Sequence[str]) -> np.ndarray | None:
    """Returns which of the classes `final` are annotated in each image, bool [N, C]; None: all, in all images.

    `names`: what the classes of `data` become. One of several that become the same is enough: they are other words for it."""
    if data.annotated is None:
        return None
    before, after = data.annotated_mask(), np.zeros((len(data), len(final)), bool)
    order = {name: label for label, name in enumerate(final)}
    for label, name in enumerate(names):
        if name in order:
            after[:, order[name]] |= before[:, label]
    return after


def ignore_class(data: Annotations, name: str) -> Annotations:
    """Returns data without the class `name`, whose boxes become ignore regions of all other classes.

    Classes that are not annotated in the image get no region: a region is a box, which would tell that its class is annotated."""
    label, image = data.classes.index(name), data.image_of_boxes()
    others = np.delete(np.arange(len(data.classes)), label)
    regions = np.flatnonzero(data.labels == label)
    are_annotated = data.annotated_mask()[image[regions]][:, others]  # [regions, others]
    counts = np.ones(len(data.labels), np.int64)
    counts[regions] = are_annotated.sum(1)
    rows = np.repeat(np.arange(len(data.labels)), counts)
    new = data.with_rows(rows, np.concatenate([[0], np.cumsum(counts)])[data.starts])
    repeated = data.labels[rows] == label
    labels = new.labels.copy()
    labels[repeated] = others[np.nonzero(are_annotated)[1]]
    is_ignored = repeated if new.is_ignored is None else new.is_ignored | repeated
    text = f"{data.source}: boxes of the class {name!r}, which are ignore regions of all other classes: {len(regions)}"
    new = replace(
        new, labels=labels, crowd=new.crowd | repeated, is_ignored=is_ignored, notes=(*data.notes, one_line(text))
    )
    kept = tuple(data.classes[other] for other in others)
    return choose_classes(new, kept, {}, select=False, complete=False)


def with_known_classes(
    known: tuple[str, ...], train: Annotations, val: Annotations, are_chosen: bool
) -> tuple[Annotations, Annotations, list[str]]:
    """Returns both splits with the classes that a model knows before their new ones, and notes to print.

    Training boxes of known classes are left out; validation boxes of them stay. `are_chosen`: the user has named the classes,
    so none of them may be known. Raises DataError with the fix if there is nothing new to learn, or a name is in doubt."""
    names = as_spelled(train.classes, known)
    new = tuple(name for name in names if name not in known)
    old = tuple(name for name in names if name in known)
    if are_chosen and old:
        raise DataError(
            f"classes={','.join(train.classes)}: the model has the class {old[0]!r} already: name the new classes only, or "
            f"leave out add_classes to train all classes"
        )
    if not new:
        raise DataError(
            f"{train.source}: the model has all of its classes already {first_names(old)}: leave out add_classes to train "
            f"them, or rename one, as in {quote(f'merge={old[0]}:my {old[0]}')}"
        )
    for group in similar_names((*known, *new)):
        pair = [name for name in group if name in known], [name for name in group if name in new]
        if all(pair):
            first, second = pair[0][0], pair[1][0]
            raise DataError(
                f"{train.source}: the class {second!r} and the class {first!r} of the model look alike: "
                f"{quote(f'merge={second}:{first}')} makes them one, {quote(f'merge={second}:my {second}')} makes it a new one"
            )
    classes = (*known, *new)
    train, val = (choose_classes(data, classes, {}, select=False, complete=False) for data in (train, val))
    is_new = train.labels >= len(known)
    notes = []
    if not is_new.all():
        notes.append(
            f"{train.source}: boxes of classes that the model has already, which are not trained: {(~is_new).sum()}; "
            f"validation boxes of these classes are evaluated"
        )
    if not is_new.any():
        raise DataError(f"{train.source}: no boxes of the new classes {first_names(new)}: there is nothing to train on")
    return train.keep_boxes(is_new), val, notes


def similar_names(names: Iterable[str]) -> list[list[str]]:
    """Returns the groups of class names that look alike, see `look_of`."""
    groups = defaultdict(list)
    for name in names:
        groups[look_of(name)].append(name)
    return [group for group in groups.values() if len(group) > 1]


def class_notes(names: Iterable[str]) -> list[str]:
    """Returns a note about the groups of `similar_names`, and for each class that may be no object, with the fix."""
    names, notes = list(names), []
    if groups := similar_names(names):
        named = "; ".join(", ".join(map(repr, group)) for group in groups)
        notes.append(f"classes that look alike: {named}; if they mean the same, {merge_fix(groups)}")
    for name in (name for name in names if _NO_OBJECT.fullmatch(look_of(name))):
        fix = quote(printable(f"ignore_regions={name}"))
        notes.append(f"the class {name!r} is trained as objects; if it marks what is to be ignored, {fix}")
    return notes


def merge_fix(groups: Sequence[Sequence[str]]) -> str:
    """Returns merge=, as a shell needs it, that makes one class of each group of names, and what it does."""
    if any(":" in name for group in groups for name in group):
        return "give them one name in the data"
    return f"{merge_command([f'{name}:{group[0]}' for group in groups for name in group[1:]])} makes them one"


def merge_command(pairs: Sequence[str]) -> str:
    """Returns merge= with pairs old:new, as a shell needs it. Characters that are not seen are escaped for `parse_merge`."""
    text = ",".join(f'"{pair}"' if "," in pair else pair for pair in pairs)
    return quote(printable(f"merge={text}"))


def join(parts: Sequence[Annotations], source: str, federated: bool = False) -> Annotations:
    """Returns the images of all parts as one, with the classes of all parts; image ids are 1 to N if they repeat.

    `federated`: a class that a part does not have is not annotated in its images (as in LVIS)."""
    first, starts, paths = parts[0], [np.zeros(1, np.int64)], Strings()
    if len(parts) == 1:
        return first
    for data in parts:
        starts.append(data.starts[1:] + starts[-1][-1])
        for index in range(len(data)):
            paths.append(data.path(index))
    files = Strings(data.files[i] or data.source for data in parts for i in range(len(data)))
    other_splits = [name for name in first.other_splits if all(name in data.other_splits for data in parts)]
    names = ("image_ids", "sizes", "boxes", "crowd", "areas", "lines", "box_lines")
    columns: dict[str, Any] = {name: np.concatenate([getattr(data, name) for data in parts]) for name in names}
    if len(np.unique(columns["image_ids"])) < len(columns["image_ids"]):
        columns["image_ids"] = np.arange(1, len(columns["image_ids"]) + 1)
    classes, notes = _classes_of_all(parts)
    if federated:
        notes = []  # each set has its own
    order = {name: index for index, name in enumerate(classes)}
    tables = [np.array([order[name] for name in data.classes], np.int32) for data in parts]
    labels = [table[data.labels] for table, data in zip(tables, parts, strict=True)]
    joined = replace(
        first,
        source=source,
        classes=classes,
        category_ids=_ids_of_all(parts, classes),
        root="",
        starts=np.concatenate(starts),
        is_ignored=_ignored_of_all(parts),
        names=paths,
        files=files,
        labels=np.concatenate(labels),
        other_splits=tuple(other_splits) if federated else first.other_splits,
        is_coco=any(data.is_coco for data in parts),
        notes=(*(note for data in parts for note in data.notes), *notes),
        **columns,
    )
    if federated or any(data.annotated is not None for data in parts):
        return joined.with_annotated(_annotated_of_all(parts, tables, len(classes), federated))
    return joined


def _ignored_of_all(parts: Sequence[Annotations]) -> np.ndarray | None:
    """Returns which boxes of all parts are ignore regions, bool [K]; None if no part has any."""
    if all(data.is_ignored is None for data in parts):
        return None
    columns = [np.zeros(len(data.labels), bool) if data.is_ignored is None else data.is_ignored for data in parts]
    return np.concatenate(columns)


def _annotated_of_all(
    parts: Sequence[Annotations], tables: Sequence[np.ndarray], num_classes: int, federated: bool
) -> np.ndarray:
    """Returns the annotated classes in the images of all parts, bool [N, C]. `tables`: classes of each part."""
    masks = []
    for data, table in zip(parts, tables, strict=True):
        mask = np.full((len(data), num_classes), not federated)
        mask[:, table] = data.annotated_mask()
        masks.append(mask)
    return np.concatenate(masks)


def _classes_of_all(parts: Sequence[Annotations]) -> tuple[tuple[str, ...], list[str]]:
    """Returns (the classes of all parts, a note about those that the first part does not have).

    Classes that are numbers are in the order of the numbers, others in the order in which they come."""
    sources: dict[str, str] = {}
    for data in parts:
        for name in data.classes:
            sources.setdefault(name, data.source)
    names = tuple(sources)
    others = [f"{name} ({sources[name]})" for name in names if name not in parts[0].classes]
    if not others:
        return names, []
    if all(map(str.isdecimal, names)):
        names = tuple(sorted(names, key=int))
    text = f"classes that {parts[0].source} does not have: {len(others)}, from other files: {', '.join(others[:10])}"
    return names, [one_line(text)]


def _ids_of_all(parts: Sequence[Annotations], classes: Sequence[str]) -> np.ndarray:
    """Returns the id of each class: the id in the first part with it, or one after the largest if another class has this id."""
    if not parts[0].is_coco:
        return np.arange(len(classes), dtype=np.int64)
    new_ids = count(max(int(data.category_ids.max(initial=0)) for data in parts) + 1)
    ids: dict[str, int] = {}
    for data in parts:
        for name, category_id in zip(data.classes, data.category_ids.tolist(), strict=True):
            if name not in ids:
                ids[name] = next(new_ids) if category_id in ids.values() else category_id
    return np.array([ids[name] for name in classes], np.int64)
