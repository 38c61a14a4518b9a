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
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from engine.run_folder import run_of
from tools.compare_page import FILES, require_page, write_page
from tools.compared_runs import CUT, TRAINING, Run, class_table, notes, read_runs, table
from utils.config import ConfigError, Constants, override
from utils.script import run_script
from utils.text import aligned, display_width, printable

WIDEST = 500  # characters of a line of the table where there is no terminal, as in a file
CUT_TRAINING = 40  # most characters of the training data
MAX_CLASSES = 20  # rows of the printed table of classes; the page has all


@dataclass(frozen=True)
class Config(Constants):
    output: str | None = None  # folder for compare.html and compare.png; none: the folder that holds the best run


def short(text: str, column: str = "") -> str:
    """Shortens the text of a column; of a path, its end stays. The name of a run stays as it is."""
    most = CUT_TRAINING if column == TRAINING else CUT
    if len(text) <= most or column == "run":
        return text
    return f"...{text[3 - most :]}" if "/" in text else f"{text[: most - 3]}..."


def fitting(rows: Sequence[Sequence[str]], width: int) -> tuple[list[Sequence[str]], Sequence[str]]:
    """Returns the first columns of a table that fit into `width` characters, and the names of the other columns."""
    ends = list(accumulate(max(map(display_width, column)) + 2 for column in zip(*rows, strict=True)))
    count = max(sum(end - 2 <= width for end in ends), 3)
    return [row[:count] for row in rows], rows[0][count:]


def text_of(runs: Sequence[Run], refused: dict[str, str]) -> str:
    """Returns the comparison as text for the console."""
    lines = []
    if runs:
        head, *rows = table(runs)
        rows = [[short(cell, name) for name, cell in zip(head, row, strict=True)] for row in rows]
        fit, others = fitting([head, *rows], shutil.get_terminal_size((WIDEST, 24)).columns)
        lines = aligned(fit, ("run", "data", TRAINING))
        if others:
            lines.append(f"columns that do not fit here, which compare.html has: {', '.join(others)}")
    lines += notes(runs)
    if classes := class_table(runs):
        rows = [[short(cell) for cell in row] for row in classes[: 1 + MAX_CLASSES]]
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
