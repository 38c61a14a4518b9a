"""utils/fit.py: an epoch trains on every batch, and stops with names after a run of bad steps."""

import pytest
import torch
from toys import assert_equal_bits, images, make_updater, snapshot, toy

from utils.distributed import Ranks
from utils.fit import NonFiniteLoss, fit_one_epoch
from utils.optim import MOST_BAD_STEPS


class Batch:
    """What the loop asks of a batch."""

    def __init__(self, step, bad=False):
        self.images, self.size = images(step), (8, 8)
        if bad:
            self.images[0, 0, 0, 0] = torch.nan
        self.boxes = self.labels = None
        self.ids = torch.tensor([10 * step, 10 * step + 1])

    def to(self, device):
        return self


def square(predictions, boxes, labels, size):
    return {"total": predictions.square().mean(), "positives": predictions.sum()}


def test_an_epoch_trains_on_every_batch_and_means_the_losses():
    updater, twin = make_updater(toy()), make_updater(toy())
    calls = []
    means = fit_one_epoch(
        updater.model.eval(),
        square,
        [Batch(s) for s in range(7)],
        updater,
        Ranks(),
        lambda *seen: calls.append(seen),
        log_every=3,
    )
    losses = []
    for step in range(7):
        losses.append(twin.model.train()(images(step)).square().mean())
        twin.step(losses[-1])
    assert_equal_bits(snapshot(updater), snapshot(twin))
    assert updater.model.training and list(means) == ["total", "positives"]
    assert means["total"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-6)
    assert [(done, count) for done, _, count in calls] == [(3, 6), (6, 12), (7, 14)]
    assert calls[-1][1] == means and calls[0][1]["total"] == pytest.approx(torch.stack(losses[:3]).mean().item())


def test_an_epoch_without_batches_has_no_means():
    updater = make_updater(toy())
    assert fit_one_epoch(updater.model, square, [], updater, Ranks()) == {}


def test_pitfall_2_a_run_of_bad_steps_stops_and_names_the_pictures():
    updater = make_updater(toy())
    batches = [Batch(s, bad=s >= 4) for s in range(60)]
    with pytest.raises(NonFiniteLoss, match="step 30") as caught:
        fit_one_epoch(updater.model, square, batches, updater, Ranks(), log_every=10)
    assert caught.value.ids == [i for s in reversed(range(10, 30)) for i in (10 * s, 10 * s + 1)]  # the last step first
    assert updater.ema.count == 4 and all(v.isfinite().all() for v in snapshot(updater).values())


def test_pitfall_2_short_epochs_add_up():
    updater = make_updater(toy())
    batches = [Batch(s, bad=True) for s in range(MOST_BAD_STEPS // 2)]
    fit_one_epoch(updater.model, square, batches, updater, Ranks())
    with pytest.raises(NonFiniteLoss):
        fit_one_epoch(updater.model, square, batches, updater, Ranks())


def test_single_bad_steps_do_not_stop_training():
    updater = make_updater(toy())
    fit_one_epoch(updater.model, square, [Batch(s, bad=s % 3 == 0) for s in range(40)], updater, Ranks(), log_every=5)
    assert updater.skipped == 14 and updater.ema.count == 26
