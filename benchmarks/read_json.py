"""Measures time and memory of reading a large COCO JSON: python -m benchmarks.read_json [annotations=1000000] [images=100000]

The file has a polygon of 25 points per annotation, as files of segmentation do. It is read in a process of its own.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.table import add_row
from utils.config import override

HEAD = """# Reading a large COCO JSON

`python -m benchmarks.read_json` writes a COCO JSON with a polygon of 25 points per annotation and empty image files, and reads it
in a new process: wall and CPU time of `datasets.formats.read.read`, and the largest resident memory of the process.
The targets for 1,000,000 annotations are 20 s and 1,500 MB.
Before the reader was typed, on the same file: 38.8 s of CPU time, 3,280 MB."""

READ = """
import resource, sys, time
from datasets.formats.read import read
begin, cpu = time.perf_counter(), time.process_time()
found = read(sys.argv[1], "train")
seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(len(found), len(found.boxes), seconds, cpu, peak / 1024)
"""


@dataclass(frozen=True)
class Config:
    images: int = 100_000
    annotations: int = 1_000_000
    points: int = 25  # of each polygon


def write_coco(folder: Path, images: int, annotations: int, points: int) -> Path:
    """Writes FOLDER/large.json and its empty images, and returns the path of the JSON."""
    rng = np.random.default_rng(0)
    for number in range(images):
        (folder / f"{number:012}.jpg").touch()
    path = folder / "large.json"
    with open(path, "w", encoding="utf-8") as file:
        sizes = {"height": 480, "width": 640}
        rows = ({"id": n, "file_name": f"{n:012}.jpg", **sizes} for n in range(images))
        file.write('{"images": [' + ", ".join(map(json.dumps, rows)) + '], "annotations": [')
        for number in range(annotations):
            outline = (rng.random((points, 2)) * 200 + rng.random(2) * 200).round(2)
            corner = outline.min(0)
            row = {
                "segmentation": [outline.ravel().tolist()],
                "area": round(float(np.ptp(outline, 0).prod()) / 2, 4),
                "iscrowd": 0,
                "image_id": int(rng.integers(images)),
                "bbox": [*corner.tolist(), *np.ptp(outline, 0).round(2).tolist()],
                "category_id": int(rng.integers(1, 91)),
                "id": number,
            }
            file.write((", " if number else "") + json.dumps(row))
        names = [{"id": n, "name": f"class {n}", "supercategory": "thing"} for n in range(1, 91)]
        file.write('], "categories": ' + json.dumps(names) + "}")
    return path


def measure(path: Path) -> list[float]:
    """Reads a COCO JSON in a new process -> images, boxes, seconds, CPU seconds, MB of memory at most."""
    done = subprocess.run([sys.executable, "-c", READ, str(path)], stdout=subprocess.PIPE, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def main(words: list[str]) -> None:
    """Writes a file, reads it, and adds a row to benchmarks/results/read_json.md."""
    cfg = override(Config(), words)
    with tempfile.TemporaryDirectory() as folder:
        path = write_coco(Path(folder), cfg.images, cfg.annotations, cfg.points)
        size = path.stat().st_size
        images, boxes, seconds, cpu, peak = measure(path)
    row = {
        "images": f"{images:,.0f}",
        "boxes": f"{boxes:,.0f}",
        "size of the file": f"{size / 1e6:.0f} MB",
        "seconds (CPU time)": f"{seconds:.1f} ({cpu:.1f})",
        "memory": f"{peak:.0f} MB",
    }
    add_row("read_json", HEAD, row)


if __name__ == "__main__":
    main(sys.argv[1:])
