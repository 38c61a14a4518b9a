"""Kills a small training again and again, and compares what it ends with to a run that was left alone, bit for bit.

    python -m benchmarks.torture kills=22 seed=5

Needs Linux: the processes of torchrun are found under /proc.
"""

import csv
import logging
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from benchmarks.table import add_row
from utils import checkpoint
from utils.config import override

ROOT = Path(__file__).parents[1]
HEAD = """# Killed at least twenty times, the same bits

`python -m benchmarks.torture kills=N seed=SEED note=true` starts a small training on CPUs (YOLOX-nano, 64 pixels, one
thread a process), kills it, starts it again with `resume=true`, and so on; torchrun starts killed ranks by itself. Then
weights, moving average, optimiser, best.pt, log.csv and TensorBoard are compared, bit for bit, with those of a run that
nobody disturbed. Half of the runs save every 0.3 s, the others after epochs and signals only. Kinds of kills:
SIGKILL, SIGTERM and SIGINT of one process at a step; SIGKILL in the middle of saving; SIGKILL and SIGTERM in evaluation;
of two processes SIGKILL of either rank at a step, of rank 0 in the middle of saving, of rank 1 in evaluation, and SIGTERM
of torchrun at a step. Only kills that hit what they should are counted."""

# The rates are so high that figures of the validation pictures, and with them best.pt, change within some dozen steps.
TRAINING = {
    **{"model": "yolox_nano", "weights": "none", "image_size": "64,64", "device": "cpu", "name": "torture"},
    **{"freeze_epochs": 1, "freeze_batch_size": 5, "mosaic": 0.5, "multi_scale": 0.5},
    **{"learning_rate": 0.2, "min_learning_rate": 0.1, "warmup_epochs": 0.5},
}
OF_PROCESSES = {  # their number -> more constants
    1: {"epochs": 8, "plain_epochs": 2, "batch_size": 3, "accumulate": 1},
    2: {"epochs": 4, "plain_epochs": 1, "batch_size": 5, "accumulate": 2},
}
PICTURES = {"train": range(24), "val": range(24, 36)}
TIMING = ("seconds", "images_per_second")  # what no two runs share
SILENCE = 180  # seconds without what is waited for: the training hangs
DELAY = 0.03  # seconds, at most, between a place that was reached and the kill
LAUNCHERS = (("--master-port={port}",), ("--standalone",), ("--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"))
NOWHERE = (0, 0)
MISSING = "(missing)"
TRIES = 10  # runs that a plan may take until all its kills have hit


@dataclass(frozen=True)
class Config:
    kills: int = 22  # that hit a running training; 22: every kind twice
    seed: int | None = None  # decides what is killed and where; none: drawn anew
    note: bool = False  # adds a row to benchmarks/results/torture.md
    folder: str | None = None  # where the runs go, and stay; none: a temporary folder


@dataclass(frozen=True)
class Kind:
    """What a kill hits: `where` is "step", "save" or "evaluation"; `rank`: one process of two, not all of them."""

    signal: signal.Signals
    where: str
    processes: int = 1
    rank: int | None = None

    def __str__(self) -> str:
        whom = "torchrun" if self.processes > 1 else "the process"
        return f"{self.signal.name} of {whom if self.rank is None else f'rank {self.rank}'}, {self.where}"


KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
KINDS = (
    *(Kind(KILL, "step"), Kind(TERM, "step"), Kind(INT, "step")),
    *(Kind(KILL, "save"), Kind(KILL, "evaluation"), Kind(TERM, "evaluation")),
    *(Kind(KILL, "step", 2, 0), Kind(KILL, "step", 2, 1), Kind(TERM, "step", 2)),
    *(Kind(KILL, "save", 2, 0), Kind(KILL, "evaluation", 2, 1)),
)


@dataclass(frozen=True)
class Plan:
    """The kills of one run, in their order, and how it is started."""

    processes: int
    constants: tuple[str, ...]
    launcher: tuple[str, ...]
    kinds: tuple[Kind, ...]
    name: str = ""

    def batches(self, epoch: int) -> int:
        """Batches of an epoch, counted from 1: whole steps."""
        constants = {**TRAINING, **OF_PROCESSES[self.processes]}
        size, accumulate = constants["freeze_batch_size" if epoch == 1 else "batch_size"], constants["accumulate"]
        return -(-len(PICTURES["train"]) // (size * accumulate)) * accumulate


@dataclass(frozen=True)
class Kill:
    """A kill that hit. Places are (epoch counted from 1, batches of it that are done)."""

    kind: Kind
    plan: Plan
    mark: tuple[int, int]  # no earlier than here
    place: tuple[int, int]  # what the bar showed
    seconds: float  # until the processes were gone
    remark: str = ""


@dataclass
class Outcome:
    """What a torture found: it is passed when there are no `faults`."""

    seed: int
    kills: list[Kill] = field(default_factory=list)
    late: int = 0  # kills that hit another place than they should: not counted, tried again
    faults: list[str] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)  # part -> values, all runs together

    def add(self, kill: Kill) -> None:
        """Counts and prints a kill that hit."""
        self.kills.append(kill)
        print(line_of(len(self.kills), kill), flush=True)


class Broken(RuntimeError):
    """The training did what it must not do: it failed, hung or lost what it had saved."""


def main(cfg: Config) -> Outcome:
    """Tortures; prints every kill and a verdict."""
    outcome = Outcome(random.SystemRandom().randrange(10**6) if cfg.seed is None else cfg.seed)
    print(f"seed={outcome.seed}", flush=True)
    folder = Path(cfg.folder or tempfile.mkdtemp(prefix="torture"))
    begin = time.perf_counter()
    try:
        draw(folder / "pictures")
        for processes in OF_PROCESSES:
            plans = [plan for plan in schedule(cfg.kills, outcome.seed) if plan.processes == processes]
            alone = left_alone(folder, processes) if plans else None
            with ThreadPoolExecutor(max_workers=2 // processes) as pool:  # two processes at a time
                list(pool.map(partial(torture, folder, alone=alone, outcome=outcome), plans))
    except Broken as error:
        outcome.faults.append(str(error))
    minutes = (time.perf_counter() - begin) / 60
    verdict(outcome, minutes)
    if cfg.note and not outcome.faults:
        add_row("torture", HEAD, row_of(outcome, minutes))
    if not cfg.folder and not outcome.faults:
        shutil.rmtree(folder)
    elif outcome.faults:
        print(f"the runs are in {folder}")
    return outcome


def draw(folder: Path) -> None:
    """Pictures with one coloured box each, and the annotation files."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, numbers in PICTURES.items():
        lines = []
        for number in numbers:
            rng = np.random.default_rng(number)
            image = np.full((64, 64, 3), rng.integers(60, 120), np.uint8)
            (w, h), label = rng.integers(26, 40, 2).tolist(), number % 2
            x, y = rng.integers(0, 64 - w), rng.integers(0, 64 - h)
            image[y : y + h, x : x + w] = ((255, 200, 0), (0, 0, 255))[label]
            (folder / f"{number}.png").write_bytes(cv2.imencode(".png", image)[1].tobytes())
            lines.append(f"{number}.png {x},{y},{x + w},{y + h},{label}")
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
    (folder / "classes.txt").write_text("blue\nred\n")


def schedule(kills: int, seed: int) -> list[Plan]:
    """Which kills hit which run: every kind once a round; the last round may be incomplete."""
    rng, plans = random.Random(f"{seed} kinds"), []
    for number in range(-(-kills // len(KINDS))):
        kinds = rng.sample(KINDS, min(len(KINDS), kills - number * len(KINDS)))
        constants = ("workers=1", "save_minutes=0") if number % 2 else ("workers=0", "save_minutes=0.005")
        launchers = {1: (), 2: LAUNCHERS[number % len(LAUNCHERS)]}
        for processes, launcher in launchers.items():
            if chosen := tuple(kind for kind in kinds if kind.processes == processes):
                plans.append(Plan(processes, constants, launcher, chosen, f"run{number}of{processes}"))
    return plans


class Job:
    """A training that runs: where it stands, by its bars and lines."""

    def __init__(self, folder: Path, output: Path, plan: Plan, resume: bool):
        constants = {**TRAINING, **OF_PROCESSES[plan.processes], "output": output}
        constants |= {part: folder / "pictures" / f"{part}.txt" for part in PICTURES}
        command = [str(ROOT / "train.py"), *(f"{name}={value}" for name, value in constants.items())]
        command += [*plan.constants, *["resume=true"] * resume]
        if plan.processes > 1:
            launcher = [option.format(port=free_port()) for option in plan.launcher]
            restarts = f"--max-restarts={2 * len(plan.kinds)}"
            command = ["-m", "torch.distributed.run", *launcher, "--nproc_per_node=2", restarts, *command]
        own = {"OMP_NUM_THREADS": "1", "THAW_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}
        environment = {**os.environ, **own, "TQDM_MININTERVAL": "0", "TQDM_MINITERS": "1"}  # a bar shows every batch
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment, start_new_session=True, **pipes
        )
        self.output, self.plan = output, plan
        self.place = self.begun = NOWHERE  # what the bar shows; where it went on
        self.evaluating, self.said, self.errors = False, "", ""
        self.left_over = set(temporary_files(output))
        self.threads = [threading.Thread(target=read, daemon=True) for read in (self._read_bars, self._read_lines)]
        for thread in self.threads:
            thread.start()

    def _read_bars(self) -> None:
        bar, rest = re.compile(r"epoch (\d+)/\d+: [^\r\n]*?\| *(\d+)/\d+ \[|(evaluation): "), ""
        while chunk := os.read(self.process.stderr.fileno(), 65536):
            self._write(chunk)
            rest += chunk.decode(errors="replace")
            self.errors = (self.errors + chunk.decode(errors="replace"))[-30000:]
            end = 0
            for found in bar.finditer(rest):
                self.evaluating, end = bool(found[3]), found.end()
                self.place = max(self.place, self.begun) if self.evaluating else (int(found[1]), int(found[2]))
            rest = rest[end:][-1000:]

    def _write(self, text: bytes) -> None:
        with open(f"{self.output}.log", "ab") as file:
            file.write(text)

    def _read_lines(self) -> None:
        for line in self.process.stdout:
            self._write(line)
            text = line.decode(errors="replace")
            self.said += text
            if found := re.match(r"going on in .* after epoch (\d+), (\d+) batches", text):
                self.begun = int(found[1]) + 1, int(found[2])
            elif re.match(r"epoch +\d+/\d+  loss", text):
                self.evaluating = False

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = SILENCE) -> bool:
        """Whether `condition` came true while the process ran."""
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                self.join()
                return bool(condition())
            if time.monotonic() > end:
                raise Broken(f"waited {seconds} s for {what}, in epoch {self.place[0]} after {self.place[1]} batches")
            time.sleep(0.001)
        return True

    def join(self) -> int:
        """Waits for the end -> the exit code."""
        try:
            code = self.process.wait(SILENCE)
        except subprocess.TimeoutExpired:
            raise Broken(f"the process still runs after {SILENCE} s") from None
        for thread in self.threads:
            thread.join(1)  # a data loader that was orphaned may hold the pipe for some seconds
        return code

    def reached(self, kind: Kind, mark: tuple[int, int]) -> bool:
        """Whether the training is where a kill of this kind, no earlier than `mark`, should hit it."""
        if kind.where == "save":
            return self.place >= mark and bool(set(temporary_files(self.output)) - self.left_over)
        if kind.where == "evaluation":
            return self.evaluating and self.place[0] >= mark[0]
        return self.place >= mark and not self.evaluating

    def was_hit(self, kind: Kind) -> str | None:
        """A remark where a kill hit what it should, seen after the end of the processes; else None."""
        if kind.where == "save":
            unfinished = set(temporary_files(self.output)) - self.left_over
            return ", ".join(f"{path.name} unfinished" for path in unfinished) or None
        if kind.where == "evaluation":
            return "in evaluation" if self.evaluating else None
        return f"after {self.place[0]}:{self.place[1]}"

    def done(self) -> bool:
        """Whether the training came to its end."""
        last = re.search(r"best mAP50-95 [\d.]+\s*$", self.said)
        return self.process.poll() is not None and last is not None and self.stopped() is None

    def stopped(self) -> tuple[int, int] | None:
        """Where the training says that it was stopped."""
        found = re.search(r"^stopped in epoch (\d+) after (\d+) of", self.said, re.MULTILINE)
        return (int(found[1]), int(found[2])) if found else None

    def ranks(self) -> dict[int, int]:
        """The processes that torchrun started, rank -> process id."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                rank = re.search(rb"\0RANK=(\d+)\0", (process / "environ").read_bytes())
            except OSError:  # it ended meanwhile, or is another user's
                continue
            if parent == self.process.pid and rank:
                found[int(rank[1])] = int(process.name)
        return found

    def text(self) -> str:
        """What it said, without the bars."""
        lines = [line for line in re.split(r"[\r\n]+", self.errors) if line.strip() and "it/s" not in line]
        return "\n".join([*self.said.splitlines()[-8:], *lines[-30:]])

    def end(self) -> None:
        """Ends whatever still runs."""
        for pid in (*self.ranks().values(), self.process.pid):
            try:
                os.kill(pid, KILL)
            except ProcessLookupError:
                pass
        self.process.wait()


def free_port() -> int:
    """A port that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def temporary_files(output: Path) -> list[Path]:
    """What saves have not finished, or have left over."""
    return list(output.glob("*/.*.pt.*.tmp"))


def left_alone(folder: Path, processes: int) -> Path:
    """The run folder of a training that nobody disturbs."""
    plan = Plan(processes, ("workers=0", "save_minutes=0"), ("--standalone",), ())
    job = Job(folder, folder / f"alone{processes}", plan, resume=False)
    try:
        job.wait("the end", lambda: False, 4 * SILENCE)
        return finished(job)
    except Broken as error:
        raise Broken(f"left alone, {processes} process(es): {error}\n{job.text()}") from None
    finally:
        job.end()


def finished(job: Job) -> Path:
    """The run folder of a job that ended as it should; there is one only."""
    code, folders = job.join(), [path.parent for path in job.output.glob("*/last.pt")]
    if code or not job.done() or len(folders) != 1:
        raise Broken(f"ended with {code}; {len(folders)} folders with last.pt")
    return folders[0]


def torture(folder: Path, plan: Plan, *, alone: Path, outcome: Outcome) -> None:
    """As many runs as it takes until every kill of the plan has hit, each compared with the one left alone.

    Nothing goes on in a folder whose first last.pt was not finished: it stays as the kill has left it.
    """
    kinds, rng = plan.kinds, random.Random(f"{outcome.seed} {plan.name}")
    for attempt in range(TRIES):
        output = folder / f"{plan.name}-{attempt}"
        kinds, killed = one_run(folder, output, replace(plan, kinds=kinds), rng, outcome)
        faults, compared = differences(alone, killed)
        faults += [f"{path.name} was left over" for path in temporary_files(output) if path.parent == killed]
        for name, count in compared.items():
            outcome.compared[name] = outcome.compared.get(name, 0) + count
        where = f"seed={outcome.seed}, {plan.processes} process(es), {' '.join(plan.constants)}, {killed}"
        outcome.faults += [f"{where}: {fault}" for fault in faults]
        if not kinds:
            return
    raise Broken(f"seed={outcome.seed}: {TRIES} runs ended before {', '.join(map(str, kinds))}")


def one_run(
    folder: Path, output: Path, plan: Plan, rng: random.Random, outcome: Outcome
) -> tuple[tuple[Kind, ...], Path]:
    """Kills a training in the order of `plan.kinds`, starting it again each time, and lets it end -> the kinds that came
    too late, and the run folder."""
    epochs = OF_PROCESSES[plan.processes]["epochs"]
    places = [(epoch, b + 1) for epoch in range(1, epochs + 1) for b in range(plan.batches(epoch))]
    marks = sorted(rng.sample(places[:-4], len(plan.kinds)))
    todo, missed = list(zip(plan.kinds, marks, strict=True)), []
    job = Job(folder, output, plan, resume=plan.processes == 1)
    try:
        while todo:
            kind, mark = todo[0]
            kill = strike(job, kind, mark, rng.uniform(0, DELAY), outcome)
            if kill:
                outcome.add(kill)
            elif job.done():
                missed.append(kind)
            if kill or job.done():
                del todo[0]
            if job.process.poll() is not None and not job.done():
                job = again(job, folder, plan)
        job.wait("the end", lambda: False)
        return tuple(missed), finished(job)
    except (Broken, checkpoint.CheckpointError) as error:
        raise Broken(f"seed={outcome.seed}, {output}, {' '.join(plan.constants)}: {error}\n{job.text()}") from None
    finally:
        job.end()


def strike(job: Job, kind: Kind, mark: tuple[int, int], delay: float, outcome: Outcome) -> Kill | None:
    """Waits for the place, kills, waits until what was hit is gone -> the kill; None where it hit something else."""
    if not job.wait(f"{kind} from {mark} on", lambda: job.reached(kind, mark)):
        if not job.done():
            raise Broken(f"{kind} from {mark} on: the training ended by itself with {job.process.poll()}")
        return None
    time.sleep(delay)
    ranks, place = job.ranks(), job.place
    victim = job.process.pid if kind.rank is None else ranks.get(kind.rank)
    if job.process.poll() is not None or victim is None:
        return None
    begin = time.monotonic()
    all_of_them = kind.processes == 1 and kind.where == "step"  # Ctrl-C and batch systems reach the data loader too
    (os.killpg if all_of_them else os.kill)(victim, kind.signal)
    if kind.rank is not None:
        remark = after_rank(job, kind, ranks)
    else:
        remark = after_kill(job, kind) if kind.signal == KILL else after_signal(job, kind, place)
    seconds = time.monotonic() - begin
    check_files(job)
    if remark is None:
        outcome.late += 1
        return None
    return Kill(kind, job.plan, mark, place, seconds, remark)


def after_kill(job: Job, kind: Kind) -> str | None:
    """A remark about what SIGKILL has left of the only process; None where it did not hit what it should."""
    code = job.join()
    if code != -KILL and not job.done():
        raise Broken(f"{kind}: ended with {code}")
    return None if job.done() else job.was_hit(kind)


def after_signal(job: Job, kind: Kind, place: tuple[int, int]) -> str | None:
    """A remark about where SIGTERM or SIGINT has stopped the training; None where it did not hit what it should."""
    code, stopped = job.join(), job.stopped()
    if job.done():
        return None
    if stopped is None or (code and kind.processes == 1):
        raise Broken(f"{kind}: ended with {code}, and {'not ' * (stopped is None)}with a line that says where")
    if stopped < place:
        raise Broken(f"{kind} at {place}: only what was done up to {stopped} is saved")
    if kind.where == "evaluation" and stopped != (place[0], job.plan.batches(place[0])):
        return None
    return f"stopped at {stopped[0]}:{stopped[1]}, exit code {code}"


def after_rank(job: Job, kind: Kind, before: Mapping[int, int]) -> str | None:
    """Waits until torchrun has replaced all ranks -> a remark; None where the kill did not hit what it should."""
    fresh = lambda: len(now := job.ranks()) == len(before) and not set(now.values()) & set(before.values())  # noqa: E731
    if not job.wait(f"new ranks after {kind}", fresh):
        if not job.done():
            raise Broken(f"{kind}: torchrun ended with {job.process.poll()}")
        return None
    remark = job.was_hit(kind)
    job.place = job.begun = NOWHERE
    job.evaluating, job.left_over = False, set(temporary_files(job.output))
    return remark


def again(job: Job, folder: Path, plan: Plan) -> Job:
    """Starts the training once more. It must go on where it was stopped, or at what was saved last."""
    saved, stopped = list(job.output.glob("*/last.pt")), job.stopped()
    after = Job(folder, job.output, plan, resume=True)
    try:
        after.wait("the first line", lambda: re.search(r"^(going on in|run folder) ", after.said, re.MULTILINE))
        found = re.search(r"^going on in .* after epoch (\d+), (\d+) batches", after.said, re.MULTILINE)
        if bool(saved) != bool(found):
            raise Broken(
                f"{len(saved)} run(s) with last.pt, but the next start {'goes' if found else 'does not go'} on"
            )
        if stopped and (int(found[1]) + 1, int(found[2])) != stopped:
            raise Broken(f"stopped at {stopped}, but {found[0]}")
    except Broken:
        job.said, job.errors = after.said, after.errors  # for the message
        after.end()
        raise
    return after


def check_files(job: Job) -> None:
    """Whatever was killed, the checkpoints can be read. What it has left over becomes old, so that it is cleared away."""
    for path in (*job.output.glob("*/last.pt"), *job.output.glob("*/best.pt")):
        checkpoint.load(path)
    for path in temporary_files(job.output):
        os.utime(path, (0, 0))


def differences(alone: Path, killed: Path) -> tuple[list[str], dict[str, int]]:
    """What differs between two runs by name, and how many values of each part were compared."""
    faults, compared = [], {}
    for name in ("last.pt", "best.pt", "log.csv", "TensorBoard"):
        left, right = (contents(folder, name) for folder in (alone, killed))
        for key in sorted(left.keys() | right.keys()):
            if why := difference(left.get(key, MISSING), right.get(key, MISSING)):
                faults.append(f"{name} {key}: {why}")
            depth = 3 if key.startswith("resume/updater") else 2 if key.startswith("resume") else 1
            part = f"{name} {'/'.join(key.split('/')[:depth])}" if name.endswith(".pt") else name
            compared[part] = compared.get(part, 0) + getattr(left.get(key), "numel", lambda: 1)()
    return faults, compared


def contents(folder: Path, name: str) -> dict[str, Any]:
    """Name -> value of all that a file holds, without what no two runs share: times, and where and how they ran."""
    if name == "log.csv":
        with open(folder / name, encoding="utf-8", newline="") as file:
            found = flat({"rows": list(csv.DictReader(file))})
    elif name == "TensorBoard":
        found = scalars(folder)
    else:
        found = flat({key: value for key, value in checkpoint.load(folder / name).items() if key != "config"})
    return {key: value for key, value in found.items() if not set(key.split("/")) & set(TIMING)}


def scalars(folder: Path) -> dict[str, Any]:
    """What TensorBoard shows, neither with gaps nor with doubles: tag/position -> step, number."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # takes seconds to import

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells that it cuts what the next start repeats
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found = {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return {f"{tag}/{i}": pair for tag, pairs in found.items() for i, pair in enumerate(pairs)}


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested containers as one dict, name/of/the/leaf -> leaf; an empty container is a leaf."""
    if isinstance(value, Mapping | list | tuple) and value:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        return {k: v for key, item in items for k, v in flat(item, f"{name}/{key}" if name else str(key)).items()}
    return {name: value}


def difference(a: Any, b: Any) -> str | None:
    """How two leaves differ; None where they have the same bits."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape:
        if torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)):
            return None
        apart = (a.double() - b.double()).abs()
        return f"{int((apart != 0).sum())} of {a.numel()} numbers differ, by up to {float(apart.max()):.3g}"
    same = type(a) is type(b) and not isinstance(a, torch.Tensor) and (a == b or a != a and b != b)
    return None if same else f"{brief(a)} became {brief(b)}"


def brief(value: Any) -> str:
    """A leaf in a few words."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:200]


def line_of(number: int, kill: Kill) -> str:
    """A kill for the console."""
    (epoch, batch), (first, least) = kill.place, kill.mark
    how = " ".join((*kill.plan.constants, *kill.plan.launcher)).format(port="...")
    return (
        f"{number:3}  {str(kill.kind):34} from {first}:{least:<2} on, at {epoch}:{batch:<2} gone after "
        f"{kill.seconds:4.1f} s  {kill.remark:34} {how}"
    )


def verdict(outcome: Outcome, minutes: float) -> None:
    """Prints what was compared and what differs."""
    print(f"{sum(outcome.compared.values())} values compared")
    for fault in outcome.faults[:40]:
        print(f"DIFFERENT  {fault}")
    if len(outcome.faults) > 40:
        print(f"... and {len(outcome.faults) - 40} more")
    says = f"{len(outcome.faults)} faults" if outcome.faults else "all the same bits"
    print(
        f"seed={outcome.seed}: {len(outcome.kills)} kills ({outcome.late} more hit another place), {minutes:.1f} minutes: {says}"
    )


def row_of(outcome: Outcome, minutes: float) -> dict[str, str]:
    """The row of results/torture.md."""
    counts = {kind: sum(kill.kind == kind for kill in outcome.kills) for kind in KINDS}
    one = sum(count for kind, count in counts.items() if kind.processes == 1)
    single = sum(count for kind, count in counts.items() if kind.rank is not None)
    return {
        "seed": str(outcome.seed),
        "kills": str(len(outcome.kills)),
        "of one process": str(one),
        "of a single rank of two": str(single),
        "of torchrun": str(len(outcome.kills) - one - single),
        "values compared": str(sum(outcome.compared.values())),
        "that differ": str(len(outcome.faults)),
        "minutes": f"{minutes:.1f}",
    }


if __name__ == "__main__":
    raise SystemExit(bool(main(override(Config(), sys.argv[1:])).faults))
