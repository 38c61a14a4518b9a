"""Tables with one box per line."""

from pathlib import Path

import pytest
from files import boxes, paint, text
from refused import refused

from datasets.check_images import check_images
from datasets.classes import join
from datasets.errors import DataError
from datasets.formats.options import ReadOptions, read_options
from datasets.formats.read import read
from datasets.sources import read_train_and_val
from train import Config
from utils.config import ConfigError


@pytest.mark.parametrize(
    "lines",
    [
        "filename,width,height,class,xmin,ymin,xmax,ymax\na.png,40,20,cat,1,2,3.5,4\nb.png,40,20,dog,5,6,7,8\n"
        "a.png,40,20,dog,1,2,9,9\n",
        "\ufeffpath,x1,y1,x2,y2,class\r\na.png,1,2,3.5,4,cat\r\n\r\nb.png,5,6,7,8,dog\r\na.png,1,2,9,9,dog\r\n",
        "a.png,1,2,3.5,4,cat\nb.png,5,6,7,8,dog\na.png,1,2,9,9,dog\n",
        "Image;Label;XMin;YMin;XMax;YMax\na.png;cat;1;2;3.5;4\nb.png;dog;5;6;7;8\na.png;dog;1;2;9;9\n",
    ],
)
@pytest.mark.parametrize("place", ["", "images", "../images"])
def test_both_common_forms_are_read(tmp_path: Path, lines: str, place: str) -> None:
    path = text(tmp_path / "data" / "train_labels.csv", lines)
    images = [paint(tmp_path / "data" / place / name).resolve() for name in ("a.png", "b.png")]
    found, _ = check_images(read(str(path), "train"))
    rows = boxes(found)
    assert [Path(row[0]).resolve() for row in rows] == images
    assert [row[1:3] for row in rows] == [([[1, 2, 3.5, 4], [1, 2, 9, 9]], ["cat", "dog"]), ([[5, 6, 7, 8]], ["dog"])]
    assert found.where(1) == f"{path}:{found.lines[1]}"


def test_empty_fields_are_a_background(tmp_path: Path) -> None:
    found = read(str(text(tmp_path / "x.csv", "a.png,,,,,\nb.png,1,2,3,4,cat\nb.png,,,,,\n")), "train")
    assert [row[1] for row in boxes(found)] == [[], [[1, 2, 3, 4]]]


def test_the_encoding_that_excel_writes_by_default_is_refused_with_the_menu_entry_for_another(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    (tmp_path / "boxes.csv").write_bytes("image,xmin,ymin,xmax,ymax,label\na.png,1,2,9,9,B\u00e4r\n".encode("cp1252"))
    with refused(DataError, "boxes.csv:2", "Excel", "CSV UTF-8"):
        read(str(tmp_path), "train")


def test_all_mistakes_are_reported_in_one_pass(tmp_path: Path) -> None:
    lines = "path,x1,y1,x2,y2,class\na.png,1,2,3,4,cat\na.png,1,b,3,4,cat\na.png,1,2\n,1,2,3,4,cat\na.png,1,2,3,4,\n"
    paint(tmp_path / "a.png")
    with pytest.raises(DataError) as caught:
        read(str(text(tmp_path / "x.csv", lines + "a.png,1,2,nan,4,cat\n")), "train")
    for words in (
        "problems: 5",
        "x.csv:3: '1,b,3,4' is not a box: write x1,y1,x2,y2 as numbers",
        "x.csv:4: 3 fields: a line needs 6",
        "x.csv:5: no image",
        "x.csv:6: class name '' is blank",
        "x.csv:7: box 1,2,nan,4",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("", ["x.csv", "empty"]),
        ("a,b\n", ["x.csv:1", "2 columns", "(a,b)"]),
        ("path,x1,y1,x2,class\n", ["x.csv:1", "y2"]),
        ("a.png,1,2,3,4,cat\n" + "x" * 200_000 + ",1,2,3,4,cat\n", ["x.csv:2", "131072"]),
        ("path,x1,y1,x2,y2,class\na.png,0.1,0.2,0.3,0.4,cat\n", ["x.csv:2", "fractions"]),
        ("ImageID,LabelName,XMin,XMax,YMin,YMax\na,/m/1,.1,.5,.2,.6\n", ["x.csv:2", "image_root="]),
        ("ImageID,LabelName,XMin,XMax,YMin,YMax\na,/m/1,.1,.5,.2,62\n", ["x.csv:2", ".1,.2,.5,62", "fractions"]),
        ("ImageID,LabelName,XMin,XMax,YMin,YMax\na,/m/1,.1,.5,-.2,.6\n", ["x.csv:2", ".1,-.2,.5,.6", "fractions"]),
    ],
)
def test_other_tables_are_errors_with_a_fix(tmp_path: Path, lines: str, named: list[str]) -> None:
    with refused(DataError, *named):
        read(str(text(tmp_path / "x.csv", lines)), "train")


def test_the_tables_of_raccoon_are_its_parts(shared: Path) -> None:
    folder = shared / "data" / "raccoon" / "data"
    train, val = (read(str(folder / f"{part}_labels.csv"), part) for part in ("train", "test"))
    assert (len(train), len(train.boxes), len(val), len(val.boxes)) == (160, 173, 40, 44)
    assert train.classes == ("raccoon",) and all(Path(val.path(i)).exists() for i in range(40))


def test_a_quoted_line_end_is_not_lost_in_a_name(tmp_path: Path) -> None:
    with refused(DataError, "x.csv:2", r"'cat\nlynx'"):
        read(str(text(tmp_path / "x.csv", 'a.png,1,2,3,4,"cat\nlynx"\n')), "train")


@pytest.mark.parametrize(
    ("word", "crowd"), [("1", True), ("1.0", True), ("True", True), ("yes", True), ("0", False), ("", False)]
)
def test_crowd_regions_are_written_in_several_ways(tmp_path: Path, word: str, crowd: bool) -> None:
    found = read(str(text(tmp_path / "x.csv", f"path,x1,y1,x2,y2,class,iscrowd\na.png,1,2,3,4,cat,{word}\n")), "train")
    assert found.crowd.tolist() == [crowd]


def test_another_word_for_a_crowd_region_is_a_problem(tmp_path: Path) -> None:
    path = text(tmp_path / "x.csv", "path,x1,y1,x2,y2,class,iscrowd\na.png,1,2,3,4,cat,many\n")
    with refused(DataError, "x.csv:2", "'many'", "0 or 1"):
        read(str(path), "train")


def test_a_row_with_more_fields_than_the_header_is_a_problem(tmp_path: Path) -> None:
    lines = "path,x1,y1,x2,y2,class\na.png,1,2,3,4,cat,\n"  # an empty field at the end is harmless
    assert len(read(str(text(tmp_path / "x.csv", lines)), "train").boxes) == 1
    with refused(DataError, "x.csv:3", "7 fields", "6"):
        read(str(text(tmp_path / "x.csv", lines + "a.png,1,2,3,4,5,cat\n")), "train")


# ---- columns with the split of an image

SPLITS = "path,x1,y1,x2,y2,class,{}\na.png,1,2,3,4,cat,{}\nb.png,1,2,3,4,dog,{}\nc.png,1,2,3,4,cat,{}\na.png,5,6,7,8,cat,{}\n"


def _table(folder: Path, *words: str) -> str:
    """Writes a table whose column words[0] has the other words for a, b, c, and for a again."""
    for name in "abc":
        paint(folder / f"{name}.png")
    return str(text(folder / "x.csv", SPLITS.format(*words)))


@pytest.mark.parametrize("name", ["split", "Set ", "subset", "usage"])
@pytest.mark.parametrize("words", ["train valid test train", "Training val TEST training"])
def test_a_column_with_splits_divides_the_images(tmp_path: Path, name: str, words: str) -> None:
    """Images of the test split were trained on."""
    path = _table(tmp_path, name, *words.split())
    parts = {part: read(path, part) for part in ("train", "val", "test", "all")}
    images = {part: [Path(row[0]).name for row in boxes(found)] for part, found in parts.items()}
    assert images == {"train": ["a.png"], "val": ["b.png"], "test": ["c.png"], "all": ["a.png", "b.png", "c.png"]}
    assert parts["train"].boxes.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert {found.classes for found in parts.values()} == {("cat", "dog")}
    assert parts["train"].other_splits == ("val", "test")
    log = []
    data = read_train_and_val(path, Config.val, read_options(), log.append)
    assert [len(found) for found in data] == [1, 1] and any("not use: test" in line for line in log)


def test_words_that_are_no_split_are_named(tmp_path: Path) -> None:
    path = _table(tmp_path, "split", "train", "hold", "", "train")
    found = read(path, "train")
    assert len(found) == 1 and all(word in found.notes[0] for word in ("left out: 2", "b.png (", "x.csv:3", "'hold'"))
    assert len(read(path, "all")) == 3
    with refused(DataError, "x.csv", "train", "0, 1"):
        read(_table(tmp_path, "split", *"0110"), "train")


def test_an_image_in_two_splits_is_a_problem(tmp_path: Path) -> None:
    with refused(DataError, "x.csv:5", "a.png", "'val'", "'train'", "x.csv:2"):
        read(_table(tmp_path, "split", "train", "test", "test", "val"), "train")


def test_a_table_without_splits_is_not_its_own_validation(tmp_path: Path) -> None:
    path = _table(tmp_path, "weather", "sun", "sun", "sun", "sun")
    with refused(ConfigError, "val=.2"):
        read_train_and_val(path, Config.val, read_options(), lambda note: None)


# ---- headers

HEADERS = {  # a header that is not read -> what the error names besides its line and the header to write
    "filename,label,x,y,width,height": "x1",
    "image,width,height,class,x,y,box_w,box_h": "x2",
    "filename,xmin,ymin,xmax,ymax": "class",
    "image_id,class_name,x_min,y_min,x_max,y_max": "(image_id,class_name,x_min,y_min,x_max,y_max)",
    "image,class,bbox": "(image,class,bbox)",
    "picture,a,b,c,d,kind": "(picture,a,b,c,d,kind)",
    "path,class,x1,y1,x2,y2,x3,y3": "x3",
    "path,class,x1,y1,x2": "y2",
    "filename,class,xmin,ymin,xmax,ymax,x1,y1,x2,y2": "xmin",
    "image,class,label,x1,y1,x2,y2": "label",
}


@pytest.mark.parametrize("head", HEADERS)
def test_another_header_is_refused_with_the_header_to_write(tmp_path: Path, head: str) -> None:
    """There is no guess: width and height may be those of the image or of the box, a second column may be the label."""
    path = text(tmp_path / "x.csv", f"{head}\na.png,{','.join('123456789'[: head.count(',')])}\n")
    with refused(DataError, "x.csv:1", HEADERS[head]) as caught:
        read(str(path), "train")
    has_two = HEADERS[head] in ("xmin", "label")
    assert has_two or "filename,width,height,class,xmin,ymin,xmax,ymax" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_header_that_an_error_names_is_read(tmp_path: Path) -> None:
    """All of them, without guessing: the advice is followed to its end."""
    paint(tmp_path / "a.png")
    with pytest.raises(DataError) as caught:
        read(str(text(tmp_path / "x.csv", "filename,label,x,y,width,height\na.png,cat,1,2,8,6\n")), "train")
    headers = str(caught.value).rpartition("write ")[2].split(" or ")
    values = {"filename": "a.png", "path": "a.png", "width": 40, "height": 20, "class": "cat"}
    values |= {"xmin": 1, "ymin": 2, "xmax": 9, "ymax": 8, "x1": 1, "y1": 2, "x2": 9, "y2": 8}
    assert len(headers) == 2
    for header in headers:
        row = ",".join(str(values[name]) for name in header.split(","))
        found, notes = check_images(read(str(text(tmp_path / "x.csv", f"{header}\n{row}\n")), "train"))
        assert found.boxes.tolist() == [[1, 2, 9, 8]] and found.classes == ("cat",) and not notes


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    lines = "path,x1,y1,x2,y2,class,is_train,score\na.png,1,2,3,4,cat,0,.5\n"
    (note,) = read(str(text(tmp_path / "x.csv", lines)), "train").notes
    assert "is_train, score" in note


def test_a_table_without_a_header_has_six_columns(tmp_path: Path) -> None:
    """filename,width,height,class,... and image,x1,y1,x2,y2,class,width,height of SKU-110K both have eight."""
    for row in ("a.png,40,20,7,1,2,3,4", "a.png,1,2,3,4,7,40,20"):
        with refused(DataError, "x.csv:1", "8", "path,x1,y1,x2,y2,class"):
            read(str(text(tmp_path / "x.csv", f"{row}\n")), "train")


def test_a_first_line_that_is_no_header_is_an_image_of_any_name(tmp_path: Path) -> None:
    for first, expected in (("one,1,2,3,4,cat", [[1, 2, 3, 4]]), ("one,,,,,", [])):
        found = read(str(text(tmp_path / "x.csv", f"{first}\ntwo,5,6,7,8,cat\n")), "train")
        assert [row[1] for row in boxes(found)] == [expected, [[5, 6, 7, 8]]]
    with refused(DataError, "x.csv:1", "'l,2,3,4'"):
        read(str(text(tmp_path / "x.csv", "a.png,l,2,3,4,cat\n")), "train")


@pytest.mark.parametrize("name", ["bbox_angle", "box_rotation", "Rotation_Deg", "angle_radians", "Theta"])
def test_an_angle_in_a_column_of_any_name_is_an_error(tmp_path: Path, name: str) -> None:
    paint(tmp_path / "a.png")
    head, row = f"filename,class,xmin,ymin,xmax,ymax,{name}", "a.png,cat,1,2,9,9"
    assert len(read(str(text(tmp_path / "x.csv", f"{head}\n{row},0\n")), "train").boxes) == 1
    with refused(DataError, "x.csv:2", f"{name} is 30"):
        read(str(text(tmp_path / "x.csv", f"{head}\n{row},30\n")), "train")


def test_a_class_with_a_comma_is_chosen_in_quotes(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    path = text(tmp_path / "x.csv", 'a.png,1,2,3,4,"cat, big"\na.png,1,2,3,4,dog\na.png,1,2,3,4,fox\n')
    found = read(str(path), "train", read_options(classes='"cat, big", dog'))
    assert found.classes == ("cat, big", "dog") and found.labels.tolist() == [0, 1]


def test_a_box_outside_of_its_image_is_named_by_its_own_line(tmp_path: Path) -> None:
    """The image is in lines 2, 3 and 5."""
    paint(tmp_path / "a.png"), paint(tmp_path / "b.png")
    rows = ("a.png,1,2,9,9,cat", "a.png,2,2,8,8,cat", "b.png,1,2,9,9,cat", "a.png,900,2,990,9,cat")
    path = text(tmp_path / "x.csv", "\n".join(["filename,xmin,ymin,xmax,ymax,class", *rows, ""]))
    with refused(DataError, "x.csv:5", "900,2,990,9"):
        check_images(read(str(path), "train"), ReadOptions(bad_boxes="error"))


def test_the_line_of_a_box_survives_selection_and_joining(tmp_path: Path) -> None:
    for name in ("a", "b"):
        paint(tmp_path / f"{name}.png")
        text(tmp_path / f"{name}.csv", f"{name}.png,1,2,9,9,cat\n{name}.png,5,5,5,9,cat\n{name}.png,2,2,8,8,dog\n")
    parts = [read(str(tmp_path / f"{name}.csv"), "train", read_options(bad_boxes="drop")) for name in ("a", "b")]
    both = join(parts, "both").select([1, 0])
    assert [both.where_box(row) for row in range(4)] == [
        str(tmp_path / f"{name}.csv:{n}") for name in "ba" for n in (1, 3)
    ]
    assert both.where(0) == f"{tmp_path / 'b.csv'}:1"
