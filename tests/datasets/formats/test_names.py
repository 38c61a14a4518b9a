"""Names that are written in several ways: of classes, images and label files."""

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from files import boxes, coco, cvat, paint, text, voc
from PIL import Image
from refused import refused

from datasets.check_images import check_images
from datasets.classes import class_notes, parse_merge, with_known_classes
from datasets.errors import DataError
from datasets.formats.options import ReadOptions, read_options
from datasets.formats.read import read
from deploy.thresholds import only_classes
from nets.pretrained import shared_classes
from utils.images import FORMATS, IMAGE_SUFFIXES

LABEL = "0 .125 .25 .2 .3\n"  # the box 1,2,9,8 of an image of 40 x 20
NFC, NFD = (unicodedata.normalize(form, "Grün é") for form in ("NFC", "NFD"))
LION, LION_NFD = (unicodedata.normalize(form, "Löwe") for form in ("NFC", "NFD"))


def put(kind: str, root: Path, image: str, name: str = "cat", label: str = "labels/{}.txt") -> str:
    """Writes label files of a format that name `image`, and returns what is read. `label`: where YOLO has its label file."""
    stem = Path(image.replace("\\", "/")).stem
    if kind in ("yolo", "list", "data.yaml", "darknet"):
        text(root / "classes.txt", f"{name}\n"), text(root / label.format(stem), LABEL)
    match kind:
        case "yolo":
            return str(root)
        case "list":
            return str(text(root / "train.txt", f"{image}\n"))
        case "data.yaml":
            text(root / "list.txt", f"{image}\n")
            return str(text(root / "data.yaml", f"train: list.txt\nnames: ['{name}']\n"))
        case "darknet":
            text(root / "list.txt", f"{image}\n")
            return str(text(root / "obj.data", "train = list.txt\nnames = classes.txt\n"))
        case "lines":
            text(root / "classes.txt", f"{name}\n")
            return str(text(root / "2007_train.txt", f"{image} 1,2,9,8,0\n"))
        case "coco":
            data = coco(image) | {"categories": [{"id": 1, "name": name}]}
            return str(text(root / "boxes.json", data))
        case "csv":
            return str(text(root / "boxes.csv", f"path,x1,y1,x2,y2,class\n{image},1,2,9,8,{name}\n"))
        case "cvat":
            return str(text(root / "boxes.xml", cvat(image).replace("cat", name)))
        case "voc":
            text(root / "Annotations" / f"{stem}.xml", voc(name, image=Path(image).name))
            text(root / "ImageSets" / "Main" / "train.txt", f"{stem}\n")
            return str(root)
        case "labelme":
            shape = {"label": name, "points": [[1, 2], [9, 8]], "shape_type": "rectangle"}
            text(root / "labelme" / f"{stem}.json", {"imagePath": Path(image).name, "shapes": [shape]})
            return str(root / "labelme")
    raise ValueError(kind)


WITH_PATHS = ["list", "data.yaml", "darknet", "lines", "coco", "csv", "cvat"]
KINDS = ["yolo", *WITH_PATHS, "voc", "labelme"]


def the_box(source: str, **options) -> tuple[str, str]:
    """The image and the class of the only image, which must be readable and have the box."""
    found, _ = check_images(read(source, "train", ReadOptions(**options)))
    ((path, corners, names, _),) = boxes(found)
    assert [[round(value, 3) for value in corner] for corner in corners] == [[1, 2, 9, 8]]
    return path, names[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("there", "written"), [(NFD, NFC), (NFC, NFD), ("a.b", "A.b"), ("IMG", "img")])
def test_a_file_is_found_by_its_name_in_another_form_or_case(
    tmp_path: Path, kind: str, there: str, written: str
) -> None:
    image = paint(tmp_path / "images" / f"{there}.png")
    assert the_box(put(kind, tmp_path, f"images/{written}.png"))[0].endswith(image.name)


@pytest.mark.parametrize("kind", ["yolo", "list", "data.yaml"])
def test_an_image_never_gets_the_label_file_of_one_that_differs_in_case(tmp_path: Path, kind: str) -> None:
    for name in ("a", "A"):
        paint(tmp_path / "images" / f"{name}.png")
    source = put(kind, tmp_path, "images/A.png")
    if kind != "yolo":
        text(tmp_path / ("train.txt" if kind == "list" else "list.txt"), "images/A.png\nimages/a.png\n")
    found = {Path(path).name: len(corners) for path, corners, *_ in boxes(read(source, "train"))}
    assert found == {"A.png": 1, "a.png": 0}


@pytest.mark.parametrize("there", [NFC, NFD])
def test_rows_with_both_forms_of_a_name_are_of_one_image(tmp_path: Path, there: str) -> None:
    """A table that was written on a Mac and continued elsewhere."""
    paint(tmp_path / "images" / f"{there}.png")
    rows = [f"{name}.png,{place},2,9,8,cat" for place, name in enumerate((NFC, NFD))]
    source = text(tmp_path / "boxes.csv", "\n".join(["path,x1,y1,x2,y2,class", *rows]) + "\n")
    ((path, corners, *_),) = boxes(check_images(read(str(source), "train"))[0])
    assert Path(path).name == f"{there}.png" and len(corners) == 2


def test_two_names_never_become_one_image(tmp_path: Path) -> None:
    paint(tmp_path / "images" / "A.png")
    source = text(tmp_path / "boxes.json", coco("images/a.png", "images/A.png"))
    with refused(DataError, "1 of 2", "a.png"):
        check_images(read(str(source), "train"))


@pytest.mark.parametrize("kind", KINDS)
def test_class_names_are_composed(tmp_path: Path, kind: str) -> None:
    paint(tmp_path / "images" / "a.png")
    source = put(kind, tmp_path, "images/a.png", LION_NFD)
    for name in (LION, LION_NFD):
        assert the_box(source)[1] == LION
        assert read(source, "train", read_options(classes=name)).classes == (LION,)
        assert read(source, "train", read_options(merge=f"{name}:x")).classes == ("x",)
        assert the_box(source, classes=(name,))[1] == name, "the names of a checkpoint stay as they are"


def test_the_classes_of_several_sets_and_of_a_model_are_compared_in_one_form(tmp_path: Path) -> None:
    for folder, name in (("a", LION), ("b", LION_NFD)):
        paint(tmp_path / folder / "images" / f"{folder}.png")
        put("csv", tmp_path / folder, f"images/{folder}.png", name)
    found = read(f"{tmp_path / 'a'},{tmp_path / 'b'}", "train")
    assert found.classes == (LION,) and found.annotated is None
    with refused(DataError, "add_classes"):
        with_known_classes((LION_NFD,), found, found, are_chosen=False)
    assert shared_classes([LION_NFD], [LION]) == {0: 0}
    assert only_classes(0.5, ("cat", LION_NFD), LION).tolist() == [torch.inf, 0.5]


PAIRS = [("stop-sign", "stop_sign"), ("Stop Sign", "stopsign"), ("stop\u200bsign", "stopsign"), ("so\xadfa", "sofa")]
PAIRS += [("dog’s", "dog's"), ("M&M", "M&amp;M"), ("car", "c\u0430r"), ("KIRMIZI", "k\u0131rm\u0131z\u0131")]
PAIRS += [("ＡＢ", "ab"), ("ﬁsh", "fish"), ("a, b", "A, b"), ("Straße", "strasse")]


@pytest.mark.parametrize("pair", PAIRS)
def test_names_that_look_alike_are_named_with_the_merge_that_joins_them(
    tmp_path: Path, pair: tuple[str, str], shell: Callable
) -> None:
    (note,) = class_notes(["cat", *pair])
    assert parse_merge(shell(note)["merge"]) == {pair[1]: pair[0]}
    for folder, name in zip("ab", pair, strict=True):
        paint(tmp_path / folder / f"{folder}.png")
        text(tmp_path / folder / "boxes.json", coco(f"{folder}.png") | {"categories": [{"id": 1, "name": name}]})
    source = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    with pytest.raises(DataError) as caught:
        read(source, "train")
    assert read(source, "train", ReadOptions(**shell(str(caught.value)))).classes == (pair[0],)


@pytest.mark.parametrize("kind", ["yolo", "list", "data.yaml"])
@pytest.mark.parametrize(("image", "label"), [("a-b", "a_b"), ("a b", "ab"), ("a\u200bb", "ab"), ("ＡＢ", "ab")])
def test_an_image_and_a_label_file_without_a_partner_that_look_alike_are_an_error(
    tmp_path: Path, kind: str, image: str, label: str
) -> None:
    for name in ("other", image):
        paint(tmp_path / "images" / f"{name}.png")
    put(kind, tmp_path, f"images/{image}.png")
    source = put(kind, tmp_path, "images/other.png")
    if kind != "yolo":
        text(tmp_path / ("train.txt" if kind == "list" else "list.txt"), f"images/other.png\nimages/{image}.png\n")
    wrong = (tmp_path / "labels" / f"{image}.txt").rename(tmp_path / "labels" / f"{label}.txt")
    with refused(DataError, wrong, "problems: 1"):
        read(source, "train")
    paint(tmp_path / "images" / f"{label}.png")  # then it has an image of its own
    assert len(read(source, "train").boxes) == 1 + (kind == "yolo")


@pytest.mark.parametrize("kind", WITH_PATHS)
@pytest.mark.parametrize("place", ["/home/me/data", "C:\\data\\new", "../other"])
@pytest.mark.parametrize("near", [True, False])
def test_paths_of_another_computer_are_found_by_name(tmp_path: Path, kind: str, place: str, near: bool) -> None:
    root = tmp_path / "set" if near else tmp_path / "far"
    image = paint(root / "images" / "a.png")
    slash = "\\" if "\\" in place else "/"
    source = put(kind, tmp_path / "set", f"{place}{slash}pictures{slash}a.png", label=str(root / "labels/a.txt"))
    options = {} if near else {"image_root": str(root)}
    assert Path(the_box(source, **options)[0]).resolve() == image


@pytest.mark.parametrize("kind", WITH_PATHS)
def test_the_most_last_parts_of_a_path_decide_between_images_of_one_name(tmp_path: Path, kind: str) -> None:
    for folder in ("a", "b"):
        paint(tmp_path / "images" / folder / "1.png")
    assert the_box(put(kind, tmp_path, "/x/b/1.png", label="labels/b/1.txt"))[0].endswith("b/1.png")
    with refused(DataError, "a/1.png", "b/1.png", "image_root=FOLDER"):
        the_box(put(kind, tmp_path, "/x/c/1.png", label="labels/b/1.txt"))


@pytest.mark.parametrize("kind", WITH_PATHS)
def test_an_image_of_another_split_is_another_image(tmp_path: Path, kind: str) -> None:
    paint(tmp_path / "images" / "val" / "1.png")
    with refused(DataError, "1.png"):
        the_box(put(kind, tmp_path, "/x/train/1.png"))


def test_the_suffixes_of_images_are_those_that_can_be_read() -> None:
    Image.init()
    known = {suffix for suffix, kind in Image.registered_extensions().items() if kind in FORMATS}
    assert set(IMAGE_SUFFIXES) == known - {".dib", ".pfm"}  # the first cannot be decoded, the second holds floats
