"""The constants of a resumed run, whose command has only resume=FOLDER, or resume=true and name=."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from engine.resume import refuse_missing
from engine.run_store import run_root
from engine.runs import runs
from utils import checkpoint
from utils.config import ConfigError, T, check, override, show
from utils.file_checks import fitting


def with_constants_of(
    folder: Path, defaults: T, argv: Sequence[str], positional: Mapping[str, Callable[[str], bool]]
) -> T:
    """Returns the constants of a run with the overrides in `argv`; `defaults` only has those that the run does not know.

    For `positional` see `override`.
    """
    values, names = constants_of(folder), [field.name for field in fields(defaults)]
    unknown = [name for name in values if name not in names]
    try:
        of_run = check(replace(defaults, **{name: values[name] for name in names if name in values}))
    except ConfigError as error:
        raise ConfigError(f"{folder} cannot be resumed with its own constants: {error}") from error
    cfg = override(of_run, argv, positional)
    changed = [name for name in names if name != "resume" and getattr(cfg, name) != getattr(of_run, name)]
    if os.environ.get("RANK", "0") == "0":
        text = ", ".join(f"{name}={show(getattr(cfg, name))}" for name in changed) or "none"
        print(f"constants: those of {folder}, not of train.py; changed by the command line: {text}")
        if unknown:
            print(f"note: {folder} has constants that no longer exist: {', '.join(unknown)}")
    return cfg


def constants_of(folder: Path) -> dict[str, Any]:
    """Returns the constants of a run by name, as the user wrote them for its last start; without `resume`.

    It reads no tensors and compares no checksums: `resume.find` does, when the run begins.
    """
    path = folder / "last.pt"
    last = checkpoint.read(path, on_disk=True)
    with fitting(path):
        return {name: value for name, value in last["resume"]["origin"]["user_config"].items() if name != "resume"}


def refuse_demo(resume: bool | str, output: str, name: str, argv: Sequence[str]) -> None:
    """Raises ConfigError if the run does not exist, and the demo, which `argv` does not name, would be trained instead."""
    if any(word.startswith("train=") or os.path.exists(word) for word in argv):
        return
    if isinstance(resume, str):
        refuse_missing(resume, output)
    if resume and any(word.startswith("name=") for word in argv):
        missing = f"there is no run of name={name} in output={output}, or its newest one has no last.pt"
        raise ConfigError(f"resume=true: {missing}. A new run needs the whole command, with train=")
    others = sorted(run_root(output).glob("*/last.pt"), key=lambda path: path.stat().st_mtime)
    if resume and others and not runs(output, name):
        newest = others[-1].parent
        raise ConfigError(f"resume=true: there is no run of name={name} in output={output}; write resume={newest}")
