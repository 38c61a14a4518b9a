"""Folders that real tools write are recognized by what they hold, or refused with the exact fix; nothing is dropped silently."""

import contextlib
import json
import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from files import boxes, coco, text, voc
from refused import mentions, refused

from datasets.check_images import check_images
from datasets.errors import DataError, first_ten
from datasets.formats import image_paths
from datasets.formats.options import ReadOptions, read_options
from datasets.formats.read import read
from datasets.sources import read_train_and_val
from datasets.store import Annotations
from tools.convert import convert
from utils.files import files_under

LABEL = "0 .125 .25 .2 .3\n"  # the box 1,2,9,8 of an image of 40 x 20


def paint(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    level = sum(map(ord, path.name)) % 200
    kind = {".jfif": ".jpg", ".heic": ".png"}.get(path.suffix, path.suffix)
    path.write_bytes(cv2.imencode(kind, np.full((20, 40, 3), level, np.uint8))[1].tobytes())
    return path


def images(found: Annotations, root: Path) -> list[str]:
    """Paths of the images relative to `root`; each must be readable and have the one box of class cat."""
    found, _ = check_images(found)
    assert np.allclose(found.boxes, [[1, 2, 9, 8]] * len(found)) and found.classes == ("cat",)
    assert len(found.boxes) == len(found)
    return [str(Path(found.path(i)).resolve().relative_to(root)) for i in range(len(found))]


# ---- VOC


def test_conversion_never_writes_images_that_do_not_exist(tmp_path: Path) -> None:
    source = text(tmp_path / "a.txt", "none.jpg 1,2,3,4,0\n")
    with refused(DataError, "a.txt", "1 of 1", "none.jpg", "image_root="):
        convert(str(source), str(tmp_path / "out.txt"))
    assert not (tmp_path / "out.txt").exists()


# ---- YOLO


def test_a_path_without_its_first_folders_is_never_the_wrong_image(tmp_path: Path) -> None:
    paint(tmp_path / "1.jpg"), text(tmp_path / "1.txt", LABEL), text(tmp_path / "classes.txt", "cat\n")
    with refused(DataError, "list.txt", "x/1.jpg", "2 of 2 images"):
        check_images(read(str(text(tmp_path / "list.txt", "x/1.jpg\ny/1.jpg\n")), "train"))
    assert image_paths.locate("C:\\pets\\1.jpg", [str(tmp_path)]) == str(tmp_path / "1.jpg")


@pytest.mark.parametrize("below", [True, False])
def test_a_list_of_backgrounds_may_have_xml_files_below_it(tmp_path: Path, below: bool) -> None:
    text(tmp_path / "set" / "other" / "1.xml", voc("cat")), paint(tmp_path / "set" / "other" / "1.png")
    image = paint(tmp_path / ("set" if below else "far") / "empty.png")
    for line in (str(image), os.path.relpath(image, tmp_path / "set")):
        found = read(str(text(tmp_path / "set" / "list.txt", f"{line}\n")), "train")
        assert [os.path.realpath(found.path(i)) for i in range(len(found))] == [str(image)] and not len(found.boxes)


# ---- COCO and annotation files


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


def put_split(folder: Path, kind: str, split: str, splits: list[str]) -> None:
    """Writes the image of a split with its box, and the files that name all `splits`."""
    paint(folder / "images" / split / f"{split}.jpg")
    if kind == "csv":
        text(folder / f"{split}.csv", f"path,x1,y1,x2,y2,class\nimages/{split}/{split}.jpg,1,2,9,8,cat\n")
    elif kind == "ImageSets":
        text(folder / "Annotations" / f"{split}.xml", voc("cat", image=f"{split}.jpg"))
        text(folder / "ImageSets" / "Main" / f"{split}.txt", f"{split}\n")
    elif kind == "lines":
        objects = {"bbox": [[1, 2, 8, 6]], "category": ["cat"]}
        rows = [{"file_name": f"images/{name}/{name}.jpg", "objects": objects, "split": name} for name in splits]
        text(folder / "metadata.jsonl", "\n".join(map(json.dumps, rows)))
    else:
        text(folder / "labels" / split / f"{split}.txt", LABEL), text(folder / "classes.txt", "cat\n")
        if kind == "yaml":
            text(folder / "data.yaml", "names: [cat]\n" + "".join(f"{name}: images/{name}\n" for name in splits))


@pytest.mark.parametrize("kind", ["folders", "csv", "ImageSets", "lines", "yaml"])
@pytest.mark.parametrize(
    ("splits", "val", "unused"),
    [
        (["train", "val"], "", ""),
        (["train", "val", "test"], "", "test"),
        (["train", "test"], "", ""),  # test serves as validation
        (["train", "val", "test"], ".5", "val, test"),
    ],
)
def test_splits_that_are_left_out_or_serve_as_validation_are_named(
    tmp_path: Path, kind: str, splits: list[str], val: str, unused: str
) -> None:
    for split in splits:
        put_split(tmp_path, kind, split, splits)
    notes: list[str] = []
    source = str(tmp_path)
    with contextlib.suppress(DataError):  # one image cannot be divided
        read_train_and_val(source, val or source, read_options(), notes.append)
    named = [note.rpartition(": ")[2].partition(";")[0] for note in notes if "splits that the run does not use" in note]
    assert named == ([unused] if unused else []), notes
    serves = [note for note in notes if "test serves as validation" in note]
    assert len(serves) == ("val" not in splits), notes
    assert not any("serves" in note for split in {"test"}.intersection(splits) for note in read(source, split).notes)


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
    paint(tmp_path / "a.jpg")
    with pytest.raises(DataError) as caught:
        read(str(text(tmp_path / "train.txt", "".join(lines))), "train", ReadOptions(bad_boxes="error"))
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
