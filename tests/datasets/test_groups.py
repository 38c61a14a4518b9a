"""Images that belong together by their names: split_by=, and folds of a cross-validation."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from refused import refused
from small import config
from test_split import jpeg, write

import train
from datasets.errors import DataError
from datasets.formats.options import read_options
from datasets.formats.read import read
from datasets.groups import MAX_VERSIONS, check_split_by, named_groups, version_groups
from datasets.similar import with_named
from datasets.sources import division_of, read_train_and_val
from datasets.split import divide, split_groups
from tools.check_report import check
from tools.convert import convert
from utils.config import ConfigError

CLIP = r"(.+)_\d+"


def scene(number: int) -> np.ndarray:
    """An image of random blots."""
    small = np.random.default_rng(number).integers(0, 256, (8, 10, 3)).astype(np.uint8)
    return cv2.resize(small, (80, 64), None, 0, 0, cv2.INTER_CUBIC)


def names(data) -> set[str]:
    return {Path(data.path(i)).name for i in range(len(data))}


def clips(folder: Path, lengths: dict[str, int]) -> str:
    """Writes images that do not look alike, with the names of frames of clips of these lengths."""
    files = [f"{clip}_{frame:04}.jpg" for clip, length in lengths.items() for frame in range(length)]
    return write(folder, {name: jpeg(scene(number)) for number, name in enumerate(files)})


# ---- split_by=


def test_a_pattern_or_the_folder_names_the_group() -> None:
    paths = ["a/clip7_0001.jpg", "a/clip7_0002.jpg", "b/clip8_0001.jpg"]
    assert named_groups(paths, CLIP) == [("clip7",), ("clip7",), ("clip8",)]
    assert named_groups(paths, "folders") == [("a",), ("a",), ("b",)]
    cameras = named_groups(["a_cam1_7.jpg", "a_cam1_8.jpg", "a_cam2_9.jpg", "b_cam2_9.jpg"], r"(.)_cam(\d)_")
    assert cameras[0] == cameras[1] and len(set(cameras)) == 3
    blocks = named_groups([f"frame_{number:04}.jpg" for number in (0, 99, 100)], r"(\d+)\d\d\.")
    assert blocks[0] == blocks[1] != blocks[2]
    assert len({*named_groups(["one/images/1.jpg", "two/images/1.jpg"], "folders")}) == 2
    with refused(DataError, f"split_by={CLIP}", "a/other.jpg"):
        named_groups([*paths, "a/other.jpg"], CLIP)


@pytest.mark.parametrize("pattern", ["(", r"clip\d+", "", "(a{99999999999})", "(" * 9999])
def test_a_pattern_without_a_group_is_refused(pattern: str) -> None:
    with refused(ConfigError, f"split_by={pattern[:20]}", "folders"):
        check_split_by(pattern)


def test_groups_of_copies_and_of_names_are_joined() -> None:
    copies = np.array([0, 1, 0, 3, 4])
    assert with_named(copies, ["a", "b", "c", "c", "d"]).tolist() == [0, 1, 0, 0, 4]
    assert with_named(np.arange(0), []).tolist() == []


def test_versions_of_an_image_in_an_export_of_roboflow_stay_in_one_split(tmp_path: Path) -> None:
    """They are crops, which do not look alike. An equal name of very many images is none of one image."""
    files = [f"a{image}_jpg.rf.{version}f31.jpg" for image in range(8) for version in range(3)]
    source = write(tmp_path, {name: jpeg(scene(number)) for number, name in enumerate(files)})
    found = read_train_and_val(source, ".25", read_options(), lambda note: None)
    images = [{name.partition("_")[0] for name in names(data)} for data in found]
    assert [len(data) for data in found] == [18, 6] and not images[0] & images[1]

    many = [f"image_jpg.rf.{number}.jpg" for number in range(MAX_VERSIONS + 1)]
    digests, hashes = np.arange(1, len(many) + 1, dtype=np.uint64), np.zeros((len(many), 4), np.uint64)
    assert len({*version_groups(digests, hashes, many)}) == len(many)
    assert len({*version_groups(digests[1:], hashes[1:], many[1:])}) == 1

    others = ["a.rf.1.jpg", "a.rf.2.jpg", "c_1_jpg.rf.1.jpg", "c_2_jpg.rf.1.jpg"]  # no exports; two images
    twice = ["b_jpg.rf.1_jpg.rf.2.jpg", "b_jpg.rf.3_png.rf.4.jpg"]  # exported
    groups = version_groups(digests[:6], hashes[:6], [*others, *twice])
    assert groups[4] == groups[5] and len({*groups}) == 5


@pytest.mark.parametrize("val", [".2", ".5", "1/3", "2/3", "3/3"])
def test_the_images_of_a_group_stay_in_one_split(tmp_path: Path, val: str) -> None:
    """However large they are: no split is empty."""
    source = clips(tmp_path, {"a": 12, "b": 1, "c": 3})
    found = read_train_and_val(source, val, read_options(split_by=CLIP), lambda note: None)
    groups = [{name.partition("_")[0] for name in names(data)} for data in found]
    assert not groups[0] & groups[1] and groups[0] | groups[1] == {"a", "b", "c"} and all(groups)


def test_split_by_without_a_division_and_with_too_few_groups_is_refused(tmp_path: Path) -> None:
    source, options = clips(tmp_path, {"a": 3}), read_options(split_by=CLIP)
    with refused(ConfigError, f"split_by={CLIP}", "val=.2"):
        read_train_and_val(source, source, options, lambda note: None)
    with refused(ConfigError, f"split_by={CLIP}", "val=.2"):
        check(source, options=options)
    with refused(DataError, f"split_by={CLIP}", "split="):
        convert(source, str(tmp_path / "x.txt"), split_by=CLIP)
    with refused(DataError, f"split_by={CLIP}", "val=0.5", "1 group"):
        read_train_and_val(source, ".5", options, lambda note: None)


def test_split_by_of_a_training_and_of_a_conversion_reach_the_split(tmp_path: Path) -> None:
    source = clips(tmp_path, {"a": 4, "b": 4})

    class HasRead(Exception):
        """Ends the run: its data are read."""

    def read_data(*arguments):
        raise HasRead(*read_train_and_val(*arguments))

    cfg = config(tmp_path, tmp_path / "runs", train=source, val="2/2", split_by=CLIP)
    with pytest.raises(HasRead) as stopped:
        train.main(cfg, parts=train.Parts(read_data=read_data))
    of_training = [names(data) for data in stopped.value.args]
    convert(source, str(tmp_path / "b.txt"), split=(0.5, 0.5), split_by=CLIP)
    assert of_training == [names(read(str(tmp_path / f"b_{part}.txt"), "train")) for part in ("train", "val")]
    assert [len({name[0] for name in part}) for part in of_training] == [1, 1]


# ---- folds


def test_folds_are_disjoint_and_cover_all_images(tmp_path: Path) -> None:
    images = {f"{number}.jpg": jpeg(scene(number)) for number in range(11)}
    images["copy.jpg"], images["poor.jpg"] = images["0.jpg"], jpeg(scene(0), 85)
    data = read(write(tmp_path, images), "train")
    folds = [divide(data, division_of(f"{number}/4"), 0) for number in range(1, 5)]
    assert all(names(one) | names(other) == set(images) and not names(one) & names(other) for one, other in folds)
    assert sorted(name for _, val in folds for name in names(val)) == sorted(images)
    assert all(len({"0.jpg", "copy.jpg", "poor.jpg"} & names(val)) in (0, 3) for _, val in folds)
    backwards = data.select(np.arange(len(data))[::-1])
    assert names(divide(backwards, division_of("2/4"), 0)[1]) == names(folds[1][1])
    assert any(names(divide(data, division_of("2/4"), seed)[1]) != names(folds[1][1]) for seed in range(1, 4))


@pytest.mark.parametrize("val", ["0/5", "6/5", "1/1", "0/0", "1/0", "1/999999999"])
def test_a_fold_that_does_not_exist_is_refused(val: str) -> None:
    with refused(ConfigError, f"val={val}", "val=1/5"):
        division_of(val)


def test_large_groups_leave_no_part_empty() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        sizes = rng.integers(1, 50, rng.integers(3, 9))
        groups = np.repeat(np.arange(len(sizes)), sizes)
        parts = split_groups(groups, rng.integers(1, 2**62, len(groups)), (0.8, 0.1, 0.1), 0)
        assert all(map(len, parts)) and sum(map(len, parts)) == len(groups)
        assert sum(len(np.unique(groups[part])) for part in parts) == len(sizes)
