"""VOC and LabelMe folders, with one label file per image -> Annotations."""

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datasets.annotations import read_json, text_lines
from datasets.errors import DataError, check_names
from datasets.store import Annotations, Classes, Packer, Part
from utils.images import images_under


class Box(NamedTuple):
    """One object of a label file; where it cannot be read, `problem` says why and there are no corners."""

    name: str
    corners: tuple[float, ...]  # x1, y1, x2, y2 in pixels
    crowd: bool = False
    problem: str = ""


class LabelFile(NamedTuple):
    """The contents of one XML or JSON file, which describes one image."""

    path: str
    image: str = ""  # name of the image as the file has it
    size: tuple[int, int] = (0, 0)  # height, width
    boxes: Sequence[Box] = ()
    problem: str = ""


def _pack(pack: Packer, names: tuple[str, ...], rows: list[tuple[str, LabelFile]], bad_boxes: str) -> Annotations:
    """Packs `rows` (path of the image, its label file) into annotations with the class names `names`."""
    labels = {name: label for label, name in enumerate(names)}
    for image, file in rows:
        if file.problem:
            pack.problems.append(f"{file.path}: {file.problem}")
        pack.add_image(image, file=file.path, size=file.size)
        for number, box in enumerate(file.boxes, 1):
            try:
                if box.problem:
                    raise ValueError(box.problem)
                pack.add_box(*box.corners, labels[box.name], int(box.crowd))
            except ValueError as error:
                pack.complain(f"{file.path}: object {number}", error)
    return pack.finish(bad_boxes)


def _names(files: list[LabelFile]) -> tuple[str, ...]:
    """Returns the sorted class names of label files. Raises DataError for a name that cannot be used."""
    for file in files:
        check_names((box.name for box in file.boxes), file.path)
    return tuple(sorted({box.name for file in files for box in file.boxes}))


def has_xml(folder: Path) -> bool:
    """Returns whether there are XML files in a folder."""
    return folder.is_dir() and next(folder.glob("*.xml"), None) is not None


def read_voc(folder: Path, part: Part, classes: Classes, bad_boxes: str, listed: Path | None = None) -> Annotations:
    """Reads the images of a VOC folder that the file `listed` names, or ImageSets/Main/NAME.txt with the first NAME of
    `part` that exists; without ImageSets, or with `part` empty, all. Difficult objects become crowd regions.

    Without `classes` the names in all Annotations count, so that every part has the same classes. Raises DataError."""
    xml = next(folder / name for name in ("Annotations", "annotations", "") if has_xml(folder / name))
    base = folder.parent if xml.name.lower() == "annotations" and xml == folder else folder
    lists = base / "ImageSets" / "Main"
    if listed is None and part and lists.is_dir():
        listed = next((lists / f"{name}.txt" for name in part if (lists / f"{name}.txt").exists()), None)
        if listed is None:
            there = ", ".join(sorted(path.name for path in lists.glob("*.txt"))) or "nothing"
            missing = f"no {' or '.join(part)}.txt, only {there}"
            raise DataError(f"{lists}: {missing}: name the list itself, {lists}/NAME.txt")
    every = sorted(path.relative_to(xml).as_posix()[:-4] for path in xml.rglob("*.xml"))
    stems, problems = (every, []) if listed is None else _listed(listed, set(every))
    files = {stem: _voc_file(xml / f"{stem}.xml") for stem in (every if classes is None else stems)}
    names = _names(list(files.values()))
    pack = Packer(str(folder), str(base), names, classes)
    pack.problems += problems
    place, index = _image_index(base, xml)
    rows = [(_voc_image(stem, files[stem].image, place, index), files[stem]) for stem in stems]
    left = len(set(index.values()) - {image for image, _ in rows})
    if listed is None and part:
        pack.notes.append(f"{folder}: no ImageSets, so training and validation use the same images")
    if listed is None and left:
        pack.notes.append(f"{folder}: {left} images without an XML file are left out")
    return _pack(pack, names, rows, bad_boxes)


def _listed(path: Path, stems: set[str]) -> tuple[list[str], list[str]]:
    """Returns (stems in a list of ImageSets, a problem for each one without an XML file)."""
    found, problems = [], []
    for number, line in text_lines(str(path)):
        stem = line.strip()
        if stem not in stems:
            stem = re.sub(r"\s+-?[01]$", "", stem)  # lists of one class have a flag after the name
        if stem in stems:
            found.append(stem)
        elif stem:
            problems.append(f"{path}:{number}: there is no {stem}.xml: add it (without objects for a background)")
    return found, problems


def _voc_file(path: Path) -> LabelFile:
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        return LabelFile(str(path), problem=f"not valid XML ({error}): export the file again, as UTF-8")
    size = [root.findtext(f"size/{side}", "0").strip() for side in ("height", "width")]
    return LabelFile(
        path=str(path),
        image=root.findtext("filename", "").strip().replace("\\", "/").rpartition("/")[2],
        size=tuple(int(side) if side.isdecimal() else 0 for side in size),
        boxes=[_voc_box(node) for node in root.findall("object")],
    )


def _voc_box(node: ElementTree.Element) -> Box:
    name = node.findtext("name", "").strip()
    crowd = node.findtext("difficult", "0").strip() == "1"
    words = [node.findtext(f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax")]
    try:
        return Box(name, tuple(float(word) for word in words), crowd)
    except (TypeError, ValueError):
        return Box(name, (), problem=f"{name!r} needs a bndbox with numbers for xmin, ymin, xmax, ymax, not {words}")


def _image_index(base: Path, xml: Path) -> tuple[str, dict[str, str]]:
    """Returns (folder of the images, name with and without suffix -> path), all paths relative to `base`."""
    for place in ("JPEGImages", "images", "Images", xml.name if xml != base else "", ""):
        names = images_under(str(base / place))
        if names:
            break
    index = {}
    for name in names:
        index.setdefault(name, os.path.join(place, name))
        index.setdefault(os.path.splitext(name)[0], os.path.join(place, name))
    return place, index


def _voc_image(stem: str, name: str, place: str, index: dict[str, str]) -> str:
    """Returns the path of the image with the stem of the XML file; `name`, the file name in the XML, decides between suffixes."""
    folder = os.path.dirname(stem)
    keys = [stem, name, f"{folder}/{name}"]
    if os.path.splitext(name)[0] == os.path.basename(stem):
        keys.insert(0, f"{folder}/{name}" if folder else name)
    return next((index[key] for key in keys if key in index), os.path.join(place, name or f"{stem}.jpg"))


def read_labelme(folder: Path, files: list[Path], classes: Classes, bad_boxes: str) -> Annotations:
    """Reads a LabelMe folder with the JSON files `files`; every shape becomes its bounding box. Raises DataError."""
    rows = []
    for path in files:
        file = _labelme_file(path)
        image = file.image or f"{path.stem}.jpg"
        if not os.path.exists(folder / image):  # the files were moved: the image is next to its JSON file
            near = (path.with_suffix(f".{suffix}") for suffix in ("jpg", "jpeg", "png", "bmp"))
            image = next((place.name for place in near if place.exists()), image)
        rows.append((image, file))
    names = _names([file for _, file in rows])
    pack = Packer(str(folder), str(folder), names, classes)
    left = len(set(images_under(str(folder))) - {image for image, _ in rows})
    if left:
        pack.notes.append(f"{folder}: {left} images without a JSON file are left out")
    return _pack(pack, names, rows, bad_boxes)


def _labelme_file(path: Path) -> LabelFile:
    data = read_json(str(path))
    if not isinstance(data, dict) or "shapes" not in data:
        return LabelFile(str(path), problem="not a LabelMe file, it has no shapes: take it out of this folder")
    return LabelFile(
        path=str(path),
        image=str(data.get("imagePath") or "").replace("\\", "/"),
        size=(int(data.get("imageHeight") or 0), int(data.get("imageWidth") or 0)),
        boxes=[_labelme_box(shape) for shape in data["shapes"]],
    )


def _labelme_box(shape: dict[str, Any]) -> Box:
    name, kind = str(shape.get("label", "")), shape.get("shape_type") or "polygon"
    try:
        xs, ys = zip(*((float(x), float(y)) for x, y in shape["points"]), strict=True)
    except (KeyError, TypeError, ValueError):
        return Box(name, (), problem=f"{name!r} needs points [x, y]")
    if kind in ("point", "points", "line", "linestrip"):
        problem = f"{name!r} is a {kind}, which has no box: draw a rectangle or a polygon, or remove it"
        return Box(name, (), problem=problem)
    if kind == "circle" and len(xs) == 2:  # its center and a point on it
        radius = ((xs[1] - xs[0]) ** 2 + (ys[1] - ys[0]) ** 2) ** 0.5
        return Box(name, (xs[0] - radius, ys[0] - radius, xs[0] + radius, ys[0] + radius))
    return Box(name, (min(xs), min(ys), max(xs), max(ys)))
