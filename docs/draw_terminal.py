"""Draws what `python train.py` prints, as an SVG for the README.

The run is in an empty folder, with one thread. The weights, those of benchmarks/results/official.md, take the place of a
download. The times that it prints are CPU times of its process: what a computer without other programs needs.
"""

import os
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS, FONT = 113, 13  # characters of a line at most; pixels of a character
FIRST, LAST = 4, 3  # epochs that are drawn
WIDE, HIGH, MARGIN = 0.602 * FONT, 18, 16  # pixels of a character and of a line, and around the text
PAPER, FRAME, INK, PROMPT = "#0d1117", "#30363d", "#d1d7e0", "#3fb950"
MONOSPACE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
ON_CPU_TIME = """
import runpy, sys, time
import nets
weights = sys.argv.pop(1)
nets.fetch_weights = lambda *_, **__: weights
time.monotonic = time.perf_counter = time.process_time
sys.argv[0] = "train.py"
runpy.run_module("train", run_name="__main__")
"""


def printed(weights: Path) -> list[str]:
    """Returns the lines that the run prints."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "THAW_CACHE": f"{folder}/cache"}
        command = [sys.executable, "-c", ON_CPU_TIME, str(weights.resolve())]
        done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def shown(lines: list[str]) -> list[str]:
    """Returns the lines to draw: the first and the last epochs, with single spaces, and what follows them."""
    places = [place for place, line in enumerate(lines) if line.startswith("epoch")]
    epochs = [lines[place].replace("  ", " ") for place in places]
    return [*epochs[:FIRST], "...", *epochs[-LAST:], *lines[places[-1] + 1 :]]


def drawing(lines: list[str]) -> str:
    """Returns the SVG: the command, and some lines."""
    width, height = COLUMNS * WIDE + 2 * MARGIN, (len(lines) + 1) * HIGH + 2 * MARGIN
    texts = [f'<tspan fill="{PROMPT}">$</tspan> uv run train.py']
    texts += [escape(line[:COLUMNS], quote=False).replace(" ", "\N{NO-BREAK SPACE}") for line in lines]
    rows = [f'<text x="{MARGIN}" y="{MARGIN + (n + 0.75) * HIGH:.1f}">{text}</text>' for n, text in enumerate(texts)]
    size = f'viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}"'
    font = f'font-family="{MONOSPACE}" font-size="{FONT}" fill="{INK}"'
    frame = f'<rect width="{width:.0f}" height="{height}" rx="8" fill="{PAPER}" stroke="{FRAME}"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>', frame, *rows, "</svg>\n"])


def main(weights: str, output: Path) -> None:
    """Runs the demo and writes the drawing."""
    output.write_text(drawing(shown(printed(Path(weights)))), encoding="utf-8")
