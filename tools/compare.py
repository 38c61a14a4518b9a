"""Compares runs: mAP, minutes, images, and the constants in which they differ.

    python -m tools.compare runs/*

runs/* are run folders of train.py, or names of runs, of which the newest counts. Prints a table, highest mAP first, and the mean
and the spread of runs that differ only in their seed or fold. Folders without a finished epoch are listed with the reason.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import glob
import shutil
import statistics
import sys
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from engine.runs import run_of
from tools.compared_runs import PLACES, REPEATED, Run, RunError, read_run
from utils.config import show
from utils.script import run_script
from utils.text import aligned, display_width, in_points, printable

WIDEST = 500  # characters of a line of the table where there is no terminal, as in a file
MAX_WIDTH = 40  # characters of a value


def main(words: Sequence[str]) -> None:
    """Compares the runs of the arguments `words`; exits with status 1 if there is none."""
    if not words or words[0] in ("-h", "--help", "help"):
        raise SystemExit(__doc__)
    runs, refused = [], []
    for folder in folders_of(words):
        try:
            runs.append(read_run(folder))
        except RunError as error:
            refused.append(f"  {folder}: {error}")
    runs.sort(key=lambda run: -run.best.get("AP", -1))
    lines = []
    if runs:
        lines += [*fitting(table(runs), shutil.get_terminal_size((WIDEST, 24)).columns), *notes(runs), *repeats(runs)]
    if refused:
        lines += ["", "not compared:", *refused]
    print("\n".join(printable(line.rstrip()) for line in lines))
    if not runs:
        raise SystemExit(1)


def folders_of(words: Sequence[str]) -> list[Path]:
    """Returns the folders that the words name, each once: a folder, a pattern, or the name of a run in runs."""
    folders = []
    for word in words:
        for path in sorted(glob.glob(word)) or [word]:  # cmd.exe does not expand patterns
            is_run = (Path(path) / "config.json").exists()
            folders.append(Path(path) if is_run else run_of("runs", path) or Path(path))
    return list(dict.fromkeys(folders))


def table(runs: Sequence[Run]) -> list[list[str]]:
    """Returns the table: a header, then a row per run. Columns in which all runs are equal are left out at its end."""
    head = ["", "run", "best mAP", "epoch", "last mAP", "epochs", "minutes", "images"]
    rows = []
    for number, run in enumerate(runs, 1):
        best = epoch = last = "-"
        if run.best:
            best, epoch = in_points(run.best["AP"]), f"{run.best['epoch']:.0f}"
            last = in_points(run.evaluated[-1]["AP"])
        epochs = f"{run.rows[-1]['epoch']:.0f} of {show(run.config.get('epochs'))}"
        rows.append([str(number), run.folder.name, best, epoch, last, epochs, f"{run.minutes:.1f}", f"{run.images:,}"])
    names = dict.fromkeys(name for run in runs for name in run.config if name not in (*PLACES, "train"))
    columns = {"data": [data_marks(runs)[run.data] for run in runs], "training data": [run.training for run in runs]}
    columns |= {name: [show(run.config[name]) if name in run.config else "-" for run in runs] for name in names}
    for name, texts in columns.items():
        if len(set(texts)) > 1:
            head.append(name)
            for row, text in zip(rows, texts, strict=True):
                row.append(text if len(text) <= MAX_WIDTH else f"...{text[3 - MAX_WIDTH :]}")
    return [head, *rows]


def data_marks(runs: Sequence[Run]) -> dict[tuple[str, str], str]:
    """Returns a letter for each validation data with their classes, in the order of the runs."""
    return {data: chr(ord("A") + index) for index, data in enumerate(dict.fromkeys(run.data for run in runs))}


def fitting(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Returns the first columns of a table that fit into `width` characters as lines, and the names of the others."""
    ends = accumulate(max(map(display_width, column)) + 2 for column in zip(*rows, strict=True))
    count = max(sum(end - 2 <= width for end in ends), 3)
    lines = aligned([row[:count] for row in rows], ("run", "data", "training data"))
    if others := rows[0][count:]:
        lines.append(f"columns that do not fit here (write to a file to see them): {', '.join(others)}")
    return lines


def notes(runs: Sequence[Run]) -> list[str]:
    """Returns the meaning of the columns, and the data of each letter if there are several."""
    lines = [
        "mAP50-95 in percent on the validation data; minutes of training without evaluations; training images processed"
    ]
    marks = data_marks(runs)
    if len(marks) > 1:
        lines.append("different validation data or classes: compare the mAP only between runs with the same letter")
        lines += [f"data {mark}: {'; '.join(data)}" for data, mark in marks.items()]
    return lines


def repeats(runs: Sequence[Run]) -> list[str]:
    """Returns the mean and the spread of the best mAP of runs that repeat one with other seeds or folds."""
    groups: dict[str, list[tuple[str, Run]]] = {}
    for number, run in enumerate(runs, 1):
        if run.best:
            groups.setdefault(run.repeated, []).append((str(number), run))
    lines = []
    for group in groups.values():
        differ = [name for name in REPEATED if len({show(run.written.get(name)) for _, run in group}) > 1]
        if differ:
            maps = [run.best["AP"] for _, run in group]
            spread = f"mean {in_points(statistics.mean(maps))}, standard deviation {in_points(statistics.stdev(maps))}"
            numbers = ", ".join(number for number, _ in group)
            lines.append(f"best mAP of the runs {numbers}, which differ only in {' and '.join(differ)}: {spread}")
    return lines


if __name__ == "__main__":
    run_script(lambda: main(sys.argv[1:]), stopped="stopped", memory_advice="")
