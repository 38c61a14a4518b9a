"""Reading the training and the validation data of a run."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from datasets.errors import DataError
from datasets.formats import is_names, read, read_classes
from datasets.scan import prepare
from datasets.store import Annotations
from utils.config import ConfigError

DEMO = ("data/demo/train.txt", "data/demo/val.txt")  # the default data of train.py


def read_train_and_val(
    train: str,
    val: str,
    seed: int,
    classes: str | None,
    merge: str | None,
    image_root: str | None,
    bad_boxes: str,
    skip_bad_images: bool,
    log: Callable[[str], None],
) -> tuple[Annotations, Annotations]:
    """Reads and checks the training and the validation data, and draws the demo if it is missing.

    `val`: a source, or a fraction of the training images as text (".2"). If it is that of the demo and `train` is not, it is
    the validation part of `train`. Raises DataError or ConfigError with the fix."""
    if is_demo(train):
        from datasets import demo

        demo.draw(Path(train).parent)
    fraction, source = fraction_of(val), val_of(val, train)
    inside = source != val
    sources = {"train": train} | ({} if fraction else {"val": source})
    if inside and os.path.isfile(train) and not train.lower().endswith((".yaml", ".yml", ".data")):
        raise ConfigError(_no_val(train))
    found = read_parts(sources, classes, merge, image_root, bad_boxes, skip_bad_images, log)
    if fraction:
        from datasets.split import train_and_val

        return train_and_val(found[0], fraction, seed)
    if inside and set.intersection(*({data.path(i) for i in range(len(data))} for data in found)):
        raise ConfigError(_no_val(train))
    return found


def is_demo(train: str) -> bool:
    """Returns whether the training data are the drawn ones that `python train.py` starts with."""
    return Path(train) == Path(DEMO[0])


def val_of(val: str, train: str) -> str:
    """Returns the source of the validation data: `train`, which then has a part for it, if `val` is still that of the demo."""
    return train if val == DEMO[1] and not is_demo(train) else val


def _no_val(train: str) -> str:
    return (
        f"train={train}, but val= still names the demo, and the training data have no part for validation: "
        f"set val= to images of your own, or val=.2 to split off a fifth of the training images"
    )


def fraction_of(val: str) -> float | None:
    """Returns the fraction of val=.2, None for the path of a source. Raises ConfigError for a number outside of 0 to 1."""
    try:
        fraction = float(val)
    except ValueError:
        return None
    if os.path.exists(val):
        return None
    if not 0 < fraction < 1:
        raise ConfigError(f"val={val}: a fraction of the training images is between 0 and 1, as in val=.2")
    return fraction


def read_parts(
    sources: Mapping[str, str],
    classes: str | None,
    merge: str | None,
    image_root: str | None,
    bad_boxes: str,
    skip_bad_images: bool,
    log: Callable[[str], None],
) -> tuple[Annotations, ...]:
    """Reads and checks the parts of a data set; `sources` maps a part ("train", "val") to its file or folder.

    All parts have the classes that `classes` names, or those of the first part. Logs what is left out. Raises DataError for
    the problems of all parts together."""
    from datasets.combine import similar_names

    names, found, errors = read_classes(classes) if classes else None, [], []
    for part, source in sources.items():
        try:
            data = read(source, part, names, image_root, bad_boxes, merge, select=is_names(classes))
            if len(data) == 0:
                raise DataError(f"{source}: no images; {part}= names an annotation file or a folder with images")
            if part == "train" and len(data.labels) == 0:
                left = "".join(f"; {note}" for note in data.notes)
                hint = "no boxes; a line is: path x1,y1,x2,y2,class ..."
                raise DataError(f"{source}: {len(data)} images, but {hint}{left}")
            names = data.classes
            data, notes = prepare(data, skip_bad_images, bad_boxes)
        except DataError as error:
            errors.append(error)
            continue
        for note in notes + ([] if found else similar_names(names)):
            log(f"note: {note}")
        found.append(data)
    if len(errors) > 1:
        raise DataError("\n".join(map(str, errors)))
    if errors:
        raise errors[0]
    return tuple(found)


def val_source(val: str, train: str, folder: Path, data: tuple[Annotations, Annotations], save: bool) -> str:
    """Returns the path of the validation data, for a checkpoint: `val`, or what stands in its place.

    For a fraction it is val.txt in the run folder. With `save` it is written, and train.txt, from the training and the
    validation data `data`."""
    if fraction_of(val) is None:
        return val_of(val, train)
    if save:
        from datasets.split import write

        folder.mkdir(parents=True, exist_ok=True)
        write(folder, dict(zip(("train", "val"), data, strict=True)))
    return str(folder / "val.txt")
