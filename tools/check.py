"""Checks a data set before training: counts, images that cannot be read, suspicious boxes, duplicates.

    python -m tools.check DATA [val=VAL] [size=416] [classes=FILE] [image_root=DIR] [json=FILE] [page=FILE.png]

Prints the report, writes it to `json`, and draws a contact sheet of images with their boxes to `page`. The exit status is
1 if training would refuse the data.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import cv2
import numpy as np

from datasets.errors import DataError, first_ten
from datasets.formats import read, read_classes
from datasets.scan import clipped_boxes, prepare, scan
from datasets.store import Annotations, Classes
from utils.boxes import area
from utils.config import override
from utils.draw import contact_sheet, draw_boxes, write_image
from utils.images import read_image

COVERING = 0.98  # fraction of the image's area; such a box labels the image rather than an object
THIN = 20  # ratio of the sides
SMALL = (8, 16, 32)  # pixels of the network's input; the finest stride of the networks is 8
IMBALANCE = 100  # ratio of the boxes of the most frequent class and of the rarest

Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Config:
    val: str | None = None  # validation data, checked too and compared with DATA
    size: Size = (416, 416)  # height, width of the network's input, or one number for both
    classes: str | None = None  # a file of class names; none: those of the data
    image_root: str | None = None  # the folder of the images of a COCO JSON
    json: str | None = None  # a file for the report
    page: str | None = None  # a file for the contact sheet, .png or .jpg


def check(
    data: str, val: str | None = None, size: Size = (416, 416), classes: Classes = None, image_root: str | None = None
) -> tuple[dict[str, Any], Annotations]:
    """Returns (report of plain values, the usable annotations of `data`). Raises DataError if there are none.

    "train" and "val" are results of `examine`; "between" lists pairs of equal images in both, "errors" what training
    refuses, "warnings" what may harm it."""
    train, good, contents = examine(data, "train", size, classes, image_root)
    report = {"size": list(size), "train": train, "errors": list(train["errors"]), "warnings": _warnings(train)}
    if val is not None:
        report["val"], _, others = examine(val, "val", size, good.classes, image_root)
        report["between"] = [[contents[key], others[key]] for key in contents if key in others]
        report["errors"] += report["val"]["errors"]
        report["warnings"] += _warnings(report["val"])
        if report["between"]:
            report["warnings"].append(f"images of equal content in train and val: {len(report['between'])}")
    return report, good


def examine(
    source: str, part: str, size: Size, classes: Classes, image_root: str | None
) -> tuple[dict[str, Any], Annotations, dict[int, str]]:
    """Examines one part -> (report, usable annotations, path by digest). Raises DataError if nothing can be read."""
    errors: list[str] = []
    found = _leniently(errors, lambda strict: read(source, part, classes, image_root, "error" if strict else "drop"))
    paths = [found.path(i) for i in range(len(found))]
    scanned = scan(paths)
    good, notes = _leniently(errors, lambda strict: prepare(found, not strict, "error" if strict else "drop"))
    by_content: dict[int, list[str]] = {}
    for path, digest in zip(paths, scanned.digests.tolist(), strict=True):
        if digest:
            by_content.setdefault(digest, []).append(path)
    report = {
        "source": source,
        "images": len(found),
        "unreadable": [scanned.problems[i] for i in sorted(scanned.problems)],
        "turned_by_exif": int((scanned.orientations > 1).sum()),
        "backgrounds": int((np.diff(good.starts) == 0).sum()),
        "duplicates": [group for group in by_content.values() if len(group) > 1],
        "classes": dict(zip(good.classes, good.boxes_per_class().tolist(), strict=True)),
        **_boxes(good, size),
        "notes": notes,
        "errors": errors if len(good.boxes) else [*errors, f"{source}: no boxes at all: is it the right file?"],
    }
    return report, good, {digest: group[0] for digest, group in by_content.items()}


def _leniently(errors: list[str], work: Callable[[bool], Any]) -> Any:
    """Returns work(strict=True), or after a DataError, whose first line is added to `errors`, work(strict=False)."""
    try:
        return work(True)
    except DataError as error:
        errors.append(str(error).partition("\n")[0])
    return work(False)


def _boxes(annotations: Annotations, size: Size) -> dict[str, Any]:
    """Counts of all boxes except crowd regions, and the places of suspicious ones."""
    rows = np.flatnonzero(~annotations.crowd)
    boxes, written = clipped_boxes(annotations)[rows], annotations.boxes[rows]
    images = annotations.image_of_boxes()[rows]
    shape = annotations.sizes[images].astype(float)  # height, width
    sides = np.sqrt(area(boxes)) * (np.array(size) / shape).min(1)
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    keys = np.column_stack([images, annotations.labels[rows], written])
    first, groups = np.unique(keys, axis=0, return_index=True, return_inverse=True)[1:]

    def places(mask: np.ndarray) -> list[str]:
        text = [",".join(f"{value:g}" for value in box) for box in written[mask]]
        return [f"{annotations.where(i)}: {box}" for i, box in zip(images[mask], text, strict=True)]

    return {
        "boxes": len(rows),
        "crowd": len(annotations.boxes) - len(rows),
        "smaller_than": {str(side): int((sides < side).sum()) for side in SMALL},
        "clipped": int((np.abs(boxes - written) > 0.01).any(1).sum()),
        "suspicious": {
            "covering": places(area(boxes) >= COVERING * shape.prod(1)),
            "thin": places(np.maximum(width / height, height / width) > THIN),
            "twice": places(first[groups.reshape(-1)] != np.arange(len(rows))),
        },
    }


def _warnings(part: dict[str, Any]) -> list[str]:
    source, counts = part["source"], part["classes"]
    empty = [name for name, number in counts.items() if not number]
    present = [number for number in counts.values() if number]
    found = [f"{source}: classes without a box: {', '.join(empty)}"] if empty else []
    if present and max(present) > IMBALANCE * min(present):
        ratio = max(present) / min(present)
        found.append(f"{source}: the most frequent class has {ratio:.0f} times the boxes of the rarest one")
    if part["duplicates"]:
        found.append(f"{source}: groups of images of equal content: {len(part['duplicates'])}")
    return found


def text_of(report: dict[str, Any]) -> str:
    """Returns the report as text; long lists end after ten lines."""
    lines = []
    for name in ("train", "val"):
        lines += _part_lines(name, report[name], report["size"]) if name in report else []
    lines += _ten([" = ".join(pair) for pair in report.get("between", ())], "images of equal content in both")
    for kind in ("warnings", "errors"):
        lines += [f"\n{kind}:", *(f"  {line}" for line in report[kind])] if report[kind] else []
    return "\n".join(lines)


def _part_lines(name: str, part: dict[str, Any], size: list[int]) -> list[str]:
    width = max([5, *(len(name) for name in part["classes"])])
    smaller = ", ".join(f"{count} below {side} px" for side, count in part["smaller_than"].items())
    return [
        f"\n{name}: {part['source']}",
        f"  images {part['images']} (without boxes {part['backgrounds']}, unreadable {len(part['unreadable'])}, "
        f"rotated by EXIF {part['turned_by_exif']})",
        f"  boxes {part['boxes']} (besides {part['crowd']} crowd regions; clipped {part['clipped']})",
        f"  at {size[0]}x{size[1]}: {smaller}",
        f"  {'class':{width}}  boxes",
        *(f"  {name:{width}}  {count}" for name, count in part["classes"].items()),
        *_ten([" = ".join(group) for group in part["duplicates"]], "images of equal content"),
        *_ten(part["suspicious"]["covering"], "boxes that cover their whole image"),
        *_ten(part["suspicious"]["thin"], f"boxes more than {THIN} times longer than wide"),
        *_ten(part["suspicious"]["twice"], "repeated boxes"),
        *(indent(note, "  ") for note in part["notes"]),
    ]


def _ten(places: list[str], title: str) -> list[str]:
    return [f"  {title}: {len(places)}", indent(first_ten(places), "  ")] if places else []


def page(annotations: Annotations, columns: int = 4, cell: int = 320) -> np.ndarray:
    """Draws a contact sheet of up to columns * columns images, spread over the data set, with boxes and class names.

    Crowd regions are labeled "crowd". Returns uint8 [H, W, 3] BGR.
    """
    chosen = np.unique(np.linspace(0, len(annotations) - 1, columns * columns).astype(int))
    names, drawn = (*annotations.classes, "crowd"), []
    for index in chosen.tolist():
        image = read_image(annotations.path(index))
        scale = cell / max(image.shape[:2])  # before drawing, so that the text stays readable
        shape = [max(round(side * scale), 1) for side in image.shape[1::-1]]
        image = cv2.resize(image, shape, interpolation=cv2.INTER_AREA)
        boxes, labels, crowd = annotations.boxes_of(index)
        drawn.append(draw_boxes(image, boxes * scale, np.where(crowd, len(names) - 1, labels), names))
    return contact_sheet(drawn, columns, cell)


def main(words: list[str]) -> None:
    """Runs the check with the arguments `words`; exits with status 1 if there are errors."""
    if not words or words[0].startswith("-"):
        raise SystemExit(__doc__)
    try:
        cfg = override(Config(), words[1:])
    except ValueError as error:
        raise SystemExit(str(error)) from error
    try:
        if min(cfg.size) < 1:
            raise DataError(f"size={cfg.size[0]},{cfg.size[1]}: give size=416 or size=384,640 (height,width)")
        if cfg.page and not cfg.page.lower().endswith((".png", ".jpg", ".jpeg")):
            raise DataError(f"page={cfg.page}: give a name that ends with .png or .jpg")
        classes = read_classes(cfg.classes) if cfg.classes else None
        report, good = check(words[0], cfg.val, cfg.size, classes, cfg.image_root)
        print(text_of(report))
        if cfg.page:
            write_image(cfg.page, page(good))
    except ValueError as error:
        report = {"errors": [str(error)]}
        print(error)
    if cfg.json:
        Path(cfg.json).write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")
    sys.exit(1 if report["errors"] else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
