"""The split of a data set (train, val, test) to which a file or a row belongs."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from datasets.errors import DataError, one_line, raise_any
from datasets.formats.file import File, Folder
from datasets.formats.source import LabelFile, Source, add_files
from datasets.store import Split
from utils.images import IMAGE_SUFFIXES

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "trainval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
IMAGE_AND_XML = re.compile(r"(.+\.(?:jpe?g|png|bmp|tiff?))\s+\S.*\.xml\s*$", re.IGNORECASE)
FLAGS = ("0", "1", "-0", "-1")  # in the lists of a class: difficult, with the class, without it


def split_of(name: str) -> str | None:
    """Returns the split that a file or folder name contains: "instances_val2017" -> "val"; None if there is none."""
    words = re.findall(r"[a-z]+", name.lower())
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)


def split_in(path: str) -> str | None:
    """Returns the split to which a folder in a path belongs: "train/images/a.jpg" -> "train"; None if there is none."""
    return next((SPLIT_NAMES[name] for name in path.lower().split("/")[:-1] if name in SPLIT_NAMES), None)


def select_split(source: object, files: Sequence[str], split: Split, by_name: bool = False) -> list[str]:
    """Returns the files of the first split in `split` that has any; all of them if they are not divided into splits.

    The split is named by the folder or, with `by_name`, by the file. Raises DataError if there are other splits only."""
    splits = splits_of(files, by_name)
    there = {name for name in splits if name}
    if not split or not there:
        return list(files)
    chosen = next((SPLIT_NAMES[name] for name in split if SPLIT_NAMES[name] in there), None)
    if chosen is None:
        raise DataError(f"{source}: no split {split[0]}, only {', '.join(sorted(there))}: {fix_of(split)}")
    return [file for file, name in zip(files, splits, strict=True) if name == chosen]


def read_split(folder: Folder, files: Sequence[str], read: Callable[[File, Split], Source]) -> list[Source]:
    """Reads the file of the split of a folder, of files with many images each; without a split, all files. Raises DataError."""
    split, path = folder.split, folder.path
    chosen = select_split(path, files, split, by_name=True) if len(files) > 1 else files
    if split and len(chosen) > 1:
        names = ", ".join(chosen[:5])
        raise DataError(f"{path}: {len(chosen)} files may have the annotations ({names}): name the one with the boxes")
    sources = [read(folder.file(file), split) for file in chosen]
    sources[0].label_files += [str(path / file) for file in files]
    add_notes(sources[0], path, files, split, by_name=True)
    return sources


def add_notes(found: Source, source: object, files: Sequence[str], split: Split, by_name: bool = False) -> None:
    """Adds a note about the files that `select_split` leaves out for any split, and the other splits of `source`."""
    splits = splits_of(files, by_name)
    if split and any(splits) and None in splits:
        text = f"{source}: files that belong to no split, such as train or val, left out: {splits.count(None)}"
        found.notes.append(one_line(f"{text}, for example {files[splits.index(None)]}"))
    add_splits(found, source, splits, split)


def add_splits(found: Source, source: object, splits: Iterable[str | None], split: Split) -> None:
    """Adds the names of the `splits` of `source` that were not read to `found`.

    A note tells if the split test serves as validation."""
    there = sorted({name for name in splits if name}, key=SPLITS.index)
    wanted = [SPLIT_NAMES[name] for name in split]
    chosen = next((name for name in wanted if name in there), None)
    if chosen is None:
        return
    if chosen != wanted[0]:
        fix = "keep other images for the final test"
        found.notes.append(f"{source}: no split named {wanted[0]}: {chosen} serves as validation, so {fix}")
    others = (name for name in there if name != chosen)
    found.other_splits = tuple(dict.fromkeys((*found.other_splits, *others)))  # those in a file, and other files


def splits_of(files: Iterable[str], by_name: bool) -> list[str | None]:
    """Returns the split of each file: the split of its folder or, with `by_name`, of its name; None without one."""
    return [split_in(file) or (split_of(PurePosixPath(file).stem) if by_name else None) for file in files]


def listed_name(line: str) -> tuple[str, list[str]]:
    """Returns what a line of a VOC list names, without the flag of a class behind it, and its readings, the likeliest first.

    A line is a name with or without folder and suffix. A number behind a blank may be a flag or belong to the name."""
    name = line.strip().replace("\\", "/")
    if pair := IMAGE_AND_XML.match(name):  # as PaddleX writes them
        name = pair[1]
    *words, flag = name.rsplit(None, 1) or [""]
    bare = words[0] if words and flag in FLAGS else name
    readings = [word for text in (name, bare) for word in (text, text.rpartition("/")[2])]
    readings += [os.path.splitext(word)[0] for word in readings if word.lower().endswith((*IMAGE_SUFFIXES, ".xml"))]
    return bare, readings


def word_split(word: str) -> str:
    """Returns the split that a word in a file means, " Valid" -> "val"; the word in lower case if it means none."""
    word = word.strip().lower()
    return SPLIT_NAMES.get(word, word)


class SplitFields(Struct):
    """The fields of an image in JSON that may name its split."""

    split: Any = None
    set: Any = None  # these count if they name a split
    subset: Any = None
    partition: Any = None
    usage: Any = None

    def split_word(self) -> str:
        """Returns the split that the first field names; if none does, the word in the field `split`."""
        fields = (self.split, self.set, self.subset, self.partition, self.usage)
        words = [word_split(value) if isinstance(value, str) else "" for value in fields]
        return next((word for word in words if word in SPLITS), words[0])


def select_rows(found: Source, places: Sequence[tuple[str, str]], words: Sequence[str], split: Split) -> set[str]:
    """Returns the images of a split in a file with all splits.

    `places`: image, and file and line, of each row. `words`: `word_split` of each row; if all are empty, the file is not
    divided, and all images are returned. Adds images in several splits to the problems of `found`, its other splits, and a
    note about images of no split. Raises DataError if there are other splits only, with the problems instead, if there are
    any: the images of the split may be among them."""
    rows: dict[str, tuple[str, str]] = {}  # image -> word and place of its first row
    several: dict[str, str] = {}
    for (image, place), word in zip(places, words, strict=True):
        first, first_place = rows.setdefault(image, (word, place))
        if image and word != first:
            text = f"{image} has the split {word!r}, but {first!r} at {first_place}: write one split for each image"
            several.setdefault(image, f"{place}: {text}")
    there = {word for word, _ in rows.values() if word}
    add_splits(found, found.path, there & set(SPLITS), split)
    if not split or not there:
        return set(rows)
    found.problems += several.values()
    chosen = next((name for name in map(SPLIT_NAMES.get, split) if name in there), None)
    if chosen is None:
        raise_any(f"{found.path}: problems: {len(found.problems)}", found.problems)
        raise DataError(f"{found.path}: no split {split[0]}, only {', '.join(sorted(there)[:10])}: {fix_of(split)}")
    lost = {image: row for image, row in rows.items() if row[0] not in SPLITS}
    for image in list(lost)[:1]:
        shown = [repr(word) if word else "empty" for word in sorted({word for word, _ in lost.values()})]
        text = f"images that belong to no split, left out: {len(lost)}, for example {image} ({lost[image][1]})"
        found.notes.append(
            f"{found.path}: {text}; their split is {' or '.join(shown[:10])}: write one, such as train or val"
        )
    return {image for image, (word, _) in rows.items() if word == chosen}


def select_images(found: Source, names: Sequence[str], words: Sequence[str], split: Split) -> set[str]:
    """Returns the names of the images of a split, see `select_rows`; all names if none of the `words` names a split."""
    words = [word_split(word) for word in words]
    if set(words).isdisjoint(SPLITS):
        return set(names)
    return select_rows(found, [(name, found.path) for name in names], words, split)


def source_of_split(
    path: str,
    files: Sequence[LabelFile],
    names: tuple[str, ...],
    words: Sequence[str],
    split: Split,
    problems: list[str],
    places: Sequence[tuple[str, str]] | None = None,
) -> Source:
    """Returns the images of a split in a file with all splits, which have the class names `names`.

    `words` are those of `select_rows` for its `places`, and those of `select_images` without."""
    found = Source(path, os.path.dirname(path), names, find_images=True, problems=problems)
    if places is None:
        chosen = select_images(found, [file.image for file in files], words, split)
    else:
        chosen = select_rows(found, places, words, split)
    add_files(found, ((file.image, file) for file in files if file.image in chosen))
    return found


def fix_of(split: Split) -> str:
    """Returns what to write where a split is missing."""
    return "name its data, or val=.2 splits off a fifth of the training images" if "val" in split else "name its data"
