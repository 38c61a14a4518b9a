"""Which data a run trains and validates on: the demo, files or folders, or a part of the training images."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from datasets import demo
from datasets.check_images import check_images, repeated_boxes
from datasets.classes import class_notes
from datasets.errors import WARNING, DataError, logged, one_line, together
from datasets.formats.formats import LINES, TABLE
from datasets.formats.options import ReadOptions
from datasets.formats.read import read, sets_of
from datasets.split import Division, file_name, train_and_val, write
from datasets.store import Annotations
from utils.config import ConfigError
from utils.remote_cache import is_archive, shown
from utils.text import amount

MAY_HAVE_SPLITS = (".yaml", ".yml", ".data", ".xml", *LINES, *TABLE)  # suffixes of files that may hold several splits
MAX_FOLDS = 1000
SPLIT_SEED = 0  # of val=.2: runs that differ in seed= have the same validation images
DEMO = ("data/demo/train.txt", "data/demo/val.txt")  # the default data of train.py


def is_demo(train: str) -> bool:
    """Returns whether the training data are the drawn ones that `python train.py` starts with."""
    return Path(train) == Path(DEMO[0])


def val_of(val: str, train: str) -> str:
    """Returns the source of the validation data: `train`, which then has a split for it, if `val` is still the demo's."""
    return train if val == DEMO[1] and not is_demo(train) else val


def val_text(val: str, train: str, source: str) -> str:
    """Returns in words where the validation images come from, for the table. `source`: the file or folder that was read."""
    if division := division_of(val):
        what = f"fold {val}" if "/" in val else f"{division.fractions[division.val]:g}"
        return f"{what} of the training images"
    if val_of(val, train) == val:
        return val
    return source if source != train else f"{train}, its validation split"


def division_of(val: str) -> Division | None:
    """Returns how val=.2 or val=1/5 divides the training images, None for the path of a source. Raises ConfigError."""
    if val.endswith("%") and not os.path.exists(val):
        raise ConfigError(f"val={val}: write a fraction of the training images, such as val=.2")
    if os.path.exists(val):
        return None
    if fold := re.fullmatch(r"(\d{1,9})/(\d{1,9})", val):
        number, count = map(int, fold.groups())
        if not 1 <= number <= count or not 2 <= count <= MAX_FOLDS:
            example = f"val=1/5, val=2/5, ..., val=5/5, of at most {MAX_FOLDS}"
            raise ConfigError(f"val={val}: a fold of a cross-validation is written {example}")
        return Division(f"val={val}", (1 / count,) * count, number - 1)
    try:
        fraction = float(val)
    except ValueError:
        return None
    if not 0 < fraction < 1:
        raise ConfigError(f"val={val}: a fraction of the training images is between 0 and 1, as in val=.2")
    return Division(f"val={fraction:g}", (1 - fraction, fraction), 1)


def require_division(division: Division | None, split_by: str | None) -> None:
    """Raises ConfigError for a constant split_by= that has no effect, because val= names other data."""
    if split_by and not division:
        raise ConfigError(f"split_by={split_by} divides the training images: add val=.2, or leave it out")


def val_source(
    val: str, train: str, folder: Path, data: tuple[Annotations, Annotations], save: bool, other_classes: bool = False
) -> str:
    """Returns the path of the validation data, for a checkpoint: `val`, or what stands in its place.

    For a part of the training images, and with `other_classes` than the file has, it is val.txt in the run folder, val.json
    for COCO JSON. With `save` it is written, and the same for train, from the training and the validation data `data`."""
    if division_of(val) is None and not other_classes:
        return val_of(val, train)
    if save:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, dict(zip(("train", "val"), data, strict=True)))
    return shown(str(folder / file_name("val", data[1])))


def read_train_and_val(
    train: str, val: str, options: ReadOptions, log: Callable[[str], None]
) -> tuple[Annotations, Annotations]:
    """Reads and checks the training and the validation data, and draws the demo if it is missing.

    `val`: a source, or a part of the training images as text (".2", "1/5"), which are the same in each run. If it is the demo
    and `train` is not, it is the validation split of `train`. Raises DataError or ConfigError with the fix."""
    if is_demo(train):
        demo.draw(Path(train).parent)
    division, source = division_of(val), val_of(val, train)
    inside = source != val
    sources = {"train": train} | ({} if division else {"val": source})
    require_division(division, options.split_by)
    found = read_splits(sources, options, log, inside)
    if division:
        data = train_and_val(found[0], division, SPLIT_SEED, options.split_by)
        _require_boxes(data[0], train, [f"val={val} has taken those with boxes"])
        return data
    if inside:
        ours, theirs = ([data.path(i) for i in range(len(data))] for data in found)
        if error := shared_error(train, ours, theirs):
            raise ConfigError(error)
    return found[0], found[1]


def may_have_splits(source: str) -> bool:
    """Returns whether a source, or each of several, may hold several splits: a folder, or a file of a kind that names them."""
    return all(
        not os.path.isfile(one) or is_archive(one) or one.lower().endswith(MAY_HAVE_SPLITS) for one in sets_of(source)
    )


def _require_val(data: Annotations, train: str, options: ReadOptions) -> None:
    """Raises ConfigError if the training data have no split for validation, with the sets that lack it."""
    if data.other_splits:
        return
    sets = sets_of(train)
    plain = ReadOptions(image_root=options.image_root)
    own = [one for one in sets if len(sets) > 1 and read(one, "train", plain).other_splits]
    without = ", ".join(one for one in sets if one not in own)
    fix = f"val=.2 splits off a fifth of the training images, val={','.join(own) or 'DATA'} names others"
    raise ConfigError(f"train={train}: there is no split for validation in {without}: {fix}")


def shared_error(train: str, ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Returns the error of validation images `theirs` that are training images `ours`, for a run without val=; or "".

    The split for validation may have all images, as `train: images` and `val: images` of a data.yaml."""
    trained = set(ours)
    shared = [path for path in theirs if path in trained]
    if not shared or trained == set(theirs):
        return ""
    found = f"{len(shared)} of {amount(len(theirs), 'validation image')}"
    fix = "take them out of one split, or write val=.2 to split off a fifth of the training images"
    return one_line(f"{train}: training images in the validation split, such as {shared[0]}: {found}; {fix}")


def read_splits(
    sources: Mapping[str, str], options: ReadOptions, log: Callable[[str], None], is_inside: bool = False
) -> tuple[Annotations, ...]:
    """Reads and checks the splits of a data set; `sources` maps a split ("train", "val") to its file or folder. `is_inside`: the
    validation images must be a split of the training data.

    All splits have the classes of the options, or the classes of the first split; the others may have the options' known
    classes, too. Logs what is left out. Raises DataError for the problems of all splits together."""
    found: list[Annotations] = []
    errors: list[DataError] = []
    noted: set[str] = set()
    for split, source in sources.items():
        if found and is_inside:
            _require_val(found[0], source, options)
        try:
            data = read(source, split, options)
            if len(data) == 0:
                raise DataError(f"{source}: no images; {split}= names an annotation file or a folder with images")
            known = (name for name in options.known if name not in data.classes)
            options = replace(options, classes=(*data.classes, *known))
            before = data.notes
            data, notes = check_images(data, options)
            if split == "train":
                _require_boxes(data, source, [*before, *notes])
            notes += repeated_boxes(data)
        except DataError as error:
            errors.append(error)
            continue
        if found:  # the validation images are converted like the training images
            data, outside = data.with_range(found[0].value_range)
            notes += outside
        else:
            notes += [*class_notes(data.classes), *filter(None, [data.value_text()])]
        for note in (note for note in notes if note not in noted):  # both splits may be in one file
            log(logged(note))
        noted.update(notes)
        found.append(data)
    if errors:
        raise together(errors)
    for note in unused_splits(sources, found):
        log(logged(note))
    return tuple(found)


def _require_boxes(data: Annotations, source: str, notes: Sequence[str]) -> None:
    """Raises DataError for training data without boxes to learn, with the notes of what was left out."""
    if data.crowd.all():
        left = "".join(f"; {note}" for note in notes)
        hint = "; a line is: path x1,y1,x2,y2,class ..." if source.lower().endswith(".txt") else ""
        regions = (
            f" besides {amount(len(data.crowd), 'crowd region')}, which are not learned" if len(data.crowd) else ""
        )
        fix = "label them, or name the file or the folder with the boxes"
        raise DataError(f"{source}: no boxes in any of the images ({len(data)}){regions}: {fix}{hint}{left}")


def unused_splits(sources: Mapping[str, str], found: Sequence[Annotations]) -> list[str]:
    """Returns a note for each source that has splits which none of the annotations `found` has; `sources` are theirs."""
    others: dict[str, list[str]] = {}
    for source, data in zip(sources.values(), found, strict=True):
        for one in map(os.path.normpath, sets_of(source)):
            others[one] = [name for name in others.get(one, data.other_splits) if name in data.other_splits]
    notes = []
    unused = {source: names for source, names in others.items() if names}
    for source, names in unused.items():
        note = f"{source}: splits that the run does not use: {', '.join(names)}"
        is_forgotten = "val" in names and list(sources) == ["train"]
        notes.append(f"{WARNING}{note}; without val= it validates on val" if is_forgotten else note)
    return notes
