"""Kills and resumes a small training many times, and compares its result bit by bit with an undisturbed training.

    python -m tests.stress kills=22 seed=5

The model is tiny, and steps, saves and evaluation sleep for some milliseconds, so that kills hit the place they are meant
for. Needs Linux: the processes of torchrun are found under /proc.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from benchmarks.table import add_row
from utils import checkpoint, file_checks

ROOT = Path(__file__).parents[2]
SLOW_TRAINING = Path(__file__).with_name("slow_training.py")
HEAD = """# A training that is killed again and again ends with the same bits

`python -m tests.stress kills=N seed=SEED note=true` starts a small training on CPUs (the tiny model of the tests, 64
pixels, one thread per process), kills it, resumes it with `resume=true`, and so on; torchrun restarts killed ranks by itself.
Then weights, moving average, optimizer, best.pt, log.csv and TensorBoard are compared, bit by bit, with the results of an
undisturbed run. Half of the runs save every 0.3 s, the others only after epochs and at signals. The kills:
SIGKILL, SIGTERM and SIGINT of one process at a step; SIGKILL in the middle of a save; SIGKILL and SIGTERM in the evaluation;
of two processes SIGKILL of either rank at a step, of rank 0 in the middle of a save, of rank 1 in the evaluation, and SIGTERM
of torchrun at a step. A kill counts only if it hit the place it was meant for. A row is
added only if no value differs. The first two rows trained YOLOX-nano."""

# The learning rates are so high that the metrics, and with them best.pt, change within some dozen steps.
TRAINING = {
    "report": "false",
    **{"model": "tiny_n", "weights": "none", "image_size": "64,64", "device": "cpu", "name": "torture"},
    **{"freeze_epochs": 1, "freeze_batch_size": 5, "mosaic": 0.5, "multi_scale": 0.5},
    **{"learning_rate": 0.06, "min_learning_rate": 0.03, "warmup_epochs": 0.5},
}
BY_PROCESSES = {  # number of processes -> more constants
    1: {"epochs": 8, "no_aug_epochs": 2, "batch_size": 3, "accumulate": 1},
    2: {"epochs": 4, "no_aug_epochs": 1, "batch_size": 5, "accumulate": 2},
    3: {
        "epochs": 4,
        "no_aug_epochs": 1,
        "batch_size": 5,
        "accumulate": 1,
        "learning_rate": 3e-4,
        "min_learning_rate": 3e-4,
    },
}
IMAGES = {"train": range(24), "val": range(24, 36)}
DIFFER = ("seconds", "images_per_second", "written")  # times and the constants as written: of any two runs
DELAY = 0.03  # maximum seconds between reaching a place and the kill
LAUNCHERS = (("--master-port={port}",), ("--standalone",), ("--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0"))
TIMEOUT = 180  # seconds without any progress after which the training is taken for hanging
START = (0, 0)
MISSING = "(missing)"
TRIES = 10  # runs that a plan may take until all its kills have hit
FILES = ("last.pt", "best.pt", "log.csv", "TensorBoard")


@dataclass(frozen=True)
class Kind:
    """What a kill hits. `where`: "step", "save" or "evaluation"; `rank`: one of two processes instead of all of them."""

    signal: signal.Signals
    where: str
    processes: int = 1
    rank: int | None = None

    def __str__(self) -> str:
        target = "torchrun" if self.processes > 1 else "the process"
        return f"{self.signal.name} of {target if self.rank is None else f'rank {self.rank}'}, {self.where}"


KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
KINDS = (
    *(Kind(KILL, "step"), Kind(TERM, "step"), Kind(INT, "step")),
    *(Kind(KILL, "save"), Kind(KILL, "evaluation"), Kind(TERM, "evaluation")),
    *(Kind(KILL, "step", 2, 0), Kind(KILL, "step", 2, 1), Kind(TERM, "step", 2)),
    *(Kind(KILL, "save", 2, 0), Kind(KILL, "evaluation", 2, 1)),
)


@dataclass(frozen=True)
class Plan:
    """How one run is started, and its kills in their order."""

    processes: int
    constants: tuple[str, ...]
    launcher: tuple[str, ...]
    kinds: tuple[Kind, ...]
    name: str = ""
    environment: tuple[tuple[str, str], ...] = ()  # more variables

    def batches(self, epoch: int) -> int:
        """Batches of an epoch, counted from 1: whole optimizer steps."""
        constants = {**TRAINING, **BY_PROCESSES[self.processes]}
        size, accumulate = constants["freeze_batch_size" if epoch == 1 else "batch_size"], constants["accumulate"]
        return -(-len(IMAGES["train"]) // (size * accumulate)) * accumulate


@dataclass
class Outcome:
    """The result of all plans: passed if `differences` is empty."""

    seed: int
    kills: list[Kind] = field(default_factory=list)  # those that hit
    late: int = 0  # kills that hit another place than the planned one: not counted, tried again
    differences: list[str] = field(default_factory=list)  # differences from undisturbed runs, and trainings that failed
    compared: dict[str, int] = field(default_factory=dict)  # part -> number of values, all runs together


class Broken(RuntimeError):
    """The training failed, hung or lost what it had saved."""


def main(kills: int, seed: int | None = None, note: bool = False, output: str | None = None) -> Outcome:
    """Kills trainings by the schedule, prints every kill, and compares the results. `note`: adds a row to the page."""
    outcome = Outcome(random.SystemRandom().randrange(10**6) if seed is None else seed)
    print(f"seed={outcome.seed}", flush=True)
    folder = Path(output or tempfile.mkdtemp(prefix="torture"))
    begin = time.perf_counter()
    try:
        draw(folder / "images", IMAGES)
        for processes in BY_PROCESSES:
            plans = [plan for plan in schedule(kills, outcome.seed) if plan.processes == processes]
            alone = run_undisturbed(folder, processes) if plans else None
            with ThreadPoolExecutor(max_workers=max(2 // processes, 1)) as pool:  # two processes at a time
                list(pool.map(partial(torture, folder, alone=alone, outcome=outcome), plans))
    except Broken as error:
        outcome.differences.append(str(error))
    minutes = (time.perf_counter() - begin) / 60
    result = f"{len(outcome.differences)} differences" if outcome.differences else "all bits are the same"
    print("\n".join(f"DIFFERENT  {fault}" for fault in outcome.differences[:40]))
    print(
        f"seed={outcome.seed}: {len(outcome.kills)} kills ({outcome.late} more hit another place), {minutes:.1f} minutes,"
    )
    print(f"{sum(outcome.compared.values())} values compared: {result}; runs in {folder}")
    if note and not outcome.differences:
        add_row("torture", HEAD, row_of(outcome, minutes))
    if not output and not outcome.differences:
        shutil.rmtree(folder)
    return outcome


def draw(folder: Path, parts: Mapping[str, range]) -> None:
    """Draws images with one colored box each, and writes the annotation files. `parts`: name of a file -> image numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, numbers in parts.items():
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
    """Returns the plans of all runs. Every kind of kill comes once per round; the last round may be incomplete."""
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
    """A running training. Its progress is read from its output."""

    def __init__(self, folder: Path, output: Path, plan: Plan, resume: bool):
        constants = {**TRAINING, **BY_PROCESSES[plan.processes], "output": output}
        constants |= {part: folder / "images" / f"{part}.txt" for part in IMAGES}
        constants |= dict(word.split("=", 1) for word in plan.constants)
        command = [str(SLOW_TRAINING), *(f"{name}={value}" for name, value in constants.items())]
        command += ["resume=true"] * resume
        if plan.processes > 1:
            launcher = [option.format(port=free_port()) for option in plan.launcher]
            flags = [f"--nproc_per_node={plan.processes}", f"--max-restarts={2 * len(plan.kinds)}"]
            command = ["-m", "torch.distributed.run", *launcher, *flags, *command]
        own = {"OMP_NUM_THREADS": "1", "THAW_CACHE": str(folder / "cache"), "PYTHONUNBUFFERED": "1"}
        own["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        own |= {"THAW_PROGRESS": "1", "TQDM_MININTERVAL": "0", "TQDM_MINITERS": "1"}  # a bar shows every batch
        self.command = {"args": [sys.executable, *command], "cwd": folder, "start_new_session": True}
        self.command["env"] = {**os.environ, **own, **dict(plan.environment)}
        self.process = subprocess.Popen(**self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.output, self.plan = output, plan
        self.place = self.begun = START  # (epoch counted from 1, batches of it that are done), and where it resumed
        self.evaluating, self.out, self.errors = False, "", ""
        self.left_over = set(temporary_files(output))
        self.threads = [threading.Thread(target=read, daemon=True) for read in (self._read_bars, self._read_lines)]
        for thread in self.threads:
            thread.start()

    def _read_bars(self) -> None:
        bar, rest = re.compile(r"epoch (\d+)/\d+: [^\r\n]*?\| *(\d+)/\d+ \[|(evaluation): "), ""
        while chunk := os.read(self.process.stderr.fileno(), 65536):
            text, end = chunk.decode(errors="replace"), 0
            rest, self.errors = rest + text, (self.errors + text)[-30000:]
            for found in bar.finditer(rest):
                self.evaluating, end = bool(found[3]), found.end()
                self.place = max(self.place, self.begun) if self.evaluating else (int(found[1]), int(found[2]))
            rest = rest[end:][-1000:]

    def _read_lines(self) -> None:
        for line in self.process.stdout:
            text = line.decode(errors="replace")
            self.out += text
            if found := re.match(r"resuming .* after epoch (\d+) and (\d+) batches", text):
                self.begun = int(found[1]) + 1, int(found[2])
            elif re.match(r"epoch +\d+/\d+  loss", text):
                self.evaluating = False

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = TIMEOUT) -> bool:
        """Whether `condition` became true while the process ran."""
        end = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                self.join()
                return bool(condition())
            if time.monotonic() > end:
                raise Broken(f"waited {seconds} s for {what}, in epoch {self.place[0]} after {self.place[1]} batches")
            time.sleep(0.005)
        return True

    def join(self) -> int:
        """Waits for the end and returns the exit code. A process that gets on may take as long as a busy machine needs."""
        seen, end = None, 0.0
        while (code := self.process.poll()) is None:
            if (state := (self.place, self.evaluating, len(self.out))) != seen:
                seen, end = state, time.monotonic() + TIMEOUT
            elif time.monotonic() > end:
                place = f"epoch {self.place[0]} after {self.place[1]} batches"
                raise Broken(f"the process still runs, and nothing has happened for {TIMEOUT} s, in {place}")
            time.sleep(0.05)
        for thread in self.threads:
            thread.join(1)  # an orphaned data loader may hold the pipe for some seconds
        return code

    def reached(self, kind: Kind, mark: tuple[int, int]) -> bool:
        """Whether the training is at the place that a kill of this kind, not earlier than `mark`, should hit."""
        if kind.where == "save":
            return self.place >= mark and bool(self.unfinished())
        if kind.where == "evaluation":
            return self.evaluating and self.place[0] >= mark[0]
        return self.place >= mark and not self.evaluating

    def was_hit(self, kind: Kind) -> bool:
        """Whether a kill hit the place it was meant for; asked after the end of the processes."""
        return {"save": bool(self.unfinished()), "evaluation": self.evaluating, "step": True}[kind.where]

    def unfinished(self) -> set[Path]:
        """Temporary files of saves that this start has not finished."""
        return set(temporary_files(self.output)) - self.left_over

    def done(self) -> bool:
        """Whether the training came to its regular end."""
        last = re.search(r"best mAP50-95 [\d.]+\s*$", self.out)
        return self.process.poll() is not None and last is not None and self.stopped() is None

    def stopped(self) -> tuple[int, int] | None:
        """The place at which the training stopped on request, by its own message."""
        found = re.search(r"^stopped in epoch (\d+) after (\d+) of", self.out, re.MULTILINE)
        return (int(found[1]), int(found[2])) if found else None

    def ranks(self) -> dict[int, int]:
        """The processes that torchrun started: rank -> process id."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                rank = re.search(rb"\0RANK=(\d+)\0", (process / "environ").read_bytes())
            except OSError:  # it ended in between, or belongs to another user
                continue
            if parent == self.process.pid and rank:
                found[int(rank[1])] = int(process.name)
        return found

    def text(self) -> str:
        """The last output, without progress bars."""
        lines = [line for line in re.split(r"[\r\n]+", self.errors) if line.strip() and "it/s" not in line]
        return "\n".join([*self.out.splitlines()[-8:], *lines[-30:]])

    def end(self) -> None:
        """Kills the processes that still run."""
        for pid in (*self.ranks().values(), self.process.pid):
            try:
                os.kill(pid, KILL)
            except ProcessLookupError:
                pass
        self.process.wait()


def free_port() -> int:
    """A port that is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def temporary_files(output: Path) -> list[Path]:
    """Files of saves that are not finished or were left over."""
    return list(output.glob("*/.*.pt.*.tmp"))


def run_undisturbed(folder: Path, processes: int) -> Path:
    """Trains without kills and returns the run folder."""
    plan = Plan(processes, ("workers=0", "save_minutes=0"), ("--standalone",), ())
    job = Job(folder, folder / f"alone{processes}", plan, resume=False)
    try:
        job.wait("the end", lambda: False, 4 * TIMEOUT)
        return finished(job)
    except Broken as error:
        raise Broken(f"undisturbed, {processes} process(es): {error}\n{job.text()}") from None
    finally:
        job.end()


def finished(job: Job) -> Path:
    """Returns the only run folder of a job that ended regularly."""
    code, folders = job.join(), [path.parent for path in job.output.glob("*/last.pt")]
    if code or not job.done() or len(folders) != 1:
        raise Broken(f"ended with {code}; {len(folders)} folders with last.pt")
    return folders[0]


def torture(folder: Path, plan: Plan, *, alone: Path, outcome: Outcome) -> None:
    """Runs trainings until every kill of the plan has hit, and compares each of them with the undisturbed one.

    A folder whose first last.pt was not finished is not resumed; its temporary files may stay.
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
        outcome.differences += [f"{where}: {fault}" for fault in faults]
        if not kinds:
            return
    raise Broken(f"seed={outcome.seed}: {TRIES} runs ended before {', '.join(map(str, kinds))}")


def one_run(folder: Path, output: Path, plan: Plan, rng: random.Random, outcome: Outcome) -> tuple[tuple, Path]:
    """Kills a training in the order of `plan.kinds`, restarts it each time, and lets it end.

    Returns the kinds of kills for which it ended too early, and the run folder.
    """
    epochs = BY_PROCESSES[plan.processes]["epochs"]
    places = [(epoch, b + 1) for epoch in range(1, epochs + 1) for b in range(plan.batches(epoch))]
    marks = sorted(rng.sample(places[:-4], len(plan.kinds)))
    todo, missed = list(zip(plan.kinds, marks, strict=True)), []
    job = Job(folder, output, plan, resume=plan.processes == 1)
    try:
        while todo:
            kind, mark = todo[0]
            hit = strike(job, kind, mark, rng.uniform(0, DELAY), outcome)
            if hit:
                outcome.kills.append(kind)
            elif job.done():
                missed.append(kind)
            if hit or job.done():
                del todo[0]
            if job.process.poll() is not None and not job.done():
                job = restart(job, folder, plan)
        job.wait("the end", lambda: False)
        return tuple(missed), finished(job)
    except (Broken, file_checks.CheckpointError) as error:
        raise Broken(f"seed={outcome.seed}, {output}, {' '.join(plan.constants)}: {error}\n{job.text()}") from None
    finally:
        job.end()


def strike(job: Job, kind: Kind, mark: tuple[int, int], delay: float, outcome: Outcome) -> bool:
    """Waits for the place, kills, and waits until the killed processes are gone. Returns whether the right place was hit."""
    if not job.wait(f"{kind} from {mark} on", lambda: job.reached(kind, mark)):
        if not job.done():
            raise Broken(f"{kind} from {mark} on: the training ended by itself with {job.process.poll()}")
        return False
    time.sleep(delay)
    ranks, place = job.ranks(), job.place
    victim = job.process.pid if kind.rank is None else ranks.get(kind.rank)
    if job.process.poll() is not None or victim is None:
        return False
    all_of_them = kind.processes == 1 and kind.where == "step"  # Ctrl-C and batch systems reach the data loader too
    (os.killpg if all_of_them else os.kill)(victim, kind.signal)
    if kind.rank is not None:
        hit = after_rank(job, kind, ranks)
    else:
        hit = after_kill(job, kind) if kind.signal == KILL else after_signal(job, kind, place)
    check_files(job)
    outcome.late += not hit
    if hit:
        how = " ".join((*job.plan.constants, *job.plan.launcher)).format(port="...")
        print(
            f"{len(outcome.kills) + 1:3}  {str(kind):34} in epoch {place[0]} after {place[1]:2} batches  {how}",
            flush=True,
        )
    return hit


def after_kill(job: Job, kind: Kind) -> bool:
    """Waits for the end after SIGKILL of the only process. Returns whether the right place was hit."""
    code = job.join()
    if code != -KILL and not job.done():
        raise Broken(f"{kind}: ended with {code}")
    return not job.done() and job.was_hit(kind)


def after_signal(job: Job, kind: Kind, place: tuple[int, int]) -> bool:
    """Waits for the end after SIGTERM or SIGINT. Returns whether the right place was hit. No finished step may be lost."""
    code, stopped = job.join(), job.stopped()
    if job.done():
        return False
    if stopped is None or (code and kind.processes == 1):
        raise Broken(f"{kind}: ended with {code}, and {'no' if stopped is None else 'a'} line tells where it stopped")
    if stopped < place:
        raise Broken(f"{kind} at {place}: only the batches up to {stopped} are saved")
    return kind.where != "evaluation" or stopped == (place[0], job.plan.batches(place[0]))


def after_rank(job: Job, kind: Kind, before: Mapping[int, int]) -> bool:
    """Waits until torchrun has replaced all ranks. Returns whether the right place was hit."""

    def replaced() -> bool:
        time.sleep(0.1)
        now = job.ranks()
        return len(now) == len(before) and not set(now.values()) & set(before.values())

    if not job.wait(f"new ranks after {kind}", replaced):
        if not job.done():
            raise Broken(f"{kind}: torchrun ended with {job.process.poll()}")
        return False
    hit = job.was_hit(kind)
    job.place = job.begun = START
    job.evaluating, job.left_over = False, set(temporary_files(job.output))
    return hit


def restart(job: Job, folder: Path, plan: Plan) -> Job:
    """Starts the training again. It must resume where it stopped, or at its last save."""
    saved, stopped = list(job.output.glob("*/last.pt")), job.stopped()
    after = Job(folder, job.output, plan, resume=True)
    try:
        after.wait("the first line", lambda: re.search(r"^(resuming|run folder) ", after.out, re.MULTILINE))
        found = re.search(r"^resuming .* after epoch (\d+) and (\d+) batches", after.out, re.MULTILINE)
        if bool(saved) != bool(found):
            raise Broken(
                f"{len(saved)} run(s) with last.pt, but the next start {'resumes' if found else 'is a new run'}"
            )
        if stopped and (int(found[1]) + 1, int(found[2])) != stopped:
            raise Broken(f"stopped at {stopped}, but {found[0]}")
    except Broken:
        job.out, job.errors = after.out, after.errors  # for the message
        after.end()
        raise
    return after


def check_files(job: Job) -> None:
    """Reads the checkpoints, which must be whole. Makes temporary files old, so that the next save removes them."""
    for path in (*job.output.glob("*/last.pt"), *job.output.glob("*/best.pt")):
        checkpoint.load(path)
    for path in temporary_files(job.output):
        os.utime(path, (0, 0))


def differences(alone: Path, killed: Path, files: Sequence[str] = FILES) -> tuple[list[str], dict[str, int]]:
    """Returns the differences of two run folders by name, and the number of compared values of each part."""
    faults, compared = [], {}
    for name in files:
        left, right = (contents(folder, name) for folder in (alone, killed))
        for key in sorted(left.keys() | right.keys()):
            if why := difference(left.get(key, MISSING), right.get(key, MISSING)):
                faults.append(f"{name} {key}: {why}")
            depth = 3 if key.startswith("resume/updater") else 2 if key.startswith("resume") else 1
            part = f"{name} {'/'.join(key.split('/')[:depth])}" if name.endswith(".pt") else name
            compared[part] = compared.get(part, 0) + getattr(left.get(key), "numel", lambda: 1)()
    return faults, compared


def contents(folder: Path, name: str) -> dict[str, Any]:
    """Returns the contents of a file as name -> value, without constants and times, in which any two runs differ."""
    if name == "log.csv":
        with open(folder / name, encoding="utf-8", newline="") as file:
            found = flat({"rows": list(csv.DictReader(file))})
    elif name == "TensorBoard":
        found = scalars(folder)
    else:
        found = flat({key: value for key, value in checkpoint.load(folder / name).items() if key != "config"})
    return {key: value for key, value in found.items() if not set(key.split("/")) & set(DIFFER)}


def scalars(folder: Path) -> dict[str, Any]:
    """Returns the scalars that TensorBoard shows, as tag/index -> (step, value), with gaps and duplicates if there are any."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # takes seconds to import

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it reports that it cuts what the next start repeats
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    found = {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    return {f"{tag}/{i}": pair for tag, pairs in found.items() for i, pair in enumerate(pairs)}


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flattens nested containers into one dict: name/of/the/leaf -> leaf. An empty container is a leaf."""
    if isinstance(value, Mapping | list | tuple) and value:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        return {k: v for key, item in items for k, v in flat(item, f"{name}/{key}" if name else str(key)).items()}
    return {name: value}


def difference(a: Any, b: Any) -> str | None:
    """Describes how two leaves differ; None if they have the same bits."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape:
        if torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)):
            return None
        distance = (a.double() - b.double()).abs()
        return f"{int((distance != 0).sum())} of {a.numel()} values differ, by up to {float(distance.max()):.3g}"
    same = type(a) is type(b) and not isinstance(a, torch.Tensor) and (a == b or a != a and b != b)
    return None if same else f"{str(a)[:200]!r} became {str(b)[:200]!r}"


def row_of(outcome: Outcome, minutes: float) -> dict[str, str]:
    """The row of results/torture.md."""
    one = sum(kind.processes == 1 for kind in outcome.kills)
    single = sum(kind.rank is not None for kind in outcome.kills)
    return {
        "seed": str(outcome.seed),
        "kills": str(len(outcome.kills)),
        "of one process": str(one),
        "of a single rank of two": str(single),
        "of torchrun": str(len(outcome.kills) - one - single),
        "values compared": str(sum(outcome.compared.values())),
        "values that differ": str(len(outcome.differences)),
        "minutes": f"{minutes:.1f}",
    }
