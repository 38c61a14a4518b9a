"""Selects, orders and merges the classes of annotations, and joins annotations."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from datasets.errors import DataError
from datasets.store import Annotations, Classes, Strings, brief, unknown_class
from utils.text import check_class_names, clean_name


def parse_merge(text: str | None) -> dict[str, str]:
    """Returns {class: the class that it becomes} of merge=truck:car,van:car. Raises DataError."""
    pairs = [pair.partition(":") for pair in (text or "").split(",") if text]
    merge = {}
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
    names = [merge.get(name, name) for name in data.classes]
    final = tuple(dict.fromkeys(names)) if classes is None else classes
    for option, wanted, there in (("merge", merge, data.classes), ("classes", final if select else (), names)):
        known = set(there)
        missing = [name for name in wanted if name not in known]
        if complete and missing:
            raise DataError(
                f"{option}=: there is no class {missing[0]!r} in {data.source}, only {brief(tuple(there))}: correct it"
            )
    order = {name: index for index, name in enumerate(final)}
    table = np.array([order.get(name, -1) for name in names], np.int32)
    labels = table[data.labels] if len(table) else data.labels
    notes, others = list(data.notes), Counter(names[label] for label in data.labels[labels < 0].tolist())
    if others and not select:
        raise DataError(f"{data.source}: {unknown_class(next(iter(others)), final)}")
    if others:
        counts = ", ".join(f"{name} {number}" for name, number in others.most_common(10))
        notes.append(f"{data.source}: boxes of other classes, left out: {others.total()} ({counts})")
    ids = dict(zip(reversed(names), reversed(data.category_ids.tolist()), strict=True))
    new_ids = count(max(data.category_ids.tolist(), default=-1) + 1)
    category_ids = [ids[name] if name in ids else next(new_ids) for name in final]
    data = replace(data, labels=labels).keep_boxes(labels >= 0)
    return replace(data, classes=final, category_ids=np.array(category_ids, np.int64), notes=tuple(notes))


def similar_names(names: Iterable[str]) -> list[list[str]]:
    """Returns the groups of class names that differ in case or blanks only."""
    groups = defaultdict(list)
    for name in names:
        groups["".join(name.casefold().split())].append(name)
    return [group for group in groups.values() if len(group) > 1]


def merge_notes(names: Iterable[str]) -> list[str]:
    """Returns a note for each group of `similar_names`, with the fix."""
    return [
        f"classes that differ in case or blanks only: {', '.join(map(repr, group))}; "
        f"merge={','.join(f'{name}:{group[0]}' for name in group[1:])} makes them one"
        for group in similar_names(names)
    ]


def join(parts: Sequence[Annotations], source: str) -> Annotations:
    """Returns the images of all parts, which must have the same classes, as one; image ids are 1 to N if they repeat."""
    first, starts, paths = parts[0], [np.zeros(1, np.int64)], Strings()
    if len(parts) == 1:
        return first
    for data in parts:
        starts.append(data.starts[1:] + starts[-1][-1])
        for index in range(len(data)):
            paths.append(data.path(index))
    files = Strings(data.files[i] or data.source for data in parts for i in range(len(data)))
    columns = {
        name: np.concatenate([getattr(data, name) for data in parts])
        for name in ("image_ids", "sizes", "boxes", "labels", "crowd", "areas", "lines")
    }
    if len(np.unique(columns["image_ids"])) < len(columns["image_ids"]):
        columns["image_ids"] = np.arange(1, len(columns["image_ids"]) + 1)
    notes = tuple(note for data in parts for note in data.notes)
    return replace(
        first, source=source, root="", starts=np.concatenate(starts), names=paths, files=files, notes=notes, **columns
    )
