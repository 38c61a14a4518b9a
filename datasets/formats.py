"""Reading a data set in any accepted format: `read` recognizes the format and calls its reader."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from datasets.annotations import read_annotation_file, text_lines
from datasets.errors import DataError, check_names, check_path
from datasets.scan import prepare
from datasets.store import Annotations, Classes, Part

PARTS: dict[str, Part] = {
    "train": ("train", "trainval"),
    "val": ("val", "valid", "validation", "test"),
    "test": ("test",),
    "all": (),
}


def read(
    source: str, part: str, classes: Classes = None, image_root: str | None = None, bad_boxes: str = "error"
) -> Annotations:
    """Reads an annotation file, COCO JSON, YOLO yaml, VOC or LabelMe folder, or a list in a VOC ImageSets/Main.

    `part` ("train", "val", "test", "all") selects a part of a source that has several; `classes` are the class names of
    the result (None: those of the data); `image_root` is the folder of the images of a COCO JSON; `bad_boxes` ("error",
    "drop") decides about boxes without area. Raises DataError.
    """
    source = os.fspath(source)
    try:
        return _read(check_path(source), part, classes, image_root, bad_boxes)
    except DataError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"  # a list instead of text, ...
        raise DataError(f"{source}: not in the form of its format ({what}): export the data again") from error


def _read(source: str, part: str, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    path = Path(source)
    if not path.exists():
        raise DataError(f"{source}: no such file or folder in {os.getcwd()}: correct the path")
    kind = path.suffix.lower()
    if path.is_dir():
        return _read_folder(path, PARTS[part], classes, image_root, bad_boxes)
    if kind == ".txt" and "ImageSets" in path.parts[-3:-1]:
        folder = path.parents[0 if path.parent.name == "ImageSets" else 1].parent
        from datasets.folders import read_voc

        return read_voc(folder, (), classes, bad_boxes, path)
    if kind == ".txt":
        return _read_text(source, classes, bad_boxes)
    if kind == ".json":
        from datasets.typed import read_json_file

        return read_json_file(source, classes, image_root, bad_boxes)
    if kind in (".csv", ".tsv"):
        from datasets.tables import read_table

        return read_table(source, classes, image_root, bad_boxes)
    if kind == ".xml":
        from datasets.cvat import read_cvat

        return read_cvat(source, classes, image_root, bad_boxes)
    if kind in (".yaml", ".yml"):
        from datasets.yolo import read_yolo_yaml

        return read_yolo_yaml(path, PARTS[part], classes, bad_boxes)
    raise DataError(f"{source}: give an annotation file (.txt), COCO JSON, YOLO yaml, or a VOC or LabelMe folder")


def read_classes(path: str) -> tuple[str, ...]:
    """Reads class names from a file, one per line. Raises DataError for names that are blank, repeated or unusable."""
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


def _read_text(source: str, classes: Classes, bad_boxes: str) -> Annotations:
    """Reads an annotation file, or a YOLO list of images, which has no boxes but label files in labels/."""
    file = os.path.join(os.path.dirname(source), "classes.txt")
    names = read_classes(file) if os.path.exists(file) else None
    found = read_annotation_file(source, classes, bad_boxes, names)
    if len(found.boxes):
        return found
    from datasets.yolo import is_in_labels, read_yolo_images

    paths = [found.path(i) for i in range(len(found))]
    return read_yolo_images(source, paths, names, classes, bad_boxes) if any(map(is_in_labels, paths)) else found


def _read_folder(folder: Path, part: Part, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    from datasets.cvat import is_cvat, read_cvat
    from datasets.folders import has_xml, read_voc
    from datasets.labelme import read_labelme
    from datasets.typed import read_json_file
    from datasets.yolo import read_yolo_folder, read_yolo_yaml

    yamls = [folder / "data.yaml"] if (folder / "data.yaml").exists() else sorted(folder.glob("*.y*ml"))
    if len(yamls) == 1:
        return read_yolo_yaml(yamls[0], part, classes, bad_boxes)
    if (folder / "annotations.xml").is_file() and is_cvat(folder / "annotations.xml"):
        return read_cvat(str(folder / "annotations.xml"), classes, image_root, bad_boxes)
    if any(has_xml(folder / name) for name in ("Annotations", "annotations", "")):
        return read_voc(folder, part, classes, bad_boxes)
    files = sorted(folder.glob("*.json"))
    if len(files) == 1:
        return read_json_file(str(files[0]), classes, image_root, bad_boxes)
    if files:
        return read_labelme(folder, files, classes, bad_boxes, image_root)
    file = next((path for path in (folder / "classes.txt", folder / "labels" / "classes.txt") if path.exists()), None)
    if file or (folder / "labels").is_dir():
        return read_yolo_folder(folder, part, read_classes(str(file)) if file else None, classes, bad_boxes)
    inside = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir())[:5])
    raise DataError(
        f"{folder}: neither data.yaml (YOLO) nor Annotations/*.xml (VOC) nor *.json (LabelMe, COCO) is in this folder: "
        f"name the file, or the folder above or below it{f' ({inside})' if inside else ''}"
    )


def read_parts(
    sources: Mapping[str, str],
    classes: str | None,
    image_root: str | None,
    bad_boxes: str,
    skip_bad_images: bool,
    log: Callable[[str], None],
) -> tuple[Annotations, ...]:
    """Reads and checks the parts of a data set; `sources` maps a part ("train", "val") to its file or folder.

    All parts have the classes of the file `classes`, or of the first part. Logs what is left out. Raises DataError."""
    names, parts = read_classes(classes) if classes else None, []
    for part, source in sources.items():
        data = read(source, part, names, image_root, bad_boxes)
        if len(data) == 0:
            raise DataError(f"{source}: no images; {part}= names an annotation file or a folder with images")
        if part == "train" and len(data.labels) == 0:
            raise DataError(f"{source}: {len(data)} images, but no boxes; a line is: path x1,y1,x2,y2,class ...")
        data, notes = prepare(data, skip_bad_images, bad_boxes)
        for note in notes:
            log(f"note: {note}")
        names = data.classes
        parts.append(data)
    return tuple(parts)
