"""engine/course.py: what each epoch of a run does, and how hours= changes their number. The clock is fake."""

from dataclasses import replace

import numpy as np
import pytest
from toys import make_updater, toy

import train
from engine.course import Course
from engine.rates import Rates
from engine.schedule import Schedule, usual_no_aug_epochs
from engine.time_budget import TimeBudget
from utils.processes import Ranks

CONSTANTS = train.Config(epochs=40, freeze_epochs=6, freeze_batch_size=16, batch_size=8)


def course_of(cfg=CONSTANTS, images=80, hours=0.0, clock=lambda: 0.0):
    rates = Rates(cfg, pretrained=cfg.weights is not None, domain_similarity=0.0)
    return Course(cfg, images, rates, TimeBudget(hours, clock), Schedule)


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
    course.evaluate_every = every
    evaluated = [epoch for epoch in range(1, 41) if course.evaluates_after(epoch - 1)]
    assert evaluated == sorted({*range(every, 41, every), 40})


@pytest.mark.parametrize("epochs, length", [(1, 0), (7, 1), (8, 2), (13, 3), (200, 15)])
def test_a_fifth_of_the_epochs_is_without_augmentation(epochs, length):
    assert usual_no_aug_epochs(epochs) == length


@pytest.mark.parametrize("seed", range(5))
def test_a_run_with_a_time_limit_stays_consistent_whatever_its_steps_take(seed):
    """Its number of epochs changes at most once, to fewer, and no epoch without augmentation is followed by one with it."""
    rng, now = np.random.default_rng(seed), [0.0]
    cfg = replace(CONSTANTS, hours=1.0, epochs=100, freeze_epochs=int(rng.integers(0, 20)))
    course = course_of(cfg, hours=rng.uniform(0.01, 0.3), clock=lambda: now[0])
    course.choose_epochs(lambda phase: rng.uniform(0.5, 2.0), 10, 0, Ranks())
    course.budget.begin_epochs()
    assert_consistent(course)
    epoch, was_no_aug, numbers = 0, False, [course.epochs]
    while epoch < course.epochs:
        phase = course.phase(epoch)
        assert phase.no_aug >= was_no_aug
        was_no_aug = phase.no_aug
        now[0] += rng.uniform(0.2, 20.0) * rng.integers(1, 4)
        course.shorten_if_late(epoch + 1, Ranks(), ())
        course.budget.end_epoch()
        assert_consistent(course)
        assert epoch + 1 <= course.epochs <= 100  # so the run ends, however little time is left
        if course.epochs != numbers[-1]:
            numbers.append(course.epochs)
        epoch += 1
    assert len(numbers) <= 2 and numbers[-1] <= numbers[0]


@pytest.mark.parametrize("no_aug, more", [(None, 1), (0, 0), (3, 1)])
def test_a_run_whose_time_is_over_has_one_epoch_without_augmentation_and_then_ends(no_aug, more):
    now = [0.0]
    cfg = replace(CONSTANTS, hours=1.0, epochs=100, freeze_epochs=0, no_aug_epochs=no_aug)
    course = course_of(cfg, hours=0.1, clock=lambda: now[0])
    course.choose_epochs(lambda phase: 1.0, 10, 0, Ranks())
    now[0] += 1000.0
    course.shorten_if_late(2, Ranks(), ())
    assert course.epochs == 2 + more and course.phase(course.epochs - 1).no_aug == (more > 0)
    course.shorten_if_late(course.epochs, Ranks(), ())
    assert course.epochs == 2 + more


def test_a_late_run_keeps_the_epochs_without_augmentation_that_still_fit():
    now = [0.0]
    cfg = replace(CONSTANTS, hours=1.0, epochs=100, freeze_epochs=0, no_aug_epochs=5)
    course = course_of(cfg, hours=0.1, clock=lambda: now[0])
    course.choose_epochs(lambda phase: 0.4, 10, 0, Ranks())
    begun = course.epochs
    for epoch in range(20):
        now[0] += 30.0  # seconds, of 360
        course.shorten_if_late(epoch + 1, Ranks(), ())
        course.budget.end_epoch()
        if course.epochs != begun:
            break
    assert (epoch, course.first_no_aug, course.epochs) == (6, 7, 12) and now[0] + 5 * 30 == 360


@pytest.mark.parametrize("every, evaluation, slow", [(1, 0.5, 0), (10, 10.0, 0), (1, 0.5, 1), (1, 0.5, 5)])
def test_a_run_is_not_late_because_of_an_evaluation_or_a_single_slow_epoch(every, evaluation, slow):
    """An evaluation may take ten epochs; the start, the first epoch, which decodes images, or another one takes long."""
    now = [0.0]
    cfg = replace(CONSTANTS, hours=1.0, epochs=1000, freeze_epochs=0, evaluate_every=every)
    course = course_of(cfg, hours=1.0, clock=lambda: now[0])
    course.choose_epochs(lambda phase: 20 / course.plan.steps, 0, 0, Ranks())
    course._set(int(0.9 * 3600 / (20 + 20 * evaluation / every)), 15)  # as many as fit
    chosen, now[0] = course.epochs, 100.0 if slow else 300.0
    course.budget.end_epoch()  # epoch 0, the evaluation before training
    course.budget.begin_epochs()
    for epoch in range(chosen):
        now[0] += 20 * (10 if epoch + 1 == slow else 1)
        course.shorten_if_late(epoch + 1, Ranks(), ())
        now[0] += 20 * evaluation * course.evaluates_after(epoch)
        course.budget.end_epoch()
    assert course.epochs == chosen > 50


def test_a_late_run_that_gets_more_time_has_the_chosen_epochs_without_augmentation_again():
    now = [0.0]
    cfg = replace(CONSTANTS, hours=0.1, epochs=100, freeze_epochs=0)
    course = course_of(cfg, hours=0.1, clock=lambda: now[0])
    course.choose_epochs(lambda phase: 0.4, 10, 0, Ranks())
    chosen = course.no_aug_epochs
    for epoch in range(3):
        now[0] += 110.0
        course.shorten_if_late(epoch + 1, Ranks(), ())
        course.budget.end_epoch()
    assert course.no_aug_epochs < chosen
    for hours, expected in ((0.1, course.no_aug_epochs), (4.0, chosen)):
        resumed = course_of(replace(cfg, hours=hours), hours=hours, clock=lambda: now[0])
        resumed.load_state_dict(course.state_dict())
        assert resumed.no_aug_epochs == expected
        assert resumed.epochs == (course.epochs if hours == 0.1 else 100)


def test_a_resumed_run_keeps_its_number_of_epochs_unless_the_limits_change():
    now = [0.0]
    cfg = replace(CONSTANTS, epochs=100)
    course = course_of(cfg, hours=0.1, clock=lambda: now[0])
    course.choose_epochs(lambda phase: 1.0, 10, 0, Ranks())
    chosen, saved = course.epochs, course.state_dict()
    now[0] += 300.0  # a new choice would be smaller
    epochs = {}
    for hours in (0.1, 0.2, 0.0):
        again = course_of(cfg, hours=hours, clock=lambda: now[0])
        again.load_state_dict(saved)
        again.choose_epochs(lambda phase: 1.0, 10, 5, Ranks())
        epochs[hours] = again.epochs
    assert epochs[0.1] == chosen < epochs[0.2] < epochs[0.0] == 100


def test_the_updater_follows_a_course_of_another_length():
    course, updater = course_of(), make_updater(toy(), total_steps=10)
    updater.follow(course)
    expected = make_updater(toy(), total_steps=course.plan.total_steps)
    assert updater.schedule is course.schedule
    assert (updater.ema.decay, updater.ema.tau) == (expected.ema.decay, expected.ema.tau)
