"""VOC folders, with one XML file per image -> Source."""

import os
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from datasets.errors import DataError
from datasets.formats import image_paths
from datasets.formats.file import CLASS_FILES, File, Folder, images_of, of_suffix, parse_xml, stem_of, text_lines
from datasets.formats.source import (
    CROWD,
    FIELDS,
    Box,
    Degrees,
    LabelFile,
    Source,
    add_files,
    angle_problem,
    box_around,
    crowd_of,
    names_of,
    side,
)
from datasets.formats.splits import add_notes, add_splits, listed_name, select_split, split_of
from datasets.store import Split
from utils.images import IMAGE_SUFFIXES
from utils.text import clean_name, number_of

OBJECT_PARTS = "object bndbox robndbox bbox box rectangle polygon points point".split()  # in lower case
LEAST = 4  # numbers of a box
SIDES = ("xmin", "ymin", "xmax", "ymax")
WRITE_VOC = (
    "write <object><name>CLASS</name><bndbox><xmin>, <ymin>, <xmax>, <ymax>, in pixels, right below <annotation>"
)
_ROOT = re.compile(rb"<(\w+:)?annotation\b")


def matches(file: File) -> bool:
    """Returns whether an XML file has one image."""
    return bool(_ROOT.search(file.head.replace(b"\0", b"")))  # UTF-16 has zeros


def read_folder(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads the XML files in a folder that belong to its split. Raises DataError.

    A split is a list in ImageSets, or a folder; the first name in it that exists counts. An empty split is all images. The XML
    files and the images may be anywhere in the folder; images also next to it, or in `image_root`. Difficult objects become
    crowd regions. The names in all XML files count, so that all splits have the same classes."""
    above = Path(os.path.abspath(folder.path)).parent
    if not images_of(folder.files) and (above / "ImageSets").is_dir():  # the user named Annotations
        folder = Folder(Path(os.path.normpath(folder.path / "..")), folder.split, folder.image_root)
        names = [name for name in folder.of_suffix(".xml") if matches(folder.file(name))]
    path, split, every = folder.path, folder.split, list(names)
    texts = _image_lists(path, folder.files, every) if split else []
    if texts:
        lists = _lists_of(path, texts, split)
        listed = _listed(path, lists, every)
        source = _source(folder, every, listed)
        add_splits(source, path, (split_of(Path(text).stem) for text in texts), split)
    else:
        chosen = select_split(path, every, split)
        source = _source(folder, every, Listed(chosen))
        if "val" in split and len(chosen) == len(every):
            source.notes.append(f"{path}: no ImageSets and no folders of splits: all images belong to every split")
        add_notes(source, path, every, split)
    return [source]


def read_listed(listed: Path, folder: Path, image_root: str | None) -> Source:
    """Reads the images in the list `listed`, whose XML files are in a folder. Raises DataError."""
    inside = Folder(folder, (), image_root)
    every = [name for name in inside.of_suffix(".xml") if matches(inside.file(name))]
    return _source(inside, every, _listed(folder, [listed], every))


class Listed(NamedTuple):
    """The XML files that are read, and what is wrong with the lists that name them."""

    xmls: list[str]
    unclear: Sequence[str] = ()  # problems of names that several XML files have
    missing: Mapping[str, tuple[Path, str]] = {}  # name without an XML file -> its list, and what is wrong


def _source(folder: Folder, every: Sequence[str], listed: Listed) -> Source:
    """Reads the XML files `listed` in a folder with the XML files `every`. Raises DataError."""
    path, xmls = folder.path, listed.xmls
    parsed = {xml: _voc_file(path / xml) for xml in every}
    found = [(parsed[xml].path, parsed[xml].image) for xml in xmls]
    root, images = image_paths.images_of_labels(folder, ".xml", found)
    source = Source(str(path), root, names_of(parsed.values()), label_files=[str(path / xml) for xml in every])
    asked = [*xmls, *listed.missing, *(f"{name}.xml" for name in listed.missing)]
    index = image_paths.Stems(images, asked, (file.image for file in parsed.values()))
    rows = []
    for xml in xmls:
        nearest = index.all_nearest(xml, parsed[xml].image)
        source.problems += image_paths.doubts(path / xml, root, nearest)
        rows.append((next(iter(nearest), None), parsed[xml]))
    stems, named = set(map(stem_of, images)), {xml: stem_of(parsed[xml].image) for xml in xmls}
    others = [xml for xml in xmls if named[xml] != stem_of(xml) and {named[xml], stem_of(xml)} <= stems]
    if others:
        text = f"XML files that name another image than that of their own name, which counts: {len(others)}"
        source.notes.append(f"{path}: {text}, for example {others[0]}")
    pairs = [(image or file.image or f"{stem_of(file.path)}.jpg", file) for image, file in rows]
    add_files(source, pairs + _backgrounds(source, path, listed, index if xmls else None))
    return source


def _backgrounds(
    source: Source, path: Path, listed: Listed, index: image_paths.Stems | None
) -> list[tuple[str, LabelFile]]:
    """Returns the listed images without an XML file, as CVAT leaves those without boxes; others are problems of the source."""
    source.problems += listed.unclear
    images = []
    for name, (place, problem) in listed.missing.items():
        if image := _without_xml(name, place.parent, index):
            images.append((image, LabelFile(str(path / image))))
        else:
            source.problems.append(problem)
    if images:
        text = f"{path}: listed images without an XML file, which have no boxes: {len(images)}"
        source.notes.append(f"{text}, for example {images[0][0]}")
    return images


def _without_xml(name: str, folder: Path, index: image_paths.Stems | None) -> str | None:
    """Returns the image that a list in `folder` calls `name`, which has no XML file. None if there is no such image."""
    place = os.path.abspath(folder / name)
    if name.lower().endswith(IMAGE_SUFFIXES) and os.path.isfile(place):
        return place
    return index.nearest(f"{name}.xml") or index.nearest(name) if index else None


def _image_lists(folder: Path, files: list[str], xmls: Sequence[str]) -> list[str]:
    """Returns the lists of images in ImageSets/Main, ImageSets or the folder: the first of these that has any."""
    texts = [text for text in of_suffix(files, ".txt") if os.path.basename(text).lower() not in CLASS_FILES]
    places = ("(.*/)?ImageSets/Main/", "(.*/)?ImageSets/", "")
    lists = next((found for place in places if (found := [t for t in texts if re.fullmatch(f"{place}[^/]+", t)])), [])
    if lists and "/" not in lists[0]:  # not every text is a list
        lists = [text for text in lists if any(_listed(folder, [folder / text], xmls)[:2])]
    return lists


def _lists_of(folder: Path, lists: Sequence[str], split: Split) -> list[Path]:
    """Returns the `lists` of the first name of `split` that has any, or else its lists of single classes, as VoTT writes them.

    Raises DataError if there are none."""
    stems = {text: Path(text).stem.lower() for text in lists}
    whole = ([text for text in lists if stems[text] == name] for name in split)
    of_classes = ([text for text in lists if stems[text].endswith(f"_{name}")] for name in split)
    named = ([text for text in lists if split_of(stems[text]) == name] for name in split)  # train_list.txt of PaddleX
    chosen = next(filter(None, chain(whole, of_classes, named)), [])
    if len(lists) == 1 and not split_of(Path(lists[0]).stem):
        chosen = list(lists)  # such as default.txt of CVAT: the data set is not divided
    if not chosen:
        there = ", ".join(Path(text).name for text in lists)
        missing = f"no {' or '.join(split)}.txt, only {there}"
        place = (folder / lists[0]).parent
        raise DataError(f"{place}: {missing}: name the list itself, {place}/NAME.txt")
    return [folder / text for text in chosen]


def _listed(folder: Path, lists: Sequence[Path], xmls: Sequence[str]) -> Listed:
    """Returns the XML files in lists of images."""
    by_name, by_path = defaultdict(list), defaultdict(list)
    for xml in xmls:
        by_name[stem_of(xml)].append(xml)
        by_path[os.path.splitext(xml)[0]].append(xml)
    by_name |= by_path
    found, unclear, missing = [], [], {}
    lines = [(path, number, *listed_name(line)) for path in lists for number, line in text_lines(path)]
    meant = image_paths.meant((word for *_, readings in lines for word in readings), by_name)
    for path, number, bare, readings in lines:
        candidates = next((by_name[meant[word]] for word in readings if word in meant), [])
        if len(candidates) > 1:
            own = os.path.relpath(path.with_suffix(""), folder).replace(os.sep, "/")
            candidates = image_paths.most_alike(f"annotations/{own}/{bare}", candidates)
        if len(candidates) > 1:
            several = ", ".join(candidates[:5])
            unclear.append(f"{path}:{number}: {bare} may be {several}: write the path with its folder")
        elif candidates:
            found += candidates
        elif bare:
            problem = f"there is no {bare}.xml and no such image: add both, or remove the line"
            missing[bare] = (path, f"{path}:{number}: {problem}")
    return Listed(list(dict.fromkeys(found)), unclear, missing)  # several lists of a split may name an image


def _voc_file(path: Path) -> LabelFile:
    try:
        root = parse_xml(path)
    except DataError as error:
        return LabelFile(str(path), problem=str(error).removeprefix(f"{path}: "))
    for node in root.iter():
        node.tag = str(node.tag).rpartition("}")[2]  # without the namespace
    found = root.findall("object")
    below = [node for node in root if node.tag != "object" and _may_be_object(node, bool(found))]
    problem = f"{below[0].tag} is not where VOC has it, annotation/object/bndbox: {WRITE_VOC}" if below else ""
    return LabelFile(
        problem=problem,
        path=str(path),
        image=root.findtext("filename", "").strip().replace("\\", "/").rpartition("/")[2],
        size=(side(root.findtext("size/height", "")), side(root.findtext("size/width", ""))),
        boxes=[_voc_box(node) for node in found],
    )


def _voc_box(node: ElementTree.Element) -> Box:
    own = _texts(node)
    name = clean_name(own.get("name", ""))
    boxes = node.findall("bndbox")
    inner = _texts(boxes[0]) if boxes else {}
    words = [inner.get(side, "") for side in SIDES]
    if own.get("deleted", "").strip() in CROWD:  # LabelMe's web page keeps what was deleted
        return Box(name, (), no_box="deleted")
    counts = Counter(str(part.tag) for part in chain(node, *boxes))
    if twice := next((tag for tag in ("name", "bndbox", *SIDES) if counts[tag] > 1), ""):
        return Box(name, (), problem=f"{name!r} has {counts[twice]} {twice}: write an object for each")
    try:
        corners = tuple(number_of(word) for word in words)
    except ValueError:
        needed = "bndbox with numbers for xmin, ymin, xmax, ymax"
        return Box(name, (), problem=f"{name!r} needs a {needed}, not {words}; draw it again, or remove it")
    attributes = {row.findtext("name"): row.findtext("value") for row in node.iterfind("attributes/attribute")}
    angles = {field: own[field] for field in FIELDS if field in own}
    angles |= {f"bndbox/{field}": inner[field] for field in FIELDS if field in inner}
    crowd, problem = crowd_of(attributes | own)
    return Box(name, box_around(corners, Degrees.of(attributes)), crowd, angle_problem(angles) or problem)


def _may_be_object(node: ElementTree.Element, has_others: bool) -> bool:
    """Returns whether an element next to objects holds some; without others, whether it may: it has a name and the numbers
    of a box."""
    tags = {str(part.tag).lower() for part in node.iter()}
    if has_others:
        return "object" in tags
    texts = (text for part in node.iter() for text in (part.text or "", *part.attrib.values()))
    words = [word for text in texts for word in re.split(r"[\s,;]+", text) if word]
    numbers = sum(word.replace(".", "", 1).isdecimal() for word in words)
    return not tags.isdisjoint(OBJECT_PARTS) or LEAST <= numbers < len(words)


def _texts(node: ElementTree.Element) -> dict[str, str]:
    """Returns {tag: text} of the elements in one; of several with the same tag, the first."""
    return {child.tag: child.text or "" for child in reversed(node)}
