"""Writes the golden runs again: python -m tests.golden (see runs.py); the kept run: python -m tests.golden kept (see kept.py)"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the models of the tests

import torch

from tests.golden import kept, runs

torch.set_num_threads(1)
if sys.argv[1:] == ["kept"]:
    kept.make()
else:
    for name, settings in runs.RUNS.items():
        (runs.FOLDER / f"{name}.txt").write_text(runs.text_of(runs.run(*settings)), encoding="utf-8")
        print(f"wrote {name}.txt")
