"""The same three images as exports of annotation tools hold them: the truth, and the forms that several exporters share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from files import paint

from datasets.formats.options import ReadOptions

SIZES = {"one cat.jpg": (80, 60), "b.jpg": (64, 48), "empty.jpg": (32, 32)}  # width, height
BOXES = {  # x1, y1, x2, y2, class
    "one cat.jpg": [(8, 6, 40, 36, "cat"), (41, 12, 80, 54, "dog")],
    "b.jpg": [(7, 5, 18, 40, "dog")],
    "empty.jpg": [],
}
CLASSES = ("cat", "dog")
LABELED = ["one cat.jpg", "b.jpg"]
ALL = [*LABELED, "empty.jpg"]


class Export(NamedTuple):
    source: str = "."  # what train= names, in the folder of the export
    splits: dict[str, list[str]] = {"train": ALL}  # split -> its images
    options: ReadOptions = ReadOptions()
    atol: float = 0.01  # pixels by which boxes may differ, because the exporter rounds
    renamed: Callable[[str], str] = str  # the name of an image in the export
    notes: tuple[str, ...] = ()  # words of the notes, one for each


def each(make: Callable[..., Any], name: str) -> list[Any]:
    """Returns what `make` returns for the boxes of an image, from the corners and the class."""
    return [make(*row) for row in BOXES[name]]


def images(folder: Path, names: list[str] = ALL, renamed: Callable[[str], str] = str) -> None:
    for name in names:
        paint(folder / renamed(name), *SIZES[name])


def stem(name: str) -> str:
    return name.rpartition(".")[0]


def voc(name: str, pixel: int = 0, more: str = "") -> str:
    """Returns the text of a VOC file; `pixel`: where the coordinates begin."""
    objects = each(
        lambda x1, y1, x2, y2, label: (
            f"<object><name>{label}</name><pose>Unspecified</pose><truncated>0</truncated>"
            f"<difficult>0</difficult><bndbox><xmin>{max(x1, pixel)}</xmin><ymin>{max(y1, pixel)}</ymin><xmax>{x2}</xmax>"
            f"<ymax>{y2}</ymax></bndbox></object>"
        ),
        name,
    )
    width, height = SIZES[name]
    size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
    return f"<annotation><folder>x</folder><filename>{name}</filename>{more}{size}{''.join(objects)}</annotation>"


def yolo(name: str) -> str:
    width, height = SIZES[name]
    rows = each(
        lambda x1, y1, x2, y2, label: (
            f"{CLASSES.index(label)} {(x1 + x2) / 2 / width:.6f} {(y1 + y2) / 2 / height:.6f} "
            f"{(x2 - x1) / width:.6f} {(y2 - y1) / height:.6f}\n"
        ),
        name,
    )
    return "".join(rows)


def polygon(x1: int, y1: int, x2: int, y2: int) -> list[list[int]]:
    return [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]


def coco(names: list[str], first: int, renamed: Callable[[str], str] = str) -> dict[str, Any]:
    """Returns images and annotations of COCO; ids begin with `first`, and ids of categories with 1."""
    rows = [
        {"id": number, "license": first, "file_name": renamed(name), "width": SIZES[name][0], "height": SIZES[name][1]}
        for number, name in enumerate(names, first)
    ]
    boxes = [(number, *row) for number, name in enumerate(names, first) for row in BOXES[name]]
    shapes = [
        {"id": number, "image_id": image, "category_id": CLASSES.index(label) + 1, "segmentation": [], "iscrowd": 0}
        | {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
        for number, (image, x1, y1, x2, y2, label) in enumerate(boxes, first)
    ]
    return {"images": rows, "annotations": shapes}
