"""Boxes that are fractions of the image in a format of pixels: a file of such boxes is an error."""

from pathlib import Path

import pytest
from files import boxes, paint, text
from refused import refused

from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from tools.check import check

CORNERS = ((0.1, 0.2, 0.5, 0.75), (0, 0, 0.5, 0.6))  # fractions
PIXELS = (4, 5, 20, 15)
DROP = ReadOptions(bad_boxes="drop")


def coco(folder: Path, rows, **size: int) -> Path:
    extents = [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in rows]
    shapes = [{"id": n, "image_id": 1, "category_id": 1, "bbox": extent} for n, extent in enumerate(extents)]
    images = [{"id": 1, "file_name": "a.png"} | size]
    categories = [{"id": 1, "name": "cat"}]
    return text(folder / "x.json", {"images": images, "annotations": shapes, "categories": categories})


def voc(folder: Path, rows) -> Path:
    names = ("xmin", "ymin", "xmax", "ymax")
    sides = ("".join(f"<{name}>{value}</{name}>" for name, value in zip(names, row, strict=True)) for row in rows)
    shapes = (f"<object><name>cat</name><bndbox>{box}</bndbox></object>" for box in sides)
    return text(folder / "a.xml", f"<annotation><filename>a.png</filename>{''.join(shapes)}</annotation>").parent


def labelme(folder: Path, rows) -> Path:
    shapes = [{"label": "cat", "shape_type": "rectangle", "points": [row[:2], row[2:]]} for row in rows]
    return text(folder / "a.json", {"imagePath": "a.png", "shapes": shapes}).parent


def cvat(folder: Path, rows) -> Path:
    places = ("xtl", "ytl", "xbr", "ybr")
    sides = (" ".join(f'{key}="{value}"' for key, value in zip(places, row, strict=True)) for row in rows)
    shapes = "".join(f'<box label="cat" {box}/>' for box in sides)
    return text(folder / "a.xml", f'<annotations><image name="a.png">{shapes}</image></annotations>')


def annotation_file(folder: Path, rows) -> Path:
    words = (",".join(map(str, (*row, 0))) for row in rows)
    return text(folder / "train.txt", f"a.png {' '.join(words)}\n")


def table(folder: Path, rows) -> Path:
    lines = (",".join(map(str, ("a.png", *row, "cat"))) for row in rows)
    return text(folder / "a.csv", "\n".join(["image,x1,y1,x2,y2,class", *lines]))


WRITERS = (coco, voc, labelme, cvat, annotation_file, table)


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("options", [ReadOptions(), DROP])
def test_fractions_in_a_format_of_pixels_are_an_error(tmp_path: Path, writer, options: ReadOptions) -> None:
    paint(tmp_path / "a.png")
    path = writer(tmp_path, CORNERS)
    with pytest.raises(DataError) as caught:
        read(path, "train", options)
    message = str(caught.value)
    assert path.name in message and "fractions" in message and "YOLO" in message
    with refused(DataError, path.name, "0.1,0.2,0.5,0.75"):
        check(str(path))


def test_centers_and_sizes_in_fractions_are_an_error_in_coco(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    with refused(DataError, "x.json", "0.5,0.5,1.4,1.3"):
        read(coco(tmp_path, [(0.5, 0.5, 1.4, 1.3), (0.75, 0.8, 1, 1.1)]), "train", DROP)


@pytest.mark.parametrize(
    ("row", "width", "height"),
    [
        ((0, 0, 1, 1), 40, 20),  # a pixel, as whole numbers
        ((0.25, 0.5, 0.75, 18), 1, 20),
        ((0.5, 0.5, 1.75, 1.75), 40, 20),
        ((7.25, 9.5, 7.75, 9.75), 40, 20),  # less than a pixel, but somewhere in the image
    ],
)
def test_small_boxes_in_pixels_stay(tmp_path: Path, row, width: int, height: int) -> None:
    paint(tmp_path / "a.png", width, height)
    paths = [
        labelme(tmp_path, [row]),
        annotation_file(tmp_path, [row]),
        coco(tmp_path, [row], width=width, height=height),
    ]
    for path in paths:
        assert boxes(read(path, "train"))[0][1] == [list(row)]
