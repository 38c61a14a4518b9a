"""Records a training in a terminal, and draws it as an animated SVG for the README. Needs Linux.

The run is `python train.py`, in an empty folder. The weights, those of benchmarks/results/official.md, take the place of a
download. It has one thread. All times, also those that it prints, are CPU times of its process: what a
computer without other programs needs.
"""

import codecs
import fcntl
import os
import pty
import re
import shutil
import struct
import sys
import tempfile
import termios
from html import escape
from pathlib import Path

from utils.files import atomic_write

ROOT = Path(__file__).parents[1]
COLUMNS, ROWS = 126, 30
FASTER = 8  # times as fast as the recording
HOLD = 6.0  # seconds for which the last screen is shown
STEP = 0.5  # seconds of the recording between two states of a progress bar
FONT = 13  # pixels
WIDE, HIGH = 0.602 * FONT, 18  # pixels of a character
MARGIN, TOP = 14, 36  # pixels around the text, and above it
PAPER, FRAME, INK, FAINT, PROMPT = "#0d1117", "#30363d", "#d1d7e0", "#8b949e", "#3fb950"
MONOSPACE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
ON_CPU_TIME = """
import runpy, sys, time
import torch, tqdm.std
import nets
weights = sys.argv.pop(1)
nets.fetch_weights = lambda *_, **__: weights
time.monotonic = time.perf_counter = tqdm.std.time = time.process_time
sys.argv[0] = "train.py"
runpy.run_module("train", run_name="__main__")
"""
Recording = list[tuple[float, str]]  # seconds since the start, and what was printed then
Versions = list[tuple[float, str]]  # of a line: from when on, and its text


def record(weights: str, folder: str) -> Recording:
    """Runs the training in a separate terminal, in this folder."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "THAW_CACHE": f"{folder}/cache"}
        os.execv(sys.executable, [sys.executable, "-c", ON_CPU_TIME, weights])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    decoder, recording = codecs.getincrementaldecoder("utf-8")(), []
    while True:
        try:
            text = decoder.decode(os.read(terminal, 65536))
        except OSError:  # the end of the run
            break
        recording.append((cpu_seconds(process), text))
    _, status = os.waitpid(process, 0)
    if status:
        raise SystemExit("".join(text for _, text in recording))
    return recording


def cpu_seconds(process: int) -> float:
    """Returns the CPU time of a process until now."""
    cells = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(cells[11]) + int(cells[12])) / os.sysconf("SC_CLK_TCK")


def lines_of(recording: Recording) -> list[Versions]:
    """Returns every line of the terminal with all its texts, as a terminal shows what was printed."""
    lines: list[Versions] = []
    screen: list[list[str]] = [[]]
    row = column = 0
    for seconds, printed in recording:
        changed = set()
        for part in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|.", printed, re.DOTALL):
            if part == "\r":
                column = 0
            elif part == "\n":
                row, column = row + 1, 0
            elif part == "\x1b[A":
                row -= 1
            elif part == "\x1b[K":
                del screen[row][column:]
            elif len(part) == 1:
                if column == COLUMNS:
                    row, column = row + 1, 0
                screen += [[] for _ in range(row + 1 - len(screen))]
                line = screen[row]
                line += " " * (column + 1 - len(line))
                line[column] = part
                column += 1
            screen += [[] for _ in range(row + 1 - len(screen))]
            changed.add(row)
        lines += [[] for _ in range(len(screen) - len(lines))]
        for number in changed:
            text = "".join(screen[number]).rstrip()
            if text != (lines[number][-1][1] if lines[number] else ""):
                lines[number].append((seconds, text))
    return [thinned(texts) for texts in lines]


def thinned(versions: Versions) -> Versions:
    """Leaves out the texts that follow another one too soon, but not the last one."""
    kept: Versions = []
    for i, version in enumerate(versions):
        if i == len(versions) - 1 or not kept or version[0] >= kept[-1][0] + STEP:
            kept.append(version)
    return kept


def discrete(attribute: str, changes: list[tuple[float, str]], length: float, kind: str = "animate") -> str:
    """Returns the animation of an attribute in steps; the first change is at 0."""
    values, times = ";".join(value for _, value in changes), ";".join(f"{start / length:.5f}" for start, _ in changes)
    translate = ' type="translate"' if kind == "animateTransform" else ""
    return (
        f'<{kind} attributeName="{attribute}"{translate} calcMode="discrete" dur="{length:.2f}s" '
        f'repeatCount="indefinite" values="{values}" keyTimes="{times}"/>'
    )


def drawing(lines: list[Versions], command: str, seconds: float) -> str:
    """Returns the SVG. A program that shows no animations shows the last screen."""
    length = seconds / FASTER + HOLD
    width, height = 2 * MARGIN + COLUMNS * WIDE, TOP + ROWS * HIGH + MARGIN
    texts, scrolls, top = [], [(0.0, "0 0")], 0
    for row, versions in enumerate([[(0.0, f"$ {command}")], *lines]):
        y = f"{(row + 0.75) * HIGH:.1f}"
        for i, (start, text) in enumerate(versions):
            end = versions[i + 1][0] if i + 1 < len(versions) else None
            if text:
                states = [(0.0, "hidden")] if start else []
                states.append((start / FASTER, "visible"))
                states += [(end / FASTER, "hidden")] if end is not None else []
                shown = escape(text, quote=False).replace(" ", "\N{NO-BREAK SPACE}")
                if row == 0:
                    shown = f'<tspan fill="{PROMPT}">$</tspan>{shown[1:]}'
                texts.append(
                    f'<text y="{y}" textLength="{len(text) * WIDE:.1f}" lengthAdjust="spacingAndGlyphs" '
                    f'visibility="{states[-1][1]}">{shown}{discrete("visibility", states, length) if start else ""}</text>'
                )
        if versions and row >= ROWS + top:
            top = row - ROWS + 1
            scrolls.append((versions[0][0] / FASTER, f"0 {-top * HIGH}"))
    title = f"{command}: {seconds:.0f} seconds on one CPU thread, shown {FASTER} times as fast"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
            f'height="{height}" font-family="{MONOSPACE}" font-size="{FONT}" fill="{INK}">',
            f"<title>{escape(title)}</title>",
            f'<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1}" rx="8" fill="{PAPER}" stroke="{FRAME}"/>',
            f'<text x="{width / 2:.0f}" y="22" text-anchor="middle" fill="{FAINT}">{escape(title)}</text>',
            f'<svg x="{MARGIN}" y="{TOP}" width="{COLUMNS * WIDE:.0f}" height="{ROWS * HIGH}">',
            f'<g transform="translate({scrolls[-1][1]})">{discrete("transform", scrolls, length, "animateTransform")}',
            *texts,
            "</g></svg></svg>\n",
        ]
    )


def main(weights: str, output: Path) -> None:
    """Records the run and writes the drawing."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(weights, folder)
        recording = record(Path(weights).name, folder)
    with atomic_write(output) as file:
        file.write(drawing(lines_of(recording), "python train.py", recording[-1][0]).encode())
