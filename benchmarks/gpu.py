"""Measures everything that needs a GPU: python -m benchmarks.gpu

    python -m benchmarks.gpu                           all parts that have no rows yet, in the order of PARTS
    python -m benchmarks.gpu minutes=9                 no part that could take longer than these minutes
    python -m benchmarks.gpu parts=speed,memory        only these, also if they have rows; the page keeps the others
    python -m benchmarks.gpu peers=PYTHON              also Ultralytics and LibreYOLO, in the environment of this Python

Each part is a separate process with a time budget. What fails or takes too long becomes a row with its error, the rows
measured before it stay, and the next part begins. After each part its rows replace its old ones in results/gpu.json, and the
page results/gpu.md is written again. So the same command continues after it was stopped: a part with rows of the same code
on the same GPU with the same constants is not repeated. gpu_parts.py and gpu_runs.py hold the parts.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks import gpu_parts, gpu_runs
from benchmarks.table import RESULTS, machine
from engine.environment import code_digest
from utils.config import override, show

ROOT = Path(__file__).parents[1]


class Part(NamedTuple):
    """A part of the measurement, in a process of its own."""

    measure: Callable  # yields its rows
    seconds: int  # at most
    title: str  # of its table


PARTS = {  # the most valuable first
    "tests": Part(gpu_parts.tests, 240, "The tests that need a GPU: those that failed last time, then the others"),
    "whole_run": Part(gpu_runs.account, 120, "Where the time of a whole run goes: percent after its start"),
    "runs": Part(gpu_runs.runs, 180, "Whole runs with their loaders: the second epoch"),
    "speed": Part(gpu_parts.speed, 105, "Training steps: random images and boxes, without data loading"),
    "memory": Part(gpu_parts.memory, 80, "GPU memory of a step: the probe compared with the peak"),
    "ranks": Part(
        gpu_runs.ranks, 75, "One process, and two that share the GPU: the losses of an epoch without learning"
    ),
    "exported": Part(gpu_runs.exported, 90, "An exported file in ONNX Runtime on the GPU, also through TensorRT"),
}
NO_GPU = (
    "benchmarks.gpu needs a GPU, and torch finds none: run it on a computer with one; nothing was measured or written"
)


@dataclass(frozen=True)
class Config:
    parts: tuple[str, ...] = ()  # measured also if they have rows; none: all that have no rows of this code and GPU
    minutes: float = 15.0  # a part that could end later is not begun
    models: tuple[str, ...] = ("yolox_nano", "yolox_s", "yolov9_s", "yolov9_c")
    amps: tuple[str, ...] = ("none", "fp16", "bf16")
    size: int = 640
    batch_size: int = 32
    seconds: float = 4.0  # of measured steps per row
    data: str = ""  # training data of the part runs; empty: the generated demo images
    val: str = ".2"  # validation data for `data`
    workers: int = 8
    peers: str = ""  # Python of an environment with ultralytics or libreyolo
    results: str = str(RESULTS / "gpu.json")  # the page lies next to it
    child: str = ""  # the part that this process measures; set by the parent process


def rows(cfg: Config, part: str) -> Iterator[dict]:
    """Yields the rows of a part. An error ends the part with a row that holds it."""
    try:
        yield from PARTS[part].measure(cfg, time.monotonic() + PARTS[part].seconds)
    except Exception as error:
        yield {"error": gpu_parts.one_line(error)}


def run_part(cfg: Config, part: str) -> list[dict]:
    """Measures a part in a separate process, which is killed when its time budget is used up. Returns the rows."""
    words = [f"{field.name}={show(getattr(cfg, field.name))}" for field in fields(cfg) if field.name != "child"]
    command = [sys.executable, "-m", "benchmarks.gpu", *(w for w in words if not w.endswith("=")), f"child={part}"]
    log = Path(cfg.results).with_suffix(f".{part}.jsonl")
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.PIPE, text=True, process_group=0)
        try:
            _, errors = process.communicate(timeout=PARTS[part].seconds)
            problem = errors.strip().splitlines()[-1:] if process.returncode else []
        except subprocess.TimeoutExpired:
            problem = [f"the time limit of {PARTS[part].seconds} s ended"]
        finally:
            with suppress(ProcessLookupError):  # it has ended, and left no process
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    found = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    log.unlink()
    return found + [{"error": text} for text in problem]


def table(found: list[dict]) -> str:
    """Formats rows as a Markdown table with every column that one of them has."""
    columns = list(dict.fromkeys(name for row in found for name in row))
    rounded = [{k: f"{v:.5g}" if isinstance(v, float) else v for k, v in row.items()} for row in found]
    lines = [columns, ["---"] * len(columns), *([str(row.get(name, "")) for name in columns] for row in rounded)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def page(results: dict[str, dict]) -> str:
    """Returns the page for the results of all parts, in the order of PARTS."""
    parts = [
        "# On a GPU",
        "`python -m benchmarks.gpu` writes this page from gpu.json. Each part has its own date. "
        "Steps use random images and boxes.",
    ]
    for part, (_, _, title) in PARTS.items():
        if part in results:
            result = results[part]
            measured = [row for row in result["rows"] if row.keys() != {"error"}]
            parts += [f"## {title}", *([table(measured)] if measured else [])]
            missing = [row["error"] for row in result["rows"] if row.keys() == {"error"}]
            parts += [f"Other rows were not measured: {error}." for error in missing]
            parts += [f"{result['constants']}; {result['date']}, {result['machine']}, {result['seconds']} s."]
    return "\n\n".join(parts) + "\n"


def conditions(cfg: Config) -> dict[str, str]:
    """Returns what the rows of a part depend on: the code that trains, the machine and the constants."""
    constants = f"{cfg.size} pixels, batch {cfg.batch_size}, {Path(cfg.data).name or 'demo images'}"
    return {"code": code_digest(ROOT), "machine": machine(), "constants": constants}


def measured(cfg: Config) -> dict[str, dict]:
    """Returns the results of all parts so far."""
    file = Path(cfg.results)
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def to_measure(cfg: Config) -> list[str]:
    """Returns the parts that are named, or else those that have no rows under the same conditions."""
    if cfg.parts:
        return list(cfg.parts)
    now, results = conditions(cfg), measured(cfg)
    return [part for part in PARTS if not now.items() <= results.get(part, {}).items()]


def save(cfg: Config, part: str, found: list[dict], seconds: float) -> None:
    """Replaces the rows of a part in the file of results, and writes the page next to it."""
    file, results = Path(cfg.results), measured(cfg)
    about = {"date": time.strftime("%Y-%m-%d"), "seconds": round(seconds), **conditions(cfg)}
    results[part] = {**about, "rows": found or [{"error": "no rows"}]}
    file.write_text(json.dumps(results, indent=1), encoding="utf-8")
    file.with_suffix(".md").write_text(page(results), encoding="utf-8")


def main(cfg: Config) -> None:
    """Measures the parts, one after another; in a child process one part, with its rows on stdout."""
    end = time.monotonic() + 60 * cfg.minutes
    if not torch.cuda.is_available():
        raise SystemExit(NO_GPU)
    if unknown := [part for part in (*cfg.parts, cfg.child) if part and part not in PARTS]:
        raise SystemExit(f"parts={','.join(unknown)}: not known; choose among {', '.join(PARTS)}")
    if cfg.child:
        out, sys.stdout = sys.stdout, sys.stderr  # other output is no row
        for row in rows(cfg, cfg.child):
            print(json.dumps(row), file=out, flush=True)
        return
    for part in to_measure(cfg):
        begin = time.monotonic()
        if begin + PARTS[part].seconds > end:
            print(f"{part}: not begun, it may take {PARTS[part].seconds} s: the same command continues", flush=True)
            continue
        found = run_part(cfg, part)
        save(cfg, part, found, time.monotonic() - begin)
        failed = sum("error" in row for row in found)
        print(f"{part}: {len(found)} rows, {failed} with an error, {time.monotonic() - begin:.0f} s", flush=True)
    print(page(measured(cfg)))


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
