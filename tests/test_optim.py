"""utils/optim.py: schedules, groups of parameters, and the moving average. (The Updater: test_updater.py.)"""

import copy
import math

import pytest
import torch
from torch import nn
from toys import FLAT, detector, fit_detector, good_step, images, make_updater, toy

from utils.optim import EMA, Plan, Schedule, Updater, build_optimizer, parameter_groups

OPTIMIZERS = ["sgd", "adam", "adamw"]


def test_plan_counts_steps_through_both_phases():
    plan = Plan(epochs=10, freeze_epochs=3, frozen_steps=5, steps=8, frozen_images=32, images=16)
    assert [plan.before(e) for e in (0, 1, 3, 4, 10)] == [0, 5, 15, 23, 71]
    assert all(plan.position(plan.before(e)) == e for e in range(11))
    positions = [plan.position(s) for s in range(71)]
    assert all(a < b for a, b in zip(positions, positions[1:], strict=False))
    assert [plan.images_at(s) for s in (0, 14, 15, 70)] == [32, 32, 16, 16]


@pytest.mark.parametrize("kind", ["cosine", "step", "constant"])
def test_learning_rate_is_a_pure_function_of_the_step(kind):
    schedule = Schedule(Plan(10, 2, 5, 8, 32, 16), kind, 0.01, 0.001, 1, 2)
    forwards = [schedule(s) for s in range(70)]
    assert [schedule(s) for s in reversed(range(70))] == forwards[::-1]
    assert forwards == [copy.deepcopy(schedule)(s) for s in range(70)]


def test_warm_up_is_quadratic_from_zero():
    schedule = Schedule(Plan(100, 0, 10, 10, 64, 64), "cosine", 0.02, 0.001, 5, 10)
    assert [schedule.at(e) for e in (0, 1, 2.5, 4)] == pytest.approx([0, 0.02 / 25, 0.02 / 4, 0.02 * 16 / 25])
    assert schedule.at(5) == pytest.approx(0.02) == max(schedule(s) for s in range(1000))
    assert schedule(25) == schedule.at(2.5)  # 10 steps an epoch


def test_cosine_falls_to_the_minimum_and_stays_there():
    schedule = Schedule(Plan(100, 0, 10, 10, 64, 64), "cosine", 0.02, 0.001, 5, 10)
    assert schedule.at(47.5) == pytest.approx((0.02 + 0.001) / 2)
    assert [schedule.at(e) for e in (90, 95, 99.9)] == pytest.approx([0.001] * 3)
    falling = [schedule(s) for s in range(50, 900)]
    assert all(a > b for a, b in zip(falling, falling[1:], strict=False)) and falling[-1] > 0.001


def test_steps_are_a_tenth_and_a_hundredth():
    schedule = Schedule(Plan(100, 0, 10, 10, 64, 64), "step", 0.01, 0.0, 0, 0)
    assert [schedule.at(e) for e in (0, 59.9, 60, 84.9, 85, 99)] == pytest.approx(
        [0.01, 0.01, 0.001, 0.001, 0.0001, 0.0001]
    )


@pytest.mark.parametrize("kind", ["cosine", "step", "constant"])
def test_learning_rate_zero_is_zero_everywhere(kind):
    schedule = Schedule(Plan(10, 2, 5, 8, 32, 16), kind, 0.0, 0.0, 1, 2)
    assert not any(schedule(s) for s in range(74))


def test_learning_rate_is_quoted_for_64_images():
    rates = [Schedule(Plan(10, 0, 5, 5, n, n), "constant", 0.01, 0.01, 0, 0)(7) for n in (64, 16, 128)]
    assert rates == pytest.approx([0.01, 0.0025, 0.02])


@pytest.mark.parametrize("kind", ["cosine", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 3.5])
def test_pitfall_25_learning_rate_per_image_is_continuous_at_the_thaw(kind, warmup):
    plan = Plan(epochs=20, freeze_epochs=3, frozen_steps=50, steps=100, frozen_images=32, images=16)
    schedule = Schedule(plan, kind, 0.01, 0.0005, warmup, 4)
    per_image = [schedule(s) / plan.images_at(s) for s in range(plan.before(20))]
    jumps = [abs(a - b) for a, b in zip(per_image, per_image[1:], strict=False)]
    assert jumps[149] <= 1.01 * max(jumps[148], jumps[150]) < 0.01 / 64 / 25
    assert schedule(150) == pytest.approx(schedule(149) / 2, rel=0.05)  # half the images a step


@pytest.mark.parametrize("epochs, freeze, warmup, plain", [(1, 0, 1, 10), (1, 1, 0, 0), (3, 3, 5, 3), (2, 0, 0, 2)])
def test_short_runs_have_a_learning_rate(epochs, freeze, warmup, plain):
    schedule = Schedule(Plan(epochs, freeze, 1, 1, 64, 64), "cosine", 0.01, 0.001, warmup, plain)
    assert all(0 <= schedule(s) < 0.010001 for s in range(epochs + 1))


def test_unknown_words_name_the_known_ones():
    with pytest.raises(ValueError, match="schedule='linear'.*cosine, step or constant"):
        Schedule(FLAT.plan, "linear", 0.01, 0.001, 1, 0)
    with pytest.raises(ValueError, match="optimizer='lion'.*sgd, adam or adamw"):
        build_optimizer("lion", toy(), 0.01)
    with pytest.raises(ValueError, match="amp='half'.*fp16, bf16 or none"):
        make_updater(toy(), amp="half")


def test_weight_decay_is_for_weights_of_convolutions_and_linear_layers_only():
    for model in (detector(), nn.Sequential(toy(), nn.Flatten(), nn.Linear(4, 2), nn.LayerNorm(2))):
        decayed, plain = parameter_groups(model, 0.05)
        assert decayed["weight_decay"] == 0.05 and plain["weight_decay"] == 0
        layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        assert {id(p) for p in decayed["params"]} == {id(m.weight) for m in layers}
        both = [id(p) for p in decayed["params"] + plain["params"]]
        assert sorted(both) == sorted(id(p) for p in model.parameters()) and plain["params"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_is_that_of_the_plain_optimizer(optimizer):
    """Neither the fused kernels nor the buffers made beforehand change what is computed."""
    model, twin = toy().double(), toy().double()
    kinds = {"sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True})}
    kinds |= {name: (kind, {}) for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW))}
    kind, options = kinds[optimizer]
    plain = kind(parameter_groups(twin, 0.01), lr=0.01, foreach=False, fused=False, **options)
    updater = make_updater(model, optimizer)
    for step in range(4):
        updater.step(model(images(step).double()).square().mean())
        plain.zero_grad()
        twin(images(step).double()).square().mean().backward()
        plain.step()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(p, q, rtol=1e-9, atol=1e-12)
    assert not torch.equal(model[0].weight, toy().double()[0].weight)


def test_ema_equals_the_formula():
    updater = make_updater(toy(), total_steps=400)
    assert updater.ema.decay == pytest.approx(0.95) and updater.ema.tau == 20
    wanted = {k: v.double() for k, v in updater.model.named_parameters()}
    wanted = {k: v.detach().clone() for k, v in wanted.items()}
    for n in range(1, 30):
        good_step(updater, n)
        decay = 0.95 * (1 - math.exp(-n / 20))
        for name, p in updater.model.named_parameters():
            wanted[name] = decay * wanted[name] + (1 - decay) * p.detach().double()
    for name, p in updater.ema.model.named_parameters():
        assert torch.allclose(p.double(), wanted[name], atol=1e-6)
    assert not torch.allclose(updater.ema.model[3].weight, updater.model[3].weight, atol=1e-3)


def test_ema_of_a_long_run_is_that_of_yolox_and_of_a_short_run_follows_closer():
    long, short = EMA(toy(), 10**6), EMA(toy(), 200)
    assert (long.decay, long.tau) == (pytest.approx(0.9998), 2000)
    assert (short.decay, short.tau) == (pytest.approx(0.9), 10)


def test_ema_is_for_evaluation_and_shares_no_memory():
    model = toy().train()
    ema = EMA(model, 100)
    assert not ema.model.training and not any(p.requires_grad for p in ema.model.parameters())
    assert ema.model[0].weight.data_ptr() != model[0].weight.data_ptr()


def test_ema_copies_the_statistics_of_batch_norm():
    updater = make_updater(toy())
    good_step(updater, 0)
    for name, buffer in updater.model.named_buffers():
        assert torch.equal(buffer, updater.ema.model.get_buffer(name))
    assert updater.model[1].running_mean.any()


def test_ema_switched_off_is_the_model():
    model = toy()
    updater = Updater(model, build_optimizer("sgd", model, 0.0), FLAT, EMA(model, 1000, enabled=False))
    for step in range(5):
        good_step(updater, step)
    for name, p in updater.ema.model.named_parameters():
        assert torch.equal(p, model.get_parameter(name))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_pitfall_5_ema_of_a_frozen_backbone_is_the_backbone(optimizer):
    updater = make_updater(detector(), optimizer)
    start = copy.deepcopy(updater.model.state_dict())
    fit_detector(updater, 4, frozen=True)
    now, averaged = updater.model.state_dict(), updater.ema.model.state_dict()
    parts = [k for k in now if k.startswith("backbone.")]
    assert all(torch.equal(start[k], now[k]) and torch.equal(start[k], averaged[k]) for k in parts)
    assert not torch.equal(now["neck.reduce_stride32.conv.weight"], averaged["neck.reduce_stride32.conv.weight"])
    fit_detector(updater, 2, frozen=False)
    assert not torch.equal(start["backbone.stem.conv.weight"], updater.ema.model.backbone.stem.conv.weight)
