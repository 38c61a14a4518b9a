"""A profile of early training steps, for profile_steps=."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from utils.text import amount

PROFILE_WARM_UP = 5  # steps before a profile: the first ones allocate memory and choose algorithms


def profiled(batches: Iterable, steps: int, path: Path, log: Callable[[str], None] = print) -> Iterator:
    """Yields the batches unchanged, and profiles `steps` training steps after the first five.

    Writes a trace for https://ui.perfetto.dev to `path` (.json.gz), and a table of the most expensive operations next to it.
    """
    batches, done = iter(batches), 0
    yield from islice(batches, PROFILE_WARM_UP)
    gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu) as profiler:
        while done < steps:
            with record_function("wait for data"):
                batch = next(batches, None)
            if batch is None:
                break
            yield batch
            done += 1
    if done:
        profiler.export_chrome_trace(str(path))
        table = profiler.key_averages().table(f"self_{'device' if gpu else 'cpu'}_time_total", 40, 60)
        path.with_suffix("").with_suffix(".txt").write_text(table, encoding="utf-8")
        log(f"profile    {amount(done, 'step')}: {path} (open it at https://ui.perfetto.dev)")
    else:
        log(f"profile    no trace: the epoch has no more than {PROFILE_WARM_UP} steps")
    yield from batches
