"""Kills trainings, or causes faults of every kind. Exits with 1 if a result differs from that of an undisturbed training.

python -m tests.stress kills=22 seed=5         only kills, see torture.py
python -m tests.stress minutes=60 seed=5       faults of every kind, see faults.py
"""

import sys

from tests.stress import faults, torture
from tests.stress.torture import Config
from utils.config import override

if __name__ == "__main__":
    cfg = override(Config(), sys.argv[1:])
    outcome = faults.main(cfg) if cfg.minutes else torture.main(cfg)
    raise SystemExit(bool(outcome.differences))
