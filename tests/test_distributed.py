"""Several processes take the steps that one would take. Gloo on a CPU; float64, so that rounding cannot hide an error."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import nets
from datasets.annotations import read_annotation_file
from datasets.dataset import DetectionDataset
from datasets.loader import TrainSampler, build_loader
from nets.losses import YOLOXCriterion
from utils.distributed import Ranks
from utils.run import read_log
from utils.sync_bn import synchronise

ROOT = Path(__file__).parents[1]
SIZE = (64, 64)


def gradients(ranks, file, batch_size, frozen, steps):
    """Gradients of each of the first steps of an epoch, and the batch-norm statistics after them."""
    torch.manual_seed(0)
    model = nets.build("yolox_nano", 5).double().train()
    with torch.no_grad():  # batch norms far from their start, so that their gradients count
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.02)
    model.freeze_backbone(frozen)
    data = DetectionDataset(read_annotation_file(file), "corner")
    sampler = TrainSampler(len(data), batch_size, SIZE, 0, rank=ranks.rank, world=ranks.world)
    wrapped, criterion = ranks.wrap(model), YOLOXCriterion(model.strides, ranks.share)
    found = []
    for _, batch in zip(range(steps), build_loader(data, sampler, 0), strict=False):
        model.zero_grad()
        losses = criterion(wrapped(batch.images), batch.boxes, batch.labels, batch.size)
        losses["total"].backward()
        total = ranks.sum(losses["total"].detach()) / ranks.world
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        found[-1]["loss"] = total
    return found, {name: b.clone() for name, b in model.named_buffers() if b.is_floating_point()}


def process(rank, world, store, file, batch_size, frozen, steps, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    found = gradients(Ranks(rank, world), file, batch_size, frozen, steps)
    if rank == world - 1:  # the last one: the gradients are the same in all
        torch.save(found, out)
    dist.destroy_process_group()


def assert_close(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            scale = max(1.0, float(b[name].abs().max()))
            assert float((a[name] - b[name]).abs().max()) <= 1e-9 * scale, name


@pytest.mark.parametrize(
    "world, batch_size, frozen",
    [(2, 4, False), (2, 4, True), (3, 4, False), (2, 1, False)],
    ids=["even shares", "frozen backbone", "unequal shares", "an empty share"],
)
def test_pitfall_13_gradients_of_several_processes_are_those_of_one(painted, tmp_path, world, batch_size, frozen):
    file, out = str(painted(6)), str(tmp_path / "out.pt")
    mp.spawn(process, (world, str(tmp_path / "store"), file, batch_size, frozen, 2, out), world)
    (ours, statistics), (alone, expected) = torch.load(out), gradients(Ranks(), file, batch_size, frozen, 2)
    assert len(alone[0]) > 100 and any(g.abs().max() > 0 for g in alone[0].values())
    assert_close(ours, alone)
    assert_close([statistics], [expected])


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
