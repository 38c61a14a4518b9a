"""YOLO label files, one per image -> Source.

A label is `class x y width height` (center and size) or `class x1 y1 x2 y2 x3 y3 ...` (a polygon, which becomes its
bounding box), in fractions of the image's width and height.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from datasets.errors import DataError, one_line, open_file, raise_any
from datasets.formats import image_paths
from datasets.formats.class_names import ClassLists, find_lists
from datasets.formats.file import CLASS_FILES, File, Folder, images_of, text_lines, unread_image_notes
from datasets.formats.source import Corners, Source, points_box
from datasets.formats.splits import add_notes, select_split
from datasets.formats.typed_json import BOM
from utils.text import amount, number_of

NOT_LABELS = ("classes", "train", "val", "valid", "test", "labels", "predefined_classes", "readme")  # .txt near labels
NO_NAMES = "no class names: write classes.txt next to it, with one name per line in the order of the class numbers"


def matches(file: File) -> bool:
    """Returns whether a text is a label file: its first line holds numbers, or it is in a folder named labels.

    Without an image of its name, it must begin with a label that can be read."""
    if "labels" in file.place.lower().split("/")[:-1]:
        return file.name.lower() not in (*CLASS_FILES, "annotations.txt")  # that of predict.py is a list
    if is_named_otherwise(file.name):
        return False
    return is_label(file.path, least=5) if file.has_image else _begins_with_label(file)


def read_folder(folder: Folder, names: Iterable[str] = ()) -> list[Source]:
    """Reads the images of a folder and their label files, which may be anywhere in it.

    A split is a folder of its name; without such folders all images belong to every split."""
    path, there = folder.path, folder.images
    if folder.image_root and not there:
        raise DataError(f"image_root={folder.image_root}: there are no images: correct the path")
    images = select_split(path, there, folder.split)
    notes = unread_image_notes(path, folder.files)
    if not images:
        raise DataError(f"{path}: label files, but no images: {_fix_of_no_images(path)}" + "".join(notes))
    labels = folder.of_suffix(".txt")
    paths = [os.path.join(folder.image_folder, image) for image in images]
    own, all_labels = list(map(label_file, paths)), usual_labels(folder.files)
    if folder.image_root or not any(map(os.path.exists, own)):
        own = [os.path.join(path, label) for label in _own_labels(path, images, labels)]
        if folder.image_root and not any(map(os.path.exists, own)):
            label = next((label for label in labels if not is_named_otherwise(label)), "none")
            what = f"no label file (such as {label}) has the name of an image in image_root={folder.image_root}"
            fix = "correct image_root=, or give the label files the names of their images"
            raise DataError(f"{path}: {what} (such as {images[0]}): {fix}")
        index = image_paths.Stems(labels)
        all_labels = set(filter(None, (_nearest(path, image, index, []) for image in there)))
    used = label_folders(paths, own)
    every = label_folders([os.path.join(folder.image_folder, image) for image in there])
    for label in (label for label in labels if not is_named_otherwise(label)):
        every.setdefault(os.path.dirname(os.path.join(path, label)), set())
    found = read_images(str(path), paths, find_lists(path, every | used, used), notes, own)
    found.label_files = [os.path.join(path, label) for label in all_labels]
    add_notes(found, path, there, folder.split)
    return [found]


def _fix_of_no_images(folder: Path) -> str:
    """Returns the fix for a folder with label files, but without images."""
    if (folder.parent / "images").is_dir():
        return f"give the folder above, {folder.parent}, which has {folder.parent / 'images'}, or image_root=FOLDER"
    return f"give image_root=FOLDER with the images, or copy them to {folder / 'images'}"


def usual_labels(files: Sequence[str]) -> set[str]:
    """Returns the label files among `files` that are in the place where their images have one."""
    there = set(files)
    return {place for image in images_of(files) for place in _label_places(image) if place in there}


def label_folders(images: Iterable[str], labels: Iterable[str] | None = None) -> dict[str, set[str]]:
    """Returns the folders of label files, each with the folders of its images. Label files that do not exist have no folder.

    Without `labels`, reads `label_file` of one image per folder."""
    if labels is None:
        images = {os.path.dirname(image): image for image in images}.values()
        pairs = [(image, label_file(image)) for image in images]
    else:
        pairs = [(image, label) for image, label in zip(images, labels, strict=True) if os.path.exists(label)]
    found: dict[str, set[str]] = {}
    for image, label in pairs:
        found.setdefault(os.path.dirname(label), set()).add(os.path.dirname(image))
    return found


def is_named_otherwise(text: str) -> bool:
    """Returns whether a text file has a name that label files do not have, such as classes.txt."""
    return os.path.splitext(os.path.basename(text))[0].lower() in NOT_LABELS


def _own_labels(folder: Path, images: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Returns the label file of each image, with the most similar folders. An image is a background if its label file is
    nearer to another image. Raises DataError if it is equally near to images of two folders, or an image to two that differ."""
    index, users = image_paths.Stems(labels), defaultdict(list)
    problems: list[str] = []
    nearest = [_nearest(folder, image, index, problems) for image in images]
    for image, label in zip(images, nearest, strict=True):
        if label:
            users[label].append(image)
    for label, several in users.items():
        users[label] = own = image_paths.most_alike(label, several)
        if other := next((image for image in own if os.path.dirname(image) != os.path.dirname(own[0])), None):
            problems.append(f"{own[0]} and {other} would both have {label}")
    fix = "give the folders of images and labels the same names, such as images/a and labels/a, or take wrong ones out"
    raise_any(f"{folder}: problems: {len(problems)}", [f"{problem}: {fix}" for problem in sorted(problems)])
    pairs = zip(images, nearest, strict=True)
    return [label if label and image in users[label] else f"{os.path.splitext(image)[0]}.txt" for image, label in pairs]


def _nearest(folder: Path, image: str, index: image_paths.Stems, problems: list[str]) -> str | None:
    """Returns the label file nearest to an image, None without any. Several that differ are added to `problems`.

    Of files that are equally near, the one in labels/ counts. Others may be captions."""
    found = index.all_nearest(image)
    if len(found) > 1:
        found = [label for label in found if is_label(folder / label)] or found
        found = [label for label in found if "labels" in label.lower().split("/")[:-1]] or found
        first = _lines(folder / found[0])
        if other := next((label for label in found[1:] if _lines(folder / label) != first), None):
            problems.append(f"{image} would have {found[0]} and {other}, which differ")
    return found[0] if found else None


def label_file(image: str) -> str:
    """Returns the path of an image's label file: in labels/ if the image is in images/, otherwise next to the image."""
    places = _label_places(image)
    return next(filter(os.path.exists, places), places[0])


def _label_places(image: str) -> list[str]:
    """Returns the paths where the label file of an image may be, in their order: in labels/, if it is in images/, and near it."""
    stem = os.path.splitext(image)[0]
    stems, parts = [stem], stem.replace(os.sep, "/").split("/")
    if "images" in parts[:-1]:
        last = len(parts) - 2 - parts[-2::-1].index("images")
        stems.insert(0, "/".join([*parts[:last], "labels", *parts[last + 1 :]]))
    return [f"{stem}{suffix}" for stem in stems for suffix in (".txt", ".TXT")]


def label_of(image: str, name: str, folders: Sequence[str]) -> str:
    """Returns the label file of an image that a list calls `name`: near the image, or else in the folders of the list.

    The images alone may be in image_root."""
    label = label_file(image)
    if os.path.exists(label) or not folders:
        return label
    there = [label_file(os.path.join(folder, name)) for folder in folders]
    there.append(image_paths.locate(f"{os.path.splitext(name)[0]}.txt", folders))
    return next(filter(os.path.exists, there), label)


def has_label(image: str) -> bool:
    """Returns whether an image has a label file."""
    return is_label_of(label_file(image), image)


def is_label_of(label: str, image: str) -> bool:
    """Returns whether a text is the label file of an image: in labels/, or next to it, where other texts of that name may be."""
    if not os.path.exists(label) or os.path.dirname(label) != os.path.dirname(image):
        return os.path.exists(label)
    return is_label(label)


def is_label(path: str | Path, least: int = 0) -> bool:
    """Returns whether the first line of a text holds nothing but numbers, at least `least`."""
    with open_file(path) as file:
        words = file.readline(1000).removeprefix(BOM).split()
    return len(words) >= least and all(re.fullmatch(rb"[-+.\deE]+", word) for word in words)


def _begins_with_label(file: File) -> bool:
    """Returns whether the first line of a text is one that `read_images` reads without a problem."""
    try:
        label, *values = map(float, file.head.removeprefix(BOM).partition(b"\n")[0].split())
        _corners(values)
    except ValueError:
        return False
    return label.is_integer()


def read_images(
    source: str,
    images: list[str],
    lists: ClassLists | None,
    notes: Sequence[str] = (),
    labels: list[str] | None = None,
) -> Source:
    """Reads the label files of `images` (None: from `label_file`). Without `lists` the classes have no names.

    An image without a label file is a background; at least one image must have one. Both are counted in a note.
    Raises DataError."""
    labels = [label_file(image) for image in images] if labels is None else labels
    known = [os.path.exists(path) for path in labels]
    if not any(known):
        expected = amount(len(images), "image") + (f", for example {labels[0]}" if labels else "")
        raise DataError(f"{source}: no label file for any of {expected}: put labels/ next to images/")
    names = lists.names if lists else None
    numbers = {name: number for number, name in enumerate(names or ())}
    found = Source(source, names=names, needs_classes=f"{NO_NAMES}; or give classes=FILE")
    found.notes += notes
    if not all(known):
        text = f"images without a label file, which count as backgrounds: {known.count(False)}"
        found.notes.append(f"{source}: {text}, for example {one_line(images[known.index(False)])}")
    found.problems += _contradictions(images, labels)
    for image, path, exists in zip(images, labels, known, strict=True):
        found.add_image(image, file=path if exists else image, fractions=True)
        own = lists.by_folder.get(os.path.dirname(path)) if lists else None
        for number, line in text_lines(path) if exists else ():
            if line.strip():
                try:
                    label, *values = _numbers(line)
                    corners = _corners(values)
                    if own:
                        label = own.number_in(numbers, label)
                    found.add_box(f"{path}:{number}", *corners, label, line=number)
                except ValueError as error:
                    found.problems.append(f"{path}:{number}: {error}")
    return found


def _contradictions(images: list[str], labels: list[str]) -> list[str]:
    """Returns the problems of images with two label files, in labels/ and next to the image, whose contents differ.

    Equal ones are fine. Other texts may be next to an image, such as its caption."""
    problems = []
    for image, label in zip(images, labels, strict=True):
        for other in filter(os.path.exists, _label_places(image)):
            is_caption = os.path.dirname(other) == os.path.dirname(image) and not is_label(other)
            if os.path.exists(label) and not is_caption and not os.path.samefile(other, label):
                if _lines(other) != _lines(label):
                    fix = "remove the wrong one"
                    problems.append(f"{other}: differs from {label}, the label file of the same image: {fix}")
    return problems


def _lines(path: str | Path) -> list[list[bytes]]:
    """Returns the sorted lines of a file, divided into words: in the form in which the order of boxes does not count."""
    with open_file(path) as file:
        return sorted(words for line in file.read().splitlines() if (words := line.split()))


def _numbers(line: str) -> list[float]:
    """Returns the numbers of a line. Raises ValueError."""
    try:
        return [number_of(word) for word in line.split()]
    except ValueError as error:
        raise ValueError(f"{line.strip()[:60]!r} is not numbers: write class x y width height") from error


def _corners(values: Sequence[float]) -> Corners:
    """Returns x1, y1, x2, y2 in fractions of the image, of the numbers after the class. Raises ValueError."""
    if len(values) == 5:
        fix = "write class x y width height, without the confidence or the track of a box"
        raise ValueError(f"5 numbers after the class: {fix}")
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        expected = "write class x y width height, or class and the corners of a polygon"
        raise ValueError(f"{1 + len(values)} numbers: {expected}")
    if max(map(abs, values)) > 1.5:
        fix = "divide by its width and height"
        if len(values) > 4:
            fix += "; of a box with key points or a track, keep class x y width height"
        raise ValueError(f"{max(values, key=abs):g} is not a fraction of the image: {fix}")
    if len(values) == 4:
        x, y, half_width, half_height = values[0], values[1], abs(values[2]) / 2, abs(values[3]) / 2
        return x - half_width, y - half_height, x + half_width, y + half_height
    return points_box(zip(values[::2], values[1::2], strict=True))
