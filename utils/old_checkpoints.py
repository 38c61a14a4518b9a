"""Checkpoints of earlier versions: here, and only here, they become checkpoints of today's format."""

from collections.abc import Mapping
from typing import Any

# Entries of "constants" in format 1 that are no constants as written, but facts of the data, the code and the run.
FACTS = ("model", "image_size", "classes", "training data", "contents of the images", "extra_augment", "parts")
RENAMED = {"repeat": "repeat_rare"}  # constants of format 1 and their names in format 2
RATES = {"power": "rate_power", "max_images": "max_images", "clip": "clip"}  # of format 2: their names in format 1


def upgraded(contents: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a checkpoint of format 1 in format 2, where the entry "resume" has the state of each owner.

    In format 1, constants of the training were stored as written in resume.constants, all others only as the run chose them.
    What a damaged file lacks stays missing.
    """
    config, old = contents.get("config"), contents.get("resume")
    if isinstance(config, dict):
        config = with_new_names(config)
        contents = {**contents, "config": config}
    if not isinstance(old, dict):
        return {**contents, "format": 2}
    fixed = old.get("constants")
    resume = {name: old[name] for name in ("model", "updater", "meter", "state") if name in old}
    resume["rates"] = {name: old[before] for name, before in RATES.items() if before in old}
    lengths = {name: old[name] for name in ("warmup_epochs", "no_aug_epochs") if name in old}
    resume["course"] = {"max_epochs": 0, **lengths, "budget": old.get("time_budget")}
    if isinstance(fixed, dict) and isinstance(config, dict):
        fixed = with_new_names(fixed)
        facts = {name: fixed[name] for name in FACTS if name in fixed}
        written = {**config, **{name: fixed[name] for name in config.keys() & fixed.keys() - {"classes"}}}
        resume["origin"] = {"written": written, "facts": facts, "trained": old.get("trained")}
    return {"value_range": None, **contents, "format": 2, "resume": resume}


def with_new_names(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the constants of a run by their names in format 2."""
    return {RENAMED.get(name, name): value for name, value in constants.items()}
