"""What is wrong with a data set, before a week of training finds out.

    python -m datasets.check DATA [val=VAL] [size=416] [classes=FILE] [image_root=DIR] [json=FILE] [page=FILE.png]

Prints counts and places, and writes them as JSON; `page` is a picture of pictures with their boxes. `size` is that of
training, height,width or one number for both. The exit status is 1 if training would refuse the data as they are.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import indent
from typing import Any

import cv2
import numpy as np

from datasets.convert import arguments
from datasets.formats import read, read_classes
from datasets.images import clipped_boxes, prepare, read_image, scan
from datasets.store import Annotations, DataError, Problems
from utils.boxes import area

COVERING = 0.98  # of the picture's area: a label of the picture rather than of an object
THIN = 20  # times longer than wide
SMALL = (8, 16, 32)  # pixels of the network's input; the finest grid of the networks has cells of 8
IMBALANCE = 100  # boxes of the most frequent class for one of the rarest

_COLOURS = cv2.applyColorMap((np.arange(12) * 101 % 256).astype(np.uint8), cv2.COLORMAP_HSV)[:, 0]

Size = tuple[int, int]  # height, width
Classes = tuple[str, ...] | None


def check(
    data: str, val: str | None = None, size: Size = (416, 416), classes: Classes = None, image_root: str | None = None
) -> tuple[dict[str, Any], Annotations]:
    """-> (report of plain values, what can be used of `data`). Raises DataError where nothing can.

    report["train"] and, with `val`, report["val"] are what `examine` returns; "between" holds the pictures of equal
    content in both, "errors" what training refuses, "warnings" what it should not be given.
    """
    train, good, contents = examine(data, "train", size, classes, image_root)
    report = {"size": list(size), "train": train, "errors": list(train["errors"]), "warnings": _warnings(train)}
    if val is not None:
        report["val"], _, others = examine(val, "val", size, good.classes, image_root)
        report["between"] = [[contents[key], others[key]] for key in contents if key in others]
        report["errors"] += report["val"]["errors"]
        report["warnings"] += _warnings(report["val"])
        if report["between"]:
            report["warnings"].append(f"pictures of equal content in train and val: {len(report['between'])}")
    return report, good


def examine(
    source: str, part: str, size: Size, classes: Classes, image_root: str | None
) -> tuple[dict[str, Any], Annotations, dict[int, str]]:
    """One part -> (report, what of it can be used, content -> path). Raises DataError where nothing can be read."""
    errors: list[str] = []
    found = _leniently(errors, lambda strict: read(source, part, classes, image_root, "error" if strict else "drop"))
    paths = [found.path(i) for i in range(len(found))]
    seen = scan(paths)
    good, notes = _leniently(errors, lambda strict: prepare(found, not strict, "error" if strict else "drop"))
    by_content: dict[int, list[str]] = {}
    for path, digest in zip(paths, seen.digests.tolist(), strict=True):
        if digest:
            by_content.setdefault(digest, []).append(path)
    report = {
        "source": source,
        "pictures": len(found),
        "unreadable": [seen.problems[i] for i in sorted(seen.problems)],
        "turned_by_exif": int((seen.orientations > 1).sum()),
        "backgrounds": int((np.diff(good.starts) == 0).sum()),
        "duplicates": [group for group in by_content.values() if len(group) > 1],
        "classes": dict(zip(good.classes, good.boxes_per_class().tolist(), strict=True)),
        **_boxes(good, size),
        "notes": notes,
        "errors": errors if len(good.boxes) else [*errors, f"{source}: no boxes at all: is it the right file?"],
    }
    return report, good, {digest: group[0] for digest, group in by_content.items()}


def _leniently(errors: list[str], work: Callable[[bool], Any]) -> Any:
    """work(strict=True), or else its complaint noted and work(strict=False), whose own notes list the places."""
    try:
        return work(True)
    except DataError as error:
        result = work(False)
        errors.append(str(error).partition("\n")[0])
        return result


def _boxes(annotations: Annotations, size: Size) -> dict[str, Any]:
    """Counts over all boxes, crowd regions aside; suspicious ones with their places."""
    rows = np.flatnonzero(~annotations.crowd)
    boxes, written = clipped_boxes(annotations)[rows], annotations.boxes[rows]
    pictures = annotations.pictures_of_boxes()[rows]
    shape = annotations.sizes[pictures].astype(float)  # height, width
    sides = np.sqrt(area(boxes)) * (np.array(size) / shape).min(1)
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    keys = np.column_stack([pictures, annotations.labels[rows], written])
    first, groups = np.unique(keys, axis=0, return_index=True, return_inverse=True)[1:]
    suspicious = {
        "covering": area(boxes) >= COVERING * shape.prod(1),
        "thin": np.maximum(width / height, height / width) > THIN,
        "twice": first[groups.reshape(-1)] != np.arange(len(rows)),
    }
    return {
        "boxes": len(rows),
        "crowd": len(annotations.boxes) - len(rows),
        "smaller_than": {str(side): int((sides < side).sum()) for side in SMALL},
        "clipped": int((np.abs(boxes - written) > 0.01).any(1).sum()),
        "suspicious": {
            kind: [f"{annotations.where(pictures[i])}: {_words(written[i])}" for i in np.flatnonzero(mask)]
            for kind, mask in suspicious.items()
        },
    }


def _words(box: np.ndarray) -> str:
    return ",".join(f"{value:g}" for value in box)


def _warnings(part: dict[str, Any]) -> list[str]:
    source, counts = part["source"], part["classes"]
    empty = [name for name, number in counts.items() if not number]
    present = [number for number in counts.values() if number]
    found = [f"{source}: classes without a box: {', '.join(empty)}"] if empty else []
    if present and max(present) > IMBALANCE * min(present):
        found.append(
            f"{source}: the most frequent class has {max(present) / min(present):.0f} boxes for one of the rarest"
        )
    if part["duplicates"]:
        found.append(f"{source}: groups of pictures of equal content: {len(part['duplicates'])}")
    return found


def text_of(report: dict[str, Any]) -> str:
    """The report for people; long lists end after ten lines."""
    lines = []
    for name in ("train", "val"):
        lines += _part_lines(name, report[name], report["size"]) if name in report else []
    lines += _ten([" = ".join(pair) for pair in report.get("between", ())], "pictures of equal content in both")
    for kind in ("warnings", "errors"):
        lines += [f"\n{kind}:", *(f"  {line}" for line in report[kind])] if report[kind] else []
    return "\n".join(lines)


def _part_lines(name: str, part: dict[str, Any], size: list[int]) -> list[str]:
    width = max([5, *(len(name) for name in part["classes"])])
    smaller = ", ".join(f"{count} below {side} px" for side, count in part["smaller_than"].items())
    return [
        f"\n{name}: {part['source']}",
        f"  pictures {part['pictures']} (without boxes {part['backgrounds']}, unreadable {len(part['unreadable'])}, "
        f"turned by EXIF {part['turned_by_exif']})",
        f"  boxes {part['boxes']} (crowd regions besides {part['crowd']}, clipped {part['clipped']})",
        f"  at {size[0]}x{size[1]}: {smaller}",
        f"  {'class':{width}}  boxes",
        *(f"  {name:{width}}  {count}" for name, count in part["classes"].items()),
        *_ten([" = ".join(group) for group in part["duplicates"]], "pictures of equal content"),
        *_ten(part["suspicious"]["covering"], "boxes that cover all of their picture"),
        *_ten(part["suspicious"]["thin"], f"boxes more than {THIN} times longer than wide"),
        *_ten(part["suspicious"]["twice"], "boxes that are there twice"),
        *(indent(note, "  ") for note in part["notes"]),
    ]


def _ten(places: list[str], title: str) -> list[str]:
    found = Problems()
    for place in places:
        found.add(place)
    return [f"  {title}: {found.count}", indent(str(found), "  ")] if places else []


def page(annotations: Annotations, columns: int = 4, cell: int = 320) -> np.ndarray:
    """Up to columns * columns pictures, spread over the data, with boxes and class names -> uint8 [H, W, 3] BGR."""
    chosen = np.unique(np.linspace(0, len(annotations) - 1, columns * columns).astype(int))
    rows = -(-len(chosen) // columns)
    sheet = np.full((rows * cell, columns * cell, 3), 114, np.uint8)
    for place, index in enumerate(chosen.tolist()):
        image = read_image(annotations.path(index))
        scale = cell / max(image.shape[:2])
        shape = [max(int(side * scale), 1) for side in image.shape[1::-1]]
        image = cv2.resize(image, shape, interpolation=cv2.INTER_AREA)
        boxes, labels, crowd = annotations.boxes_of(index)
        for (x1, y1, x2, y2), label, ignored in zip((boxes * scale).round().astype(int), labels, crowd, strict=True):
            colour = (160, 160, 160) if ignored else _COLOURS[label % len(_COLOURS)].tolist()
            cv2.rectangle(image, (x1, y1), (x2, y2), colour, 1)
            name = annotations.classes[label]
            cv2.putText(
                image, name, (max(x1, 0), max(y1 - 2, 9)), cv2.FONT_HERSHEY_SIMPLEX, 0.35, colour, 1, cv2.LINE_AA
            )
        top, left = place // columns * cell, place % columns * cell
        sheet[top : top + image.shape[0], left : left + image.shape[1]] = image
    return sheet


def _size(text: str) -> Size:
    words = text.split(",")
    if len(words) > 2 or not all(word.isdecimal() and int(word) for word in words):
        raise DataError(f"size={text}: give size=416 or size=384,640 (height,width)")
    return int(words[0]), int(words[-1])


def main(words: list[str]) -> None:
    """The command; ends with status 1 where there are errors."""
    names = ("val", "size", "classes", "image_root", "json", "page")
    (data,), options = arguments(words, __doc__, 1, names)
    report: dict[str, Any] = {}
    try:
        size = _size(options.get("size", "416"))
        if "page" in options and not cv2.haveImageWriter(options["page"]):
            raise DataError(f"page={options['page']}: give a name that ends with .png or .jpg")
        classes = read_classes(options["classes"]) if "classes" in options else None
        report, good = check(data, options.get("val"), size, classes, options.get("image_root"))
        print(text_of(report))
        if "page" in options:
            cv2.imencode(os.path.splitext(options["page"])[1], page(good))[1].tofile(options["page"])
    except DataError as error:
        report = {"errors": [str(error)]}
        print(error)
    if "json" in options:
        Path(options["json"]).write_text(json.dumps(report, ensure_ascii=False, indent=1), encoding="utf-8")
    sys.exit(1 if report["errors"] else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
