"""Every accepted format of data gives the same annotations, and every mistake in it an error that names the place."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import boxes, paint, text
from refused import refused

from datasets.check_images import check_images
from datasets.errors import DataError
from datasets.formats.class_names import class_text, read_classes
from datasets.formats.options import ReadOptions, read_options
from datasets.formats.read import read

STRICT = ReadOptions(bad_boxes="error")

# ---- recognizing the format


def test_missing_and_unknown_sources_are_errors_with_a_fix(tmp_path: Path) -> None:
    with refused(DataError, tmp_path / "none.txt"):
        read(str(tmp_path / "none.txt"), "train")
    with refused(DataError, tmp_path / "a.md", ".txt"):
        read(str(text(tmp_path / "a.md", "")), "train")
    (tmp_path / "empty" / "inside").mkdir(parents=True)
    with refused(DataError, tmp_path / "empty", "data.yaml", "(inside)"):
        read(str(tmp_path / "empty"), "train")


@pytest.mark.parametrize("path", ["C:\new\train.txt", "C:\train.txt", "data\b.json", "data/a\n.json"])
def test_control_characters_in_a_path_are_errors_with_a_fix(path: str) -> None:
    """The advice on backslashes is for paths of Windows only."""
    for reader in (lambda: read(path, "train"), lambda: read_classes(path)):
        with refused(DataError, repr(path)) as caught:
            reader()
        assert ('r"C:' in str(caught.value)) == path.startswith("C:")
        assert "\n" not in str(caught.value)


BAD_NAMES = {"surrogate": "cat\\ud800", "control": "a\\u0007b", "blank": " ", "long": "x" * 201}


@pytest.mark.parametrize("kind", ["coco", "yaml", "voc", "classes.txt", "classes"])
@pytest.mark.parametrize("name", BAD_NAMES)
def test_class_names_that_cannot_be_drawn_are_one_data_error(tmp_path: Path, kind: str, name: str) -> None:
    """A lone surrogate in a class name once ended the process in cv2.putText; now no format lets such a name in."""
    escaped, classes = BAD_NAMES[name], None
    name = json.loads(f'"{escaped}"')
    if kind in ("voc", "classes.txt") and "\\u" in escaped:
        return  # neither UTF-8 text nor XML can hold these characters
    paint(tmp_path / "images" / "1.png"), text(tmp_path / "labels" / "1.txt", "0 .5 .5 .1 .1\n")
    source = tmp_path
    if kind == "coco":
        source = text(tmp_path / "coco.json", json.dumps(coco(categories=[{"id": 1, "name": name}])))
    elif kind == "yaml":
        source = text(tmp_path / "x.yaml", f'train: images\nnames: ["{escaped}", dog]\n')
    elif kind == "classes":
        classes, source = (name,), text(tmp_path / "classes", "").with_name("a.txt")
        text(source, "images/1.png 1,2,3,4,0\n")
    elif kind == "voc":
        source = voc(tmp_path / "x" / "voc.xml", "1.png", (name, 0, 1, 2, 3, 4)).parent
    else:
        text(tmp_path / "classes.txt", f"cat\n{name}\ndog\n")
    with refused(DataError, source if kind != "voc" else "voc.xml") as caught:
        read(str(source), "train", ReadOptions(classes=classes))
    str(caught.value).encode()  # the message can be printed anywhere


# ---- classes file and annotation file


def test_classes_files_are_read_and_their_mistakes_named(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_bytes("\ufeffcat\r\n big dog \r\n鸟\r\n\r\n".encode())
    assert read_classes(str(path)) == ("cat", "big dog", "鸟")
    for words, named in (
        ("a\n\nb\n", "classes.txt:2"),
        ("a\nb\na\n", "classes.txt:3: class 'a'"),
        ("\n", "classes.txt"),
    ):
        with refused(DataError, named):
            read_classes(str(text(path, words)))
    with refused(DataError, tmp_path / "none.txt"):
        read_classes(str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (("0 cat", "1 big dog"), ("cat", "big dog")),
        (("0: cat", "1: dog"), ("cat", "dog")),
        (("1,dog", "0,cat"), ("cat", "dog")),
        (("0. cat", "1. dog"), ("cat", "dog")),
        (("1 euro", "2 euro"), None),  # coins
        (("0 degrees", "90 degrees"), None),
        (("0 euro", "50 cent"), None),
        (("car", "2 wheeler"), None),
        (("16:9", "4:3"), None),
        (("tench, Tinca tinca", "kite"), None),
        (('"cat, big"',), ("cat, big",)),
        (("cat dog",), None),
    ],
)
def test_numbers_before_class_names_are_read(
    tmp_path: Path, lines: tuple[str, ...], names: tuple[str, ...] | None
) -> None:
    """They were a part of the names."""
    path = text(tmp_path / "classes.txt", "".join(f"{line}\n" for line in lines))
    assert read_classes(str(path)) == (names or lines)


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (("cat, dog",), 1),
        (("['cat', 'dog']",), 1),
        (("cat,", "dog"), 1),
        (("1: cat", "2: dog"), 1),
        (("0: cat", "dog"), 1),
        (("id,name", "0,cat"), 2),
        (("1: cat",), 1),
        (("# my classes", "cat"), 1),
    ],
)
def test_class_lists_in_another_form_are_errors_with_their_line(
    tmp_path: Path, lines: tuple[str, ...], place: int
) -> None:
    with refused(DataError, f"classes.txt:{place}", repr(lines[place - 1])):
        read_classes(str(text(tmp_path / "classes.txt", "".join(f"{line}\n" for line in lines))))


@pytest.mark.parametrize(
    "names", [("cat, big",), ("0 a", "1 b"), ("1: a",), ('"a"', '"b"'), ("a", "b c"), ("1 a", "2 b")]
)
def test_written_class_names_are_read_back(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = text(tmp_path / "classes.txt", class_text(names))
    assert read_classes(str(path)) == names
    assert ('"' in path.read_text()) == (names not in (("a", "b c"), ("1 a", "2 b")))


@pytest.mark.parametrize("kind", ["classes.txt", "yaml", "csv", "merge"])
def test_byte_order_marks_at_the_ends_of_a_class_name_do_not_count(tmp_path: Path, kind: str) -> None:
    """Files that Excel saved and a user joined have such marks before names. They were read as separate classes."""
    mark = "\ufeff"
    paint(tmp_path / "a.png"), paint(tmp_path / "b.png")
    marked = f"{mark} {mark}cat{mark}"
    if kind in ("classes.txt", "yaml"):
        text(tmp_path / "a.txt", "1 .5 .5 .1 .1\n"), text(tmp_path / "b.txt", "1 .5 .5 .1 .1\n")
        is_list = kind == "classes.txt"
        words = f"dog\n{marked}\n" if is_list else f"train: .\nnames: [dog, '{marked}']\n"
        text(tmp_path / ("classes.txt" if is_list else "data.yaml"), words)
    else:
        text(tmp_path / "x.csv", f"image,x1,y1,x2,y2,class\na.png,1,2,3,4,{marked}\nb.png,1,2,3,4,cat\n")
    found = read(str(tmp_path), "train", ReadOptions(merge=f"{mark}cat:{mark}dog" if kind == "merge" else None))
    assert [row[2] for row in boxes(found)] == [["dog" if kind == "merge" else "cat"]] * 2
    assert set(found.classes) <= {"cat", "dog"}


def test_classes_that_count_from_1_get_the_fix(tmp_path: Path) -> None:
    """Only the first number after the last class tells it; a larger one is another mistake."""
    folder = tmp_path / "data"
    paint(folder / "a.png"), paint(folder / "b.png")
    text(folder / "classes.txt", "cat\ndog\n"), text(folder / "a.txt", "1 .5 .5 .2 .2\n2 .5 .5 .2 .2\n")
    with refused(DataError, "a.txt:2", "class 2", "(0-1)", "subtract 1"):
        read(str(folder), "train")
    text(folder / "a.txt", "3 .5 .5 .2 .2\n")
    with refused(DataError, "a.txt:1", "class 3") as caught:
        read(str(folder), "train")
    assert "subtract" not in str(caught.value)


# ---- COCO


def coco(**changes: Any) -> dict[str, Any]:
    data = {
        "images": [
            {"id": 70, "file_name": "one/1.png", "width": 40, "height": 20},
            {"id": 9, "file_name": "two/1.png", "width": 40, "height": 20},
        ],
        "annotations": [
            {"id": 5, "image_id": 9, "category_id": 90, "bbox": [1.5, 2, 3, 4], "area": 7.5, "iscrowd": 0},
            {"id": 6, "image_id": 70, "category_id": 3, "bbox": [0, 0, 10, 10], "area": 60, "iscrowd": 1},
            {"id": 7, "image_id": 9, "category_id": 1, "bbox": [1, 1, 2, 2]},
        ],
        "categories": [{"id": 90, "name": "z"}, {"id": 1, "name": "a"}, {"id": 3, "name": "m"}],
    }
    return data | changes


def test_coco_with_other_classes_keeps_its_own_ids(tmp_path: Path) -> None:
    path = str(text(tmp_path / "x.json", coco()))
    found = read(path, "val", ReadOptions(classes=("m", "new", "z", "a")))
    assert found.category_ids.tolist() == [3, 91, 90, 1]
    assert [row[2] for row in boxes(found)] == [["m"], ["z", "a"]]
    with refused(DataError, "annotation 5 of two/1.png", "'z'", "(a, m)"):
        read(path, "val", ReadOptions(classes=("a", "m")))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"annotations": [{"id": 5, "image_id": 9, "category_id": 2, "bbox": [1, 1, 2, 2]}]},
            ["annotation 5 of two/1.png", "category 2"],
        ),
        (
            {"annotations": [{"id": 5, "image_id": 9, "category_id": 1, "bbox": [1, 1, 2]}]},
            ["annotation 5 of two/1.png", "bbox [1.0, 1.0, 2.0]"],
        ),
        (
            {"annotations": [{"id": 5, "image_id": 9, "category_id": 1}]},
            ["annotation 5", "bbox"],
        ),
        (
            {"annotations": [{"id": 5, "image_id": 9, "category_id": 1, "bbox": [1, 1, 0, 2]}]},
            ["annotation 5 of two/1.png", "box 1,1,1,3", "bad_boxes="],
        ),
        (
            {"annotations": [{"id": 5, "image_id": 8, "category_id": 1, "bbox": [1, 1, 2, 2]}]},
            ["image 8"],
        ),
        ({"images": [{"id": 9, "file_name": "a"}, {"id": 9, "file_name": "b"}]}, ["image 9 'b'"]),
        ({"categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]}, ["(a)"]),
        ({"categories": [{"id": [1], "name": "a"}]}, ["categories[0].id (id [1])", "`int | float | str`"]),
        ({"categories": [{"id": 1}]}, ['categories[0] (id 1) is {"id": 1}', "`name`"]),
        ({"annotations": [3]}, ["annotations[0] is 3", "`object`"]),
        ({"images": [{"id": 9, "file_name": "a\0.png"}], "annotations": []}, [r"'a\x00.png'"]),
        ({"images": [{"id": 9, "file_name": "a\ud800.png"}], "annotations": []}, ["images[0]"]),
    ],
)
def test_mistakes_in_coco_files_are_errors_with_their_place(tmp_path: Path, change: dict, named: list[str]) -> None:
    with refused(DataError, "x.json", *named):
        read(str(text(tmp_path / "x.json", json.dumps(coco(**change)))), "train", STRICT)


def test_other_json_files_are_errors_with_a_fix(tmp_path: Path) -> None:
    for words, named in (
        ("[1]", "x.json: no known format"),
        ("{\n]", "x.json:2"),
        ('{"shapes": []}', "x.json: a file of LabelMe"),
    ):
        with refused(DataError, named):
            read(str(text(tmp_path / "x.json", words)), "train")


# ---- VOC

OBJECT = "<object><name>{}</name><difficult>{}</difficult><bndbox>{}</bndbox></object>"


def voc(path: Path, image: str, *objects: tuple) -> Path:
    words = "".join(
        OBJECT.format(
            name,
            difficult,
            "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)),
        )
        for name, difficult, *box in objects
    )
    size = "<size><width>40</width><height>20</height></size>"
    return text(path, f"<annotation><filename>{image}</filename>{size}{words}</annotation>")


def voc_folder(root: Path) -> Path:
    voc(root / "Annotations" / "a.1.xml", "a.1.png", ("dog", 0, 1, 2, 3, 4), ("cat", 1, 5, 5.5, 9, 9))
    voc(root / "Annotations" / "a.2.xml", "wrong name.png")
    voc(root / "Annotations" / "图 1.xml", "图 1.jpg", ("bird", 0, 1, 2, 3, 4))
    for name in ("a.1.png", "a.2.png", "图 1.jpg"):
        paint(root / "JPEGImages" / name)
    return root


def test_voc_lists_select_images_and_difficult_objects_are_crowd(tmp_path: Path) -> None:
    root = voc_folder(tmp_path)
    text(root / "ImageSets" / "Main" / "train.txt", "a.1\na.2  1\n")
    text(root / "ImageSets" / "Main" / "test.txt", "图 1\n")
    found = read(str(root), "train")
    assert found.classes == ("bird", "cat", "dog")  # of the whole folder, so that every part has the same
    assert boxes(found) == [
        (str(root / "JPEGImages" / "a.1.png"), [[1, 2, 3, 4], [5, 5.5, 9, 9]], ["dog", "cat"], [False, True]),
        (str(root / "JPEGImages" / "a.2.png"), [], [], []),
    ]
    assert found.where(0) == str(root / "Annotations" / "a.1.xml")
    last = [(str(root / "JPEGImages" / "图 1.jpg"), [[1, 2, 3, 4]], ["bird"], [False])]
    assert boxes(read(str(root), "val")) == boxes(read(str(root / "ImageSets/Main/test.txt"), "train")) == last
    assert len(read(str(root), "all")) == 3
    check_images(found)
    with refused(DataError, "a.1.xml: object 2", "'cat'", "(dog, bird)"):
        read(str(root), "train", ReadOptions(classes=("dog", "bird")))


def test_mistakes_in_voc_files_are_errors_with_their_file(tmp_path: Path) -> None:
    root = voc_folder(tmp_path)
    text(root / "Annotations" / "bad.xml", "<annotation><object>")
    voc(root / "Annotations" / "words.xml", "words.png", ("dog", 0, 1, 2, "x", 4))
    voc(root / "Annotations" / "flat.xml", "flat.png", ("dog", 0, 1, 2, 1, 4))
    with pytest.raises(DataError) as caught:
        read(str(root), "train")
    for place in ("bad.xml: ", "words.xml: object 1: 'dog'"):
        assert place in str(caught.value)
    text(root / "ImageSets" / "Main" / "train.txt", "a.1\nnone\n")
    with refused(DataError, "train.txt:2", "none.xml"):
        read(str(root), "train")
    text(root / "ImageSets" / "Main" / "train.txt", "flat\n"), paint(root / "JPEGImages" / "flat.png")
    with refused(DataError, "flat.xml: object 1", "1,2,1,4"):
        read(str(root), "train", STRICT)
    with refused(DataError, "val or valid or validation or test.txt", "train.txt"):
        read(str(root), "val")


# ---- YOLO


def yolo(root: Path, yaml: str = "train: train/images\nval: val/images\nnames: [cat, dog]\n") -> str:
    for part in ("train", "val"):
        paint(root / part / "images" / "a 1.png"), paint(root / part / "images" / "b.png", 100, 50)
        text(root / part / "labels" / "a 1.txt", "1 0.5 0.5 0.5 0.5\n\n0 0.1 0.2 0.3 0.2 0.3 0.8\n")
    return str(text(root / "data.yaml", yaml))


@pytest.mark.parametrize(
    "yaml",
    [
        "train: train/images\nval: val/images\nnames: [cat, dog]\nnc: 2\n",
        "train: ../train/images\nval: ../val/images\nnames:\n  0: cat\n  1: dog\n",
        "path: .\ntrain: [train/images]\nvalid: val/images\nnames: [cat, dog]\n",
        "path: ../somewhere/else\ntrain: ./train/images\ntest: val/images\nnames: [cat, dog]\n",
        "train: train.txt\nval: val/images\nnames: [cat, dog]\n",
    ],
)
def test_one_yolo_yaml_has_both_parts(tmp_path: Path, yaml: str) -> None:
    text(tmp_path / "set" / "train.txt", "./train/images/a 1.png\ntrain/images/b.png\n")
    path = yolo(tmp_path / "set", yaml)
    for part, source in (("train", path), ("val", path), ("train", str(tmp_path / "set"))):
        found, _ = check_images(read(source, part))
        assert found.classes == ("cat", "dog")
        assert [Path(found.path(i)).resolve() for i in range(2)] == [
            tmp_path / "set" / part / "images" / "a 1.png",
            tmp_path / "set" / part / "images" / "b.png",
        ]
        corners, labels, _ = found.boxes_of(0)
        assert np.allclose(corners, [[10, 5, 30, 15], [4, 4, 12, 16]]) and labels.tolist() == [1, 0]  # a polygon's box
        assert len(found.boxes_of(1)[0]) == 0
    assert len(read(path, "all")) == 4


def test_yolo_boxes_are_fractions_of_the_image_after_exif_rotation(tmp_path: Path) -> None:
    from PIL import Image

    path, exif = yolo(tmp_path), Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (40, 20)).save(tmp_path / "train/images/a 1.png", exif=exif)  # 20 x 40 after rotation
    found = read(path, "train")
    assert found.sizes[0].tolist() == [40, 20] and np.allclose(found.boxes[0], [5, 10, 15, 30])


def test_yolo_names_stay_text(tmp_path: Path) -> None:
    assert read(yolo(tmp_path, "train: train/images\nnames: [no, 1e3]\n"), "train").classes == ("no", "1e3")
    assert read(yolo(tmp_path, "train: train/images\nnc: 3\n"), "train").classes == ("0", "1", "2")


def test_a_list_of_classes_names_the_numbers_of_a_data_file_with_nc_only(tmp_path: Path) -> None:
    path = yolo(tmp_path, "train: train/images\nnc: 2\n")
    (note,) = (note for note in read(path, "train").notes if "classes=FILE" in note)
    assert path in note
    found = read(path, "train", read_options(classes=str(text(tmp_path / "names.txt", "cat\ndog\n"))))
    assert boxes(found)[0][2] == ["dog", "cat"] and not any("classes=FILE" in note for note in found.notes)


@pytest.mark.parametrize(
    ("yaml", "named"),
    [
        ("train: nowhere\nnames: [cat, dog]\n", "nowhere"),
        ("val: val/images\nnames: [cat, dog]\n", "entry train"),
        ("train: train/images\nnames: [cat, dog]\nnc: 3\n", "nc is 3"),
        ("train: train/images\nnames: {0: cat, 2: dog}\n", "names must be 0 to 1"),
        ('train: "C:\\new\\train"\nnames: [cat, dog]\n', r"'C:\new\train'"),
        ('train: "C:\\data"\nnames: [cat, dog]\n', "character 'd'"),
        ("train: train/images\nnames: [cat, dog]\nkpt_shape: [17, 3]\n", "kpt_shape"),
        ("train: train/labels\nnames: [cat, dog]\n", "train/labels"),
        ("just words", "train, val and names"),
    ],
)
def test_mistakes_in_yolo_yamls_are_errors(tmp_path: Path, yaml: str, named: str) -> None:
    with refused(DataError, "data.yaml", named):
        read(yolo(tmp_path, yaml), "train")


@pytest.mark.parametrize(
    ("label", "named"),
    [
        ("2 .5 .5 .1 .1", "class 2, but the list of classes has 2 names (0-1)"),
        ("0 .5 .5 .1", "4 numbers"),
        ("0 .5 .5 .1 .1 .9", "5 numbers"),
        ("0 20 10 8 8", "20"),
        ("0 .5 .5 .2 .2 .5 .5 2 .5 .6 2", "class x y width height"),  # key points with their visibility
        ("0 .5 .5 .2 .3 .9 7", "class x y width height"),  # the track of a box
        ("cat .5 .5 .1 .1", "cat"),
        ("1_0 .5 .5 .2 .2", "1_0"),  # Python reads 1_0 as 10
        ("0 .5 .5 0 .1", "box 50,22.5,50,27.5"),
    ],
)
def test_mistakes_in_yolo_labels_are_errors_with_their_line(tmp_path: Path, label: str, named: str) -> None:
    path = yolo(tmp_path)
    text(tmp_path / "train" / "labels" / "b.txt", f"0 .5 .5 .1 .1\n{label}\n")
    with refused(DataError, "b.txt:2", named):
        read(path, "train", STRICT)


def test_unreadable_yolo_images_are_reported_by_check_images(tmp_path: Path) -> None:
    path = yolo(tmp_path)
    (tmp_path / "train" / "images" / "a 1.png").write_bytes(b"not an image")
    text(tmp_path / "train" / "labels" / "b.txt", "0 .5 .5 .1 .1\n")
    found = read(path, "train")
    with refused(DataError, "a 1.txt", "a 1.png"):
        check_images(found)
    assert [row[2] for row in boxes(check_images(found, ReadOptions(bad_images="skip"))[0])] == [["cat"]]


# ---- polygons


def polygon_in(kind: str, folder: Path, points: list) -> Path:
    """A data set of one image with a polygon."""
    flat = [value for point in points for value in point]
    if kind == "yolo":
        text(folder / "classes.txt", "dog\n")
        return text(folder / "labels" / "a.txt", " ".join(["0", *(str(value / 100) for value in flat)])).parents[1]
    if kind == "labelme":
        shape = {"label": "dog", "points": points}
        return text(folder / "a.json", {"imagePath": "images/a.png", "shapes": [shape]}).parent
    if kind == "via":
        around = {"name": "polygon", "all_points_x": flat[::2], "all_points_y": flat[1::2]}
        region = {"shape_attributes": around, "region_attributes": {"class": "dog"}}
        return text(folder / "via.json", {"a": {"filename": "images/a.png", "size": 1, "regions": [region]}})
    categories, one = [{"id": 1, "name": "dog"}], {"image_id": 1, "category_id": 1, "segmentation": [flat]}
    images = [{"id": 1, "file_name": "images/a.png"}]
    return text(folder / "coco.json", {"images": images, "annotations": [one], "categories": categories})


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("yolo", "a.txt:1"),
        ("labelme", "a.json: object 1"),
        ("via", "via.json: images/a.png, region 1"),
        ("coco", "coco.json"),
    ],
)
def test_a_polygon_with_nan_in_its_middle_is_an_error(tmp_path: Path, kind: str, place: str) -> None:
    """min() and max() of Python overlook NaN there."""
    paint(tmp_path / "images" / "a.png")
    points = [[1, 1], [5, 3], [2, 7]]
    assert len(read(str(polygon_in(kind, tmp_path, points)), "all").boxes) == 1
    points[1][1] = float("nan")
    with refused(DataError, "nan,nan,nan,nan", place):
        read(str(polygon_in(kind, tmp_path, points)), "all", ReadOptions(bad_boxes="drop"))


# ---- real data


def test_boxes_without_area_in_bccd_are_named(shared: Path) -> None:
    root = str(shared / "data" / "bccd" / "BCCD")
    for part, name in (("train", "BloodImage_00343.xml"), ("val", "BloodImage_00338.xml")):
        with refused(DataError, f"{name}: object", "bad_boxes=drop"):
            read(root, part, STRICT)
    parts = {part: read(root, part) for part in ("train", "val", "test", "all")}
    assert [len(found) for found in parts.values()] == [205, 87, 72, 364]
    assert len(parts["all"].boxes) == 4888 - 2 and len(parts["all"].notes) == 1
    assert {found.classes for found in parts.values()} == {("Platelets", "RBC", "WBC")}


def test_raccoon_and_coco_are_read_completely(shared: Path) -> None:
    found = read(str(shared / "data" / "raccoon"), "train")
    assert len(found) == 200 and found.boxes_per_class().tolist() == [217]
    path = shared / "data" / "coco_train337" / "instances_train2017_subset.json"
    found, truth = read(str(path), "train"), json.loads(path.read_text())
    assert (len(found), len(found.boxes), int(found.crowd.sum()), len(found.classes)) == (337, 2838, 28, 80)
    rows = {(a["image_id"], a["category_id"], tuple(np.round(a["bbox"], 6)), a["area"]) for a in truth["annotations"]}
    mine = {
        (a["image_id"], a["category_id"], tuple(np.round(a["bbox"], 6)), a["area"]) for a in found.coco()["annotations"]
    }
    assert mine == rows


def test_a_data_file_with_names_only_has_the_splits_of_the_folders_of_its_images(tmp_path: Path) -> None:
    """All images were training images."""
    for split, count in (("train", 3), ("val", 2)):
        for number in range(count):
            paint(tmp_path / f"images/{split}/{number}.png")
            text(tmp_path / f"labels/{split}/{number}.txt", "0 .5 .5 .2 .2\n")
    text(tmp_path / "data.yaml", "names: [cat]\n")
    assert [len(read(str(tmp_path), split)) for split in ("train", "val")] == [3, 2]
