"""Measures how much freezing and other choices of a training change the mAP on small data: data sets x seeds x recipes.

    python -m benchmarks.small_data data=FOLDER weights=yolox_nano.pth stage=screen [minutes=60]

Each run takes minutes. It adds a row to small_data.csv and its mAP over time to small_data_curves.csv, in `results`. A run
that has a row there is not repeated, unless it failed; `results=FOLDER` begins a table of your own. After `minutes` no run
begins; the same command continues later. At the end benchmarks/small_data_page.py writes the page with tables and plot,
whose section "The data sets" has the sources of the images and explains which files `data` has.
"""

import csv
import itertools
import math
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import small_data_hooks as hook
from benchmarks import small_data_peers
from benchmarks import small_data_recipes as tables
from benchmarks.small_data_recipes import constants, overrides, sources
from benchmarks.small_data_run import Job, attempt, in_own_process
from benchmarks.table import RESULTS, machine
from engine.environment import environment
from utils.config import ConfigError, override, require, show
from utils.script import run_script

KEY = ("stage", "data", "seed", "recipe", "overrides", "image_size", "epochs")  # columns that identify a run
COLUMNS = (
    *KEY,
    *("batch_size", "images_seen", "AP", "AP50", "best_AP", "frozen_AP", "thawed_AP_1", "thawed_AP_2"),
    *("minutes", "minutes_in_all", "cpu_minutes", "images_per_second", "peak_MiB"),
    *("date", "machine", "torch", "commit", "error"),
)
CURVE_COLUMNS = (*KEY, "minutes", "AP")


@dataclass(frozen=True)
class Config:
    data: str | None = None  # the folder of the data sets of small_data_recipes.DATA
    weights: str | None = "coco"  # coco: official weights of yolox_nano; or a file
    stage: str = "screen"  # screen, confirm, report or peers
    only: tuple[str, ...] = ()  # data sets; (): those of the stage
    seeds: tuple[int, ...] = ()  # (): those of the stage
    recipes: tuple[str, ...] = ()  # (): those of the stage
    epochs: int = 0  # 0: those of the stage
    image_size: int = 0  # 0: that of the stage
    minutes: float = 0.0  # no run begins after this time; 0: no limit
    parallel: int = 1  # runs at the same time
    peers: str | None = None  # the Python of an environment with libreyolo and ultralytics; none: without them
    results: str = str(RESULTS)  # folder of the two CSV files and the page


def main(cfg: Config, measure: Callable[[Job], dict[str, Any]] = in_own_process) -> None:
    """Measures the runs that have no row yet, and writes the page."""
    cfg, begin = checked(cfg), time.monotonic()
    planned = list(plan(cfg))
    done = {key_of(row) for row in read(Path(cfg.results) / "small_data.csv") if not row["error"]}
    missing = [(key, job) for key, job in planned if key_of(key) not in done]
    print(f"{len(planned)} runs, {len(missing)} to measure", flush=True)
    work, results = iter(missing), Path(cfg.results)
    with ThreadPoolExecutor(cfg.parallel) as pool, ended_with_this_block():
        running: dict[Future, tuple[dict[str, Any], Job]] = {}
        for number in range(1, len(missing) + 1):
            while len(running) < cfg.parallel and not over(cfg, begin) and (run := next(work, None)):
                peer = partial(measure_peer, cfg.peers)
                running[pool.submit(peer if run[1].peer else measure, run[1])] = run
            if not running:
                print(f"minutes={show(cfg.minutes)} are over: {len(missing) - number + 1} runs are left")
                break
            future = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            key, job = running.pop(future)
            result = future.result()
            add(results, key, job, result)
            outcome = result.get("error") or f"mAP50-95 {result['AP']:.4f} in {result['minutes']:.1f} minutes"
            print(f"{number}/{len(missing)} {key['data']} seed {key['seed']} {key['recipe']}: {outcome}", flush=True)
    from benchmarks import small_data_page

    print(small_data_page.write(Path(cfg.results)))


@contextmanager
def ended_with_this_block() -> Iterator[None]:
    """Terminates the processes of the runs if the block ends with an error or a signal."""
    try:
        yield
    except BaseException:
        for process in (*multiprocessing.active_children(), *small_data_peers.RUNNING):
            process.terminate()
        raise


def over(cfg: Config, begin: float) -> bool:
    """Returns whether no more run may begin; `begin` is a value of time.monotonic()."""
    return bool(cfg.minutes) and time.monotonic() - begin > 60 * cfg.minutes


def measure_peer(python: str, job: Job) -> dict[str, Any]:
    """Trains with another trainer and its Python; a failure is a dict with "error" only."""
    return attempt(job, partial(small_data_peers.measure, python))


def checked(cfg: Config) -> Config:
    """Returns the constants, with empty lists replaced by those of the stage. Raises ConfigError with the fix."""
    require(cfg, {"minutes": 0, "epochs": 0, "image_size": 0, "parallel": 1}, {}, {"stage": tuple(tables.STAGES)})
    stage = tables.STAGES[cfg.stage]
    for name, known in (("only", tables.DATA), ("recipes", tables.recipes())):
        if unknown := [word for word in getattr(cfg, name) if word not in known]:
            raise ConfigError(f"{name}={show(tuple(unknown))}: choose from {', '.join(known)}")
    sets = tuple(name for name, data in tables.DATA.items() if data.choice in stage.choice)
    defaults = {"only": sets, "seeds": stage.seeds, "recipes": stage.recipes}
    cfg = replace(cfg, **{name: value for name, value in defaults.items() if not getattr(cfg, name)})
    if not cfg.peers and set(cfg.recipes) & set(tables.PEERS):
        print("other trainers are skipped; give peers=PYTHON of an environment with libreyolo and ultralytics")
        cfg = replace(cfg, recipes=tuple(name for name in cfg.recipes if name not in tables.PEERS))
    return with_files(cfg)


def with_files(cfg: Config) -> Config:
    """Returns the constants with absolute paths, and makes the folder of results. Raises ConfigError for a missing file."""
    sets = [tables.DATA[name] for name in cfg.only]
    needed = [path for data in sets for path in sources(cfg.data or "", data).values() if path and path != data.val]
    missing = [path for path in dict.fromkeys(needed) if not Path(path).exists()]
    if not cfg.data or missing:
        about = 'see the section "The data sets" of benchmarks/results/small_data.md'
        problem = f"data={cfg.data}: missing {', '.join(missing)}" if cfg.data else "data=none: give data=FOLDER"
        raise ConfigError(f"{problem}; {about}")
    if cfg.weights not in (None, "coco") and not Path(cfg.weights).is_file():
        raise ConfigError(f"weights={cfg.weights}: not found; give coco or a file of weights of yolox_nano")
    if cfg.weights in (None, "coco") and "libreyolo_yolox_nano" in cfg.recipes:
        raise ConfigError(
            f"weights={show(cfg.weights)}: give weights=FILE of yolox_nano, from which libreyolo_yolox_nano starts too"
        )
    if cfg.peers and not shutil.which(cfg.peers):
        raise ConfigError(
            f"peers={cfg.peers}: not found; give the Python of an environment with libreyolo and ultralytics"
        )
    Path(cfg.results).mkdir(parents=True, exist_ok=True)
    paths = {"data": cfg.data, "peers": cfg.peers and shutil.which(cfg.peers)}
    paths |= {"weights": cfg.weights} if cfg.weights not in (None, "coco") else {}
    # Not resolved: the python of a virtual environment is a link, and finds its packages by the place of the link.
    return replace(cfg, **{name: path and os.path.abspath(path) for name, path in paths.items()})


def plan(cfg: Config) -> Iterator[tuple[dict[str, Any], Job]]:
    """Yields the key (see KEY) and the job of each run. All data sets of a recipe come before the next recipe."""
    stage, own = tables.STAGES[cfg.stage], {name: getattr(cfg, name) for name in ("epochs", "image_size")}
    label = " ".join([cfg.stage, *(f"{name}={value}" for name, value in own.items() if value)])
    for seed, name, data in itertools.product(cfg.seeds, cfg.recipes, cfg.only):
        recipe = tables.recipes()[name]
        epochs, pixels = tables.DATA[data].screen
        pixels = cfg.image_size or stage.image_size or pixels
        base = {"epochs": cfg.epochs or epochs, "image_size": (pixels, pixels), "weights": cfg.weights}
        base |= {"seed": seed, "split_seed": seed}
        settings = constants(base | tables.SHIPPED, recipe.changes) | sources(cfg.data, tables.DATA[data])
        hooks = ((hook.linear_rate,), *recipe.hooks) if recipe.linear else recipe.hooks
        job = Job(settings, hooks, recipe.peer)
        key = {"stage": label, "data": data, "seed": seed, "recipe": name, "overrides": overrides(recipe)}
        yield key | {"image_size": job.constants["image_size"][0], "epochs": job.constants["epochs"]}, job


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns the values of a row that identify its run, as text."""
    return tuple(str(row[name]) for name in KEY)


def read(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file, none if there is no file."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def add(folder: Path, key: dict[str, Any], job: Job, result: dict[str, Any]) -> None:
    """Appends the row of a run to small_data.csv and its curve to small_data_curves.csv."""
    about = environment("cpu")
    commit = (about["commit"] or "")[:10] + ("+" if about["uncommitted_changes"] else "")
    where = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "torch": torch.__version__, "commit": commit}
    row = {**key, "batch_size": job.constants["batch_size"], **where, **result}
    append(folder / "small_data.csv", COLUMNS, {name: cell(row.get(name)) for name in COLUMNS})
    if "error" not in result:
        minutes, curve = ([cell(value) for value in result[f"curve_{name}"]] for name in ("minutes", "AP"))
        curves = {**key, "minutes": " ".join(minutes), "AP": " ".join(curve)}
        append(folder / "small_data_curves.csv", CURVE_COLUMNS, curves)


def cell(value: Any) -> str:
    """Returns a value as text, numbers with four digits after the point."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}"
    return "" if value is None else str(value)


def append(path: Path, columns: tuple[str, ...], row: dict[str, str]) -> None:
    """Appends a row to a CSV file; a new file begins with the names of the columns."""
    new = not path.exists()
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # ends the runs too
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
