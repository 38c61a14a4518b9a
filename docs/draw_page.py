"""Draws the top of a web page that a tool wrote, as an image for the documentation. Needs Chromium.

python -m docs.draw_page suspects/suspects.html docs/images/suspects.jpg 1180 1150

The numbers are the width and height of the browser window in pixels. docs/images/suspects.jpg shows the page of
`python -m tools.suspects BCCD/ImageSets/Main/train.txt weights=yolox_nano.pth image_size=256,256 epochs=14`, with the folder
of the data written as BCCD. yolox_nano.pth is the file of benchmarks/results/official.md.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import cv2

from utils.draw import write_image


def main(page: str, output: str, width: str, height: str) -> None:
    """Writes a screenshot."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "page.png"
        options = [f"--screenshot={shot}", f"--window-size={width},{height}"]
        quiet = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/browser"]
        command = ["chromium", *quiet, *options, Path(page).resolve().as_uri()]
        subprocess.run(command, check=True)
        write_image(output, cv2.imread(str(shot)))


if __name__ == "__main__":
    main(*sys.argv[1:])
