"""utils/memory.py: how many images fit. The measuring itself needs a GPU."""

from dataclasses import replace

import pytest
import torch

import nets
import train
from nets.losses import YOLOXCriterion
from utils import memory
from utils.config import ConfigError
from utils.optim import Plan

GIB = 2**30


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of 10 GiB, of which so much is free."""

    def of(free=10 * GIB, reserved=0):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 10 * GIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved)
        return torch.device("cuda")

    return of


@pytest.mark.parametrize(
    ("each", "most", "fits"),
    [(GIB, 1000, 8), (GIB * 1.01, 1000, 4), (GIB / 100, 1000, 512), (GIB / 100, 20, 16), (9 * GIB, 1000, 0)],
)
def test_the_largest_power_of_two_in_80_percent(gpu, each, most, fits):
    assert memory.largest_batch(lambda images: images * each, most, gpu()) == fits


def test_what_others_have_taken_counts_and_what_torch_keeps_does_not(gpu):
    assert memory.largest_batch(lambda images: images * GIB, 100, gpu(free=3 * GIB)) == 2
    assert memory.largest_batch(lambda images: images * GIB, 100, gpu(free=3 * GIB, reserved=1 * GIB)) == 4


def test_a_step_that_runs_out_of_memory_does_not_fit(gpu):
    def step(images):
        if images > 2:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return 0

    assert memory.largest_batch(step, 100, gpu()) == 2


def test_what_does_not_fit_names_the_constant_of_its_phase_and_what_keeps_the_step():
    plan = Plan(epochs=3, freeze_epochs=1, frozen_steps=5, steps=9, frozen_images=64, images=32)
    assert memory.less_memory(plan, accumulate=2) == (
        "lower batch_size=16 to 8; for steps of as many images as before accumulate=4 (and freeze_batch_size=16)"
    )
    assert "lower freeze_batch_size=64 to 32;" in memory.less_memory(plan, 1, frozen=True)
    single = replace(plan, images=1)
    assert "batch_size is 1 already: lower image_size" in memory.less_memory(single, 1)


@pytest.mark.parametrize("name", ["batch_size", "freeze_batch_size"])
def test_on_a_cpu_the_user_must_choose(painted, tmp_path, name):
    data = str(painted(3))
    cfg = train.Config(
        train=data, val=data, weights=None, device="cpu", workers=0, output=str(tmp_path / "runs"), **{name: 0}
    )
    with pytest.raises(ConfigError, match=f"{name}=0.*such as 16"):
        train.main(cfg)
    assert not (tmp_path / "runs").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("amp", ["none", "fp16"])
def test_the_probe_is_right_within_10_percent(amp):
    cfg = train.Config(weights=None, amp=amp, freeze_epochs=0)
    model = nets.build("yolox_s", 80).cuda().to(memory_format=torch.channels_last)
    criterion, size = YOLOXCriterion(model.strides), (416, 416)
    foretold = memory.training_memory(model, criterion, size, 16, 20, amp)
    updater = train.make_updater(cfg, model.train(), train.make_plan(cfg, 160, 0))
    images = torch.randint(0, 256, (16, 3, *size), dtype=torch.uint8, device="cuda")
    boxes = torch.tensor([32.0, 32.0, 96.0, 96.0], device="cuda").repeat(16, 20, 1)
    labels = torch.zeros(16, 20, dtype=torch.int64, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        with updater.autocast():
            predictions = model(images)
        updater.step(criterion(predictions, boxes, labels, size)["total"])
    assert abs(foretold / torch.cuda.max_memory_allocated() - 1) < 0.1
