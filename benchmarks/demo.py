"""Measures time and mAP of the demo of `python train.py` without official weights: python -m benchmarks.demo"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.table import add_row

HEAD = """# The demo from scratch

`python -m benchmarks.demo` runs `python train.py weights=http://127.0.0.1:9` in an empty folder. The weights cannot be
downloaded from there, so the demo trains from scratch: 32 epochs on 160 drawn images of 224 pixels, with an evaluation on
40 images after each epoch."""


def main() -> None:
    """Runs train.py as a user does, and adds a row to benchmarks/results/demo.md."""
    script = Path(__file__).parents[1] / "train.py"
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        command = [sys.executable, str(script), "weights=http://127.0.0.1:9"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        minutes = (time.perf_counter() - begin) / 60
    best = re.search(r"best mAP50-95 ([\d.]+)", done.stdout.splitlines()[-1])[1]
    add_row("demo", HEAD, {"minutes in total": f"{minutes:.1f}", "best mAP50-95": best})


if __name__ == "__main__":
    main()
