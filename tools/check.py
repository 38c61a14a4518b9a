"""Checks a data set before training: classes, box sizes, images that cannot be read, suspicious boxes, near duplicates.

    python -m tools.check FOLDER [val=VAL] [size=416] [classes=FILE] [image_root=DIR] [json=FILE] [page=check.html]

FOLDER (or data=FOLDER) is the folder of a data set, or a file of any accepted format. Its training and
validation splits are checked.

Prints the report and writes it to `json`. `page` shows it with images: an HTML file that needs nothing else, or a contact
sheet (.png, .jpg). Both replace only a file of an earlier check. The exit status is 1 if training would refuse the data.
"""

import sys
from dataclasses import dataclass
from textwrap import indent
from typing import Any

from datasets.errors import DataError, first_ten
from datasets.formats.read import read_options
from tools.check_output import PAGES, require_output, write_html, write_report, write_sheet
from tools.check_page import contact_page, html_page
from tools.check_report import SUSPICIOUS, Part, Size, check
from utils.config import ConfigError, override
from utils.script import run_script


@dataclass(frozen=True)
class Config:
    data: str | None = None  # annotation file, COCO JSON, YOLO yaml, or the folder of a data set
    val: str | None = None  # validation data; none: the validation split of data; .2: a fifth of the training data
    size: Size = (416, 416)  # height, width of the network's input, or one number for both
    classes: str | None = None  # a file of class names, or names, which select: cat,dog; none: the classes of the data
    image_root: str | None = None  # the folder of the images of a COCO JSON
    json: str | None = None  # a file for the report
    page: str | None = None  # a file to look at: .html with everything, or a contact sheet, .png or .jpg


def text_of(report: dict[str, Any]) -> str:
    """Returns the report as text; long lists end after ten lines."""
    lines = []
    for name in ("train", "val"):
        if name in report:
            lines += _part_lines(name, report[name], report["size"])
    equal = [" = ".join(pair) for pair in report.get("between", ())]
    lines += _ten(equal, "images of equal content in both")
    similar = []
    for pair in report.get("similar_between", ()):
        similar.append(f"train {_chain(pair['train'], ' ~ ')} ~ val {_chain(pair['val'], ' ~ ')}")
    lines += _ten(similar, "nearly same images in both")
    for kind in ("warnings", "errors"):
        if report[kind]:
            lines += [f"\n{kind}:", *(f"  {line}" for line in report[kind])]
    return "\n".join(lines)


def _chain(paths: list[str], sign: str) -> str:
    """Returns the first four paths of a group of copies, and the number of the others."""
    chain = sign.join(paths[:4])
    if len(paths) > 4:
        chain += f" and {len(paths) - 4} more"
    return chain


def _part_lines(name: str, part: dict[str, Any], size: list[int]) -> list[str]:
    width = min(max([5, *(len(name) for name in part["classes"])]), 40)
    smaller = ", ".join(f"{count} below {side} px" for side, count in part["smaller_than"].items())
    rows = zip(part["classes"].items(), part["class_images"], part["class_sides"], strict=True)
    return [
        f"\n{name}: {part['source']}",
        f"  images {part['images']} (without boxes {part['backgrounds']}, unreadable {len(part['unreadable'])}, "
        f"rotated by EXIF {part['turned_by_exif']})",
        f"  boxes {part['boxes']} (besides {part['crowd']} crowd regions; clipped {part['clipped']})",
        f"  at {size[0]}x{size[1]}: {smaller}; median {part['median_side']:g} px",
        *(f"  {part[key]}" for key in ("sixteen_bits", "advice") if part[key]),
        f"  {'class':{width}}  {'boxes':>8}  {'images':>8}  {'median px':>9}",
        *(f"  {name:{width}}  {count:8}  {images:8}  {side:9g}" for (name, count), images, side in rows),
        *_ten([_chain(group, " = ") for group in part["duplicates"]], "images of equal content"),
        *_ten([_chain(group, " ~ ") for group in part["similar"]], "nearly same images"),
        *(line for kind, title in SUSPICIOUS.items() for line in _ten(part["suspicious"][kind], title)),
        *_ten(part["unreadable"], "images that cannot be read"),
        *(indent(note, "  ") for note in part["notes"]),
    ]


def _ten(places: list[str], title: str) -> list[str]:
    return [f"  {title}: {len(places)}", indent(first_ten(places), "  ")] if places else []


def write_page(path: str, report: dict[str, Any], parts: dict[str, Part]) -> None:
    """Writes the page: HTML, or a contact sheet of images with their boxes if its name ends like an image's."""
    if path.lower().endswith(".html"):
        write_html(path, html_page(report, parts))
    else:
        write_sheet(path, contact_page(parts["train"].good))


def main(words: list[str]) -> None:
    """Runs the check with the arguments `words`; exits with status 1 if there are errors."""
    if not words:
        raise SystemExit(__doc__)
    try:
        cfg = override(Config(), words, {"data": bool})  # any word: a missing path gets the error of the reader
        if cfg.data is None:
            raise ConfigError("data= is missing: an annotation file or the folder of a data set")
        if cfg.json:
            require_output("json", cfg.json, (".json",))
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from error
    try:
        if min(cfg.size) < 1:
            raise DataError(f"size={cfg.size[0]},{cfg.size[1]}: give size=416 or size=384,640 (height,width)")
        if cfg.page:
            require_output("page", cfg.page, PAGES)
        options = read_options(classes=cfg.classes, image_root=cfg.image_root)
        report, parts = check(cfg.data, cfg.val, cfg.size, options)
        print(text_of(report))
        if cfg.page:
            write_page(cfg.page, report, parts)
    except (OSError, ValueError) as error:
        report = {"errors": [str(error)]}
        print(error, file=sys.stderr)
    if cfg.json:
        write_report(cfg.json, report)
    sys.exit(1 if report["errors"] else 0)


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]), stopped="stopped", memory_advice="")
