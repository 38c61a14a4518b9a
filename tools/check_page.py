"""The data check as an HTML page that needs no other file."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from datasets.errors import first_ten
from datasets.store import Annotations, evenly_spaced
from report import page
from tools.check_split import SUSPICIOUS, Part
from utils.images import ImageError, read_image

TEMPLATE = Path(__file__).with_name("check.html")
TITLE = "Data check"
SIDE, QUALITY = 400, 80  # of a thumbnail: pixels of its longer side, JPEG quality
BOXES = 500  # boxes drawn in an image at most
SAMPLES, PAIRS, PLACES, ROWS = 12, 12, 6, 200  # images, groups of copies, images of each problem, classes at most
NAMES = 4  # class names under a thumbnail


def html_page(report: dict[str, Any], parts: dict[str, Part]) -> str:
    """Returns the page for a report and the splits of `tools.check_report.check`."""
    thumbnails = _Thumbnails(parts)
    problems, notes = _problems(thumbnails)
    classes = _classes(report, parts)
    return page.render(
        TEMPLATE,
        TITLE,
        ["Classes", "Box sizes", "Samples", "Copies", "Problems"],
        report={**report, **{name: {**report[name], "median": f"{report[name]['median_side']:g}"} for name in parts}},
        names=list(parts),
        rows=ROWS,
        counts={name: _counts(report[name]) for name in parts},
        classes=classes,
        other_classes=len(report["train"]["classes"]) - len(classes),
        samples={name: _samples(thumbnails, name) for name in parts},
        copies=_copies(thumbnails, report),
        problems=problems,
        notes=notes,
    )


def _counts(part: dict[str, Any]) -> dict[str, int]:
    return {
        "images": part["images"],
        "boxes": part["boxes"],
        "images without boxes": part["backgrounds"],
        "images that cannot be read": len(part["unreadable"]),
        "crowd regions": part["crowd"],
        "rotated by EXIF": part["turned_by_exif"],
    }


def _classes(report: dict[str, Any], parts: dict[str, Part]) -> list[dict[str, Any]]:
    """Returns the rows of the table of classes: the boxes, the images and the median size of the boxes in each split."""
    max_boxes = max([1, *(count for name in parts for count in report[name]["classes"].values())])
    rows = []
    for label, name in enumerate(list(report["train"]["classes"])[:ROWS]):
        cells = []
        for part in (report[key] for key in parts):
            boxes = part["classes"].get(name, 0)
            side = f"{part['class_sides'][label]:g}" if boxes else "–"
            images = part["class_images"][label]
            cells.append({"boxes": boxes, "percent": f"{100 * boxes / max_boxes:.1f}", "images": images, "side": side})
        rows.append({"label": label, "name": name, "cells": cells})
    return rows


def _samples(thumbnails: "_Thumbnails", name: str) -> list[dict[str, Any]]:
    good = thumbnails.parts[name].good
    return [thumbnails.of_image(name, good.path(index)) for index in evenly_spaced(len(good), SAMPLES)]


def _copies(thumbnails: "_Thumbnails", report: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns groups of equal and nearly same images, first those that are in two splits."""
    kinds: dict[str, list[list[tuple[str, str]]]] = {}
    for leak in report["leaks"]:
        title = " and ".join(leak["splits"])
        kinds[f"in {title}: {leak['kind']}"] = [
            [(_part_of(name, thumbnails), path) for name in group for path in group[name][:2]]
            for group in leak["groups"]
        ]
    for name in thumbnails.parts:
        kinds[f"within {name}"] = [[(name, path) for path in group] for group in report[name]["copies"]]
    found = []
    for title, groups in kinds.items():
        shown = []
        for group in groups[:PAIRS]:
            figures = [thumbnails.of_image(*place, caption=place[0]) for place in group[:4]]
            shown.append({"figures": figures, "others": len(group) - 4})
        if groups:
            found.append({"title": title, "count": len(groups), "groups": shown, "is_leak": title.startswith("in ")})
    return found


def _part_of(name: str, thumbnails: "_Thumbnails") -> str:
    """Returns the split that has the images: those of val=.2 are training images."""
    return name if name in thumbnails.parts else "train"


def _problems(thumbnails: "_Thumbnails") -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Returns all problems by kind (the number, images with the box where there is one, the first places), and the notes."""
    problems, notes = [], []

    def add(title: str, places: list[str], figures: Iterable[dict[str, Any]]) -> None:
        if places:
            row = {"title": title, "count": len(places), "figures": list(figures), "places": first_ten(places)}
            problems.append(row)

    for name, part in thumbnails.parts.items():
        for kind, title in SUSPICIOUS.items():
            rows = part.rows[kind][:PLACES].tolist()
            add(f"{name}: {title}", part.report["suspicious"][kind], (thumbnails.of_box(name, row) for row in rows))
        add(f"{name}: images that cannot be read", part.report["unreadable"], ())
        for note in part.report["notes"]:
            first, _, rest = note.partition("\n")
            notes.append({"title": f"{name}: {first}", "text": rest or first})
    return problems, notes


class _Thumbnails:
    """Images with their boxes, as the template shows them."""

    def __init__(self, parts: dict[str, Part]) -> None:
        self.parts = parts
        self._index = {name: {part.good.path(i): i for i in range(len(part.good))} for name, part in parts.items()}

    def of_box(self, name: str, row: int) -> dict[str, Any]:
        """Returns the image of one box, with only this box."""
        good = self.parts[name].good
        index = int(np.searchsorted(good.starts, row, "right")) - 1
        return self._figure(good, good.path(index), np.array([row]), "")

    def of_image(self, name: str, path: str, caption: str = "") -> dict[str, Any]:
        """Returns an image with all its boxes."""
        good, index = self.parts[name].good, self._index[name].get(path)
        rows = np.arange(0)
        if index is not None:
            rows = np.arange(good.starts[index], good.starts[index + 1])
        return self._figure(good, path, rows, caption)

    def _figure(self, good: Annotations, path: str, rows: np.ndarray, caption: str) -> dict[str, Any]:
        labels = np.where(good.crowd[rows], -1, good.labels[rows]).tolist()
        counts = Counter(labels).most_common()
        return {
            "image": self._image(path, list(zip(good.boxes[rows].tolist(), labels, strict=True)), good),
            "caption": caption,
            "path": path,
            "file": Path(path).name,
            "classes": [(label, _name(good, label), count) for label, count in counts[:NAMES]],
            "other_classes": max(len(counts) - NAMES, 0),
            "other_boxes": max(len(rows) - BOXES, 0),
        }

    def _image(self, path: str, boxes: list, good: Annotations) -> dict[str, Any]:
        """Returns the image as a data: URI, with its boxes in pixels, or the reason why there is none."""
        try:
            image = read_image(path, value_range=good.value_range)
        except ImageError:
            return {"problem": "cannot be read"}
        height, width = image.shape[:2]
        uri = page.data_uri(page.small_jpeg(image, SIDE, QUALITY))
        shown = []
        for (x1, y1, x2, y2), label in boxes[:BOXES]:
            sides = {"x": x1, "y": y1, "width": x2 - x1, "height": y2 - y1}
            shown.append(
                {name: f"{side:g}" for name, side in sides.items()} | {"label": label, "name": _name(good, label)}
            )
        return {"problem": "", "width": width, "height": height, "uri": uri, "boxes": shown}


def _name(good: Annotations, label: int) -> str:
    return good.classes[label] if label >= 0 else "crowd"
