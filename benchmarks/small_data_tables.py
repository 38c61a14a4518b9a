"""The tables of benchmarks.small_data in Markdown, from its rows. mAP is mAP50-95 of the last epoch in points."""

import statistics
from collections.abc import Iterable

Rows = list[dict[str, str]]
Maps = dict[tuple[str, int], float]  # (data set, seed) -> mAP
STUDENT = {
    2: 12.706,
    3: 4.303,
    4: 3.182,
    6: 2.571,
    8: 2.365,
    12: 2.201,
}  # number of differences -> t of a 95 % interval


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """Returns a table in Markdown."""
    rows = [list(head), *map(list, lines)]
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def spread(values: list[float]) -> str:
    """Returns the mean, with the standard deviation of several values."""
    mean = f"{statistics.fmean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def interval(differences: list[float]) -> tuple[float, float, float]:
    """Returns the mean of some differences and the ends of its 95 % interval (Student's t)."""
    mean = statistics.fmean(differences)
    half = STUDENT[len(differences)] * statistics.stdev(differences) / len(differences) ** 0.5
    return mean, mean - half, mean + half


def maps(rows: Rows, stage: str, recipe: str) -> Maps:
    """Returns the mAP of the runs of a recipe."""
    found = (row for row in rows if (row["stage"], row["recipe"]) == (stage, recipe))
    return {(row["data"], int(row["seed"])): 100 * float(row["AP"]) for row in found}


def whole_seeds(sets: tuple[str, ...], *runs: Maps) -> list[int]:
    """Returns the seeds with which each recipe has a run on each data set."""
    return sorted(seed for seed in {seed for _, seed in runs[0]} if all((d, seed) in m for m in runs for d in sets))


def differences(sets: tuple[str, ...], ours: Maps, theirs: Maps) -> list[list[float]]:
    """Returns how much higher the mAP of `ours` is: for each data set the differences of the whole seeds."""
    seeds = whole_seeds(sets, ours, theirs)
    return [[ours[name, seed] - theirs[name, seed] for seed in seeds] for name in sets]


def choice(rows: Rows, recipes: Iterable[str]) -> str:
    """Returns the table of the settings from which one was chosen; "-": not measured."""
    found = {recipe: maps(rows, "choose", recipe) for recipe in recipes}
    runs = sorted({run for values in found.values() for run in values})
    lines = [
        [recipe, *(f"{values[run]:.1f}" if run in values else "-" for run in runs)] for recipe, values in found.items()
    ]
    return table(["setting", *(f"{name}, seed {seed}" for name, seed in runs)], lines)


def comparison(rows: Rows, stage: str, sets: tuple[str, ...], recipes: Iterable[str]) -> str:
    """Returns the mAP of `new` and of other recipes on each data set, over the seeds that have all sets, and differences.

    The first interval counts each pair of runs as independent, the second one the mean of each data set.
    """
    ours, lines = maps(rows, stage, "new"), []
    for recipe in ("new", *recipes):
        theirs = maps(rows, stage, recipe)
        if not (seeds := whole_seeds(sets, theirs, ours)):
            continue
        values = [[theirs[name, seed] for seed in seeds] for name in sets]
        cells = [recipe, ", ".join(map(str, seeds)), *map(spread, values), f"{statistics.fmean(sum(values, [])):.1f}"]
        if recipe != "new":
            by_set = differences(sets, ours, theirs)
            both = (interval(sum(by_set, [])), interval([statistics.fmean(some) for some in by_set]))
            cells += ["{:+.1f} [{:+.1f}, {:+.1f}]".format(*ends) for ends in both]
        lines.append(cells + [""] * (len(sets) + 5 - len(cells)))
    head = ["recipe", "seeds", *sets, "mean", "new higher by: pairs", "data sets"]
    return table(head, lines)


def summary(rows: Rows) -> str:
    """Returns a table in Markdown: mAP50-95 of the last epoch in points, mean and standard deviation over seeds."""
    lines = ["| stage | data set | input size | epochs | recipe | seeds | mAP50-95 |", "|---|---|---|---|---|---|---|"]
    names = ("stage", "data", "image_size", "epochs", "recipe")
    for key in dict.fromkeys(tuple(row[name] for name in names) for row in rows):
        maps = [100 * float(row["AP"]) for row in rows if tuple(row[name] for name in names) == key]
        spread = f" ± {statistics.stdev(maps):.1f}" if len(maps) > 1 else ""
        lines.append(f"| {' | '.join(key)} | {len(maps)} | {statistics.fmean(maps):.1f}{spread} |")
    return "\n".join(lines)
