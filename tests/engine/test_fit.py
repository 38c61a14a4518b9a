"""engine/epoch.py: an epoch trains on every batch, and stops with the names of images after too many bad steps."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from toys import assert_equal_bits, images, make_updater, snapshot, toy

from datasets.loader import TrainSampler
from engine.epoch import Meter, NonFiniteLoss, fit_one_epoch
from engine.network import CUDNN_SEARCH_STEPS, accelerate
from engine.optimizer import MAX_BAD_STEPS
from engine.schedule import Plan, Schedule
from utils.processes import Ranks
from utils.progress import progress_bar


class Batch:
    """A batch as the loop needs it; a bad one has an image with NaN."""

    def __init__(self, step, bad=False):
        self.images, self.size = images(step), (8, 8)
        if bad:
            self.images[0, 0, 0, 0] = torch.nan
        self.targets = (None, None, self.size)  # boxes, labels
        self.ids = torch.tensor([10 * step, 10 * step + 1])

    def to(self, device):
        return self


def square(predictions, boxes, labels, size):
    return {"total": predictions.square().mean(), "positives": predictions.sum()}


def fit(updater, batches, meter=None, **options):
    meter = meter or Meter()
    fit_one_epoch(updater.model, square, batches, updater, Ranks(), meter, **options)
    return meter


def test_epoch_trains_on_every_batch_and_averages_the_losses():
    updater, twin = make_updater(toy()), make_updater(toy())
    updater.model.eval()
    calls = []
    meter = fit(updater, [Batch(s) for s in range(7)], on_log=[lambda m: calls.append((m.batches, m.mean()))])
    losses = []
    for step in range(7):
        losses.append(twin.model.train()(images(step)).square().mean())
        twin.backward(losses[-1])
    assert_equal_bits(snapshot(updater), snapshot(twin))
    means = meter.mean()
    assert updater.model.training and list(means) == ["total", "positives"]
    assert means["total"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-6)
    assert [done for done, _ in calls] == [1, 2, 3, 4, 5, 6, 7] and calls[-1][1] == means  # a CPU logs every step
    assert calls[2][1]["total"] == pytest.approx(torch.stack(losses[:3]).mean().item())


def test_functions_of_on_log_are_called_between_optimizer_steps_only():
    updater, calls = make_updater(toy(), accumulate=3), []
    functions = [lambda m: calls.append((m.batches, updater.micro)), lambda _: calls.append("second")]
    fit(updater, [Batch(s) for s in range(6)], on_log=functions)
    assert calls == [(3, 0), "second", (6, 0), "second"]


def test_interrupted_and_resumed_epoch_equals_an_uninterrupted_one():
    whole, parts = make_updater(toy()), make_updater(toy())
    batches = [Batch(s) for s in range(7)]
    expected = fit(whole, batches)

    def leave(meter):
        if meter.batches == 4:
            raise InterruptedError

    meter = Meter()
    with pytest.raises(InterruptedError):
        fit(parts, batches, meter, on_log=[leave])
    again = fit(parts, batches[4:], Meter(meter.state_dict()))
    assert again.mean() == expected.mean() and again.batches == 7  # to the bit
    assert_equal_bits(snapshot(parts), snapshot(whole))
    assert fit(parts, [], Meter(again.state_dict())).mean() == expected.mean()  # interrupted after its last batch


class Copies(Ranks):
    """Ranks whose processes all have the tensors of this one."""

    def sum(self, x):
        return x * self.world_size


def test_batches_count_alike_in_an_epoch_that_another_number_of_processes_resumes():
    meter = Meter()
    for losses, world_size in (((1.0, 2.0, 6.0), 4), ((7.0,), 3), ((4.0, 10.0), 1)):
        meter = Meter(meter.state_dict())
        for loss in losses:
            meter.add({"total": torch.tensor(loss)})
        meter.reduce(Copies(world_size=world_size))
    assert meter.mean() == {"total": pytest.approx(5.0)} and meter.batches == 6


def test_loss_that_appears_within_an_epoch_is_averaged_over_its_own_batches():
    meter, ranks = Meter(), Ranks()
    meter.add({"total": torch.tensor(1.0)})
    meter.reduce(ranks)
    meter.add({"total": torch.tensor(2.0), "l1": torch.tensor(5.0)})
    meter.reduce(ranks)
    assert meter.mean() == {"total": 1.5, "l1": 5.0}


def test_too_many_bad_steps_in_a_row_stop_training_and_name_the_images():
    updater = make_updater(toy())
    batches = [Batch(s, bad=s >= 4) for s in range(60)]
    with pytest.raises(NonFiniteLoss, match="step 24") as caught:
        fit(updater, batches)
    assert caught.value.ids == [i for s in reversed(range(4, 24)) for i in (10 * s, 10 * s + 1)]  # the last step first
    assert updater.ema.count == 4 and all(v.isfinite().all() for v in snapshot(updater).values())


def test_bad_steps_in_a_row_are_counted_across_epochs():
    updater = make_updater(toy())
    batches = [Batch(s, bad=True) for s in range(MAX_BAD_STEPS // 2)]
    fit(updater, batches)
    with pytest.raises(NonFiniteLoss):
        fit(updater, batches)


def test_only_the_last_batch_of_an_accumulated_step_sends_gradients():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        updater, alone, sent = make_updater(toy(), accumulate=3), make_updater(toy(), accumulate=3), []
        ddp = nn.parallel.DistributedDataParallel(updater.model, gradient_as_bucket_view=True)

        def send(_, bucket):
            sent.append(updater.micro)
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        ddp.register_comm_hook(None, send)
        fit_one_epoch(ddp, square, [Batch(s) for s in range(6)], updater, Ranks(), Meter())
    finally:
        dist.destroy_process_group()
    fit(alone, [Batch(s) for s in range(6)])
    assert sent == [2, 2]
    for p, q in zip(updater.parameters, alone.parameters, strict=True):
        assert torch.allclose(p, q, rtol=1e-5, atol=1e-7)


def test_autocast_is_off_for_an_empty_shard():
    """PyTorch's SyncBN computes an empty shard in float32: the other ranks would gather values of another type."""

    class Recording(nn.Module):
        """Notes the number of images and whether autocast is on."""

        def __init__(self):
            super().__init__()
            self.inner, self.calls = nn.Conv2d(3, 2, 3), []

        def forward(self, x):
            self.calls.append((len(x), torch.is_autocast_enabled("cpu")))
            return self.inner(x)

    full, empty = Batch(0), Batch(1)
    empty.images = empty.images[:0]

    def total(predictions, boxes, labels, size):
        return {"total": predictions.float().sum(), "positives": predictions.float().sum()}

    updater = make_updater(nn.Sequential(Recording(), nn.BatchNorm2d(2)), amp="bf16")
    fit_one_epoch(updater.model[0], total, [full, empty, full], updater, Ranks(), Meter())
    assert updater.model[0].calls == [(4, True), (0, False), (4, True)]


@pytest.mark.parametrize("multi_scale, steps, searches", [(0.0, 1, True), (0.5, 1, False), (0.0, 0, False)])
def test_cudnn_searches_for_kernels_in_long_runs_with_one_input_size_only(monkeypatch, multi_scale, steps, searches):
    """A search takes up to 40 seconds, and begins again at each input size."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", not searches)
    plan = Plan(1, 0, 1, CUDNN_SEARCH_STEPS + steps, 8, 8)
    updater = make_updater(toy(), schedule=Schedule(plan, "constant", 0.01, 0.01, 0, 0))
    sampler = TrainSampler(100, 8, (64, 64), 0, multi_scale)
    assert accelerate(updater.model, sampler, updater, print) is updater.model  # there is no GPU
    assert torch.backends.cudnn.benchmark == searches


def test_only_a_terminal_shows_a_progress_bar(monkeypatch, capsys):
    """Elsewhere, as in the log file of a cluster, each update would be a line."""
    assert list(progress_bar([1, 2, 3], "epoch", True)) == [1, 2, 3] and capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(progress_bar([1, 2, 3], "epoch", True)) == [1, 2, 3] and "epoch" in capsys.readouterr().err
    assert list(progress_bar([1, 2, 3], "epoch", False)) == [1, 2, 3] and capsys.readouterr().err == ""
