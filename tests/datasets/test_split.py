"""A fraction for validation: same and similar images stay together, and the contents of the files alone decide."""

import json
import random
import shlex
from pathlib import Path

import cv2
import numpy as np
import pytest
from files import boxes, text
from refused import refused, told
from small import config, train_quietly

import evaluate
import predict
import train
from datasets import demo, sources
from datasets.classes import class_notes
from datasets.errors import DataError
from datasets.formats.options import options_of, read_options
from datasets.formats.read import read
from datasets.sources import read_train_and_val
from datasets.split import split_groups, train_and_val
from metrics.coco import COCO_METRICS, coco_metrics
from tools.check_report import check as check_data
from tools.convert import convert
from utils import checkpoint
from utils.config import ConfigError, is_weights, override

THIRD = sources.division_of(".3")


def scene(number: int) -> np.ndarray:
    return demo.draw_image(number)[0]


def write(folder: Path, images: dict[str, bytes]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in images.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    text(folder / "classes.txt", "cat\n")
    return str(text(folder / "all.txt", "".join(f"{name} 1.23456789,2,30,40,0\n" for name in images)))


def jpeg(image: np.ndarray, quality: int = 95) -> bytes:
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()


@pytest.fixture(scope="module")
def scenes() -> dict[str, bytes]:
    """Ten scenes as JPEG; the first two also as a copy, a smaller image and one of lower quality."""
    images = {f"{i}.jpg": jpeg(scene(i)) for i in range(10)}
    for i in range(2):
        height, width = scene(i).shape[:2]
        images[f"copy of {i}.jpg"] = images[f"{i}.jpg"]
        images[f"small {i}.jpg"] = jpeg(
            cv2.resize(scene(i), (width * 3 // 4, height * 3 // 4), None, 0, 0, cv2.INTER_AREA)
        )
        images[f"poor {i}.jpg"] = jpeg(scene(i), 60)
    return images


def test_the_split_depends_on_contents_and_seed_only(scenes: dict[str, bytes], tmp_path: Path) -> None:
    """Neither order, names nor place matter; same and nearly same images are in one part."""
    found = train_and_val(read(write(tmp_path / "a", scenes), "all"), THIRD, 0)
    names = [{Path(data.path(i)).name for i in range(len(data))} for data in found]
    assert sorted(map(len, names)) == sorted([len(scenes) - len(names[1]), len(names[1])]) and 2 <= len(names[1]) <= 8
    for part in names:
        for i in range(2):
            assert len({f"{i}.jpg", f"copy of {i}.jpg", f"small {i}.jpg", f"poor {i}.jpg"} & part) in (0, 4)
    shuffled = list(scenes)
    random.Random(1).shuffle(shuffled)
    renamed = {f"deep/{hash(name) % 10**9}.jpg": scenes[name] for name in shuffled}
    again = train_and_val(read(write(tmp_path / "b", renamed), "all"), THIRD, 0)
    contents = [{Path(data.path(i)).read_bytes() for i in range(len(data))} for data in again]
    assert contents == [{scenes[name] for name in part} for part in names]
    others = [train_and_val(read(str(tmp_path / "a/all.txt"), "all"), THIRD, seed)[1] for seed in range(1, 4)]
    assert any({Path(data.path(i)).name for i in range(len(data))} != names[1] for data in others)


def test_the_seed_of_a_run_does_not_change_its_split(scenes: dict[str, bytes], tmp_path: Path) -> None:
    """Runs with different seeds can be compared: they have the same validation images."""
    source = write(tmp_path, scenes)

    class HasRead(Exception):
        """Ends the run: its data are read."""

    def read_data(*arguments):
        raise HasRead(read_train_and_val(*arguments)[1])

    def val_names(**changes) -> set[str]:
        cfg = config(tmp_path, tmp_path / "runs", train=source, val=".3", **changes)
        with pytest.raises(HasRead) as stopped:
            train.main(cfg, parts=train.Parts(read_data=read_data))
        (data,) = stopped.value.args
        return {Path(data.path(i)).name for i in range(len(data))}

    before = {
        Path(data.path(i)).name for data in train_and_val(read(source, "all"), THIRD, 0)[1:] for i in range(len(data))
    }
    assert [val_names(seed=seed) for seed in range(4)] == [before] * 4


def test_new_images_move_few_others() -> None:
    digests = np.random.default_rng(0).integers(-(2**62), 2**62, 1000)
    before = set(split_groups(np.arange(900), digests[:900], (0.8, 0.2), 0)[1].tolist())
    after = set(split_groups(np.arange(1000), digests, (0.8, 0.2), 0)[1].tolist())
    assert len(before) == 180 and len(after) == 200 and len(before & after) > 150


def test_a_run_keeps_its_split_as_annotation_files(demo_images: Path, tmp_path: Path) -> None:
    """The checkpoint names val.txt of the run folder, on which evaluation gives the same mAP; resuming splits again."""
    source = str(
        text(
            demo_images / "all.txt",
            (demo_images / "train.txt").read_text() + "\n" + (demo_images / "val.txt").read_text(),
        )
    )
    cfg = config(demo_images, tmp_path / "runs", train=source, val=".3", epochs=1)
    folder, best, _ = train_quietly(cfg)
    written = [read(str(folder / f"{part}.txt"), "train") for part in ("train", "val")]
    assert [len(data) for data in written] == [10, 4] and written[0].classes == demo.CLASSES
    paths = [{row[0] for row in boxes(data)} for data in written]
    assert not paths[0] & paths[1] and len(paths[0] | paths[1]) == 14
    config_of_run = checkpoint.load(folder / "best.pt")["config"]
    assert config_of_run["val"] == str(folder / "val.txt") and config_of_run["train"] == source
    options = {"output": str(tmp_path / "out"), "workers": 0, "device": "cpu"}
    assert evaluate.main(evaluate.Config(checkpoint=str(folder / "best.pt"), **options))["AP"] == best
    lines = (folder / "val.txt").read_text()
    train.main(config(demo_images, tmp_path / "runs", train=source, val=".3", epochs=2, resume=str(folder)))
    assert (folder / "val.txt").read_text() == lines and len(list((tmp_path / "runs").iterdir())) == 1


# ---- COCO JSON


def coco_json(folder: Path, images: dict[str, bytes]) -> dict:
    """Writes images and coco.json, with areas as of masks, crowd regions and special ids. Returns its contents."""
    rng = np.random.default_rng(0)
    rows, annotations = [], []
    for number, (name, data) in enumerate(images.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        height, width = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).shape[:2]
        rows.append({"id": 9000 - 7 * number, "file_name": name, "width": width, "height": height})
        for box in rng.uniform(0, 1, (6, 4)) * [width / 2, height / 2, width / 2, height / 2] + [0, 0, 1, 1]:
            ids = {"id": 70 + len(annotations), "image_id": rows[-1]["id"], "category_id": int(rng.choice([3, 90, 5]))}
            area = float(box[2] * box[3] * rng.uniform(0.1, 1))
            annotations.append(ids | {"bbox": box.tolist(), "area": area, "iscrowd": int(len(annotations) % 9 == 0)})
    categories = [{"id": 90, "name": "cat"}, {"id": 3, "name": "dog"}, {"id": 5, "name": "owl"}]
    contents = {"images": rows, "annotations": annotations, "categories": categories}
    text(folder / "coco.json", json.dumps(contents))
    return contents


def twelve(ground_truth: dict, detections: list[dict]) -> dict[str, float]:
    found = coco_metrics(ground_truth, detections)
    return {name: found[name] for name in COCO_METRICS}


def test_a_split_of_coco_json_has_the_metrics_of_the_original(scenes: dict[str, bytes], tmp_path: Path) -> None:
    """Areas, crowd regions, image and category ids: all twelve metrics of random detections are equal."""
    original = coco_json(tmp_path / "set", scenes)
    parts = read_both(tmp_path / "set" / "coco.json", ".4")
    val = sources.val_source(".4", "", tmp_path / "run", parts, save=True)
    convert(str(tmp_path / "set" / "coco.json"), str(tmp_path / "out.json"), split=(0.6, 0.4))
    truths = [parts[1].coco(), json.loads(Path(val).read_text()), json.loads((tmp_path / "out_val.json").read_text())]
    ids = set(parts[1].image_ids.tolist())
    rows = {
        key: [row for row in original[key] if row[of] in ids]
        for key, of in (("images", "id"), ("annotations", "image_id"))
    }
    rng = np.random.default_rng(1)
    boxes = [(row, np.array(row["bbox"]) + rng.normal(0, 2, 4)) for row in rows["annotations"] for _ in range(3)]
    detections = [
        {
            "image_id": row["image_id"],
            "category_id": row["category_id"],
            "bbox": box.clip(0.5).tolist(),
            "score": rng.uniform(),
        }
        for row, box in boxes
    ]
    expected = twelve(original | rows, detections)
    assert len({*expected.values(), -1.0}) > 11  # small, medium and large boxes are in the data
    for truth in truths:
        assert {row["id"] for row in truth["images"]} == ids
        assert twelve(truth, detections) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("classes", [None, "owl,dog"])
def test_the_data_of_a_run_are_those_of_its_written_split(scenes: dict[str, bytes], tmp_path: Path, classes) -> None:
    """The evaluation of the file that the run has written reads the same bits, also with classes in another order."""
    coco_json(tmp_path / "set", scenes)
    parts = read_both(tmp_path / "set" / "coco.json", ".4", classes=classes)
    val = sources.val_source(".4", "", tmp_path / "run", parts, save=True)
    again = read(val, "val", options_of({"val": val, "classes": classes}, parts[1].classes))
    assert [again.path(i) for i in range(len(again))] == [parts[1].path(i) for i in range(len(again))]
    for name in ("classes", "category_ids", "image_ids", "starts", "boxes", "labels", "crowd", "areas"):
        assert np.array_equal(getattr(again, name), getattr(parts[1], name)), name
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"train.json", "val.json"}


def read_both(source: Path | str, val: str = sources.DEMO[1], classes=None, merge=None, log=lambda _: None, **options):
    return read_train_and_val(str(source), val, read_options(classes, merge, **options), log)


def test_training_data_without_any_box_are_refused_with_the_fix(scenes: dict[str, bytes], tmp_path: Path) -> None:
    """Such as label files of background images only."""
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "classes.txt").write_text("cat")
    for name, data in list(scenes.items())[:3]:
        (tmp_path / "labels" / name).write_bytes(data)
    (tmp_path / "labels" / "list.txt").write_text("\n".join(list(scenes)[:3]))
    with refused(
        DataError, tmp_path / "labels" / "list.txt", "images (3)", "name the file or the folder with the boxes"
    ):
        read_both(tmp_path / "labels" / "list.txt", val=str(tmp_path / "labels" / "list.txt"))


def test_train_alone_needs_a_part_for_validation(scenes: dict[str, bytes], tmp_path: Path) -> None:
    """A folder with train and valid; a folder without any split; the message tells both ways out."""
    source = write(tmp_path / "a", scenes)
    for alone in (source, tmp_path / "a"):
        with refused(ConfigError, f"train={alone}", "val=.2"):
            read_both(alone)
    Path(source).rename(tmp_path / "a" / "train.txt")
    with refused(ConfigError, tmp_path / "a", "val=.2"):
        read_both(tmp_path / "a")
    text(tmp_path / "a" / "train.txt", "0.jpg 1,2,3,4,0\n"), text(tmp_path / "a" / "val.txt", "1.jpg 1,2,3,4,0\n")
    train_data, val_data = read_both(tmp_path / "a")
    assert [Path(data.path(0)).name for data in (train_data, val_data)] == ["0.jpg", "1.jpg"]
    assert sources.val_source(sources.DEMO[1], str(tmp_path), tmp_path / "run", (train_data, val_data), True) == str(
        tmp_path
    )
    assert not (tmp_path / "run").exists()


def test_a_training_image_in_the_validation_split_is_named(scenes: dict[str, bytes], tmp_path: Path) -> None:
    """A split that has all training images is what the data file says, as train: images and val: images; it is not shared by
    mistake. Without a split, all images are validation images, too: that is another error."""
    names = list(scenes)
    write(tmp_path / "images", scenes)
    (tmp_path / "images/all.txt").unlink()
    for name in names:
        text((tmp_path / "images" / name).with_suffix(".txt"), "0 .5 .5 .2 .2\n")
    text(tmp_path / "some.txt", f"images/{names[1]}\nimages/{names[0]}\n")
    text(tmp_path / "others.txt", "".join(f"images/{name}\n" for name in names[1:]))
    yaml = text(tmp_path / "data.yaml", "train: others.txt\nval: some.txt\nnames: [cat]\n")
    with refused(ConfigError, yaml, "1 of 2", f"images/{names[1]}", "val=.2") as caught:
        read_both(yaml)
    report, _ = check_data(str(yaml), None, (64, 64))
    assert report["errors"] == [str(caught.value)]
    text(yaml, "train: images\nval: images\nnames: [cat]\n")
    train_data, val_data = read_both(yaml)
    assert len(train_data) == len(val_data) == len(scenes)
    assert check_data(str(yaml), None, (64, 64))[0]["errors"] == []


@pytest.mark.parametrize("val", ["0", "1", "20", "-.2", "nan"])
def test_a_fraction_outside_of_0_to_1_is_refused(val: str) -> None:
    with refused(ConfigError, f"val={val}", "val=.2"):
        sources.division_of(val)


def test_per_cent_are_refused_with_a_fraction() -> None:
    with refused(ConfigError, "val=20%", "val=.2"):
        sources.division_of("20%")


def test_images_that_no_fraction_divides_are_refused_with_the_reason(tmp_path: Path) -> None:
    """One image, or only copies of one: another fraction does not help."""
    one = {"0.jpg": jpeg(scene(0))}
    copies = one | {"1.jpg": one["0.jpg"], "2.jpg": jpeg(scene(0), 60)}
    for images, counts in ((one, "1 image"), (copies, "3 images")):
        with refused(DataError, "val=0.5", counts) as caught:
            read_both(write(tmp_path / str(len(images)), images), ".5")
        assert "enlarge" not in str(caught.value) and "add" in str(caught.value)


# ---- classes


def vehicles(folder: Path) -> Path:
    images = {"a.jpg": jpeg(scene(0)), "b.jpg": jpeg(scene(1))}
    write(folder, images)
    text(folder / "classes.txt", "cat\ncar\ntruck\ndog\nVan\nvan\n")
    text(folder / "train.txt", "a.jpg 1,2,3,4,0 1,2,3,5,1 1,2,3,6,2 1,2,3,7,3\n"), (folder / "all.txt").unlink()
    text(folder / "val.txt", "b.jpg 1,2,3,4,3 1,2,3,5,2 1,2,3,6,5\n")
    return folder


def test_names_select_and_order_classes(tmp_path: Path) -> None:
    notes: list[str] = []
    found = read_both(vehicles(tmp_path), classes="dog, cat", log=notes.append)
    assert [data.classes for data in found] == [("dog", "cat")] * 2
    assert [[row[2] for row in boxes(data)] for data in found] == [[["cat", "dog"]], [["dog"]]]
    assert any("boxes of other classes, left out: 2 (car 1, truck 1)" in note for note in notes)
    assert any("boxes of other classes, left out: 2 (truck 1, van 1)" in note for note in notes)
    with refused(DataError, "classes=", "'bird'", "train.txt", "cat, car"):
        read_both(tmp_path, classes="dog,bird")
    with refused(DataError, "'truck'", "(cat, car, dog, Van, van)"):
        read_both(tmp_path, classes="truck", merge="truck:car")
    with refused(DataError, "classes=dog,dog"):
        read_both(tmp_path, classes="dog,dog")
    text(tmp_path / "names.txt", "dog\ncat\n")
    expected = "train.txt:1", "'car'", "val.txt:1", "'truck'", "classes=CLASSES_TO_KEEP"
    with refused(DataError, *expected):  # a file lists all classes
        read_both(tmp_path, classes=str(tmp_path / "names.txt"))


def test_classes_are_merged_before_they_are_selected(tmp_path: Path) -> None:
    notes: list[str] = []
    found = read_both(vehicles(tmp_path), merge="truck:car,van:car,Van:car", classes="car", log=notes.append)
    assert [[row[2] for row in boxes(data)] for data in found] == [[["car", "car"]], [["car", "car"]]]
    (merged, _) = read_both(tmp_path, merge="truck:vehicle,car:vehicle")
    assert merged.classes == ("cat", "vehicle", "dog", "Van", "van")
    assert merged.labels.tolist() == [0, 1, 1, 2]
    for merge, named in (
        ("trck:car", ("'trck'", "train.txt")),
        ("truck", ("merge=truck", "merge=truck:car,van:car")),
        ("a:", ("merge=a:", "merge=truck:car,van:car")),
        ("truck:car,truck:van", ("merge=truck:car,truck:van", "'truck'")),
    ):
        with refused(DataError, *named):
            read_both(tmp_path, merge=merge)


@pytest.mark.parametrize("merge", ["car:truck,truck:bus", "car:truck,truck:car"])
def test_validation_data_that_a_run_has_written_are_not_merged_again(tmp_path: Path, merge: str) -> None:
    source = str(vehicles(tmp_path) / "train.txt")
    text(Path(source), "a.jpg 1,2,3,4,0 1,2,3,5,1 1,2,3,6,2\nb.jpg 1,2,3,4,0 1,2,3,5,1 1,2,3,6,2\n")
    parts = read_train_and_val(source, ".5", read_options(merge=merge), lambda note: None)
    val = sources.val_source(".5", source, tmp_path / "run", parts, save=True)
    again = read(val, "val", options_of({"val": val, "merge": merge}, parts[1].classes))
    assert again.classes == parts[1].classes and again.labels.tolist() == parts[1].labels.tolist()


def test_names_that_differ_in_case_or_blanks_are_noted(tmp_path: Path) -> None:
    notes: list[str] = []
    read_both(vehicles(tmp_path), log=notes.append)
    told(notes[-1], "'Van', 'van'", "merge=van:Van")
    (note,) = class_notes(
        ["Leaf Rust", "leaf rust", "dog", "Dog", "-", "--"]
    )  # can be pasted into a shell; not two signs
    assert "merge=leaf rust:Leaf Rust,Dog:dog" in shlex.split(note.rpartition(";")[2])


def test_problems_of_both_parts_are_reported_together(tmp_path: Path) -> None:
    vehicles(tmp_path)
    text(tmp_path / "train.txt", "a.jpg 1,2,3,4,9\nnone.jpg 1,2,3,4,0\n"), text(tmp_path / "val.txt", "a.jpg 1,2,3\n")
    with refused(DataError, "train.txt:1", "class 9", "val.txt:1", "'1,2,3'"):
        read_both(tmp_path)


def test_a_checkpoint_is_evaluated_with_the_classes_of_its_training(tmp_path: Path) -> None:
    vehicles(tmp_path)
    trained = {"classes": "dog", "merge": "truck:car", "bad_boxes": "drop"}
    data, notes = evaluate.open_data(str(tmp_path / "val.txt"), "val", ("dog",), trained)
    assert data.labels.tolist() == [0] and data.classes == ("dog",) and "other classes" in notes[0]


def test_scripts_take_words_without_a_name(tmp_path: Path) -> None:
    """`train.py data.yaml` is understood; `train.py data=` gets a message with the right line."""
    source = str(text(tmp_path / "data.yaml", "train: x\n"))
    assert train.from_command_line([source, "epochs=3"]) == train.Config(train=source, epochs=3)
    with refused(ConfigError, "train=VALUE"):
        train.from_command_line(["data="])
    words = {"checkpoint": is_weights, "source": predict.is_source}
    assert override(predict.Config(), ["best.pt", source], words) == predict.Config("best.pt", source)
    assert override(predict.Config(), ["rtsp://host/1"], words).source == "rtsp://host/1"
