"""Writes the page of benchmarks.small_data from its CSV files: python -m benchmarks.small_data_page [results=FOLDER]

benchmarks/results/small_data.md holds a table per question and stage, small_data.png the mAP over CPU minutes.
"""

import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks import small_data_recipes as tables
from benchmarks.small_data import key_of, read
from benchmarks.table import RESULTS
from utils.config import override, show

REFERENCE = "shipped"
LEVEL = 0.95  # of the intervals
PLOTTED = tuple(
    dict.fromkeys((*tables.FINALISTS, "freeze_0", "freeze_all", *tables.FROM_SCRATCH, *tables.PEERS))
)  # and the peers

HEAD = """# Freezing, learning rate and other choices: what they gain on small data

`new` has the defaults of `train.py` since November 23, 2026. `shipped` has the defaults before: 16 images per step instead of 8,
a fifth of the epochs frozen instead of none, rotation up to 5 degrees instead of none, and a learning rate of .001 per step
instead of .0014. YOLOX-nano starts from the COCO weights described in [official.md](official.md).

mAP is mAP50-95 of the last epoch in points: 1 point is .01. The number after ± is the standard deviation over seeds; a mAP
without ± has one seed, except in the tables of the stages, which show means. A difference compares runs with the same seed, so
it can differ from the difference of two means with different seeds; it is computed before rounding. Brackets hold its 95 %
interval. `-` was not measured. coco163 and raccoon_train are split by the seed, so their ± contains the choice of the validation
images."""
REPORT = """## The new defaults on the data sets of the report

320 pixels, 20 epochs (dental_xray: 15), seeds 4, 5 and 6. LibreYOLO starts from the same weights and has its own defaults. "All
pairs" takes every pair of runs as independent. "Data sets" takes only the data sets as independent, so its interval tells more
about another data set. The defaults were chosen partly on images of bccd_test, raccoon and coco163, which may flatter them
there: see "How the defaults were chosen". At 416 pixels and 30 epochs the gain on BCCD is smaller:
[finetune_bccd.md](finetune_bccd.md)."""
CHOICES = """\
Gain of `new` over `shipped` on the data sets used to choose the defaults, at the sizes and epochs of the search (coco337, whose
classes the weights know, is in the next table):"""
KNOWN = """\
The weights know the classes of coco163 and coco337, and were trained on images like these. "Before training" is the mAP of the
weights themselves. Every training lowered the mAP on these images; a lower rate lowered it less. On gray negatives of the
images, which look a little like those of a thermal camera, training with .0005 or .000125 raised it. The default rate of these
runs was .000125 because the weights know all classes. It was chosen on coco337, after the mAP of coco163 before training was
known. Since November 24, 2026 the rate follows the mAP before training ([known_classes.md](known_classes.md)), which gives
.000125 on these images too."""
FREEZING = """## Freezing: mAP, time and memory

The backbone is never frozen, frozen for the first fifth of the epochs, or for the whole run; all other constants are equal.
Freezing saves time and, in most rows, lowers the mAP. It saves memory only on a GPU, if it lasts for the whole run and
`freeze_batch_size` is not above `batch_size`; [docs/constants.md](../../docs/constants.md#what-freezing-is-for) explains when to
use it. Frozen steps have 16 images (`freeze_batch_size=16`) here, others 8, so the differences include the effect of the larger
batch. "Images seen" are training images times epochs; the rows with 1,500 train on only 30 images.

CPU minutes and MiB (the peak of the whole process) are means over the runs: never / a fifth / all. CPU minutes contain the
evaluations, and differ between the computers that were used."""
LENGTHS = """## Other lengths and input sizes

All constants but the learning rate have their new defaults, and the default learning rate is .004. All values are those of
seed 0."""
RATES = """## The learning rate

All other constants have their new defaults. Epochs and input sizes are those of the search. The rate is for 64 images; a step of
8 images has .35 times as much. The weights know the classes of coco337, but not those of the other data sets. Some values have
one seed, so compare neighbors with care."""
CHANGES = """## One change of the new defaults

Each row changes one thing and keeps everything else, also the seed; the cells are the differences in points. Epochs and input
sizes are those of the search. A cell without brackets is one pair of runs, and the intervals of two pairs are unreliable. The
difference of one pair may be chance if it is below three standard deviations over seeds:"""
SCRATCH = """## From scratch, at about equal minutes

No pretrained weights. The trainers have their own defaults, one thread each, and a number of epochs that takes about the same
time. `scratch_new` has the defaults of `train.py`, except `weights=none`. Minutes are those of training without evaluations, but
with the one that Ultralytics makes at its end. CPU minutes depend less on other programs that used the cores at the same time;
they contain all evaluations, in Thaw one after each epoch, so Thaw trained for less time than they show. Minutes far
above CPU minutes mean that other programs slowed the run. The second table has means over the seeds; a pair is one run of each
trainer with the same seed."""
METHOD = """## How it is measured

`python -m benchmarks.small_data data=FOLDER weights=yolox_nano.pth stage=STAGE results=YOURS` measures;
`python -m benchmarks.small_data_page results=YOURS` writes this page from [small_data.csv](small_data.csv), which holds every
run. Without `results=` the runs of this page count as done. `peers=PYTHON` adds the other trainers of the stages `report` and
`peers`: it is the Python of an environment with libreyolo 1.6.0 and ultralytics 8.4.190. The runs from scratch:
`stage=peers only=bccd image_size=224 recipes=ultralytics_yolo11n_scratch epochs=60`, and `recipes=scratch_new_yolox_nano
epochs=75`.

The shipped recipe is scaled to the length of a run: a fifth of the epochs is frozen, a fifth is without augmentation, as in its
original 50 epochs. In the tables of the stages below, each recipe differs from it only in what the column "changes" shows. A
name with parentheses is a function of `benchmarks/small_data_hooks.py`.

A difference is between runs on the same data set with the same seed; its 95 % interval is that of Student's t over all pairs of
data set and seed. In the tables of the stages, "sd" is the standard deviation over seeds, the root of the mean of the variances
on the data sets. "thaw" is the lower mAP of the first two thawed epochs divided by that of the last frozen epoch. Minutes are
those of training without evaluations, CPU minutes those of the whole process; other programs used the cores at the same time,
so that CPU minutes are more reliable. Means are over data sets and seeds.

Choices are made on the data sets marked "choice", the others are used only for the report. Some of them share images: bccd_test
trains on the images of bccd, raccoon_train consists of training images of raccoon, and coco163 of the evaluation images of
coco337."""
HISTORY = """## How the defaults were chosen

1. With one seed, `learning_rate=.008` (`best_rate_4_freeze_0`) was best on bccd and chess. A trial on data of the report showed
   that the network then forgets much of what the weights know: with seed 4 at 320 pixels raccoon fell to 56.7 (`shipped`: 60.4)
   and coco337 to 3.5 (`shipped`: 17.3). So .008 was rejected, and coco337 and `raccoon_train` (120 of the training images of
   raccoon, evaluated on the other 40) became choices. The report on raccoon is therefore not quite independent.
2. The first report had `learning_rate=.002`; its runs are called `best_freeze_0` in the table of the stage.
3. Then .004 was chosen, on the data sets of the choices alone (see "The learning rate"), and the report was repeated with it.
   coco163 was not, because its rate was .0005 in both: the weights know its classes.
4. Last, .000125 was chosen for known classes, and `new` was repeated on coco163; the runs with .0005 are called
   `best_rate_0.25_freeze_0`."""
SOURCES = """## The data sets

In the folder `data=`, each needs the files that `DATA` in `benchmarks/small_data_recipes.py` names. bccd and bccd_test are
[BCCD](https://github.com/Shenggan/BCCD_Dataset) in `bccd/BCCD`, raccoon and raccoon_train
[raccoon](https://github.com/datitran/raccoon_dataset) in `raccoon`, both as they are published; `only=bccd,raccoon` measures
them alone. The others have annotation files in folders of their own. chess ([jsansao/ChessPiecesv23](
https://github.com/jsansao/ChessPiecesv23)), deep_pcb ([tangsanli5201/DeepPCB](https://github.com/tangsanli5201/DeepPCB)),
hemocytometer ([Ahnd6474/Cell-counting](https://github.com/Ahnd6474/Cell-counting)) and dental_xray
([AayushKarna/dental-detection-backend](https://github.com/AayushKarna/dental-detection-backend)) were divided into parts
without nearly equal images, at most 400 of them for training; coco337 and coco163 are subsets of COCO 2017. Which images these
are is not published here, so on these six a repetition has other numbers."""


@dataclass(frozen=True)
class Config:
    results: str = str(RESULTS)  # folder of the CSV files and of the page


class Interval(NamedTuple):
    """A mean and half the width of its interval (NaN for fewer than two values)."""

    mean: float
    half: float
    count: int

    def __str__(self) -> str:
        if not self.count:
            return "-"
        ends = f" [{self.mean - self.half:+.1f}, {self.mean + self.half:+.1f}]" if self.count > 1 else ""
        return f"{self.mean:+.1f}{ends}"


def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """Returns t such that Student's t with these degrees of freedom lies in [-t, t] with the probability `level`.

    With t = sqrt(degrees) * tan(a), the density over the angle a is proportional to cos(a) ** (degrees - 1)."""
    angles = np.linspace(0, np.pi / 2, 200_001)
    density = np.cos(angles) ** (degrees - 1)
    mass = np.cumsum(density[1:] + density[:-1])
    return float(np.sqrt(degrees) * np.tan(np.interp(level, mass / mass[-1], angles[1:])))


def interval(values: Sequence[float]) -> Interval:
    """Returns the mean of differences and its interval."""
    if len(values) < 2:
        return Interval(float(np.mean(values)) if len(values) else np.nan, np.nan, len(values))
    half = t_quantile(len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return Interval(float(np.mean(values)), float(half), len(values))


class Runs:
    """The runs of one stage: `runs[recipe][data, seed]` is a row of the CSV file."""

    def __init__(self, rows: Iterable[dict[str, str]]):
        self.of: dict[str, dict[tuple[str, str], dict[str, str]]] = defaultdict(dict)
        for row in rows:
            if not row["error"]:
                self.of[row["recipe"]][row["data"], row["seed"]] = row

    def data(self) -> list[str]:
        """Returns the names of the data sets that the runs use, in the order of DATA."""
        used = {data for runs in self.of.values() for data, _ in runs}
        return [name for name in tables.DATA if name in used]

    def values(self, recipe: str, column: str, data: str | None = None) -> list[float]:
        """Returns the numbers of a column, of one data set or of all."""
        runs = self.of[recipe].items()
        return [float(row[column]) for (name, _), row in runs if row[column] and data in (None, name)]

    def mean(self, recipe: str, column: str, data: str | None = None) -> float:
        """Returns the mean of `values`, NaN without values."""
        values = self.values(recipe, column, data)
        return float(np.mean(values)) if values else np.nan

    def spread(self, recipe: str) -> float:
        """Returns the standard deviation of mAP over seeds in points, pooled over the data sets; NaN with one seed."""
        maps = [self.values(recipe, "AP", data) for data in self.data()]
        variances = [np.var(values, ddof=1) for values in maps if len(values) > 1]
        return 100 * float(np.sqrt(np.mean(variances))) if variances else np.nan

    def difference(self, recipe: str, data: str | None = None, reference: str = REFERENCE) -> Interval:
        """Returns the paired difference of mAP to the reference in points, on one data set or on all."""
        ours, theirs = self.of[recipe], self.of[reference]
        pairs = [pair for pair in ours if pair in theirs and data in (None, pair[0])]
        return interval([100 * (float(ours[pair]["AP"]) - float(theirs[pair]["AP"])) for pair in pairs])

    def thaw(self, recipe: str) -> float:
        """Returns the mean over runs of the lower mAP of the first two thawed epochs, relative to the last frozen one."""
        names = ("frozen_AP", "thawed_AP_1", "thawed_AP_2")
        rows = [[float(row[name]) for name in names] for row in self.of[recipe].values() if all(map(row.get, names))]
        ratios = [min(first, second) / frozen for frozen, first, second in rows if frozen]
        return float(np.mean(ratios)) if ratios else np.nan


def number(value: float, digits: int = 1) -> str:
    """Returns a number as text, - for NaN."""
    return "-" if np.isnan(value) else f"{value:.{digits}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def recipe_row(runs: Runs, recipe: str) -> list[str]:
    """Returns the cells of a recipe."""
    rows = list(runs.of[recipe].values())
    changed = rows[0]["overrides"]
    maps = [100 * runs.mean(recipe, "AP", data) for data in runs.data()]
    numbers = [number(value) for value in (*maps, float(np.mean(maps)))]
    speed = [runs.mean(recipe, name) for name in ("images_per_second", "minutes", "cpu_minutes")]
    seen, memory = (f"{runs.mean(recipe, name):,.0f}" for name in ("images_seen", "peak_MiB"))
    difference = "-" if recipe == REFERENCE else str(runs.difference(recipe))
    spread, thaw = number(runs.spread(recipe)), number(runs.thaw(recipe), 2)
    left = [recipe, f"`{changed}`" if changed else "", str(len(rows))]
    return [*left, *numbers, spread, difference, thaw, seen, *map(number, speed), memory]


def question_tables(runs: Runs) -> list[str]:
    """Returns the heading and the table of each question with at least one run; each begins with the shipped recipe."""
    left, right = ["recipe", "changes", "runs"], ["images seen", "images/s", "minutes", "CPU minutes", "MiB"]
    head = [*left, *runs.data(), "mean", "sd", "difference to shipped", "thaw", *right]
    known, parts = tables.recipes(), []
    for question in sorted({recipe.question for recipe in known.values()}):
        names = [name for name in known if known[name].question == question and runs.of.get(name)]
        names = [name for name in names if name != REFERENCE]
        if names:
            rows = [recipe_row(runs, name) for name in [REFERENCE, *names] if runs.of.get(name)]
            parts += [f"### {question}", table(head, rows)]
    return parts


def maps_text(values: Sequence[float]) -> str:
    """Returns the mean of mAP values in points, with their standard deviation if there are several."""
    if not values:
        return "-"
    return f"{100 * np.mean(values):.1f}" + (f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def report_table(runs: Runs) -> str:
    """Returns the finalists and the other trainers on each data set: means, standard deviations and differences."""
    before, after = tables.FINALISTS
    peers = [name for name in tables.PEERS if runs.of.get(name)]
    head = ["data set", before, after, f"{after} - {before}"]
    rows = []
    for data in [name for name in runs.data() if runs.values(after, "AP", name)]:
        cells = [maps_text(runs.values(name, "AP", data)) for name in (before, after)]
        cells.append(str(runs.difference(after, data)))
        for peer in peers:
            cells += [maps_text(runs.values(peer, "AP", data)), str(runs.difference(after, data, peer))]
        rows.append([data, *cells])
    sets = [data for data in runs.data() if runs.values(after, "AP", data)]
    kinds = {"all pairs": runs.difference, "data sets": partial(between_sets, runs, sets)}
    if known := [data for data in sets if runs.values("untrained", "AP", data)]:
        rest = Runs(row for of in runs.of.values() for row in of.values() if row["data"] not in known)
        kinds[f"all pairs without {', '.join(known)}"] = rest.difference
    for name, of in kinds.items():
        total = [str(of(after, None, other)) for other in (before, *peers)]
        rows.append([name, "", "", total[0], *(cell for text in total[1:] for cell in ("", text))])
    return table([*head, *(cell for name in peers for cell in (name, f"{after} - {name}"))], rows)


def choices_text(runs: Runs) -> str:
    """Returns a sentence with the gain of the new defaults on the data sets of the choices; empty without pairs of runs."""
    gains = {data: runs.difference(tables.NEVER, data) for data in runs.data()}
    found = [f"{data} {of} ({of.count} seed{'s' * (of.count > 1)})" for data, of in gains.items() if of.count]
    return f"{CHOICES} {', '.join(found)}." if found else ""


def between_sets(runs: Runs, sets: Sequence[str], recipe: str, _, reference: str) -> Interval:
    """Returns the mean over data sets of the paired difference, with its interval over the data sets."""
    means = [runs.difference(recipe, data, reference) for data in sets]
    return interval([found.mean for found in means if found.count])


def known_table(runs: dict[str, Runs]) -> str:
    """Returns the mAP before and after training, where the weights know the classes already."""
    rows = []
    for stage, found in runs.items():
        for data, (kind, names) in itertools.product(found.data(), tables.KNOWN.items()):
            first, *others = [maps_text(found.values(name, "AP", data)) for name in names]
            if first != "-" and set(others) != {"-"}:
                rows.append([f"{data}{kind}", stage, first, *others])
    head = ["data set", "stage", "before training", *tables.KNOWN_HEAD]
    return table(head, rows) if rows else ""


def seeds_text(runs: Runs) -> str:
    """Returns three standard deviations over seeds of the new defaults in points, for each data set with several seeds."""
    maps = {data: runs.values(tables.NEVER, "AP", data) for data in runs.data()}
    return ", ".join(f"{300 * np.std(of, ddof=1):.1f} on {data}" for data, of in maps.items() if len(of) > 1)


def changes_table(runs: Runs) -> str:
    """Returns what each single change of the new defaults gains on each data set, ordered by question."""
    changes = {name: change for name, change in tables.CHANGES.items() if runs.of.get(name)}
    differences = {name: partial(runs.difference, name, reference=changes[name].reference) for name in changes}
    differences = {name: of for name, of in differences.items() if of().count}
    sets = [data for data in runs.data() if any(of(data).count for of in differences.values())]
    ordered = sorted(differences, key=lambda name: changes[name].question)
    lines = [[changes[name].text, *(str(differences[name](data)) for data in (*sets, None))] for name in ordered]
    note = (
        "\n\n\\* compared with a frozen fifth of the epochs, which is not the default"
        if any("*" in a for a, *_ in lines)
        else ""
    )
    return table(["change", *sets, "all pairs"], lines) + note if sets else ""


def length_table(rows: list[dict[str, str]]) -> str:
    """Returns the mAP by learning rate, input size and epochs, on the data sets with several of them, with seed 0."""
    groups: dict[tuple[str, int, int], dict[str, str]] = defaultdict(dict)  # -> data set -> mAP
    for row in rows:
        if row["recipe"] in tables.LENGTHS and row["seed"] == "0" and not row["error"]:
            rate = show(tables.recipes()[row["recipe"]].changes["learning_rate"])
            group = groups[rate, int(row["image_size"]), int(row["epochs"])]
            group[row["data"]] = maps_text([float(row["AP"])])
    sets = [name for name in tables.DATA if sum(name in group for group in groups.values()) > 2]
    lines = [
        [*map(str, kind), *(group.get(name, "-") for name in sets)]
        for kind, group in sorted(groups.items())
        if any(name in group for name in sets)
    ]
    return table(["`learning_rate`", "input size", "epochs", *sets], lines) if lines else ""


def rate_table(runs: Runs) -> str:
    """Returns the mAP by learning rate: means and standard deviations over seeds."""
    known = {tables.recipes()[name].changes["learning_rate"]: name for name in tables.RATES if runs.of.get(name)}
    sets = [name for name in runs.data() if sum(bool(runs.values(recipe, "AP", name)) for recipe in known.values()) > 1]
    lines = [
        [show(rate), *(maps_text(runs.values(known[rate], "AP", name)) for name in sets)] for rate in sorted(known)
    ]
    return table(["`learning_rate`", *sets], lines) if sets else ""


def freezing_table(stages: dict[str, Runs]) -> str:
    """Returns the mAP never frozen, frozen for a fifth of the epochs and for all, with the paired differences."""
    rows = []
    for (never, frozen), runs in itertools.product(tables.FROZEN.items(), stages.values()):
        firsts = {data: row for (data, _), row in runs.of[never].items()}
        for data, row in firsts.items():
            if not any(runs.values(recipe, "AP", data) for recipe in frozen):
                continue
            about = [data, row["epochs"], show(tables.recipes()[never].changes["learning_rate"])]
            maps = [maps_text(runs.values(recipe, "AP", data)) for recipe in (never, *frozen)]
            differences = [str(runs.difference(recipe, data, never)) for recipe in frozen]
            of_phases = partial(phases, runs, (never, *frozen), data)
            cost = [of_phases("cpu_minutes", 1), of_phases("peak_MiB", 0)]
            rows.append([*about, f"{int(row['images_seen']):,}", *maps, *differences, *cost])
    head = ["data set", "epochs", "`learning_rate`", "images seen", "never frozen", "for a fifth", "for all"]
    return table([*head, "a fifth - never", "all - never", "CPU minutes", "MiB"], rows) if rows else ""


def phases(runs: Runs, recipes: Sequence[str], data: str, column: str, digits: int) -> str:
    """Returns the means of a column for several recipes, divided by slashes."""
    return " / ".join(number(runs.mean(name, column, data), digits) for name in recipes)


def scratch_table(rows: list[dict[str, str]]) -> str:
    """Returns the runs from scratch, ours next to those of another trainer on the same data, with the same size and seed."""
    places = ("data", "image_size", "seed")
    peers = [name for name in tables.PEERS if name.endswith("_scratch")]
    shared = {tuple(row[name] for name in places) for row in rows if row["recipe"] in peers and not row["error"]}
    found = [row for row in rows if row["recipe"] in (*peers, *tables.FROM_SCRATCH) and not row["error"]]
    found = sorted((row for row in found if tuple(row[name] for name in places) in shared), key=itemgetter(*places))
    head = ["data set", "input size", "seed", "recipe", "epochs", "images seen", "minutes", "CPU minutes"]
    cells = [
        [
            *(row[name] for name in (*places, "recipe", "epochs")),
            f"{int(row['images_seen']):,}",
            *(f"{float(row[name]):.1f}" for name in ("minutes", "cpu_minutes")),
            *(f"{100 * float(row[name]):.1f}" for name in ("AP", "AP50")),
        ]
        for row in found
    ]
    if not {row["recipe"] for row in found} & set(tables.FROM_SCRATCH):
        return ""
    return "\n\n".join([table([*head, "mAP50-95", "mAP50"], cells), scratch_means(found, peers)]).rstrip()


def scratch_means(rows: list[dict[str, str]], peers: Sequence[str]) -> str:
    """Returns means and paired differences to other trainers, for each input size and recipe with several seeds."""
    lines = []
    for size in sorted({row["image_size"] for row in rows}, key=int):
        runs = Runs(row for row in rows if row["image_size"] == size)
        for data, name, peer in itertools.product(runs.data(), tables.FROM_SCRATCH, peers):
            found = runs.difference(name, data, peer)
            if found.count > 1:
                maps = [maps_text(runs.values(recipe, "AP", data)) for recipe in (name, peer)]
                minutes = [number(runs.mean(recipe, "cpu_minutes", data)) for recipe in (name, peer)]
                lines.append([data, size, name, peer, str(found.count), " / ".join(minutes), *maps, str(found)])
    head = ["data set", "input size", "recipe", "other trainer", "pairs", "CPU minutes of both"]
    return table([*head, "mAP50-95", "its mAP50-95", "difference"], lines) if lines else ""


def set_table(runs: Runs) -> str:
    """Returns the differences to the shipped recipe on each data set, with intervals over seeds."""
    names = [name for name in runs.of if name != REFERENCE]
    rows = [[name, *(str(runs.difference(name, data)) for data in runs.data())] for name in names]
    return table(["difference to shipped, points", *runs.data()], rows)


def data_table() -> str:
    """Returns the table of data sets."""
    rows = [
        [
            name,
            "choice" if data.choice else "report",
            *map(str, data.images),
            str(data.side),
            "{} epochs, {} px".format(*data.screen),
        ]
        for name, data in tables.DATA.items()
    ]
    head = ["data set", "used for", "training images", "evaluated images", "median side of a box, image of 640 px"]
    return table([*head, "length of a run in the search"], rows)


def stage_parts(stage: str, rows: list[dict[str, str]]) -> list[str]:
    """Returns the headings and tables of a stage."""
    runs = Runs(rows)
    known = [row for row in rows if row["recipe"] == REFERENCE] or rows
    sizes = sorted({f"{row['epochs']} epochs at {row['image_size']} px" for row in known})
    where = sorted({row["machine"] for row in rows})
    seeds = sorted({int(row["seed"]) for row in rows})
    text = f"Seeds {', '.join(map(str, seeds))}; {', '.join(sizes)}. Measured on {'; '.join(where)}."
    parts = [f"## Stage {stage}", text, *question_tables(runs)]
    if len(seeds) > 1:
        parts += ["### Each data set", set_table(runs)]
    done = {key_of(row) for row in rows if not row["error"]}
    last = {key_of(row): row for row in rows if key_of(row) not in done}.values()  # a failed run is tried again
    failed = [f"- {row['data']}, seed {row['seed']}, {row['recipe']}: {row['error']}" for row in last]
    return parts + (["### Runs that failed", "\n".join(failed)] if failed else [])


def order(stage: str) -> tuple[int, str]:
    """Returns the place of a stage on the page: the report first. A stage with own epochs or size comes after its own."""
    return ("report", "confirm", "peers", "screen").index(stage.split()[0]), stage


def draw(rows: list[dict[str, str]], curves: list[dict[str, str]], path: Path) -> None:
    """Draws mAP over CPU minutes in the first stage with curves: a panel per data set, means over seeds.

    The minutes of a curve are stretched to the CPU minutes of its run, because other programs may have slowed it down."""
    stage = min((row["stage"] for row in curves), key=order)
    used = {key_of(row): float(row["cpu_minutes"] or "nan") / float(row["minutes"]) for row in rows if not row["error"]}
    curves = [row for row in curves if row["stage"] == stage]
    recipes = [name for name in PLOTTED if any(row["recipe"] == name for row in curves)]
    main = tables.FINALISTS[1] if tables.FINALISTS[1] in recipes else recipes[0]
    names = [name for name in tables.DATA if (name, main) in {(row["data"], row["recipe"]) for row in curves}]
    columns = min(len(names), 3)
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(4 * columns, 3.2 * lines), dpi=110, layout="constrained")
    for panel, data in enumerate(names, 1):
        axes = figure.add_subplot(lines, columns, panel)
        for place, recipe in enumerate(recipes):
            found = [row for row in curves if (row["data"], row["recipe"]) == (data, recipe)]
            if found:
                minutes = np.mean([used[key_of(row)] * np.array(row["minutes"].split(), float) for row in found], 0)
                maps = np.mean([np.array(row["AP"].split(), float) for row in found], 0)
                axes.plot(minutes, 100 * maps, label=recipe, color=f"C{place}", marker="" if len(maps) > 1 else "o")
        axes.set(title=data, xlabel="CPU minutes", ylabel="mAP50-95, points", xlim=(0, None), ylim=(0, None))
        axes.grid(color="#d9dde1", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(fontsize=8, title=f"stage {stage}")
    figure.savefig(path)


def write(folder: Path) -> Path | None:
    """Writes small_data.md and small_data.png, and returns the path of the page; None without runs."""
    rows, curves = read(folder / "small_data.csv"), read(folder / "small_data_curves.csv")
    if not rows:
        return None
    names = sorted({row["stage"] for row in rows}, key=order)
    stages = {name: [row for row in rows if row["stage"] == name] for name in names}
    runs = {name: Runs(stage) for name, stage in stages.items()}
    parts = [HEAD]
    if "report" in runs:
        parts += [REPORT, report_table(runs["report"])]
    if "screen" in runs and (gains := choices_text(runs["screen"])):
        parts.append(gains)
    if untrained := known_table(runs):
        parts += [KNOWN, untrained]
    if curves:
        draw(rows, curves, folder / "small_data.png")
        parts.append("![mAP over CPU minutes](small_data.png)")
    rates = rate_table(runs["screen"]) if "screen" in runs else ""
    made = (
        (FREEZING, freezing_table(runs)),
        (RATES, rates),
        (f"{CHANGES} {seeds_text(runs['screen'])}. No change was adopted.", changes_table(runs["screen"]))
        if "screen" in runs
        else ("", ""),
        (LENGTHS, length_table(rows)),
        (SCRATCH, scratch_table(rows)),
    )
    for heading, part in made:
        parts += [heading, part] if part else []
    parts += [METHOD, *([HISTORY] if folder.resolve() == RESULTS.resolve() else []), SOURCES, data_table()]
    for name, stage in stages.items():
        parts += stage_parts(name, stage)
    page = folder / "small_data.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


if __name__ == "__main__":
    print(write(Path(override(Config(), sys.argv[1:]).results)))
