"""Draws parts of the web pages that a run and the tools write, for the pages of the documentation. Needs Chromium."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np

from docs.jpeg import write_jpeg

ROOT = Path(__file__).parents[1]
PARTS = """<style>
header, .facts, nav, .tall, .curves, #s1 h3, section:not(#s1, #s3) {display: none}
.counts {grid-template-columns: repeat(6, 1fr)}
.counts span {display: none}
.pairs {grid-template-columns: 1fr 1fr}
#s1, #s3 {border: 0; margin: 0 0 24px; padding: 0}
main {padding: 20px}
</style>"""  # the threshold, and the mistakes
CHECK = """<style>
main > dl, main > h3, nav, #s1 {display: none}
section {border: 0; margin: 0; padding: 20px 0 0}
td:nth-child(n+8), th:nth-child(n+8), .grid > :nth-child(n+7) {display: none}
main {padding: 20px}
</style>"""  # classes, and images with their boxes
WIDTH, SCALE = 838, 1.5  # of a window in pixels, as wide as a page of GitHub; pixels of the image for each


def screenshot(page: Path, height: int, style: str, dark: bool) -> np.ndarray:
    """Returns the top of a page in a browser window of this height, with more style: uint8 [H, W, 3] BGR."""
    with tempfile.TemporaryDirectory() as folder:
        shot, copy = Path(folder) / "page.png", Path(folder) / "page.html"
        copy.write_text(page.read_text(encoding="utf-8") + style, encoding="utf-8")
        options = [f"--screenshot={shot}", f"--window-size={WIDTH},{height}", f"--force-device-scale-factor={SCALE}"]
        options += [f"--blink-settings=preferredColorScheme={int(not dark)}"]
        quiet = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/browser"]
        subprocess.run(["chromium", *quiet, *options, copy.as_uri()], check=True, capture_output=True)
        return cv2.imread(str(shot))


def write(output: Path, page: Path, height: int, style: str = "") -> None:
    """Draws the top of a page in light and, for NAME.jpg as NAME_dark.jpg, in dark."""
    write_jpeg(output, screenshot(page, height, style, dark=False))
    write_jpeg(output.with_stem(f"{output.stem}_dark"), screenshot(page, height, style, dark=True))


def report(run: Path, output: Path) -> None:
    """Draws a part of a report: `PARTS`, down to the first mistakes."""
    write(output, run / "evaluation/report.html", 660, PARTS)


def check(bccd: Path, output: Path) -> None:
    """Draws the page of tools.check about BCCD."""
    with tempfile.TemporaryDirectory() as folder:
        page, env = Path(folder) / "check.html", os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tools.check", bccd.name, f"page={page}"]
        subprocess.run(command, check=True, cwd=bccd.resolve().parent, env=env)
        write(output, page, 662, CHECK)
