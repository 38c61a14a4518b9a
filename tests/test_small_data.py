"""benchmarks/small_data.py: runs have one row each, failures are rows too, and the hooks change what they say."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from small import SMALL, TINY_WEIGHTS, only_run, train_quietly
from small import config as small_config

import nets
import train
from benchmarks import small_data, small_data_hooks, small_data_page, small_data_peers
from benchmarks import small_data_recipes as tables
from benchmarks.small_data import Config, plan, read
from benchmarks.small_data_recipes import DataSet, Recipe
from benchmarks.small_data_run import Job, attempt, cells, in_own_process, train_once
from datasets.scan import clipped_boxes
from datasets.sources import read_train_and_val
from engine.optimizer import EMA
from engine.schedule import CHOSEN, Plan, Schedule
from utils import checkpoint
from utils.boxes import area
from utils.config import ConfigError


def broken() -> dict:
    """A hook that fails when the run begins."""
    raise ValueError("no such\nthing")


SETTINGS = {name: SMALL[name] for name in ("model", "learning_rate", "batch_size", "freeze_batch_size")}
TABLE = {
    "shipped": Recipe("0", SETTINGS),
    "broken": Recipe("1", SETTINGS, ((broken,),)),
    "slow": Recipe("1", {**SETTINGS, "freeze": 0, "learning_rate": 0.001}),
}


def finished(job: Job) -> dict:
    """Applies the hooks, and returns the result of a run without training."""
    with small_data_hooks.hooked(job.hooks):
        row = {"AP": "0.25", "AP50": "0.5", "seconds": "30", "images_per_second": "2"}
        return cells([row] * 2, job.constants["freeze_epochs"])


@pytest.fixture
def tiny_table(monkeypatch, demo_images):
    """Three recipes and one data set of drawn images, for all stages."""
    monkeypatch.setattr(tables, "RECIPES", TABLE)
    monkeypatch.setattr(tables, "DATA", {"drawn": DataSet(True, "train.txt", "val.txt", (9, 5), 10, (4, 64))})
    stage = tables.STAGES["screen"]._replace(recipes=tuple(TABLE))
    monkeypatch.setattr(tables, "STAGES", {"screen": stage})
    return lambda output, **changes: Config(str(demo_images), str(TINY_WEIGHTS), results=str(output), **changes)


def test_each_run_has_one_row_and_a_failed_one_does_not_end_the_rest(tiny_table, tmp_path, capfd):
    jobs = []

    def measure(job: Job) -> dict:  # the first run is real
        jobs.append(job)
        return attempt(job, train_once if len(jobs) == 1 else finished)

    small_data.main(tiny_table(tmp_path), measure)
    rows = read(tmp_path / "small_data.csv")
    assert [row["recipe"] for row in rows] == ["shipped", "broken", "slow"] and len(jobs) == 3
    assert [row["error"] for row in rows] == ["", "ValueError: no such thing", ""]
    assert [row["overrides"].split()[-1] for row in rows] == ["freeze_batch_size=6", "broken()", "freeze=0"]
    first, _, last = rows
    assert first["epochs"] == "4" and first["images_seen"] == "36" and first["image_size"] == "64"
    curves = read(tmp_path / "small_data_curves.csv")
    assert [curve["recipe"] for curve in curves] == ["shipped", "slow"]
    maps = curves[0]["AP"].split()
    assert len(maps) == 4 == len(curves[0]["minutes"].split()) and float(first["AP"]) > 0
    names = ("frozen_AP", "thawed_AP_1", "thawed_AP_2", "AP", "best_AP")
    assert [first[name] for name in names] == [*maps, max(maps)][:3] + [maps[-1], max(maps)]
    assert last["frozen_AP"] == last["thawed_AP_1"] == ""  # it was never frozen
    before = (tmp_path / "small_data.csv").read_bytes()
    small_data.main(tiny_table(tmp_path, recipes=("shipped", "slow")), measure)
    assert len(jobs) == 3 and (tmp_path / "small_data.csv").read_bytes() == before
    small_data.main(tiny_table(tmp_path, seeds=(0, 1), recipes=("slow",)), measure)
    assert len(jobs) == 4 and jobs[-1].constants["seed"] == 1
    failure, page = "ValueError: no such thing", tmp_path / "small_data.md"
    assert failure in page.read_text(encoding="utf-8")
    small_data.main(tiny_table(tmp_path, recipes=("broken",)), lambda job: finished(job._replace(hooks=())))
    assert failure not in page.read_text(encoding="utf-8")  # a failed run was tried again
    capfd.readouterr()


def test_several_runs_are_measured_at_the_same_time(tiny_table, tmp_path):
    together = threading.Barrier(2, timeout=20)

    def measure(job: Job) -> dict:
        if (broken,) not in job.hooks:
            together.wait()
        return attempt(job, finished)

    small_data.main(tiny_table(tmp_path, parallel=3), measure)
    rows = read(tmp_path / "small_data.csv")
    assert {row["recipe"]: row["error"] for row in rows} == {
        **{"shipped": "", "slow": ""},
        "broken": "ValueError: no such thing",
    }


def test_no_run_begins_after_the_given_minutes(tiny_table, tmp_path, monkeypatch, capsys):
    clock = iter([0.0, 0.0, 61.0, 122.0])
    monkeypatch.setattr(small_data.time, "monotonic", lambda: next(clock))
    small_data.main(tiny_table(tmp_path, minutes=1), lambda job: {"error": "none"})
    assert len(read(tmp_path / "small_data.csv")) == 1
    assert "2 runs are left" in capsys.readouterr().out


def test_a_signal_ends_the_runs_at_once():
    with pytest.raises(SystemExit), small_data.ended_with_this_block():
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        small_data_peers.RUNNING.add(process)
        sys.exit("stopped")
    small_data_peers.RUNNING.discard(process)
    assert process.wait(20) == -signal.SIGTERM


def test_numbers_of_epochs_are_fractions_unless_a_recipe_sets_them():
    base = {"epochs": 20, **tables.SHIPPED}
    names = ("freeze_epochs", "no_aug_epochs", "warmup_epochs")

    def epochs(**changes) -> list[float]:
        result = tables.constants(base, changes)
        train.checked(train.Config(**result))
        return [result[name] for name in names]

    assert epochs() == [4, 4, 1]
    assert epochs(epochs=50) == [10, 10, 1]  # the defaults of train.py before the benchmark
    assert epochs(freeze_epochs=10, no_aug_epochs=7) == [10, 7, 1]
    assert epochs(freeze=1.0, no_aug=0, warmup=0.1) == [20, 0, 2]


def test_every_recipe_is_a_training_of_its_own(tmp_path):
    """All recipes have constants that train.py takes; no two of them are the same run."""
    weights = tmp_path / "yolox_nano.pth"
    weights.touch()
    (tmp_path / tables.BCCD).mkdir(parents=True)
    for name in ("train.txt", "val.txt"):
        (tmp_path / tables.BCCD / name).touch()
    recipes = tuple(tables.recipes())
    cfg = Config(str(tmp_path), str(weights), only=("bccd",), recipes=recipes, peers=sys.executable)
    runs = list(plan(small_data.checked(cfg)))
    assert len({repr(job) for _, job in runs}) == len(runs) == len(recipes)
    for _, job in runs:
        train.checked(train.Config(**job.constants))
    with pytest.raises(ConfigError, match="recipes=freze_0: choose from shipped"):
        small_data.checked(Config(str(tmp_path), recipes=("freze_0",)))


def test_a_missing_file_is_named_before_the_first_run(tiny_table, demo_images, tmp_path, monkeypatch):
    """Paths become absolute, because other trainers run in a folder of their own; the folder of results is made."""
    cfg = tiny_table(tmp_path / "new" / "folder", peers=os.path.relpath(sys.executable), seeds=(1,))
    monkeypatch.chdir(demo_images)
    cfg = small_data.replace(cfg, peers=os.path.relpath(sys.executable))
    made = small_data.checked(small_data.replace(cfg, data="."))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=re.escape("data=.: missing ./train.txt, ./val.txt; see")):
        small_data.checked(small_data.replace(cfg, data="."))
    monkeypatch.chdir(demo_images)
    assert Path(cfg.results).is_dir() and (made.data, made.peers) == (str(demo_images), sys.executable)
    for changes, message in (
        ({"data": str(tmp_path)}, f"missing {tmp_path}/train.txt, {tmp_path}/val.txt; see the section"),
        ({"data": None}, "data=none: give data=FOLDER; see"),
        ({"weights": "nano.pth"}, "weights=nano.pth: not found"),
        (
            {"weights": "coco", "recipes": ("libreyolo_yolox_nano",)},
            "give weights=FILE of yolox_nano, from which libreyolo_yolox_nano starts too",
        ),
        ({"peers": "no_python"}, "peers=no_python: not found"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            small_data.checked(small_data.replace(cfg, **changes))


def test_shipped_names_every_constant_of_the_optimization_and_the_augmentation():
    """Its numbers are those of the defaults before this benchmark. So a change of a default changes no row of the results."""
    ours = tables.constants({"epochs": 50, **tables.SHIPPED}, {})
    assert not {name for name in CHOSEN if ours[name] is None}
    names = list(vars(train.Config()))
    recipe = names[names.index("mosaic") : names.index("amp")] + ["freeze_batch_size", "repeat"]
    assert set(recipe) <= set(ours)
    old = {"freeze_epochs": 10, "no_aug_epochs": 10, "warmup_epochs": 1, "weight_decay": 0.05}
    assert {name: ours[name] for name in old} == old
    assert (ours["learning_rate"], ours["min_learning_rate"]) == (4e-3, 2e-4)


def test_a_run_that_fails_in_its_own_process_is_an_error(tmp_path):
    row = {"AP": "0.5", "AP50": "0.7", "seconds": "30", "images_per_second": "2"}
    rows = [{**row, "AP": str(value)} for value in (0.1, 0.2, 0.4, 0.3)]
    result = cells(rows, 2)
    assert (result["frozen_AP"], result["thawed_AP_1"], result["thawed_AP_2"]) == (0.2, 0.4, 0.3)
    assert (result["AP"], result["best_AP"], result["minutes"]) == (0.3, 0.4, 2.0)
    assert cells(rows, 4)["frozen_AP"] is cells(rows, 0)["frozen_AP"] is None


def end(job: Job) -> dict:
    """Work that ends the process."""
    os._exit(job.constants["code"])


@pytest.mark.slow  # a new process imports torch
def test_a_process_that_ends_is_an_error():
    assert in_own_process(Job({"code": 7}), end) == {"error": "the process ended with exit code 7"}


def weights_after(demo_images, folder: Path, *hooks, **changes) -> tuple[dict, dict]:
    """Returns the weights before and after a short training with hooks."""
    with small_data_hooks.hooked(hooks):
        train_quietly(small_config(demo_images, folder, **{"epochs": 2, "no_aug_epochs": 0, **changes}))
    return checkpoint.load(TINY_WEIGHTS)["model"], checkpoint.load(only_run(folder) / "last.pt")["resume"]["model"]


def changed(before: dict, after: dict, part: str) -> bool:
    return any(not torch.equal(before[name], after[name]) for name in before if part in name and "batches" not in name)


def test_hooks_change_the_training_and_leave_train_as_it_was(demo_images, tmp_path):
    names = ("build_model", "build_optimizer", "Schedule", "validate", "build_train_set", "choose")
    originals = [getattr(train, name) for name in names]
    frozen = {"freeze_epochs": 0, "epochs": 1}
    before, after = weights_after(demo_images, tmp_path / "a", **frozen)
    assert all(changed(before, after, part) for part in ("backbone.stem", "backbone.downs", "running_mean", "head"))
    rate = (small_data_hooks.backbone_rate, 0.0)
    before, after = weights_after(demo_images, tmp_path / "b", rate, (small_data_hooks.no_clipping,), **frozen)
    weights = [name for name in before if name.startswith("backbone") and name.endswith(("weight", "bias"))]
    assert weights and all(torch.equal(before[name], after[name]) for name in weights)
    assert changed(before, after, "neck") and changed(before, after, "backbone.stem.0.bn.running_mean")
    norms, stem = (small_data_hooks.eval_norms,), (small_data_hooks.frozen_stem,)
    before, after = weights_after(demo_images, tmp_path / "c", norms, **frozen)
    assert changed(before, after, "backbone.stem.0.conv") and changed(before, after, "neck.0.bn.running_mean")
    assert not changed(before, after, "backbone.stem.0.bn.running") and changed(
        before, after, "backbone.stem.0.bn.weight"
    )
    before, after = weights_after(demo_images, tmp_path / "d", stem, (small_data_hooks.new_statistics, 4))
    assert not changed(before, after, "backbone.stem") and changed(before, after, "backbone.downs.0.bn.running_mean")
    assert [getattr(train, name) for name in names] == originals


def test_few_images_are_spread_over_the_list(demo_images):
    cfg = small_config(demo_images, demo_images)
    everything, val = train.read_data(cfg, print)
    with small_data_hooks.hooked([(small_data_hooks.few_images, 3)]):
        few, same = train.read_data(cfg, print)
    last = len(everything) - 1
    assert [few.path(i) for i in range(3)] == [everything.path(i) for i in (0, last // 2, last)]
    assert same.digest() == val.digest() and train.read_data(cfg, print)[0].digest() == everything.digest()


def test_statistics_are_the_means_over_the_batches():
    model = nets.build("tiny_n", 2)
    batches = [torch.randint(0, 255, (4, 3, 64, 64), dtype=torch.uint8) for _ in range(3)]
    loader = [type("Batch", (), {"images": images, "to": lambda self, device: self})() for images in batches]
    inputs = []
    model.backbone.stem[0].conv.register_forward_hook(lambda *args: inputs.append(args[2]))
    small_data_hooks.estimate_statistics(model, loader, frozen=True)
    assert not model.backbone.stem[0].bn.running_mean.any() and model.neck[0].bn.running_mean.any()
    small_data_hooks.estimate_statistics(model, loader, frozen=False)
    norm = model.backbone.stem[0].bn
    mean = torch.stack([x.mean((0, 2, 3)) for x in inputs[3:]]).mean(0)
    torch.testing.assert_close(norm.running_mean, mean)
    assert norm.momentum == 0.03 and not norm.training


def test_schedules_of_the_hooks():
    plan = Plan.of(160, 20, 5, 32, 16, 1)
    plain = Schedule(plan, "cosine", 4e-3, 2e-4, 1.0, 4)
    again = small_data_hooks.second_warmup(2.0)["Schedule"](Schedule)(plan, "cosine", 4e-3, 2e-4, 1.0, 4)
    for epoch, factor in ((0.5, 1), (4.9, 1), (5, 0), (6, 0.25), (7, 1), (15, 1)):
        assert again.at(epoch) == pytest.approx(plain.at(epoch) * factor)
    linear = small_data_hooks.linear_rate()["Schedule"](Schedule)(plan, "cosine", 4e-3, 2e-4, 1.0, 4, 0.5)
    assert [linear(step) for step in (0, 20, 100)] == [plain(step) for step in (0, 20, 100)]
    root = small_data_hooks.rescaled_rate(0.5)["Schedule"](Schedule)(plan, "cosine", 4e-3, 2e-4, 1.0, 4)
    assert root(100) == plain(100)  # 16 images per step
    assert root(20) == pytest.approx(plain(20) / 2**0.5)  # 32
    late = small_data_hooks.cosine_to_the_end()["Schedule"](Schedule)(plan, "cosine", 4e-3, 2e-4, 1.0, 4)
    assert late.at(0.5) == plain.at(0.5) and late.at(16) > plain.at(16) == plain.at(20) == late.at(20)


def test_a_longer_average():
    model = torch.nn.Linear(1, 1)
    plain, longer = EMA(model, 400), small_data_hooks.ema_length(2.0)["EMA"](EMA)(model, 400)
    assert (plain.decay, longer.decay) == pytest.approx((0.95, 0.975))


def test_hooks_on_the_loss(demo_images, tmp_path):
    """No box has an L1 loss before the no-augmentation epochs, unless the hook turns it on. Weights add up in the total."""
    with small_data_hooks.hooked([(small_data_hooks.l1_always,)]):
        train_quietly(small_config(demo_images, tmp_path, epochs=2, no_aug_epochs=1))
    lines = (only_run(tmp_path) / "log.csv").read_text().splitlines()
    column = lines[0].split(",").index("loss_l1")
    assert all(float(line.split(",")[column]) > 0 for line in lines[1:]) and len(lines) == 3

    found = []
    wrap = small_data_hooks.loss_weight("box", 2.0)["fit_one_epoch"]
    wrap(lambda _, criterion: found.append(criterion()))(None, lambda: {"total": 5.0, "box": 3.0, "class": 2.0})
    assert found == [{"total": 8.0, "box": 3.0, "class": 2.0}]


def test_gray_negatives_for_training_and_validation(demo_images, tmp_path):
    cfg = small_config(demo_images, tmp_path)
    train_data, val_data = train.read_data(cfg, print)
    with small_data_hooks.hooked([(small_data_hooks.gray_negatives,)]):
        datasets = [train.DetectionDataset(data, "corner") for data in (train_data, val_data)]
    for dataset in datasets:
        gray = cv2.cvtColor(cv2.imread(str(dataset.annotations.path(0))), cv2.COLOR_BGR2GRAY)
        assert np.array_equal(dataset.read(0).image, np.repeat(255 - gray[..., None], 3, 2))
    assert train.DetectionDataset is not type(datasets[0])


def test_vertical_flips_move_the_boxes_with_the_image():
    image = np.zeros((64, 96, 3), np.uint8)
    image[3:21, 2:20] = 255
    kept, boxes = image.copy(), np.array([[2, 3, 20, 21]], np.float32)
    flipped = []
    build = small_data_hooks.vertical_flip(1.0)["build_train_set"](lambda *args: flipped.append(args[3]))
    build(None, None, None, None)
    mirrored, moved, labels = flipped[0](image, boxes, np.array([1]), np.random.default_rng(0))
    x1, y1, x2, y2 = moved[0].astype(int)
    assert (x1, y1, x2, y2) == (2, 43, 20, 61) and mirrored[y1:y2, x1:x2].all() and labels == [1]
    assert mirrored.sum() == image.sum() and np.array_equal(image, kept) and boxes[0, 1] == 3


def test_pasted_copies_lie_inside_the_image_and_beside_other_boxes():
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (64, 96, 3)).astype(np.uint8)
    boxes = np.array([[2, 3, 20, 21], [40, 5, 60, 30]], np.float32)
    kept = image.copy()
    pasted, more, labels = small_data_hooks.CopyPaste(1.0)(image, boxes, np.array([0, 1]), rng)
    assert np.array_equal(image, kept) and len(more) == len(labels) > 2
    assert (more >= 0).all() and (more <= [96, 64, 96, 64]).all() and np.array_equal(more[:2], boxes)
    x1, y1, x2, y2 = more[2].astype(int)
    source = boxes[labels[2]].astype(int)
    part = image[source[1] : source[3], source[0] : source[2]]
    assert any(np.array_equal(pasted[y1:y2, x1:x2], one) for one in (part, part[:, ::-1]))


def test_quantiles_of_t():
    """Values of printed tables."""
    known = {1: 12.706, 2: 4.303, 3: 3.182, 8: 2.306, 23: 2.069, 120: 1.980}
    for degrees, value in known.items():
        assert small_data_page.t_quantile(degrees) == pytest.approx(value, abs=6e-4)


def rows_of(**maps: dict[tuple[str, int], float]) -> list[dict[str, str]]:
    """Rows of the CSV file: recipe -> {(data, seed): mAP}."""
    blank = dict.fromkeys(small_data.COLUMNS, "") | {"stage": "screen", "images_seen": "36", "epochs": "20"}
    cells = [(recipe, pair, value) for recipe, values in maps.items() for pair, value in values.items()]
    return [blank | {"recipe": r, "data": d, "seed": str(s), "AP": str(v)} for r, (d, s), v in cells]


def test_the_paired_interval_is_that_computed_by_hand():
    shipped = {("bccd", 1): 0.50, ("bccd", 2): 0.52, ("chess", 1): 0.30, ("chess", 2): 0.34}
    other = {("chess", 2): 0.37, ("bccd", 1): 0.51, ("bccd", 2): 0.54, ("chess", 1): 0.36, ("deep_pcb", 1): 0.9}
    runs = small_data_page.Runs(rows_of(shipped=shipped, other=other))
    # differences 1, 2, 6 and 3 points: mean 3, squared deviations 4, 1, 9 and 0, so sd = sqrt(14 / 3) and
    # half = 3.1824 * 2.1602 / 2 = 3.4374
    found = runs.difference("other")
    assert found.count == 4 and found.mean == pytest.approx(3) and found.half == pytest.approx(3.4374, abs=1e-3)
    assert str(found) == "+3.0 [-0.4, +6.4]"
    assert str(runs.difference("other", "deep_pcb")) == "-"
    assert runs.spread("shipped") == pytest.approx(np.sqrt((2.0 + 8.0) / 2))  # variances 2 and 8 points squared
    assert np.isnan(small_data_page.Runs(rows_of(shipped={("bccd", 1): 0.5})).spread("shipped"))


def test_the_summary_compares_the_new_defaults_with_the_old_ones_and_with_other_trainers():
    """The differences of raccoon are 5 and 3 points: mean 4, half an interval of 12.706 * sqrt(2) / sqrt(2)."""
    shipped = {("raccoon", 4): 0.50, ("raccoon", 5): 0.54, ("bccd_test", 4): 0.60}
    new = {("raccoon", 4): 0.55, ("raccoon", 5): 0.57}
    runs = small_data_page.Runs(rows_of(shipped=shipped, new=new, libreyolo_yolox_nano={("raccoon", 4): 0.51}))
    _, _, raccoon, total, sets = small_data_page.report_table(runs).splitlines()
    assert raccoon == "| raccoon | 52.0 ± 2.8 | 56.0 ± 1.4 | +4.0 [-8.7, +16.7] | 51.0 | +4.0 |"
    assert (
        total == "| all pairs |  |  | +4.0 [-8.7, +16.7] |  | +4.0 |" and sets == "| data sets |  |  | +4.0 |  | +4.0 |"
    )


def test_the_interval_over_data_sets_is_that_of_their_means():
    """The means of the differences are 4 and 6 points: mean 5, half an interval of 12.706 * sqrt(2) / sqrt(2)."""
    shipped = {("raccoon", 4): 0.50, ("raccoon", 5): 0.54, ("bccd_test", 4): 0.60}
    new = {("raccoon", 4): 0.55, ("raccoon", 5): 0.57, ("bccd_test", 4): 0.66}
    runs = small_data_page.Runs(rows_of(shipped=shipped, new=new))
    assert small_data_page.report_table(runs).splitlines()[-1] == "| data sets |  |  | +5.0 [-7.7, +17.7] |"
    runs = small_data_page.Runs(rows_of(shipped=shipped, new=new, untrained={("raccoon", 4): 0.7}))
    assert small_data_page.report_table(runs).splitlines()[-1] == "| all pairs without raccoon |  |  | +6.0 |"


def test_known_classes_are_shown_before_and_after_training():
    measured = {"untrained": 0.22, "shipped": 0.15, "best_freeze_0": 0.2, "negatives_untrained": 0.1}
    measured |= {"negatives_rate_0.06": 0.12}
    rows = rows_of(**{name: {("coco337", 0): value} for name, value in measured.items()})
    assert small_data_page.known_table({"screen": small_data_page.Runs(rows)}).splitlines()[2:] == [
        "| coco337 | screen | 22.0 | 15.0 | - | 20.0 | - | - |",
        "| coco337, gray negatives | screen | 10.0 | - | - | - | - | 12.0 |",
    ]
    assert not small_data_page.known_table({"screen": small_data_page.Runs(rows[1:3])})


def test_lengths_and_input_sizes_are_compared_on_the_data_sets_that_have_several():
    rows = rows_of(best_freeze_0={("bccd", 0): 0.5, ("chess", 0): 0.4}, shipped={("bccd", 0): 0.9})
    rows = [row | {"image_size": "224"} for row in rows]
    longer = [row | {"epochs": "100", "AP": "0.6"} for row in rows if row["data"] == "bccd"]
    larger = [row | {"image_size": "416", "recipe": "best_rate_2_freeze_0"} for row in rows if row["data"] == "bccd"]
    assert small_data_page.length_table(rows) == ""
    lines = small_data_page.length_table(rows + longer + larger[:1]).splitlines()
    assert lines[0] == "| `learning_rate` | input size | epochs | bccd |"
    assert lines[2:] == ["| 0.002 | 224 | 20 | 50.0 |", "| 0.002 | 224 | 100 | 60.0 |", "| 0.004 | 416 | 20 | 50.0 |"]


def test_learning_rates_are_compared_from_the_lowest():
    faster = {("bccd", 0): 0.6, ("bccd", 1): 0.64, ("chess", 0): 0.7}
    runs = small_data_page.Runs(rows_of(best_rate_2_freeze_0=faster, best_freeze_0={("bccd", 0): 0.5}, shipped=faster))
    lines = small_data_page.rate_table(runs).splitlines()
    assert lines[0] == "| `learning_rate` | bccd |"
    assert lines[2:] == ["| 0.002 | 50.0 |", "| 0.004 | 62.0 ± 2.8 |"]


def test_single_changes_are_compared_with_the_same_seed_and_schedule_of_freezing():
    runs = {
        "best_rate_2_freeze_0": {("bccd", 0): 0.5},
        "best_rate_2": {("bccd", 0): 0.4},
        "new_mixup_0.5": {("bccd", 0): 0.52},
        "new_freeze_0.2_eval_norms": {("bccd", 0): 0.43},
        "new_momentum_0.1": {("bccd", 1): 0.9},  # has no pair
    }
    lines = small_data_page.changes_table(small_data_page.Runs(rows_of(**runs))).splitlines()
    assert lines[0] == "| change | bccd | all pairs |"
    assert [line.split(" | ")[1:] for line in lines[2:4]] == [["+3.0", "+3.0 |"], ["+2.0", "+2.0 |"]]
    assert "frozen fifth*" in lines[2] and lines[4:] == [
        "",
        r"\* compared with a frozen fifth of the epochs, which is not the default",
    ]


def test_runs_from_scratch_stand_next_to_those_of_another_trainer_with_the_same_data_size_and_seed():
    bccd = {("bccd", 1): 0.5}
    rows = rows_of(
        ultralytics_yolo11n_scratch={("bccd", 1): 0.4},
        scratch_new_yolox_nano=bccd | {("bccd", 0): 0.7, ("chess", 1): 0.8},
        shipped=bccd,
    )
    rows = [row | {"image_size": "224", "minutes": "9.96", "cpu_minutes": "8", "AP50": "0.85"} for row in rows]
    lines = small_data_page.scratch_table(rows).splitlines()
    assert lines[2:] == [
        "| bccd | 224 | 1 | ultralytics_yolo11n_scratch | 20 | 36 | 10.0 | 8.0 | 40.0 | 85.0 |",
        "| bccd | 224 | 1 | scratch_new_yolox_nano | 20 | 36 | 10.0 | 8.0 | 50.0 | 85.0 |",
    ]
    assert small_data_page.scratch_table(rows[:1]) == ""  # nothing to compare


def test_the_gain_on_the_data_sets_of_the_choices_is_a_sentence_with_the_number_of_seeds():
    shipped, new = ({("bccd", 0): at, ("bccd", 1): at, ("chess", 0): at} for at in (0.5, 0.52))
    runs = small_data_page.Runs(rows_of(shipped=shipped, best_rate_2_freeze_0=new | {("deep_pcb", 0): 0.1}))
    text = small_data_page.choices_text(runs)
    assert text.endswith("is in the next table): bccd +2.0 [+2.0, +2.0] (2 seeds), chess +2.0 (1 seed).")
    assert small_data_page.choices_text(small_data_page.Runs([])) == ""


def test_runs_from_scratch_with_several_seeds_have_means_of_their_pairs_and_the_difference():
    ours, theirs = ({("bccd", seed): ap for seed, ap in enumerate(maps, 1)} for maps in ((0.5, 0.54, 0.6), (0.4, 0.46)))
    rows = rows_of(ultralytics_yolo11n_scratch=theirs, scratch_new_yolox_nano=ours)
    rows = [row | {"image_size": "224", "minutes": "9.96", "cpu_minutes": "8", "AP50": "0.85"} for row in rows]
    assert small_data_page.scratch_table(rows).splitlines()[-1] == (
        "| bccd | 224 | scratch_new_yolox_nano | ultralytics_yolo11n_scratch | 2 | 8.0 / 8.0 "
        "| 52.0 ± 2.8 | 43.0 ± 4.2 | +9.0 [-3.7, +21.7] |"
    )


def test_freezing_is_compared_at_equal_constants():
    maps = {("bccd", 0): 0.5, ("bccd", 1): 0.54}
    frozen = {("bccd", 0): 0.47, ("bccd", 1): 0.51, ("chess", 0): 0.9}
    rows = rows_of(best_freeze_0=maps, chosen_rotation_0_batch_8=frozen, shipped=maps)
    runs = small_data_page.Runs([row | {"cpu_minutes": "3.25", "peak_MiB": "1400"} for row in rows])
    lines = small_data_page.freezing_table({"screen": runs}).splitlines()
    assert len(lines) == 3 and lines[2] == (
        "| bccd | 20 | 0.002 | 36 | 52.0 ± 2.8 | 49.0 ± 2.8 | - | -3.0 [-3.0, -3.0] | - "
        "| 3.2 / 3.2 / - | 1400 / 1400 / - |"
    )


def test_the_page_shows_each_question_with_the_shipped_recipe_first(tmp_path):
    shipped = {("bccd", 0): 0.5, ("chess", 0): 0.3}
    rows = rows_of(
        shipped=shipped, freeze_0={("bccd", 0): 0.55}, **{"rate_0.5": shipped, "libreyolo_yolox_nano": shipped}
    )
    numbers = {"frozen_AP": "0.4", "thawed_AP_1": "0.38", "thawed_AP_2": "0.3", "machine": "2 cores"}
    for name in (*small_data.COLUMNS[8:], "minutes"):
        numbers.setdefault(name, "1.5")
    rows = [row | {name: row[name] or numbers[name] for name in numbers} | {"error": ""} for row in rows]
    rows.append(rows[0] | {"recipe": "rate_0.25", "error": "ValueError: too bad"})
    for row in rows:
        small_data.append(tmp_path / "small_data.csv", small_data.COLUMNS, row)
        curve = {name: row[name] for name in small_data.KEY} | {"minutes": "1 2", "AP": "0.1 0.2"}
        small_data.append(tmp_path / "small_data_curves.csv", small_data.CURVE_COLUMNS, curve)
    text = small_data_page.write(tmp_path).read_text(encoding="utf-8")
    assert "- bccd, seed 0, rate_0.25: ValueError: too bad" in text
    assert (
        text.count("| shipped |") == 3 and "| freeze_0 |" in text and "| libreyolo_yolox_nano |" in text
    )  # three questions
    assert "| 0.75 |" in text  # .3 of .4 at the thaw
    assert (tmp_path / "small_data.png").stat().st_size > 1000


PERFECT = """
import json, sys
from pathlib import Path

task = json.load(open(sys.argv[1]))
assert "train: images/train" in open(task["data"]).read() and task["peer"] == "libreyolo"
found = {"numbers": [], "boxes": [], "scores": [], "labels": []}
labels = sorted((Path(task["folder"]) / "labels" / "val").iterdir())
links = sorted((Path(task["folder"]) / "images" / "val").iterdir())
assert [str(link.resolve()) for link in links] == task["images"]
sizes = SIZES
for number, path in enumerate(labels):
    for line in path.read_text().splitlines():
        label, x, y, w, h = map(float, line.split())
        width, height = sizes[number]
        box = [(x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height]
        for name, value in zip(found, (number, box, 0.9, int(label))):
            found[name].append(value)
print("a line of the peer")
if task["epochs"] == 9:
    sys.exit(3)
json.dump({**found, "version": "1.2", "torch": "2.9", "minutes": 2.0}, open(task["result"], "w"))
"""


def test_detections_of_a_peer_are_judged_by_our_evaluator(demo_images, tmp_path, monkeypatch):
    paths = [demo_images / line.split()[0] for line in (demo_images / "val.txt").read_text().splitlines()]
    script = tmp_path / "peer.py"
    sizes = [cv2.imread(str(path)).shape[1::-1] for path in paths]
    script.write_text(PERFECT.replace("SIZES", str(sizes)), encoding="utf-8")
    monkeypatch.setattr(small_data_peers, "SCRIPT", script)
    parts = {part: str(demo_images / f"{part}.txt") for part in ("train", "val")}
    constants = {
        **parts,
        "image_root": None,
        "epochs": 4,
        "image_size": (64, 64),
        "seed": 0,
        "split_seed": 0,
        "weights": None,
    }
    result = small_data_peers.measure(sys.executable, Job(constants, peer="libreyolo"))
    assert result["AP"] == 1 and result["images_seen"] == 36 and result["images_per_second"] == pytest.approx(0.3)
    assert result["torch"] == "2.9, libreyolo 1.2" and result["batch_size"] is None and result["cpu_minutes"] > 0
    assert not small_data_peers.RUNNING and result["curve_minutes"] == [2.0]
    with pytest.raises(RuntimeError, match="libreyolo ended with exit code 3: a line of the peer"):
        small_data_peers.measure(sys.executable, Job({**constants, "epochs": 9}, peer="libreyolo"))


@pytest.mark.slow  # reads the heads of 3,000 images
@pytest.mark.parametrize("name", tables.DATA)
def test_the_table_of_data_sets_is_true(name, shared):
    expected, parts = tables.DATA[name], tables.sources(str(shared / "data"), tables.DATA[name])
    source = (parts["train"], parts["val"], 0, None, None, parts["image_root"])
    found = read_train_and_val(*source, "drop", "error", lambda note: None)
    assert tuple(map(len, found)) == expected.images
    boxes, sizes = clipped_boxes(found[0]), found[0].sizes[found[0].image_of_boxes()]
    assert round(np.median(np.sqrt(area(boxes)) * 640 / sizes.max(1))) == expected.side
