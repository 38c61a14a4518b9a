"""engine/memory.py: the batch size that fits a GPU, and advice if none does."""

import gc
import inspect
from dataclasses import replace

import pytest
import torch
from refused import refused, told
from simulated_gpu import simulated_gpu
from small import config, only_run, train_quietly
from toys import toy

import nets
import train
from engine import epoch, memory
from engine.memory import StepProbe
from engine.optimizer import EMA, Updater, build_optimizer
from engine.rates import MAX_GRADIENT_NORM
from engine.schedule import Plan, Schedule
from utils import checkpoint
from utils.config import ConfigError
from utils.processes import Ranks

GIB = 2**30


@pytest.fixture
def gpu(monkeypatch):
    """`gpu(free, reserved)`: a pretended GPU of 10 GiB."""

    def build(free=10 * GIB, reserved=0):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 10 * GIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved)
        return torch.device("cuda")

    return build


@pytest.mark.parametrize(
    ("each", "limit", "fits"),
    [(GIB, 1000, 8), (GIB * 1.01, 1000, 4), (GIB / 100, 1000, 512), (GIB / 100, 20, 16), (9 * GIB, 1000, 0)],
)
def test_largest_batch_is_a_power_of_two_that_fills_80_percent(gpu, each, limit, fits):
    assert memory.largest_batch(lambda images: images * each, limit, gpu()) == fits


def test_memory_of_other_programs_is_not_free_but_reserved_memory_is(gpu):
    assert memory.largest_batch(lambda images: images * GIB, 100, gpu(free=3 * GIB)) == 2
    assert memory.largest_batch(lambda images: images * GIB, 100, gpu(free=3 * GIB, reserved=1 * GIB)) == 4


def test_automatic_batch_sizes_of_both_phases(gpu):
    def step_bytes(images, frozen=False):
        return images * (GIB if frozen else 2 * GIB)

    ranks, sizes = Ranks(device=gpu()), {"freeze_batch_size": 0, "batch_size": 0}
    assert memory.choose_batch_sizes(sizes, step_bytes, 100, 1, ranks) == {
        "freeze_batch_size": 8,
        "batch_size": 4,
    }
    assert memory.choose_batch_sizes({**sizes, "batch_size": 6}, step_bytes, 100, 1, ranks)["batch_size"] == 6
    with refused(ConfigError, "freeze_batch_size=0", "image_size"):
        memory.choose_batch_sizes(sizes, lambda *_, **__: 100 * GIB, 100, 1, ranks)


@pytest.mark.parametrize(
    ("length", "accumulate", "gpus", "batch_size"),
    [
        *((100_000, 1, 1, 128), (100_000, 1, 4, 512), (5000, 1, 1, 64), (5000, 1, 4, 64)),
        *((450, 1, 8, 8), (650, 1, 4, 8), (1250, 1, 8, 16), (5000, 4, 1, 16), (5000, 4, 4, 16)),
        *((200, 1, 1, 8), (200, 1, 8, 8), (200, 4, 1, 2), (200, 4, 8, 8), (9, 1, 1, 8)),
    ],
)
def test_automatic_batch_leaves_fifty_steps_per_epoch_and_has_at_most_128_images_per_gpu(
    gpu, length, accumulate, gpus, batch_size, monkeypatch
):
    """With a model so small that thousands of images fit. Few images: 8 per optimizer step, or one on each GPU."""
    ranks = Ranks(world_size=gpus, device=gpu())
    monkeypatch.setattr(Ranks, "gather", lambda self, value: [value] * gpus)
    sizes = {"freeze_batch_size": 0, "batch_size": 0}
    chosen = memory.choose_batch_sizes(sizes, lambda images, frozen: images, length, accumulate, ranks)
    assert chosen == dict.fromkeys(sizes, batch_size)


def too_large(message, error=RuntimeError):
    """A model whose forward pass fails with this message."""
    model = toy()
    model.freeze_backbone, model.first_class = lambda frozen: None, 0
    model.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(error(message)))
    return model


@pytest.mark.parametrize(
    "message",
    [
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
        "Unable to find a valid cuDNN algorithm to run convolution",
        "Expected canUse32BitIndexMath(input) && canUse32BitIndexMath(output) to be true, but got false",
        "upsample_nearest2d only supports output tensors with less than INT_MAX elements",
        "CUDA error: out of memory",
        "FIND was unable to find an engine to execute this computation",
    ],
)
def test_step_that_is_too_large_for_a_kernel_counts_as_out_of_memory(message):
    with simulated_gpu(), pytest.raises(torch.cuda.OutOfMemoryError, match="."):
        StepProbe(too_large(message).to("cuda:0"), None, (64, 64), 1, "none").bytes(4)


def test_other_errors_of_the_probe_are_not_taken_for_a_lack_of_memory():
    with simulated_gpu(), pytest.raises(RuntimeError, match="shapes") as raised:
        StepProbe(too_large("shapes").to("cuda:0"), None, (64, 64), 1, "none").bytes(4)
    assert not isinstance(raised.value, torch.cuda.OutOfMemoryError)


def test_gpu_logs_every_20_steps_or_2_seconds_and_ranks_agree():
    assert [epoch.batches_to_log(pace, 1, Ranks()) for pace in (100.0, 5.0, 0.4, 0.01)] == [20, 10, 0, 0]
    assert epoch.batches_to_log(100.0, 4, Ranks()) == 80

    class Two(Ranks):
        def sum(self, x):
            return x + 6  # the other rank measured 3 batches per second

    assert epoch.batches_to_log(5.0, 1, Two(world_size=2)) == 8


def test_train_probes_both_phases_and_trains_with_the_batch_sizes_that_fit(demo_images, tmp_path, monkeypatch):
    """The probe is called as train.py calls it, and asked about the right batches."""
    probed = []

    def step_bytes(self, batch_size, frozen=False):
        probed.append((self.image_size, self.boxes, self.amp, batch_size, frozen))
        return batch_size * (GIB if frozen else 2 * GIB)

    assert list(inspect.signature(StepProbe.bytes).parameters) == list(inspect.signature(step_bytes).parameters)
    monkeypatch.setattr(StepProbe, "bytes", step_bytes)
    automatic = {"device": "auto", "batch_size": 0, "freeze_batch_size": 0}
    cfg = config(demo_images, tmp_path, **automatic, multi_scale=0.5, epochs=2, learning_rate=0.01)
    with simulated_gpu(memory=10 * GIB):
        *_, text = train_quietly(cfg)
    assert [(size, frozen) for *_, size, frozen in probed[:4]] == [(1, True), (2, True), (4, True), (8, True)]
    assert probed[-1][3:] == (4, False)  # the memory of a thawed step is printed at the start
    assert {images[:1] + images[2:3] for images in probed} == {((96, 96), "fp16")}
    assert all(isinstance(boxes, int) and boxes % 4 == 0 for _, boxes, *_ in probed)  # a mosaic has four images
    told(text, "8.0 GiB")
    saved = checkpoint.load(only_run(tmp_path) / "last.pt")
    assert (saved["config"]["freeze_batch_size"], saved["config"]["batch_size"]) == (8, 4)


def test_thawed_step_that_does_not_fit_ends_the_run_at_its_start(demo_images, tmp_path, monkeypatch):
    def step_bytes(*_, **__):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(StepProbe, "bytes", step_bytes)
    cfg = config(demo_images, tmp_path / "runs", device="auto", epochs=2)
    with simulated_gpu(), refused(torch.cuda.OutOfMemoryError, "batch_size=4", "accumulate=2", "freeze_batch_size=3"):
        train.main(cfg)
    assert not (tmp_path / "runs").exists()
    with simulated_gpu():
        train_quietly(replace(cfg, epochs=1))  # no step is thawed, and none is measured


def test_step_that_runs_out_of_memory_ends_the_run_with_advice(demo_images, tmp_path):
    class OutOfMemory(Updater):
        def backward(self, *_):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with refused(torch.cuda.OutOfMemoryError, "freeze_batch_size=6", "accumulate=2", "batch_size=2"):
        train.main(config(demo_images, tmp_path), parts=train.Parts(updater=OutOfMemory))
    assert not gc.get_freeze_count()  # the garbage collector can free what the run has left


@pytest.mark.parametrize("ranks", [Ranks(), Ranks(device=torch.device("cuda"), all_gpus=True)])
@pytest.mark.parametrize("name", ["batch_size", "freeze_batch_size"])
def test_automatic_batch_size_needs_one_gpu_per_process(name, ranks):
    with refused(ConfigError, f"{name}=0", "cuda:all" if ranks.all_gpus else "cpu"):
        memory.choose_batch_sizes({name: 0}, lambda *_, **__: 1, 100, 1, ranks)


@pytest.mark.gpu
@pytest.mark.parametrize("amp", ["none", "fp16"])
def test_probe_is_right_within_10_percent(amp):
    model = nets.build("yolox_s", 80).cuda().to(memory_format=torch.channels_last)
    criterion, size = nets.criterion(model), (416, 416)
    expected = StepProbe(model, criterion, size, 20, amp).bytes(16)
    schedule = Schedule(Plan(50, 0, 10, 10, 16, 16), "cosine", 4e-3, 2e-4, 1, 10)
    optimizer = build_optimizer("adamw", model.train(), 0.05)
    updater = Updater(model, optimizer, schedule, EMA(model, 500), amp, clip=MAX_GRADIENT_NORM)
    images = torch.randint(0, 256, (16, 3, *size), dtype=torch.uint8, device="cuda")
    boxes = torch.tensor([32.0, 32.0, 96.0, 96.0], device="cuda").repeat(16, 20, 1)
    labels = torch.zeros(16, 20, dtype=torch.int64, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        with updater.autocast():
            predictions = model(images)
        updater.backward(criterion(predictions, boxes, labels, size)["total"])
    assert abs(expected / torch.cuda.max_memory_allocated() - 1) < 0.1


@pytest.mark.parametrize("frozen", [False, True])
def test_the_probe_counts_both_moments_of_what_a_step_trains(monkeypatch, frozen):
    """The peak of the step is set to 0, so that only what the optimizer will allocate is left."""
    with simulated_gpu():
        model = nets.build("tiny_n", 3).to("cuda:0")
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 0)
        measured = StepProbe(model, nets.criterion(model), (64, 64), 1, "none").bytes(2, frozen)
    trained = sum(p.nbytes for name, p in model.named_parameters() if not (frozen and name.startswith("backbone.")))
    assert measured == 2 * trained
