"""Converted data are the same data, splits are disjoint and reproducible, and no file is overwritten."""

import json
import os
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused, told

from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.sources import division_of
from datasets.split import split_groups, train_and_val
from tools.convert import convert, main
from utils.config import ConfigError

ROOT = Path(__file__).parents[2]


def paint(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(".png", np.full((20, 40, 3), level, np.uint8))[1].tobytes())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """20 images, 15 of them different, in two folders with the same names, as COCO JSON with its own ids."""
    images, annotations = [], []
    for i in range(20):
        name = f"{'ab'[i % 2]}/图 {i // 2}.png"
        paint(tmp_path / "set" / name, 10 * (i % 15))
        images.append({"id": 100 - i, "file_name": name, "width": 40, "height": 20})
        box = {"image_id": 100 - i, "category_id": (7, 90)[i % 2], "bbox": [i / 3, 1, 5.25, 6], "iscrowd": int(i == 3)}
        annotations += [box | {"id": i, "area": 3.5}] if i != 4 else []
    categories = [{"id": 7, "name": "cat"}, {"id": 90, "name": "big dog"}]
    path = tmp_path / "set" / "coco.json"
    path.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return path


def content(path: Path | str) -> dict[str, tuple]:
    found = read(str(path), "train")
    rows = {}
    for i in range(len(found)):
        boxes, labels, crowd = found.boxes_of(i)
        names = [found.classes[n] for n in labels]
        rows[str(Path(found.path(i)).resolve())] = (np.round(boxes, 5).tolist(), names, crowd.tolist())
    assert len(rows) == len(found)
    return rows


def test_an_annotation_file_has_the_same_data(source: Path, tmp_path: Path) -> None:
    """Equal names in two folders stay distinct; backgrounds and crowd regions are kept."""
    convert(str(source), str(tmp_path / "out" / "all.txt"))
    assert content(tmp_path / "out" / "all.txt") == content(source)
    assert len(content(source)) == 20
    assert (tmp_path / "out" / "classes.txt").read_text() == "cat\nbig dog\n"
    assert (tmp_path / "out" / "all.txt").read_text(encoding="utf-8").startswith("../set/a/图 0.png 0,1,5.25,7,0\n")


def test_a_coco_json_keeps_all_ids(source: Path, tmp_path: Path) -> None:
    convert(str(source), str(tmp_path / "out.json"))
    assert content(tmp_path / "out.json") == content(source)
    mine, theirs = (json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "out.json", source))
    assert mine["categories"] == theirs["categories"]
    assert [image["id"] for image in mine["images"]] == [image["id"] for image in theirs["images"]]
    keys = ("image_id", "category_id", "area", "iscrowd")
    assert [[a[k] for k in keys] for a in mine["annotations"]] == [[a[k] for k in keys] for a in theirs["annotations"]]
    assert not (tmp_path / "classes.txt").exists()


def test_a_coco_json_of_an_annotation_file_has_the_sizes_of_the_images(source: Path, tmp_path: Path) -> None:
    convert(str(source), str(tmp_path / "all.txt"))
    convert(str(tmp_path / "all.txt"), str(tmp_path / "back.json"))
    images = json.loads((tmp_path / "back.json").read_text(encoding="utf-8"))["images"]
    assert {(image["width"], image["height"]) for image in images} == {(40, 20)}
    assert content(tmp_path / "back.json") == content(source)


@pytest.mark.parametrize(
    ("split", "names"), [((0.7, 0.3), ("train", "val")), ((0.5, 0.25, 0.25), ("train", "val", "test"))]
)
def test_a_split_is_disjoint_reproducible_and_keeps_equal_images_together(
    source: Path, tmp_path: Path, split: tuple, names: tuple
) -> None:
    convert(str(source), str(tmp_path / "out" / "x.txt"), split=split, seed=3)
    parts = [content(tmp_path / "out" / f"x_{name}.txt") for name in names]
    assert sorted(path for part in parts for path in part) == sorted(content(source))
    pixels = [{Path(path).read_bytes() for path in part} for part in parts]
    assert sum(map(len, pixels)) == len(set().union(*pixels)) == 15
    assert all(abs(len(part) - 20 * fraction) <= 2 for part, fraction in zip(parts, split, strict=True))
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"classes.txt", *(f"x_{name}.txt" for name in names)}
    convert(str(source), str(tmp_path / "again" / "x.txt"), split=split, seed=3)
    assert [content(tmp_path / "again" / f"x_{name}.txt") for name in names] == parts
    convert(str(source), str(tmp_path / "other" / "x.txt"), split=split, seed=4)
    assert content(tmp_path / "other" / "x_train.txt") != parts[0]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=80),
    st.sampled_from([(0.9, 0.1), (0.6, 0.2, 0.2)]),
    st.integers(0, 99),
)
def test_a_split_is_a_partition_that_keeps_groups_together(digests: list[int], fractions: tuple, seed: int) -> None:
    keys = np.array(digests, np.int64)
    groups = np.unique(keys, return_inverse=True)[1]
    parts = split_groups(groups, keys, fractions, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(keys)))
    for digest in set(digests):
        assert sum(digest in keys[part] for part in parts) == 1


def test_a_split_of_a_voc_folder_has_all_parts(shared: Path, tmp_path: Path) -> None:
    convert(str(shared / "data" / "bccd" / "BCCD"), str(tmp_path / "b.txt"), split=(0.9, 0.1), bad_boxes="drop")
    sizes = [len(read(str(tmp_path / f"b_{part}.txt"), "train")) for part in ("train", "val")]
    assert sum(sizes) == 364 and abs(sizes[1] - 36) <= 1
    convert(str(shared / "data" / "bccd" / "BCCD"), str(tmp_path / "val.txt"), source_split="val", bad_boxes="drop")
    assert len(read(str(tmp_path / "val.txt"), "train")) == 87


@pytest.mark.parametrize("split", [(1.0,), (0.9, 0.2), (0.9, 0.1, 0.0), (0.4, 0.3, 0.2, 0.1)])
def test_fractions_must_add_up_to_one(source: Path, tmp_path: Path, split: tuple) -> None:
    with refused(DataError, f"split={','.join(f'{fraction:g}' for fraction in split)}"):
        convert(str(source), str(tmp_path / "x.txt"), split=split)


@pytest.mark.parametrize("seed, limit", [(-1, "at least 0"), (2**63, "at most 9223372036854775807")])
def test_the_seed_has_a_range(source: Path, tmp_path: Path, seed: int, limit: str) -> None:
    with refused(ConfigError, f"seed={seed}", limit):
        convert(str(source), str(tmp_path / "x.txt"), seed=seed, split=(0.5, 0.5))
    convert(str(source), str(tmp_path / "x.txt"), seed=2**63 - 1, split=(0.5, 0.5))


def test_the_report_names_the_splits_that_are_left_out(source: Path, tmp_path: Path) -> None:
    def report(target: str, **options) -> str:
        return "\n".join(convert(str(source.parent), str(tmp_path / target), **options))

    assert "source_split=all" not in report("whole.txt")  # there is only one file
    for split in ("train", "val", "test"):
        (source.parent / f"{split}.json").write_text(source.read_text())
    source.unlink()
    told(report("one.txt"), "val, test", "source_split=all")
    assert not any("source_split=all" in report(f"{part}.txt", source_split=part) for part in ("train", "all"))
    assert "source_split=all" not in report("split.txt", split=(0.5, 0.5))


def test_a_third_path_is_refused_as_such(source: Path, tmp_path: Path) -> None:
    with refused(SystemExit, "y.txt"):
        main([str(source), str(tmp_path / "x.txt"), "y.txt"])
    with refused(SystemExit, "split=.5,.5"):
        main([str(source), str(tmp_path / "x.txt"), "split", ".5,.5"])


def test_no_file_is_overwritten(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    report = convert(str(source), str(folder / "x.txt"))
    told("\n".join(report), *folder.iterdir())  # all that was written
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with refused(DataError, folder / "x.txt"):
        convert(str(source), str(folder / "x.txt"))
    convert(str(source), str(folder / "y.txt"))  # the same classes.txt may stay
    (folder / "y.txt").unlink()
    before[folder / "classes.txt"] = b"other\n"
    (folder / "classes.txt").write_bytes(b"other\n")
    with refused(DataError, folder / "classes.txt"):
        convert(str(source), str(folder / "z.txt"))
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    with refused(ConfigError, folder / "x.txt" / "y.txt"):
        convert("none", str(folder / "x.txt" / "y.txt"))  # before the source is read
    with refused(DataError, folder / "z.csv", ".txt", ".json"):
        convert(str(source), str(folder / "z.csv"))


@pytest.mark.parametrize("name", ["classes.txt", "Labels.txt", "_classes.txt"])
def test_a_target_named_like_a_file_of_classes_is_refused(source: Path, tmp_path: Path, name: str) -> None:
    with refused(DataError, tmp_path / "out" / name):
        convert(str(source), str(tmp_path / "out" / name))


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux only")
def test_names_of_images_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    for level in (0, 90):
        paint(tmp_path / "set" / os.fsdecode(b"\xc3\xa8\xff%d.png" % level), level)
    (tmp_path / "set" / "classes.txt").write_text("cat\n")
    for image in tmp_path.glob("set/*.png"):
        image.with_suffix(".txt").write_text("0 .5 .5 .2 .2\n")
    for target in ("all.txt", "all.json"):
        with refused(DataError, r"\udcff0.png'", "UTF-8"):
            convert(str(tmp_path / "set"), str(tmp_path / target))
    with refused(DataError, r"\udcff0.png'", "UTF-8"):
        train_and_val(read(str(tmp_path / "set"), "train"), division_of(".5"), 0)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_class_names_lose_blanks_at_their_ends(source: Path, tmp_path: Path) -> None:
    """classes.txt cannot hold them, so that an evaluation of converted data would not know the class."""
    source.write_text(source.read_text().replace('"cat"', '" cat "'))
    convert(str(source), str(tmp_path / "out" / "all.txt"))
    assert read(str(source), "train").classes == ("cat", "big dog") and content(tmp_path / "out" / "all.txt")
    assert read(str(tmp_path / "out" / "all.txt"), "train", ReadOptions(classes=(" cat ", "big dog"))).classes == (
        "cat",
        "big dog",
    )
    shapes = [{"label": name, "points": [[1, 2], [9, 8]]} for name in ("cat ", "cat", "dog")]
    (tmp_path / "labelme").mkdir()
    (tmp_path / "labelme" / "one.json").write_text(json.dumps({"imagePath": "a.png", "shapes": shapes}))
    found = read(str(tmp_path / "labelme"), "train")
    assert found.classes == ("cat", "dog") and found.labels.tolist() == [0, 0, 1]


def test_a_file_without_boxes_beside_label_files_is_an_error(tmp_path: Path) -> None:
    """It would be read as a list of images, and the boxes of all classes would come back."""
    (tmp_path / "images").mkdir(), (tmp_path / "labels").mkdir()
    paint(tmp_path / "images" / "a.png", 50)
    (tmp_path / "labels" / "a.txt").write_text("1 .5 .5 .2 .2\n")
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    with refused(DataError, tmp_path / "labels" / "a.txt", "classes="):
        convert(str(tmp_path), str(tmp_path / "out" / "cats.txt"), classes="cat")
    assert not (tmp_path / "out").exists()
    assert "1 image, 1 box" in convert(str(tmp_path), str(tmp_path / "out" / "dogs.txt"), classes="dog")[-1]


def test_a_part_without_boxes_in_a_folder_with_xml_is_an_error(tmp_path: Path) -> None:
    for name, kind in (("a", "cat"), ("b", "dog")):
        paint(tmp_path / f"{name}.png", 50 + ord(kind[0]))
        box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox>"
        found = f"<annotation><filename>{name}.png</filename><object><name>{kind}</name>{box}</object></annotation>"
        (tmp_path / f"{name}.xml").write_text(found)
    with refused(DataError, "a.xml", "classes="):
        convert(str(tmp_path), str(tmp_path / "data.txt"), classes="cat", split=(0.5, 0.5))
    assert not list(tmp_path.glob("*.txt"))
    convert(str(tmp_path), str(tmp_path / "out" / "data.txt"), classes="cat", split=(0.5, 0.5))


def test_main_converts_and_ends_with_the_error(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    command = [str(source), str(tmp_path / "out.txt"), "split=.8,.2", "seed=1"]
    main(command)
    assert "out_train.txt: " in capsys.readouterr().out
    for words, named in (
        (command, [tmp_path / "out_train.txt"]),
        ([*command[:2], "splt=.8,.2"], ["splt=.8,.2", "split=.8,.2"]),
        (command[:1], ["python -m tools.convert FOLDER TARGET.txt"]),
    ):
        with refused(SystemExit, *named):
            main(words)


def test_relative_paths_start_at_the_real_folder_of_a_link(source: Path, tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er", target_is_directory=True)
    convert(str(source), str(tmp_path / "link" / "x.txt"))
    assert content(tmp_path / "link" / "x.txt") == content(source)


def test_what_the_messages_about_images_and_boxes_advise_reads_the_data(tmp_path: Path) -> None:
    """From the error of a conversion, by each constant that it names, to the data without what was wrong."""
    noise = np.random.default_rng(0).integers(0, 255, (40, 50, 3)).astype(np.uint8)
    whole = cv2.imencode(".jpg", noise)[1].tobytes()
    (tmp_path / "set").mkdir()
    for name, contents in (("a.jpg", whole), ("cut.jpg", whole[: len(whole) // 2])):
        (tmp_path / "set" / name).write_bytes(contents)
    (tmp_path / "set" / "classes.txt").write_text("cat\n")
    source = tmp_path / "set" / "train.txt"
    source.write_text("cut.jpg 1,1,9,9,0\na.jpg 1,1,9,9,0 5,5,5,9,0\n")
    with refused(DataError, "bad_images=skip", "bad_images=repair", "cut.jpg"):
        convert(str(source), str(tmp_path / "a.json"))
    before = len(read(str(source), "train"))
    for number, (word, images) in enumerate((("skip", before - 1), ("repair", before))):
        convert(str(source), str(tmp_path / f"{number}.json"), bad_images=word)
        assert len(read(str(tmp_path / f"{number}.json"), "train")) == images
    with refused(DataError, "bad_boxes=drop", "5,5,5,9"):
        convert(str(source), str(tmp_path / "a.txt"), bad_boxes="error")
    convert(str(source), str(tmp_path / "out" / "a.txt"), bad_boxes="drop")


def test_what_the_message_about_an_unknown_class_advises_reads_the_data(source: Path, tmp_path: Path) -> None:
    data = read(str(source), "train")
    (tmp_path / "few.txt").write_text(f"{data.classes[0]}\n")
    convert(str(source), str(tmp_path / "all.json"))
    with refused(DataError, data.classes[1], "python -m tools.convert", "classes="):
        read(str(tmp_path / "all.json"), "train", ReadOptions(classes=data.classes[:1]))
    convert(str(source), str(tmp_path / "few" / "dst.txt"), classes=data.classes[0])
    found = read(str(tmp_path / "few" / "dst.txt"), "train", ReadOptions(classes=data.classes[:1]))
    assert len(found.labels) == (data.labels == 0).sum() > 0
