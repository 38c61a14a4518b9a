"""One epoch of training."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from datasets.loader import Loader
from engine.clock import Clock
from engine.optimizer import MAX_BAD_STEPS, Updater
from engine.run_folder import Run
from report.drawn_images import draw_batches
from utils.processes import Ranks
from utils.progress import duration, progress_bar
from utils.signals import StopSignal
from utils.text import in_points

LOG_EVERY = 20  # optimizer steps between two logs on a GPU, where a log waits for the device
LOG_SECONDS = 2.0  # the same in seconds, so that slow steps do not delay the answer to a signal


class NonFiniteLoss(ValueError):
    """Too many optimizer steps in a row without finite gradients.

    `ids`: indices of the images of these steps in the data set, the last step first.
    """

    def __init__(self, ids: list[int], step: int):
        super().__init__(f"the gradients of step {step} and of the steps before it were not finite")
        self.ids = ids

    def text(self, annotations) -> str:
        """Returns a message that names the images of these steps and advises what to change."""
        paths = [annotations.path(i) for i in self.ids]
        return (
            f"{self}; training stops, and last.pt stays as it was. The {len(paths)} images of these steps, the last "
            f"first: {', '.join(paths[:64])}. Start a new run with a lower learning_rate, or amp=bf16"
        )


class Meter:
    """Mean losses over the batches of an epoch.

    The sums stay on the device until `reduce` adds up all processes. A batch with a loss that is not finite does not count.
    `state`: the `state_dict` of a meter that began the epoch before the run was interrupted.
    """

    def __init__(self, state: Mapping | None = None):
        state = state or {"batches": 0, "seconds": 0.0, "sums": {}}
        self.batches: int = state["batches"]  # batches of the epoch done so far
        self.seconds: float = state["seconds"]  # the time they took
        self.sums: dict[str, list[float]] = {name: list(pair) for name, pair in state["sums"].items()}  # sum, count
        self._names: list[str] = []
        self._unreduced: Tensor | None = None  # [2, names] sums and counts of this process since the last reduction
        self.start()

    def start(self) -> None:
        """Starts the clock: the time since the last epoch, as of its evaluation and its save, does not count."""
        self._clock = time.perf_counter()

    def add(self, losses: dict[str, Tensor]) -> None:
        """Adds the scalar losses of one batch; all batches have the same names."""
        values = torch.stack([value.detach() for value in losses.values()])
        if values.device.type == "cuda":  # exact: how many batches lie between two logs depends on the speed
            values = values.double()
        finite = values.isfinite()
        pair = torch.stack([values.where(finite, 0), finite.to(values.dtype)])
        self._unreduced = pair if self._unreduced is None else self._unreduced + pair
        self._names = list(losses)
        self.batches += 1

    def reduce(self, ranks: Ranks) -> None:
        """Adds the sums of all processes since the last reduction, by one all-reduce. Waits for the device once."""
        if self._unreduced is not None:
            sums, counts = ranks.sum(self._unreduced).tolist()
            for name, value, count in zip(self._names, sums, counts, strict=True):
                before = self.sums.get(name, (0.0, 0.0))
                # A batch counts once: a run may be resumed within an epoch with another number of processes.
                self.sums[name] = [before[0] + value / ranks.world_size, before[1] + count / ranks.world_size]
            self._unreduced = None
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now

    def mean(self) -> dict[str, float]:
        """Returns the mean of each loss over batches and processes up to the last reduction; NaN if no batch was finite."""
        return {name: total / count if count else float("nan") for name, (total, count) in self.sums.items()}

    def state_dict(self) -> dict:
        """Returns Python numbers, which are the same in all processes."""
        return {"batches": self.batches, "seconds": self.seconds, "sums": self.sums}


def fit_one_epoch(
    model: nn.Module,
    criterion,
    loader: Iterable,
    updater: Updater,
    ranks: Ranks,
    meter: Meter,
    on_log: Sequence[Callable[[Meter], None]] = (),
    stop: StopSignal | None = None,
) -> None:
    """Trains on every batch of the loader and adds the losses to the meter.

    Every few steps (every step on a CPU) the losses are summed over ranks and `on_log` is called. Only there does the host
    wait. A function of `on_log` runs between two steps, so it may save the run, or end the epoch by raising. Raises
    NonFiniteLoss in all processes after `MAX_BAD_STEPS` non-finite steps in a row.
    """
    model.train()
    meter.start()
    torch.backends.cudnn.allow_tf32 = True  # faster, and precise enough to train; `evaluate` turns it off
    log_at = 0  # batches of the epoch: the first step logs
    recent_ids: deque[Tensor] = deque(maxlen=MAX_BAD_STEPS * updater.accumulate)
    for batch in loader:
        batch = batch.to(ranks.device)
        with _gradient_sync(model, updater):
            # PyTorch's SyncBN computes an empty shard in float32, so autocast must be off for it.
            with updater.autocast() if len(batch.images) else nullcontext():
                predictions = model(batch.images)
            losses = criterion(predictions, *batch.targets)
            # Scaled backward; after the last batch of a step: unscale, clip, optimizer step, EMA.
            updater.backward(losses["total"], len(batch.images))
        meter.add(losses)
        recent_ids.append(batch.ids)
        if updater.micro:  # no log and no save between the batches of a step
            continue
        stops_now = ranks.world_size == 1 and stop is not None and stop.received  # several processes agree at a log
        if meter.batches >= log_at or stops_now:
            _reduce_and_check(updater, ranks, meter, recent_ids)
            for function in on_log:
                function(meter)
            if ranks.device.type != "cpu":
                log_at = meter.batches + batches_to_log(meter.batches / meter.seconds, updater.accumulate, ranks)
    _reduce_and_check(updater, ranks, meter, recent_ids)


def epoch_row(epoch: int, meter: Meter, updater: Updater, images: int) -> dict[str, float]:
    """Returns the row of log.csv for the training of an epoch (counted from 0) on `images` images, repeated ones included.

    `learning_rate` is the rate of the epoch's first step.
    """
    means = meter.mean()
    row = {"epoch": epoch + 1, "loss": means.pop("total"), "positives": means.pop("positives")}
    row |= {f"loss_{name}": value for name, value in means.items()}
    row["learning_rate"] = updater.schedule(updater.schedule.plan.steps_before(epoch))
    row["skipped_steps"] = int(updater.skipped)
    return row | {"seconds": meter.seconds, "images_per_second": images / meter.seconds}


def epoch_text(row: Mapping[str, float], epochs: int, best: bool, seconds_left: float = 0.0, gpu_bytes: int = 0) -> str:
    """Returns the console line of a finished epoch, from its row of log.csv. Epoch 0 is an evaluation of the initial weights."""
    parts = [f"epoch {row['epoch']:3}/{epochs}"]
    if row["epoch"]:
        parts.append(f"loss {row['loss']:.3f}")
    if "AP" in row:
        parts.append(f"val loss {row['val_loss']:.3f}  mAP50-95 {in_points(row['AP'])}  mAP50 {in_points(row['AP50'])}")
    if row.get("precision", -1) >= 0:
        parts.append(f"P {row['precision']:.3f}  R {row['recall']:.3f}")
    if row["epoch"]:
        parts.append(f"{row['images_per_second']:.1f} images/s")
        if gpu_bytes:
            parts.append(f"GPU {gpu_bytes / 2**30:.1f} GiB")
        if seconds_left:
            parts.append(f"{duration(seconds_left)} left")
    else:
        parts.append("the initial weights, before training")
    if row.get("skipped_steps"):
        parts.append(f"{row['skipped_steps']} steps skipped so far: gradients not finite")
    return "  ".join(parts) + ("  (best)" if best and row.get("AP", 0) > 0 else "")


def _gradient_sync(model: nn.Module, updater: Updater):
    """Returns the context of a backward pass: only the last batch of an optimizer step averages gradients over processes."""
    if isinstance(model, nn.parallel.DistributedDataParallel) and updater.micro + 1 < updater.accumulate:
        return model.no_sync()
    return nullcontext()


def _reduce_and_check(updater: Updater, ranks: Ranks, meter: Meter, recent_ids: Iterable[Tensor]) -> None:
    """Reduces the meter, and raises NonFiniteLoss if the gradients of too many steps were not finite. Waits for the device."""
    meter.reduce(ranks)
    if not updater.check():
        shards = ranks.gather([ids.tolist() for ids in recent_ids])
        ids = [i for step in reversed(range(len(shards[0]))) for shard in shards for i in shard[step]]
        raise NonFiniteLoss(list(dict.fromkeys(ids)), updater.step_number)


def batches_to_log(batches_per_second: float, accumulate: int, ranks: Ranks) -> int:
    """Returns after how many batches training on a GPU logs again: every 20 steps or 2 seconds. All ranks agree on it."""
    count = min(LOG_EVERY * accumulate, int(LOG_SECONDS * batches_per_second))
    return int(ranks.sum(torch.tensor(count))) // ranks.world_size


@contextmanager
def epoch_progress(
    loader: Loader, epoch: int, epochs: int, meter: Meter, updater: Updater, run: Run | None, clock: Clock
) -> Iterator[tuple[Iterable, Callable[[Meter], None]]]:
    """Yields the batches of an epoch (counted from 0) with a progress bar, and a function that shows a meter in the bar.

    The process that writes the log of `run` also saves contact sheets of the first three batches of the run. `meter`: the meter
    of the epoch, which an earlier start of the run may have begun.
    """
    begun = meter.batches
    with progress_bar(loader, f"epoch {epoch + 1}/{epochs}", run is not None, begun) as bar:
        batches: Iterable = clock.each("loading", bar)
        if run and epoch == 0:
            drawn = draw_batches(batches, loader.dataset.annotations.classes, run.image, begun)
            batches = clock.each("log", drawn)

        def show(meter: Meter) -> None:
            speed = loader.batch_sampler.batch_size * meter.batches / meter.seconds
            text = f"loss {meter.mean()['total']:.3f}, {speed:.1f} images/s, lr {updater.learning_rate:.2e}"
            bar.set_postfix_str(text, refresh=False)

        yield batches, show
