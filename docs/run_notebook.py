"""Runs docs/first_detector.ipynb in an empty folder and stores its outputs. Needs nbclient and ipykernel.

python -m docs.run_notebook yolox_nano.pth

The weights are the file of benchmarks/results/official.md. The run has one thread. The times that it prints are CPU times of its
process: what a computer without other programs needs.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from utils.files import atomic_write

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs/first_detector.ipynb"
PACKAGES = ("datasets", "deploy", "engine", "metrics", "nets", "report", "utils")
ON_CPU_TIME = """
import time, types
import torch, torchvision, tqdm
_monotonic, time.monotonic = time.monotonic, time.process_time
import train, engine.epoch
time.monotonic = _monotonic
engine.epoch.time = types.SimpleNamespace(perf_counter=time.process_time)
"""


def main(weights: str) -> None:
    """Writes the notebook with new outputs."""
    notebook = nbformat.read(NOTEBOOK, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        for name in PACKAGES:
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "train.py", folder)
        shutil.copy(weights, folder)
        Path(folder, "docs").mkdir()
        os.environ["THAW_CACHE"] = str(Path(folder, "cache"))
        source = code[0].source
        code[0].source += ON_CPU_TIME
        resources = {"metadata": {"path": str(Path(folder, "docs"))}}
        options = {"timeout": 1800, "record_timing": False, "coalesce_streams": True}
        NotebookClient(notebook, resources=resources, **options).execute()
        code[0].source = source
    with atomic_write(NOTEBOOK) as file:
        file.write((nbformat.writes(notebook) + "\n").encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
