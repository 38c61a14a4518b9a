"""Data made to hang, to fill the memory or to write half of a result: each ends in time with one clean error, or is read."""

import errno
import os
import time

import pytest
from files import paint, text
from refused import refused

from datasets.errors import DataError
from datasets.formats.read import read
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
    "aliases": "a0: &a0 [lol]\n"
    + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
    + "train: images\nnames: *a11\n",
    "nested": "train: " + "[" * 20_000,
    "itself": "train: images\nnames: &x [*x]\n",
}


@pytest.mark.parametrize("name", YAMLS)
def test_a_hostile_yaml_is_one_clean_error(tmp_path, name):
    paint(tmp_path / "images" / "1.png"), text(tmp_path / "labels" / "1.txt", "0 .5 .5 .1 .1\n")
    with refused(DataError, "data.yaml") as caught:
        read(str(text(tmp_path / "data.yaml", YAMLS[name])), "train")
    assert len(str(caught.value)) < 2000 and "Error" not in str(caught.value)


@pytest.mark.parametrize("name", ["labels/a.txt", "data.yaml", "a.xml", "a.json", "train.txt"])
def test_a_device_in_place_of_a_label_file_is_named(tmp_path, name):
    """A pipe or a device may never end. /dev/null does, so that the test ends without the check, too."""
    paint(tmp_path / "images" / "a.png")
    for other in ("labels/a.txt", "classes.txt"):
        text(tmp_path / other, "0 .5 .5 .1 .1\n" if other.startswith("labels") else "cat\n")
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("/dev/null")
    with refused(DataError, tmp_path / name):
        read(str(tmp_path if name.startswith("labels") else tmp_path / name), "train")


@pytest.mark.parametrize("word", ["(" * 200_000, "'" * 199_999, "x" * 400_000], ids=["brackets", "quotes", "word"])
def test_a_long_line_is_one_short_error(tmp_path, word):
    with pytest.raises(DataError) as caught:
        read(str(text(tmp_path / "train.txt", f"{word} 1,2,x,4,0\n" * 3)), "train")
    assert len(str(caught.value)) < 10_000


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
