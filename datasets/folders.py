"""VOC and LabelMe: folders with a file of boxes for every picture."""

import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, NamedTuple

from datasets.annotations import read_json, text_lines
from datasets.images import pictures_under
from datasets.store import Annotations, DataError, Packer

Classes = tuple[str, ...] | None


class Box(NamedTuple):
    """A box as it stands in a file of its own kind; `problem` instead of the corners where it cannot be understood."""

    name: str
    corners: tuple[float, ...]
    crowd: bool = False
    problem: str = ""


class LabelFile(NamedTuple):
    """What one XML or JSON file says of one picture."""

    picture: str  # the picture's name as the file has it
    size: tuple[int, int] = (0, 0)  # height, width
    boxes: list[Box] = []
    problem: str = ""


def _pack(pack: Packer, names: tuple[str, ...], rows: list[tuple[str, str, LabelFile]], bad_boxes: str) -> Annotations:
    """rows: (path of the picture, path of the label file, its contents)."""
    labels = {name: label for label, name in enumerate(names)}
    for picture, path, contents in rows:
        if contents.problem:
            pack.complain(path, ValueError(contents.problem))
        pack.picture(picture, file=path, size=contents.size)
        for number, box in enumerate(contents.boxes, 1):
            try:
                if box.problem:
                    raise ValueError(box.problem)
                pack.box(*box.corners, labels[box.name], int(box.crowd))
            except ValueError as error:
                pack.complain(f"{path}: object {number}", error)
    return pack.finish(bad_boxes)


def _names(files: list[LabelFile]) -> tuple[str, ...]:
    return tuple(sorted({box.name for contents in files for box in contents.boxes}))


def has_xml(folder: Path) -> bool:
    return folder.is_dir() and next(folder.glob("*.xml"), None) is not None


def read_voc(
    folder: Path, part: tuple[str, ...], classes: Classes, bad_boxes: str, listed: Path | None = None
) -> Annotations:
    """A VOC folder: the pictures of the list `listed`, or of the first list ImageSets/Main/`part`.txt that is there, or
    of all Annotations where there are no ImageSets or `part` is empty. A difficult object becomes a crowd region.
    Without `classes` the names of all Annotations count, so that every part has the same. Raises DataError."""
    xml = next(folder / name for name in ("Annotations", "annotations", "") if has_xml(folder / name))
    base = folder.parent if xml.name.lower() == "annotations" and xml == folder else folder
    lists = base / "ImageSets" / "Main"
    if listed is None and part and lists.is_dir():
        listed = next((lists / f"{name}.txt" for name in part if (lists / f"{name}.txt").exists()), None)
        if listed is None:
            there = ", ".join(sorted(path.name for path in lists.glob("*.txt"))) or "nothing"
            raise DataError(
                f"{lists}: no {' or '.join(part)}.txt, only {there}: name the list itself, {lists}/NAME.txt"
            )
    every = sorted(path.relative_to(xml).as_posix()[:-4] for path in xml.rglob("*.xml"))
    stems, problems = (every, []) if listed is None else _listed(listed, set(every))
    files = {stem: _voc_file(xml / f"{stem}.xml") for stem in (every if classes is None else stems)}
    names = _names(list(files.values()))
    pack = Packer(str(folder), str(base), names, classes)
    for where, problem in problems:
        pack.complain(where, ValueError(problem))
    place, index = _picture_index(base, xml)
    rows = [
        (_voc_picture(stem, files[stem].picture, place, index), str(xml / f"{stem}.xml"), files[stem]) for stem in stems
    ]
    left = len(set(index.values()) - {picture for picture, _, _ in rows})
    if listed is None and part:
        pack.notes.append(f"{folder}: no ImageSets, so all pictures are taken, for training as for validation")
    if listed is None and left:
        pack.notes.append(f"{folder}: {left} pictures without an XML file are left out")
    return _pack(pack, names, rows, bad_boxes)


def _listed(path: Path, stems: set[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """-> (stems in a list of ImageSets, (where, problem) of those without an XML file)."""
    found, problems = [], []
    for number, line in text_lines(str(path)):
        stem = line.strip()
        if stem not in stems:
            stem = re.sub(r"\s+-?[01]$", "", stem)  # lists of a class have a flag behind the name
        if stem in stems:
            found.append(stem)
        elif stem:
            problems.append((f"{path}:{number}", f"there is no {stem}.xml: add it (without objects for a background)"))
    return found, problems


def _voc_file(path: Path) -> LabelFile:
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        return LabelFile("", problem=f"not XML that can be read ({error}): export the file again, as UTF-8")
    size = [root.findtext(f"size/{side}", "0").strip() for side in ("height", "width")]
    return LabelFile(
        picture=root.findtext("filename", "").strip().replace("\\", "/").rpartition("/")[2],
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


def _picture_index(base: Path, xml: Path) -> tuple[str, dict[str, str]]:
    """-> (folder of the pictures, name with and without suffix -> path), all paths relative to `base`."""
    for place in ("JPEGImages", "images", "Images", xml.name if xml != base else "", ""):
        names = pictures_under(str(base / place))
        if names:
            break
    index = {}
    for name in names:
        index.setdefault(name, os.path.join(place, name))
        index.setdefault(os.path.splitext(name)[0], os.path.join(place, name))
    return place, index


def _voc_picture(stem: str, name: str, place: str, index: dict[str, str]) -> str:
    """The picture of an XML file: that of the same stem, with the suffix that the XML says where there are several."""
    beside = os.path.dirname(stem)
    keys = [stem, name, f"{beside}/{name}"]
    if os.path.splitext(name)[0] == os.path.basename(stem):
        keys.insert(0, f"{beside}/{name}" if beside else name)
    return next((index[key] for key in keys if key in index), os.path.join(place, name or f"{stem}.jpg"))


def read_labelme(folder: Path, files: list[Path], classes: Classes, bad_boxes: str) -> Annotations:
    """A LabelMe folder: polygons, rectangles, circles and masks become the boxes around them. Raises DataError."""
    rows = []
    for path in files:
        contents = _labelme_file(path)
        picture = contents.picture or f"{path.stem}.jpg"
        if not (folder / picture).exists():  # moved since, as a rule together with its file
            picture = next(
                (f.name for s in ("jpg", "jpeg", "png", "bmp") if (f := path.with_suffix(f".{s}")).exists()), picture
            )
        rows.append((picture, str(path), contents))
    names = _names([contents for _, _, contents in rows])
    pack = Packer(str(folder), str(folder), names, classes)
    left = len(set(pictures_under(str(folder))) - {picture for picture, _, _ in rows})
    if left:
        pack.notes.append(f"{folder}: {left} pictures without a JSON file are left out")
    return _pack(pack, names, rows, bad_boxes)


def _labelme_file(path: Path) -> LabelFile:
    data = read_json(str(path))
    if not isinstance(data, dict) or "shapes" not in data:
        return LabelFile("", problem="not a LabelMe file, it has no shapes: take it out of this folder")
    return LabelFile(
        picture=str(data.get("imagePath") or "").replace("\\", "/"),
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
        return Box(
            name, (), problem=f"{name!r} is a {kind}, which has no box: draw a rectangle or a polygon, or remove it"
        )
    if kind == "circle" and len(xs) == 2:  # its centre and a point of it
        radius = ((xs[1] - xs[0]) ** 2 + (ys[1] - ys[0]) ** 2) ** 0.5
        return Box(name, (xs[0] - radius, ys[0] - radius, xs[0] + radius, ys[0] + radius))
    return Box(name, (min(xs), min(ys), max(xs), max(ys)))
