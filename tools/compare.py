"""Compares runs: mAP, minutes, images, and the constants in which they differ.

    python -m tools.compare runs/* [output=FOLDER]

runs/* are run folders of train.py, or names of runs, of which the newest counts. Prints a table, highest mAP first, and writes
it with a plot of all runs to compare.html and compare.png in `output`. Folders without a finished epoch, or with a damaged file,
are listed with the reason.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.run_folder import run_of
from tools.compare_page import FILES, require_page, write_page
from tools.compared_runs import CUT, Run, class_table, notes, read_runs, table
from utils.config import ConfigError, override
from utils.script import run_script
from utils.text import printable

MOST_CLASSES = 20  # rows of the printed table of classes; the page has all


@dataclass(frozen=True)
class Config:
    output: str | None = None  # folder for compare.html and compare.png; none: the folder that holds the best run


def short(text: str) -> str:
    """Shortens a text to at most CUT characters."""
    return text if len(text) <= CUT else f"{text[: CUT - 3]}..."


def aligned(rows: Sequence[Sequence[str]], left: Sequence[str]) -> list[str]:
    """Returns the rows of a table, of which the first is its head, as lines; the columns `left` are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<" if name in left else ">" for name in rows[0]]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)) for row in rows
    ]


def text_of(runs: Sequence[Run], refused: dict[str, str]) -> str:
    """Returns the comparison as text for the console."""
    lines = []
    if runs:
        head, *rows = table(runs)
        rows = [[cell if name == "run" else short(cell) for name, cell in zip(head, row, strict=True)] for row in rows]
        lines = aligned([head, *rows], ("run", "data"))
    lines += notes(runs)
    if classes := class_table(runs):
        rows = [[short(cell) for cell in row] for row in classes[: 1 + MOST_CLASSES]]
        lines += ["", "mAP50-95 of each class, in the runs with these numbers:", *aligned(rows, ("class",))]
        if len(classes) > len(rows):
            lines.append(f"classes with smaller differences, which compare.html has: {len(classes) - len(rows)}")
    if refused:
        lines += ["", "not compared:", *(f"  {folder}: {why}" for folder, why in refused.items())]
    return "\n".join(printable(line.rstrip()) for line in lines)


def main(words: Sequence[str]) -> None:
    """Compares the runs of the arguments `words`; exits with status 1 if there is none."""
    options = [word for word in words if re.match(r"-|\w+=", word) and not os.path.exists(word)]
    folders = [Path(word) for word in words if word not in options and Path(word).name not in FILES]
    if not folders and not options:
        raise SystemExit(__doc__)
    try:
        if any(word.startswith("-") for word in options):
            options = words  # the message for --output FOLDER needs both words
        cfg = override(Config(), options)
        if cfg.output:
            require_page(Path(cfg.output))
    except ValueError as error:
        raise SystemExit(str(error)) from error
    folders = [one if (one / "config.json").exists() else run_of("runs", str(one)) or one for one in folders]
    runs, refused = read_runs(list(dict.fromkeys(folders)))
    print(text_of(runs, refused))
    if not runs:
        raise SystemExit(1)
    try:
        print(f"\n{write_page(Path(cfg.output or runs[0].folder.parent), runs, refused)}")
    except ConfigError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]), stopped="stopped", memory_advice="")
