"""engine/time_budget.py: a run with hours= ends in time, with the schedule of the epochs that fit. The clock is fake."""

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
from engine.time_budget import TimeBudget, seconds_of_epochs
from utils import checkpoint

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
            def optimizer_step(self):
                super().optimizer_step()
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
        pytest.param(FakeClock(), {"evaluate_every": 3, "freeze_epochs": 4}, marks=pytest.mark.slow),
        (FakeClock(thawed=2.0, slow_from=80), {"multi_scale": 0.5, "accumulate": 2, "batch_size": 2}),
    ],
)
def test_a_run_ends_in_time_and_without_augmentation(demo_images, tmp_path, clock, changes):
    hours = 0.05
    cfg = config(demo_images, tmp_path / "timed", hours=hours, epochs=100, **{**CHOSEN, **changes})
    folder, _, text = train_quietly(cfg, **clock.options)
    rows = assert_ends_well(folder, cfg.evaluate_every)
    assert 0.7 * 3600 * hours < clock.now < 1.03 * 3600 * hours, len(rows)
    assert f"hours={hours}" in text and len(rows) < 100
    if clock.slow_from < 1e9:
        assert "the run is late" in text
    if clock.after == 0:  # all times are as they were measured at the start
        assert "the run is late" not in text
        same = replace(cfg, epochs=len(rows), hours=0.0, output=str(tmp_path / "same"))
        assert_same_run(folder, train_quietly(same, **clock.options)[0])


@pytest.mark.gpu
def test_a_run_on_a_gpu_takes_the_time_that_it_is_given(demo_images, tmp_path):
    """With the real clock: steps, evaluations and saves of a real GPU, with mixed precision and CUDA graphs."""
    gpu = {"device": "cuda:0", "amp": "fp16", "freeze_epochs": 3, "no_aug_epochs": None}
    cfg = config(demo_images, tmp_path, hours=0.005, epochs=2000, **gpu)
    begin = time.monotonic()
    folder, _, text = train_quietly(cfg)
    assert 0.5 < (time.monotonic() - begin) / (3600 * cfg.hours) < 1.1
    assert 3 < len(assert_ends_well(folder)) < 2000 and "CUDA graphs are not used" not in text


@pytest.mark.parametrize("hours, epochs, words", [(1e-6, 1, "too little for 1 epoch"), (50.0, 4, "a larger epochs=")])
def test_too_little_and_too_much_time_are_named(demo_images, tmp_path, hours, epochs, words):
    """At least one epoch with its evaluation, and at most `epochs`."""
    folder, _, text = train_quietly(config(demo_images, tmp_path, hours=hours), **FakeClock().options)
    rows = log_of(folder)
    assert len(rows) == epochs and rows[-1]["AP"] and words in text


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
    assert clock.now == pytest.approx(whole.now, abs=20) and clock.now < 1.05 * 216


def test_another_time_limit_lengthens_or_ends_a_resumed_run(demo_images, tmp_path):
    cfg = config(demo_images, tmp_path, hours=0.07, epochs=30, **CHOSEN)
    folder, *_ = train_quietly(cfg, **FakeClock().options)
    first = len(log_of(folder))
    *_, text = train_quietly(replace(cfg, resume=True), **FakeClock().options)
    assert "nothing to do" in text and "a larger hours= extends" in text and len(log_of(folder)) == first
    assert "WARNING: hours=" not in text and not text.count("\ntime  ")  # no epoch is left
    clock = FakeClock()
    train_quietly(replace(cfg, hours=0.1, resume=True), **clock.options)
    assert len(log_of(folder)) > first and 0.7 * 360 < clock.now + 252 < 1.05 * 360


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
    assert 0.7 * 252 < times[0] < 1.05 * 252 and times[1] > 1.1 * times[0]


@pytest.mark.parametrize("seed", range(5))
def test_as_many_epochs_are_chosen_as_fit(seed):
    """For any lengths of steps and evaluations, counted epoch by epoch."""
    rng = np.random.default_rng(seed)
    seconds, evaluation, every = {True: rng.uniform(0.1, 9), False: rng.uniform(0.1, 9)}, 5.0, int(rng.integers(1, 5))
    plan = Plan.of(int(rng.integers(10, 90)), 400, int(rng.integers(0, 12)), 16, 8, 1)
    budget = TimeBudget(float(rng.uniform(0.05, 0.8)), lambda: 0.0)

    def total(epochs):
        steps = [(plan.frozen_steps, True) if n < plan.freeze_epochs else (plan.steps, False) for n in range(epochs)]
        evaluated = [(n + 1) % every == 0 or n + 1 == epochs for n in range(epochs)]
        return sum(count * seconds[frozen] for count, frozen in steps) + evaluation * sum(evaluated)

    def expected(epochs):
        return seconds_of_epochs(plan.shortened(epochs), 0, seconds, evaluation, every)

    budget.choose(expected, 1, 400)
    assert expected(budget.epochs) == pytest.approx(total(budget.epochs))
    assert budget.epochs == 1 or total(budget.epochs) <= 0.9 * budget.limit
    assert budget.epochs == 400 or total(budget.epochs + 1) > 0.9 * budget.limit or evaluation > seconds[False]
