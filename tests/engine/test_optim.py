"""engine/optimizer.py: schedules, parameter groups, EMA and Updater: accumulation, clipping, bad steps, mixed precision."""

import copy
import io
import math

import pytest
import torch
from torch import nn
from toys import (
    FLAT,
    assert_equal_bits,
    bad_step,
    detector,
    fit_detector,
    good_step,
    images,
    make_updater,
    snapshot,
    toy,
)

import nets
import train
from engine.course import Course
from engine.optimizer import EMA, MAX_BAD_STEPS, Updater, parameter_groups
from engine.rates import Rates, domain_similarity_of
from engine.schedule import MIN_WARMUP, Plan, Schedule, enough_epochs
from engine.time_budget import TimeBudget

OPTIMIZERS = ["sgd", "adam", "adamw"]


def test_plan_counts_steps_of_both_phases():
    plan = Plan(epochs=10, freeze_epochs=3, frozen_steps=5, steps=8, frozen_images=32, images=16)
    assert [plan.steps_before(e) for e in (0, 1, 3, 4, 10)] == [0, 5, 15, 23, 71]
    assert all(plan.position(plan.steps_before(e)) == e for e in range(11))
    positions = [plan.position(s) for s in range(71)]
    assert all(a < b for a, b in zip(positions, positions[1:], strict=False))
    assert [plan.images_at(s) for s in (0, 14, 15, 70)] == [32, 32, 16, 16]
    assert Plan.of(160, 10, 30, 16, 8, 2) == Plan(10, 10, 5, 10, 32, 16)  # at most all epochs are frozen
    assert Plan.of(161, 10, 3, 32, 16, 1) == Plan(10, 3, 6, 11, 32, 16)  # the last batch is padded


def test_warm_up_is_quadratic_from_zero():
    schedule = Schedule(Plan(100, 0, 10, 10, 64, 64), "cosine", 0.02, 0.001, 5, 10)
    assert [schedule.at(e) for e in (0, 1, 2.5, 4)] == pytest.approx([0, 0.02 / 25, 0.02 / 4, 0.02 * 16 / 25])
    assert schedule.at(5) == pytest.approx(0.02) == max(schedule(s) for s in range(1000))
    assert schedule(25) == schedule.at(2.6)  # 10 steps per epoch, counted from 1: the first step has a rate, too
    assert schedule(0) == schedule.at(0.1) > 0 and schedule(49) == schedule(50) == schedule.at(5)


def test_cosine_schedule_falls_to_the_minimum_and_stays_there():
    schedule = Schedule(Plan(100, 0, 10, 10, 64, 64), "cosine", 0.02, 0.001, 5, 10)
    assert schedule.at(47.5) == pytest.approx((0.02 + 0.001) / 2)
    assert [schedule.at(e) for e in (90, 95, 99.9)] == pytest.approx([0.001] * 3)
    falling = [schedule(s) for s in range(50, 900)]
    assert all(a > b for a, b in zip(falling, falling[1:], strict=False)) and falling[-1] > 0.001


def test_step_schedule_is_a_tenth_and_then_a_hundredth():
    schedule = Schedule(Plan(100, 0, 10, 10, 64, 64), "step", 0.01, 0.0, 0, 0)
    assert [schedule.at(e) for e in (0, 59.9, 60, 84.9, 85, 99)] == pytest.approx(
        [0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001]
    )


def test_learning_rate_scales_with_the_images_per_step():
    rates = [Schedule(Plan(10, 0, 5, 5, n, n), "constant", 0.01, 0.01, 0, 0)(7) for n in (64, 16, 128)]
    assert rates == pytest.approx([0.01, 0.0025, 0.02])


NAMES = "no_aug_epochs warmup_epochs weight_decay learning_rate min_learning_rate power max_images clip".split()


def numbers(length, epochs, optimizer="adamw", like=0.0, *, model="yolox_nano", batch=8, frozen=None, **given):
    """Returns the numbers of a run with the default constants, except the `given` ones. `like` None: from scratch."""
    sizes = {"batch_size": batch, "freeze_batch_size": frozen or 2 * batch}
    cfg = train.Config(model=model, optimizer=optimizer, epochs=epochs, **sizes, **given)
    rates = Rates(cfg, like is not None, like or 0.0)
    course = Course(cfg, length, rates, TimeBudget(0.0), Schedule)
    return {name: getattr(course if hasattr(course, name) else rates, name) for name in NAMES}


def schedule_of(length, epochs, batch, chosen):
    """Returns the schedule of a thawed run with the chosen numbers."""
    rates = (chosen["learning_rate"], chosen["min_learning_rate"])
    phases = (chosen["warmup_epochs"], chosen["no_aug_epochs"], chosen["power"], chosen["max_images"])
    return Schedule(Plan.of(length, epochs, 0, 16, batch, 1), "cosine", *rates, *phases)


def test_the_numbers_of_typical_runs():
    """Images, epochs, optimizer, domain_similarity, images per step and model; then the numbers in the order of NAMES."""
    inf = math.inf
    table = {
        (50, 10, "adamw", 0, 8, "x_nano"): (2, 1, 0.05, 4e-3, 2e-4, 0.5, 64, 10),
        (300, 50, "adamw", 0, 8, "x_nano"): (10, 100 / 38, 0.05, 4e-3, 2e-4, 0.5, 64, 10),
        (300, 50, "adamw", 0.6, 8, "x_nano"): (10, 100 / 38, 0.05, 5e-4, 2.5e-5, 0.5, 64, 10),
        (300, 50, "adamw", 1, 8, "x_nano"): (10, 100 / 38, 0.05, 1.25e-4, 6.25e-6, 0.5, 64, 10),
        (100_000, 300, "adamw", 0, 256, "x_s"): (15, 1, 0.05, 4e-3, 2e-4, 0.5, 64, 10),
        (100_000, 300, "adamw", None, 64, "x_s"): (15, 1, 0.05, 4e-3, 2e-4, 0.5, 64, 10),
        (100_000, 300, "sgd", 0, 64, "x_s"): (15, 1, 5e-4, 0.01, 5e-4, 1, inf, 10),
        (100_000, 300, "sgd", None, 64, "x_s"): (15, 1, 5e-4, 0.01, 5e-4, 1, inf, 0),
        (100_000, 300, "sgd", None, 64, "v9_t"): (15, 1, 5e-4 / 16, 0.16, 8e-3, 1, 64, 10),
    }
    for (length, epochs, optimizer, like, batch, model), expected in table.items():
        chosen = numbers(length, epochs, optimizer, like, model=f"yolo{model}", batch=batch)
        assert [chosen[name] for name in NAMES] == pytest.approx(expected)


def test_enough_epochs_counts_samples_and_steps():
    sizes = (1, 50, 205, 400, 1000, 100_000)
    assert [enough_epochs(length, 8) for length in sizes] == [300, 300, 98, 50, 30, 30]
    for length, batch in ((1_000, 256), (300, 64), (2_000, 64), (5_000, 1_024)):
        steps = enough_epochs(length, batch) * -(-length // batch)
        assert 1_000 <= steps < 1_000 + -(-length // batch)
    assert enough_epochs(100, 256) == 300


def test_the_likeness_has_no_cliff():
    expected = nets.expected_ap("yolox_nano", (256, 256))

    def like_coco(known: float, mean_ap: float) -> float:
        return domain_similarity_of(nets.Pretraining(known, official=True), mean_ap, expected)

    assert like_coco(1.0, 0.220) == 1  # images of COCO
    assert 0.4 < like_coco(1.0, 0.108) < 0.8  # gray negatives of them
    assert like_coco(1.0, 0.01) == like_coco(0.5, 0.22) == like_coco(1.0, -1.0) == 0
    assert domain_similarity_of(nets.Pretraining(1.0, official=True), 0.5, expected=0.0) == 0  # no official weights
    one_more_class = [like_coco(known / 80, 0.22) for known in range(81)]
    a_little_more_map = [like_coco(1.0, mean_ap / 1000) for mean_ap in range(300)]
    for likes in (one_more_class, a_little_more_map):
        rates = [numbers(1000, 50, like=like)["learning_rate"] for like in likes]
        assert rates[0] == 4e-3 and rates[-1] == pytest.approx(1.25e-4)
        assert all(after <= before <= 1.1 * after for before, after in zip(rates, rates[1:], strict=False))


def test_expected_ap_is_published_at_the_usual_size_and_falls_below_it():
    measured = {416: 0.288, 320: 0.261, 256: 0.220, 224: 0.198, 160: 0.130, 128: 0.084}  # 326 images of COCO val2017
    for side, mean_ap in measured.items():
        assert nets.expected_ap("yolox_nano", (side, side)) / 0.258 == pytest.approx(mean_ap / 0.288, abs=0.03)
    assert nets.expected_ap("yolox_nano", (640, 640)) == 0.258
    assert nets.expected_ap("tiny_n", (640, 640)) == 0  # without official weights


@pytest.mark.parametrize("epochs", [1, 5, 300])
@pytest.mark.parametrize("length", [1, 50, 100_000])
def test_chosen_numbers_leave_room_for_every_phase(length, epochs):
    for like in (None, 0, 1):
        chosen = numbers(length, epochs, like=like)
        schedule = schedule_of(length, epochs, 8, chosen)
        total = schedule.plan.steps_before(epochs)
        warm = sum(schedule.plan.position(step) < chosen["warmup_epochs"] for step in range(min(total, 20_000)))
        assert chosen["no_aug_epochs"] < epochs
        assert min(total, MIN_WARMUP) <= warm <= max(math.ceil(total / 10), MIN_WARMUP)
        assert warm >= 100 or total < 1000
        assert schedule(0) > 0


def test_adam_rates_grow_with_the_square_root_up_to_a_cap():
    def steps(batch, **given):
        chosen = numbers(10_000, 50, batch=batch, freeze_epochs=10, **given)
        rates = (chosen["learning_rate"], chosen["min_learning_rate"])
        plan = Plan.of(10_000, 50, 10, given.get("frozen", 2 * batch), batch, 1)
        schedule = Schedule(plan, "constant", *rates, 0, 10, chosen["power"], chosen["max_images"])
        return schedule(0), schedule(plan.steps_before(10))

    assert steps(16) == (pytest.approx(2e-3 * 2**0.5), 2e-3)
    assert [steps(n)[1] for n in (4, 64, 256, 1024)] == pytest.approx([1e-3, 4e-3, 4e-3, 4e-3])
    assert steps(64, frozen=128) == pytest.approx((4e-3, 4e-3))
    assert steps(16, learning_rate=2e-3) == pytest.approx((1e-3 * 2**0.5, 1e-3))  # also a rate that is given


def test_given_numbers_stay():
    given = {"no_aug_epochs": 0, "warmup_epochs": 5.0, "weight_decay": 0.0, "learning_rate": 0.0}
    chosen = numbers(300, 50, "sgd", **given)
    assert chosen.items() >= given.items() and chosen["min_learning_rate"] == 0 and chosen["power"] == 1
    assert numbers(300, 50, min_learning_rate=0.1)["learning_rate"] == 0.1  # not below the lowest


@pytest.mark.parametrize("kind", ["cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 3.5])
def test_learning_rate_per_image_is_continuous_at_the_thaw(kind, warmup):
    plan = Plan(epochs=20, freeze_epochs=3, frozen_steps=50, steps=100, frozen_images=32, images=16)
    schedule = Schedule(plan, kind, 0.01, 0.0005, warmup, 4)
    per_image = [schedule(s) / plan.images_at(s) for s in range(plan.steps_before(20))]
    jumps = [abs(a - b) for a, b in zip(per_image, per_image[1:], strict=False)]
    assert jumps[149] <= 1.01 * max(jumps[148], jumps[150]) < 0.01 / 64 / 25
    assert schedule(150) == pytest.approx(schedule(149) / 2, rel=0.05)  # half the images per step


def test_weight_decay_applies_to_convolution_and_linear_weights_only():
    for model in (detector(), nn.Sequential(toy(), nn.Flatten(), nn.Linear(4, 2), nn.LayerNorm(2))):
        decayed, others = parameter_groups(model, 0.05)
        assert decayed["weight_decay"] == 0.05 and others["weight_decay"] == 0
        layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        assert {id(p) for p in decayed["params"]} == {id(m.weight) for m in layers}
        both = [id(p) for p in decayed["params"] + others["params"]]
        assert sorted(both) == sorted(id(p) for p in model.parameters()) and others["params"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_step_equals_that_of_the_unfused_torch_optimizer(optimizer):
    """Neither the fused kernels nor the buffers made beforehand change the results."""
    model, twin = toy().double(), toy().double()
    kinds = {"sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True})}
    kinds |= {name: (kind, {}) for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW))}
    kind, options = kinds[optimizer]
    unfused = kind(parameter_groups(twin, 0.01), lr=0.01, foreach=False, fused=False, **options)
    updater = make_updater(model, optimizer)
    for step in range(4):
        updater.backward(model(images(step).double()).square().mean())
        unfused.zero_grad()
        twin(images(step).double()).square().mean().backward()
        unfused.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-9, atol=1e-12)
    assert not torch.equal(model[0].weight, toy().double()[0].weight)


def test_ema_equals_the_formula():
    updater = make_updater(toy(), total_steps=400)
    assert updater.ema.decay == pytest.approx(0.95) and updater.ema.tau == 20
    expected = {k: v.detach().double().clone() for k, v in updater.model.named_parameters()}
    for n in range(1, 30):
        good_step(updater, n)
        decay = 0.95 * (1 - math.exp(-n / 20))
        for name, p in updater.model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach().double()
    for name, p in updater.ema.model.named_parameters():
        assert torch.allclose(p.double(), expected[name], atol=1e-6)
    assert not torch.allclose(updater.ema.model[3].weight, updater.model[3].weight, atol=1e-3)


def test_ema_decay_depends_on_the_length_of_the_run():
    long, short = EMA(toy(), 10**6), EMA(toy(), 200)
    assert (long.decay, long.tau) == (pytest.approx(0.9998), 2000)
    assert (short.decay, short.tau) == (pytest.approx(0.9), 10)


@pytest.mark.parametrize("kind, clip", [("images", 0.0), ("loss", 10.0)])
@pytest.mark.parametrize("optimizer, steps_before", [("sgd", 0), ("adam", 2), ("adamw", 0), ("adamw", 2)])
def test_step_with_non_finite_gradients_changes_nothing(optimizer, clip, kind, steps_before):
    updater, twin = make_updater(toy(), optimizer, clip=clip), make_updater(toy(), optimizer, clip=clip)
    for step in range(steps_before):
        good_step(updater, step)
        good_step(twin, step)
    before = snapshot(updater)
    bad_step(updater, kind)
    assert_equal_bits(before, snapshot(updater))
    assert (updater.skipped, updater.bad_in_a_row, updater.step_number) == (1, 1, steps_before + 1)
    for step in range(5, 8):  # training continues as if the bad step had not happened
        good_step(updater, step)
        good_step(twin, step)
    assert_equal_bits(snapshot(updater), snapshot(twin))
    assert (updater.skipped, updater.bad_in_a_row, updater.ema.count) == (1, 0, steps_before + 3)
    after = snapshot(updater)
    assert not any(torch.equal(before[k], after[k]) for k in before if k.startswith(("model", "ema")))


def unfused(name, model):
    """An optimizer that does not know found_inf."""
    if name == "rmsprop":
        return torch.optim.RMSprop(parameter_groups(model, 0.01), lr=0.0, momentum=0.9)
    return torch.optim.SGD(parameter_groups(model, 0.01), lr=0.0, momentum=0.9, fused=False)


@pytest.mark.parametrize("amp", ["none", "fp16"])
@pytest.mark.parametrize("name", ["rmsprop", "sgd"])
def test_non_finite_step_of_an_unfused_optimizer_changes_nothing(name, amp):
    first, second = toy(), toy()
    updater = Updater(first, unfused(name, first), FLAT, EMA(first, 200), amp, clip=10.0)
    twin = Updater(second, unfused(name, second), FLAT, EMA(second, 200), amp, clip=10.0)
    for step in range(2):
        good_step(updater, step)
        good_step(twin, step)
    before = snapshot(updater)
    bad_step(updater)
    assert_equal_bits(before, snapshot(updater))
    assert updater.skipped == 1 and updater.step_number == 3
    if amp == "none":  # the scaler lowers its scale, which changes rounding
        good_step(updater, 3)
        good_step(twin, 3)
        assert_equal_bits(snapshot(updater), snapshot(twin))
    assert all(value.isfinite().all() for value in snapshot(updater).values())


@pytest.mark.parametrize("bad", [0, 1])
def test_bad_batch_skips_its_accumulated_step_and_no_other(bad):
    updater = make_updater(toy(), accumulate=2)
    good_step(updater, 0)
    good_step(updater, 1)
    before = snapshot(updater)
    for batch in range(2):
        bad_step(updater) if batch == bad else good_step(updater, 2)
    assert_equal_bits(before, snapshot(updater))
    assert updater.skipped == 1 and updater.step_number == 2 and updater.micro == 0


def test_check_is_false_after_too_many_bad_steps_in_a_row():
    updater = make_updater(toy())
    for _ in range(MAX_BAD_STEPS - 1):
        bad_step(updater)
    assert updater.check()
    good_step(updater, 0)
    for _ in range(MAX_BAD_STEPS - 1):
        bad_step(updater)
    assert updater.check() and updater.skipped == 2 * (MAX_BAD_STEPS - 1)
    bad_step(updater)
    assert not updater.check()


def test_two_accumulated_half_batches_equal_the_whole_batch():
    """With a loss that is a mean, and batch norms in evaluation mode."""
    whole, halves = make_updater(toy().double(), clip=0.1), make_updater(toy().double(), clip=0.1, accumulate=2)
    for updater in (whole, halves):
        updater.model.eval()
    for step in range(5):
        batch = images(step).double()
        whole.backward(whole.model(batch).square().mean())
        for part in batch.split(2):
            halves.backward(halves.model(part).square().mean())
    assert whole.step_number == halves.step_number == 5
    a, b = snapshot(whole), snapshot(halves)
    assert all(torch.allclose(a[k], b[k], rtol=1e-9, atol=1e-12) for k in a)
    assert not torch.equal(whole.model[0].weight, toy().double()[0].weight)


def test_clipping_limits_the_norm_of_the_gradient():
    model = nn.Sequential(nn.Linear(3, 1, bias=False), nn.BatchNorm1d(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)
    updater, weight = Updater(model, optimizer, FLAT, EMA(model, 10), clip=2.0), model[0].weight
    for slope, move in (([300.0, 0, 400], [1.2, 0, 1.6]), ([0.3, 0, 0.4], [0.3, 0, 0.4])):
        before = weight.clone()
        updater.backward((weight * torch.tensor(slope)).sum())
        assert torch.allclose(before - weight, 0.01 * torch.tensor([move]), atol=1e-6)


def test_clipping_in_fp16_sees_gradients_without_the_loss_scale():
    moves = []
    for amp in ("none", "fp16"):
        updater = make_updater(toy(), amp=amp, clip=2.0)
        before = updater.model[0].weight.clone()
        updater.backward(100 * updater.model.train()(images(0)).square().mean())
        assert updater.skipped == 0
        moves.append(updater.model[0].weight.detach() - before)
    assert moves[0].abs().max() > 1e-4 and torch.allclose(*moves, rtol=1e-4, atol=1e-9)


def test_step_uses_the_learning_rate_of_the_schedule():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    schedule = Schedule(Plan(4, 1, 2, 3, 128, 64), "cosine", 0.1, 0.01, 1, 1)
    updater = Updater(model, torch.optim.SGD(model.parameters(), lr=0.0, fused=True), schedule, EMA(model, 10))
    for step in range(11):
        assert updater.learning_rate == schedule(step)
        before = model[0].weight.item()
        updater.backward(model[0].weight.sum())
        assert before - model[0].weight.item() == pytest.approx(schedule(step), abs=1e-6)


def test_bf16_autocast_keeps_weights_in_float32():
    updater = make_updater(toy(), amp="bf16")
    with updater.autocast():
        out = updater.model(images(0))
    assert out.dtype == torch.bfloat16
    updater.backward(out.float().square().mean())
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in updater.model.parameters())
    assert updater.skipped == 0 and not torch.equal(updater.model[0].weight, toy()[0].weight)


@pytest.mark.parametrize("amp", ["none", "fp16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_finite_gradients_whose_norm_overflows_change_nothing(optimizer, amp):
    """The optimizer skips the step that statistics and EMA skip: the scaler finds no gradient that is not finite."""
    updater = make_updater(toy(), optimizer, amp=amp, clip=10.0)
    updater.backward(updater.model.train()(images(0)).square().mean())  # so that momentum would move the weights
    before = snapshot(updater)
    for p in updater.parameters:
        p.grad = torch.full_like(p, 1e30)
    updater.backward(updater.model(images(1)).square().mean())
    assert updater.skipped == 1 and updater.bad_in_a_row == 1
    assert_equal_bits(snapshot(updater), before)


def test_fp16_scaler_skips_an_overflow_and_lowers_its_scale():
    updater = make_updater(toy(), "adamw", amp="fp16", clip=10.0)
    good_step(updater, 0)
    before, scale = snapshot(updater), updater.scaler.get_scale()
    bad_step(updater)
    assert_equal_bits(before, snapshot(updater))
    assert updater.scaler.get_scale() == scale / 2 and updater.skipped == 1
    good_step(updater, 1)
    assert not torch.equal(before["model.0.weight"], updater.model[0].weight)


@pytest.mark.parametrize("optimizer, frozen_before", [("sgd", False), ("adam", True), ("adamw", True)])
def test_resumed_training_equals_uninterrupted_training_bit_for_bit(optimizer, frozen_before):
    schedule = Schedule(Plan(4, 2, 2, 2, 16, 8), "cosine", 0.05, 0.001, 1, 1)
    updater = make_updater(detector(), optimizer, schedule, clip=10.0)
    fit_detector(updater, 2, frozen_before)
    updater.skipped, updater.bad_in_a_row = updater.skipped + 3, updater.bad_in_a_row + 2
    file = io.BytesIO()
    torch.save({"model": updater.model.state_dict(), "updater": updater.state_dict()}, file)
    fit_detector(updater, 3, frozen=False)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    torch.manual_seed(5)
    again = make_updater(detector(), optimizer, schedule, clip=10.0)
    again.model.load_state_dict(saved["model"])
    again.load_state_dict(saved["updater"])
    assert (again.step_number, again.skipped, again.bad_in_a_row) == (2, 3, 2)
    fit_detector(again, 3, frozen=False)
    assert_equal_bits(snapshot(updater), snapshot(again))
    assert torch.equal(updater.good_statistics, again.good_statistics)
    assert (again.step_number, again.learning_rate) == (5, updater.learning_rate)


def test_resumed_fp16_training_continues_with_the_scale_of_the_loss():
    """And with the number of good steps, after which the scale grows."""
    updater = make_updater(toy(), amp="fp16")
    for step in range(2):
        bad_step(updater)
        good_step(updater, step)
    again = make_updater(toy(1), amp="fp16")
    fresh = again.scaler.state_dict()
    again.load_state_dict(copy.deepcopy(updater.state_dict()))
    for name in ("scale", "_growth_tracker"):
        assert again.scaler.state_dict()[name] == updater.scaler.state_dict()[name] != fresh[name]


def test_bad_step_right_after_resuming_restores_the_loaded_statistics():
    updater = make_updater(toy())
    good_step(updater, 0)
    saved = copy.deepcopy((updater.model.state_dict(), updater.state_dict()))
    again = make_updater(toy(1))
    again.model.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    bad_step(again)
    assert_equal_bits(snapshot(updater), snapshot(again))


@pytest.mark.parametrize("before, after", [("none", "fp16"), ("fp16", "none")])
def test_run_may_be_resumed_on_a_device_with_or_without_a_scaler(before, after):
    """amp=fp16 scales the loss on a GPU only, so a run that began on a CPU has an empty scaler state."""
    updater = make_updater(toy(), amp=before)
    good_step(updater, 0)
    again = make_updater(toy(1), amp=after)
    again.model.load_state_dict(copy.deepcopy(updater.model.state_dict()))
    again.load_state_dict(copy.deepcopy(updater.state_dict()))
    assert again.scaler.is_enabled() == (after == "fp16") and again.step_number == 1
    assert_equal_bits(snapshot(updater), snapshot(again))
    weights = snapshot(again)["model.0.weight"]
    good_step(again, 1)
    assert again.skipped == 0 and not torch.equal(weights, again.model[0].weight)
