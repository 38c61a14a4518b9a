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
header, .facts, nav, .tall, #s1 h3:last-of-type, section:not(#s1, #s3) {display: none}
#s1 {border: 0; margin: 0; padding: 0}
</style>"""  # the threshold with its curves, and the mistakes


def screenshot(page: Path, width: int, height: int, style: str = "") -> np.ndarray:
    """Returns the top of a page in a browser window of this many pixels, with more style: uint8 [height, width, 3] BGR."""
    with tempfile.TemporaryDirectory() as folder:
        shot, copy = Path(folder) / "page.png", Path(folder) / "page.html"
        copy.write_text(page.read_text(encoding="utf-8") + style, encoding="utf-8")
        options = [f"--screenshot={shot}", f"--window-size={width},{height}"]
        quiet = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/browser"]
        subprocess.run(["chromium", *quiet, *options, copy.as_uri()], check=True, capture_output=True)
        return cv2.imread(str(shot))


def report(run: Path, output: Path) -> None:
    """Draws a third of a report: `PARTS`, down to the first mistakes."""
    write_jpeg(output, screenshot(run / "evaluation/report.html", 1040, 1240, PARTS))


def check(bccd: Path, output: Path) -> None:
    """Draws the page of tools.check about BCCD."""
    with tempfile.TemporaryDirectory() as folder:
        page, env = Path(folder) / "check.html", os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tools.check", bccd.name, f"page={page}"]
        subprocess.run(command, check=True, cwd=bccd.resolve().parent, env=env)
        write_jpeg(output, screenshot(page, 1100, 1345))
