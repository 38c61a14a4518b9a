"""Converts a data set of any accepted format to an annotation file with classes.txt, or to COCO JSON.

    python -m tools.convert SOURCE TARGET.txt [split=.9,.1] [seed=0] [part=train] [classes=FILE] [image_root=DIR] \
[bad_boxes=drop]

TARGET.txt is an annotation file, TARGET.json is COCO JSON. With split, TARGET_train.txt, TARGET_val.txt and, for three
fractions, TARGET_test.txt are written; images of equal content stay in one part.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from datasets.annotations import annotation_line
from datasets.errors import DataError
from datasets.formats import PARTS, read, read_classes
from datasets.scan import prepare, scan
from datasets.store import Annotations
from utils.config import override


@dataclass(frozen=True)
class Config:
    split: tuple[float, ...] | None = None  # fractions of the images for train, val and test, as .9,.1 or .8,.1,.1
    seed: int = 0  # of the split
    part: str | None = None  # train, val, test or all, of a source with several parts; none: train, or all with split
    classes: str | None = None  # a file of class names; none: those of the data
    image_root: str | None = None  # the folder of the images of a COCO JSON
    bad_boxes: str = "error"  # drop: leave out boxes without area


def split_parts(digests: np.ndarray, fractions: tuple[float, ...], seed: int) -> list[np.ndarray]:
    """Divides images at random into one part per fraction -> sorted indices of each part, a function of the seed.

    `digests [N]`: images with equal digests stay in one part; 0 (not readable) is equal to nothing.
    """
    unread = digests == 0
    keys = np.stack([np.where(unread, np.arange(len(digests)), -1), digests], -1)
    groups = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    sizes = np.bincount(groups)
    order = np.random.default_rng(seed).permutation(len(sizes))
    middles = np.cumsum(sizes[order]) - sizes[order] / 2
    part_of_group = np.empty(len(sizes), int)
    part_of_group[order] = np.searchsorted(np.cumsum(fractions)[:-1] * len(digests), middles, side="right")
    return [np.flatnonzero(part_of_group[groups] == part) for part in range(len(fractions))]


def _divide(annotations: Annotations, target: Path, fractions: tuple[float, ...], seed: int) -> dict[Path, Annotations]:
    """Splits the images -> {path of the file: its part}. Raises DataError."""
    split = "split=" + ",".join(f"{fraction:g}" for fraction in fractions)
    if len(fractions) not in (2, 3) or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-6:
        raise DataError(f"{split}: give two or three fractions that add up to 1, as in split=.9,.1 or split=.8,.1,.1")
    digests = scan([annotations.path(i) for i in range(len(annotations))]).digests
    names = [target.with_name(f"{target.stem}_{part}{target.suffix}") for part in ("train", "val", "test")]
    parts = split_parts(digests, fractions, seed)
    if not all(map(len, parts)):
        into = f"{len(annotations)} images into {', '.join(str(len(part)) for part in parts)}"
        raise DataError(f"{split} divides {into}: enlarge the fraction of the empty part")
    return {name: annotations.select(part) for name, part in zip(names, parts, strict=False)}


_real = lru_cache(maxsize=1000)(os.path.realpath)  # ".." leads out of the real folder, not out of a link to it


def _relative(path: str, folder: Path) -> str:
    """Returns the path relative to `folder`, with "/"; the absolute path if it is on another drive."""
    place, name = os.path.split(path)
    try:
        return os.path.join(os.path.relpath(_real(place), _real(folder)), name).replace(os.sep, "/").removeprefix("./")
    except ValueError:
        return os.path.abspath(path)


def text_of(annotations: Annotations, folder: Path) -> str:
    """Returns the text of an annotation file in `folder`. Raises DataError for a path that it cannot hold."""
    paths = (_relative(annotations.path(i), folder) for i in range(len(annotations)))
    return "".join(f"{annotation_line(path, *annotations.boxes_of(i))}\n" for i, path in enumerate(paths))


def json_of(annotations: Annotations, folder: Path) -> str:
    """Returns the text of a COCO JSON in `folder`, with the ids of categories and images of the data."""
    data = annotations.coco()
    for index, image in enumerate(data["images"]):
        image["file_name"] = _relative(annotations.path(index), folder)
    return json.dumps(data, ensure_ascii=False)


def convert(source: str, target: str, **options) -> list[str]:
    """Reads `source` and writes `target`; `options` are those of Config -> lines of report.

    Raises DataError, and writes nothing, if the data are wrong, a file exists, or classes.txt next to it has other names.
    """
    goal, cfg = Path(target), Config(**options)
    if goal.suffix.lower() not in (".txt", ".json"):
        raise DataError(f"{target}: the name must end with .txt (annotation file) or .json (COCO JSON)")
    part = cfg.part or ("all" if cfg.split else "train")
    if part not in PARTS:
        raise DataError(f"part={part}: choose one of {', '.join(PARTS)}")
    found = read(source, part, read_classes(cfg.classes) if cfg.classes else None, cfg.image_root, cfg.bad_boxes)
    report = list(found.notes)
    write = json_of if goal.suffix.lower() == ".json" else text_of
    if write is json_of:
        found, report = prepare(found, bad_boxes=cfg.bad_boxes)  # COCO JSON has the sizes of the images
    outputs = _divide(found, goal, cfg.split, cfg.seed) if cfg.split else {goal: found}
    existing = next((path for path in outputs if path.exists()), None)
    if existing:
        raise DataError(f"{existing} exists: give another name, or delete it")
    texts = {path: write(chosen, goal.parent) for path, chosen in outputs.items()}
    if write is text_of:
        names = goal.with_name("classes.txt")
        if not names.exists():
            texts[names] = "".join(f"{name}\n" for name in found.classes)
        elif read_classes(str(names)) != found.classes:
            raise DataError(f"{names} exists with other names: write into another folder, or move it away")
    goal.parent.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="\n")
    return report + [f"{path}: {len(parts)} images, {len(parts.boxes)} boxes" for path, parts in outputs.items()]


def main(words: list[str]) -> None:
    """Converts with the arguments `words`: source, target, name=value ..."""
    if len(words) < 2:
        raise SystemExit(__doc__)
    source, target, *options = words
    try:
        print("\n".join(convert(source, target, **asdict(override(Config(), options)))))
    except ValueError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main(sys.argv[1:])
