"""What the user decides about data of any format: `ReadOptions`, which read.py applies."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from datasets.formats.class_names import is_names, read_classes
from datasets.groups import check_split_by
from datasets.store import Classes
from utils.text import split_names


@dataclass(frozen=True)
class ReadOptions:
    """What the user decides about data of any format."""

    classes: Classes = None  # class names of the result, in their order; None: the classes of the data
    select: bool = False  # boxes of other classes are left out with a note; otherwise they are an error
    merge: str | None = None  # truck:car,van:car renames classes before `classes` counts
    image_root: str | None = None  # folder of the images, if they are not near the annotations
    bad_boxes: str = "drop"  # boxes without area: "error" stops and names them, "drop" leaves them out with a note
    bad_images: str = "error"  # images that cannot be read: see datasets.scan
    split_by: str | None = None  # images that val=.2 keeps together: see datasets.groups
    known: tuple[str, ...] = ()  # classes of the model that only the validation data may have
    all_labeled: bool = False  # all classes are annotated in all images, whatever the data tell
    ignore_regions: tuple[
        str, ...
    ] = ()  # crowd: crowd regions are ignore regions; other words: classes, for all others

    @property
    def ignored_classes(self) -> list[str]:
        """The classes of ignore_regions=, whose boxes become ignore regions."""
        return [name for name in self.ignore_regions if name != "crowd"]


def read_options(
    classes: str | None = None,
    merge: str | None = None,
    image_root: str | None = None,
    bad_boxes: str = ReadOptions.bad_boxes,
    bad_images: str = ReadOptions.bad_images,
    split_by: str | None = None,
    all_labeled: bool = False,
    ignore_regions: str | None = None,
) -> ReadOptions:
    """Returns the options that a script has as constants. `classes`: cat,dog selects classes; a file of names does not.

    Raises DataError for a file of classes that cannot be read, and ConfigError for a pattern split_by= that is wrong."""
    return ReadOptions(
        classes=read_classes(classes) if classes else None,
        select=is_names(classes),
        merge=merge,
        image_root=image_root,
        bad_boxes=bad_boxes,
        bad_images=bad_images,
        split_by=check_split_by(split_by),
        all_labeled=all_labeled,
        ignore_regions=tuple(dict.fromkeys(filter(None, split_names(ignore_regions or "")))),
    )


def options_of(config: Mapping[str, Any], classes: tuple[str, ...]) -> ReadOptions:
    """Returns the options of a run with the constants `config`, for data of a model with the classes `classes`."""
    names = ("merge", "image_root", "bad_boxes", "bad_images", "all_labeled", "ignore_regions")
    options = read_options(**{name: config[name] for name in names if config.get(name)})
    return replace(options, classes=classes, select=is_names(config.get("classes")))
