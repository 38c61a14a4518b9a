"""YOLO label files, one per image -> Source.

A label is `class x y width height` (center and size) or `class x1 y1 x2 y2 x3 y3 ...` (a polygon, which becomes its
bounding box), in fractions of the image's width and height.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from shlex import quote
from urllib.parse import unquote

import numpy as np

from datasets.errors import DataError, graded, one_line, open_file, raise_any
from datasets.formats import image_paths
from datasets.formats.class_names import OWN, ClassLists, find_lists, list_in
from datasets.formats.file import (
    CLASS_FILES,
    File,
    Folder,
    images_of,
    of_suffix,
    stem_of,
    text_lines,
    unread_image_notes,
)
from datasets.formats.source import Corners, Source, points_box
from datasets.formats.splits import add_notes, select_split
from datasets.formats.typed_json import BOM
from utils.files import files_under, left_instead
from utils.text import amount, look_of, number_of

NOT_LABELS = ("classes", "train", "val", "valid", "test", "labels", "predefined_classes", "readme")  # .txt near labels
MIN_POSES = 3  # lines with more than a box; fewer may be polygons that look like a box with key points
ROUNDING = 1e-3  # of fractions
NO_NAMES = (
    "no class names: write classes.txt next to it, a name per line in the order of the numbers; or give classes=FILE"
)


def matches(file: File) -> bool:
    """Returns whether a text is a label file: its first line holds numbers, or it is in a folder named labels.

    Without an image of its name, it must begin with a label that can be read."""
    if "labels" in file.place.lower().split("/")[:-1]:
        return file.name.lower() not in (*CLASS_FILES, "annotations.txt")  # that of predict.py is a list
    if is_named_otherwise(file.name) or not is_label(file.path, least=5):
        return False
    return bool(file.has_image) or _is_box(file.head)


def read_folder(folder: Folder, names: Iterable[str] = ()) -> list[Source]:
    """Reads the images of a folder and their label files, which may be anywhere in it.

    The images may also be in `image_root`, or next to a folder of label files. A split is a folder of its name; without such
    folders all images belong to every split."""
    path, texts = folder.path, folder.of_suffix(".txt")
    labels = [text for text in texts if not is_named_otherwise(text)]
    if not folder.images and not folder.image_root:
        root, found = image_paths.images_of_labels(folder, ".txt", [(label, "") for label in labels])
        folder = Folder(path, folder.split, root if found else None)
    there, notes = folder.images, unread_image_notes(path, folder.files)
    if not there:
        where = f"image_root={folder.image_root}" if folder.image_root else str(path)
        fix = "image_root=FOLDER names the folder of the images"
        raise DataError(f"{where}: label files in {path}, but no images: {fix}" + "".join(notes))
    every = [label_file(os.path.join(folder.image_folder, image)) for image in there]
    if folder.image_root or not any(map(os.path.exists, every)):
        every = [os.path.join(path, label) for label in _own_labels(path, there, texts)]
    chosen = set(select_split(path, there, folder.split))
    own = [label for label, image in zip(every, there, strict=True) if image in chosen]
    images = [os.path.join(folder.image_folder, image) for image in there if image in chosen]
    meant = image_paths.meant(map(stem_of, there), set(map(stem_of, labels))).values()
    orphans = [os.path.join(path, label) for label in labels if stem_of(label) not in meant]
    lists = find_lists(path, [os.path.join(path, label) for label in labels], own)
    source = read_images(str(path), images, lists, notes, own, orphans)
    source.label_files = every
    add_notes(source, path, there, folder.split)
    return [source]


def is_named_otherwise(text: str) -> bool:
    """Returns whether a text file has a name that label files do not have, such as classes.txt."""
    return os.path.splitext(os.path.basename(text))[0].lower() in NOT_LABELS


def _own_labels(folder: Path, images: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Returns the label file of each image, with the most similar folders. An image is a background if its label file is
    nearer to another image. Raises DataError if it is equally near to images of two folders, or an image to two that differ."""
    index = image_paths.Stems(labels, images)
    users: dict[str, list[str]] = defaultdict(list)
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
    if found := next(filter(os.path.exists, places), None):
        return found
    for place in places:
        near = _label_names(os.path.dirname(image), os.path.dirname(place))
        if name := near.get(stem_of(image)):
            return os.path.join(os.path.dirname(place), name)
    return places[0]


def _label_names(images: str, labels: str) -> dict[str, str]:
    """Returns {stem of an image in the folder `images`: name of the text in the folder `labels` that it means}."""
    return _names_between(images, labels, image_paths.changed(images), image_paths.changed(labels))


@lru_cache(maxsize=100)
def _names_between(images: str, labels: str, *times: int) -> dict[str, str]:
    texts = {stem_of(name): name for name in of_suffix(image_paths.entries(labels), ".txt")}
    stems = map(stem_of, images_of(image_paths.entries(images)))
    return {stem: texts[text] for stem, text in image_paths.meant(stems, texts).items()}


def _label_places(image: str) -> list[str]:
    """Returns the paths where the label file of an image may be, in their order: in labels/, if it is in images/, and near it."""
    stem = os.path.splitext(image)[0]
    stems, parts = [stem], stem.replace(os.sep, "/").split("/")
    if "images" in parts[:-1]:
        last = len(parts) - 2 - parts[-2::-1].index("images")
        stems.insert(0, "/".join([*parts[:last], "labels", *parts[last + 1 :]]))
    return [f"{stem}{suffix}" for stem in stems for suffix in (".txt", ".TXT")]


def find_listed(path: str, image_root: str | None, folders: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Returns (images, label files) of a list of images, a path per line. The images alone may be in `image_root`.

    Images and label files may also be in `folders`. Raises DataError for names that several images have."""
    rows = [(number, line.strip()) for number, line in text_lines(path) if line.strip()]
    top, finder = os.path.dirname(path), image_paths.ImageFinder(path, [name for _, name in rows], image_root, folders)
    doubts = [f"{path}:{number}: {doubt}" for number, name in rows if (doubt := finder.doubts.get(name))]
    raise_any(f"{path}: problems: {len(doubts)}", doubts)
    images = [os.path.join(top, finder.find(name)) for _, name in rows]
    places = [top, *folders]
    labels = [_label_of(image, name, places) for image, (_, name) in zip(images, rows, strict=True)]
    users = Counter(label for label, _ in set(zip(labels, images, strict=True)))  # a list may name an image twice
    return images, [label if users[label] == 1 else label_file(images[row]) for row, label in enumerate(labels)]


def _label_of(image: str, name: str, folders: Sequence[str]) -> str:
    """Returns the label file of an image that a list calls `name`: near the image, or else in the folders of the list."""
    label = label_file(image)
    if os.path.exists(label):
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


def _is_box(text: bytes) -> bool:
    """Returns whether the first line of a text is one that `read_images` reads without a problem."""
    with suppress(ValueError):
        label, *values = map(float, text.removeprefix(BOM).partition(b"\n")[0].split())
        return label.is_integer() and bool(_corners(values))
    return False


def read_images(
    source: str,
    images: list[str],
    lists: ClassLists | None,
    notes: Sequence[str],
    labels: list[str],
    orphans: Iterable[str] | None = None,
) -> Source:
    """Reads `labels`, the label files of `images`. Without `lists` the classes have no names.

    An image without a label file is a background; at least one image must have one. Both are counted in a note. `orphans`:
    label files that belong to no image (None: near the images). Raises DataError."""
    known = _are_labeled(images, labels)
    if not any(known):
        raise DataError(f"{source}: {_no_labels(source, images)}")
    names = lists.names if lists else None
    numbers = {name: number for number, name in enumerate(names or ())}
    found = Source(source, names=names, needs_classes=NO_NAMES, notes=[*notes, *(lists.notes(source) if lists else ())])
    if not all(known):
        text = f"images without a label file, which count as backgrounds: {known.count(False)}"
        found.notes.append(f"{source}: {text}, for example {one_line(images[known.index(False)])}")
    alone = [image for image, exists in zip(images, known, strict=True) if not exists]
    near = _orphans(images) if orphans is None else []
    if near:
        text = f"{source}: label files without an image: {len(near)}, for example {one_line(near[0])}"
        found.notes.append(graded(text, len(near), len(images)))
    found.problems += _contradictions(source, images, labels) + _look_alikes(alone, orphans or near)
    polygons, lengths, are_key_points, are_convex = 0, set(), True, True
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
                else:
                    if len(values) > 4:
                        polygons += 1
                        lengths.add(len(values))
                        are_key_points = are_key_points and len(lengths) == 1 and _has_key_points(values)
                        are_convex = are_key_points and are_convex and len(values) == 8 and _is_convex(values)
    if polygons >= MIN_POSES and are_key_points and not are_convex:
        what = f"all lines with more than a box ({polygons}) may be a box with key points in it, or corners"
        fix = "of key points, keep class x y width height of each line; of corners, write the box around them"
        found.problems.append(f"{source}: {what}: {fix}")
    return found


def _are_labeled(images: Sequence[str], labels: Sequence[str]) -> list[bool]:
    """Returns which images have a label file. A text next to an image may be a caption, if those of others are in labels/."""
    there = set(filter(os.path.exists, labels))
    folders = set(map(os.path.dirname, there))

    def may_be_caption(label: str, image: str) -> bool:
        place = os.path.dirname(_label_places(image)[0])
        return place != os.path.dirname(label) and place in folders

    pairs = zip(labels, images, strict=True)
    return [label in there and not (may_be_caption(label, image) and _is_caption(label)) for label, image in pairs]


def _is_caption(path: str) -> bool:
    """Returns whether a text is no label file, not even a damaged one: it has fewer than four numbers."""
    with open_file(path) as file:
        text = file.read(100_000).strip()
    return bool(text) and b"\0" not in text and len(re.findall(rb"\d+", text)) < 4


def _has_key_points(values: Sequence[float]) -> bool:
    """Returns whether the numbers after the class are a box and points in it, which may have a visibility (0, 1 or 2).

    Points that are not labeled are 0, 0."""
    x, y, width, height = values[:4]
    for size in (2, 3):
        points = [values[at : at + size] for at in range(4, len(values), size)]
        if len(points[-1]) == size and all(point[2] in (0, 1, 2) for point in points if size == 3):
            near = [abs(a - x) <= width / 2 + ROUNDING and abs(b - y) <= height / 2 + ROUNDING for a, b, *_ in points]
            if all(is_near or not any(point[:2]) for is_near, point in zip(near, points, strict=True)):
                return True
    return False


def _is_convex(values: Sequence[float]) -> bool:
    """Returns whether four corners are those of a convex polygon, as of license plates; a box with two key points hardly is."""
    x, y = np.array(values).reshape(-1, 2).T
    sides = np.roll(x, -1) - x, np.roll(y, -1) - y
    turns = sides[0] * np.roll(sides[1], -1) - sides[1] * np.roll(sides[0], -1)
    return bool((turns >= 0).all() or (turns <= 0).all())


def _no_labels(source: str, images: Sequence[str]) -> str:
    """Returns why no image has a label file: the images are not there, or their label files are elsewhere; and the fix."""
    there = [image for image in images if os.path.exists(image)]
    if not there:
        what = f"none of {amount(len(images), 'image')} is there"
        return f"{what} ({', '.join(images[:1])}): image_root=FOLDER names the folder of the images"
    top = source if os.path.isdir(source) else os.path.dirname(source) or "."
    texts = of_suffix(files_under(top), ".txt")
    index = image_paths.Stems(texts, there)
    labels = [label for image in there if (label := index.nearest(image))]
    what = f"no label file for any of {amount(len(there), 'image')}"
    if not labels:
        example = f"{there[0]} has none in {_label_places(there[0])[0]}"
        fix = "name both folders, as in LABELS image_root=IMAGES"
        if other := next((text for text in texts if is_label(os.path.join(top, text), least=5)), None):
            fix += f", or give label files, such as {other}, the names of their images"
        return f"{what}, and none of their names below {top} ({example}): {fix}"
    place = os.path.join(top, os.path.commonpath([os.path.dirname(label) for label in labels]))
    root = os.path.commonpath([os.path.dirname(os.path.abspath(image)) for image in there])
    command = f"python -m tools.check {quote(place)} image_root={quote(root)}"
    if (names := list_in(top, OWN)) and not find_lists(Path(place), (), [os.path.join(top, labels[0])]):
        command += f" classes={quote(names.file)}"
    return f"{what} where YOLO has them, but below {top}, such as {labels[0]}: {command} reads them"


def _contradictions(source: str, images: list[str], labels: list[str]) -> list[str]:
    """Returns a problem per pair of folders with two label files of an image whose contents differ, in labels/ and next to it.

    Equal ones are fine. Other texts may be next to an image, such as its caption. What is outside of a folder that the user
    names does not count."""
    inside = os.path.join(source, "") if os.path.isdir(source) else ""
    found: dict[tuple[str, str], list[str]] = {}
    for image, label in zip(images, labels, strict=True):
        for other in filter(os.path.exists, _label_places(image)):
            is_other = other != label and other.startswith(inside) and os.path.exists(label)
            if is_other and is_label_of(other, image) and _lines(other) != _lines(label):
                text = f"{other}: differs from {label}, the label file of the same image"
                found.setdefault((os.path.dirname(other), os.path.dirname(label)), []).append(text)
    fix = "remove the wrong one"
    return [f"{texts[0]}: {fix}; images with such a pair in these folders: {len(texts)}" for texts in found.values()]


def _orphans(images: Sequence[str]) -> list[str]:
    """Returns the label files where those of `images` may be that have the name of no image."""
    folders = sorted(set(map(os.path.dirname, images)))
    places = [(folder, os.path.dirname(path)) for folder in folders for path in _label_places(f"{folder}/a.png")]
    found = []
    for folder, place in dict.fromkeys(places):
        own = set(_label_names(folder, place).values())
        others = [name for name in image_paths.entries(place) if name not in own and not is_named_otherwise(name)]
        found += [path for name in of_suffix(others, ".txt") if is_label(path := os.path.join(place, name), least=5)]
    return found


def _look_alikes(images: Sequence[str], orphans: Iterable[str]) -> list[str]:
    """Returns the problems of images without a label file, and label files without an image, whose names look alike."""
    labels = {look_of(unquote(name)): label for label in orphans for name in (stem_of(label), stem_of(stem_of(label)))}
    pairs = [(image, label) for image in images if (label := labels.get(look_of(stem_of(image))))]
    return [
        f"{image} has no label file, and {label} has no image, but their names look alike: rename it to "
        f"{stem_of(image)}.txt, or take it out"
        for image, label in pairs
        if is_label(label)
    ]


def _lines(path: str | Path) -> list[list[bytes]]:
    """Returns the sorted lines of a file, divided into words: in the form in which the order of boxes does not count."""
    with open_file(path) as file:
        return sorted(words for line in file.read().splitlines() if (words := line.split()))


def _numbers(line: str) -> list[float]:
    """Returns the numbers of a line. Raises ValueError."""
    try:
        return [number_of(word) for word in line.split()]
    except ValueError as error:
        fix = left_instead(line.encode()) or "write class x y width height"
        raise ValueError(f"{line.strip()[:60]!r} is not numbers: {fix}") from error


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
