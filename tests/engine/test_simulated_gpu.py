"""CUDA code on a simulated GPU: no mix of devices, no wait for the device in a step, and the losses of a CPU."""

import cv2
import numpy as np
import pytest
import torch
from refused import refused
from simulated_gpu import DEVICE, simulated_gpu
from small import config, log_of, only_run, train_quietly
from tiny import Tiny
from toys import FAMILIES, make_updater

import export
import nets
import predict
from datasets.dataset import Batch
from datasets.loader import TrainSampler
from deploy.detector import Detector
from deploy.load import load
from engine.epoch import Meter, fit_one_epoch
from engine.network import accelerate
from engine.parallel import Graphed
from engine.schedule import Plan, Schedule
from utils import checkpoint, processes
from utils.processes import Interrupted, Ranks
from utils.signals import StopSignal

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a real GPU is here: the tests marked gpu use it")
STILL = Schedule(Plan(100, 0, 10, 10, 64, 64), "constant", 0.0, 0.0, 0, 0)  # so that no rounding grows
MIB = 2**20
MODELS = {**FAMILIES, "tiny": lambda num_classes: Tiny(8, num_classes)}


# The places that may wait for the GPU, and why. All others are defects.
AT_A_LOG = ("engine/epoch.py", "reduce"), ("engine/optimizer.py", "check")
ALLOWED = {
    **dict.fromkeys(AT_A_LOG, "a step that logs"),
    ("train.py", "build_model"): "the model moves to the device, once",
    ("engine/memory.py", "bytes"): "the step that measures the memory, before the training",
    ("engine/origin.py", "restore"): "a saved run is loaded, once",
    ("engine/optimizer.py", "load_state_dict"): "a saved run is loaded, once",
    ("engine/epoch.py", "epoch_row"): "the end of an epoch",
    ("engine/evaluation.py", "evaluate"): "the end of an evaluation",
    ("utils/images.py", "into_original"): "detections: a constant index",
    ("nets/postprocess.py", "select"): "detections: how many boxes an image has",
    ("nets/postprocess.py", "nms"): "detections: which boxes remain",
    ("utils/checkpoint.py", "plain"): "a save",
    ("engine/optimizer.py", "state_dict"): "a save",
    ("deploy/detector.py", "__init__"): "the model moves to the device, once",
    ("deploy/detector.py", "prepare"): "prediction: the images of a batch move to the device",
    ("deploy/detector.py", "select"): "prediction: the detections of a batch",
}


def unexpected(gpu):
    """The waits at places that are not allowed, as text."""
    return sorted({str(wait) for wait in gpu.waits if (wait.file, wait.function) not in ALLOWED})


def batches(count):
    """Batches of two images with one box each, in page-locked memory."""
    generator = torch.Generator().manual_seed(0)
    boxes, transforms = torch.tensor([[[8.0, 8, 40, 48]], [[20.0, 4, 60, 30]]]), torch.zeros(2, 5)
    region = torch.tensor(
        [[[[0.1, 0, 0], [0, 0.1, 0]]], [[[0.0, 0, -1], [0, 0, -1]]]]
    )  # 10 x 10 pixels of the first one
    for i in range(count):
        images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=generator)
        yield Batch(images, boxes, torch.tensor([[0], [2]]), torch.tensor([2 * i, 2 * i + 1]), transforms, region)


def fit(family, amp, device):
    """One frozen and one thawed optimizer step of two batches each -> losses of each batch, updater."""
    torch.manual_seed(0)
    model = MODELS[family](num_classes=3).to(device, memory_format=torch.channels_last)
    updater = make_updater(model, schedule=STILL, amp=amp, accumulate=2, clip=10.0)
    criterion, losses = nets.criterion(model, no_aug=True), []

    def recorded(*arguments):
        losses.append(criterion(*arguments))
        return losses[-1]

    for frozen in (True, False):
        model.freeze_backbone(frozen)
        parts = list(batches(2))
        if device.type == "cuda":
            parts = [batch.pin_memory() for batch in parts]
        fit_one_epoch(model, recorded, parts, updater, Ranks(device=device), Meter())
    return [{name: float(value.detach()) for name, value in one.items()} for one in losses], updater


def fit_on_cpu(family, amp):
    """`fit` on the CPU. Its updater scales no fp16 loss, so only the autocast is as with fp16."""
    with pytest.MonkeyPatch.context() as patch:
        if amp == "fp16":
            autocast = torch.autocast
            patch.setattr(torch, "autocast", lambda *_, **__: autocast("cpu", torch.float16))
        return fit(family, "none" if amp == "fp16" else amp, torch.device("cpu"))


QUICK = {
    ("yolox", "fp16"),
    ("tiny", "none"),
    ("tiny", "bf16"),
}
CASES = [
    pytest.param(family, amp, marks=() if (family, amp) in QUICK else pytest.mark.slow)
    for family in MODELS
    for amp in ("none", "fp16", "bf16")
    if amp != "bf16" or family == "tiny"  # the same code as fp16, without the scaler
]


@pytest.mark.parametrize("family, amp", CASES)
def test_steps_do_not_wait_and_have_the_losses_of_a_cpu(family, amp):
    expected, _ = fit_on_cpu(family, amp)
    with simulated_gpu() as gpu:
        model_waits = len(gpu.waits)
        losses, updater = fit(family, amp, DEVICE)
        waits = [
            wait for wait in gpu.waits[model_waits:] if wait.file.startswith(("utils", "nets", "datasets", "engine"))
        ]
        skipped = float(updater.skipped)
    places = [(wait.file, wait.function) for wait in waits]
    wrong = [str(wait) for wait, place in zip(waits, places, strict=True) if place not in AT_A_LOG]
    assert not wrong, "\n".join(wrong)
    assert places == [*AT_A_LOG, AT_A_LOG[1]] * 2  # the only step of each phase logs, then the end of the epoch
    for ours, theirs in zip(losses, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
    assert amp == "fp16" or skipped == 0


@pytest.fixture(scope="module")
def runs(demo_images, tmp_path_factory):
    """A run of two epochs on the simulated GPU and the same on the CPU: folders, and what the GPU recorded."""
    folders, recorded = [], []
    options = {"freeze_epochs": 0, "epochs": 2, "no_aug_epochs": 0, "amp": "none", "learning_rate": 0.001}
    for device in ("cuda", "cpu"):
        output = tmp_path_factory.mktemp(device)
        with simulated_gpu() as gpu:
            train_quietly(config(demo_images, output, device=device, **options), draw=True)
        folders.append(only_run(output))
        recorded.append(gpu)
    return folders, recorded[0]


def test_whole_run_waits_only_where_it_may_and_equals_that_of_a_cpu(runs):
    """Training, evaluation, saving, the log and the curves. Detections read before they arrive on the host change the mAP."""
    (on_gpu, on_cpu), gpu = runs
    assert not unexpected(gpu), "\n".join(unexpected(gpu))
    assert all(float(row["AP"]) > 0 for row in log_of(on_cpu))
    for ours, theirs in zip(log_of(on_gpu), log_of(on_cpu), strict=True):
        numbers = {name: float(value) for name, value in theirs.items() if value}
        assert {name: float(value) for name, value in ours.items() if value} == pytest.approx(numbers, rel=1e-4)
    assert (on_gpu / "curves.png").stat().st_size > 0
    saved = checkpoint.load(on_gpu / "last.pt")
    assert saved["epoch"] == 2 and all(x.device.type == "cpu" for x in saved["model"].values())


def graphs_for(updater, log, **changes):
    """The tiny model, prepared for batches of two images of 64 x 64 pixels."""
    sampler = TrainSampler(10, 2, (64, 64), seed=0, **changes)
    return accelerate(updater.model, sampler, updater, log)


def test_cuda_graphs_leave_the_statistics_as_they_were_and_images_of_other_sizes_take_the_usual_way():
    with simulated_gpu():
        updater = make_updater(MODELS["tiny"](num_classes=3).to(DEVICE), amp="fp16")
        before = [buffer.cpu().clone() for buffer in updater.model.buffers()]
        network, said = graphs_for(updater, (messages := []).append), []
        assert isinstance(network, Graphed) and not messages
        assert all(torch.equal(a, b.cpu()) for a, b in zip(before, updater.model.buffers(), strict=True))
        network.passes.register_forward_hook(lambda _, images, __: said.append(tuple(images[0].shape)))
        for size in (64, 96):
            network(torch.zeros(2, 3, size, size, dtype=torch.uint8).to(DEVICE))
        network.eval()(torch.zeros(2, 3, 64, 64, dtype=torch.uint8).to(DEVICE))
        assert said == [(2, 3, 64, 64)]


def test_cuda_graphs_are_not_used_where_they_do_not_work(monkeypatch):
    def refused(*_, **__):
        torch.cuda.set_stream("stream of the capture")
        raise RuntimeError("not permitted\nmore")

    with simulated_gpu():
        updater = make_updater(MODELS["tiny"](num_classes=3).to(DEVICE))
        assert graphs_for(updater, print, multi_scale=0.5) is updater.model
        several = make_updater(MODELS["tiny"](num_classes=3).to(DEVICE), accumulate=2)
        assert graphs_for(several, print) is several.model
        monkeypatch.setattr(torch.cuda, "make_graphed_callables", refused)
        assert graphs_for(updater, (messages := []).append) is updater.model
        assert len(messages) == 1 and "not permitted" in messages[0] and "more" not in messages[0]
        assert torch.cuda.current_stream() == "default"
    on_cpu = make_updater(MODELS["tiny"](num_classes=3))
    assert graphs_for(on_cpu, print) is on_cpu.model


@pytest.mark.slow
def test_training_may_round_to_tf32_but_evaluation_and_detector_do_not(demo_images, tmp_path, monkeypatch):
    """A GPU rounds the inputs of convolutions to 10 bits unless told otherwise."""
    used = set()

    def recorded(model, images):
        used.add(("training" if model.training else "evaluation", torch.backends.cudnn.allow_tf32))
        return forward(model, images)

    forward = Tiny.forward
    monkeypatch.setattr(Tiny, "forward", recorded)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # which other tests change
    folder, *_ = train_quietly(config(demo_images, tmp_path, epochs=2))
    torch.backends.cudnn.allow_tf32 = True
    Detector(folder / "best.pt")(np.zeros((64, 64, 3), np.uint8))
    assert used == {("training", True), ("evaluation", False)}


def test_a_named_gpu_becomes_the_current_one():
    with simulated_gpu(count=2) as gpu:
        assert processes.start("cuda:1").device == gpu.device == torch.device("cuda:1")


def test_empty_scenes_on_a_gpu(runs, tmp_path):
    """Detector and predict.py, which compute in inference mode: images without and with detections."""
    (checkpoint_of_gpu, _), _ = runs
    images = [np.zeros((48, 64, 3), np.uint8), np.random.default_rng(0).integers(0, 256, (64, 48, 3), np.uint8)]
    for i, image in enumerate(images):
        cv2.imwrite(str(tmp_path / f"{i}.png"), image)
    best = str(checkpoint_of_gpu / "best.pt")
    for confidence in (0.999, 1e-5):
        expected = Detector(best, device="cpu", confidence=confidence)(images)
        with simulated_gpu() as gpu:
            results = Detector(best, confidence=confidence)(images)
        assert not unexpected(gpu), "\n".join(unexpected(gpu))
        for ours, theirs in zip(results, expected, strict=True):
            assert ours.names == theirs.names and (len(ours.scores) == 0) == (confidence > 0.9)
            np.testing.assert_allclose(ours.boxes, theirs.boxes, rtol=1e-4, atol=1e-3)
    with simulated_gpu():
        predict.main(predict.Config(best, str(tmp_path), output=str(tmp_path / "out"), confidence=0.999))
    assert (tmp_path / "out").is_dir()


def test_a_signal_stops_a_single_process_after_the_current_step():
    """Not only at the next log, which may be twenty steps later."""
    torch.manual_seed(0)
    with simulated_gpu():
        model = MODELS["tiny"](num_classes=3).to(DEVICE)
        updater, stop, meter = make_updater(model), StopSignal(), Meter()

        def asked_after_three():
            for i, batch in enumerate(batches(9)):
                stop.received = i == 2
                yield batch.pin_memory()

        def leave(meter):
            if stop.received:
                raise Interrupted

        with pytest.raises(Interrupted):
            ranks, criterion = Ranks(device=DEVICE), nets.criterion(model)
            fit_one_epoch(model, criterion, asked_after_three(), updater, ranks, meter, [leave], stop)
    assert meter.batches == 3 and meter.mean()["total"] > 0


def test_what_the_simulation_finds():
    """A mix of devices, every kind of wait with its place, a copy that has not arrived, and the end of the memory."""
    with simulated_gpu(memory=MIB) as gpu:
        x = torch.arange(4.0).pin_memory().to(DEVICE, non_blocking=True)
        assert (x.device, x.is_cuda, repr(x)) == (DEVICE, True, "GPUTensor([4], torch.float32)")
        for mix in (lambda: x + torch.ones(4), lambda: torch.stack([x[0], torch.ones(())])):
            with refused(RuntimeError, "cuda:0", "cpu", "tests/engine/test_simulated_gpu.py"):
                mix()
        x = x * 2 + torch.tensor(1.0)  # a number
        assert gpu.waits == []
        late = x.to("cpu", non_blocking=True)
        assert late.isnan().all()
        torch.cuda.synchronize()
        assert late.tolist() == [1, 3, 5, 7] and len(gpu.waits) == 1
        for wait in (x[0].item, lambda: bool(x[0]), x.cpu, x.nonzero, lambda: x[x > 1], x.tolist):
            before = len(gpu.waits)
            wait()
            assert len(gpu.waits) > before
        for wait in (lambda: torch.ones(2).to(DEVICE), lambda: torch.ones(2).to(DEVICE, non_blocking=True)):
            before = len(gpu.waits)
            wait()
            assert len(gpu.waits) == before + 1
        assert {wait.file for wait in gpu.waits} == {"tests/engine/test_simulated_gpu.py"}
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.zeros(MIB, device=DEVICE)


def test_model_on_a_gpu_reaches_the_exporter_on_the_cpu(runs, tmp_path, monkeypatch):
    """The exporter itself asks for the driver of a real GPU, so this test ends where it begins."""
    pytest.importorskip("onnx", reason="the export needs onnx")
    exported = []
    monkeypatch.setattr(torch.onnx, "export", lambda *arguments, **_: exported.extend(arguments[:2]) or [])
    (checkpoint_of_gpu, _), _ = runs
    with simulated_gpu():
        loaded = load(checkpoint_of_gpu / "best.pt")
        model = loaded.model.fuse().to(DEVICE)
        assert next(model.parameters()).is_cuda
        with pytest.raises(AttributeError):  # there is no program to save
            export.write(tmp_path / "a.onnx", model, export.description(export.Config(), loaded), 1, True)
    graph, inputs = exported
    assert {x.device.type for x in (*graph.state_dict().values(), *inputs)} == {"cpu"}
