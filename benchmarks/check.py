"""Measures tools.check on many generated images, the first time and with the cached scan: python -m benchmarks.check

The images show smooth blots with noise, 640 x 480, with 5 boxes each. A tenth of the images are copies of others in
another size. The seconds are those of the whole command, page included. Other programs slow everything down, so the load
is printed.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import PIL

from benchmarks.table import RESULTS
from utils.config import override

ROOT = Path(__file__).parents[1]
HEAD = """# tools.check on many images

`python -m benchmarks.check`: generated JPEG files of 640 x 480 with 5 boxes each, a tenth of them copies in another size;
the whole command with `page=check.html`. The second start uses the cached scan. The target is 60 s for 10,000 images.

| date | images | first start s (CPU s) | second start s (CPU s) | page | machine |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Config:
    images: int = 10_000


def draw(folder: Path, count: int) -> Path:
    """Writes the images and their annotation file, and returns its path."""
    random, lines = np.random.default_rng(0), []
    grain = random.normal(0, 6, (480, 640, 3))
    (folder / "classes.txt").write_text("cat\ndog\n")
    for i in range(count):
        if i % 10 < 9 or i < 10:
            small = random.integers(0, 256, (9, 12, 3)).astype(np.uint8)
            image = cv2.resize(small, (640, 480), interpolation=cv2.INTER_CUBIC) + np.roll(grain, i, (0, 1))
            image = image.clip(0, 255).astype(np.uint8)
        else:
            image = cv2.resize(image, (512, 384), interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(folder / f"{i}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 85])
        corners = random.integers(0, 250, (5, 2))
        boxes = np.column_stack([corners, corners + random.integers(5, 130, (5, 2)), random.integers(0, 2, 5)])
        lines.append(f"{i}.jpg " + " ".join(",".join(map(str, box)) for box in boxes))
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    return folder / "train.txt"


def main(cfg: Config) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, page = draw(folder, cfg.images), folder / "check.html"
        os.sync()
        load, cells = os.getloadavg()[0], []
        for _ in range(2):
            begin, before = time.perf_counter(), os.times()
            command = [sys.executable, "-m", "tools.check", str(data), f"page={page}"]
            subprocess.run(
                command, cwd=ROOT, env=os.environ | {"THAW_CACHE": f"{folder}/cache"}, stdout=subprocess.DEVNULL
            )
            after = os.times()
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
            cells.append(f"{time.perf_counter() - begin:.1f} ({cpu:.1f})")
        versions = f"Pillow {PIL.__version__}, OpenCV {cv2.__version__}, Python {platform.python_version()}"
        where = f"{os.cpu_count()} cores {platform.machine()}, load {load:.1f}, {versions}"
        size = f"{page.stat().st_size / 2**20:.1f} MB"
    path = RESULTS / "check.md"
    text = path.read_text(encoding="utf-8") if path.exists() else HEAD
    row = f"| {time.strftime('%Y-%m-%d')} | {cfg.images:,} | {' | '.join(cells)} | {size} | {where} |\n"
    path.write_text(text + row, encoding="utf-8")
    print(row)


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
