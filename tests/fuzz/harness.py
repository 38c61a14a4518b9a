"""Runs a reader on one input and judges what it does.

An input is a small tree of files, and a pure function of (seed, fuzzer, number). The reader must succeed, with a result that
is consistent, or raise one error of the project that names the file and the fix, and leave the folder as it was.
"""

import base64
import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from datasets.errors import DataError
from utils.config import ConfigError
from utils.images import ImageError

Case = dict[str, bytes]  # path in the folder -> contents

CORPUS = Path(__file__).parent / "corpus"  # inputs that failed once
SECONDS = 10.0  # limit of CPU time per input
MAX_MESSAGE = 20_000  # characters

# A message ends with what to do. These are the verbs of the project's messages.
FIX = re.compile(
    r"\b(add|choose|convert|copy|correct|delete|divide|draw|enlarge|export|fetch|give|install|keep|label|lower|move|multiply|"
    r"name|names|pass|put|raise|raises|remove|rename|repeat|replace|resize|save|set|take|train|turn|use|write|did you mean|"
    r"can be|must be|for example|lists all|leaves (?:it|them) out)\b",
    re.IGNORECASE,
)
ERROR_OF_PYTHON = re.compile(r"\b(Type|Value|Key|Index|Attribute|Overflow|Recursion|Unicode\w+|Runtime|Lookup)Error\b")
NOT_PRINTABLE = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Failure(AssertionError):
    """A reader did something that it must not do."""


class Hang(Exception):
    """A reader needs more than SECONDS."""


@dataclass(frozen=True)
class Fuzzer:
    """Makes inputs for one reader. `run(folder)` reads the input in `folder`, and raises Failure for a wrong result."""

    name: str
    make: Callable[[random.Random], Case]
    run: Callable[[Path], object]
    errors: tuple[type[Exception], ...] = (DataError, ConfigError, ImageError)

    def case(self, seed: int, number: int) -> Case:
        """Returns input `number`."""
        return self.make(random.Random(f"{seed} {self.name} {number}"))


def attempt(fuzzer: Fuzzer, case: Case, root: Path) -> str:
    """Runs a fuzzer on an input in the new folder `root`/data -> "read" or "refused". Raises Failure."""
    folder, out = root / "data", io.StringIO()
    for name, data in case.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    os.environ["THAW_CACHE"] = str(root / "cache")
    before = listing(folder)
    try:
        with limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            fuzzer.run(folder)
        check_text(out.getvalue().replace("\r", ""))
        return "read"
    except Failure:
        raise
    except fuzzer.errors as error:
        check_error(str(error), case, str(folder))
        if changed := before ^ listing(folder):
            raise Failure(f"an error after which files differ: {sorted(str(path) for path, *_ in changed)}") from error
        return "refused"
    except Exception as error:
        raise Failure(traceback.format_exc()) from error
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raises Hang in a block that takes more than SECONDS of CPU time."""

    def stop(*_: object) -> None:
        raise Hang(f"more than {SECONDS} s")

    if not hasattr(signal, "setitimer"):  # Windows
        yield
        return
    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def check_error(message: str, case: Case, folder: str) -> None:
    """Raises Failure for a message without a file or a fix, or that a terminal cannot show."""
    if folder not in message and not any(Path(name).name in message for name in case):
        raise Failure(f"the error names no file: {message[:1000]}")
    if not FIX.search(message):
        raise Failure(f"the error names no fix: {message[:1000]}")
    if ERROR_OF_PYTHON.search(message):
        raise Failure(f"the error is one of Python: {message[:1000]}")
    check_text(message)


def check_text(text: str) -> None:
    """Raises Failure for text with control characters or lone surrogates, which terminals cannot show, and for long text."""
    if len(text) > MAX_MESSAGE:
        raise Failure(f"prints {len(text)} characters: {text[:200]!r}")
    if found := NOT_PRINTABLE.search(text):
        raise Failure(f"prints {found[0]!r}: {text[max(found.start() - 100, 0) : found.end() + 20]!r}")


def listing(folder: Path) -> set[tuple]:
    """Returns path, size and time of every file in a folder."""
    stats = ((path, path.lstat()) for path in folder.rglob("*") if path.is_file())
    return {(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats}


def load(path: Path) -> tuple[str, Case]:
    """Reads a file of the corpus -> name of the fuzzer, input. Bytes that are not UTF-8 are in base64."""
    contents = json.loads(path.read_text(encoding="ascii"))
    files = contents["files"].items()
    case = {name: data.encode() if isinstance(data, str) else base64.b64decode(data["base64"]) for name, data in files}
    return contents["fuzzer"], case
