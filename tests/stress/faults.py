"""Causes faults of every kind at random moments of small trainings, whose results must equal the results of undisturbed ones.

    python -m tests.stress minutes=60 seed=5

Each kind of fault is a function: it causes the fault in a running training, checks what can be checked at once, and returns
the name of the fault. `strike` calls them. Runs of one and two processes must end with the same bits; three processes end with
the same losses up to rounding, because a sum of three depends on its order. Needs Linux.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_FSIZE, prlimit

import torch

from tests.stress import torture
from tests.stress.clock import CLOCK
from tests.stress.torture import Broken, Job, Plan, check_files, contents, differences, draw, run_undisturbed
from utils.file_checks import CheckpointError

ENOUGH = 40  # failed comparisons after which the program ends
DISK = 32 * 2**20  # bytes of the disk that is filled
NEAR = 1e-3  # largest relative difference of the losses of three processes
STARTED = re.compile(r"^(resuming|run folder|nothing to do)", re.MULTILINE)
NO_ROOM = r"No space left|File too large|was not saved|file write failed|unexpected pos|write failed"
CLEAN = {  # fault -> pattern of the errors with which it may end a process
    "a full disk": NO_ROOM,
    "a limit on the size of files": NO_ROOM,
    "a second start of the same run": "is in use by process",
    "SIGKILL of a process that loads images": "a process that loads images was ended|lost the connection",
}


@dataclass
class Run:
    """A training, and the faults that it has had."""

    job: Job
    rng: random.Random
    folder: Path  # of the whole torture: images, cache, clock
    disk: Path | None  # the small disk with the output; None: it could not be mounted
    struck: list[str] = field(default_factory=list)  # the names of its faults so far

    @property
    def plan(self) -> Plan:
        return self.job.plan

    def trainers(self) -> list[int]:
        """The ids of the processes that train."""
        return [*self.job.ranks().values()] if self.plan.processes > 1 else [self.job.process.pid]

    def loaders(self) -> list[int]:
        """The ids of the processes that load images."""
        return [child for trainer in self.trainers() for child in children(trainer)]


def children(parent: int) -> list[int]:
    """The ids of the child processes with the same command line: those that a process has forked."""
    with suppress(OSError):
        text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        same = Path(f"/proc/{parent}/cmdline").read_bytes()
        return [int(word) for word in text.split() if Path(f"/proc/{word}/cmdline").read_bytes() == same]
    return []


def send(number: signal.Signals, process: int, group: bool = False) -> None:
    """Sends a signal to a process or its group, if it still runs."""
    with suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(process, number)


# --- faults: each returns its name, or None if it cannot strike at this moment ------------------------------------------


def killed(run: Run) -> str | None:
    """SIGKILL of one of the processes that train; torchrun, if there is one, starts all of them again."""
    victims = run.trainers()
    if not victims:
        return None
    send(signal.SIGKILL, run.rng.choice(victims))
    if run.plan.processes == 1:
        run.job.join()
    return "SIGKILL"


def torchrun_killed(run: Run) -> str | None:
    """SIGKILL of torchrun. Its processes must end by themselves, so that the next start can lock the run folder."""
    if run.plan.processes == 1:
        return None
    orphans = run.trainers()
    send(signal.SIGKILL, run.job.process.pid)
    end = time.monotonic() + 60
    while any(Path(f"/proc/{orphan}/environ").exists() and alive(orphan) for orphan in orphans):
        if time.monotonic() > end:
            raise Broken(f"the processes {orphans} still train after torchrun was killed")
        time.sleep(0.1)
    return "SIGKILL of torchrun"


def alive(process: int) -> bool:
    """Whether a process runs and is no zombie."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def asked_to_stop(number: signal.Signals) -> Callable[[Run], str | None]:
    """SIGTERM, SIGINT or SIGHUP: the run is saved after the current step, and no finished step is lost."""

    def strike(run: Run) -> str:
        place, begun = run.job.place, run.job.begun
        send(number, run.job.process.pid, group=run.plan.processes == 1 and run.rng.random() < 0.5)
        code, stopped = run.job.join(), run.job.stopped()
        if (
            run.job.done() or run.plan.processes > 1 or place <= begun
        ):  # no step was done: the signal may end it at once
            return number.name
        if code or stopped is None or stopped < place:
            raise Broken(f"{number.name} at {place}: ended with {code}, saved up to {stopped}")
        return number.name

    return strike


def paused(run: Run) -> str | None:
    """SIGSTOP of a process that trains or loads images, and SIGCONT some seconds later."""
    victims = run.trainers() + run.loaders()
    if not victims:
        return None
    victim = run.rng.choice(victims)
    send(signal.SIGSTOP, victim)
    time.sleep(run.rng.uniform(0.5, 3))
    send(signal.SIGCONT, victim)
    return "SIGSTOP and SIGCONT"


def loader_killed(run: Run) -> str | None:
    """SIGKILL of a process that loads images, as the system does when memory runs out."""
    victims = run.loaders()
    if not victims:
        return None
    send(signal.SIGKILL, run.rng.choice(victims))
    if run.plan.processes == 1:
        run.job.join()
    return "SIGKILL of a process that loads images"


def disk_full(run: Run) -> str | None:
    """A disk without a free byte for some seconds."""
    if run.disk is None:
        return None
    filler = run.disk / "filler"
    with suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    time.sleep(run.rng.uniform(0.2, 3))
    filler.unlink()
    return "a full disk"


def small_files(run: Run) -> str | None:
    """A limit on the size of files for some seconds, as quotas set it: every longer write fails."""
    processes = run.trainers()
    for process in processes:
        with suppress(ProcessLookupError):
            prlimit(process, RLIMIT_FSIZE, (run.rng.choice((0, 4096, 65536)), RLIM_INFINITY))
    time.sleep(run.rng.uniform(0.2, 3))
    for process in (*processes, *run.loaders()):  # a process that was forked meanwhile has the limit too
        with suppress(ProcessLookupError):
            prlimit(process, RLIMIT_FSIZE, (RLIM_INFINITY, RLIM_INFINITY))
    return "a limit on the size of files" if processes else None


def resumed_twice(run: Run) -> str | None:
    """A second start of the same run while the first one trains: it must end with an error that names the first one.

    It may continue the run when no process holds it: torchrun is about to replace its processes, or the training is done.
    """
    if not list(run.job.output.glob("*/last.pt")):
        return None
    args = [*run.job.command["args"], *["resume=true"] * ("resume=true" not in run.job.command["args"])]
    args = [f"--master-port={torture.free_port()}" if word.startswith("--master-port") else word for word in args]
    before = run.trainers()
    done = subprocess.run(**{**run.job.command, "args": args}, capture_output=True, text=True, timeout=torture.TIMEOUT)
    held = before and run.job.process.poll() is None and set(run.trainers()) == set(before)
    if held and "is in use by process" not in done.stderr and "nothing to do" not in done.stdout:
        raise Broken(f"a second start ended with {done.returncode}: {done.stdout[-500:]} {done.stderr[-1500:]}")
    return "a second start of the same run"


def cache_damaged(run: Run) -> str:
    """Files of the cache that are overwritten, cut or removed."""
    files = [path for path in (run.folder / "cache").rglob("*") if path.is_file()]
    for path in run.rng.sample(files, len(files) // 2):
        with suppress(OSError):
            how = run.rng.choice(("overwritten", "cut", "removed"))
            if how == "removed":
                path.unlink()
            else:
                with open(path, "r+b") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(run.rng.randrange(size + 1))
                    file.truncate() if how == "cut" else file.write(run.rng.randbytes(100))
    return "a damaged cache"


def clock_jumped(run: Run) -> str | None:
    """The clock jumps by up to two days to either side."""
    if not run.plan.environment:
        return None
    seconds = run.rng.choice((60, 3600, 172800)) * run.rng.choice((-1, 1))
    (run.folder / "clock").write_text(f"{seconds:+}\n")
    return "a jump of the clock"


FAULTS = (
    *(killed, torchrun_killed, asked_to_stop(signal.SIGTERM), asked_to_stop(signal.SIGINT)),
    *(asked_to_stop(signal.SIGHUP), paused, loader_killed, disk_full, small_files, resumed_twice, cache_damaged),
    clock_jumped,
)

# --- the loop -----------------------------------------------------------------------------------------------------------


def main(minutes: float, seed: int | None = None, output: str | None = None) -> torture.Outcome:
    """Runs trainings with faults for `minutes`, prints each fault as it happens, and compares every run."""
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    outcome, counts = torture.Outcome(seed), Counter()
    print(f"seed={seed}", flush=True)
    base = Path(output or tempfile.mkdtemp(prefix="torture")).resolve()
    number = 0
    try:
        draw(base / "images", torture.IMAGES)
        alone = {processes: run_undisturbed(base, processes) for processes in torture.BY_PROCESSES}
        end = time.monotonic() + 60 * minutes
        with small_disk(base / "disk") as disk:
            while time.monotonic() < end and len(outcome.differences) < ENOUGH:
                number += 1
                rng = random.Random(f"{seed} {number}")
                plan = plan_of(number, rng, base)
                try:
                    outcome.differences += one_run(
                        base, disk, plan, rng, alone[plan.processes], outcome.compared, counts
                    )
                except Broken as error:
                    print(f"BROKEN  {error}", flush=True)
                    outcome.differences.append(str(error).partition("\n")[0])
    except Broken as error:
        outcome.differences.append(str(error))
    print("\n".join(f"{count:5}  {name}" for name, count in counts.most_common()))
    print("\n".join(f"DIFFERENT  {fault}" for fault in outcome.differences[:40]))
    result = f"{len(outcome.differences)} differences; runs in {base}" if outcome.differences else "bits equal"
    print(f"seed={seed}: {number} runs, {sum(outcome.compared.values())} values compared")
    print(f"{counts.total()} faults, {result}", flush=True)
    if not output and not outcome.differences:
        shutil.rmtree(base)
    return outcome


@contextmanager
def small_disk(folder: Path):
    """Mounts a small disk and yields its folder; None, with a line that says why, where that is not allowed."""
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        print(f"skipped: a full disk, because no small disk can be mounted: {done.stderr.strip()}", flush=True)
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def plan_of(number: int, rng: random.Random, base: Path) -> Plan:
    """Returns the number of processes, the constants and the launcher of the run with this number."""
    processes = (1, 2, 1, 3)[number % 4]
    constants = (f"workers={rng.randrange(3)}", f"save_minutes={rng.choice((0, 0.005))}", "timeout_minutes=0.5")
    environment = ()
    if rng.random() < 0.5:
        (base / "clock").write_text("+0\n")
        environment = ((CLOCK, str(base / "clock")),)
    kinds = torture.KINDS * 10  # as many restarts by torchrun
    return Plan(processes, constants, rng.choice(torture.LAUNCHERS), kinds, f"run{number}", environment)


def one_run(
    base: Path, disk: Path | None, plan: Plan, rng: random.Random, alone: Path, compared: dict, counts: Counter
) -> list[str]:
    """Causes 3 to 8 faults in a training, resumes it whenever it ends, and returns the differences from an undisturbed one."""
    output = (disk or base) / plan.name
    run = Run(Job(base, output, plan, resume=plan.processes == 1), rng, base, disk)
    try:
        for _ in range(rng.randint(3, 8)):
            name = strike(run)
            if name:
                counts[name] += 1
                print(
                    f"{counts.total():5}  {plan.name} of {plan.processes}: {name} in epoch {run.job.place}", flush=True
                )
            if not name or run.job.process.poll() is not None and not resume(run):
                break
        for _ in range(torture.TRIES):
            if not resume(run):
                break
        else:
            raise Broken(f"{torture.TRIES} starts after the last fault did not end it")
        if plan.environment:
            (base / "clock").write_text("+0\n")
        found = compare(alone, run, compared)
        if not found:
            shutil.rmtree(output)
        return [f"{plan.name}, {plan.processes} process(es), {' '.join(plan.constants)}: {fault}" for fault in found]
    except (Broken, CheckpointError, subprocess.TimeoutExpired) as error:
        text = f"{plan.name}, {plan.processes} process(es), {' '.join(plan.constants)}, after {run.struck}: {error}"
        raise Broken(f"{text}\n{run.job.text()}") from error
    finally:
        run.job.end()


def strike(run: Run) -> str | None:
    """Waits for a random moment and causes a random fault. Returns its name, None if the training ended before."""
    run.job.wait("the start", lambda: STARTED.search(run.job.out))
    moment = time.monotonic() + run.rng.uniform(0, 3)
    while time.monotonic() < moment:
        if run.job.process.poll() is not None:
            return None
        time.sleep(0.01)
    for fault in run.rng.sample(FAULTS, len(FAULTS)):
        name = fault(run)
        if name:
            run.struck.append(name)
            check_files(run.job)
            return name
    return None


def resume(run: Run) -> bool:
    """Starts an ended training again. Returns False if it had come to its regular end."""
    job = run.job
    code = job.join()
    if job.done():
        return False
    check_end(run, code)
    saved, stopped = list(job.output.glob("*/last.pt")), job.stopped()
    run.job = after = Job(run.folder, job.output, run.plan, resume=True)
    after.wait("the first line", lambda: STARTED.search(after.out))
    found = re.search(r"^resuming .* after epoch (\d+) and (\d+) batches", after.out, re.MULTILINE)
    if saved and not found and "nothing to do" not in after.out:
        raise Broken(f"{saved[0]} exists, but the next start is a new run")
    if stopped and found and (int(found[1]) + 1, int(found[2])) != stopped and run.plan.processes == 1:
        raise Broken(f"stopped at {stopped}, but {found[0]}")
    return True


def check_end(run: Run, code: int) -> None:
    """Raises Broken if a single process ended with an error that none of its faults explains."""
    if run.plan.processes > 1 or run.job.stopped() or code in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP):
        return
    reasons = "|".join(CLEAN[name] for name in run.struck if name in CLEAN)
    last = run.job.errors.strip().rpartition("\n")[2]
    interrupted = code in (1, -signal.SIGINT) and "SIGINT" in run.struck
    if not interrupted and (not reasons or not re.search(reasons, run.job.errors)):
        raise Broken(f"ended with {code}: {last[-500:]}")


def compare(alone: Path, run: Run, compared: dict[str, int]) -> list[str]:
    """Returns the differences of an ended run from an undisturbed one: in bits, or with three processes in the losses."""
    folder, *more = sorted(path.parent for path in run.job.output.glob("*/last.pt"))
    if more:
        return [f"{len(more)} new runs were started instead of resuming the first one"]
    if run.plan.processes > 2:
        return nearly(alone, folder)
    # TensorBoard may miss points after a full disk, so that file is not compared then.
    lossless = not {"a full disk", "a limit on the size of files"} & set(run.struck)
    files = torture.FILES if lossless and "nothing to do" not in run.job.out else torture.FILES[:3]
    found, counts = differences(alone, folder, files)
    for name, count in counts.items():
        compared[name] = compared.get(name, 0) + count
    return found


def nearly(alone: Path, folder: Path) -> list[str]:
    """Returns the rows of log.csv in which two runs differ by more than rounding."""
    ours, theirs = contents(folder, "log.csv"), contents(alone, "log.csv")
    if ours.keys() != theirs.keys():
        return [f"log.csv has other columns or rows: {sorted(ours.keys() ^ theirs.keys())}"]
    losses = [name for name in theirs if re.search("loss|epoch|learning_rate", name) and theirs[name]]
    pairs = torch.tensor([[float(ours[name]), float(theirs[name])] for name in losses])
    far = (pairs[:, 0] - pairs[:, 1]).abs() > NEAR * pairs[:, 1].abs()
    return [f"log.csv {name}: {theirs[name]} became {ours[name]}" for name, bad in zip(losses, far, strict=True) if bad]
