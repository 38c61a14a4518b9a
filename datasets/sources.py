"""Which data a run trains and validates on: the demo, files or folders, or a fraction of the training images."""

import os
from pathlib import Path

from datasets.store import Annotations
from utils.config import ConfigError

DEMO = ("data/demo/train.txt", "data/demo/val.txt")  # the default data of train.py


def is_demo(train: str) -> bool:
    """Returns whether the training data are the drawn ones that `python train.py` starts with."""
    return Path(train) == Path(DEMO[0])


def val_of(val: str, train: str) -> str:
    """Returns the source of the validation data: `train`, which then has a part for it, if `val` is still that of the demo."""
    return train if val == DEMO[1] and not is_demo(train) else val


def val_text(val: str, train: str, source: str) -> str:
    """Returns in words where the validation images come from, for the table. `source`: the file or folder that was read."""
    if fraction := fraction_of(val):
        return f"{fraction:g} of the training images"
    if val_of(val, train) == val:
        return val
    return source if source != train else f"{train}, its validation split"


def fraction_of(val: str) -> float | None:
    """Returns the fraction of val=.2, None for the path of a source. Raises ConfigError for a number outside of 0 to 1."""
    if val.endswith("%") and not os.path.exists(val):
        raise ConfigError(f"val={val}: write a fraction of the training images: val={_of_per_cent(val)}")
    try:
        fraction = float(val)
    except ValueError:
        return None
    if os.path.exists(val):
        return None
    if not 0 < fraction < 1:
        raise ConfigError(f"val={val}: a fraction of the training images is between 0 and 1, as in val=.2")
    return fraction


def _of_per_cent(text: str) -> str:
    """Returns the fraction of "20%", as text; ".2" for what is not between 0 and 100 %."""
    try:
        fraction = float(text.rstrip("% ")) / 100
    except ValueError:
        return ".2"
    return f"{fraction:g}" if 0 < fraction < 1 else ".2"


def val_source(val: str, train: str, folder: Path, data: tuple[Annotations, Annotations], save: bool) -> str:
    """Returns the path of the validation data, for a checkpoint: `val`, or what stands in its place.

    For a fraction it is val.txt in the run folder, val.json for COCO JSON. With `save` it is written, and the same for train,
    from the training and the validation data `data`."""
    if fraction_of(val) is None:
        return val_of(val, train)
    from datasets.split import file_name, write

    if save:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, dict(zip(("train", "val"), data, strict=True)))
    return str(folder / file_name("val", data[1]))
