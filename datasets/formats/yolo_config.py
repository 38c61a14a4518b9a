"""Contents of a YOLO data file: data.yaml, or obj.data as darknet and CVAT write it."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from datasets.errors import DataError, open_file
from datasets.formats import image_paths
from datasets.formats.annotation_file import read_classes, text_lines
from datasets.store import MAX_UNNAMED
from utils.text import clean_name, first_names

PARTS = ("train", "val", "valid", "validation", "test")  # keys of a data file
MAX_YAML, MAX_NESTING = 1 << 20, 100  # bytes, brackets in brackets; a larger file may take minutes to parse
_NESTING = bytes({ord("["): 1, ord("{"): 1, ord("]"): 255, ord("}"): 255}.get(byte, 0) for byte in range(256))


def yaml_config(path: Path) -> dict[str, Any]:
    """Returns the contents of a yaml data file, with keys in lower case and all values as text. Raises DataError."""
    with open_file(path) as file:
        data = file.read(MAX_YAML + 1)
    nesting = np.frombuffer(data.translate(_NESTING), np.int8).cumsum()
    if len(data) > MAX_YAML or nesting.max(initial=0) > MAX_NESTING:
        raise DataError(f"{path}: not a YOLO data file, it is too large or nested: write train, val and names")
    try:
        config = yaml.load(data, Loader=yaml.BaseLoader)  # only text: the class "no" is not False
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DataError(f"{path}: {error}: write paths with / and without quotes") from error
    if not isinstance(config, dict):
        raise DataError(f"{path}: not a YOLO data file: write train, val and names")
    # CVAT writes Train and Validation
    config = {key.lower(): value for key, value in config.items() if isinstance(key, str)}
    for key, value in config.items():
        if key in (*PARTS, "names", "path", "nc") and not _is_text(value, key):
            raise DataError(f"{path}: {key}: write text or numbers, not lists in lists")
    if "kpt_shape" in config:
        raise DataError(f"{path}: labels with key points (kpt_shape) are not boxes: export the data for detection")
    return config


def _is_text(value: Any, key: str) -> bool:
    """Returns whether the value of a key is text, or a list of texts, or, for names, an object with texts."""
    if isinstance(value, dict) and key == "names":
        value = [*value, *value.values()]
    texts = value if isinstance(value, list) and key not in ("path", "nc") else [value]
    return all(isinstance(text, str) for text in texts)


def darknet_config(path: Path) -> dict[str, Any]:
    """Returns the contents of a darknet data file (obj.data), which CVAT calls YOLO 1.1. Raises DataError."""
    pairs = (line.partition("=") for _, line in text_lines(str(path)))
    config: dict[str, Any] = {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}
    names = image_paths.locate(config.get("names", "obj.names"), [str(path.parent)])
    if not os.path.isfile(names):
        raise DataError(f"{path}: there is no {names}: write it, with one class name per line")
    config["names"] = list(read_classes(names))
    return config


def yaml_names(path: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """Returns the class names of a data file: a list, a mapping from 0, 1, ..., or only their number (`nc`, or `classes`)."""
    key = "classes" if path.suffix.lower() == ".data" else "nc"
    names, count = config.get("names"), config.get(key, "").strip()
    if names and isinstance(names, str):
        raise DataError(f"{path}: names: {names[:60]}: write a list, as in names: [cat, dog]")
    if count and not (count.isdecimal() and len(count) < 10 and int(count) <= MAX_UNNAMED):
        raise DataError(f"{path}: {key} is {count[:60]!r}: write the number of names, at most {MAX_UNNAMED}")
    names = names or [str(index) for index in range(int(count or 0))]
    if isinstance(names, dict):
        if set(names) != {str(index) for index in range(len(names))}:
            raise DataError(f"{path}: the keys of names must be 0 to {len(names) - 1}: correct them")
        names = [names[str(index)] for index in range(len(names))]
    if not names or (count and int(count) != len(names)):
        raise DataError(
            f"{path}: {key} is {count or 'not given'}, but there are {len(names)} names: correct one of them"
        )
    if twice := tuple(name for name, count in Counter(map(clean_name, names)).items() if count > 1):
        raise DataError(f"{path}: two classes of the same name {first_names(twice)}: rename one of them")
    return tuple(names)
