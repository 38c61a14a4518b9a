"""Reading and checking the training and the validation data of a run."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from datasets.classes import merge_notes
from datasets.errors import DataError
from datasets.formats import is_names, read, read_classes
from datasets.recognition import JSON_LINES
from datasets.scan import prepare
from datasets.sources import fraction_of, is_demo, val_of
from datasets.store import Annotations
from utils.config import ConfigError


def read_train_and_val(
    train: str,
    val: str,
    split_seed: int,
    classes: str | None,
    merge: str | None,
    image_root: str | None,
    bad_boxes: str,
    bad_images: str,
    log: Callable[[str], None],
) -> tuple[Annotations, Annotations]:
    """Reads and checks the training and the validation data, and draws the demo if it is missing.

    `val`: a source, or a fraction of the training images as text (".2"), which are chosen with `split_seed`. If it is that of
    the demo and `train` is not, it is the validation part of `train`. Raises DataError or ConfigError with the fix."""
    if is_demo(train):
        from datasets import demo

        demo.draw(Path(train).parent)
    fraction, source = fraction_of(val), val_of(val, train)
    inside = source != val
    sources = {"train": train} | ({} if fraction else {"val": source})
    if inside and os.path.isfile(train) and not train.lower().endswith((".yaml", ".yml", ".data", *JSON_LINES)):
        raise ConfigError(_no_val(train))
    found = read_parts(sources, classes, merge, image_root, bad_boxes, bad_images, log)
    if fraction:
        from datasets.split import train_and_val

        return train_and_val(found[0], fraction, split_seed)
    if inside and set.intersection(*({data.path(i) for i in range(len(data))} for data in found)):
        raise ConfigError(_no_val(train))
    return found


def _no_val(train: str) -> str:
    return (
        f"train={train}, but val= still names the demo, and the training data have no part for validation: "
        f"set val= to images of your own, or val=.2 to split off a fifth of the training images"
    )


def read_parts(
    sources: Mapping[str, str],
    classes: str | None,
    merge: str | None,
    image_root: str | None,
    bad_boxes: str,
    bad_images: str,
    log: Callable[[str], None],
) -> tuple[Annotations, ...]:
    """Reads and checks the parts of a data set; `sources` maps a part ("train", "val") to its file or folder.

    All parts have the classes that `classes` names, or those of the first part. Logs what is left out. Raises DataError for
    the problems of all parts together."""
    names, found, errors, noted = read_classes(classes) if classes else None, [], [], set()
    for part, source in sources.items():
        try:
            data = read(source, part, names, image_root, bad_boxes, merge, select=is_names(classes))
            if len(data) == 0:
                raise DataError(f"{source}: no images; {part}= names an annotation file or a folder with images")
            if part == "train" and len(data.labels) == 0:
                left = "".join(f"; {note}" for note in data.notes)
                hint = "; a line is: path x1,y1,x2,y2,class ..." if source.lower().endswith(".txt") else ""
                raise DataError(f"{source}: no boxes in any of the images ({len(data)}){hint}{left}")
            names = data.classes
            data, notes = prepare(data, bad_images, bad_boxes)
        except DataError as error:
            errors.append(error)
            if error.rest is not None:  # the images of what could be read are checked too
                try:
                    prepare(error.rest, bad_images, bad_boxes)
                except DataError as more:
                    errors.append(more)
            continue
        if found:  # the validation images are converted as those of the training
            data, outside = data.with_range(found[0].value_range)
            notes += outside
        else:
            notes += [*merge_notes(names), *filter(None, [data.value_text()])]
        for note in (note for note in notes if note not in noted):  # both parts may be in one file
            log(f"note: {note}")
        noted.update(notes)
        found.append(data)
    if len(errors) > 1:
        raise DataError("\n".join(dict.fromkeys(map(str, errors))))
    if errors:
        raise errors[0]
    for note in unused_splits(sources, found):
        log(f"note: {note}")
    return tuple(found)


def unused_splits(sources: Mapping[str, str], found: Sequence[Annotations]) -> list[str]:
    """Returns a note for each source that has splits which none of the annotations `found` has; `sources` are theirs."""
    others: dict[str, list[str]] = {}
    for source, data in zip(sources.values(), found, strict=True):
        source = os.path.normpath(source)
        others[source] = [name for name in others.get(source, data.other_splits) if name in data.other_splits]
    return [f"{source}: splits that are not used: {', '.join(names)}" for source, names in others.items() if names]
