"""VOC folders, with one XML file per image -> Annotations."""

import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from datasets.annotations import text_lines
from datasets.errors import DataError
from datasets.named import Box, LabelFile, names_of, pack_files
from datasets.store import Annotations, Classes, Packer, Part
from utils.images import images_under


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
    names = names_of(files.values())
    pack = Packer(str(folder), str(base), names, classes)
    pack.problems += problems
    place, index = _image_index(base, xml)
    rows = [(_voc_image(stem, files[stem].image, place, index), files[stem]) for stem in stems]
    left = len(set(index.values()) - {image for image, _ in rows})
    if listed is None and part:
        pack.notes.append(f"{folder}: no ImageSets, so training and validation use the same images")
    if listed is None and left:
        pack.notes.append(f"{folder}: {left} images without an XML file are left out")
    return pack_files(pack, names, rows, bad_boxes)


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
