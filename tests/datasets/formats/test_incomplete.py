"""What annotations tell about incomplete labels: annotated classes and ignore regions: several sets, LVIS, crowd, ignore."""

import json
from pathlib import Path

import numpy as np
import pytest
from files import boxes, paint, text
from refused import refused, told

from datasets.check_images import check_images
from datasets.errors import DataError
from datasets.formats.options import ReadOptions, read_options
from datasets.formats.read import read, sets_of
from datasets.sources import read_train_and_val
from datasets.split import Division, train_and_val, write
from metrics.coco import coco_metrics
from utils.config import ConfigError


def coco(path: Path, classes: dict[int, str], rows: list[list[tuple]], images: list[dict] | None = None) -> Path:
    """A COCO JSON next to its images; `rows`: category id and crowd of the boxes of each image."""
    extra = images or [{} for _ in rows]
    for i in range(len(rows)):
        paint(path.parent / f"{path.stem}_{i}.png", 40 + len(path.parent.name), 20 + i)
    contents = {
        "images": [
            {
                "id": i,
                "file_name": f"{path.stem}_{i}.png",
                "width": 40 + len(path.parent.name),
                "height": 20 + i,
                **extra[i],
            }
            for i in range(len(rows))
        ],
        "annotations": [
            {"id": 100 * i + k, "image_id": i, "category_id": category, "bbox": [2, 3, 10, 8], "iscrowd": crowd}
            for i, row in enumerate(rows)
            for k, (category, crowd) in enumerate(row)
        ],
        "categories": [{"id": i, "name": name} for i, name in classes.items()],
    }
    return text(path, contents)


@pytest.fixture
def two_sets(tmp_path: Path) -> tuple[Path, Path]:
    first = coco(tmp_path / "a" / "cats.json", {1: "cat", 2: "dog"}, [[(1, 0)], [(2, 0), (1, 0)], []])
    return first, coco(tmp_path / "bb" / "elks.json", {7: "dog", 9: "elk"}, [[(9, 0)], [(7, 0)]])


def masks(found) -> list[list[str]]:
    """The annotated classes of each image."""
    return [
        [name for name, is_annotated in zip(found.classes, row, strict=True) if is_annotated]
        for row in found.annotated_mask()
    ]


# ---- several sets


def test_a_class_that_a_set_does_not_have_is_not_annotated_in_its_images(two_sets):
    found = read(f"{two_sets[0]},{two_sets[1]}", "train")
    assert found.classes == ("cat", "dog", "elk")
    assert masks(found) == [["cat", "dog"]] * 3 + [["dog", "elk"]] * 2
    assert [names for _, _, names, _ in boxes(found)] == [["cat"], ["dog", "cat"], [], ["elk"], ["dog"]]
    (table,) = [note for note in found.notes if "\n" in note]
    for path, images, names in zip(two_sets, ("3", "2"), ("cat, dog", "dog, elk"), strict=True):
        assert any(str(path) in line and images in line.split() and f"({names})" in line for line in table.splitlines())


def test_a_class_of_a_shared_list_without_boxes_in_a_set_is_noted(two_sets, tmp_path):
    """Of teams with one list of classes, none annotated all of them."""
    other = coco(tmp_path / "c" / "elks.json", {1: "cat", 2: "dog", 3: "elk", 4: "fox"}, [[(3, 0)]])
    both = f"{two_sets[0]},{other}"
    (note,) = [note for note in read(both, "train").notes if "no boxes of" in note]
    told(note, str(other), "cat", "dog")
    assert "elk" not in note.partition("no boxes of")[2] and "fox" not in note
    for split, options in (("val", ReadOptions()), ("train", ReadOptions(all_labeled=True))):
        assert not any("no boxes of" in note for note in read(both, split, options).notes)


def test_a_class_that_is_annotated_nowhere_is_not_called_background(two_sets, tmp_path):
    images = [{"neg_category_ids": [2]}, {"neg_category_ids": []}]
    lvis = coco(tmp_path / "c" / "lvis.json", {1: "cat", 2: "dog", 3: "elk"}, [[(1, 0)], [(1, 0)]], images)
    (note,) = [note for note in read(f"{two_sets[1]},{lvis}", "train").notes if "no boxes of" in note]
    assert "dog" in note and "elk" not in note


def test_all_classes_are_annotated_in_all_labeled_sets(two_sets):
    found = read(f"{two_sets[0]},{two_sets[1]}", "train", read_options(all_labeled=True))
    assert found.annotated is None
    (table,) = [note for note in found.notes if "\n" in note]
    assert sum("cat, dog, elk" in line for line in table.splitlines()) == 2


def test_one_set_has_no_masks(two_sets):
    assert read(str(two_sets[0]), "train").annotated is None


def test_an_existing_path_with_a_comma_is_one_set(two_sets, tmp_path):
    folder = tmp_path / "a,bb"
    folder.mkdir()
    assert sets_of(str(folder)) == [str(folder)] and sets_of("a, b,c") == ["a", "b", "c"] and sets_of("a") == ["a"]


def test_selected_and_merged_classes_keep_the_annotated_classes(two_sets):
    both = f"{two_sets[0]},{two_sets[1]}"
    selected = read(both, "train", ReadOptions(classes=("elk", "cat"), select=True))
    assert masks(selected) == [["cat"]] * 3 + [["elk"]] * 2
    merged = read(both, "train", ReadOptions(merge="elk:cat"))
    assert merged.classes == ("cat", "dog") and merged.annotated is None  # another word for the same
    val = read(both, "val", ReadOptions(classes=("elk", "dog", "cat", "fox")))
    assert masks(val) == [["dog", "cat"]] * 3 + [["elk", "dog"]] * 2


def test_names_of_different_sets_that_differ_in_case_are_an_error_with_the_merge(two_sets, tmp_path):
    other = coco(tmp_path / "c" / "more.json", {1: "Cat"}, [[(1, 0)]])
    with refused(DataError, "'cat'", "'Cat'", "merge=Cat:cat"):
        read(f"{two_sets[0]},{other}", "train")
    found = read(f"{two_sets[0]},{other}", "train", ReadOptions(merge="Cat:cat"))
    assert masks(found) == [["cat", "dog"]] * 3 + [["cat"]]


def test_a_set_of_numbers_next_to_a_set_of_names_is_an_error(two_sets, tmp_path):
    paint(tmp_path / "n" / "1.png")
    file = text(tmp_path / "n" / "train.txt", "1.png 1,2,9,9,0\n")
    with refused(DataError, str(file), "classes.txt"):
        read(f"{two_sets[0]},{file}", "train")
    text(tmp_path / "n" / "classes.txt", "dog\n")
    assert masks(read(f"{two_sets[0]},{file}", "train"))[-1] == ["dog"]


def test_sets_of_numbers_do_not_tell_the_annotated_classes(tmp_path):
    files = []
    for name, labels in (("one", (0, 1)), ("two", (2, 0))):
        paint(tmp_path / name / "1.png", 40, 20 + labels[0])
        rows = " ".join(f"1,2,9,9,{label}" for label in labels)
        files.append(str(text(tmp_path / name / "train.txt", f"1.png {rows}\n")))
    with refused(DataError, files[0], "classes.txt", "all_labeled=true"):
        read(",".join(files), "train")
    for options in (ReadOptions(all_labeled=True), ReadOptions(classes=("cat", "dog", "elk"))):
        assert read(",".join(files), "train", options).annotated is None
    with refused(DataError, files[0], "classes.txt"):  # classes=cat,dog,elk selects, and names no numbers
        read(",".join(files), "train", ReadOptions(classes=("cat", "dog", "elk"), select=True))
    with refused(DataError, files[0], "classes.txt"):  # the validation data are read with the classes without dog
        read(",".join(files), "train", ReadOptions(classes=("cat", "dog", "elk"), ignore_regions=("dog",)))


def test_an_image_of_two_sets_is_one_image_in_which_the_classes_of_both_are_annotated(tmp_path):
    first = coco(tmp_path / "cats.json", {1: "cat", 2: "fox"}, [[(1, 0)]])
    contents = json.loads(first.read_text(encoding="utf-8"))
    contents["categories"][0]["name"] = "dog"
    contents["annotations"][0]["bbox"] = [1, 1, 5, 5]
    second = text(tmp_path / "dogs.json", contents)
    found = read(f"{first},{second}", "train")
    assert len(found) == 1 and found.annotated is None and boxes(found)[0][2] == ["cat", "dog"]


def test_an_ignore_region_of_one_of_two_sets_is_one(tmp_path):
    first = coco(tmp_path / "cats.json", {1: "cat"}, [[(1, 1), (1, 0)]])
    contents = json.loads(first.read_text(encoding="utf-8"))
    contents["annotations"][0]["open"] = 1
    second = text(tmp_path / "open.json", contents)
    for both in (f"{first},{second}", f"{second},{first}"):
        found = read(both, "train")
        assert len(found) == 1 and (found.crowd & found.is_ignored).any() and not found.crowd.all()


def test_an_image_is_one_image_under_each_path_of_its_folder(tmp_path, monkeypatch):
    """Relative, absolute, and through a link to the folder."""
    first = coco(tmp_path / "a" / "cats.json", {1: "cat"}, [[(1, 0)]])
    text(first.with_name("dogs.json"), first.read_text(encoding="utf-8").replace('"cat"', '"dog"'))
    (tmp_path / "link").symlink_to(tmp_path / "a", target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    for second in ("a/dogs.json", "link/dogs.json"):
        found = read(f"{first},{second}", "train")
        assert len(found) == 1 and found.annotated is None and boxes(found)[0][2] == ["cat", "dog"]


def test_validation_images_split_off_several_sets_keep_their_masks_in_the_written_file(two_sets, tmp_path):
    data, _ = check_images(read(f"{two_sets[0]},{two_sets[1]}", "train"))
    train, val = train_and_val(data, Division("val=.4", (0.6, 0.4), 1), 0)
    by_name = dict(zip((data.path(i) for i in range(5)), masks(data), strict=True))
    for part in (train, val):
        assert masks(part) == [by_name[part.path(i)] for i in range(len(part))]
    write(tmp_path, {"val": val})
    again = read(str(tmp_path / "val.json"), "val", ReadOptions(classes=data.classes))
    assert masks(again) == masks(val) and again.classes == data.classes


def test_the_areas_of_one_set_survive_a_split_also_if_another_one_is_first(two_sets, tmp_path):
    contents = json.loads(two_sets[1].read_text(encoding="utf-8"))
    for one in contents["annotations"]:
        one["area"] = 7
    text(two_sets[1], contents)
    paint(tmp_path / "c" / "1.png", 77, 50)
    file = text(tmp_path / "c" / "train.txt", "1.png 1,2,9,9,0 2,2,8,8,1\n")
    text(tmp_path / "c" / "classes.txt", "dog\nelk\n")
    data, _ = check_images(read(f"{file},{two_sets[1]}", "train"))
    assert data.annotated is None
    parts = train_and_val(data, Division("val=.4", (0.6, 0.4), 1), 0)
    assert sorted(area for part in parts for area in part.areas) == [7, 7, 36, 56]


def test_the_splits_of_several_sets_are_found_as_those_of_one(tmp_path):
    for name, label in (("one", "cat"), ("two", "elk")):
        for part in ("train", "val"):
            coco(tmp_path / name / f"{part}.json", {1: label}, [[(1, 0)]])
    both = f"{tmp_path / 'one'},{tmp_path / 'two'}"
    train, val = read_train_and_val(both, "data/demo/val.txt", ReadOptions(), lambda _: None)
    assert masks(train) == masks(val) == [["cat"], ["elk"]] and train.classes == val.classes
    assert not {train.path(i) for i in range(2)} & {val.path(i) for i in range(2)}
    with refused(ConfigError, "val="):
        files = ",".join(str(tmp_path / name / "train.json") for name in ("one", "two"))
        read_train_and_val(files, "data/demo/val.txt", ReadOptions(), lambda _: None)


def test_a_split_that_one_of_several_sets_trains_on_is_used(tmp_path):
    for name, parts in (("one", ("train", "val", "test")), ("two", ("train",))):
        for part in parts:
            coco(tmp_path / name / f"{part}.json", {1: "cat"}, [[(1, 0)]])
    notes: list[str] = []
    one, two = tmp_path / "one", tmp_path / "two"
    read_train_and_val(f"{one},{two}", str(one), ReadOptions(), notes.append)
    assert not any("train" in note.rpartition(": ")[2].split(", ") for note in notes)


def test_a_class_without_boxes_in_the_validation_split_of_a_set_is_annotated_there(tmp_path):
    """LabelMe has no list of classes: those of a set are the classes of its boxes, also of its training split."""
    for one, part, names in (("a", "train", "cd"), ("a", "val", "c"), ("b", "train", "de"), ("b", "val", "e")):
        for name in names:
            paint(tmp_path / one / part / f"{name}.png", 40 + ord(one), 20 + ord(name))
            shape = {"label": name, "points": [[1, 2], [9, 8]], "shape_type": "rectangle"}
            text(tmp_path / one / part / f"{name}.json", {"imagePath": f"{name}.png", "shapes": [shape]})
    both = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    train, val = read_train_and_val(both, "data/demo/val.txt", ReadOptions(), lambda _: None)
    assert masks(train) == [["c", "d"]] * 2 + [["d", "e"]] * 2 and masks(val) == [["c", "d"], ["d", "e"]]
    assert [names for _, _, names, _ in boxes(val)] == [["c"], ["e"]]


# ---- LVIS


def test_lvis_tells_the_annotated_classes(tmp_path):
    images = [{"neg_category_ids": [2], "not_exhaustive_category_ids": [1]}, {"neg_category_ids": []}, {}]
    file = coco(tmp_path / "lvis.json", {1: "cat", 2: "dog", 3: "elk"}, [[(1, 0)], [(3, 0)], [(1, 0)]], images)
    found = read(str(file), "train")
    assert masks(found) == [["cat", "dog"], ["elk"], ["cat", "dog", "elk"]]
    assert (
        found.is_ignored.tolist() == [False, True, False, False] and found.crowd.tolist() == found.is_ignored.tolist()
    )
    assert found.labels[1] == 0 and not len(found.ignore_regions_of(0))  # for the evaluation only
    assert read(str(file), "train", read_options(all_labeled=True)).annotated is None
    other = read(str(file), "val", ReadOptions(classes=("elk", "dog", "cat", "fox")))
    assert masks(other) == [["dog", "cat"], ["elk"], ["elk", "dog", "cat", "fox"]]


def test_detections_of_a_class_that_is_not_exhaustive_count_only_where_they_are_right(tmp_path):
    """As in the package lvis, wherever they are: those that reached out of the image were false."""
    images = [{"not_exhaustive_category_ids": [1]}, {}]
    file = coco(tmp_path / "lvis.json", {1: "cat", 2: "dog"}, [[(1, 0), (2, 0)], [(1, 0), (2, 0)]], images)
    data, notes = check_images(read(str(file), "val"))
    assert notes == []
    right = [{"image_id": i, "category_id": c, "bbox": [2, 3, 10, 8], "score": 0.5} for i in (0, 1) for c in (1, 2)]
    extra = [[-5, -5, 8, 8], [30, 10, 60, 90], [-300, 4, 20, 9], [1e4, 1e4, 50, 50], [-1e3, -1e3, 3e3, 3e3]]
    others = [{"image_id": 0, "category_id": 1, "bbox": box, "score": 0.9} for box in extra]
    found = coco_metrics(data.coco(), right + others)
    assert found["AP"] == found["AR100"] == found["precision"] == 1 and found["VOC_AP50"] == pytest.approx(1)
    for change in ({"image_id": 1}, {"category_id": 2}):
        assert coco_metrics(data.coco(), right + [one | change for one in others])["AP"] < 1


def test_masks_and_ignore_regions_survive_the_round_trip_as_coco_json(tmp_path):
    images = [{"neg_category_ids": [2], "not_exhaustive_category_ids": [1]}, {"neg_category_ids": []}, {}]
    file = coco(tmp_path / "lvis.json", {1: "cat", 2: "dog", 3: "elk"}, [[(1, 0), (1, 1)], [(3, 1)], []], images)
    data, _ = check_images(read(str(file), "train"))
    (tmp_path / "out").mkdir()
    write(tmp_path / "out", {"train": data})
    again, _ = check_images(read(str(tmp_path / "out" / "train.json"), "train"))
    assert masks(again) == masks(data) and boxes(again) == boxes(data)
    assert again.is_ignored.tolist() == data.is_ignored.tolist() and again.digest() == data.digest()
    contents = json.loads((tmp_path / "out" / "train.json").read_text(encoding="utf-8"))
    for image in contents["images"]:  # as in LVIS, these classes have no box
        present = {one["category_id"] for one in contents["annotations"] if one["image_id"] == image["id"]}
        assert not present & set(image["neg_category_ids"])


# ---- ignore regions


def test_crowd_regions_and_difficult_boxes_are_ignore_regions_on_request(tmp_path):
    file = coco(tmp_path / "c.json", {1: "cat", 2: "dog"}, [[(1, 1), (2, 0)], []])
    assert read(str(file), "train").is_ignored is None
    found = read(str(file), "train", read_options(ignore_regions="crowd"))
    assert found.is_ignored.tolist() == [True, False]
    assert found.ignore_regions_of(0).tolist() == [found.boxes[0].tolist()] and not len(found.ignore_regions_of(1))


def test_other_ignore_regions_leave_crowd_regions_as_they_are(tmp_path):
    file = coco(tmp_path / "c.json", {1: "cat", 2: "ignore"}, [[(1, 1), (2, 0), (1, 0)]])
    found = read(str(file), "train", read_options(ignore_regions="ignore"))
    assert found.is_ignored.tolist() == [False, True, False] and found.crowd.tolist() == [True, True, False]


def test_an_ignore_region_of_a_json_needs_no_crowd_flag(tmp_path):
    file = coco(tmp_path / "c.json", {1: "cat"}, [[(1, 0), (1, 0)]])
    contents = json.loads(file.read_text(encoding="utf-8"))
    contents["annotations"][0]["open"] = 1
    found = read(str(text(file, contents)), "train")
    assert found.is_ignored.tolist() == found.crowd.tolist() == [True, False]


def test_boxes_of_a_class_become_ignore_regions_for_all_others(tmp_path):
    file = coco(tmp_path / "c.json", {1: "cat", 2: "ignore", 3: "dog"}, [[(2, 0), (3, 0)], [(1, 0)], [(2, 0), (2, 0)]])
    found = read(str(file), "train", read_options(ignore_regions="ignore"))
    assert found.classes == ("cat", "dog") and found.boxes_per_class().tolist() == [1, 1]
    assert [len(found.ignore_regions_of(i)) for i in range(3)] == [1, 0, 1]  # two at one place
    assert np.diff(found.starts).tolist() == [3, 1, 4] and found.crowd.sum() == 6
    val = read(str(file), "val", ReadOptions(classes=("dog", "cat"), ignore_regions=("ignore",)))
    assert len(val.ignore_regions_of(2)) == 1 and sorted(val.labels[-4:].tolist()) == [0, 0, 1, 1]
    with refused(DataError, "'none'", "ignore_regions="):
        read(str(file), "train", read_options(ignore_regions="crowd,none"))


def test_regions_of_one_set_count_for_the_classes_of_all_sets(two_sets, tmp_path):
    other = coco(tmp_path / "c" / "more.json", {1: "cat", 2: "ignore"}, [[(1, 0), (2, 0)]])
    both = f"{two_sets[1]},{other}"
    labeled = read(both, "train", ReadOptions(all_labeled=True, ignore_regions=("ignore",)))
    assert labeled.classes == ("dog", "elk", "cat") and labeled.annotated is None
    assert sorted(labeled.labels[labeled.is_ignored].tolist()) == [0, 1, 2]
    found = read(both, "train", ReadOptions(ignore_regions=("crowd", "ignore")))
    assert masks(found) == [["dog", "elk"]] * 2 + [["cat"]] and found.labels[found.is_ignored].tolist() == [2]
    assert not any("ignore" in line for note in found.notes for line in note.splitlines()[1:])
    with refused(DataError, "'none'", "ignore_regions="):
        read(both, "train", read_options(ignore_regions="ignore,none"))
    nothing = read(both, "train", read_options(ignore_regions="dog,elk,cat,ignore"))
    assert nothing.classes == () and not len(nothing.labels)


def test_ignore_regions_are_no_boxes_of_a_training_step(tmp_path):
    """Its memory is measured with the most boxes of an image; a region is there once for each class."""
    classes = {1: "ignore"} | {i: f"class {i}" for i in range(2, 60)}
    file = coco(tmp_path / "c.json", classes, [[(1, 0), (1, 0), (2, 0)], [(2, 0), (3, 0)], [(2, 1)] * 9])
    assert read(str(file), "train", read_options(ignore_regions="ignore")).max_boxes == 2


@pytest.mark.parametrize("all_labeled", [True, False])
def test_the_class_ignore_of_labelme_is_an_ignore_region_in_any_format(two_sets, tmp_path, all_labeled):
    shapes = [{"label": name, "points": [[2, 3], [9, 8]], "shape_type": "rectangle"} for name in ("fox", "__ignore__")]
    paint(tmp_path / "me" / "a.png"), text(tmp_path / "me" / "a.json", {"imagePath": "a.png", "shapes": shapes})
    found = read(str(tmp_path / "me"), "train")
    assert found.classes == ("fox",) and found.crowd.tolist() == found.is_ignored.tolist() == [False, True]
    val = read(str(tmp_path / "me"), "val", ReadOptions(classes=("cat", "fox")))
    assert val.classes == ("cat", "fox") and sorted(val.labels[val.is_ignored].tolist()) == [0, 1]
    both = read(f"{two_sets[1]},{tmp_path / 'me'}", "train", ReadOptions(all_labeled=all_labeled))
    assert both.classes == ("dog", "elk", "fox") and both.is_ignored.sum() == (3 if all_labeled else 1)
    file = coco(tmp_path / "c.json", {1: "cat", 2: "__ignore__"}, [[(2, 0), (1, 0)]])
    assert read(str(file), "train", ReadOptions(classes=("cat",), select=True)).is_ignored.tolist() == [True, False]


def test_merged_classes_are_ignored_together(tmp_path):
    file = coco(tmp_path / "c.json", {1: "cat", 2: "ignore", 3: "Ignore"}, [[(2, 0)], [(3, 0), (1, 0)]])
    found = read(str(file), "train", read_options(ignore_regions="ignore", merge="Ignore:ignore"))
    assert found.classes == ("cat",) and found.is_ignored.tolist() == [True, True, False]


def test_ignore_regions_are_for_classes_that_only_the_list_of_classes_has_too(tmp_path):
    file = coco(tmp_path / "c.json", {1: "cat", 2: "ignore"}, [[(2, 0), (1, 0)]])
    found = read(str(file), "train", ReadOptions(classes=("dog", "cat"), ignore_regions=("ignore",)))
    assert found.classes == ("dog", "cat") and sorted(found.labels[found.is_ignored].tolist()) == [0, 1]


def test_an_ignore_region_does_not_tell_that_a_class_is_annotated(tmp_path):
    """Written as COCO JSON and read again, the boxes of a region are boxes of its classes."""
    classes = {1: "cat", 2: "dog", 3: "ignore"}
    file = coco(tmp_path / "lvis.json", classes, [[(1, 0), (3, 0)], [(2, 0)]], [{"neg_category_ids": []}, {}])
    data, _ = check_images(read(str(file), "train", read_options(ignore_regions="ignore")))
    assert masks(data) == [["cat"], ["cat", "dog"]] and data.labels[data.is_ignored].tolist() == [0]
    write(tmp_path, {"train": data})
    assert masks(read(str(tmp_path / "train.json"), "train")) == masks(data)


# ---- Open Images


def test_open_images_tells_which_classes_were_verified(tmp_path: Path) -> None:
    """A class is known where the image has boxes of it, or is verified to have none."""
    for name in ("a", "b", "c"):
        paint(tmp_path / f"{name}.png", 40, 20 + ord(name))
    header = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax"
    rows = [f"{image},xclick,/m/{name},1,.1,.5,.2,.8" for image, name in ("a1", "b2", "b1", "c3")]
    table = text(tmp_path / "train-bbox.csv", "\n".join([header, *rows]) + "\n")
    text(tmp_path / "class-descriptions-boxable.csv", "/m/1,cat\n/m/2,dog\n/m/3,elk\n")
    assert read(str(table), "train").annotated is None
    verified = ["a,verification,/m/2,0", "a,verification,/m/3,1", "b,crowdsource-verification,/m/3,0", "z,x,/m/1,0"]
    verified.append("c,verification,/m/99,0")  # a class without boxes
    labels = text(
        tmp_path / "train-human-imagelabels-boxable.csv",
        "\n".join(["ImageID,Source,LabelName,Confidence", *verified]) + "\n",
    )
    found = read(str(table), "train")
    assert masks(found) == [["cat", "dog"], ["cat", "dog", "elk"], ["elk"]]
    assert any(labels.name in note for note in found.notes)
    assert read(str(table), "train", read_options(all_labeled=True)).annotated is None
    header = "ImageID,Source,LabelName,Confidence"
    wrong = {"": 1, "ImageID,LabelName\na,/m/2\n": 1, f"{header}\na,x,/m/2\n": 2, f"{header}\na,x,/m/2,no\n": 2}
    for contents, line in wrong.items():
        text(labels, contents)
        with refused(DataError, f"{labels}:{line}"):
            read(str(table), "train")
    text(labels, f"{header}\nz,x,/m/1,0\na.jpg,x,/m/2,0\n")  # of another split: no class would be background anywhere
    with refused(DataError, str(table), labels.name):
        read(str(table), "train")
