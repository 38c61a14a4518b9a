"""Checks a data set before training: classes, box sizes, images that cannot be read, suspicious boxes, near duplicates.

    python -m tools.check FOLDER [val=VAL] [split_by=PATTERN] [image_size=416] [classes=FILE] [merge=OLD:NEW] \
[image_root=DIR] [bad_images=skip] [all_labeled=true] [ignore_regions=crowd] [page=check.html]

FOLDER (or data=FOLDER) is the folder of a data set, or a file of any accepted format. Its training, validation and test
splits are checked.

Prints what matters most. `page` shows the report with images: an HTML file that needs nothing else, and replaces only the
page of an earlier check. The exit status is 1 if training would refuse the data.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets.box_sizes import Size
from datasets.errors import DataError
from datasets.formats.options import read_options
from tools.check_page import TITLE, html_page
from tools.check_report import check
from tools.check_split import SUSPICIOUS
from utils.config import ConfigError, Constants, override, require, require_writable
from utils.outputs import require_replaceable, write_all
from utils.script import run_script
from utils.text import aligned, amount, brief, error_text, first_of

SPLITS = ("train", "val", "test")
FINDINGS, PLACES, CLASSES = 10, 3, 20  # printed at most: kinds of findings, places of each, classes in the table


@dataclass(frozen=True)
class Config(Constants):
    data: str | None = None  # annotation file, COCO JSON, YOLO yaml, or the folder of a data set
    val: str | None = None  # validation data; none: the validation split of data; .2, 1/5: a fifth of the training data
    split_by: str | None = None  # as in train.py: what val=.2 keeps together
    image_size: Size = (416, 416)  # height, width of the network's input, or one number for both
    classes: str | None = None  # a file of class names, or names, which select: cat,dog; none: the classes of the data
    merge: str | None = None  # classes that become others: truck:car,van:car
    image_root: str | None = None  # the folder of the images of a COCO JSON
    bad_images: str = "error"  # as in train.py: "error", "skip" or "repair"
    all_labeled: bool = False  # as in train.py: what A of A,B has no class for is not in its images
    ignore_regions: str | None = None  # as in train.py: crowd, a class, or both
    page: str | None = None  # a file to look at, .html


def text_of(report: dict[str, Any], page: str | None = None) -> str:
    """Returns what matters most of the report as text. The `page` shows everything with images."""
    names = [name for name in SPLITS if name in report]
    lines = [line for name in names for line in _part_lines(name, report[name], report["size"])]
    lines += ["", *_class_table([report[name] for name in names], names), ""]
    found = _findings(report, names)
    for title, places in found[:FINDINGS]:
        lines.append(title)
        lines += [f"  {place}" for place in first_of(places, PLACES)]
    if len(found) > FINDINGS:
        where = f"{page} shows all" if page else "page=check.html shows all"
        lines.append(f"... and {amount(len(found) - FINDINGS, 'other finding')}: {where}")
    return "\n".join(lines)


def _part_lines(name: str, part: dict[str, Any], size: list[int]) -> list[str]:
    smaller = ", ".join(f"{count} below {side} px" for side, count in part["smaller_than"].items())
    return [
        f"\n{name}: {part['source']}",
        f"  images {part['images']} (without boxes {part['backgrounds']}, unreadable {len(part['unreadable'])}, "
        f"rotated by EXIF {part['turned_by_exif']})",
        f"  boxes {part['boxes']} (besides {part['crowd']} crowd regions; clipped {part['clipped']})",
        f"  at {size[0]}x{size[1]}: {smaller}; median {part['median_side']:g} px",
        *(f"  {part[key]}" for key in ("sixteen_bits", "advice") if part[key]),
    ]


def _class_table(parts: list[dict[str, Any]], names: list[str]) -> list[str]:
    """Returns a table of the boxes of each class in each split, with the images and the median size in the first one."""
    first = parts[0]
    classes = list(first["classes"])
    rows = [("boxes", *names, f"{names[0]} images", "median px")]
    for label, name in enumerate(classes[:CLASSES]):
        counts = [part["classes"].get(name, 0) for part in parts]
        rows.append((brief(name, 40), *counts, first["class_images"][label], f"{first['class_sides'][label]:g}"))
    lines = aligned(rows, ("boxes",))
    if len(classes) > CLASSES:
        lines.append(f"... and {len(classes) - CLASSES} more classes")
    return lines


def _findings(report: dict[str, Any], names: list[str]) -> list[tuple[str, list[str]]]:
    """Returns (title, places) of what is wrong or unusual, the most important first."""
    found = []

    def add(title: str, places: list[str]) -> None:
        if places:
            found.append((f"{title}: {len(places)}", list(map(_short, places))))

    found += [_first_line(f"error: {error}") for error in report["errors"]]
    found += [_first_line(f"damage: {text}") for text in report["damage"]]
    for leak in report["leaks"]:
        found.append((leak["text"], [_chain([paths[0] for paths in group.values()]) for group in leak["groups"]]))
    found += [_first_line(f"warning: {warning}") for warning in report["warnings"]]
    for kind, title in SUSPICIOUS.items():
        for name in names:
            add(f"{name}: {title}", report[name]["suspicious"][kind])
    for name in names:
        add(f"{name}: copies of an image, which stay in one split", [_chain(group) for group in report[name]["copies"]])
    notes = dict.fromkeys(note for name in names for note in report[name]["notes"])
    return found + [(note, []) for note in notes]  # which end after ten lines, except the table of sets


def _first_line(text: str) -> tuple[str, list[str]]:
    """Returns the first line of a text, and its other lines."""
    first, *rest = text.splitlines()
    return first, [line.removeprefix("  ") for line in rest]


def _chain(paths: list[str]) -> str:
    """Returns the names of the first four files of a group of copies, and the number of the others."""
    chain = " ~ ".join(map(os.path.basename, paths[:4]))
    if len(paths) > 4:
        chain += f" and {len(paths) - 4} more"
    return chain


def _short(place: str) -> str:
    """Returns a place, `folder/file: what`, without the folder."""
    path, colon, what = place.partition(": ")
    return os.path.basename(path) + colon + what


def require_page(path: str) -> None:
    """Raises ConfigError for a page that cannot be written, or for a file that is not the page of an earlier check."""
    given, file = f"page={path}", Path(path)
    if file.suffix.lower() != ".html":
        raise ConfigError(f"{given}: give a name that ends with .html")
    require_writable(given, file.parent)
    is_ours = file.is_file() and f"<title>{TITLE}</title>".encode() in file.read_bytes()[:1000]
    require_replaceable(given, [file], is_ours, "check")


def main(words: list[str]) -> None:
    """Runs the check with the arguments `words`; exits with status 1 if there are errors."""
    try:
        cfg = override(Config(), words, {"data": bool})  # any word: a missing path gets the error of the reader
        if cfg.data is None:
            fix = "python -m tools.check FOLDER; python -m tools.check --help explains the options"
            raise ConfigError(f"data= is missing, an annotation file or the folder of a data set: {fix}")
        if min(cfg.image_size) < 1:
            height, width = cfg.image_size
            raise DataError(f"image_size={height},{width}: give image_size=416 or image_size=384,640 (height,width)")
        if cfg.page:
            require_page(cfg.page)
        require(cfg, {}, {}, {"bad_images": ("error", "skip", "repair")})
        chosen = ("classes", "merge", "image_root", "bad_images", "split_by", "all_labeled", "ignore_regions")
        options = read_options(**{name: getattr(cfg, name) for name in chosen})
        report, parts = check(cfg.data, cfg.val, cfg.image_size, options)
        print(text_of(report, cfg.page))
        if cfg.page:
            Path(cfg.page).parent.mkdir(parents=True, exist_ok=True)
            write_all({Path(cfg.page): html_page(report, parts).encode("utf-8", "backslashreplace")})
            print(f"\npage: {cfg.page}")
    except (OSError, ValueError) as error:
        raise SystemExit(error_text(error)) from error
    sys.exit(1 if report["errors"] else 0)


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]), stopped="stopped", memory_advice="")
