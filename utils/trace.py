"""What the processor and the device do in a few training steps, as a file to look at."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

WARM_UP = 5  # steps before: memory and algorithms are chosen in the first


def traced(batches: Iterable, steps: int, path: Path, say=print) -> Iterator:
    """The batches, unchanged. The work on `steps` of them, after the first five, goes to `path` (.json.gz), a trace for
    https://ui.perfetto.dev, with the costliest operations beside it (.txt)."""
    batches, done = iter(batches), 0
    yield from itertools.islice(batches, WARM_UP)
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
        say(f"profile    {done} steps: {path} (for https://ui.perfetto.dev)")
    else:
        say(f"profile    no trace: the epoch has no more than {WARM_UP} steps")
    yield from batches
