"""Several processes take the steps that one would take. Gloo on a CPU; float64, so that rounding cannot hide an error."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from toys import detector, make_updater, spawn

import nets
import train
from datasets import formats
from datasets.annotations import read_annotation_file
from datasets.dataset import DetectionDataset
from datasets.loader import TrainSampler, build_loader
from datasets.mosaic import Augment
from nets import pretrained
from nets.losses import YOLOXCriterion
from utils.checkpoint import load_matching
from utils.distributed import Disagreement, Elsewhere, Ranks
from utils.fit import Meter, fit_one_epoch
from utils.optim import EMA, Plan, Schedule, Updater, build_optimizer
from utils.run import read_log
from utils.sync_bn import synchronise

ROOT = Path(__file__).parents[1]
SIZE = (64, 64)


def gradients(ranks, file, batch_size, frozen, steps, family, dtype=torch.float64):
    """Gradients of each of the first steps of an epoch, and the batch-norm statistics after them."""
    family, _, nms_free = family.partition(", ")
    model = detector(family, 5)
    if nms_free:
        model.add_selector()
    model = model.to(dtype).train()
    with torch.no_grad():  # batch norms far from their start, so that their gradients count
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.02)
    model.freeze_backbone(frozen)
    data = DetectionDataset(read_annotation_file(file), "corner")
    sampler = TrainSampler(len(data), batch_size, SIZE, 0, rank=ranks.rank, world=ranks.world)
    wrapped, criterion = ranks.wrap(model), nets.criterion(model, ranks.share)
    found = []
    for _, batch in zip(range(steps), build_loader(data, sampler, 0), strict=False):
        model.zero_grad()
        losses = criterion(wrapped(batch.images), batch.boxes, batch.labels, batch.size)
        losses["total"].backward()
        total = ranks.sum(losses["total"].detach()) / ranks.world
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        found[-1]["loss"] = total
    return found, {name: b.clone() for name, b in model.named_buffers() if b.is_floating_point()}


def process(rank, world, store, out, work, arguments):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    ranks = Ranks(rank, world, machine=tuple(range(world)))
    found = work(ranks, *arguments)
    if rank == world - 1:  # the last one: what is compared is the same in all
        torch.save(found, out)
    ranks.stop()


def together(world, folder, work, *arguments):
    """What `work(ranks, *arguments)` answers in the last of several processes."""
    spawn(process, (world, str(folder / f"store{world}"), str(folder / "out.pt"), work, arguments), world)
    return torch.load(folder / "out.pt")


def assert_close(ours, theirs, tolerance=1e-9):
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            scale = max(1.0, float(b[name].abs().max()))
            assert float((a[name] - b[name]).abs().max()) <= tolerance * scale, name


@pytest.mark.parametrize(
    "world, batch_size, frozen, family",
    [
        *[(2, 4, False, "yolox"), (2, 4, True, "yolox"), (3, 4, False, "yolox"), (2, 1, False, "yolox")],
        *[(2, 1, False, "yolov9"), (3, 4, False, "yolov9"), (2, 4, True, "yolov9")],
        *[(3, 4, False, "yolox, NMS-free"), (2, 1, False, "yolov9, NMS-free")],
    ],
)
def test_pitfall_13_gradients_of_several_processes_are_those_of_one(
    painted, tmp_path, world, batch_size, frozen, family
):
    """Even, unequal and empty shares of the batch."""
    case = str(painted(6)), batch_size, frozen, 2, family
    (ours, statistics), (alone, expected) = together(world, tmp_path, gradients, *case), gradients(Ranks(), *case)
    assert len(alone[0]) > 100 and any(g.abs().max() > 0 for g in alone[0].values())
    assert_close(ours, alone)
    assert_close([statistics], [expected])


def official(folder, pictures):
    """Pictures of BCCD, and a model with official weights for them."""
    torch.manual_seed(0)  # for the rows of new classes
    data = formats.read(str(folder / "data/bccd/BCCD/ImageSets/Main/train.txt"), "train", bad_boxes="drop")
    data = data.select(np.arange(pictures))
    model = nets.build("yolox_nano", len(data.classes))
    state, names = pretrained.read(folder / "weights/yolox_nano.pth", "yolox_nano")
    load_matching(model, pretrained.adapt_classes(state, names, data.classes, model))
    return data, model


def one_step(ranks, folder, dtype, train_norms):
    """Gradients of official weights on eight pictures. Without batch norm in training: of the real loss. With it: of the mean
    square of all predictions, since assignments flip where float32 and float64 differ."""
    data, model = official(folder, 8)
    model.to(dtype).train()
    for norm in (m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)):
        norm.train(train_norms)
    sampler = TrainSampler(len(data), 8, (160, 160), 0, rank=ranks.rank, world=ranks.world)
    (batch,) = build_loader(DetectionDataset(data, "corner"), sampler, 0)
    wrapped = ranks.wrap(model)  # DDP must live until the backward pass
    predictions = wrapped(batch.images)
    if train_norms:
        loss = sum(x.square().flatten(1).mean(1).sum() for x in predictions) * ranks.world / 8
    else:
        criterion = YOLOXCriterion(model.strides, ranks.share)
        loss = criterion(predictions, batch.boxes, batch.labels, batch.size)["total"]
    loss.backward()
    return {name: p.grad.double() for name, p in model.named_parameters()}


def test_pitfall_13_gradients_in_float32(shared, tmp_path):
    case = shared, torch.float32, False
    assert_close([together(2, tmp_path, one_step, *case)], [one_step(Ranks(), *case)], 1e-5)


def test_pitfall_13_batch_norm_of_two_processes_is_as_exact_in_float32_as_that_of_one(shared, tmp_path):
    exact = torch.cat([g.flatten() for g in one_step(Ranks(), shared, torch.float64, True).values()])
    case = shared, torch.float32, True
    found = {"one": one_step(Ranks(), *case), "two": together(2, tmp_path, one_step, *case)}
    far = {name: float((torch.cat([g.flatten() for g in gradients.values()]) - exact).norm() / exact.norm())
           for name, gradients in found.items()}  # fmt: skip
    assert far["two"] <= far["one"] and far["two"] < 1e-4  # PyTorch's own batch norm is 1e-3 away


def twenty_steps(ranks, folder):
    """The weights after 20 steps of the real loop from official weights: warm-up, the thaw after 10 steps, mosaic."""
    data, model = official(folder, 80)
    model.double()
    schedule = Schedule(Plan(2, 1, 10, 10, 8, 8), "cosine", 0.004, 0.0002, 2.0, 0)
    updater = Updater(model, build_optimizer("adamw", model, 0.05), schedule, EMA(model, 20), clip=10.0)
    dataset = DetectionDataset(data, model.letterbox, Augment(0.5, 0.0, 0.5, 5.0, (0.5, 1.5), 0.1, 2.0))
    for epoch, frozen in enumerate((True, False)):
        model.freeze_backbone(frozen)
        sampler = TrainSampler(len(data), 8, (96, 96), 0, rank=ranks.rank, world=ranks.world)
        sampler.epoch = epoch
        criterion, loader = YOLOXCriterion(model.strides, ranks.share), build_loader(dataset, sampler, 0)
        fit_one_epoch(ranks.wrap(model), criterion, loader, updater, ranks, Meter())
    assert updater.step_number == 20
    tensors = {**model.state_dict(), **{f"ema.{name}": value for name, value in updater.ema.model.state_dict().items()}}
    return {name: value.clone() for name, value in tensors.items() if value.is_floating_point()}


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_twenty_steps_of_several_processes_end_where_one_ends(shared, tmp_path, world, alone_for_twenty_steps):
    ours, alone = together(world, tmp_path, twenty_steps, shared), alone_for_twenty_steps
    assert_close([ours], [alone], 1e-6)


@pytest.fixture(scope="module")
def alone_for_twenty_steps(shared):
    return twenty_steps(Ranks(), shared)


def asked(ranks):
    """What the processes learn from each other."""
    assert ranks.any(ranks.rank == 1, False) == [True, False]
    assert ranks.once(lambda: ranks.rank + 5) == 5 and ranks.once_a_machine(lambda: ranks.rank + 5) == 5
    ranks.agree({"seed": 0})
    with pytest.raises(Disagreement, match=r"batch_size: 17 on rank 1 .*, 16 on rank 0") as raised:
        ranks.agree({"seed": 0, "batch_size": 16 + ranks.rank})
    assert "seed" not in str(raised.value)

    def fail():
        raise ValueError("of my own")

    with pytest.raises(ValueError if ranks.rank == 0 else Elsewhere):  # and nobody waits for the answer
        ranks.once_a_machine(fail)
    statistics = torch.full((3,), float(ranks.rank)), torch.tensor([[2.0 * ranks.rank]])
    ranks.equalise(statistics)
    return statistics


def test_what_processes_ask_of_each_other(tmp_path):
    first, second = together(2, tmp_path, asked)
    assert first.tolist() == [0.5] * 3 and second.tolist() == [[1.0]]


def made(ranks, weights):
    """A model with weights that only the first process can read."""
    torch.manual_seed(ranks.rank)
    cfg = train.Config(model="yolov9_t", weights=weights if ranks.is_main else "elsewhere.pt", freeze_epochs=3)
    model, freeze_epochs = train.make_model(cfg, ("a", "b"), None, ranks, lambda _: None)
    ranks.copy_from_main(model)
    return {**model.state_dict(), "freeze_epochs": torch.tensor(freeze_epochs)}


def test_the_weights_of_the_first_process_decide_how_wide_the_model_is_in_all(tmp_path):
    given = nets.build("yolov9_t", 40).state_dict()  # class branches of 80 channels instead of 64
    torch.save(given, tmp_path / "given.pt")
    found = together(2, tmp_path, made, str(tmp_path / "given.pt"))
    assert found.pop("freeze_epochs") == 3
    assert all(torch.equal(value, given[name]) for name, value in found.items() if ".class_predictors." not in name)
    assert found["head.class_predictors.0.weight"].shape == (2, 80, 1, 1)


def statistics_of_their_own(ranks, file):
    """Batch norms that are not synchronised, before and after they are made equal."""
    torch.manual_seed(0)
    data = DetectionDataset(read_annotation_file(file), "corner")
    updater = make_updater(detector().train(), "adamw")
    sampler = TrainSampler(len(data), 4, SIZE, 0, rank=ranks.rank, world=ranks.world)
    criterion, loader = YOLOXCriterion((8, 16, 32), ranks.share), build_loader(data, sampler, 0)
    updater.model.freeze_backbone(True)
    frozen = {name: b.clone() for name, b in updater.model.backbone.named_buffers()}
    fit_one_epoch(ranks.wrap(updater.model, sync_bn=False), criterion, loader, updater, ranks, Meter())
    sides = []
    for _ in range(2):
        parts = [dict(m.named_buffers()) for m in (updater.model, updater.ema.model)]
        sides.append(ranks.gather([{name: b.clone() for name, b in part.items()} for part in parts]))
        updater.equalise_statistics(ranks)
    assert all(torch.equal(frozen[name], b) for name, b in updater.model.backbone.named_buffers())
    return sides


def test_8_without_synchronised_batch_norm_all_evaluate_with_the_same_statistics(painted, tmp_path):
    (before, after) = together(3, tmp_path, statistics_of_their_own, str(painted(6)))
    name = "neck.reduce1.bn.running_mean"
    name = (
        name if name in before[0][0] else next(n for n in before[0][0] if n.startswith("neck") and "running_mean" in n)
    )
    own = torch.stack([rank[0][name] for rank in before])
    assert not torch.equal(own[0], own[1])
    for model, average in after:
        assert torch.allclose(model[name], own.mean(0)) and torch.equal(model[name], average[name])
        assert torch.equal(model[name], after[0][0][name])


def test_a_single_process_needs_no_group_and_leaves_the_model_alone():
    ranks, model = Ranks(), nets.build("yolox_nano", 2)
    assert ranks.wrap(model) is model and ranks.gather({"a": 1}) == [{"a": 1}]
    assert float(ranks.share(torch.tensor(0.0))) == 1
    assert ranks.once(lambda: 3) == ranks.once_a_machine(lambda: 3) == 3 and ranks.any(True, False) == [True, False]
    ranks.agree({"batch_size": 4})


def test_synchronised_batch_norms_save_and_load_as_plain_ones():
    model = nets.build("yolox_nano", 2)
    names = list(model.state_dict())
    assert list(synchronise(model).state_dict()) == names
    assert any(type(m).__name__ == "SyncBatchNorm2d" for m in model.modules())
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 3, 64, 64), np.uint8))
    plain = nets.build("yolox_nano", 2).eval()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(plain(images).boxes, model.eval()(images).boxes)


def test_torchrun_with_two_processes_logs_what_one_process_logs(painted, shared, tmp_path):
    words = [
        f"train={painted(6)}",
        f"val={painted(5)}",
        "weights=none",
        "image_size=64,64",
        "epochs=2",
        "freeze_epochs=1",
    ]
    words += ["batch_size=3", "freeze_batch_size=4", "plain_epochs=1", "workers=0", "device=cpu", "learning_rate=0"]
    words += ["min_learning_rate=0", f"weights={shared / 'weights/yolox_nano.pth'}"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    logs = []
    for name, start in (("one", []), ("two", torchrun)):
        command = [sys.executable, *start, str(ROOT / "train.py"), *words, f"output={tmp_path / name}"]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("best mAP50-95") == 1  # only one process speaks
        (folder,) = (tmp_path / name).iterdir()  # and only one writes
        logs.append(read_log(folder / "log.csv"))
    for ours, theirs in zip(*logs, strict=True):
        for column in set(ours) - {"seconds", "images_per_second"}:
            assert float(ours[column]) == pytest.approx(float(theirs[column]), rel=1e-4, abs=1e-6), column
