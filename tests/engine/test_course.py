"""engine/course.py: what each epoch of a run does, and how hours= changes their number. The clock is fake."""

from dataclasses import replace

import numpy as np
import pytest
from toys import make_updater, toy

import train
from engine.course import Course
from engine.rates import Rates
from engine.schedule import Schedule, first_no_aug_epoch, usual_no_aug_epochs
from engine.state import State
from engine.time_budget import TimeBudget
from utils.processes import Ranks

CONSTANTS = train.Config(epochs=40, freeze_epochs=6, freeze_batch_size=16, batch_size=8)


def course_of(cfg=CONSTANTS, images=80, hours=0.0, clock=lambda: 0.0):
    rates = Rates(cfg, pretrained=cfg.weights is not None, domain_similarity=0.0)
    return Course(cfg, images, rates, TimeBudget(hours, 1, clock), Schedule)


def assert_consistent(course):
    """Whatever the number of epochs is: the plan, the schedule, the phases and the workers of the loader follow it."""
    phases = [course.phase(epoch) for epoch in range(course.epochs)]
    assert [phase.frozen for phase in phases] == [n < course.plan.freeze_epochs for n in range(course.epochs)]
    assert [phase.no_aug for phase in phases] == [n >= course.first_no_aug for n in range(course.epochs)]
    assert course.plan.freeze_epochs <= course.epochs and course.schedule.plan == course.plan
    assert course.no_aug_from.item() == course.first_no_aug == max(course.epochs - course.no_aug_epochs, 0)
    assert course.schedule.no_aug_epochs == course.no_aug_epochs and course.constants["epochs"] == course.epochs
    assert course.evaluates_after(course.epochs - 1)
    return phases


def test_an_epoch_is_a_function_of_its_number():
    phases = assert_consistent(course_of())
    assert [phase.batch_size for phase in phases] == [16] * 6 + [8] * 34
    assert sum(phase.no_aug for phase in phases) == 8  # a fifth
    assert not any(phase.static or phase.fixed_statistics for phase in phases)  # only from scratch
    scratch = assert_consistent(course_of(replace(CONSTANTS, weights=None, freeze_epochs=0)))
    assert [phase.static for phase in scratch] == [n < 13 for n in range(40)]
    assert [phase.fixed_statistics for phase in scratch] == [phase.no_aug for phase in scratch]


@pytest.mark.parametrize("every", [1, 3, 7, 40, 99])
def test_every_nth_epoch_and_the_last_one_are_evaluated(every):
    course = course_of()
    course.budget.evaluate_every = every
    evaluated = [epoch for epoch in range(1, 41) if course.evaluates_after(epoch - 1)]
    assert evaluated == sorted({*range(every, 41, every), 40})


@pytest.mark.parametrize("epochs, length", [(1, 0), (7, 1), (8, 2), (13, 3), (200, 15)])
def test_a_fifth_of_the_epochs_is_without_augmentation(epochs, length):
    assert usual_no_aug_epochs(epochs) == length


@pytest.mark.parametrize("seed", range(30))
def test_a_run_with_a_time_limit_stays_consistent_whatever_its_steps_take(seed):
    """Epochs that have begun without augmentation stay so, and none begins in the past."""
    rng, now = np.random.default_rng(seed), [0.0]
    cfg = replace(CONSTANTS, hours=1.0, epochs=100, freeze_epochs=int(rng.integers(0, 20)))
    course = course_of(cfg, hours=rng.uniform(0.01, 0.3), clock=lambda: now[0])
    course.choose_epochs(lambda phase: rng.uniform(0.5, 2.0), 10, State(), Ranks())
    assert_consistent(course)
    epoch, was_no_aug = 0, False
    while epoch < course.epochs:
        phase = course.phase(epoch)
        assert phase.no_aug >= was_no_aug
        was_no_aug = phase.no_aug
        course.budget.lap()
        now[0] += rng.uniform(0.2, 20.0) * rng.integers(1, 4)
        course.budget.lap("frozen" if phase.frozen else "thawed", 5)
        before = course.first_no_aug
        course.change_epochs(epoch + 1, Ranks())
        assert_consistent(course)
        assert epoch + 1 <= course.epochs <= 100  # so the run ends, however little time is left
        assert course.first_no_aug == before if before <= epoch else course.first_no_aug >= epoch + 1
        epoch += 1


@pytest.mark.parametrize("no_aug, after_first, more", [(0, None, 0), (5, None, 1), (5, 0, 1), (5, 1, 0)])
def test_a_run_whose_time_is_over_has_one_epoch_without_augmentation_and_then_ends(no_aug, after_first, more):
    """`after_first`: the epochs that are trained, counted from the first one without augmentation; None: one epoch in all."""
    now = [0.0]
    cfg = replace(CONSTANTS, hours=1.0, epochs=100, freeze_epochs=0, no_aug_epochs=no_aug)
    course = course_of(cfg, hours=0.1, clock=lambda: now[0])
    course.choose_epochs(lambda phase: 1.0, 10, State(), Ranks())
    done = 1 if after_first is None else course.first_no_aug + after_first
    now[0] += 1000.0
    course.change_epochs(done, Ranks())
    assert course.epochs == done + more
    assert course.phase(course.epochs - 1).no_aug == (no_aug > 0)
    course.change_epochs(course.epochs, Ranks())
    assert course.epochs == done + more


def test_the_first_epoch_without_augmentation_is_never_in_the_past():
    assert first_no_aug_epoch(10, 5, before=8, done=7) == 7  # 5 would be the usual place
    assert first_no_aug_epoch(20, 5, before=3, done=7) == 3  # it has begun
    assert first_no_aug_epoch(20, None, before=12, done=7) == 16


def test_one_slow_lap_does_not_shorten_a_run():
    now = [0.0]
    budget = TimeBudget(1.0, 1, lambda: now[0])
    for seconds in (1.0, 90.0, 1.0):
        budget.lap()
        now[0] += seconds
        budget.lap("thawed")
    assert budget.seconds("thawed") == 1.0


def test_a_resumed_run_keeps_its_number_of_epochs_unless_the_limits_change():
    now = [0.0]
    course = course_of(replace(CONSTANTS, epochs=100), hours=0.1, clock=lambda: now[0])
    course.choose_epochs(lambda phase: 1.0, 10, State(), Ranks())
    chosen, saved = course.epochs, course.state_dict()
    again = course_of(replace(CONSTANTS, epochs=100), hours=0.1, clock=lambda: now[0])
    again.load_state_dict(saved)
    now[0] += 300.0  # the fit would choose fewer
    again.choose_epochs(lambda phase: 1.0, 10, State(), Ranks())
    assert again.epochs == chosen < 100
    more = course_of(replace(CONSTANTS, epochs=100), hours=0.2, clock=lambda: now[0])
    more.load_state_dict(saved)
    more.choose_epochs(lambda phase: 1.0, 10, State(), Ranks())
    assert more.epochs != chosen


def test_the_updater_follows_a_course_of_another_length():
    course, updater = course_of(), make_updater(toy(), total_steps=10)
    updater.follow(course)
    expected = make_updater(toy(), total_steps=course.plan.total_steps)
    assert updater.schedule is course.schedule
    assert (updater.ema.decay, updater.ema.tau) == (expected.ema.decay, expected.ema.tau)
