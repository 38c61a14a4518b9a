"""Each YOLO label file is read with the class list nearest to it; lists that are equally near and differ are an error."""

import random
from pathlib import Path

import pytest
from files import boxes, paint, text
from refused import refused, told

from datasets.errors import DataError
from datasets.formats.class_names import class_text, read_classes
from datasets.formats.options import ReadOptions
from datasets.formats.read import read

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox")
LAYOUTS = {  # places of the image, of the label file and of the list of a group
    "side by side": ("{}/1.png", "{}/1.txt", "{}/classes.txt"),
    "images and labels in each": ("{}/images/1.png", "{}/labels/1.txt", "{}/classes.txt"),
    "list next to the labels": ("images/{}/1.png", "labels/{}/1.txt", "labels/{}/classes.txt"),
    "other names": ("photos/{}/1.png", "txt/{}/1.txt", "txt/{}/obj.names"),
    "nested data files": ("{}/images/1.png", "{}/labels/1.txt", "{}/data.yaml"),
}


def group(root: Path, layout: str, name: str, names: list[str], label: int) -> Path:
    """A folder with one image, a label file with one box, and a class list. Returns the image."""
    image, labels, place = (root / form.format(name) for form in LAYOUTS[layout])
    text(labels, f"{label} .5 .5 .2 .2\n")
    text(place, f"names: [{', '.join(names)}]\n" if place.suffix == ".yaml" else "".join(f"{n}\n" for n in names))
    return paint(image)


def classes_of(root: Path, source: Path | None = None, part: str = "train", **options) -> dict[str, str]:
    """The class of the one box of each image, by the path of the image."""
    return {
        str(Path(p).relative_to(root)): name
        for p, _, (name,), _ in boxes(read(str(source or root), part, ReadOptions(**options)))
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups", [("anna", "ben", "cleo", "dora"), ("train", "val")])
@pytest.mark.parametrize("seed", range(3))
def test_every_label_file_has_the_names_of_the_list_nearest_to_it(
    tmp_path: Path, layout: str, groups: tuple[str, ...], seed: int
) -> None:
    """One list was applied to all label files, so that dogs were cats in the folders of other annotators."""
    rng = random.Random(seed)
    expected = {}
    for name in groups:
        names = rng.sample(NAMES, rng.randint(1, len(NAMES)))
        label = rng.randrange(len(names))
        expected[str(group(tmp_path, layout, name, names, label).relative_to(tmp_path))] = names[label]
    assert classes_of(tmp_path, part="all") == expected
    train = read(str(tmp_path), "train")
    found = {}
    for part in ("train", "val"):
        found |= classes_of(tmp_path, part=part, classes=train.classes)
    assert found == expected


def test_the_list_of_the_data_set_gives_the_order_and_names_what_has_no_other(tmp_path: Path) -> None:
    text(tmp_path / "classes.txt", "dog\nant\n")
    group(tmp_path, "list next to the labels", "a", ["ant", "bee", "dog"], 2)
    paint(tmp_path / "images" / "b" / "1.png"), text(tmp_path / "labels" / "b" / "1.txt", "1 .5 .5 .2 .2\n")
    assert classes_of(tmp_path) == {"images/a/1.png": "dog", "images/b/1.png": "ant"}
    assert read(str(tmp_path), "train").classes == ("dog", "ant", "bee")


def test_equal_lists_are_no_matter(tmp_path: Path) -> None:
    for name in "ab":
        group(tmp_path, "side by side", name, ["cat", "dog"], 1)
    text(tmp_path / "b" / "obj.names", "Cat\n")
    found = read(str(tmp_path), "train")
    assert not found.notes and found.classes == ("cat", "dog")


@pytest.mark.parametrize("place", ["", "labels/train"])
def test_the_nearest_list_wins(tmp_path: Path, place: str) -> None:
    """In the folder of the label files, and then above it."""
    paint(tmp_path / "images/train/1.png"), text(tmp_path / "labels/train/1.txt", "0 .5 .5 .2 .2\n")
    text(tmp_path / "classes.txt", "dog\ncat\n")
    text(tmp_path / place / "classes.txt", "cat\ndog\n")
    assert classes_of(tmp_path) == {"images/train/1.png": "cat"}
    (tmp_path / "classes.txt").unlink()
    text(tmp_path / place / "classes.txt", "cat\ndog\n")
    assert classes_of(tmp_path) == {"images/train/1.png": "cat"}


@pytest.mark.parametrize("named", ["images", "labels", "train", "train/images", "images/train2017"])
def test_a_list_above_the_folder_that_is_named_counts_only_in_the_same_data_set(tmp_path: Path, named: str) -> None:
    """A neighbor's list named the classes of a data set that had lost its own."""
    text(tmp_path / "classes.txt", "dog\n")
    for folder in (tmp_path / "own", tmp_path / named):
        paint(folder / "1.png"), text(folder / "1.txt", "0 .5 .5 .2 .2\n")
    with refused(DataError, tmp_path / "own", "classes.txt"):
        read(str(tmp_path / "own"), "train")
    found = read(str(tmp_path / named), "train")
    assert found.classes == ("dog",)
    told("".join(found.notes), tmp_path / "classes.txt")


@pytest.mark.parametrize("place", ["classes.txt", "labels/classes.txt"])
def test_a_data_file_that_is_found_and_a_list_that_differs_are_an_error(tmp_path: Path, place: str) -> None:
    """A labeling tool writes its own order next to the label files. The data file that the user names decides."""
    paint(tmp_path / "images" / "1.png"), text(tmp_path / "labels" / "1.txt", "0 .5 .5 .2 .2\n")
    yaml = text(tmp_path / "data.yaml", "train: images\nnames: [cat, dog]\n")
    words = "dog\ncat\n"
    other = text(tmp_path / place, words)
    with refused(DataError, yaml, other, "'cat'", "'dog'"):
        read(str(tmp_path), "train")
    assert classes_of(tmp_path, yaml) == {"images/1.png": "cat"}
    text(other, words.replace("dog", "Cat", 1).replace("cat", "dog"))
    assert classes_of(tmp_path) == {"images/1.png": "cat"}


def test_a_darknet_file_names_its_list_and_others_in_its_folder_do_not_count(tmp_path: Path) -> None:
    paint(tmp_path / "images" / "1.png"), text(tmp_path / "labels" / "1.txt", "1 .5 .5 .2 .2\n")
    text(tmp_path / "obj.data", "classes = 2\ntrain = images\nnames = obj.names\n")
    text(tmp_path / "obj.names", "cat\ndog\n"), text(tmp_path / "voc.names", "bird\nbus\n")
    assert classes_of(tmp_path) == {"images/1.png": "dog"}


@pytest.mark.parametrize("place", ["", "labels"])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("classes.txt", "cat\ndog\n"), ("obj.names", "dog\ncat\n")),
        (("coco.names", "cat\ndog\n"), ("voc.names", "dog\ncat\n")),
    ],
)
def test_two_lists_in_a_folder_that_differ_are_an_error(
    tmp_path: Path, place: str, one: tuple[str, str], other: tuple[str, str]
) -> None:
    paint(tmp_path / "images" / "1.png"), text(tmp_path / "labels" / "1.txt", "0 .5 .5 .2 .2\n")
    for name, words in (one, other):
        text(tmp_path / place / name, words)
    for source in (tmp_path, text(tmp_path / "list.txt", "images/1.png\n")):
        with refused(DataError, tmp_path / place / one[0], tmp_path / place / other[0], "'cat'", "'dog'"):
            read(str(source), "train")


def test_lists_of_images_use_the_class_lists_near_their_label_files(tmp_path: Path) -> None:
    places = [
        group(tmp_path / "set", "side by side", name, list(names), 0) for name, names in (("a", "xy"), ("b", "yx"))
    ]
    source = text(tmp_path / "set" / "list.txt", "".join(f"{place}\n" for place in places))
    assert classes_of(tmp_path / "set", source) == {"a/1.png": "x", "b/1.png": "y"}
    far = text(tmp_path / "far" / "away" / "list.txt", f"{places[1]}\n")
    assert classes_of(tmp_path / "set", far) == {"b/1.png": "y"}


def test_an_annotation_file_with_two_lists_that_differ_is_an_error(tmp_path: Path) -> None:
    text(tmp_path / "classes.txt", "cat\ndog\n"), text(tmp_path / "_classes.txt", "dog\ncat\n")
    with refused(DataError, tmp_path / "classes.txt", tmp_path / "_classes.txt", "'cat'", "'dog'"):
        read(str(text(tmp_path / "train.txt", "a.png 1,2,3,4,0\n")), "train")


def test_a_number_that_the_nearest_list_does_not_have_names_this_list(tmp_path: Path) -> None:
    text(tmp_path / "classes.txt", "a\nb\nc\n")
    group(tmp_path, "side by side", "one", ["a", "b"], 2)
    with refused(DataError, "1.txt:1", "class 2", tmp_path / "one" / "classes.txt", "2 names"):
        read(str(tmp_path), "train")


def test_several_darknet_data_files_are_an_error(tmp_path: Path) -> None:
    """None of them was read, and the class names came from elsewhere."""
    paint(tmp_path / "images" / "1.png"), text(tmp_path / "labels" / "1.txt", "0 .5 .5 .2 .2\n")
    text(tmp_path / "classes.txt", "cat\ndog\n"), (tmp_path / "weights.data").write_bytes(b"\0\1")
    assert classes_of(tmp_path) == {"images/1.png": "cat"}
    for name in ("a", "b"):
        text(tmp_path / f"{name}.data", f"train = images\nnames = {name}.names\n")
        text(tmp_path / f"{name}.names", "cat\ndog\n")
    with refused(DataError, "a.data, b.data"):
        read(str(tmp_path), "train")


def test_names_that_are_repeated_in_a_data_file_are_an_error(tmp_path: Path) -> None:
    group(tmp_path, "nested data files", "a", ["cat", "cat"], 0)
    with refused(DataError, "data.yaml", "cat"):
        read(str(tmp_path), "train")


@pytest.mark.parametrize("lines", ["- cat\n- dog\n", "names:\n- cat\n"])
def test_lists_of_another_form_than_a_name_per_line_are_errors(tmp_path, lines):
    path = tmp_path / "classes.txt"
    path.write_text(lines)
    with refused(DataError, f"{path}:1", lines.partition("\n")[0]):
        read_classes(str(path))


@pytest.mark.parametrize(
    "names", [("type 0", "type 1"), ("size 2", "cat 7"), ("-cat", "- dog"), ("cat 0",), ("- cat", "- dog")]
)
def test_names_with_numbers_and_dashes_are_written_so_that_they_are_read_back(tmp_path, names):
    path = tmp_path / "classes.txt"
    path.write_text(class_text(names))
    assert read_classes(str(path)) == names
