"""suspects.csv, the list of all suspects: writes it, and applies the proposals that a person accepts to the labels."""

import csv
import re
from pathlib import Path

import numpy as np

from datasets.formats.annotation_file import annotation_line, split_line
from datasets.formats.file import text_lines
from datasets.store import Annotations
from tools.disagreement import Box, Suspect
from utils.boxes import clip
from utils.config import ConfigError
from utils.text import amount

COLUMNS = ("number", "kind", "score", "image", "line", "source", "box", "class", "proposal")
REMOVE = "remove"  # the proposal for a doubled box


def write_csv(path: Path, data: Annotations, groups: dict[str, list[list[Suspect]]], lines: dict[int, int]) -> None:
    """Writes suspects.csv: a row per suspect. The same suspect in near-duplicates of an image has the same number.

    `box` and `proposal` are boxes as in suspects.txt, or REMOVE; `lines`: the line of each image in suspects.txt."""
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for number, group in enumerate((group for of_kind in groups.values() for group in of_kind), 1):
            for one in group:
                box, name, proposal = "", "", REMOVE
                if one.label:
                    box, name = word(one.label), data.classes[one.label.label]
                if one.proposal:
                    proposal = word(within(one.proposal, *data.sizes[one.image]))
                place = [cell(data.path(one.image)), lines[one.image], cell(data.where(one.image))]
                rows.writerow([number, one.kind, f"{one.score:.4f}", *place, box, cell(name), proposal])


def cell(text: str) -> str:
    """Returns text of the data for a table: a ' in front of what a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def within(box: Box, height: int, width: int) -> Box:
    """Returns a proposed box clipped to its image, with one decimal."""
    return box._replace(box=np.round(np.asarray(clip(box.box, width, height), np.float64), 1))


def word(box: Box) -> str:
    """Returns a labeled box as text of an annotation file."""
    corners = np.asarray(box.box, np.float64)
    return annotation_line("image.jpg", corners[None], np.array([box.label]), np.zeros(1, bool)).split()[1]


def apply(folder: Path, accept: str) -> Path:
    """Writes the labels of suspects.txt with the accepted proposals of suspects.csv to a new annotation file in `folder`.

    `accept`: numbers of suspects, such as 1-11,14. Returns the path, and prints what was changed. Raises ConfigError."""
    rows = read_csv(folder / "suspects.csv")
    accepted = numbers_in(accept, max(int(row["number"]) for row in rows))
    source, target = folder / "suspects.txt", folder / "corrected.txt"
    if target.exists():
        raise ConfigError(f"{target} exists: rename it, or delete it")
    lines = [line for _, line in text_lines(str(source))]
    applied, left = 0, set()
    for row in rows:
        if int(row["number"]) not in accepted:
            continue
        number, name = int(row["line"]), Path(row["image"]).name
        image, boxes = split_line(lines[number - 1]) if number <= len(lines) else ("", [])
        if Path(image).name != name:
            raise ConfigError(f"{source}:{number}: this was the line of {name}: put the lines into their order again")
        changed = with_proposal(boxes, row)
        if changed is None:
            left.add(row["number"])
        else:
            applied += 1
            lines[number - 1] = " ".join([image, *changed])
    target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    print(f"{target}: {amount(applied, 'box')} changed; suspects.txt stays as it is")
    if left:
        print(f"not applied, because the label is no longer in suspects.txt: {', '.join(sorted(left))}")
    return target


def with_proposal(boxes: list[str], row: dict[str, str]) -> list[str] | None:
    """Returns the boxes of a line after the proposal of a row; None if its label is not there.

    A label may be of the wrong class and loose as well, so its class may have been changed by an earlier row."""
    if row["kind"] == "missing":
        return [*boxes, row["proposal"]]
    corners = row["box"].rpartition(",")[0]
    same = [box for box in boxes if box == row["box"]] or [box for box in boxes if box.rpartition(",")[0] == corners]
    if not same:
        return None
    index = boxes.index(same[0])
    if row["proposal"] == REMOVE:
        return boxes[:index] + boxes[index + 1 :]
    new_corners, _, label = row["proposal"].rpartition(",")
    if row["kind"] == "wrong":
        return [*boxes[:index], f"{corners},{label}", *boxes[index + 1 :]]
    label = boxes[index].rpartition(",")[2]
    return [*boxes[:index], f"{new_corners},{label}", *boxes[index + 1 :]]


def read_csv(path: Path) -> list[dict[str, str]]:
    """Reads suspects.csv. Raises ConfigError for a file that is missing, or that another program changed."""
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise ConfigError(f"apply={path.parent}: no suspects.csv there: name a folder of tools.suspects") from error
    if not rows or not set(COLUMNS) <= rows[0].keys():
        raise ConfigError(f"{path}: it has no rows with the columns {', '.join(COLUMNS)}: run tools.suspects again")
    return rows


def numbers_in(text: str, count: int) -> set[int]:
    """Returns the numbers in text such as 1-11,14. Raises ConfigError for other text, and for numbers above `count`."""
    numbers = set()
    for part in text.replace(" ", "").split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last <= count:
            raise ConfigError(f"accept={text}: {part!r}: write numbers from 1 to {count}, for example accept=1-3,5")
        numbers |= set(range(first, last + 1))
    return numbers
