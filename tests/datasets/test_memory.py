"""Workers that read annotations do not copy them, so that memory does not grow during an epoch."""

import multiprocessing
import os
import re
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pytest
from files import read_annotation_file

from datasets.dataset import DetectionDataset
from datasets.loader import TrainSampler, build_loader
from datasets.mosaic import Augment

LINES, WORKERS, BATCHES = 200_000, 2, 2_000


def memory() -> int:
    """Kilobytes of this process and its workers, without files; a page that n of them share counts as 1/n for each (PSS)."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    assert len(pids) == 1 + WORKERS
    texts = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(
        int(kilobytes) for text in texts for kilobytes in re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB", text, re.M)
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs /proc/PID/smaps_rollup of Linux")
def test_memory_of_workers_does_not_grow(tmp_path):
    (tmp_path / "a.png").write_bytes(cv2.imencode(".png", np.full((8, 8, 3), 90, np.uint8))[1].tobytes())
    lines = (f"a.png 1,1,{4 + i % 4},7,{i % 5} 0,0,5,{3 + i % 5},{i % 3}\n" for i in range(LINES))
    (tmp_path / "train.txt").write_text("".join(lines), encoding="utf-8")
    data = read_annotation_file(str(tmp_path / "train.txt"))
    augment = Augment(mosaic=0.5, mixup=0.0, flip=0.5, rotation=0.0, scale=(0.5, 1.5), translate=0.1, shear=0.0)
    sampler = TrainSampler(len(data), 4, (32, 32), seed=0)
    batches = iter(build_loader(DetectionDataset(data, "corner", augment), sampler, WORKERS))
    for _ in islice(batches, 100):  # every worker has its libraries and buffers
        pass
    before = memory()
    assert sum(1 for _ in islice(batches, BATCHES)) == BATCHES
    assert memory() < 1.1 * before
