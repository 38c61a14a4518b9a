"""Parts of benchmarks.gpu that test and take steps, and what all parts use.

A part yields rows (column -> cell) and ends before `end`, a value of time.monotonic().
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import nets
from benchmarks import step
from benchmarks.own_process import MARGIN, ROOT
from datasets.loader import TrainSampler
from engine.memory import StepProbe
from engine.network import accelerate
from engine.optimizer import Updater

WARM_UP = 3  # steps that are not measured: memory and algorithms are chosen in the first ones


def one_line(error: BaseException) -> str:
    """Returns the kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:200]


def attempt(row: dict, measure: Callable[[], dict], end: float) -> dict:
    """Returns the row with the measured cells, or with an error if the measurement fails or no time is left for it."""
    if time.monotonic() > end - MARGIN:
        return row | {"error": "left out: the time budget of the part is used up"}
    try:
        return row | measure()
    except Exception as error:
        return row | {"error": one_line(error)}
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def settings(cfg, model: str, amp: str) -> step.Config:
    """Returns the constants of benchmarks.step for a model on the GPU."""
    return step.Config(model=model, size=cfg.size, batch_size=cfg.batch_size, device="cuda:0", amp=amp)


def trainer(cfg, model: str, amp: str, graphs: bool = True) -> tuple[Updater, Callable[[], None]]:
    """Returns an updater, and a function that performs a thawed training step on a fixed batch, as train.py does."""
    constants = settings(cfg, model, amp)
    updater, criterion = step.start(constants)
    images, boxes, labels = (x.to(updater.device) for x in step.random_batch(constants))
    sampler = TrainSampler(1000, cfg.batch_size, (cfg.size, cfg.size), seed=0)
    network = updater.model.train()
    if graphs:
        network = accelerate(updater.model, sampler, updater, print).train()

    def one_step() -> None:
        with updater.autocast():
            predictions = network(images)
        updater.backward(criterion(predictions, boxes, labels, (cfg.size, cfg.size))["total"])

    return updater, one_step


def steps(cfg, model: str, amp: str) -> dict:
    """Measures training steps. Returns the cells of a row."""
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    updater, one_step = trainer(cfg, model, amp)
    one_step()
    torch.cuda.synchronize()
    cells = {"first step s": round(time.perf_counter() - begin, 1)}
    begin, count = time.perf_counter(), -WARM_UP
    while count <= 0 or time.perf_counter() - begin < cfg.seconds:
        if count == 0:
            begin = time.perf_counter()
        for _ in range(WARM_UP):
            one_step()
        torch.cuda.synchronize()
        count += WARM_UP
    each = (time.perf_counter() - begin) / count
    cells |= {"ms per step": round(1000 * each, 1), "images/s": round(cfg.batch_size / each)}
    cells |= {"peak GiB": round(torch.cuda.max_memory_allocated() / 2**30, 2)}
    return cells | {"skipped steps": int(updater.skipped)}


def tests(cfg, end: float) -> Iterator[dict]:
    """Runs the tests that need a GPU, first those that failed last time: rows with their summaries, and one per failure."""
    file = Path(cfg.results)
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    lines = [row.get("result", "") for row in results.get("tests", {"rows": []})["rows"]]
    failed = [line.split()[1] for line in lines if line.startswith("FAILED")]
    if failed:
        yield from pytest_rows(failed, end)
    yield from pytest_rows([f"--deselect={name}" for name in failed], end)


def pytest_rows(words: list[str], end: float) -> Iterator[dict]:
    """Runs tests in four processes. Yields the row of their summary, and one per failure."""
    options = ["-m", "gpu", "-n4", "--dist=load", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *words]
    limit = end - MARGIN - time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
    lines = done.stdout.strip().splitlines()
    yield {"result": lines[-1] if lines else f"exit status {done.returncode}"}
    yield from ({"result": line[:200]} for line in lines if line.startswith(("FAILED", "ERROR")))


def speed(cfg, end: float) -> Iterator[dict]:
    """Measures steps of every model in every precision."""
    for model in cfg.models:
        for amp in cfg.amps:
            yield attempt({"model": model, "amp": amp}, lambda m=model, a=amp: steps(cfg, m, a), end)


def memory(cfg, end: float) -> Iterator[dict]:
    """Compares the memory that the probe of a run measures with the peak of real steps."""
    for model in cfg.models:
        for amp in ("none", "fp16"):
            yield attempt({"model": model, "amp": amp}, lambda m=model, a=amp: memory_of(cfg, m, a), end)


def memory_of(cfg, name: str, amp: str) -> dict:
    """Probes a step, then runs a few. Returns the cells of a row."""
    model = nets.build(name, 80).to("cuda:0", memory_format=torch.channels_last)
    boxes = settings(cfg, name, amp).boxes
    probed = StepProbe(model, nets.criterion(model), (cfg.size, cfg.size), boxes, amp).bytes(cfg.batch_size)
    del model
    updater, one_step = trainer(cfg, name, amp, graphs=False)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(WARM_UP):
        one_step()
    peak = torch.cuda.max_memory_allocated()
    return {
        "probe GiB": round(probed / 2**30, 2),
        "peak GiB": round(peak / 2**30, 2),
        "probe / peak": round(probed / peak, 3),
    }
