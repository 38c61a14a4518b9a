"""Writes any accepted form of data as an annotation file with classes.txt beside it, or as COCO JSON.

    python -m datasets.convert SRC DST.txt [split=.9,.1] [seed=0] [part=train] [classes=FILE] [image_root=DIR] \
[bad_boxes=drop]

With split, DST_train.txt, DST_val.txt and, of three numbers, DST_test.txt are written; pictures of the same content
stay together. part is train, val, test or all (with split: all) of a source that holds several. DST.json is COCO JSON.
"""

import difflib
import json
import os
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np

from datasets.annotations import annotation_line
from datasets.formats import PARTS, read, read_classes
from datasets.images import prepare, scan
from datasets.store import Annotations, DataError


def arguments(words: list[str], usage: str, count: int, names: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """-> (the `count` plain words, the name=value pairs). Ends the program with what is wrong and the usage."""
    plain, options = [], {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name.isidentifier():  # ./a=b is a path
            plain.append(word)
        elif name in names:
            options[name] = value
        else:
            near = difflib.get_close_matches(name, names, 1)
            raise SystemExit(f"{name}= is not known{f'; {near[0]}= is' if near else ''}\n\n{usage}")
    if len(plain) != count:
        raise SystemExit(usage)
    return plain, options


def split_parts(digests: np.ndarray, shares: tuple[float, ...], seed: int) -> list[np.ndarray]:
    """Divides pictures into one part for each share -> their indices, disjoint and sorted, the same for the same seed.

    `digests [N]`: equal ones stay in one part; 0 (not read) is equal to nothing.
    """
    unread = digests == 0
    keys = np.stack([np.where(unread, np.arange(len(digests)), -1), digests], -1)
    groups = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(groups)
    order = np.random.default_rng(seed).permutation(len(sizes))
    middles = np.cumsum(sizes[order]) - sizes[order] / 2
    part_of_group = np.empty(len(sizes), int)
    part_of_group[order] = np.searchsorted(np.cumsum(shares)[:-1] * len(digests), middles, side="right")
    return [np.flatnonzero(part_of_group[groups] == part) for part in range(len(shares))]


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(word) for word in text.split(","))
    except ValueError:
        shares = ()
    if len(shares) not in (2, 3) or min(shares) <= 0 or abs(sum(shares) - 1) > 1e-6:
        raise DataError(f"split={text}: give two or three shares that add up to 1, as in split=.9,.1 or split=.8,.1,.1")
    return shares


def _divide(annotations: Annotations, target: Path, split: str, seed: int) -> dict[Path, Annotations]:
    digests = scan([annotations.path(i) for i in range(len(annotations))]).digests
    names = [target.with_name(f"{target.stem}_{part}{target.suffix}") for part in ("train", "val", "test")]
    parts = split_parts(digests, _shares(split), seed)
    if not all(map(len, parts)):
        sizes = ", ".join(str(len(part)) for part in parts)
        raise DataError(f"split={split} divides {len(annotations)} pictures into {sizes}: give the empty part more")
    return {name: annotations.select(part) for name, part in zip(names, parts, strict=False)}


_real = lru_cache(maxsize=1000)(os.path.realpath)  # ".." leads out of the real folder, not out of a link to it


def _relative(path: str, folder: Path) -> str:
    """The path as seen from `folder`, with "/"; the absolute path where there is no way (another drive)."""
    place, name = os.path.split(path)
    try:
        return os.path.join(os.path.relpath(_real(place), _real(folder)), name).replace(os.sep, "/").removeprefix("./")
    except ValueError:
        return os.path.abspath(path)


def text_of(annotations: Annotations, folder: Path) -> str:
    """The annotation file of these pictures, to be put into `folder`. Raises DataError for a path it cannot hold."""
    try:
        paths = (_relative(annotations.path(i), folder) for i in range(len(annotations)))
        return "".join(f"{annotation_line(path, *annotations.boxes_of(i))}\n" for i, path in enumerate(paths))
    except ValueError as error:
        raise DataError(str(error)) from error


def json_of(annotations: Annotations, folder: Path) -> str:
    """COCO JSON of these pictures, to be put into `folder`; the ids of categories and pictures are kept."""
    data = annotations.coco()
    for index, image in enumerate(data["images"]):
        image["file_name"] = _relative(annotations.path(index), folder)
    return json.dumps(data, ensure_ascii=False)


def _classes_text(path: Path, classes: tuple[str, ...]) -> dict[Path, str]:
    """-> {path: text} of the classes file, {} if it is there with the same names. Raises DataError for other names."""
    if not path.exists():
        return {path: "".join(f"{name}\n" for name in classes)}
    if read_classes(str(path)) != classes:
        raise DataError(f"{path}: is there with other names: write into another folder, or move it away")
    return {}


def convert(
    source: str,
    target: str,
    split: str | None = None,
    seed: int = 0,
    part: str | None = None,
    classes: str | None = None,
    image_root: str | None = None,
    bad_boxes: str = "error",
) -> list[str]:
    """Reads `source` and writes `target` (see above) -> lines of report. Raises DataError and changes nothing if the
    data are wrong, a file is there already, or classes.txt beside it has other names."""
    goal = Path(target)
    if goal.suffix.lower() not in (".txt", ".json"):
        raise DataError(f"{target}: the name must end with .txt (annotation file) or .json (COCO JSON)")
    part = part or ("all" if split else "train")
    if part not in PARTS:
        raise DataError(f"part={part}: it can be {', '.join(PARTS)}")
    found = read(source, part, read_classes(classes) if classes else None, image_root, bad_boxes)
    report = list(found.notes)
    write = json_of if goal.suffix.lower() == ".json" else text_of
    if write is json_of:
        found, report = prepare(found, bad_boxes=bad_boxes)  # COCO JSON tells the sizes of the pictures
    outputs = _divide(found, goal, split, seed) if split else {goal: found}
    there = next((path for path in outputs if path.exists()), None)
    if there:
        raise DataError(f"{there}: is there already: give another name, or delete it")
    texts = {path: write(chosen, goal.parent) for path, chosen in outputs.items()}
    if write is text_of:
        texts |= _classes_text(goal.with_name("classes.txt"), found.classes)
    goal.parent.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="\n")
    return report + [f"{path}: {len(parts)} pictures, {len(parts.boxes)} boxes" for path, parts in outputs.items()]


def main(words: list[str]) -> None:
    names = ("split", "seed", "part", "classes", "image_root", "bad_boxes")
    (source, target), options = arguments(words, __doc__, 2, names)
    try:
        seed = int(options.pop("seed", "0"))
        print("\n".join(convert(source, target, seed=seed, **options)))
    except ValueError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main(sys.argv[1:])
