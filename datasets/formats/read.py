"""Reading of data sets in any accepted format: `read`.

recognition.py recognizes the format; its reader is in the module of its name, such as coco.py."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets.classes import choose_classes, parse_merge
from datasets.errors import DataError, check_path
from datasets.formats.annotation_file import is_names
from datasets.formats.recognition import read_path
from datasets.store import Annotations, Classes, Part

PARTS: dict[str, Part] = {
    "train": ("train", "trainval"),
    "val": ("val", "valid", "validation", "test"),
    "test": ("test",),
    "all": (),
}


def read(
    source: str,
    part: str,
    classes: Classes = None,
    image_root: str | None = None,
    bad_boxes: str = "error",
    merge: str | None = None,
    select: bool = False,
) -> Annotations:
    """Reads a data set: a file or a folder in any format that `datasets.formats.recognition` knows. Raises DataError.

    `part`: train, val, test or all, if the source has parts. `classes`: the class names of the result (None: those of the
    data); with `select` boxes of other classes are left out. `merge` ("truck:car") merges classes before that. `image_root`:
    the folder of the images, if they are not next to the annotations. `bad_boxes`: "error" or "drop", for boxes without area.
    """
    source, chosen = check_path(os.fspath(source)), bool(merge) or select
    if not os.path.exists(source):
        raise DataError(f"{source}: no such file or folder in {os.getcwd()}: correct the path")
    try:
        found = read_path(Path(source), PARTS[part], None if chosen else classes, image_root, bad_boxes)
        if chosen:
            found = choose_classes(found, classes, parse_merge(merge), select, complete=part in ("train", "all"))
        return found
    except DataError:
        raise
    except OSError as error:  # such as a name that is too long
        raise DataError(f"{error.filename or source}: {error.strerror}: correct the path or the file") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"  # a list instead of text, ...
        raise DataError(f"{source}: not in the form of its format ({what}): export the data again") from error


def read_validation(
    config: Mapping[str, Any], classes: tuple[str, ...], source: str | None = None, part: str = "val"
) -> Annotations:
    """Reads the validation data of a training with the constants `config`, or a part of `source`, in the same way.

    `classes` are those of the model. Raises DataError."""
    bad_boxes = config.get("bad_boxes") or "drop"
    options = (config.get("image_root"), bad_boxes, config.get("merge"), is_names(config.get("classes")))
    return read(source or config["val"], part, classes, *options)
