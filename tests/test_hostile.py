"""Data made to hang, to fill the memory or to write half of a result: each ends in time with one clean error, or is read."""

import errno
import json
import os
import resource
import time

import pytest
from files import paint, text
from refused import refused

from datasets.errors import DataError
from datasets.formats.labels import resolve_labels
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.formats.source import Source
from tools.convert import convert
from utils.files import files_under
from utils.images import images_under

SECONDS = 4  # of the processor; most of these took more than 10


@pytest.fixture(autouse=True)
def in_time():
    start = time.process_time()
    yield
    assert time.process_time() - start < SECONDS


YAMLS = {
    "a billion names": "train: images\nnc: 1000000000\n",
    "one name as text": "train: images\nnames: cat\n",
    "no number": "train: images\nnc: x\n",
    "aliases": "a0: &a0 [lol]\n"
    + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
    + "train: images\nnames: *a11\n",
    "nested": "train: " + "[" * 20_000,
    "nested lists": "- " * 5000 + "x",
    "long": "train: images\nnames: [" + "cat, " * 300_000 + "dog]\n",
    "itself": "train: images\nnames: &x [*x]\n",
}


@pytest.mark.parametrize("name", YAMLS)
def test_a_hostile_yaml_is_one_clean_error(tmp_path, name):
    paint(tmp_path / "images" / "1.png"), text(tmp_path / "labels" / "1.txt", "0 .5 .5 .1 .1\n")
    with refused(DataError, "data.yaml") as caught:
        read(str(text(tmp_path / "data.yaml", YAMLS[name])), "train")
    assert len(str(caught.value)) < 2000 and "Error" not in str(caught.value)


DEVICES = {  # a file of labels, and the files next to it by which its format is recognized
    "labels/a.txt": {"classes.txt": "cat\n"},
    "classes.txt": {"labels/a.txt": "0 .5 .5 .1 .1\n"},
    "data.yaml": {"labels/a.txt": "0 .5 .5 .1 .1\n"},
    "obj.data": {},
    "a.xml": {},
    "a.json": {},
    "a.csv": {},
    "a.jsonl": {},
    "train.txt": {},
    "ds/ann/a.png.json": {},
}


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_in_place_of_a_label_file_is_named(tmp_path, name):
    """A pipe or a device may never end. /dev/null does, so that the test ends without the check, too."""
    paint(tmp_path / "images" / "a.png")
    for other, words in DEVICES[name].items():
        text(tmp_path / other, words)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).symlink_to("/dev/null")
    sources = [tmp_path] if "/" in name or name == "classes.txt" else [tmp_path, tmp_path / name]
    for source in sources:
        with refused(DataError, tmp_path / name):
            read(str(source), "train")


def test_a_pipe_does_not_stop_a_reader(tmp_path):
    os.mkfifo(tmp_path / "data.yaml")
    with refused(DataError, tmp_path / "data.yaml"):
        read(str(tmp_path), "train")


def test_names_and_boxes_of_unknown_classes_take_linear_time():
    names = tuple(f"class number {i}" for i in range(20_000))
    source = Source("x", names=names)
    source.add_image("a.png")
    for label in range(3000):
        source.add_box("a.txt:1", 1, 2, 3, 4, label)
    with refused(DataError, "3000", "a.txt:1", "20000"):
        resolve_labels(source, ReadOptions(), tuple(f"other number {i}" for i in range(20_000)))


def test_selecting_many_classes_takes_linear_time(tmp_path):
    names = [f"class {i}" for i in range(20_000)]
    text(tmp_path / "classes.txt", "\n".join(names))
    file = text(tmp_path / "train.txt", "a.png 1,2,3,4,7\n")
    assert read(str(file), "train", ReadOptions(classes=tuple(names[::-1]), select=True)).classes == tuple(names[::-1])


LONG = {
    "brackets": "(" * 200_000 + " 1,2,x,4,0",
    "quotes": "'" * 199_999 + " 1,2,x,4,0",
    "word": "x" * 400_000 + " 1,2,x,4,0",
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_line_is_one_short_error(tmp_path, name):
    with pytest.raises(DataError) as caught:
        read(str(text(tmp_path / "train.txt", f"{LONG[name]}\n" * 3)), "train")
    assert len(str(caught.value)) < 10_000


def test_blanks_in_a_list_of_images_take_linear_time(tmp_path):
    text(tmp_path / "VOC" / "Annotations" / "a.xml", "<annotation><filename>a.png</filename></annotation>")
    paint(tmp_path / "VOC" / "JPEGImages" / "a.png")
    text(tmp_path / "VOC" / "ImageSets" / "Main" / "train.txt", f"a\nb{' ' * 100_000}c\n")
    with pytest.raises(DataError, match="train.txt:2"):
        read(str(tmp_path / "VOC"), "train")


def test_a_json_list_with_many_annotations_is_refused_in_time(tmp_path):
    rows = [{f"x{i}": {"annotations": 1} for i in range(40_000)}]
    with refused(DataError, "x.json"):
        read(str(text(tmp_path / "x.json", json.dumps(rows))), "train")


def test_links_that_lead_to_their_own_folder_are_followed_once(tmp_path):
    """Two such links once were walked 2 ** 40 times."""
    paint(tmp_path / "a" / "1.png")
    for name in ("x", "y", "z"):
        (tmp_path / "a" / name).symlink_to(tmp_path, target_is_directory=True)
    assert images_under(str(tmp_path)) == files_under(tmp_path) == ["a/1.png"]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    for part in ("a", "locked", "lost+found"):
        paint(tmp_path / part / "1.png")
        (tmp_path / part / "1.txt").write_text("0 .5 .5 .2 .2\n")
    (tmp_path / "classes.txt").write_text("cat\n")
    scandir, locked = os.scandir, ["locked", "lost+found"]

    def refuse(folder):
        if os.path.basename(folder) in locked:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with refused(DataError, tmp_path / "locked", "Permission denied"):
        read(str(tmp_path), "train")
    with pytest.raises(PermissionError, match="locked"):
        images_under(str(tmp_path))
    locked.remove("locked")
    assert len(read(str(tmp_path), "train")) == 2  # lost+found of a disk is only for its administrator


def test_control_characters_never_reach_the_terminal(tmp_path):
    """A COCO file held escape sequences in a category that no box has, and in the kind of a VIA shape."""
    data = {"images": [{"id": 1, "file_name": "a.png"}], "categories": [{"id": 1, "name": "a\x1b[31mred"}]}
    with refused(DataError, "x.json", r"'a\x1b[31mred'") as caught:
        read(str(text(tmp_path / "x.json", data)), "train")
    assert "\x1b" not in str(caught.value)
    region = {"shape_attributes": {"name": "a\x1b[31m\r"}, "region_attributes": {"class": "cat"}}
    found = read(str(text(tmp_path / "via.json", {"k": {"filename": "a.png", "regions": [region]}})), "train")
    assert "\x1b" not in "".join(found.notes) and "left out: 1" in "".join(found.notes)


@pytest.mark.parametrize("kind", ["yolo", "voc", "heic", "lost"])
def test_a_line_end_in_a_file_name_does_not_break_the_message(tmp_path, kind):
    name = "a\nb"
    text(tmp_path / "classes.txt", "cat\n")
    for stem in ("c", name):
        labels = tmp_path / f"{stem}.xml" if kind == "voc" else tmp_path / f"{stem}.txt"
        text(labels, "<annotation/>" if kind == "voc" else "0 .5 .5 .1 .1\n")
    paint(tmp_path / "c.png")
    if kind in ("yolo", "voc"):
        paint(tmp_path / f"{name}.png")
        with refused(DataError, r"a\nb.png'") as caught:
            read(str(tmp_path), "train")
        assert len(str(caught.value).splitlines()) == 2  # a title, and one problem
        return
    if kind == "heic":
        paint(tmp_path / "x.png").rename(tmp_path / f"{name}.heic")
    notes = read(str(tmp_path), "train").notes
    assert any("a\\nb" in note for note in notes) and not any("\n" in note for note in notes)


@pytest.mark.parametrize("area", ["NaN", "-5", "1e999", "-Infinity"])
def test_areas_that_are_no_areas_are_refused(tmp_path, area):
    box = f'{{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "area": {area}}}'
    images = '"images": [{"id": 1, "file_name": "a.png"}], "categories": [{"id": 1, "name": "cat"}]'
    with refused(DataError, "annotations[0].area (id 1)"):
        read(str(text(tmp_path / "x.json", f'{{{images}, "annotations": [{box}]}}')), "train")


@pytest.mark.parametrize("target", ["out/data.txt", "out/data.json"])
def test_a_full_disk_leaves_no_part_of_a_converted_data_set(tmp_path, target):
    """A limit of the size of files, between the sizes of the parts, stands for the full disk."""
    lines = []
    for i in range(12):
        paint(tmp_path / f"{i}.png", 40 + i)
        lines.append(f"{i}.png {' '.join(['1.25,2.25,30.5,15.75,0'] * 20)}\n")
    text(tmp_path / "classes.txt", "cat\n")
    source = text(tmp_path / "train.txt", "".join(lines))
    (tmp_path / "out").mkdir()
    read(str(source), "train")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    convert(str(source), str(tmp_path / "first" / "data.json"))  # the sizes of the images are in the cache from here on
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        with pytest.raises(OSError):
            convert(str(source), str(tmp_path / target), split=(0.1, 0.9))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_data_set_without_classes_is_not_converted_to_an_annotation_file(tmp_path):
    """classes.txt would be empty, which is not read."""
    paint(tmp_path / "a.png")
    source = text(tmp_path / "x.json", {"images": [{"id": 1, "file_name": "a.png"}], "categories": []})
    with refused(DataError, "x.json"):
        convert(str(source), str(tmp_path / "out" / "data.txt"))
    assert not (tmp_path / "out").exists()
