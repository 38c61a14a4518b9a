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
        "a.png,40,20,cat,1,2,3.5,4\nb.png,40,20,dog,5,6,7,8\na.png,40,20,dog,1,2,9,9\n",
        "\ufeffpath,x1,y1,x2,y2,class\r\na.png,1,2,3.5,4,cat\r\n\r\nb.png,5,6,7,8,dog\r\na.png,1,2,9,9,dog\r\n",
        "a.png,1,2,3.5,4,cat\nb.png,5,6,7,8,dog\na.png,1,2,9,9,dog\n",
        "Image_Path;Label;X_Min;Y_Min;X_Max;Y_Max;score\na.png;cat;1;2;3.5;4;\nb.png;dog;5;6;7;8;\na.png;dog;1;2;9;9;\n",
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


def test_image_root_is_the_folder_of_the_images(tmp_path: Path) -> None:
    image = paint(tmp_path / "far" / "a.png")
    path = text(tmp_path / "x.csv", '"C:\\me\\a.png",1,2,3,4,"cat, big"\n')
    found = read(str(path), "train", ReadOptions(image_root=str(image.parent)))
    assert found.path(0) == str(image) and found.classes == ("cat, big",)


def test_all_mistakes_are_reported_in_one_pass(tmp_path: Path) -> None:
    lines = "path,x1,y1,x2,y2,class\na.png,1,2,3,4,cat\na.png,1,b,3,4,cat\na.png,1,2\n,1,2,3,4,cat\na.png,1,2,3,4,\n"
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
        ("path,x1,y1,x2,y2,class\na.png,0.1,0.2,0.3,0.4,cat\n", ["x.csv:2", "image_root="]),
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


def test_numbers_as_classes_do_not_change_the_columns(tmp_path: Path) -> None:
    """filename,width,height,1,... without a header is not image,x1,y1,x2,y2,class,width,height of SKU-110K."""
    found = read(str(text(tmp_path / "x.csv", "a.png,40,20,7,1,2,3,4\nb.png,40,20,8,5,6,7,8\n")), "train")
    assert [row[1:3] for row in boxes(found)] == [([[1, 2, 3, 4]], ["7"]), ([[5, 6, 7, 8]], ["8"])]


def test_a_quoted_line_end_is_not_lost_in_a_name(tmp_path: Path) -> None:
    with refused(DataError, "x.csv:2", r"'cat\nlynx'"):
        read(str(text(tmp_path / "x.csv", 'a.png,1,2,3,4,"cat\nlynx"\n')), "train")


@pytest.mark.parametrize(("word", "crowd"), [("1", True), ("1.0", True), ("True", True), ("0", False), ("", False)])
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


def test_fractions_with_a_slip_are_never_taken_for_pixels(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")  # 40 x 20
    header, good = "path,x1,y1,x2,y2,class\n", "a.png,.1,.2,.5,.6,cat\n"
    for slip, shown in (("1.02", "0.1,0.2,1.02,0.6"), ("62", "0.1,0.2,62,0.6")):
        lines = header + 2 * good + f"a.png,.1,.2,{slip},.6,cat\n" + good
        with refused(DataError, "x.csv:4", f"box {shown}"):
            read(str(text(tmp_path / "x.csv", lines)), "train")
    with refused(DataError, "x.csv:3", "box 0.1,-0.2,0.5,0.6"):
        read(str(text(tmp_path / "x.csv", header + good + "a.png,.1,-.2,.5,.6,cat\n")), "train")
    for slip in ("1.8e19", "-40", "62"):  # one of two boxes, so that an eighth of the values is wrong
        for row in (f".1,.2,.5,{slip}", f".1,{slip},.5,.6", f"{slip},.2,.5,.6"):
            with refused(DataError, "x.csv:3", "fractions"):
                read(
                    str(text(tmp_path / "x.csv", f"{header}{good}a.png,{row},cat\n")),
                    "train",
                    ReadOptions(bad_boxes="drop"),
                )
    rounded = read(str(text(tmp_path / "x.csv", "path,x,y,w,h,class\na.png,.7,.5,.3001,.5,cat\n")), "train")
    assert rounded.boxes.round(1).tolist() == [[28, 10, 40, 20]]


@pytest.mark.parametrize("tiny", ["0,0,1,1", "0,0,2,1", ".2,.3,1.4,1.2", "0,0,.5,3"])
def test_tiny_boxes_in_pixels_stay_pixels(tmp_path: Path, tiny: str) -> None:
    paint(tmp_path / "a.png")
    for count in (1, 9):
        lines = count * f"a.png,{tiny},cat\n" + "a.png,1,2,30,15,cat\n"
        found = read(str(text(tmp_path / "x.csv", lines)), "train")
        assert found.boxes[0].tolist() == [float(word) for word in tiny.split(",")]
        assert found.boxes[-1].tolist() == [1, 2, 30, 15]


# ---- columns with the split of an image

SPLITS = "path,x1,y1,x2,y2,class,{}\na.png,1,2,3,4,cat,{}\nb.png,1,2,3,4,dog,{}\nc.png,1,2,3,4,cat,{}\na.png,5,6,7,8,cat,{}\n"


def _table(folder: Path, *words: str) -> str:
    """Writes a table whose column words[0] has the other words for a, b, c, and for a again."""
    for name in "abc":
        paint(folder / f"{name}.png")
    return str(text(folder / "x.csv", SPLITS.format(*words)))


@pytest.mark.parametrize("name", ["mode", "group", "train_test"])
def test_another_column_with_names_of_splits_is_named(tmp_path: Path, name: str) -> None:
    path = _table(tmp_path, name, *"train valid test train".split())
    assert any(name in note and "split" in note for note in read(path, "train").notes)
    path = _table(tmp_path, name, *"train bus test train".split())
    assert not any("rename" in note for note in read(path, "train").notes)


@pytest.mark.parametrize("name", ["is_train", "is_valid", "Test"])
def test_a_column_that_may_tell_the_split_by_flags_is_named(tmp_path: Path, name: str) -> None:
    for words, is_named in (("1 0 1 1", True), ("True False False True", True), ("1 0 7 1", False)):
        notes = read(_table(tmp_path, name, *words.split()), "train").notes
        assert any(name in note and "split" in note for note in notes) == is_named
    assert not read(_table(tmp_path, "occluded", *"1 0 1 1".split()), "train").notes


@pytest.mark.parametrize("name", ["split", "Set", "subset", "partition", "usage", "fold", "data_split"])
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


def test_test_rows_serve_as_validation_with_a_note(tmp_path: Path) -> None:
    found = read(_table(tmp_path, "split", "train", "test", "train", "train"), "val")
    assert [Path(row[0]).name for row in boxes(found)] == ["b.png"] and "test serves as validation" in found.notes[0]


def test_words_that_are_no_split_are_named(tmp_path: Path) -> None:
    path = _table(tmp_path, "set", "train", "hold", "", "train")
    found = read(path, "train")
    assert len(found) == 1 and all(word in found.notes[0] for word in ("left out: 2", "b.png (", "x.csv:3", "'hold'"))
    assert len(read(path, "all")) == 3
    with refused(DataError, "x.csv", "train", "0, 1"):
        read(_table(tmp_path, "split", *"0110"), "train")
    assert len(read(_table(tmp_path, "fold", *"0110"), "train")) == 3  # parts of a cross-validation


def test_an_image_in_two_splits_is_a_problem(tmp_path: Path) -> None:
    with refused(DataError, "x.csv:5", "a.png", "'val'", "'train'", "x.csv:2"):
        read(_table(tmp_path, "split", "train", "test", "test", "val"), "train")


def test_a_table_without_splits_is_not_its_own_validation(tmp_path: Path) -> None:
    path = _table(tmp_path, "weather", "sun", "sun", "sun", "sun")
    with refused(ConfigError, "val=.2"):
        read_train_and_val(path, Config.val, read_options(), lambda note: None)


# ---- columns with the corners of a polygon


@pytest.mark.parametrize("first", [0, 1])
def test_the_corners_of_a_quadrilateral_become_the_enclosing_box(tmp_path: Path, first: int) -> None:
    """Only two of the four corners were read."""
    head = ",".join(f"x{number},Y_{number}" for number in range(first, first + 4))
    path = text(tmp_path / "x.csv", f"path,class,{head}\na.png,cat,9,2,15,8,9,14,3,8\nb.png,dog,,,,,,,,\n")
    assert [row[1] for row in boxes(read(str(path), "train"))] == [[[3, 2, 15, 14]], []]


def test_polygons_of_a_table_may_have_different_numbers_of_corners(tmp_path: Path) -> None:
    head = "path,class,x1,y1,x2,y2,x3,y3,x4,y4,x5,y5\n"
    path = text(tmp_path / "x.csv", f"{head}a.png,cat,9,2,15,8,9,14,,,,\nb.png,cat,1,2,3,4,5,6,7,8,9,1\n")
    assert read(str(path), "train").boxes.tolist() == [[9, 2, 15, 14], [1, 1, 9, 8]]
    for line in ("a.png,cat,9,2,15,8,,,,,,", "a.png,cat,9,2,15,8,9,,,,,", "a.png,cat,9,2,15,8,9,z,,,,"):
        with refused(DataError, "x.csv:2", "x5,y5"):
            read(str(text(tmp_path / "x.csv", f"{head}{line}\n")), "train")


def test_a_corner_without_its_other_coordinate_is_an_error(tmp_path: Path) -> None:
    with refused(DataError, "x.csv:1", "y3"):
        read(str(text(tmp_path / "x.csv", "path,class,x1,y1,x2,y2,x3\na.png,cat,1,2,3,4,5\n")), "train")


# ---- columns for the size of the box and for the size of the image

SIZED = "image,width,height,class,x,y,{},{}\na.png,40,20,cat,2,3,10,12\na.png,40,20,cat,4,1,8,6\n"


@pytest.mark.parametrize(
    "names",
    [
        "box_width box_height",
        "box_w box_h",
        "bw bh",
        "BoxWidth BoxHeight",
        "bbox_w bbox_h",
        "bounding_box_width bounding_box_height",
    ],
)
def test_a_box_size_next_to_the_size_of_the_image_is_read(tmp_path: Path, names: str) -> None:
    paint(tmp_path / "a.png")  # 40 x 20
    found, notes = check_images(read(str(text(tmp_path / "x.csv", SIZED.format(*names.split()))), "train"))
    assert found.boxes.tolist() == [[2, 3, 12, 15], [4, 1, 12, 7]] and not notes
    written = read(str(text(tmp_path / "y.csv", SIZED.format(*names.split()).replace("40,20", "41,21"))), "train")
    assert written.sizes.tolist() == [[21, 41]]  # width and height of the image


@pytest.mark.parametrize("names", ["obj_w obj_h", "object width,object height", "rectWidth rectHeight", "sw sh"])
def test_another_pair_of_sizes_next_to_width_and_height_is_refused(tmp_path: Path, names: str) -> None:
    """Nothing tells which of them is the size of the box."""
    names = names.split("," if "," in names else " ")
    with refused(DataError, "x.csv:1", *names, "width", "image_width"):
        read(str(text(tmp_path / "x.csv", SIZED.format(*names))), "train")


@pytest.mark.parametrize(
    "extra",
    ["image_width,image_height", "img_w,img_h", "box_id,weather", "show,path_h", "orig_width,orig_height", "depth,new"],
)
def test_width_and_height_of_boxes_are_read_next_to_other_columns(tmp_path: Path, extra: str) -> None:
    lines = f"image,width,height,class,x,y,{extra}\na.png,10,12,cat,2,3,40,20\n"
    assert read(str(text(tmp_path / "x.csv", lines)), "train").boxes.tolist() == [[2, 3, 12, 15]]


def test_width_and_height_that_are_always_those_of_the_image_are_refused(tmp_path: Path) -> None:
    """The size of the box has an unknown name; boxes that start at 0 may be as large as the image."""
    paint(tmp_path / "a.png"), paint(tmp_path / "b.png")  # 40 x 20
    head = "image,width,height,class,x,y,wide,tall\n"
    with refused(DataError, "x.csv", "width", "height", "image_width"):
        read(str(text(tmp_path / "x.csv", head + "a.png,40,20,cat,2,3,10,12\nb.png,40,20,cat,0,0,10,12\n")), "train")
    for lines in ("a.png,40,20,cat,0,0,1,x\n", "a.png,40,20,cat,2,3,1,1\nb.png,39,20,cat,0,0,10,12\n"):
        assert len(read(str(text(tmp_path / "x.csv", head + lines)), "train").boxes)
    with refused(DataError, "x.csv", "width", "height", "image_width"):
        read(str(text(tmp_path / "x.csv", head + "a.png,40,20,cat,0,0,10,12\nb.png,40,20,cat,0,0,9,9\n")), "train")


@pytest.mark.parametrize("extra", ["image_id,frame", "id,score", "image_width,image_height", "occluded,comment"])
def test_boxes_that_cover_their_images_are_read_if_no_other_columns_can_be_their_size(
    tmp_path: Path, extra: str
) -> None:
    paint(tmp_path / "a.png")
    values = "7,late" if "comment" in extra else "40,20"
    for name, lines in {
        "classes.csv": f"filename,width,height,class,x,y,{extra}\na.png,40,20,cat,0,0,{values}\n",
        "one.csv": f"filename,width,height,x,y,{extra}\na.png,40,20,0,0,{values}\n",
    }.items():
        assert read(str(text(tmp_path / name, lines)), "train").boxes.tolist() == [[0, 0, 40, 20]]


# ---- centers, and headers that are not known

CENTERS = (
    "x_center,y_center,bbox_width,bbox_height",
    "center_x,center_y,width,height",
    "XCenter,YCenter,Width,Height",
    "xc,yc,w,h",
    "cx,cy,bw,bh",
    "bbox_x_center,bbox_y_center,bbox_w,bbox_h",
)


@pytest.mark.parametrize("names", CENTERS)
@pytest.mark.parametrize("scale", [1, 20])
def test_centers_and_sizes_become_corners(tmp_path: Path, names: str, scale: int) -> None:
    """The header line was an image, and its boxes were the problem."""
    paint(tmp_path / "a.png", 20, 20)
    rows = [f"a.png,cat,{','.join(f'{value / scale:g}' for value in row)}\n" for row in ((6, 8, 4, 2), (10, 9, 6, 12))]
    found = read(str(text(tmp_path / "x.csv", f"image,class,{names}\n{''.join(rows)}")), "train")
    assert [Path(name).name for name in found.names] == ["a.png"]
    assert found.boxes.round(9).tolist() == [[4, 7, 8, 9], [7, 3, 13, 15]]


def test_the_size_of_the_image_is_not_that_of_a_box_around_a_center(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    head = "image,width,height,class,x_center,y_center"
    with refused(DataError, "x.csv:1", "obj_w", "obj_h", "image_width"):
        read(str(text(tmp_path / "x.csv", f"{head},obj_w,obj_h\na.png,40,20,cat,9,9,2,2\n")), "train")
    with refused(DataError, "x.csv", "width", "height", "image_width"):
        read(str(text(tmp_path / "x.csv", f"{head},wide,tall\na.png,40,20,cat,9,9,2,2\n")), "train")
    found = read(str(text(tmp_path / "x.csv", f"{head},box_w,box_h\na.png,40,20,cat,9,9,2,2\n")), "train")
    assert found.boxes.tolist() == [[8, 8, 10, 10]]


@pytest.mark.parametrize(
    "head",
    [
        "photo_of,species,mid_x,mid_y,extent_x,extent_y",
        "picture,a,b,c,d,kind",
        "image,col0,row0,col1,row1,label",
        "image_id,sx,sy,kind,px0,py0,px1,py1",
    ],
)
def test_a_header_that_is_not_known_is_named_and_no_image(tmp_path: Path, head: str) -> None:
    path = text(tmp_path / "x.csv", f"{head}\na.png,{','.join('123456789'[: head.count(',')])}\n")
    with refused(DataError, "x.csv:1", f"({head})", "x_center") as caught:
        read(str(path), "train")
    assert len(str(caught.value).splitlines()) == 1


def test_a_first_line_that_is_no_header_is_an_image_of_any_name(tmp_path: Path) -> None:
    for first, expected in (("one,1,2,3,4,cat", [[1, 2, 3, 4]]), ("one,,,,,", [])):
        found = read(str(text(tmp_path / "x.csv", f"{first}\ntwo,5,6,7,8,cat\n")), "train")
        assert [row[1] for row in boxes(found)] == [expected, [[5, 6, 7, 8]]]
    with refused(DataError, "x.csv:1", "'l,2,3,4'"):
        read(str(text(tmp_path / "x.csv", "a.png,l,2,3,4,cat\n")), "train")


@pytest.mark.parametrize("name", ["bbox_angle", "rot", "box_rotation", "Rotation_Deg", "angle_radians", "Theta"])
def test_an_angle_in_a_column_of_any_name_is_an_error(tmp_path: Path, name: str) -> None:
    paint(tmp_path / "a.png")
    head, row = f"filename,class,xmin,ymin,xmax,ymax,{name}", "a.png,cat,1,2,9,9"
    assert len(read(str(text(tmp_path / "x.csv", f"{head}\n{row},0\n")), "train").boxes) == 1
    with refused(DataError, "x.csv:2", f"{name} is 30"):
        read(str(text(tmp_path / "x.csv", f"{head}\n{row},30\n")), "train")


def test_two_sets_of_corners_in_a_table_are_an_error(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    lines = "filename,class,xmin,ymin,xmax,ymax,x1,y1,x2,y2\na.png,cat,1,2,9,9,3,4,5,6\n"
    with refused(DataError, "x.csv:1", "xmin,ymin,xmax,ymax and x1,y1,x2,y2"):
        read(str(text(tmp_path / "x.csv", lines)), "train")


@pytest.mark.parametrize(("size", "step", "is_noted"), [(300, 0.5, True), (150, 0.5, False), (300, 1.0, False)])
def test_boxes_that_may_be_percents_have_a_note(tmp_path: Path, size: int, step: float, is_noted: bool) -> None:
    """They are within the first 100 pixels of larger images, and are no whole numbers."""
    names = [paint(tmp_path / f"{n}.png", size, size).name for n in range(6)]
    rows = [f"{name},cat,{n + step},{n + step},{n + 20 + step},{n + 80 + step}\n" for n, name in enumerate(names)]
    found = read(str(text(tmp_path / "x.csv", "filename,class,xmin,ymin,xmax,ymax\n" + "".join(rows))), "train")
    assert any("percents" in note for note in found.notes) == is_noted


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


@pytest.mark.parametrize(
    ("head", "rows", "names"),
    [
        ("label,class", ["cat,0", "dog,1"], ("cat", "dog")),
        ("class,class_name", ["0,cat", "1,dog"], ("cat", "dog")),
        ("label,category", ["cat,Katze", "dog,Hund"], ("cat", "dog")),
        ("category,name", ["animal,cat", "animal,dog"], ()),
        ("class,label", ["0,1", "0,2"], ()),
    ],
)
def test_of_two_columns_that_may_be_the_class_the_names_count(
    tmp_path: Path, head: str, rows: list, names: tuple
) -> None:
    """The first name of a fixed order counted, without a word: all boxes became animals."""
    paint(tmp_path / "a.png")
    lines = "".join(f"a.png,{row},1,2,{9 + number},8\n" for number, row in enumerate(rows))
    path = text(tmp_path / "t.csv", f"image,{head},x1,y1,x2,y2\n{lines}")
    if not names:
        with refused(DataError, "t.csv:1", *head.split(",")):
            read(str(path), "train")
        return
    found = read(str(path), "train")
    assert [row[2] for row in boxes(found)] == [list(names)]
    assert all(any(word in note for note in found.notes) for word in head.split(","))
