"""Images that belong together by their names: split_by=, folds of a cross-validation, and frames of one video."""

import shlex
from pathlib import Path
from typing import NamedTuple

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
from datasets.groups import MAX_VERSIONS, check_split_by, frames_in_both, named_groups, version_groups
from datasets.similar import with_named
from datasets.sources import division_of, read_train_and_val
from datasets.split import divide, split_groups
from tools import check as check_script
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


def test_the_pattern_that_a_refusal_writes_keeps_clips_together(tmp_path: Path) -> None:
    source = clips(tmp_path, {"clip7": 5, "clip8": 5, "clip9": 5})
    with refused(ConfigError, "split_by=clip7") as caught:
        check_split_by("clip7")
    pattern, folders = [word for word in shlex.split(str(caught.value)) if word.startswith("split_by=")][1:]
    options = read_options(split_by=pattern.removeprefix("split_by="))
    with refused(ConfigError, "val=.2"):  # the next message, whose fix is followed, too
        read_train_and_val(source, source, options, print)
    found = read_train_and_val(source, ".2", options, lambda note: None)
    groups = [{name.partition("_")[0] for name in names(data)} for data in found]
    assert not groups[0] & groups[1] and all(groups) and sum(map(len, found)) == 15
    assert check_split_by(folders.removeprefix("split_by=")) == "folders"


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


def test_a_path_takes_precedence_over_a_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert division_of("1/5").fractions == (0.2,) * 5
    (tmp_path / "1" / "5").mkdir(parents=True)
    assert division_of("1/5") is None


def test_large_groups_leave_no_part_empty() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        sizes = rng.integers(1, 50, rng.integers(3, 9))
        groups = np.repeat(np.arange(len(sizes)), sizes)
        parts = split_groups(groups, rng.integers(1, 2**62, len(groups)), (0.8, 0.1, 0.1), 0)
        assert all(map(len, parts)) and sum(map(len, parts)) == len(groups)
        assert sum(len(np.unique(groups[part])) for part in parts) == len(sizes)


# ---- frames of one video


def panned(folder: Path, count: int, form: str) -> list[str]:
    """Writes the frames of a camera that pans over a scene, every third of which is of the validation split."""
    wide = cv2.resize(np.random.default_rng(0).integers(0, 256, (12, 40, 3)).astype(np.uint8), (1000, 240))
    lists: dict[bool, list[str]] = {False: [], True: []}
    (folder / form).parent.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        name = form.format(number)
        (folder / name).write_bytes(jpeg(wide[:, 5 * number : 5 * number + 320]))
        lists[number % 3 == 2].append(f"{name} 1,2,30,40,0\n")
    (folder / "classes.txt").write_text("cat\n")
    (folder / "train.txt").write_text("".join(lists[False]))
    (folder / "val.txt").write_text("".join(lists[True]))
    return [str(folder / "train.txt"), str(folder / "val.txt")]


def both(paths: list[str]):
    return read_train_and_val(*paths, read_options(), lambda note: None)


@pytest.mark.parametrize("form", ["IMG_{:04}.jpg", "clips/{}.jpg", "shop_mp4-{}_jpg.rf.3fb2a9.jpg", "a/b{:06}left.jpg"])
def test_frames_of_one_video_in_two_splits_are_found(tmp_path: Path, form: str) -> None:
    train_data, val_data = both(panned(tmp_path, 30, form))
    val, near = frames_in_both(train_data, val_data)
    assert val.tolist() == list(range(10))
    of_val, of_train = (
        [form.format(number) for number in range(30) if (number % 3 == 2) == part] for part in (True, False)
    )
    frames = {form.format(number): number for number in range(30)}
    apart = [abs(frames[of_val[one]] - frames[of_train[other]]) for one, other in zip(val, near, strict=True)]
    assert apart == [1] * 10


def test_numbered_photographs_are_no_video_but_the_names_of_clips_are(tmp_path: Path) -> None:
    for form, expected in (
        ("photo_{}.jpg", 0),
        ("{}.jpg", 0),
        ("clip7_{}.jpg", 4),
        ("video-{}.jpg", 4),
        ("eclipse{}.jpg", 0),
    ):
        images = {form.format(number): jpeg(scene(number)) for number in range(12)}
        data = read_train_and_val(write(tmp_path / form[:3], images), "1/3", read_options(), lambda note: None)
        assert len(frames_in_both(*data)[0]) == expected, form
    other = read_train_and_val(
        clips(tmp_path / "x", {"clip1": 3, "clip2": 3}), ".5", read_options(split_by=CLIP), print
    )
    assert len(frames_in_both(*other)[0]) == 0


def named(*paths: str, hashes: np.ndarray | None = None):
    """Annotations as far as `frames_in_both` reads them. Without `hashes` [N, 4] no image looks like another."""
    if hashes is None:
        seed = list("".join(paths).encode())
        hashes = np.random.default_rng(seed).integers(0, 2**64, (len(paths), 4), dtype=np.uint64)
    return Named(paths, hashes)


class Named(NamedTuple):
    paths: tuple[str, ...]
    hashes: np.ndarray

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> str:
        return self.paths[index]


def test_names_that_are_numbers_only_belong_to_the_video_of_their_folder() -> None:
    """A folder counts for no other name, and only its own name, not where it is."""
    train_data = named("train/clip1/1.jpg", "train/clip1/9.jpg")
    assert [rows.tolist() for rows in frames_in_both(train_data, named("val/clip1/8.jpg", "val/clip2/2.jpg"))] == [
        [0],
        [1],
    ]
    assert len(frames_in_both(named("clip1/photo_1.jpg"), named("clip1/photo_2.jpg"))[0]) == 0
    assert len(frames_in_both(named("a/clip_1.jpg"), named("b/clip_2.jpg"))[0]) == 1


def test_the_same_image_in_both_splits_is_no_frame_next_to_itself() -> None:
    """It is a copy, of which another finding tells."""
    one = named(*(f"clip_{number}.jpg" for number in (1, 5, 9)))
    assert frames_in_both(one, one)[1].tolist() in ([1, 0, 1], [1, 2, 1])
    assert len(frames_in_both(named("clip_1.jpg"), named("clip_1.jpg"))[0]) == 0
    alike = named(*(f"{number}.jpg" for number in range(9)))
    assert len(frames_in_both(alike, alike)[0]) == 0


@pytest.mark.parametrize(
    ("alike", "others", "expected"),
    [(3, 0, 3), (2, 0, 0), (3, 3, 3), (3, 4, 0), (5, 5, 5), (5, 6, 0)],
)
def test_at_least_half_of_the_pairs_of_names_and_three_look_alike(alike: int, others: int, expected: int) -> None:
    """Next to many images whose names have no number."""
    count, most = alike + others, 50
    hashes, of_val = np.random.default_rng(0).integers(0, 2**64, (2, most, 4), dtype=np.uint64)
    of_val[:alike] = hashes[:alike]
    unnumbered = ["photo.jpg"] * (most - count)
    train_data = named(*(f"{number}/1.jpg" for number in range(count)), *unnumbered, hashes=hashes)
    val_data = named(*(f"{number}/2.jpg" for number in range(count)), *unnumbered, hashes=of_val)
    assert frames_in_both(train_data, val_data)[0].tolist() == list(range(expected))


def test_a_pair_is_alike_if_it_differs_in_less_than_three_quarters_of_what_any_images_differ_in() -> None:
    """Any two images of random bits differ in about half of all bits."""
    rng, count = np.random.default_rng(0), 400
    hashes = rng.integers(0, 2**64, (count, 4), dtype=np.uint64)
    for fraction, expected in ((0.3, count), (0.45, 0)):
        flipped = np.packbits(rng.random((count, 4, 64)) < fraction, axis=-1).view(np.uint64)[..., 0]
        train_data = named(*(f"{number}/1.jpg" for number in range(count)), hashes=hashes)
        val_data = named(*(f"{number}/2.jpg" for number in range(count)), hashes=hashes ^ flipped)
        assert abs(len(frames_in_both(train_data, val_data)[0]) - expected) <= count / 20, fraction


def frames(*paths: str, **options) -> list[dict]:
    """The leaks of the check that are frames of one video."""
    return [leak for leak in check(*paths, **options)[0]["leaks"] if leak["kind"] != "copies"]


def test_the_check_lists_frames_of_one_video_with_their_share(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    paths = panned(tmp_path, 30, "IMG_{:04}.jpg")
    (found,) = frames(*paths)
    assert found["splits"] == ["train", "val"] and "10 of 10 images" in found["text"] and len(found["groups"]) == 10
    with pytest.raises(SystemExit) as stopped:
        check_script.main([paths[0], f"val={paths[1]}", f"page={tmp_path / 'check.html'}"])
    assert found["text"] in capsys.readouterr().out and not stopped.value.code
    assert found["text"] in (tmp_path / "check.html").read_text()


def test_the_check_of_a_division_finds_frames_unless_split_by_keeps_them_together(tmp_path: Path) -> None:
    source = clips(tmp_path, {"clip1": 5, "clip2": 5, "clip3": 5})
    (found,) = frames(source, ".3")
    assert found["splits"] == ["train", "val=.3"]
    assert frames(source, ".3", options=read_options(split_by=CLIP)) == []
    with pytest.raises(SystemExit):
        check_script.main([source, "val=.3", f"page={tmp_path / 'check.html'}"])
    assert found["text"] in (tmp_path / "check.html").read_text()
    assert any(
        "split_by=(x)" in error for error in check(source, ".3", options=read_options(split_by="(x)"))[0]["errors"]
    )
