"""The data check finds every kind of problem in one pass, and its exit status says whether training would start."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from refused import mentions, refused, told

from datasets.box_sizes import advice
from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.sources import DEMO, read_train_and_val
from tools.check import check, main, text_of
from utils.config import ConfigError


def paint(path: Path, level: int, width: int = 200, height: int = 100, orientation: int = 1) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (width, height), (level, 2 * level, 90)).save(path, exif=exif)


@pytest.fixture
def data(tmp_path: Path) -> tuple[str, str]:
    for i in range(5):
        paint(tmp_path / f"{i}.png", 10 * i)
    paint(tmp_path / "same.png", 10)
    paint(tmp_path / "turned.png", 99, orientation=6)
    paint(tmp_path / "new.png", 77)
    (tmp_path / "cut.png").write_bytes((tmp_path / "0.png").read_bytes()[:60])
    (tmp_path / "classes.txt").write_text("cat\ndog\nbird\n")
    lines = [
        "0.png 10,10,20,20,0 10,10,20,20,0 10,10,20,20,0,1",  # twice, and a crowd region
        "1.png 0,0,200,100,1",  # covers everything
        "same.png",
        "2.png 0,10,180,15,0",  # thin
        "3.png -20,10,60,60,0 5,5,5,9,0",  # clipped; no area
        "turned.png 10,150,60,190,0",
        "cut.png 1,1,9,9,0",
        "missing.png 1,1,9,9,0",
    ]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "val.txt").write_text("2.png 1,1,90,90,0\nnew.png 1,1,50,50,1\n")
    return str(tmp_path / "train.txt"), str(tmp_path / "val.txt")


@pytest.mark.parametrize("names, sided", [("arrow left\narrow right\nstop", True), ("cat\ndog\nbird", False)])
def test_classes_that_a_training_does_not_flip_are_named(data: tuple[str, str], names: str, sided: bool) -> None:
    Path(data[0]).with_name("classes.txt").write_text(names)
    text = "\n".join(check(data[0], None, (416, 416))[0]["train"]["notes"])
    assert mentions(text, "flip=0") == mentions(text, "arrow left' and 'arrow right") == sided


def test_what_the_check_advises_for_a_training_can_be_checked(data: tuple[str, str], tmp_path: Path, capsys) -> None:
    """merge= and bad_images= were for train.py only; the page is named as it was given."""
    Path(data[0]).with_name("classes.txt").write_text("cat\nCat\nbird\n")
    texts = []
    for options in ([], ["merge=Cat:cat", "bad_images=skip", f"page={tmp_path / 'own.html'}"]):
        with pytest.raises(SystemExit) as ended:
            main([*data[:1], *options])
        texts.append(capsys.readouterr().out)
    told(texts[0], "merge=Cat:cat", "bad_images=skip")
    assert ended.value.code == 0 and "merge=" not in texts[1] and "check.html" not in texts[1]


def test_crowd_regions_alone_are_nothing_to_learn(tmp_path: Path) -> None:
    paint(tmp_path / "0.png", 10)
    paint(tmp_path / "1.png", 20)
    (tmp_path / "classes.txt").write_text("cat\n")
    (tmp_path / "train.txt").write_text("0.png 10,10,20,20,0,1\n")
    (tmp_path / "val.txt").write_text("1.png 10,10,20,20,0\n")
    train, val = str(tmp_path / "train.txt"), str(tmp_path / "val.txt")
    assert check(train, val, (416, 416))[0]["errors"]
    with refused(DataError, train, "1 crowd region"):
        read_train_and_val(train, val, ReadOptions(), print)


@pytest.fixture
def splits(tmp_path: Path) -> Path:
    """A folder with the splits train, val and test, of an image each."""
    (tmp_path / "classes.txt").write_text("cat\n")
    for level, split in enumerate(("train", "val", "test")):
        paint(tmp_path / f"{level}.png", 10 * level)
        (tmp_path / f"{split}.txt").write_text(f"{level}.png 1,1,9,9,0\n")
    return tmp_path


def test_the_validation_split_of_a_folder_is_checked_and_other_splits_are_named(splits: Path) -> None:
    for val in (None, str(splits)):
        report, _ = check(str(splits), val)
        assert [report[split]["images"] for split in ("train", "val", "test")] == [1, 1, 1]
        assert [bool(report[split]["advice"]) for split in ("train", "val", "test")] == [True, False, False]
        (note,) = (note for note in report["train"]["notes"] if "splits" in note)
        assert note.startswith(str(splits)) and note.endswith(": test")
    report, parts = check(str(splits), ".5")
    assert list(parts) == ["train", "test"]
    told("".join(report["damage"]), "val, test")  # red: validation images were forgotten


def test_copies_in_test_are_found_and_errors_of_test_are_warnings(splits: Path) -> None:
    """A training does not read the test split, but it would measure too much on copies."""
    (splits / "test.txt").write_text("0.png 1,1,9,9,0\n1.png 1,1,9,9,0\n2.png 1,1,9,9,0\ngone.png 1,1,9,9,0\n")
    report, _ = check(str(splits))
    assert [leak["splits"] for leak in report["leaks"]] == [["train", "test"], ["val", "test"]]
    assert report["errors"] == [] and any("1 of 4" in warning for warning in report["warnings"])
    (splits / "test.txt").write_text("0.png 1,1,9,9,7\n")
    report, parts = check(str(splits))
    assert list(parts) == ["train", "val"] and report["errors"] == []
    assert any("test.txt:1" in warning for warning in report["warnings"])


def test_boxes_below_two_pixels_are_a_problem(tmp_path: Path) -> None:
    paint(tmp_path / "a.png", 1)
    (tmp_path / "a.txt").write_text("a.png 1,1,2.9,20,0 1,1,20,2,0 1,1,3,3,0\n")
    report, _ = check(str(tmp_path / "a.txt"))
    boxes = [place.rpartition(" ")[2] for place in report["train"]["suspicious"]["tiny"]]
    assert boxes == ["1,1,2.9,20", "1,1,20,2"]
    assert re.search("below 2 pixels.*: 2$", text_of(report), re.MULTILINE)


def test_the_console_prints_ten_findings_with_three_places_each(tmp_path: Path) -> None:
    paint(tmp_path / "a.png", 1)
    (tmp_path / "classes.txt").write_text("".join(f"class {i}\n" for i in range(50)))
    boxes = "".join(f" {i},0,{i + 1},90,0 {i},0,{i + 1},90,0 {-i - 1},0,30,30,{i % 50}" for i in range(60))
    (tmp_path / "train.txt").write_text(f"a.png{boxes}\n" * 20)
    report, _ = check(str(tmp_path / "train.txt"))
    report["warnings"] += [f"warning {i}" for i in range(20)]
    text = text_of(report)
    assert len(text.splitlines()) < 75 and "other findings" in text
    assert str(tmp_path) not in text.partition(f"train: {tmp_path}")[2].partition("\n")[2]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("gone.png 1,1,9,9,0", "gone.png"),
        ("1.png 1,1,9,9,7", "val.txt:1"),
        ("0.png 1,1,9,9,0\n1.png 1,1,9,9,0", "val="),
    ],
)
def test_what_a_training_refuses_in_the_validation_split_of_a_folder_is_an_error(
    splits: Path, line: str, named: str, capsys: pytest.CaptureFixture
) -> None:
    (splits / "val.txt").write_text(f"{line}\n")
    with pytest.raises(ValueError, match=named):
        read_train_and_val(str(splits), DEMO[1], ReadOptions(bad_boxes="drop"), print)
    with pytest.raises(SystemExit) as end:
        main([str(splits)])
    printed = capsys.readouterr()
    assert end.value.code != 0 and named in f"{printed.out}{end.value.code}"


def test_every_problem_is_found_in_one_pass(data: tuple[str, str]) -> None:
    report, parts = check(*data, size=(50, 100))
    train = report["train"]
    assert (train["images"], train["backgrounds"], train["boxes"], train["crowd"]) == (8, 1, 6, 1)
    assert train["classes"] == {"cat": 5, "dog": 1, "bird": 0}
    assert (
        len(train["unreadable"]) == 2
        and "cut.png" in train["unreadable"][0]
        and "missing.png" in train["unreadable"][1]
    )
    assert train["turned_by_exif"] == 1 and train["clipped"] == 1
    assert [[Path(path).name for path in group] for group in train["copies"]] == [["1.png", "same.png"]]
    # at half the size, a quarter for the turned one: 5, 5, 100 x 50, 90 x 2.5, 30 x 25, 12.5 x 10
    assert train["smaller_than"] == {"8": 2, "16": 4, "32": 5}
    suspicious = {kind: [place.rpartition("/")[2] for place in places] for kind, places in train["suspicious"].items()}
    assert suspicious == {
        "covering": ["train.txt:2: 0,0,200,100"],
        "thin": ["train.txt:4: 0,10,180,15"],
        "tiny": [],
        "twice": ["train.txt:1: 10,10,20,20"],
        "outside": ["train.txt:5: -20,10,60,60"],
    }
    (leak,) = report["leaks"]
    assert leak["splits"] == ["train", "val"]
    told(leak["text"], "1 of 2 images", "50 %")
    (group,) = leak["groups"]
    assert {split: [Path(path).name for path in paths] for split, paths in group.items()} == {
        "train": ["2.png"],
        "val": ["2.png"],
    }
    assert len(report["errors"]) == 1 and "2 of 8" in report["errors"][0]
    assert any(mentions(note, "left out: 1") and "train.txt:5" in note for note in train["notes"])
    told(" ".join(report["warnings"]), "bird")
    assert len(parts["train"].good) == 6 and json.loads(json.dumps(report)) == report


def test_imbalanced_classes_are_a_warning_and_data_without_boxes_an_error(tmp_path: Path) -> None:
    paint(tmp_path / "a.png", 1)
    rows = " ".join(f"{i},0,{i + 9},9,0" for i in range(150))
    (tmp_path / "a.txt").write_text(f"a.png {rows} 1,1,30,30,1\n")
    report, _ = check(str(tmp_path / "a.txt"))
    told(" ".join(report["warnings"]), "150 times")
    (tmp_path / "b.txt").write_text("a.png\n")
    assert check(str(tmp_path / "b.txt"))[0]["errors"] and not report["errors"]
    report, _ = check(str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    assert not report["errors"] and any("no boxes" in text for text in report["damage"])  # a run only warns, too


@pytest.mark.parametrize(
    "side, size, limit, larger, tiles",
    [
        (9.5, "416", "below 12", "640,640", False),
        (5, "384,640", "below 12", "768,1280", True),
        (9, "1280", "below 12", None, True),
        (20, "416", "below 32", "640,640", False),
        (13.7, "256", "below 32", "608,608", False),
        (28, "416", "below 32", "480,480", False),
        (30, "640", "", None, False),
        (40, "416", "", None, False),
        (90, "416", "above 48", None, False),
    ],
)
def test_box_sizes_come_with_advice(
    tmp_path: Path, side: float, size: str, limit: str, larger: str | None, tiles: bool
) -> None:
    shape = [int(number) for number in size.split(",")]
    paint(tmp_path / "a.png", 1, shape[-1], shape[0])  # as large as the input
    rows = " ".join(f"{i},0,{i + side},{side},0" for i in range(9))
    (tmp_path / "a.txt").write_text(f"a.png {rows} 1,1,200,200,0\n")
    report, _ = check(str(tmp_path / "a.txt"), size=(shape[0], shape[-1]))
    text = report["train"]["advice"]
    assert [*re.findall(r"image_size=([\d,]+\d)", text)] == [larger] * (larger is not None)
    assert ("tiles" in text) == tiles and "".join(re.findall(r"(?:below|above) \d+", text)) == limit
    assert report["train"]["median_side"] == side and report["train"]["class_sides"] == [side]


@pytest.mark.parametrize("tenth", (0.5, 3.0, 8.0, 40.0))
@pytest.mark.parametrize("median", (4.0, 13.7, 31.0, 60.0))
@pytest.mark.parametrize("side", (160, 416))
def test_an_advised_input_that_is_taken_is_large_enough(side: int, median: float, tenth: float) -> None:
    """Each larger input was too small again."""
    sides = np.array([min(tenth, median)] * 2 + [median] * 8)
    if found := re.search(r"image_size=(\d+)", advice(sides, (side, side)).text):
        larger = int(found[1])
        assert not re.search(r"image_size=\d", advice(sides * larger / side, (larger, larger)).text)


def test_data_without_images_are_an_error(data: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "head.csv").write_text("image,xmin,ymin,xmax,ymax,label\n")
    (tmp_path / "coco.json").write_text('{"images": [], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}')
    for name in ("empty.txt", "head.csv", "coco.json"):
        with refused(DataError, tmp_path / name):
            check(str(tmp_path / name))
    with refused(DataError, tmp_path / "empty.txt"):
        check(data[1], str(tmp_path / "empty.txt"))


def test_main_prints_and_writes_the_report(
    data: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit, match="^1$"):
        main([data[0], f"val={data[1]}", "image_size=50,100", f"page={tmp_path / '页.html'}"])
    assert "unreadable 2" in capsys.readouterr().out
    assert "<title>Data check</title>" in (tmp_path / "页.html").read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match="^0$"):
        main([data[1]])
    for words, named in (
        ([data[1], "size=64"], "image_size=64"),
        ([str(tmp_path / "none.txt")], str(tmp_path / "none.txt")),
        ([data[1], "image_size=0"], "image_size=416"),
        ([data[1], "page=a.doc"], ".html"),
    ):
        with refused(SystemExit, named):
            main(words)


def test_only_a_page_of_an_earlier_check_is_replaced(data: tuple[str, str], tmp_path: Path) -> None:
    own = tmp_path / "new" / "p.html"
    for _ in range(2):  # the folder is new, and the second time the page is replaced
        with pytest.raises(SystemExit, match="^0$"):
            main([data[1], f"page={own}"])
    (tmp_path / "my.html").write_text("<p>mine")
    for word in (f"page={tmp_path / 'my.html'}", f"page={data[0]}/p.html"):
        with refused(SystemExit, word):
            main([data[1], word])
    assert (tmp_path / "my.html").read_text() == "<p>mine"


def test_real_data_have_their_known_problems(shared: Path) -> None:
    report, _ = check(str(shared / "data" / "raccoon"))
    assert len(report["train"]["copies"]) >= 4 and report["errors"] == []
    root = str(shared / "data" / "bccd" / "BCCD")
    report, _ = check(root, root)
    assert report["errors"] == report["leaks"] == [] and report["val"]["classes"]["RBC"] == 967
    assert all("BloodImage_003" in report[part]["notes"][0] for part in ("train", "val"))  # a box without area in each


@pytest.mark.parametrize("val", [".2", "0.25"])
def test_a_fraction_as_validation_data_is_taken_from_the_checked_images(painted, val):
    """As in a training. It is no path, and there is nothing to compare."""
    report, parts = check(str(painted(8)), val)
    assert list(parts) == ["train"] and report["train"]["images"] == 8
    assert any(f"val={val}" in note for note in report["train"]["notes"])
    with refused(ConfigError, "val=20%", "val=.2"):
        check(str(painted(8)), "20%")


@pytest.mark.parametrize("val", [".01", ".99"])
def test_a_fraction_that_a_training_refuses_is_an_error(painted, val):
    report, _ = check(str(painted(8)), val)
    assert [error for error in report["errors"] if f"val=0{val}" in error and "enlarge" in error]
    assert not check(str(painted(8)), ".5")[0]["errors"]


def test_names_of_classes_select_as_in_training(data: tuple[str, str], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as end:
        main([data[1], "classes=dog"])
    printed = capsys.readouterr().out
    assert end.value.code == 0 and "error:" not in printed
    told(printed, "left out: 1 (cat 1)")


def test_problems_of_both_parts_are_reported_together(data: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_text("0.png 1,2,3,4,9\nnone.png 1,2,3,4,0\n")
    (tmp_path / "worse.txt").write_text("0.png 1,2,3\n")
    with refused(DataError, "bad.txt:1", "class 9", "worse.txt:1"):
        check(str(tmp_path / "bad.txt"), str(tmp_path / "worse.txt"))


def coco_of(folder: Path, boxes: list, size: tuple[int, int] = (200, 100)) -> str:
    """A COCO JSON with one image for each list of boxes."""
    images, annotations = [], []
    for number, of_image in enumerate(boxes, 1):
        noise = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3)).astype(np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png", "width": size[0], "height": size[1]})
        for box in of_image:
            area = box[2] * box[3]
            one = {"id": len(annotations) + 1, "image_id": number, "category_id": 1, "bbox": box, "area": area}
            annotations.append(one | {"iscrowd": 0})
    contents = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "egg"}]}
    (folder / "coco.json").write_text(json.dumps(contents))
    return str(folder / "coco.json")


def badge(page: Path) -> str:
    return re.findall(r'<p class="(good|bad)">', page.read_text(encoding="utf-8"))[0]


@pytest.mark.parametrize("are_corners", [True, False])
def test_corners_in_columns_for_width_and_height_are_red_and_a_warning_of_a_training(
    tmp_path: Path, are_corners: bool, capsys: pytest.CaptureFixture
) -> None:
    rng = np.random.default_rng(0)
    places = [(int(rng.integers(100, 150)), int(rng.integers(40, 70))) for _ in range(30)]
    boxes = [[x, y, x + 20, y + 10] if are_corners else [x, y, 20, 10] for x, y in places]
    file = coco_of(tmp_path, [boxes[i : i + 5] for i in range(0, 30, 5)])
    with pytest.raises(SystemExit, match="^0$"):
        main([file, f"page={tmp_path / 'p.html'}"])
    assert badge(tmp_path / "p.html") == ("bad" if are_corners else "good")
    assert ("are these corners" in capsys.readouterr().out) == are_corners
    log: list[str] = []
    read_train_and_val(file, "1/3", ReadOptions(bad_boxes="drop"), log.append)
    assert any(line.startswith("WARNING") and "are these corners" in line for line in log) == are_corners


@pytest.mark.parametrize(
    ("train", "is_damaged"),
    [
        ([[[1, 1, 20, 20]] * 3] * 4, True),  # repeated
        ([[[1, 1, 1, 20]], [[1, 1, 20, 1]]] * 4, True),  # tiny
        ([[[0, 0, 200, 100]]] * 4, True),  # cover their image
        ([[[5, 5, 20, 20]]] * 9 + [[[5, 5, 20, 20]] * 2], False),  # a single one
    ],
)
def test_suspicious_boxes_are_red_if_they_are_a_tenth(tmp_path: Path, train: list, is_damaged: bool) -> None:
    report, _ = check(coco_of(tmp_path, train))
    assert report["is_damaged"] == is_damaged == bool(report["damage"]) and report["errors"] == []


def test_many_copies_in_two_splits_are_red(splits: Path) -> None:
    assert not check(str(splits))[0]["is_damaged"]
    (splits / "test.txt").write_text("0.png 1,1,9,9,0\n2.png 1,1,9,9,0\n")
    assert check(str(splits))[0]["is_damaged"]


@pytest.mark.parametrize(("count", "limit"), [(100, None), (101, "100"), (301, "300")])
def test_the_check_names_images_with_more_boxes_than_the_metrics_count(
    tmp_path: Path, count: int, limit: str | None
) -> None:
    boxes = [[k % 20 * 10, k // 20 * 6, 8, 5] for k in range(count)]
    report, _ = check(coco_of(tmp_path, [boxes, boxes[:3], boxes]))
    found = [text for text in report["warnings"] if mentions(text, "2 of 3 images")]
    assert len(found) == (0 if limit is None else 1 if limit == "100" else 2)
    if limit:
        told(found[0], "more than 100 boxes of egg", f"{2 * (count - 100)}")
        told(found[-1], f"more than {limit} boxes")


def test_a_problem_of_a_label_file_that_two_splits_share_is_reported_once(tmp_path: Path) -> None:
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    paint(tmp_path / "images" / "a.png", 1)
    (tmp_path / "labels" / "a.txt").write_text("0 .5 .5 .1 x\n")
    (tmp_path / "classes.txt").write_text("cat\n")
    for name in ("train", "val"):
        (tmp_path / f"{name}.txt").write_text("images/a.png\nimages/a.png\n")
    for val in ("train", "val"):
        with refused(DataError, "a.txt:1") as caught:
            check(str(tmp_path / "train.txt"), str(tmp_path / f"{val}.txt"))
        assert str(caught.value).count("a.txt:1") == 1


def test_an_unreadable_image_is_one_line_below_the_error(tmp_path: Path) -> None:
    paint(tmp_path / "a.png", 10)
    paint(tmp_path / "b.png", 20)
    (tmp_path / "b.png").write_bytes((tmp_path / "b.png").read_bytes()[:60])
    (tmp_path / "set.txt").write_text("a.png 1,1,9,9,0\nb.png 1,1,9,9,0\n")
    (tmp_path / "classes.txt").write_text("cat\n")
    printed = text_of(check(str(tmp_path / "set.txt"), val=".5")[0])
    assert [line for line in printed.splitlines() if "b.png" in line] and printed.count("b.png") == 1
    told(printed, "set.txt:2", "bad_images=skip")
