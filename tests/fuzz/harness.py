"""Runs fuzzers: makes inputs, judges what a reader does with them, and saves and shrinks what fails.

An input is a small tree of files and a pure function of (seed, fuzzer, number): `python -m tests.fuzz only=coco seed=1
number=57` repeats one. The reader must succeed, compared with an independent reader where there is one, or raise one error
of the project that names the file and the fix, and leave the folder as it was. A worker process runs the inputs, so that a
crash, a hang or too much memory ends the worker and not the fuzzing.
"""

import base64
import contextlib
import hashlib
import importlib
import io
import json
import multiprocessing
import os
import pkgutil
import random
import re
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from datasets.errors import DataError
from utils.config import ConfigError
from utils.images import ImageError

Case = dict[str, bytes]  # path in the folder -> contents

CORPUS = Path(__file__).parent / "corpus"
SECONDS, BYTES = 10.0, 2 << 30  # limits of CPU time and memory per input
WAIT = 60.0  # seconds of wall time after which an input is stopped: other programs may use the cores
SHRINKING = 2.0  # seconds, at most
# Kinds of failures. half written: an error after which files differ; wrong: the result differs from the independent
# reader; message: an error or output without file or fix, or that terminals cannot show.
KINDS = ("traceback", "crash", "hang", "memory", "half written", "wrong", "message")
LONGEST = 20_000  # characters of a message

# A message ends with what to do. These are the verbs of the project's messages.
_FIX = re.compile(
    r"\b(add|choose|convert|copy|correct|delete|divide|draw|enlarge|export|fetch|give|install|keep|label|lower|move|multiply|"
    r"name|names|pass|put|raise|raises|remove|rename|repeat|replace|resize|save|set|take|train|turn|use|write|did you mean|"
    r"can be|must be|for example|lists all|leaves (?:it|them) out)\b",
    re.IGNORECASE,
)
_PYTHON = re.compile(
    r"\b(?:Type|Value|Key|Index|Attribute|Overflow|Recursion|Unicode\w+|Runtime|ZeroDivision|Lookup)Error\b"
)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Failure(Exception):
    """A reader did something that it must not do. `kind` is one of KINDS."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class Fuzzer:
    """Makes inputs for one reader, and runs it.

    `run(folder)` reads the input in `folder` and compares the result with an independent reader. It raises one of
    `errors`, which are no failures, or Failure. `names_place(message, case)`: whether an error names the place of the problem;
    None: it must name one of the files.
    """

    name: str
    make: Callable[[random.Random], Case]
    run: Callable[[Path], object]
    errors: tuple[type[Exception], ...] = (DataError, ConfigError, ImageError)
    names_place: Callable[[str, Case], bool] | None = None
    fraction: float = 1.0  # of the inputs that other fuzzers get

    def case(self, seed: int, number: int) -> Case:
        """Returns input `number`."""
        return self.make(random.Random(f"{seed} {self.name} {number}"))


class Result(NamedTuple):
    """What happened to one input."""

    outcome: str  # "read", "refused" or one of KINDS
    text: str = ""  # the message, or the traceback
    seconds: float = 0.0
    peak: int = 0  # bytes of memory


def fuzzers() -> dict[str, tuple[Fuzzer, ...]]:
    """Returns the fuzzers of every module in this folder that has a list FUZZERS."""
    names = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    modules = (importlib.import_module(f"{__package__}.{name}") for name in names if name != "__main__")
    return {module.__name__.rpartition(".")[2]: module.FUZZERS for module in modules if hasattr(module, "FUZZERS")}


# ---- one input


def write(case: Case, folder: Path) -> None:
    """Writes the files of an input."""
    for name, data in case.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def attempt(fuzzer: Fuzzer, case: Case, root: Path) -> Result:
    """Runs a fuzzer on an input in the new folder `root`/data, and judges the outcome."""
    folder, out = root / "data", io.StringIO()
    folder.mkdir(parents=True)
    os.environ["THAW_CACHE"] = str(root / "cache")
    try:
        write(case, folder)
        before = _listing(folder)
        _reset_peak()
        start = time.process_time()  # not the time of other programs
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                fuzzer.run(folder)
            outcome, text = "read", ""
            check_text(out.getvalue().replace("\r", ""), limit=10 * LONGEST)
        except Failure as failure:
            outcome, text = failure.kind, str(failure)
        except fuzzer.errors as error:
            outcome, text = _judge(fuzzer, case, str(error), str(folder))
            if changed := before ^ _listing(folder):
                outcome, text = "half written", f"{sorted(path for path, *_ in changed)} after the error: {text}"
        except MemoryError:
            outcome, text = "memory", traceback.format_exc()
        except Exception:
            outcome, text = "traceback", traceback.format_exc()
        seconds, peak = time.process_time() - start, _peak()
        if outcome in ("read", "refused") and (seconds > SECONDS or peak > BYTES):
            outcome = "hang" if seconds > SECONDS else "memory"
        return Result(outcome, text.replace(str(root), ""), seconds, peak)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _judge(fuzzer: Fuzzer, case: Case, message: str, folder: str) -> tuple[str, str]:
    """Returns ("refused", message), or ("message", what is wrong with the message)."""
    named = fuzzer.names_place or (lambda text, case: folder in text or any(Path(name).name in text for name in case))
    problem = ""
    if not named(message, case):
        problem = "names no file"
    elif not _FIX.search(message):
        problem = "names no fix"
    elif _PYTHON.search(message):
        problem = "is an error of Python"
    try:
        check_text(message)
    except Failure as failure:
        problem = str(failure)
    return ("message", f"the error {problem}: {message[:1000]}") if problem else ("refused", message)


def check_text(text: str, limit: int = LONGEST) -> None:
    """Raises Failure for text with control characters or lone surrogates, which terminals cannot show, and for long text."""
    if len(text) > limit:
        raise Failure("message", f"has {len(text)} characters: {text[:200]!r}")
    if found := _CONTROL.search(text):
        raise Failure("message", f"prints {found[0]!r}: {text[max(found.start() - 100, 0) : found.end() + 20]!r}")


def _listing(folder: Path) -> set[tuple]:
    """Returns path, size and time of everything in a folder."""
    stats = ((path, path.lstat()) for path in folder.rglob("*"))
    return {(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats if path.is_file()}


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Returns the largest memory of this process since `_reset_peak`, 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        if found := re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text()):
            return 1024 * int(found[1])
    return 0


# ---- the worker process


class Worker:
    """A process that runs inputs; it is started again after it was killed."""

    def __init__(self, every: dict[str, Fuzzer], seed: int) -> None:
        self._every, self._seed = every, seed
        self._root = tempfile.mkdtemp(prefix="fuzz")
        self._process = None

    def run(self, name: str, what: int | Case) -> Result:
        """Runs an input, or the one of a number, of the fuzzer `name`, at most SECONDS long and with at most BYTES of memory."""
        return self.run_all(name, [what])[0]

    def run_all(self, name: str, whats: Sequence[int | Case]) -> list[Result]:
        """Runs several inputs: the process does not wait between them."""
        found: list[Result] = []
        while len(found) < len(whats):
            self._start()
            self._pipe.send((name, whats[len(found) :]))
            while self._process is not None and len(found) < len(whats):
                found.append(self._next())
        return found

    def _start(self) -> None:
        if self._process is None:
            context = multiprocessing.get_context("fork")  # the modules are loaded already
            self._pipe, other = context.Pipe()
            self._process = context.Process(target=self._serve, args=(other,), daemon=True)
            self._process.start()
            other.close()

    def _next(self) -> Result:
        """Returns the next result of the process, which is stopped if there is none."""
        start = time.perf_counter()
        while not self._pipe.poll(0.02):
            seconds, memory = time.perf_counter() - start, _memory_of(self._process.pid)
            if seconds > WAIT or memory > BYTES:
                self.stop()
                return Result("memory" if memory > BYTES else "hang", "killed", seconds, memory)
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            self.stop()
            return Result("crash", f"the process ended with code {code}")

    def _serve(self, pipe) -> None:
        self._pipe.close()  # the parent's end: while it is open here, `recv` does not notice that the parent has ended
        count = 0
        while True:
            try:
                name, whats = pipe.recv()
            except EOFError:
                return
            for what in whats:
                fuzzer, count = self._every[name], count + 1
                case = fuzzer.case(self._seed, what) if isinstance(what, int) else what
                pipe.send(attempt(fuzzer, case, Path(self._root, f"{os.getpid()}-{count}")))

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None

    def close(self) -> None:
        """Ends the process and removes its files."""
        self.stop()
        shutil.rmtree(self._root, ignore_errors=True)


def _memory_of(pid: int) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


# ---- what failed: shrunk, saved, and run again


def signature(result: Result) -> str:
    """Returns a text that is equal for failures with the same cause."""
    lines = result.text.strip().splitlines() or [""]
    frames = [line.strip() for line in lines if line.strip().startswith("File ") and "site-packages" not in line]
    return f"{result.outcome}: {re.sub(r'[0-9]+', '#', (frames or [''])[-1] + lines[-1][:60])}"


def shrink(worker: Worker, name: str, case: Case, wanted: Result) -> Case:
    """Returns a smaller input that fails in the same way: files, and then ever smaller parts of files, are left out."""
    end = time.monotonic() + SHRINKING
    for smaller in _smaller(case):
        if time.monotonic() > end:
            break
        if signature(worker.run(name, smaller())) == signature(wanted):
            kept = smaller()
            case.clear()
            case.update(kept)
    return case


def _smaller(case: Case) -> Iterator[Callable[[], Case]]:
    """Yields functions that return `case` without a file or without a part of one. `case` may change between two of them."""
    for name in list(case):
        if len(case) > 1:
            yield lambda name=name: {other: data for other, data in case.items() if other != name}
    for name in list(case):
        size = len(case.get(name, b"")) // 2
        while size:
            start = 0
            while start < len(case.get(name, b"")):
                length = len(case[name])
                part = slice(start, start + size)
                yield lambda name=name, part=part: case | {name: case[name][: part.start] + case[name][part.stop :]}
                start += size if len(case.get(name, b"")) == length else 0
            size //= 2


def save(folder: Path, fuzzer: str, case: Case, note: str) -> Path:
    """Writes an input to a file of the corpus, JSON in ASCII, which git and editors leave as it is."""
    files = {}
    for name, data in case.items():
        try:
            files[name] = data.decode()
        except UnicodeDecodeError:
            files[name] = {"base64": base64.b64encode(data).decode()}
    text = json.dumps({"fuzzer": fuzzer, "note": note, "files": files}, indent=1) + "\n"
    digest = hashlib.blake2b(json.dumps(files).encode(), digest_size=4).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{fuzzer}-{digest}.json"
    path.write_text(text, encoding="ascii")
    return path


def load(path: Path) -> tuple[str, Case]:
    """Reads a file of the corpus -> name of the fuzzer, input."""
    contents = json.loads(path.read_text(encoding="ascii"))
    files = contents["files"].items()
    case = {name: data.encode() if isinstance(data, str) else base64.b64decode(data["base64"]) for name, data in files}
    return contents["fuzzer"], case
