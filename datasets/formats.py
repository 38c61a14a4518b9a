"""Reading a data set in any accepted format: `read` recognizes the format and calls its reader."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from datasets.annotations import read_annotation_file, read_json, text_lines
from datasets.errors import DataError, check_names, check_path
from datasets.scan import prepare
from datasets.store import Annotations, Classes, Part, Strings
from utils.images import IMAGE_SUFFIXES

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
    """Reads an annotation file, COCO JSON, YOLO data file, VOC or LabelMe folder, a list in a VOC ImageSets, or a folder
    that holds any of these.

    `part` ("train", "val", "test", "all") selects a part of a source that has several; `classes` are the class names of
    the result (None: those of the data), and with `select` boxes of other classes are left out; `merge` ("truck:car") merges
    classes before that; `image_root` is the folder of the images, unless they are next to the annotations; `bad_boxes`
    ("error", "drop") decides about boxes without area. Raises DataError.
    """
    source = os.fspath(source)
    try:
        if not (merge or select):
            found = _read(check_path(source), part, classes, image_root, bad_boxes)
        else:
            from datasets.combine import choose_classes, parse_merge

            found = _read(check_path(source), part, None, image_root, bad_boxes)
            found = choose_classes(found, classes, parse_merge(merge), select, complete=part == "train")
    except DataError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"  # a list instead of text, ...
        raise DataError(f"{source}: not in the form of its format ({what}): export the data again") from error
    return found


def _read(source: str, part: str, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    path = Path(source)
    if not path.exists():
        raise DataError(f"{source}: no such file or folder in {os.getcwd()}: correct the path")
    kind, options = path.suffix.lower(), (classes, bad_boxes)
    if path.is_dir():
        from datasets.recognize import read_folder

        return read_folder(path, PARTS[part], classes, image_root, bad_boxes)
    if kind == ".txt" and "ImageSets" in path.parts[-3:-1]:
        from datasets.voc import read_voc

        folder = path.parents[0 if path.parent.name == "ImageSets" else 1].parent
        return read_voc(folder, (), *options, image_root, path)
    if kind == ".txt":
        return read_text(path, classes, image_root, bad_boxes)
    if kind == ".json":
        from datasets.coco import read_coco

        return read_coco(source, read_json(source), classes, image_root, bad_boxes)
    if kind in (".yaml", ".yml", ".data"):
        from datasets.yolo import read_darknet, read_yolo_yaml

        read_config = read_darknet if kind == ".data" else read_yolo_yaml
        return without_root(read_config(path, PARTS[part], *options), image_root)
    raise DataError(
        f"{source}: give an annotation file (.txt), COCO JSON, YOLO yaml, or a folder with any of these, "
        f"or with VOC, LabelMe or YOLO label files"
    )


def is_names(classes: str | None) -> bool:
    """Returns whether classes= holds names (cat,dog) and not the path of a file."""
    is_path = bool(classes) and (os.path.exists(classes) or "/" in classes or classes.endswith((".txt", ".names")))
    return bool(classes) and not is_path


def read_classes(path: str) -> tuple[str, ...]:
    """Reads class names from a file, one per line; `cat,dog` are names themselves.

    Raises DataError for names that are blank, repeated or unusable."""
    if isinstance(path, str) and is_names(check_path(path)):
        names = [name.strip() for name in path.split(",")]
        check_names(names, f"classes={path}")
        if len(set(names)) < len(names):
            raise DataError(f"classes={path}: a class is named twice: name it once")
        return tuple(names)
    try:
        lines = [(number, line.strip()) for number, line in text_lines(check_path(os.fspath(path)))]
    except OSError as error:
        raise DataError(f"{path}: {error}: correct the path") from error
    while lines and not lines[-1][1]:
        lines.pop()
    seen: dict[str, int] = {}
    for number, name in lines:
        if not name:
            raise DataError(f"{path}:{number}: a blank line between the names shifts the classes: remove it")
        if name in seen:
            raise DataError(f"{path}:{number}: class {name!r} is already in line {seen[name]}: remove or rename it")
        check_names([name], f"{path}:{number}")
        seen[name] = number
    if not seen:
        raise DataError(f"{path}: no names: write one per line")
    return tuple(seen)


def read_text(path: Path, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """Reads an annotation file, or a list of images, whose boxes are in label files of YOLO or VOC."""
    file = path.with_name("classes.txt")
    names = read_classes(str(file)) if file.exists() else None
    found = read_annotation_file(str(path), classes, bad_boxes, names)
    if image_root is not None:
        found = _with_root(found, image_root)
    if len(found.boxes) or not len(found):
        return found
    from datasets import find
    from datasets.yolo import label_file, names_near, read_yolo_images

    listed = [found.names[i] for i in range(len(found))]
    paths = find.locate_all(path, listed, [found.root])
    if any(os.path.exists(label_file(place)) for place in paths if place.lower().endswith(IMAGE_SUFFIXES)):
        images = read_yolo_images(str(path), paths, names or names_near(path.parent), classes, bad_boxes)
        return without_root(images, image_root)
    if not any(map(os.path.exists, paths)) and find.of_suffix(find.files_under(path.parent), ".xml"):
        from datasets.voc import read_voc

        return read_voc(path.parent, (), classes, bad_boxes, image_root, path)
    return found


def _with_root(found: Annotations, image_root: str) -> Annotations:
    """Returns the annotations with the images that are in `image_root` taken from there."""
    if not os.path.isdir(image_root):
        raise DataError(f"image_root={image_root}: there is no such folder: correct the path")
    places = [os.path.abspath(os.path.join(image_root, found.names[i])) for i in range(len(found))]
    there = list(map(os.path.exists, places))
    if not any(there):
        return without_root(found, image_root)
    names = (place if exists else found.names[i] for i, (place, exists) in enumerate(zip(places, there, strict=True)))
    return replace(found, names=Strings(names))


def without_root(found: Annotations, image_root: str | None) -> Annotations:
    """Returns the annotations with a note that `image_root` is not used, if it is given."""
    note = f"image_root={image_root} is not used: {found.source} tells by itself where its images are"
    return found if image_root is None else replace(found, notes=(*found.notes, note))


def read_parts(
    sources: Mapping[str, str],
    classes: str | None,
    image_root: str | None,
    bad_boxes: str,
    skip_bad_images: bool,
    log: Callable[[str], None],
    merge: str | None = None,
) -> tuple[Annotations, ...]:
    """Reads and checks the parts of a data set; `sources` maps a part ("train", "val") to its file or folder.

    All parts have the classes that `classes` names, or those of the first part. Logs what is left out. Raises DataError for
    all problems of all parts together."""
    from datasets.combine import similar_names

    names, parts, errors = read_classes(classes) if classes else None, [], []
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
        if not parts:
            notes += similar_names(data.classes)
        for note in notes:
            log(f"note: {note}")
        parts.append(data)
    if len(errors) > 1:
        raise DataError("\n".join(map(str, errors)))
    if errors:
        raise errors[0]
    return tuple(parts)
