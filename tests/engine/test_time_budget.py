"""engine/time_budget.py: a run with hours= ends in time, with the schedule of as many epochs as fit. The clock is fake."""

import json
import os
import time
from dataclasses import replace

import numpy as np
import pytest
import tiny  # noqa: F401  registers model="tiny_n", also in spawned processes
import torch
from small import assert_same_run, config, log_of, only_run, train_quietly
from toys import free_ports, spawn

import train
from engine.optimizer import Updater
from engine.schedule import Plan
from engine.time_budget import TimeBudget
from utils import checkpoint
from utils.processes import Ranks

CHOSEN = {"no_aug_epochs": None, "warmup_epochs": None}


class FakeClock:
    """Seconds that pass only in steps, evaluations and at the end of an epoch; `factor` times as many from `slow_from` on."""

    def __init__(self, frozen=2.0, thawed=3.0, evaluation=7.0, after=1.0, slow_from=1e9, factor=2.0):
        self.now, self.slow_from, self.factor = 0.0, slow_from, factor
        self.frozen, self.thawed, self.evaluation, self.after = frozen, thawed, evaluation, after

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds * (self.factor if self.now >= self.slow_from else 1)

    @property
    def options(self) -> dict:
        """Arguments of train.main."""
        clock = self

        class Timed(Updater):
            def update(self):
                super().update()
                clock.spend(clock.frozen if self.model.frozen else clock.thawed)

        def validate(updater, loader, criterion, ranks, run, epoch, stop):
            clock.spend(clock.evaluation)
            return {"AP": 0.5 - epoch / 1000, "AP50": 0.5, "val_loss": 1.0}

        parts = train.Parts(updater=Timed, validate=validate, clock=clock)
        return {"parts": parts, "on_row": lambda row, run: clock.spend(clock.after)}


def assert_ends_well(folder, evaluate_every=1):
    """Asserts that the last epochs have no augmentation and the lowest rate, and that the last one was evaluated."""
    rows, constants = log_of(folder), json.loads((folder / "config.json").read_text())
    assert len(rows) == constants["epochs"] == int(rows[-1]["epoch"])
    plain = [row["learning_rate"] for row in rows if row["loss_l1"]]
    assert len(plain) == constants["no_aug_epochs"] > 0 and all(row["loss_l1"] for row in rows[-len(plain) :])
    assert len(set(plain)) == 1 and float(plain[0]) == min(float(row["learning_rate"]) for row in rows[1:])
    assert rows[-1]["AP"] and sum(bool(row["AP"]) for row in rows) == -(-len(rows) // evaluate_every)
    return rows


@pytest.mark.parametrize(
    "clock, changes",
    [
        (FakeClock(evaluation=1.875, after=0.0), {}),
        (FakeClock(evaluation=30.0), {"evaluate_every": 3, "freeze_epochs": 4}),  # most of the time
        (FakeClock(thawed=2.0, slow_from=150), {}),
        pytest.param(
            FakeClock(slow_from=150, factor=0.5),
            {"multi_scale": 0.5, "accumulate": 2, "batch_size": 2},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_takes_the_time_that_it_is_given_and_ends_without_augmentation(demo_images, tmp_path, clock, changes):
    hours = 0.09
    cfg = config(demo_images, tmp_path / "timed", hours=hours, epochs=100, **{**CHOSEN, **changes})
    folder, _, text = train_quietly(cfg, **clock.options)
    rows = assert_ends_well(folder, cfg.evaluate_every)
    assert clock.now == pytest.approx(3600 * hours, rel=0.05), len(rows)
    assert f"hours={hours}" in text and len(rows) < 100
    if clock.after == 0:  # all times are as they were measured and guessed at the start
        assert "epochs instead of" not in text
        same = replace(cfg, epochs=len(rows), hours=0.0, output=str(tmp_path / "same"))
        assert_same_run(folder, train_quietly(same, **clock.options)[0])


@pytest.mark.gpu
def test_a_run_on_a_gpu_takes_the_time_that_it_is_given(demo_images, tmp_path):
    """With the real clock: steps, evaluations and saves of a real GPU, with mixed precision and CUDA graphs."""
    gpu = {"device": "cuda:0", "amp": "fp16", "freeze_epochs": 3, "no_aug_epochs": None}
    cfg = config(demo_images, tmp_path, hours=0.005, epochs=2000, **gpu)
    begin = time.monotonic()
    folder, _, text = train_quietly(cfg)
    assert time.monotonic() - begin == pytest.approx(3600 * cfg.hours, rel=0.15)
    assert 3 < len(assert_ends_well(folder)) < 2000 and "CUDA graphs are not used" not in text


def test_a_run_that_stalls_still_trains_an_epoch_without_augmentation(demo_images, tmp_path):
    clock = FakeClock(slow_from=100, factor=30)
    cfg = config(demo_images, tmp_path, hours=0.125, epochs=100, **CHOSEN)
    folder, *_ = train_quietly(cfg, **clock.options)
    assert len(assert_ends_well(folder)) < 14


@pytest.mark.parametrize("hours, epochs, words", [(1e-6, 1, "too little for 1 epoch"), (50.0, 4, "a larger epochs=")])
def test_too_little_and_too_much_time_are_named(demo_images, tmp_path, hours, epochs, words):
    """At least one epoch with its evaluation, and at most `epochs`."""
    folder, _, text = train_quietly(config(demo_images, tmp_path, hours=hours), **FakeClock().options)
    rows = log_of(folder)
    assert len(rows) == epochs and rows[-1]["AP"] and words in text
    laps = checkpoint.load(folder / "last.pt")["resume"]["course"]["budget"]["laps"]
    assert {"evaluation", *(["save"] if epochs > 1 else [])} <= laps.keys()  # the last save counts after it


class Died(Exception):
    """Stands for kill -9."""


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one_and_counts_the_time_of_both(demo_images, tmp_path):
    """It dies before the first step, within an epoch, and after the machine has become slower."""
    cfg = config(demo_images, tmp_path / "a", hours=0.06, epochs=100, save_minutes=1e-9, **CHOSEN)
    whole = FakeClock(thawed=2.0, evaluation=2.0, slow_from=110)
    expected, *_ = train_quietly(cfg, **whole.options)
    cfg, now = replace(cfg, output=str(tmp_path / "b"), resume=True), 0.0
    for dies_at in (32.0, 50.0, 185.0, None):
        clock = FakeClock(thawed=2.0, evaluation=2.0, slow_from=110)
        clock.now, clock.dies_at = now, dies_at

        def spend(seconds, clock=clock):
            if clock.dies_at is not None and clock.now >= clock.dies_at:
                raise Died
            FakeClock.spend(clock, seconds)

        clock.spend = spend
        if dies_at is None:
            train_quietly(cfg, **clock.options)
            break
        with pytest.raises(Died):
            train_quietly(cfg, **clock.options)
        now = checkpoint.load(only_run(tmp_path / "b") / "last.pt")["resume"]["course"]["budget"]["used"]
    assert_same_run(only_run(tmp_path / "b"), expected)
    assert clock.now == pytest.approx(216, rel=0.05) and clock.now == pytest.approx(whole.now, abs=20)


def test_another_time_limit_lengthens_or_ends_a_resumed_run(demo_images, tmp_path):
    cfg = config(demo_images, tmp_path, hours=0.07, epochs=30, **CHOSEN)
    folder, *_ = train_quietly(cfg, **FakeClock().options)
    first = len(log_of(folder))
    *_, text = train_quietly(replace(cfg, resume=True), **FakeClock().options)
    assert "nothing to do" in text and "a larger hours= extends" in text and len(log_of(folder)) == first
    assert "WARNING: hours=" not in text and not text.count("\ntime  ")  # no epoch is left
    clock = FakeClock()
    train_quietly(replace(cfg, hours=0.1, resume=True), **clock.options)
    assert len(log_of(folder)) > first and clock.now + 252 == pytest.approx(0.1 * 3600, rel=0.05)


def train_rank(rank, port, cfg, folder):
    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    clock = FakeClock(slow_from=60, factor=3.0) if rank else FakeClock(slow_from=120)
    train.main(cfg, **clock.options)
    (folder / f"{rank}").write_text(f"{clock.now}")


@pytest.mark.slow
def test_two_processes_take_the_number_of_epochs_of_the_first(demo_images, tmp_path):
    """Their clocks differ."""
    cfg = config(demo_images, tmp_path / "runs", hours=0.07, epochs=60, timeout_minutes=1.0, **CHOSEN)
    spawn(train_rank, (free_ports(1)[0], cfg, tmp_path), 2)
    assert_ends_well(only_run(tmp_path / "runs"))
    times = [float((tmp_path / name).read_text()) for name in "01"]
    assert times[0] == pytest.approx(0.07 * 3600, rel=0.05) and times[1] > 1.1 * times[0]


@pytest.mark.parametrize("seed", range(20))
def test_epochs_fit_for_any_speeds_and_the_next_would_not(seed):
    """Without noise the first choice is right, for any lengths of steps, evaluations and saves."""
    rng = np.random.default_rng(seed)
    frozen, thawed, evaluation, save = rng.uniform(0.1, 9, 4)
    longest = Plan.of(int(rng.integers(10, 90)), 400, int(rng.integers(0, 12)), 16, 8, 1)
    every, now = int(rng.integers(1, 5)), [0.0]
    budget = TimeBudget(float(rng.uniform(0.05, 0.8)), every, lambda: now[0])
    for kind, seconds in {"frozen": frozen, "thawed": thawed, "evaluation": evaluation, "save": save}.items():
        budget.lap()
        now[0] += 3 * seconds
        budget.lap(kind, 3)
    start = now[0]

    def training(epoch):
        return longest.frozen_steps * frozen if epoch < longest.freeze_epochs else longest.steps * thawed

    def after(epoch, epochs):
        return save + evaluation * ((epoch + 1) % every == 0 or epoch + 1 == epochs)

    def total(epochs):
        return start + sum(training(epoch) + after(epoch, epochs) for epoch in range(epochs))

    epochs = budget.choose(longest, 0, Ranks())
    assert budget.expected(longest.cut(epochs), 0) == pytest.approx(total(epochs))
    assert epochs == 1 or total(epochs) <= 1.03 * budget.limit
    assert epochs == 400 or total(epochs + 1) > budget.limit
    if 13 <= epochs < 400:
        assert total(epochs) == pytest.approx(budget.limit, rel=0.05)
    done = (epochs + 1) // 2
    now[0] = start + sum(training(epoch) for epoch in range(done))
    now[0] += sum(after(epoch, epochs) for epoch in range(done - 1))  # the last one is not evaluated yet
    assert budget.expected(longest.cut(epochs), done) == pytest.approx(total(epochs))
    assert budget.fit(longest, done, done, Ranks()) == epochs


def test_the_time_left_counts_steps_evaluations_and_saves_of_the_epochs_to_come():
    budget = TimeBudget(0.0, evaluate_every=2, clock=iter([0.0, 0.0, 10.0, 15.0, 16.0, 36.0]).__next__)
    plan = Plan(9, 3, 10, 20, 8, 8)
    budget.lap()
    budget.lap("frozen", 10)
    assert budget.left(plan, 1, 1) == 2 * 10 + 6 * 20  # before the first thawed step: as long as a frozen one
    budget.lap("evaluation")
    budget.lap("save")
    budget.lap("thawed", 10)
    assert budget.left(plan, 4, 4) == 5 * 20 * 2 + 3 * 5 + 5 * 1
    assert budget.left(plan, 9, 9) == 0
