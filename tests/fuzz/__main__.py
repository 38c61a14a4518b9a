"""Fuzzes all readers for a time, or with a number of inputs, and prints a table.

    python -m tests.fuzz minutes=60 seed=1
    python -m tests.fuzz inputs=100000 only=coco,voc seed=1
    python -m tests.fuzz only=coco seed=1 number=57        (repeats one input)

It exits with 1 if anything failed; what failed is shrunk and saved to corpus=, from where the tests run it again.
"""

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what the tests build

from tests.fuzz import harness
from tests.fuzz.harness import KINDS, Fuzzer, Result
from utils.config import ConfigError, override

BLOCK = 50  # inputs of a fuzzer before the next one's turn
SAVED = 3  # inputs that are saved of failures with the same cause


@dataclass(frozen=True)
class Config:
    minutes: float | None = None  # how long; none: until `inputs`
    inputs: int = 1000  # of all fuzzers together, unless minutes= is given
    only: tuple[str, ...] | None = None  # fuzzers, or modules of tests/fuzz: coco,voc; none: all
    seed: int = 0
    number: int | None = None  # run only this input, and print what happens
    shrink: bool = True  # make inputs that failed smaller before they are saved
    corpus: str = str(harness.CORPUS)  # folder for inputs that failed


@dataclass
class Row:
    """The counts of one fuzzer."""

    inputs: int = 0
    outcomes: Counter = field(default_factory=Counter)
    causes: Counter = field(default_factory=Counter)
    seconds: float = 0.0
    slowest: float = 0.0
    peak: int = 0


def chosen(only: tuple[str, ...] | None) -> dict[str, Fuzzer]:
    """Returns the fuzzers that `only` names, by name. Raises ConfigError."""
    groups = harness.fuzzers()
    every = {fuzzer.name: fuzzer for group in groups.values() for fuzzer in group}
    names: list[str] = []
    for word in every if only is None else only:
        if word not in every and word not in groups:
            raise ConfigError(f"only={word}: choose among {', '.join([*groups, *every])}")
        names += [word] if word in every else [fuzzer.name for fuzzer in groups[word]]
    return {name: every[name] for name in dict.fromkeys(names)}


def table(rows: dict[str, Row]) -> str:
    """Returns the counts as a table in Markdown."""
    head = ["fuzzer", "inputs", "read", "refused", *KINDS, "slowest s", "peak MB"]
    lines = [head, ["---"] * len(head)]
    for name, row in rows.items():
        counts = [row.inputs, *(row.outcomes[kind] for kind in ("read", "refused", *KINDS))]
        lines.append([name, *map(str, counts), f"{row.slowest:.2f}", f"{row.peak / 1e6:.0f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report(
    worker: harness.Worker, name: str, number: int, fuzzer: Fuzzer, result: Result, row: Row, cfg: Config
) -> None:
    """Prints a failure, and saves its input unless there are enough with the same cause."""
    cause = harness.signature(result)
    row.causes[cause] += 1
    if row.causes[cause] > SAVED:
        return
    case = fuzzer.case(cfg.seed, number)
    if cfg.shrink and result.outcome not in ("crash", "hang", "memory"):
        case = harness.shrink(worker, name, case, result)
    path = harness.save(Path(cfg.corpus), name, case, f"{result.outcome}, seed {cfg.seed}, number {number}")
    lines = [line[:400] for line in result.text.encode("utf-8", "backslashreplace").decode().splitlines()[-12:]]
    head = f"FAILED {result.outcome}: only={name} seed={cfg.seed} number={number}"
    print("", head, path, *lines, sep="\n", flush=True)


def fuzz(cfg: Config, every: dict[str, Fuzzer]) -> dict[str, Row]:
    """Runs the fuzzers in turns until the time or the number of inputs is over."""
    rows = {name: Row() for name in every}
    goal = {
        name: cfg.inputs * fuzzer.fraction / sum(f.fraction for f in every.values()) for name, fuzzer in every.items()
    }
    start = shown = time.monotonic()
    worker = harness.Worker(every, cfg.seed)
    try:
        while any(row.inputs < goal[name] for name, row in rows.items()) or cfg.minutes is not None:
            for name, fuzzer in every.items():
                row, least = rows[name], min(other.seconds for other in rows.values())
                if row.seconds > least + 5 if cfg.minutes is not None else row.inputs >= goal[name]:
                    continue
                numbers = range(row.inputs, row.inputs + BLOCK)
                for number, result in zip(numbers, worker.run_all(name, numbers), strict=True):
                    row.inputs += 1
                    row.outcomes[result.outcome] += 1
                    row.seconds += result.seconds
                    row.slowest, row.peak = max(row.slowest, result.seconds), max(row.peak, result.peak)
                    if result.outcome in KINDS:
                        report(worker, name, number, fuzzer, result, row, cfg)
                    if cfg.minutes is not None and time.monotonic() - start > 60 * cfg.minutes:
                        return rows
                if time.monotonic() - shown > 60:
                    shown = time.monotonic()
                    print(f"\n{(shown - start) / 60:.0f} minutes\n{table(rows)}", flush=True)
    except KeyboardInterrupt:
        print("stopped")
    finally:
        worker.close()
    return rows


def main(words: list[str]) -> int:
    """Fuzzes with the arguments `words`; returns the exit code."""
    try:
        cfg = override(Config(), words)
        every = chosen(cfg.only)
    except ConfigError as error:
        raise SystemExit(str(error)) from error
    if cfg.number is not None:
        for name, fuzzer in every.items():
            worker = harness.Worker(every, cfg.seed)
            result = worker.run(name, cfg.number)
            worker.close()
            for path, data in fuzzer.case(cfg.seed, cfg.number).items():
                print(f"{path}: {data[:2000]!r}")
            print(f"{name}: {result.outcome} in {result.seconds:.2f} s, {result.peak / 1e6:.0f} MB\n{result.text}")
        return 0
    rows = fuzz(cfg, every)
    print(f"\nseed {cfg.seed}\n{table(rows)}")
    for name, row in rows.items():
        for cause, count in row.causes.most_common():
            print(f"{count} x {name}: {cause}".encode("utf-8", "backslashreplace").decode())
    return int(any(row.causes for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
