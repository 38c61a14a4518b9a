"""Writes benchmark results as rows of a Markdown table, with the date and the hardware."""

import os
import platform
import time
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def machine() -> str:
    """The hardware and the versions of a measurement."""
    device = (
        torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} cores {platform.machine()}"
    )
    return f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"


def add_row(name: str, head: str, row: dict[str, str]) -> None:
    """Appends `row` (column -> cell) with date and hardware to results/NAME.md; a new file begins with `head`."""
    path, row = RESULTS / f"{name}.md", {"date": time.strftime("%Y-%m-%d"), **row, "machine": machine()}
    if not path.exists():
        line = "|" + "---|" * len(row)
        path.write_text(f"{head}\n\n| {' | '.join(row)} |\n{line}\n", encoding="utf-8")
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"| {' | '.join(row.values())} |\n")
    print(path.read_text(encoding="utf-8"))
