"""Folders that real tools write are recognized by what they hold, or refused with the exact fix; nothing is dropped silently."""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from files import boxes
from refused import mentions, refused

from datasets.errors import DataError, first_ten
from datasets.formats import image_paths
from datasets.formats.read import ReadOptions, read, read_options
from datasets.scan import prepare
from datasets.sources import read_train_and_val
from datasets.store import Annotations
from tools.convert import convert
from utils.files import files_under

VOC_OBJECT = "<object><name>{}</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox></object>"
LABEL = "0 .125 .25 .2 .3\n"  # the box 1,2,9,8 of an image of 40 x 20


def paint(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    level = sum(map(ord, path.name)) % 200
    kind = {".jfif": ".jpg", ".heic": ".png"}.get(path.suffix, path.suffix)
    path.write_bytes(cv2.imencode(kind, np.full((20, 40, 3), level, np.uint8))[1].tobytes())
    return path


def text(path: Path, words: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words if isinstance(words, str) else json.dumps(words), encoding="utf-8")
    return path


def xml(path: Path, image: str = "", name: str = "cat") -> Path:
    return text(path, f"<annotation><filename>{image}</filename>{VOC_OBJECT.format(name)}</annotation>")


def coco(*images: str) -> dict[str, Any]:
    annotations = [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 8, 6]} for i in range(len(images))]
    rows = [{"id": i, "file_name": name, "height": 20, "width": 40} for i, name in enumerate(images)]
    return {"images": rows, "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]}


def images(found: Annotations, root: Path) -> list[str]:
    """Paths of the images relative to `root`; each must be readable and have the one box of class cat."""
    found, _ = prepare(found)
    assert np.allclose(found.boxes, [[1, 2, 9, 8]] * len(found)) and found.classes == ("cat",)
    assert len(found.boxes) == len(found)
    return [str(Path(found.path(i)).resolve().relative_to(root)) for i in range(len(found))]


# ---- VOC


@pytest.mark.parametrize("labels", ["annots", "xmls", "Annotation", "labels", "data/xml"])
@pytest.mark.parametrize("place", ["img", "imgs", "images", "JPEGImages", "my photos", ""])
def test_voc_folders_may_have_any_names(tmp_path: Path, labels: str, place: str) -> None:
    """VOC in folders named annots, xmls, Annotation; images in img, imgs; the label folder itself is named."""
    xml(tmp_path / labels / "a.xml", "a.jpg"), paint(tmp_path / place / "a.jpg")
    name = str(Path(place, "a.jpg"))
    assert images(read(str(tmp_path), "all"), tmp_path) == [name]
    assert images(read(str(tmp_path / labels), "all"), tmp_path) == [name]


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ("annotations/{}", "images/{}"),
        ("{}/annotations", "{}/images"),
        ("{}", "{}"),
        ("Annotations/{}", "JPEGImages/{}"),
    ],
)
def test_voc_parts_are_folders_anywhere_in_the_path(tmp_path: Path, labels: str, place: str) -> None:
    """Images/train and annotations/train. Images of one name in two parts stay apart."""
    for part in ("train", "val"):
        xml(tmp_path / labels.format(part) / "a.xml", "a.jpg"), paint(tmp_path / place.format(part) / "a.jpg")
    for part in ("train", "val"):
        assert images(read(str(tmp_path), part), tmp_path) == [f"{place.format(part)}/a.jpg"]
        own = read(str(tmp_path / labels.format(part)), "train")
        assert images(own, tmp_path) == [f"{place.format(part)}/a.jpg"]
    assert len(read(str(tmp_path), "all")) == 2
    assert len(read(str(tmp_path), "test" if False else "val")) == 1


@pytest.mark.parametrize("place", ["ImageSets/Main", "ImageSets", ""])
@pytest.mark.parametrize("line", ["{}", "{}.jpg", "JPEGImages/{}.jpg", "{} 1", "{}.xml"])
def test_voc_lists_may_be_without_main_and_with_suffixes(tmp_path: Path, place: str, line: str) -> None:
    """ImageSets without Main; lists with suffixes."""
    for name in ("a.1", "b"):
        xml(tmp_path / "Annotations" / f"{name}.xml"), paint(tmp_path / "JPEGImages" / f"{name}.jpg")
    for part, name in (("train", "a.1"), ("val", "b")):
        listed = text(tmp_path / place / f"{part}.txt", line.format(name) + "\n")
        assert images(read(str(listed), "train"), tmp_path) == [f"JPEGImages/{name}.jpg"]
    assert images(read(str(tmp_path), "train"), tmp_path) == ["JPEGImages/a.1.jpg"]
    assert images(read(str(tmp_path / "Annotations"), "val"), tmp_path)[-1] == "JPEGImages/b.jpg"


@pytest.mark.parametrize("line", ["{}/1", "JPEGImages/{}/1.jpg", "Annotations/{}/1.xml"])
def test_voc_lists_name_images_of_one_name_by_their_folders(tmp_path: Path, line: str) -> None:
    for camera in ("cam1", "cam2"):
        xml(tmp_path / "Annotations" / camera / "1.xml"), paint(tmp_path / "JPEGImages" / camera / "1.jpg")
    lines = "".join(f"{line.format(camera)}\n" for camera in ("cam1", "cam2"))
    listed = text(tmp_path / "ImageSets" / "Main" / "train.txt", lines)
    expected = ["JPEGImages/cam1/1.jpg", "JPEGImages/cam2/1.jpg"]
    assert images(read(str(tmp_path), "train"), tmp_path) == images(read(str(listed), "train"), tmp_path) == expected
    listed.write_text("1\n")
    with refused(DataError, "train.txt:1", "cam1/1.xml", "cam2/1.xml"):
        read(str(tmp_path), "train")


def test_the_lists_of_two_voc_folders_name_their_own_images(tmp_path: Path) -> None:
    for name in "AB":
        xml(tmp_path / name / "Annotations" / "1.xml"), paint(tmp_path / name / "JPEGImages" / "1.jpg")
        text(tmp_path / name / "ImageSets" / "Main" / "train.txt", "1\n")
    assert images(read(str(tmp_path), "train"), tmp_path) == ["A/JPEGImages/1.jpg", "B/JPEGImages/1.jpg"]


def test_a_file_of_class_names_is_no_list_of_images(tmp_path: Path) -> None:
    for folder in ("voc", "yolo"):
        paint(tmp_path / folder / "1.jpg"), text(tmp_path / folder / "predefined_classes.txt", "1\n2\n")
    text(tmp_path / "voc" / "classes.txt", "1\n2\n"), xml(tmp_path / "voc" / "1.xml", "1.jpg", "1")
    text(tmp_path / "yolo" / "classes.txt", "1\n2\n"), text(tmp_path / "yolo" / "1.txt", "1 .5 .5 .2 .2\n")
    for folder in ("voc", "yolo"):
        found = read(str(tmp_path / folder), "train")
        assert len(found) == len(found.boxes) == 1 and found.path(0).endswith("1.jpg")


def test_voc_images_may_be_in_image_root(tmp_path: Path) -> None:
    """`image_root` is never ignored silently, and images that do not exist are never converted."""
    xml(tmp_path / "set" / "annots" / "a.xml", "a.jpg"), paint(tmp_path / "far" / "away" / "a.jpg")
    with refused(DataError, "1 XML", "a.xml", "a.jpg", "image_root="):
        convert(str(tmp_path / "set"), str(tmp_path / "out.txt"))
    found = read(str(tmp_path / "set"), "train", ReadOptions(image_root=str(tmp_path / "far")))
    assert images(found, tmp_path) == ["far/away/a.jpg"]


def test_conversion_never_writes_images_that_do_not_exist(tmp_path: Path) -> None:
    source = text(tmp_path / "a.txt", "none.jpg 1,2,3,4,0\n")
    with refused(DataError, "a.txt", "1 of 1", "none.jpg", "image_root="):
        convert(str(source), str(tmp_path / "out.txt"))
    assert not (tmp_path / "out.txt").exists()


def test_xml_namespaces_are_read_and_other_xml_is_refused(tmp_path: Path) -> None:
    """XML with a namespace is read as without."""
    path = xml(tmp_path / "a.xml", "a.jpg")
    path.write_text(path.read_text().replace("<annotation>", '<annotation xmlns="http://x.org/voc">'))
    paint(tmp_path / "a.jpg")
    assert images(read(str(tmp_path), "train"), tmp_path) == ["a.jpg"]
    text(tmp_path / "b.xml", "<annotations><image/></annotations>")
    with refused(DataError, "b.xml", "CVAT"):
        read(str(tmp_path), "train")


# ---- YOLO


@pytest.mark.parametrize("names", ["classes.txt", "obj.names", "notes.json", "_darknet.labels"])
def test_yolo_images_and_labels_may_be_side_by_side(tmp_path: Path, names: str) -> None:
    """Flat YOLO folder; a list of images with labels next to them."""
    paint(tmp_path / "a.jpg"), text(tmp_path / "a.txt", LABEL)
    with refused(DataError, "classes.txt", "classes="):
        read(str(tmp_path), "train")
    words = {"notes.json": {"categories": [{"id": 0, "name": "cat"}], "info": {}}}
    text(tmp_path / names, words.get(names, "cat\n"))
    assert images(read(str(tmp_path), "train"), tmp_path) == ["a.jpg"]
    listed = text(tmp_path / "list.txt", "a.jpg\n")
    assert images(read(str(listed), "train"), tmp_path) == ["a.jpg"]


def test_a_list_of_images_with_labels_next_to_them_needs_classes_txt(tmp_path: Path) -> None:
    paint(tmp_path / "a.jpg"), text(tmp_path / "a.txt", LABEL)
    with refused(DataError, "list.txt", "classes.txt", "classes="):
        read(str(text(tmp_path / "list.txt", "a.jpg\n")), "train")


def test_cvat_yolo_1_1_is_read(tmp_path: Path) -> None:
    """CVAT YOLO 1.1, lists with a `data/` prefix."""
    lines = "classes = 1\ntrain = data/train.txt\nvalid = data/valid.txt\nnames = data/obj.names\nbackup = backup/\n"
    text(tmp_path / "obj.data", lines), text(tmp_path / "obj.names", "cat\n")
    for part, name in (("train", "a 1"), ("valid", "b")):
        place = tmp_path / f"obj_{part}_data"
        paint(place / f"{name}.jpg"), text(place / f"{name}.txt", LABEL)
        text(tmp_path / f"{part}.txt", f"data/obj_{part}_data/{name}.jpg\n")
    for source in (tmp_path, tmp_path / "obj.data"):
        assert images(read(str(source), "train"), tmp_path) == ["obj_train_data/a 1.jpg"]
        assert images(read(str(source), "val"), tmp_path) == ["obj_valid_data/b.jpg"]
    (tmp_path / "obj.data").write_text(lines.replace("valid", "other"))
    with refused(DataError, "obj.data", "val or valid or validation or test", "val=.2"):
        read(str(tmp_path), "val")
    (tmp_path / "obj.names").write_text("bird\n\ncat\n")
    with refused(DataError, "obj.names:2"):
        read(str(tmp_path), "train")
    (tmp_path / "obj.names").write_text("bird\ncat\n")
    with refused(DataError, "obj.data", "classes is 1", "2 names"):
        read(str(tmp_path), "train")
    (tmp_path / "obj.names").unlink()
    with refused(DataError, "obj.data", tmp_path / "data" / "obj.names"):
        read(str(tmp_path), "train")


def test_a_path_without_its_first_folders_is_never_the_wrong_image(tmp_path: Path) -> None:
    paint(tmp_path / "1.jpg")
    with refused(DataError, "list", "x/1.jpg", "y/1.jpg", tmp_path / "1.jpg"):
        image_paths.locate_all("list", ["x/1.jpg", "y/1.jpg"], [str(tmp_path)])
    assert image_paths.locate("C:\\pets\\1.jpg", [str(tmp_path)]) == str(tmp_path / "1.jpg")


@pytest.mark.parametrize("entry", ["images/test/", "test/images", "../test/images", "images/*/", "images/test/."])
def test_a_missing_part_is_never_the_folder_above_it(tmp_path: Path, entry: str) -> None:
    for part in ("train", "val"):
        paint(tmp_path / "images" / part / "a.jpg"), text(tmp_path / "labels" / part / "a.txt", LABEL)
    text(tmp_path / "data.yaml", f"train: images/train/\nval: ../images/val\ntest: {entry}\nnames: [cat]\n")
    for part in ("train", "val"):
        assert images(read(str(tmp_path), part), tmp_path) == [f"images/{part}/a.jpg"]
    with refused(DataError, "data.yaml: test"):
        read(str(tmp_path), "test")


def test_lists_may_have_backslashes(tmp_path: Path) -> None:
    paint(tmp_path / "images" / "a.jpg"), text(tmp_path / "labels" / "a.txt", LABEL), paint(tmp_path / "a.jpg")
    text(tmp_path / "data.yaml", "train: train.txt\nnames: [cat]\n"), text(tmp_path / "train.txt", "images\\a.jpg\n")
    assert images(read(str(tmp_path), "train"), tmp_path) == ["images/a.jpg"]


def test_label_studio_yolo_is_read(tmp_path: Path) -> None:
    """Label Studio YOLO folder with notes.json; without images the message tells where to put them."""
    text(tmp_path / "notes.json", {"categories": [{"id": 0, "name": "cat"}], "info": {"version": "1.0"}})
    text(tmp_path / "labels" / "1f-a.txt", LABEL)
    with refused(DataError, tmp_path, tmp_path / "images"):
        read(str(tmp_path), "train")
    paint(tmp_path / "images" / "1f-a.jpg")
    assert images(read(str(tmp_path), "train"), tmp_path) == ["images/1f-a.jpg"]


def test_other_notes_are_ignored_and_damaged_ones_named(tmp_path: Path) -> None:
    paint(tmp_path / "images" / "a.jpg"), text(tmp_path / "labels" / "a.txt", LABEL)
    text(tmp_path / "notes.json", {"todo": "x"})
    with refused(DataError, "classes.txt", "classes="):
        read(str(tmp_path), "train")
    text(tmp_path / "notes.json", {"categories": [{"id": 0}]})
    with refused(DataError, "notes.json", "categories[0]", "`name`"):
        read(str(tmp_path), "train")


@pytest.mark.parametrize("place", ["train/images", "images/train"])
def test_yolo_parts_share_the_names_of_the_folder(tmp_path: Path, place: str) -> None:
    """Roboflow; yaml key `validation:`. A part that is missing is an error, not all images."""
    text(tmp_path / "classes.txt", "cat\n")
    for part in ("train", "valid"):
        here = place.replace("train", part)
        paint(tmp_path / here / "a.jpg"), text(tmp_path / here.replace("images", "labels") / "a.txt", LABEL)
    assert images(read(str(tmp_path), "train"), tmp_path) == [f"{place}/a.jpg"]
    assert images(read(str(tmp_path), "val"), tmp_path) == [f"{place.replace('train', 'valid')}/a.jpg"]
    with refused(DataError, tmp_path, "test", "train, val"):
        read(str(tmp_path), "test")
    text(tmp_path / "data.yaml", f"train: {place}\nvalidation: {place.replace('train', 'valid')}\nnames: [cat]\n")
    assert images(read(str(tmp_path), "val"), tmp_path) == [f"{place.replace('train', 'valid')}/a.jpg"]
    assert images(read(str(tmp_path / place), "train"), tmp_path) == [f"{place}/a.jpg"]  # names of the folder above


def test_yolo_label_folders_may_have_any_name(tmp_path: Path) -> None:
    paint(tmp_path / "photos" / "a.jpg"), text(tmp_path / "txt" / "a.txt", LABEL), text(tmp_path / "obj.names", "cat")
    assert images(read(str(tmp_path), "train"), tmp_path) == ["photos/a.jpg"]


def test_two_images_never_share_a_label_file_of_another_folder(tmp_path: Path) -> None:
    """A background, and folders whose names do not tell which labels belong to them."""
    text(tmp_path / "classes.txt", "cat\n"), text(tmp_path / "txts" / "day2" / "1.txt", LABEL)
    for day in ("day1", "day2"):
        paint(tmp_path / "imgs" / day / "1.jpg")
    found = read(str(tmp_path), "train")
    assert [len(found.boxes_of(i)[0]) for i in range(2)] == [0, 1] and "count as backgrounds: 1" in found.notes[0]
    for name in "ab":
        paint(tmp_path / f"images_{name}" / "2.jpg"), text(tmp_path / f"labels_{name}" / "2.txt", LABEL)
    with refused(DataError, "images_a/2.jpg", "images_b/2.jpg", "labels_a/2.txt"):
        read(str(tmp_path), "train")


def test_a_photo_and_its_mask_with_one_label_file_are_reported(tmp_path: Path) -> None:
    for folder, labels in (("images", "labels"), ("photos", "txt")):
        here = tmp_path / folder
        text(here / "classes.txt", "cat\n"), text(here / labels / "a.txt", LABEL)
        for suffix in (".jpg", ".png"):
            paint(here / folder / f"a{suffix}")
        (note,) = read(str(here), "train").notes
        assert f"share a label file: 1, for example {here}/{folder}/a.jpg and {here}/{folder}/a.png with" in note


def test_files_of_another_part_never_stand_in(tmp_path: Path) -> None:
    """A background of the part val has no label file, and an image is missing; the part train has both, of the same name."""
    text(tmp_path / "yolo" / "classes.txt", "cat\n")
    for part, names in (("train", "ab"), ("val", "b")):
        for name in names:
            text(tmp_path / "yolo" / "txt" / part / f"{name}.txt", LABEL)
            paint(tmp_path / "voc" / "images" / part / f"{name}.jpg")
        for name in "ab":
            paint(tmp_path / "yolo" / "img" / part / f"{name}.jpg")
            xml(tmp_path / "voc" / "xmls" / part / f"{name}.xml", f"{name}.jpg")
    found = read(str(tmp_path / "yolo"), "val")
    assert [len(found.boxes_of(i)[0]) for i in range(2)] == [0, 1] and "count as backgrounds: 1" in found.notes[0]
    assert images(read(str(tmp_path / "voc"), "train"), tmp_path / "voc") == [
        "images/train/a.jpg",
        "images/train/b.jpg",
    ]
    found = read(str(tmp_path / "voc"), "val")
    assert [os.path.relpath(found.path(i), tmp_path / "voc") for i in range(2)] == ["a.jpg", "images/val/b.jpg"]


def test_images_and_labels_without_the_other_are_counted(tmp_path: Path) -> None:
    """.jfif, .heic, .avif in a YOLO folder; a label without image."""
    text(tmp_path / "classes.txt", "cat\n")
    for name in ("a.jfif", "b.heic", "c.jpg"):
        paint(tmp_path / "images" / name)
    for name in ("a", "b", "lost", "lost2"):
        text(tmp_path / "labels" / f"{name}.txt", LABEL)
    found = read(str(tmp_path), "train")
    assert [Path(found.path(i)).name for i in range(len(found))] == ["a.jfif", "c.jpg"]
    notes = "\n".join(found.notes)
    assert "in a format that is not read: 1, for example images/b.heic: convert them to JPEG or PNG" in notes
    assert "images without a label file, which count as backgrounds: 1, for example" in notes and "c.jpg" in notes
    assert "label files without an image, left out: 3, for example" in notes
    prepare(found)


def test_a_folder_with_the_name_of_an_image_hides_no_label_file(tmp_path: Path) -> None:
    text(tmp_path / "classes.txt", "cat\n"), (tmp_path / "3.png").mkdir()
    paint(tmp_path / "1.png"), text(tmp_path / "1.txt", LABEL), text(tmp_path / "3.txt", LABEL)
    found = read(str(tmp_path), "train")
    assert images(found, tmp_path) == ["1.png"] and any("3.txt" in note for note in found.notes)


@pytest.mark.parametrize("below", [True, False])
def test_a_list_of_backgrounds_may_have_xml_files_below_it(tmp_path: Path, below: bool) -> None:
    xml(tmp_path / "set" / "other" / "1.xml"), paint(tmp_path / "set" / "other" / "1.png")
    image = paint(tmp_path / ("set" if below else "far") / "empty.png")
    for line in (str(image), os.path.relpath(image, tmp_path / "set")):
        found = read(str(text(tmp_path / "set" / "list.txt", f"{line}\n")), "train")
        assert [os.path.realpath(found.path(i)) for i in range(len(found))] == [str(image)] and not len(found.boxes)


# ---- COCO and annotation files


def test_the_official_coco_layout_needs_no_image_root(tmp_path: Path) -> None:
    """Annotations/, train2017/, val2017/, by naming the JSON files or the folder."""
    for part in ("train2017", "val2017"):
        (
            text(tmp_path / "annotations" / f"instances_{part}.json", coco(f"{part}.jpg")),
            paint(tmp_path / part / f"{part}.jpg"),
        )
    text(tmp_path / "annotations" / "captions_val2017.json", {"images": [], "annotations": []})
    for part, folder in (("train", "train2017"), ("val", "val2017")):
        for source in (tmp_path, tmp_path / "annotations", tmp_path / "annotations" / f"instances_{folder}.json"):
            assert images(read(str(source), part), tmp_path) == [f"{folder}/{folder}.jpg"]
    assert len(read(str(tmp_path), "all")) == 2


@pytest.mark.parametrize("place", ["images/val", "images/val2017", "images", "val"])
def test_coco_images_are_found_near_the_annotations(tmp_path: Path, place: str) -> None:
    path = text(tmp_path / "annotations" / "instances_val2017.json", coco("a.jpg"))
    paint(tmp_path / place / "a.jpg")
    assert images(read(str(path), "val"), tmp_path) == [f"{place}/a.jpg"]


def test_addresses_and_backslashes_in_names_lead_to_the_image(tmp_path: Path) -> None:
    """The last part of a signature, `b.png`, is not the image; a file name may hold a backslash on Linux."""
    names = ["https://h/a.png?v=2&key=x/b.png", "https://h/deep%2Fc.png?alt=media#x/b.png"]
    if os.sep == "/":
        names.append("d\\e.png")
    for name in ("a.png", "b.png", "c.png", "d/e.png", *names[2:]):
        paint(tmp_path / "images" / name)
    source = text(tmp_path / "coco.json", coco(*names, "images\\b.png"))
    found = images(read(str(source), "train"), tmp_path)
    assert found == [f"images/{name}" for name in ("a.png", "c.png", *names[2:], "b.png")]


@pytest.mark.parametrize("form", ["x.csv", "x.json", "1.json"])
def test_a_name_that_two_images_have_is_an_error_that_names_both(tmp_path: Path, form: str) -> None:
    """They were called missing."""
    one, two = paint(tmp_path / "one" / "0.png"), paint(tmp_path / "two" / "0.png")
    shape = {"label": "cat", "shape_type": "rectangle", "points": [[1, 2], [9, 8]]}
    contents = {
        "x.csv": "path,x1,y1,x2,y2,class\n0.png,1,2,9,8,cat\n",
        "x.json": {
            "images": [{"id": 1, "file_name": "0.png", "width": 40, "height": 20}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 8, 6]}],
            "categories": [{"id": 1, "name": "cat"}],
        },
        "1.json": {"shapes": [shape], "imagePath": "0.png"},
    }
    path = text(tmp_path / form, contents[form])
    source = tmp_path if form == "1.json" else path
    with refused(DataError, f"{form}:2" if form == "x.csv" else form, "0.png", one, two):
        read(str(source), "train")
    two.unlink()
    assert images(read(str(source), "train"), tmp_path) == ["one/0.png"]


def test_images_from_the_folder_of_another_part_are_reported(tmp_path: Path) -> None:
    """They may be those that the file means, or others of the same names."""
    for place in ("train/images/1.jpg", "val/images/2.jpg"):
        paint(tmp_path / place)
    for name, contents in (("{}.json", coco("1.jpg", "2.jpg")), ("{}.csv", "1.jpg,1,2,9,8,cat\n2.jpg,1,2,9,8,cat\n")):
        for part, place in (("val", "train/images/1.jpg"), ("train", "val/images/2.jpg")):
            found = read(str(text(tmp_path / name.format(part), contents)), part)
            assert images(found, tmp_path) == ["train/images/1.jpg", "val/images/2.jpg"]
            words = f"images from the folder of another split: 1, for example {place[-5:]} is {place}: correct the path"
            assert words in found.notes[0]
        for part in ("trainval", "train_val", "all"):
            assert not read(str(text(tmp_path / name.format(part), contents)), "all").notes


def _coco_of(image: str, *categories: tuple[int, str]) -> dict:
    """A COCO file with one image, which has a box of each category (id, name)."""
    return {
        "images": [{"id": 1, "file_name": image, "width": 40, "height": 20}],
        "annotations": [
            {"id": number, "image_id": 1, "category_id": category, "bbox": [1, 2, 8, 6]}
            for number, (category, _) in enumerate(categories, 1)
        ],
        "categories": [{"id": category, "name": name} for category, name in categories],
    }


FILES_OF_PARTS = {
    "csv": ("1.jpg,1,2,9,8,cat\n1.jpg,1,2,9,8,dog\n", "2.jpg,1,2,9,8,bird\n2.jpg,1,2,9,8,cat\n"),
    "json": (_coco_of("1.jpg", (3, "cat"), (7, "dog")), _coco_of("2.jpg", (3, "bird"), (9, "cat"))),
    "txt": ("1.jpg 1,2,9,8,0 1,2,9,8,1\n", "2.jpg 1,2,9,8,2 1,2,9,8,0\n"),
}


@pytest.mark.parametrize("suffix", FILES_OF_PARTS)
def test_all_parts_together_have_the_classes_of_every_file(tmp_path: Path, suffix: str) -> None:
    """A class that only val.csv has was called missing from a list that was not given."""
    for name, contents in zip(("train", "val"), FILES_OF_PARTS[suffix], strict=True):
        text(tmp_path / f"{name}.{suffix}", contents)
    paint(tmp_path / "1.jpg"), paint(tmp_path / "2.jpg")
    found = read(str(tmp_path), "all")
    names = ("0", "1", "2") if suffix == "txt" else ("cat", "dog", "bird")
    assert found.classes == names
    assert [row[2] for row in boxes(found)] == [[names[0], names[1]], [names[2], names[0]]]
    assert found.category_ids.tolist() == ([3, 7, 10] if suffix == "json" else [0, 1, 2])
    assert any(mentions(note, names[2]) and mentions(note, f"val.{suffix}") for note in found.notes)
    if suffix != "txt":
        merged = read(str(tmp_path), "all", ReadOptions(merge="bird:dog"))
        assert [row[2] for row in boxes(merged)] == [["cat", "dog"], ["dog", "cat"]]
        with refused(DataError, f"val.{suffix}", "'bird'"):
            read(str(tmp_path), "all", ReadOptions(classes=("cat", "dog")))


def test_roboflow_coco_parts_are_read_from_one_folder(tmp_path: Path) -> None:
    for part in ("train", "valid", "test"):
        text(tmp_path / part / "_annotations.coco.json", coco(f"{part}.jpg")), paint(tmp_path / part / f"{part}.jpg")
    for part, name in (("train", "train"), ("val", "valid"), ("test", "test")):
        assert images(read(str(tmp_path), part), tmp_path) == [f"{name}/{name}.jpg"]
    joined = read(str(tmp_path), "all")
    assert len(images(joined, tmp_path)) == 3 and joined.image_ids.tolist() == [1, 2, 3]
    assert joined.where(1).endswith("_annotations.coco.json")


def test_a_folder_with_annotation_files_is_read_by_its_name(tmp_path: Path) -> None:
    text(tmp_path / "classes.txt", "cat\n")
    for part in ("train", "val"):
        paint(tmp_path / f"{part} 1.jpg"), text(tmp_path / f"{part}.txt", f"{part} 1.jpg 1,2,9,8,0\n")
    for part in ("train", "val"):
        assert images(read(str(tmp_path), part), tmp_path) == [f"{part} 1.jpg"]


@pytest.mark.parametrize("texts", [["README.txt"], ["notes.txt", "LICENSE.txt"]])
def test_notes_in_a_folder_hide_no_data(tmp_path: Path, texts: list[str]) -> None:
    (
        paint(tmp_path / "yolo" / "train" / "images" / "a.jpg"),
        text(tmp_path / "yolo" / "train" / "labels" / "a.txt", LABEL),
    )
    text(tmp_path / "list" / "all.txt", "a.jpg 1,2,9,8,0\n"), paint(tmp_path / "list" / "a.jpg")
    for folder, name in (("yolo", "train/images/a.jpg"), ("list", "a.jpg")):
        text(tmp_path / folder / "classes.txt", "cat\n")
        for note in texts:
            text(tmp_path / folder / note, "Photos of cats\n")
        assert images(read(str(tmp_path / folder), "train"), tmp_path / folder) == [name]


def test_a_second_list_of_a_part_is_an_error_or_a_note(tmp_path: Path) -> None:
    text(tmp_path / "classes.txt", "cat\n")
    names = ("train_1", "train_2", "my_val", "test", "trainval", "train")
    for name in names[:4]:
        paint(tmp_path / f"{name} 1.jpg"), text(tmp_path / f"{name}.txt", f"{name} 1.jpg 1,2,9,8,0\n")
    with refused(DataError, "train_1.txt, train_2.txt", "train.txt"):
        read(str(tmp_path), "train")
    assert images(read(str(tmp_path), "val"), tmp_path) == ["my_val 1.jpg"]
    for name in names[4:]:
        paint(tmp_path / f"{name} 1.jpg"), text(tmp_path / f"{name}.txt", f"{name} 1.jpg 1,2,9,8,0\n")
    found = read(str(tmp_path), "train")
    assert images(found, tmp_path) == ["train 1.jpg"]
    assert found.notes[0].endswith("lists that are not read, because there is train.txt: train_1.txt, train_2.txt")


NO_PART = {  # form of the names of label files, and the place that the note names
    "images/{}/{}.jpg": "images/more",
    "{}.csv": "more.csv",
    "{}.xml": "more",
    "{}.txt": "more.txt",
    "{}/a.json": "more",
    "{}/metadata.jsonl": "more",
    "{}/ann/a.jpg.json": "more/ann",
}


def put(folder: Path, form: str, split: str) -> None:
    """Writes a split of one image and one box to a folder, as the form, a key of NO_PART, has it."""
    corners = [[1, 2], [9, 8]]
    record = {"file_name": "a.jpg", "objects": {"bbox": [[1, 2, 8, 6]], "category": ["cat"]}}
    place = folder / form.format(split, split)
    paint(place if "images" in form else folder / split / "a.jpg")
    if "images" in form:
        text(folder / "labels" / split / f"{split}.txt", LABEL)
    elif form.endswith("csv"):
        text(place, f"path,x1,y1,x2,y2,class\n{split}/a.jpg,1,2,9,8,cat\n")
    elif form.endswith("xml"):
        xml(folder / split / "a.xml", "a.jpg")
    elif form.endswith("txt"):
        text(place, f"{split}/a.jpg 1,2,9,8,0\n")
    elif "ann" in form:
        exterior = {"exterior": corners, "interior": []}
        text(place, {"objects": [{"classTitle": "cat", "points": exterior}]})
    elif form.endswith("json"):
        shapes = [{"label": "cat", "points": corners, "shape_type": "rectangle"}]
        text(place, {"shapes": shapes, "imagePath": "a.jpg"})
    else:
        text(place, record)


@pytest.mark.parametrize("form", NO_PART)
@pytest.mark.parametrize(
    ("splits", "val", "unused"),
    [
        (("train", "val"), "", ()),
        (("train", "val", "test"), "", ("test",)),
        (("train", "test"), "", ()),  # test serves as validation
        (("train", "val", "test"), ".5", ("val", "test")),
    ],
)
def test_splits_that_are_left_out_or_serve_as_validation_are_named(
    tmp_path: Path, form: str, splits: tuple, val: str, unused: tuple
) -> None:
    text(tmp_path / "data" / "classes.txt", "cat\n")
    for split in splits:
        put(tmp_path / "data", form, split)
    notes: list[str] = []
    source = str(tmp_path / "data")
    with contextlib.suppress(DataError):  # one image cannot be divided
        read_train_and_val(source, val or source, 0, read_options(), notes.append)
    named = [note for note in notes if "splits that a training does not use" in note]
    assert [note.rpartition(": ")[2] for note in named] == [", ".join(unused)] * bool(unused), notes
    serves = [note for note in notes if "test serves as validation" in note]
    assert len(serves) == ("val" not in splits), notes
    if "val" not in splits:
        assert not any("serves" in note for note in read(source, "test").notes)


@pytest.mark.parametrize("kind", ["yaml", "ImageSets", "lines"])
def test_splits_of_data_files_and_lists_are_named(tmp_path: Path, kind: str) -> None:
    """train and test: test serves as validation; with val.txt or an entry val as well, test is left out."""
    splits = ["train", "test"]
    for serves in (True, False):
        for split in splits:
            paint(tmp_path / "images" / f"{split}.jpg")
            if kind == "yaml":
                (
                    text(tmp_path / "labels" / f"{split}.txt", LABEL),
                    text(tmp_path / f"list {split}.txt", f"images/{split}.jpg\n"),
                )
            if kind == "ImageSets":
                xml(tmp_path / "Annotations" / f"{split}.xml", f"{split}.jpg")
                text(tmp_path / "ImageSets" / "Main" / f"{split}.txt", f"{split}\n")
        source = tmp_path
        if kind == "yaml":
            text(tmp_path / "data.yaml", "names: [cat]\n" + "".join(f"{split}: list {split}.txt\n" for split in splits))
        if kind == "lines":
            objects = {"bbox": [[1, 2, 8, 6]], "category": ["cat"]}
            rows = [{"file_name": f"{split}.jpg", "objects": objects, "split": split} for split in splits]
            source = text(tmp_path / "metadata.jsonl", "\n".join(map(json.dumps, rows)))
        notes: list[str] = []
        read_train_and_val(str(source), str(source), 0, read_options(), notes.append)
        assert sum("test serves as validation" in note for note in notes) == serves, notes
        assert sum(note.endswith("splits that a training does not use: test") for note in notes) == (not serves), notes
        splits.append("val")


@pytest.mark.parametrize("form", NO_PART)
def test_files_that_belong_to_no_part_are_named(tmp_path: Path, form: str) -> None:
    text(tmp_path / "classes.txt", "cat\n")
    for part in ("train", "val", "more"):
        put(tmp_path, form, part)
    for part in ("train", "val"):
        found = read(str(tmp_path), part)
        assert len(images(found, tmp_path)) == 1
        expected = f"files that belong to no split, such as train or val, left out: 1 ({NO_PART[form]})"
        assert [note for note in found.notes if note.endswith(expected)], found.notes
    assert not any("belong to no split" in note for note in read(str(tmp_path), "all").notes)


def test_image_root_is_used_or_reported(tmp_path: Path) -> None:
    text(tmp_path / "classes.txt", "cat\n"), paint(tmp_path / "far" / "a.jpg")
    source = str(text(tmp_path / "train.txt", "a.jpg 1,2,9,8,0\n"))
    assert images(read(source, "train", ReadOptions(image_root=str(tmp_path / "far"))), tmp_path) == ["far/a.jpg"]
    assert "is not used" in read(source, "train", ReadOptions(image_root=str(tmp_path))).notes[0]
    with refused(DataError, f"image_root={tmp_path / 'none'}"):
        read(source, "train", ReadOptions(image_root=str(tmp_path / "none")))
    paint(tmp_path / "images" / "a.jpg"), text(tmp_path / "labels" / "a.txt", LABEL), (tmp_path / "train.txt").unlink()
    found = read(str(tmp_path), "train", ReadOptions(image_root=str(tmp_path / "far")))
    assert images(found, tmp_path) == ["far/a.jpg"] and len(found.labels) == 1
    with refused(DataError, f"image_root={tmp_path / 'labels'}"):
        read(str(tmp_path), "train", ReadOptions(image_root=str(tmp_path / "labels")))


def test_label_files_near_a_list_stay_with_image_root(tmp_path: Path) -> None:
    """Only the images have moved."""
    text(tmp_path / "set" / "labels" / "a.txt", LABEL), text(tmp_path / "set" / "classes.txt", "cat\n")
    source = text(tmp_path / "set" / "train.txt", "images/a.jpg\n")
    paint(tmp_path / "far" / "images" / "a.jpg")
    assert images(read(str(source), "train", ReadOptions(image_root=str(tmp_path / "far"))), tmp_path) == [
        "far/images/a.jpg"
    ]
    (tmp_path / "set" / "labels").rename(tmp_path / "far" / "labels")
    assert images(read(str(source), "train", ReadOptions(image_root=str(tmp_path / "far"))), tmp_path) == [
        "far/images/a.jpg"
    ]


def test_an_image_root_that_is_no_folder_is_an_error_for_every_format(tmp_path: Path) -> None:
    paint(tmp_path / "a.jpg")
    sources = {
        "coco.json": coco("a.jpg"),
        "table.csv": "path,x1,y1,x2,y2,class\na.jpg,1,2,9,8,cat\n",
        "labelme/a.json": {"shapes": [], "imagePath": "../a.jpg"},
        "voc/a.xml": "<annotation/>",
        "ds/ann/a.jpg.json": {"objects": []},
        "list.txt": "a.jpg 1,2,9,8,0\n",
    }
    for name, contents in sources.items():
        place = text(tmp_path / name, contents)
        source = tmp_path / name.partition("/")[0] if "/" in name else place
        for root in (tmp_path / "typo", tmp_path / "a.jpg"):
            with refused(DataError, f"image_root={root}"):
                read(str(source), "train", ReadOptions(image_root=str(root)))


def test_image_root_replaces_the_path_of_a_yolo_file(tmp_path: Path) -> None:
    yaml = text(tmp_path / "data.yaml", "path: /gone\ntrain: images\nnames: [cat]\n")
    for folder in (tmp_path, tmp_path / "far"):
        paint(folder / "images" / "a.jpg"), text(folder / "labels" / "a.txt", LABEL)
    for source in (yaml, tmp_path):
        found = read(str(source), "train", ReadOptions(image_root=str(tmp_path / "far")))
        assert images(found, tmp_path) == ["far/images/a.jpg"]
        named = ["labels/a.txt" in note for note in found.notes]  # in the folder that is given, but not read
        assert named == ([True] if source == tmp_path else [])
    with refused(DataError, "data.yaml: train", tmp_path / "labels" / "images", "image_root="):
        read(str(yaml), "train", ReadOptions(image_root=str(tmp_path / "labels")))


@pytest.mark.parametrize("names", [["_annotations.createml.json"], ["a.json", "b.json"]])
def test_createml_is_refused_by_its_name(tmp_path: Path, names: list[str]) -> None:
    box = {"label": "cat", "coordinates": {"x": 5, "y": 5, "width": 8, "height": 6}}
    for name in names:
        path = text(tmp_path / name, [{"image": f"{name}.jpg", "annotations": [box]}])
        paint(tmp_path / f"{name}.jpg")
        for source in (path, tmp_path):
            with refused(DataError, "json", "CreateML"):
                read(str(source), "train")


def test_annotation_files_of_roboflow_are_read_by_part(tmp_path: Path) -> None:
    for part in ("train", "valid"):
        text(tmp_path / part / "_classes.txt", "cat\n"), paint(tmp_path / part / f"{part} 1.jpg")
        text(tmp_path / part / "_annotations.txt", f"{part} 1.jpg 1,2,9,8,0\n")
    assert images(read(str(tmp_path), "train"), tmp_path) == ["train/train 1.jpg"]
    assert images(read(str(tmp_path), "val"), tmp_path) == ["valid/valid 1.jpg"]
    assert images(read(str(tmp_path / "valid"), "val"), tmp_path) == ["valid/valid 1.jpg"]


def test_a_folder_with_annotation_files_of_parts_is_read_as_a_whole_too(painted: Callable, tmp_path: Path) -> None:
    for count, name in ((5, "train"), (2, "val"), (3, "test")):
        painted(count, name)
    text(tmp_path / "classes.txt", "red\nblue\n")
    assert [len(read(str(tmp_path), part)) for part in ("train", "val", "test", "all")] == [5, 2, 3, 10]
    assert read(str(tmp_path), "all").classes == ("red", "blue")


def test_label_files_are_not_taken_for_lists_of_images(tmp_path: Path) -> None:
    for name in ("train1", "train2"):
        paint(tmp_path / "images" / f"{name}.jpg"), text(tmp_path / "labels" / f"{name}.txt", LABEL)
    with refused(DataError, tmp_path / "labels"):
        read(str(tmp_path / "labels"), "train")


def test_label_files_without_images_next_to_them_need_image_root(tmp_path: Path) -> None:
    text(tmp_path / "set" / "classes.txt", "cat\n")
    for name in ("a", "b"):
        paint(tmp_path / "far" / f"{name}.jpg"), text(tmp_path / "set" / f"{name}.txt", LABEL)
    found = read(str(tmp_path / "set"), "train", ReadOptions(image_root=str(tmp_path / "far")))
    assert images(found, tmp_path) == ["far/a.jpg", "far/b.jpg"] and len(found.labels) == 2


@pytest.mark.parametrize("given", ["set", "set/labels", "set/labels/train"])
@pytest.mark.parametrize("place", ["far", "far/train"])
def test_a_folder_of_label_files_is_read_with_the_images_of_image_root(tmp_path: Path, given: str, place: str) -> None:
    """The user may name the folder of the data set, of all labels, or of the split; there is no data.yaml."""
    text(tmp_path / "set" / "classes.txt", "cat\n")
    for name in ("a", "b"):
        paint(tmp_path / place / f"{name}.jpg"), text(tmp_path / "set" / "labels" / "train" / f"{name}.txt", LABEL)
    found = read(str(tmp_path / given), "train", ReadOptions(image_root=str(tmp_path / "far")))
    assert images(found, tmp_path) == [f"{place}/a.jpg", f"{place}/b.jpg"] and not found.notes


@pytest.mark.parametrize("labels", ["set", "set/labels"])
def test_label_files_whose_names_no_image_has_are_refused_with_both_names(tmp_path: Path, labels: str) -> None:
    text(tmp_path / "set" / "classes.txt", "cat\n"), text(tmp_path / labels / "a.txt", LABEL)
    root = paint(tmp_path / "far" / "c.jpg").parent
    with refused(DataError, tmp_path / labels, "a.txt", f"image_root={root}", "c.jpg", "correct image_root="):
        read(str(tmp_path / labels), "train", ReadOptions(image_root=str(root)))


@pytest.mark.parametrize("labels", ["set", "set/labels", "set/labels/train"])
def test_label_files_without_images_are_refused_with_the_fix(tmp_path: Path, labels: str) -> None:
    text(tmp_path / "set" / "classes.txt", "cat\n"), text(tmp_path / labels / "a.txt", LABEL)
    with refused(DataError, tmp_path / labels, "label files, but no images", "image_root=FOLDER"):
        read(str(tmp_path / labels), "train")
    paint(tmp_path / "images" / "a.jpg"), (tmp_path / labels).rename(tmp_path / "labels")
    with refused(DataError, tmp_path / "labels", f"give the folder above, {tmp_path},"):
        read(str(tmp_path / "labels"), "train")
    text(tmp_path / "classes.txt", "cat\n")
    assert images(read(str(tmp_path), "train"), tmp_path) == ["images/a.jpg"]


def test_a_link_never_hides_the_folder_of_a_part(tmp_path: Path) -> None:
    paint(tmp_path / "train" / "1.jpg"), (tmp_path / "a").mkdir()
    for link in ("latest", "a/latest"):
        (tmp_path / link).symlink_to(tmp_path / "train", target_is_directory=True)
    assert files_under(tmp_path) == ["train/1.jpg"]


def test_folders_that_links_lead_to_twice_are_listed_once(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.jpg"), (tmp_path / "a" / "again").symlink_to(tmp_path, target_is_directory=True)
    paint(tmp_path / ".hidden" / "2.jpg")
    assert files_under(tmp_path) == ["a/1.jpg"]


# ---- problems


def test_problems_of_several_kinds_are_reported_together(tmp_path: Path) -> None:
    """Bad lines of different kinds in one file are all reported."""
    lines = ["a.jpg 1,2,3,4,7\n"] * 12 + ["a.jpg 1,2,3,4\n", "a.jpg 1,2,nan,4,0\n", "a.jpg 3,2,3,4,0\n"]
    text(tmp_path / "classes.txt", "cat\n")
    with pytest.raises(DataError) as caught:
        read(str(text(tmp_path / "train.txt", "".join(lines))), "train")
    message = str(caught.value)
    assert "problems: 15" in message.splitlines()[0] and "... and 2 more" in message
    for words in (
        "12 x class ...",
        "train.txt:10: class 7",
        "train.txt:13: box",
        "train.txt:14: box",
        ":15: box 3,2,3,4 has no",
    ):
        assert words in message
    assert "train.txt:11: class" not in message


def test_problems_are_grouped_by_kind_whatever_names_and_numbers_they_hold() -> None:
    kinds = ["f.json: annotation {} of x/{}.png: class 'n{}' is not in the list of classes (a, b); did you mean 'a'?"]
    kinds += ["dir {}/l.txt:{}: {} numbers: write class x y width height"]
    problems = [kind.format(*[i] * 3) for i in range(30) for kind in kinds]
    lines = first_ten(problems).splitlines()
    assert lines[0].strip() == "30 x class ... is not in the list of classes ..." and len(lines) == 2 * 12
    assert len(first_ten([f"f: {'x' * i}" for i in range(1, 99)]).splitlines()) < 40


def test_tables_and_other_json_are_found_in_folders(tmp_path: Path) -> None:
    """CSV as TensorFlow's tutorials write it, and `_annotations.csv` of Roboflow; VIA; settings next to labels."""
    header = "filename,width,height,class,xmin,ymin,xmax,ymax\n"
    for part in ("train", "test"):
        paint(tmp_path / "tf" / "images" / f"{part}.jpg")
        text(tmp_path / "tf" / "data" / f"{part}_labels.csv", f"{header}{part}.jpg,40,20,cat,1,2,9,8\n")
        paint(tmp_path / "rf" / part / "a.jpg")
        text(tmp_path / "rf" / part / "_annotations.csv", f"{header}a.jpg,40,20,cat,1,2,9,8\n")
    assert images(read(str(tmp_path / "rf"), "train"), tmp_path) == ["rf/train/a.jpg"]
    assert images(read(str(tmp_path / "rf"), "val"), tmp_path) == ["rf/test/a.jpg"]
    found = read(str(tmp_path / "tf"), "train")
    assert len(found) == 1 and Path(found.path(0)).name == "train.jpg"
    region = {"shape_attributes": {"name": "rect", "x": 1, "y": 2, "width": 8, "height": 6}}
    via = {"a.jpg1": {"filename": "a.jpg", "regions": [region | {"region_attributes": {"class": "cat"}}]}}
    paint(tmp_path / "via" / "a.jpg"), text(tmp_path / "via" / "via_region_data.json", via)
    assert images(read(str(tmp_path / "via"), "train"), tmp_path) == ["via/a.jpg"]
    (
        paint(tmp_path / "yolo" / "a.jpg"),
        text(tmp_path / "yolo" / "a.txt", LABEL),
        text(tmp_path / "yolo" / "x.json", {"a": 1}),
    )
    text(tmp_path / "yolo" / "classes.txt", "cat")
    assert images(read(str(tmp_path / "yolo"), "train"), tmp_path) == ["yolo/a.jpg"]


def test_settings_and_several_data_sets_in_a_folder(tmp_path: Path) -> None:
    """A yaml with settings is no data set; CVAT writes Train; a VOCdevkit has its lists in a folder below."""
    (
        xml(tmp_path / "voc" / "xml" / "a.xml"),
        paint(tmp_path / "voc" / "img" / "a.jpg"),
        text(tmp_path / "voc" / "c.yaml", "a: 1"),
    )
    assert images(read(str(tmp_path / "voc"), "train"), tmp_path) == ["voc/img/a.jpg"]
    place = tmp_path / "cvat"
    paint(place / "images" / "Train" / "a.jpg"), text(place / "labels" / "Train" / "a.txt", LABEL)
    text(place / "Train.txt", "data/images/Train/a.jpg\n")
    text(place / "pets.yaml", "path: ./\nTrain: Train.txt\nnames:\n  0: cat\n")
    assert images(read(str(place), "train"), tmp_path) == ["cvat/images/Train/a.jpg"]
    text(place / "other.yaml", "train: x")
    with refused(DataError, place, "other.yaml, pets.yaml"):
        read(str(place), "train")
    year = tmp_path / "VOCdevkit" / "VOC2007"
    for name, part in (("a", "train"), ("b", "val")):
        xml(year / "Annotations" / f"{name}.xml"), paint(year / "JPEGImages" / f"{name}.jpg")
        text(year / "ImageSets" / "Main" / f"{part}.txt", f"{name}\n")
    assert images(read(str(year.parent), "val"), tmp_path) == ["VOCdevkit/VOC2007/JPEGImages/b.jpg"]


def repository(folder, inside):
    """Writes a data set `inside` a folder with what repositories hold besides: requirements, settings, layouts of an app."""
    text(folder / "requirements.txt", "numpy==1.2\ntorch\n")
    text(folder / "docker-compose.yml", "services:\n  a:\n    image: x\n")
    text(folder / "package.json", '{"name": "x", "dependencies": {}}')
    (folder / "app" / "res").mkdir(parents=True)
    text(folder / "app" / "res" / "main.xml", "<LinearLayout></LinearLayout>")
    place = folder / inside
    place.mkdir(parents=True)
    return place


def image_file(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((80, 100, 3), 90, np.uint8))


def write_yolo(place):
    for split in ("train", "valid"):
        image_file(place / split / "images" / f"{split}.png")
        (place / split / "labels").mkdir()
        text(place / split / "labels" / f"{split}.txt", "0 .5 .5 .3 .3\n")
    text(place / "data.yaml", "train: ../train/images\nval: ../valid/images\nnames: [cat]\n")


def write_voc(place):
    for split in ("train", "val"):
        image_file(place / "JPEGImages" / f"{split}.png")
        for name in ("Annotations", "ImageSets/Main"):
            (place / name).mkdir(parents=True, exist_ok=True)
        box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>50</xmax><ymax>50</ymax></bndbox>"
        xml = f"<annotation><filename>{split}.png</filename><object><name>cat</name>{box}</object></annotation>"
        text(place / "Annotations" / f"{split}.xml", xml)
        text(place / "ImageSets" / "Main" / f"{split}.txt", f"{split}\n")


@pytest.mark.parametrize("write", [write_yolo, write_voc])
def test_the_folder_of_a_repository_leads_to_the_data_set_below_it(tmp_path, write):
    write(repository(tmp_path, "a/b/set"))
    found = read(str(tmp_path), "train")
    assert found.classes == ("cat",) and [Path(found.path(i)).stem for i in range(len(found))] == ["train"]
    assert Path(read(str(tmp_path), "val").path(0)).stem in ("val", "valid")
    assert not [note for note in found.notes if "read together" in note]


@pytest.mark.parametrize("write", [write_yolo, write_voc])
def test_several_data_sets_in_a_folder_are_named(tmp_path, write):
    write(repository(tmp_path, "data/one"))
    write(tmp_path / "data" / "two")
    (note,) = [note for note in read(str(tmp_path), "train").notes if "read together" in note]
    assert "data/one" in note and "data/two" in note


def test_lists_below_a_folder_are_an_error_that_names_their_folder(tmp_path):
    """requirements.txt was read as a list of images."""
    place = repository(tmp_path, "data/set")
    image_file(place / "a.png")
    text(place / "train.txt", "a.png 1,1,30,30,0\n")
    with refused(DataError, tmp_path, f"give {place}"):
        read(str(tmp_path), "train")
