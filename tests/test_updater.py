"""utils/optim.py: the Updater. Steps that go wrong, accumulation, clipping, mixed precision, and going on after a break."""

import copy
import io

import pytest
import torch
from torch import nn
from toys import (
    FAMILIES,
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
from nets.yolox import YOLOX
from utils.optim import EMA, MOST_BAD_STEPS, Plan, Schedule, Updater

OPTIMIZERS = ["sgd", "adam", "adamw"]


@pytest.mark.parametrize("kind", ["pictures", "loss"])
@pytest.mark.parametrize("clip", [0.0, 10.0])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps_before", [0, 2])
def test_pitfall_2_non_finite_gradients_change_nothing(optimizer, clip, kind, steps_before):
    updater, twin = make_updater(toy(), optimizer, clip=clip), make_updater(toy(), optimizer, clip=clip)
    for step in range(steps_before):
        good_step(updater, step)
        good_step(twin, step)
    before = snapshot(updater)
    bad_step(updater, kind)
    assert_equal_bits(before, snapshot(updater))
    assert (updater.skipped, updater.bad_in_a_row, updater.step_number) == (1, 1, steps_before + 1)
    for step in range(5, 8):  # and training goes on as if the step had never been
        good_step(updater, step)
        good_step(twin, step)
    assert_equal_bits(snapshot(updater), snapshot(twin))
    assert (updater.skipped, updater.bad_in_a_row, updater.ema.count) == (1, 0, steps_before + 3)
    after = snapshot(updater)
    assert not any(torch.equal(before[k], after[k]) for k in before if k.startswith(("model", "ema")))


@pytest.mark.parametrize("order", ["bad first", "good first"])
def test_a_bad_batch_spoils_its_whole_accumulated_step_and_no_more(order):
    updater = make_updater(toy(), accumulate=2)
    good_step(updater, 0)
    good_step(updater, 1)
    before = snapshot(updater)
    for kind in order.split():
        if kind == "bad":
            bad_step(updater)
        elif kind == "good":
            good_step(updater, 2)
        else:
            (good_step(updater, 3) if order.startswith("bad") else bad_step(updater))
    assert_equal_bits(before, snapshot(updater))
    assert updater.skipped == 1 and updater.step_number == 2 and updater.micro == 0


def test_check_is_false_after_a_run_of_bad_steps_only():
    updater = make_updater(toy())
    for _ in range(MOST_BAD_STEPS - 1):
        bad_step(updater)
    assert updater.check()
    good_step(updater, 0)
    for _ in range(MOST_BAD_STEPS - 1):
        bad_step(updater)
    assert updater.check() and updater.skipped == 2 * (MOST_BAD_STEPS - 1)
    bad_step(updater)
    assert not updater.check()


def test_half_batches_accumulated_are_the_whole_batch():
    """With a loss that is a mean and batch norms that do not mix pictures."""
    whole, halves = make_updater(toy().double(), clip=0.1), make_updater(toy().double(), clip=0.1, accumulate=2)
    for updater in (whole, halves):
        updater.model.eval()
    for step in range(5):
        batch = images(step).double()
        whole.step(whole.model(batch).square().mean())
        for part in batch.split(2):
            halves.step(halves.model(part).square().mean())
    assert whole.step_number == halves.step_number == 5
    a, b = snapshot(whole), snapshot(halves)
    assert all(torch.allclose(a[k], b[k], rtol=1e-9, atol=1e-12) for k in a)
    assert not torch.equal(whole.model[0].weight, toy().double()[0].weight)


def test_clipping_bounds_the_norm_of_the_gradient():
    model = nn.Sequential(nn.Linear(3, 1, bias=False), nn.BatchNorm1d(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)
    updater, weight = Updater(model, optimizer, FLAT, EMA(model, 10), clip=2.0), model[0].weight
    for slope, move in (([300.0, 0, 400], [1.2, 0, 1.6]), ([0.3, 0, 0.4], [0.3, 0, 0.4])):
        before = weight.clone()
        updater.step((weight * torch.tensor(slope)).sum())
        assert torch.allclose(before - weight, 0.01 * torch.tensor([move]), atol=1e-6)


def test_learning_rate_of_a_step_is_that_of_the_schedule():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1))
    schedule = Schedule(Plan(4, 1, 2, 3, 128, 64), "cosine", 0.1, 0.01, 1, 1)
    updater = Updater(model, torch.optim.SGD(model.parameters(), lr=0.0, fused=True), schedule, EMA(model, 10))
    for step in range(11):
        assert updater.learning_rate == schedule(step)
        before = model[0].weight.item()
        updater.step(model[0].weight.sum())
        assert before - model[0].weight.item() == pytest.approx(schedule(step), abs=1e-6)


def test_bf16_forward_leaves_weights_in_float32():
    updater = make_updater(toy(), amp="bf16")
    with updater.autocast():
        out = updater.model(images(0))
    assert out.dtype == torch.bfloat16
    updater.step(out.float().square().mean())
    assert all(p.dtype == torch.float32 and p.isfinite().all() for p in updater.model.parameters())
    assert updater.skipped == 0 and not torch.equal(updater.model[0].weight, toy()[0].weight)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fp16_scaler_skips_an_overflow_and_lowers_its_scale(optimizer):
    updater = make_updater(toy(), optimizer, amp="fp16", clip=10.0)
    good_step(updater, 0)
    before, scale = snapshot(updater), updater.scaler.get_scale()
    bad_step(updater)
    assert_equal_bits(before, snapshot(updater))
    assert updater.scaler.get_scale() == scale / 2 and updater.skipped == 1
    good_step(updater, 1)
    assert not torch.equal(before["model.0.weight"], updater.model[0].weight)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("frozen_before", [False, True])
def test_pitfall_4_resumed_is_uninterrupted_bit_for_bit(optimizer, frozen_before):
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
    again = make_updater(YOLOX(0.33, 0.125, True, 3), optimizer, schedule, clip=10.0)
    again.model.load_state_dict(saved["model"])
    again.load_state_dict(saved["updater"])
    assert (again.step_number, again.skipped, again.bad_in_a_row) == (2, 3, 2)
    fit_detector(again, 3, frozen=False)
    assert_equal_bits(snapshot(updater), snapshot(again))
    assert torch.equal(updater.good_statistics, again.good_statistics)
    assert (again.step_number, again.learning_rate) == (5, updater.learning_rate)


def test_a_bad_step_right_after_resuming_goes_back_to_the_loaded_statistics():
    updater = make_updater(toy())
    good_step(updater, 0)
    saved = copy.deepcopy((updater.model.state_dict(), updater.state_dict()))
    again = make_updater(toy(1))
    again.model.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    bad_step(again)
    assert_equal_bits(snapshot(updater), snapshot(again))


@pytest.mark.gpu
@pytest.mark.parametrize("amp", ["none", "fp16", "bf16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_step_waits_for_the_gpu(family, optimizer, amp):
    model = detector(family).cuda()
    updater, criterion = make_updater(model, optimizer, amp=amp, clip=10.0), nets.criterion(model, plain=True)
    pictures = torch.randint(0, 256, (2, 3, 64, 64), device="cuda", dtype=torch.uint8)
    boxes, labels = torch.tensor([[[8.0, 8, 40, 48]]] * 2).cuda(), torch.tensor([[0], [2]]).cuda()
    try:
        for step in range(4):
            torch.cuda.set_sync_debug_mode("error" if step else "default")  # the first step sets kernels up
            with updater.autocast():
                predictions = model(pictures)
            updater.step(criterion(predictions, boxes, labels, (64, 64))["total"])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert updater.check() and updater.step_number == 4
