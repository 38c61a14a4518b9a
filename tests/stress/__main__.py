"""Kills trainings, or causes faults of every kind. Exits with 1 if a result differs from an undisturbed training.

python -m tests.stress kills=22 seed=5         only kills, see torture.py
python -m tests.stress minutes=60 seed=5       faults of every kind, see faults.py
"""

import sys
from dataclasses import dataclass

from tests.stress import faults, torture
from utils.config import override


@dataclass(frozen=True)
class Config:
    minutes: float = 0.0  # causes faults of every kind for this time; 0: only kills
    kills: int = 22  # kills that hit a running training; 22: every kind twice
    seed: int | None = None  # decides what is killed and where; none: random
    note: bool = False  # adds a row of kills to benchmarks/results/torture.md
    folder: str | None = None  # where the runs go and stay; none: a temporary folder


def main(cfg: Config) -> torture.Outcome:
    """Causes faults for some minutes, or a number of kills."""
    if cfg.minutes:
        return faults.main(cfg.minutes, cfg.seed, cfg.folder)
    return torture.main(cfg.kills, cfg.seed, cfg.note, cfg.folder)


if __name__ == "__main__":
    raise SystemExit(bool(main(override(Config(), sys.argv[1:])).differences))
