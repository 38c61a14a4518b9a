"""Trains on BCCD with a backbone that is frozen in no epoch, in a fifth and in all, and draws the page that compares these runs.

python -m docs.draw_compare BCCD yolox_nano.pth docs/images/compare.jpg

The image is for docs/runs.md. Needs Chromium. The weights are the file of benchmarks/results/official.md. The runs have one
thread, and their minutes are CPU minutes: what a computer without other programs needs.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from docs import draw_page
from docs.draw_terminal import ON_CPU_TIME, ROOT

EPOCHS = 20
CONSTANTS = [f"epochs={EPOCHS}", "image_size=224,224", "freeze_batch_size=8", "workers=0", "device=cpu", "report=false"]
WIDTH, HEIGHT = "1160", "930"  # pixels of the image


def main(data: str, weights: str, output: str) -> None:
    """Writes the drawing."""
    paths = [f"train={Path(data).resolve()}", f"weights={Path(weights).resolve()}", "name=bccd"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        for frozen in (0, EPOCHS // 5, EPOCHS):
            command = [sys.executable, "-c", ON_CPU_TIME, *paths, *CONSTANTS, f"freeze_epochs={frozen}"]
            subprocess.run(command, check=True, cwd=folder, env=env)
        runs = sorted(map(str, Path(folder, "runs").iterdir()))
        subprocess.run([sys.executable, "-m", "tools.compare", *runs, f"output={folder}"], check=True, env=env)
        draw_page.main(f"{folder}/compare.html", output, WIDTH, HEIGHT)


if __name__ == "__main__":
    main(*sys.argv[1:])
