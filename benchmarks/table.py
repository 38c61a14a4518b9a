"""Writes results as rows of a Markdown table or of a CSV file, with the date and the hardware."""

import csv
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from engine.environment import environment

RESULTS = Path(__file__).parent / "results"


def machine() -> str:
    """The hardware and the versions of a measurement."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} cores {cpu_name()}"
    return f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"


def cpu_name() -> str:
    """The model of the CPU and its architecture, which alone is known where there is no /proc/cpuinfo."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    return " ".join([*sorted(names), platform.machine()])


def add_row(name: str, head: str, row: dict[str, str]) -> None:
    """Adds `row` (column -> cell), with date and hardware, to the last table of results/NAME.md; `head` begins a new file."""
    path, row = RESULTS / f"{name}.md", {"date": time.strftime("%Y-%m-%d"), **row, "machine": machine()}
    if not path.exists():
        line = "|" + "---|" * len(row)
        path.write_text(f"{head}\n\n| {' | '.join(row)} |\n{line}\n", encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("|"))
    lines.insert(last + 1, f"| {' | '.join(row.values())} |")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file, none if there is no file."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Appends a row (column -> value) to a CSV file: by its columns; a new file begins with the columns of the row."""
    columns = list(row)
    if begun := path.exists():
        with open(path, encoding="utf-8", newline="") as file:
            columns = next(csv.reader(file))
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")  # ValueError for a column that the file lacks
        if not begun:
            writer.writeheader()
        writer.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})


def where() -> dict[str, str]:
    """Returns the columns of a CSV file that tell where and when a row was measured."""
    about = environment("cpu")
    commit = (about["commit"] or "")[:10] + ("+" if about["uncommitted_changes"] else "")
    return {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "torch": torch.__version__, "commit": commit}


def spread(values: list[float]) -> str:
    """Returns mean and standard deviation of values, in points."""
    mean = f"{100 * statistics.fmean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean
