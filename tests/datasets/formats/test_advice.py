"""Every fix that a message proposes is followed here: from the fault to data that are read right."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from files import boxes, coco, paint, text, voc
from refused import refused

from datasets.check_images import check_images
from datasets.classes import with_known_classes
from datasets.errors import DataError
from datasets.formats.options import ReadOptions, read_options
from datasets.formats.read import read
from datasets.sources import read_train_and_val
from utils.config import ConfigError

LABEL = "0 .125 .25 .2 .3\n"  # the box 1,2,9,8 of an image of 40 x 20


def load(source: object, image_root: str | None = None, merge: str | None = None, **options) -> list[tuple]:
    """The boxes of training data that can be read."""
    given = {"image_root": image_root, "merge": merge} | options
    found, _ = check_images(read(str(source), "train", read_options(**given)), read_options(**given))
    return boxes(found)


def fault(call: Callable, *args, **options) -> str:
    with pytest.raises((DataError, ConfigError)) as caught:
        call(*args, **options)
    return str(caught.value)


def has_box(rows: list[tuple], count: int = 1) -> bool:
    corners = [[round(value, 3) for value in corner] for row in rows for corner in row[1]]
    return corners == [[1, 2, 9, 8]] * count


def in_a_folder_of_another_name(root: Path) -> Path:
    paint(root / "train" / "a.png"), text(root / "train-labels" / "a.txt", LABEL)
    return text(root / "data.yaml", "train: train\nnames: [cat]\n")


def of_a_list(root: Path) -> Path:
    paint(root / "pictures" / "one" / "a.png"), text(root / "boxes (new)" / "a.txt", LABEL)
    text(root / "classes.txt", "cat\n"), text(root / "list.txt", "pictures/one/a.png\n")
    return text(root / "x.data", "train = list.txt\nnames = classes.txt\n")


@pytest.mark.parametrize("put", [in_a_folder_of_another_name, of_a_list])
def test_label_files_elsewhere_are_read_by_the_command_of_the_message(tmp_path: Path, put: Callable) -> None:
    message = fault(load, put(tmp_path))
    folder, *options = shlex.split(message.partition("python -m tools.check ")[2].removesuffix(" reads them"))
    assert has_box(load(folder, **dict(option.split("=") for option in options)))


def list_of_another_computer(root: Path) -> Path:
    text(root / "labels" / "a.txt", LABEL), text(root / "classes.txt", "cat\n")
    return text(root / "train.txt", "/gone/labels/a.png\n")


def data_file(root: Path) -> Path:
    text(root / "labels" / "a.txt", LABEL), text(root / "list.txt", "D:\\x\\labels\\a.png\n")
    return text(root / "data.yaml", "train: list.txt\nnames: [cat]\n")


ELSEWHERE: dict[str, Callable[[Path], Path]] = {
    "list": list_of_another_computer,
    "data.yaml": data_file,
    "annotation file": lambda root: text(root / "a.txt", "/gone/a.png 1,2,9,8,0\n"),
    "COCO": lambda root: text(root / "a.json", coco("/gone/a.png")),
    "CSV": lambda root: text(root / "a.csv", "C:\\x\\a.png,1,2,9,8,cat\n"),
    "VOC": lambda root: text(root / "voc" / "a.xml", voc("cat", image="a.png")).parent,
    "labels": lambda root: text(root / "set" / "labels" / "a.txt", LABEL).parents[1],
    "Open Images": lambda root: text(
        root / "oi.csv", "ImageID,LabelName,XMin,XMax,YMin,YMax\na,cat,0.025,0.225,0.1,0.4\n"
    ),
}


@pytest.mark.parametrize("kind", ELSEWHERE)
def test_image_root_finds_the_images_of_each_format(tmp_path: Path, kind: str) -> None:
    source = ELSEWHERE[kind](tmp_path)
    text(tmp_path / "set" / "classes.txt", "cat\n")
    message = fault(load, source)
    assert "image_root=FOLDER" in message
    image = paint(tmp_path / "far" / "labels" / "a.png")
    if kind in ("list", "data.yaml"):
        text(tmp_path / "far" / "labels" / "a.txt", LABEL)
    ((path, *_),) = rows = load(source, image_root=str(tmp_path / "far"))
    assert Path(path).resolve() == image and has_box(rows)


def test_labels_that_are_named_count_and_others_in_their_usual_place_do_not(tmp_path: Path) -> None:
    for number in range(3):
        paint(tmp_path / "images" / f"{number}.png")
        text(tmp_path / "labels" / f"{number}.txt", "0 20 10 8 6\n")  # in pixels
        text(tmp_path / "normalized-labels" / f"{number}.txt", LABEL)
    text(tmp_path / "classes.txt", "cat\n")
    for options in ({}, {"image_root": str(tmp_path / "images")}):
        assert has_box(load(tmp_path / "normalized-labels", **options), 3)


def test_two_folders_of_label_files_that_differ_are_one_line(tmp_path: Path) -> None:
    for number in range(20):
        paint(tmp_path / "images" / f"{number}.png")
        text(tmp_path / "labels" / f"{number}.txt", LABEL), text(tmp_path / "images" / f"{number}.txt", LABEL * 2)
    text(tmp_path / "classes.txt", "cat\n")
    with refused(DataError, "problems: 1", "20", tmp_path / "labels/0.txt", tmp_path / "images/0.txt"):
        read(str(tmp_path), "train")


FAIR1M = "<object><points><point>1,2</point><point>9,8</point></points></object>"
HIDDEN = {
    "FAIR1M": f"<objects>{FAIR1M}</objects>",
    "deeper": "<frame><data><object><name>cat</name></object></data></frame>",
    "another case": "<Object><name>cat</name><bndbox><xmin>1</xmin></bndbox></Object>",
    "another name": "<item><name>cat</name><bndbox><xmin>1</xmin></bndbox></item>",
    "one more": voc("cat").removeprefix("<annotation>").removesuffix("</annotation>") + f"<objects>{FAIR1M}</objects>",
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_an_xml_file_with_objects_elsewhere_is_no_background(tmp_path: Path, kind: str) -> None:
    paint(tmp_path / "a.png"), paint(tmp_path / "b.png")
    text(tmp_path / "a.xml", voc("cat"))
    text(tmp_path / "b.xml", f"<annotation><filename>b.png</filename>{HIDDEN[kind]}</annotation>")
    message = fault(load, tmp_path)
    assert "b.xml" in message and "problems: 1" in message
    tags = re.findall(r"<\w+>", message)  # as the message writes them
    assert tags[:5] == ["<object>", "<name>", "<bndbox>", "<xmin>", "<ymin>"]
    text(tmp_path / "b.xml", voc("cat"))
    assert has_box(load(tmp_path), 2)


POINTS = {
    "x, y": "{x} {y} .2 .3 {x} {y} .1 .2 0 0 .12 .3",
    "x, y, visibility": "{x} {y} .2 .3 {x} {y} 1 .1 .2 1 0 0 0 .12 .3 1",
    "one point": "{x} {y} .2 .3 {x} {y}",
    "two ends": "{x} {y} .2 .3 .05 {y} .2 {y}",
}


@pytest.mark.parametrize("kind", POINTS)
def test_boxes_with_key_points_are_not_read_as_polygons(tmp_path: Path, kind: str) -> None:
    paint(tmp_path / "a.png"), text(tmp_path / "classes.txt", "cat\n")
    lines = [POINTS[kind].format(x=0.125 + step / 100, y=0.25) for step in range(3)]
    label = text(tmp_path / "a.txt", "".join(f"0 {line}\n" for line in lines))
    assert "keep class x y width height" in fault(load, tmp_path)
    label.write_text("".join(" ".join(f"0 {line}".split()[:5]) + "\n" for line in lines), encoding="utf-8")
    assert [row[1][0] for row in load(tmp_path)] == [pytest.approx([1, 2, 9, 8])]


def test_polygons_stay_polygons(tmp_path: Path) -> None:
    paint(tmp_path / "a.png"), text(tmp_path / "classes.txt", "cat\n")
    corners = [".1 .1 .3 .1 .3 .4 .1 .4", ".5 .5 .9 .5 .9 .9 .5 .9", ".4 .4 .6 .4 .6 .6 .4 .6"]
    text(tmp_path / "a.txt", "".join(f"0 {line}\n" for line in corners))
    ((_, found, *_),) = load(tmp_path)
    assert found[1] == pytest.approx([20, 10, 36, 18]) and len(found) == 3


@pytest.mark.parametrize("order", [1, -1])
def test_four_corners_that_might_be_a_box_with_key_points_stay_corners(tmp_path: Path, order: int) -> None:
    """License plates, and rotated boxes: small, and near the middle of their images."""
    paint(tmp_path / "a.png"), text(tmp_path / "classes.txt", "plate\n")
    plates = [
        [(x, y), (x + 0.1, y + 0.02), (x + 0.1, y + 0.07), (x, y + 0.05)] for x, y in [(0.5, 0.5), (0.6, 0.7)] * 2
    ]
    lines = [" ".join(f"{value:.3f}" for corner in plate[::order] for value in corner) for plate in plates]
    label = text(tmp_path / "a.txt", "".join(f"0 {line}\n" for line in lines))
    ((_, found, *_),) = load(tmp_path)
    assert found[0] == pytest.approx([20, 10, 24, 11.4]) and len(found) == 4
    text(label, label.read_text() + "0 .5 .5 .6 .57 .6 .5 .5 .57\n")  # its corners are in the order of rows
    message = fault(load, tmp_path)
    assert "key points" in message and "corners" in message and "the box around them" in message


@pytest.mark.parametrize("suffix", ["txt", "csv", "json"])
def test_fractions_among_pixels_are_an_error(tmp_path: Path, suffix: str) -> None:
    rows = {"a.png": (1, 2, 9, 8), "b.png": (0.1, 0.2, 0.5, 0.75), "c.png": (0, 0, 1, 1)}
    for name in rows:
        paint(tmp_path / name)
    lines = [(name, ",".join(map(str, row))) for name, row in rows.items()]
    if suffix == "json":
        data = coco(*rows)
        for shape, (x1, y1, x2, y2) in zip(data["annotations"], rows.values(), strict=True):
            shape["bbox"] = [x1, y1, x2 - x1, y2 - y1]
        source = text(tmp_path / "a.json", data)
    elif suffix == "csv":
        source = text(tmp_path / "a.csv", "".join(f"{name},{row},cat\n" for name, row in lines))
    else:
        source = text(tmp_path / "a.txt", "".join(f"{name} {row},0\n" for name, row in lines))
    assert "1 of 3" in fault(load, source)


def test_two_data_files_with_other_names_are_an_error_until_one_is_named(tmp_path: Path) -> None:
    paint(tmp_path / "images" / "a.png"), text(tmp_path / "labels" / "a.txt", LABEL)
    for name, classes in (("data", "[cat, dog]"), ("old", "[dog, cat]")):
        text(tmp_path / f"{name}.yaml", f"train: images\nnames: {classes}\n")
    message = fault(load, tmp_path)
    ((*_, names, _),) = load(message.rpartition("train=")[2])
    assert names == ["cat"]
    assert has_box(load(tmp_path / "old.yaml"))


def test_classes_of_the_model_that_look_like_new_ones_are_joined_or_kept_apart(tmp_path: Path, shell: Callable) -> None:
    for name in ("a", "b"):
        paint(tmp_path / f"{name}.png")
    rows = "a.png,1,2,9,8,stop_sign\nb.png,1,2,9,8,van\n"
    source = str(text(tmp_path / "a.csv", rows))
    data = read(source, "train")
    message = fault(with_known_classes, ("stop-sign",), data, data, are_chosen=False)
    one, new = re.findall(r"'merge=[^']*'|merge=\S+", message)
    for words, classes in ((one, ("stop-sign", "van")), (new, ("stop-sign", "my stop_sign", "van"))):
        merged = read(source, "train", ReadOptions(merge=shlex.split(words)[0].removeprefix("merge=")))
        assert with_known_classes(("stop-sign",), merged, merged, are_chosen=False)[0].classes == classes


def test_a_set_whose_classes_are_numbers_is_joined_as_the_message_says(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        paint(tmp_path / folder / f"{folder}.png"), text(tmp_path / folder / "l.txt", f"{folder}.png 1,2,9,8,0\n")
    text(tmp_path / "a" / "classes.txt", "cat\n")
    source = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    message = fault(load, source)
    assert "all_labeled=true" in message and "classes.txt" in message
    text(tmp_path / "b" / "classes.txt", "cat\n")
    assert has_box(load(source), 2)
    text(tmp_path / "b" / "b.txt", "0 .125 .25 .2 .3\n")
    data_file = text(tmp_path / "b" / "data.yaml", "train: .\nnc: 1\n")
    message = fault(load, source)
    assert "all_labeled=true" in message and "names: into its data.yaml" in message
    data_file.write_text("train: .\nnames: [cat]\n", encoding="utf-8")
    assert has_box(load(source), 2)


def test_a_missing_split_is_split_off_as_the_message_says(tmp_path: Path) -> None:
    for number in range(4):
        paint(tmp_path / "images" / "train" / f"{number}.png", width=40 + number)
        text(tmp_path / "labels" / "train" / f"{number}.txt", LABEL)
    text(tmp_path / "data.yaml", "train: images/train\nnames: [cat]\n")
    for source in (tmp_path, tmp_path / "data.yaml"):
        message = fault(read_train_and_val, str(source), str(source), read_options(), lambda note: None)
        val = re.search(r"val=(\S+)", message)
        assert val and val[1] == ".2"
        train, held_out = read_train_and_val(str(source), ".25", read_options(), lambda note: None)
        assert (len(train), len(held_out)) == (3, 1)


def test_numbers_are_named_by_the_list_of_classes(tmp_path: Path) -> None:
    paint(tmp_path / "a.png"), text(tmp_path / "a.txt", LABEL)
    assert "classes=FILE" in fault(load, tmp_path)
    names = str(text(tmp_path.parent / "my.names", "cat\n"))
    assert load(tmp_path, classes=names)[0][2] == ["cat"]
