"""suspects.csv, the list of all suspects: writes it, and applies the proposals that a person accepts to the labels."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, count
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
CHANGES = {"missing": "added", "wrong": "with another class", "loose": "with other edges", "doubled": "removed"}


def write_csv(path: Path, data: Annotations, groups: dict[str, list[list[Suspect]]], lines: dict[int, int]) -> None:
    """Writes suspects.csv: a row per suspect. The same suspect in near-duplicates of an image has the same number.

    `proposal` is a box as in the annotation file, or REMOVE; `lines`: the line of each image in suspects.txt."""
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for number, group in enumerate((group for of_kind in groups.values() for group in of_kind), 1):
            for one in group:
                box = name = ""
                if one.label:
                    box, name = word(one.label), data.classes[one.label.label]
                place = [cell(data.path(one.image)), lines[one.image], cell(data.where(one.image))]
                proposal = REMOVE
                if one.proposal:
                    height, width = data.sizes[one.image]
                    proposal = word(within(one.proposal, width, height))
                rows.writerow([number, one.kind, f"{one.score:.4f}", *place, box, cell(name), proposal])


def cell(text: str) -> str:
    """Returns text of the data for a table: a ' in front of what a spreadsheet would run as a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def within(box: Box, width: int, height: int) -> Box:
    """Returns a box clipped to its image."""
    return box._replace(box=clip(box.box, width, height))


def word(box: Box) -> str:
    """Returns a labeled box as text of an annotation file, with one decimal."""
    corners = np.round(np.asarray(box.box, np.float64), 1)
    return annotation_line("image.jpg", corners[None], np.array([box.label]), np.zeros(1, bool)).split()[1]


def apply(folder: Path, accept: str) -> Path:
    """Writes the labels of suspects.txt with the accepted proposals of suspects.csv to a new annotation file in `folder`.

    `accept`: numbers of suspects, such as 1-11,14. Returns the path, and prints what was changed. Raises ConfigError."""
    rows = read_csv(folder / "suspects.csv")
    accepted = numbers_in(accept, max(int(row["number"]) for row in rows))
    source = folder / "suspects.txt"
    lines = [line for _, line in text_lines(str(source))]
    rows_of: dict[int, list[dict[str, str]]] = {}
    for row in rows:
        if int(row["number"]) in accepted:
            rows_of.setdefault(int(row["line"]), []).append(row)
    done, left = Counter(), set()
    for number, of_line in rows_of.items():
        image, boxes = split_line(lines[number - 1]) if number <= len(lines) else ("", [])
        if Path(image).name != Path(of_line[0]["image"]).name:
            name = Path(of_line[0]["image"]).name
            raise ConfigError(f"{source}:{number}: this was the line of {name}: put the lines into their order again")
        try:
            boxes, unknown = with_proposals(boxes, of_line)
        except ValueError as error:  # written by hand
            raise ConfigError(f"{source}:{number}: {error}") from error
        left |= unknown
        done.update(row["kind"] for row in of_line if int(row["number"]) not in unknown)
        lines[number - 1] = " ".join([image, *boxes])
    path = new_file(folder, "corrected", "".join(f"{line}\n" for line in lines))
    changes = ", ".join(f"{amount(done[kind], 'box')} {change}" for kind, change in CHANGES.items() if done[kind])
    print(f"{path}: {changes or 'no box changed'}; suspects.txt stays as it is")
    if left:
        print(f"not applied, because the label is no longer in suspects.txt: {', '.join(map(str, sorted(left)))}")
    return path


def with_proposals(boxes: Sequence[str], rows: Sequence[dict[str, str]]) -> tuple[list[str], set[int]]:
    """Returns the boxes of a line after the proposals of `rows`, and the numbers of the rows whose label is not there.

    A label may be of the wrong class and loose as well."""
    labels = [box.split(",") for box in boxes]
    known = [rounded(label) for label in labels]
    removed, added, unknown = set(), [], set()
    for row in rows:
        proposal = row["proposal"].split(",")
        if row["kind"] == "missing":
            added.append(row["proposal"])
        elif row["box"] not in known:
            unknown.add(int(row["number"]))
        elif row["proposal"] == REMOVE:
            index = known.index(row["box"])
            known[index] = ""  # an equal label is another suspect
            removed.add(index)
        elif row["kind"] == "wrong":
            labels[known.index(row["box"])][4] = proposal[4]
        else:
            labels[known.index(row["box"])][:4] = proposal[:4]
    kept = [",".join(label) for index, label in enumerate(labels) if index not in removed]
    return kept + added, unknown


def rounded(label: Sequence[str]) -> str:
    """Returns the text of a label in suspects.csv, "" of a crowd region, which is never a suspect."""
    corners, name, *crowd = np.array(label[:4], float), int(float(label[4])), *label[5:]
    return "" if any(float(flag) for flag in crowd) else word(Box(corners, name))


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


def numbers_in(text: str, most: int) -> set[int]:
    """Returns the numbers in text such as 1-11,14. Raises ConfigError for other text, and for numbers above `most`."""
    numbers = set()
    for part in text.replace(" ", "").split(","):
        found = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last <= most:
            raise ConfigError(f"accept={text}: {part!r}: write numbers from 1 to {most}, for example accept=1-3,5")
        numbers |= set(range(first, last + 1))
    return numbers


def new_file(folder: Path, stem: str, text: str) -> Path:
    """Writes a new file in a folder: stem.txt, or stem-2.txt and so on if that exists. Returns its path."""
    names = chain([f"{stem}.txt"], (f"{stem}-{number}.txt" for number in count(2)))
    path = next(folder / name for name in names if not (folder / name).exists())
    with open(path, "x", encoding="utf-8", newline="\n") as file:
        file.write(text)
    return path
