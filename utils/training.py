"""The epochs of a run: train, evaluate, save, and stop where somebody asks for it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from utils.distributed import Ranks
from utils.evaluate import evaluate
from utils.fit import Meter, NonFiniteLoss, fit_one_epoch
from utils.interrupt import Interrupted, Watch
from utils.memory import less_memory
from utils.optim import Updater
from utils.resume import State
from utils.run import Run
from utils.saver import Saver, a_full_disk_is_said
from utils.sheets import prediction_sheet, show_sheet, shown
from utils.trace import traced


@dataclass(frozen=True)
class Training:
    """What all epochs of a run have in common. The numbers are constants of train.py; epochs are counted from 0."""

    updater: Updater
    phase: Callable[[bool], tuple[nn.Module, DataLoader]]  # frozen? -> the model as the processes share it, its batches
    criterion: Callable  # (model, share, plain) -> what computes the losses
    val_loader: DataLoader
    ranks: Ranks
    run: Run | None  # in the processes that write
    save: Saver
    watch: Watch
    say: Callable
    epochs: int
    plain_epochs: int
    evaluate_every: int
    patience: int
    save_minutes: float
    profile_steps: int

    def __call__(self, state: State, meter: Meter) -> State:
        """The epochs from `state` and the batches of `meter` on, until all are done or somebody asks to stop -> the new state."""
        first = state.epoch
        try:
            for epoch in range(first, self.epochs):
                frozen = epoch < self.updater.schedule.plan.freeze_epochs
                model, loader = self.phase(frozen)
                profiled = self.profile_steps if epoch == first else 0
                row = self.train(epoch, frozen, model, loader, meter, partial(self.pulse, state), profiled)
                if (epoch + 1) % self.evaluate_every == 0 or epoch + 1 == self.epochs:
                    row |= self.validate(epoch)
                state, meter = state.after(row), Meter()
                why = state.done(self.epochs, self.patience)
                self.save(state, meter, row, last=bool(why))
                self.say(epoch_text(row, self.epochs, state))
                if why:
                    self.say(f"done: {why}")
                    break
        except Interrupted:
            self.watch.saving()
            self.save(state, meter, last=True)
            where = f"epoch {state.epoch + 1} after {meter.batches} of {len(loader)} batches"
            self.say(f"\nstopped in {where}, all of it saved; the same command with resume=true goes on")
        return state

    def pulse(self, state: State, meter: Meter) -> None:
        """Between two steps: stop, or save within the epoch."""
        if self.watch.orphaned():
            raise SystemExit("torchrun has ended without its processes; training stops, what was saved stays")
        due = self.ranks.is_main and 0 < 60 * self.save_minutes < time.monotonic() - self.run.saved
        to_save, to_stop = self.ranks.any(due, self.watch.asked)
        if to_stop:
            raise Interrupted
        if to_save:
            self.save(state, meter)

    def train(
        self, epoch: int, frozen: bool, model: nn.Module, loader: DataLoader, meter: Meter, pulse: Callable, profiled: int
    ) -> dict:  # fmt: skip
        """An epoch, or what is left of it, with a progress bar -> its row of the log. `profiled` steps are traced."""
        loader.batch_sampler.epoch, loader.batch_sampler.start = epoch, meter.batches
        criterion = self.criterion(self.updater.model, self.ranks.share, epoch >= self.epochs - self.plain_epochs)
        bar = self.bar(loader, f"epoch {epoch + 1}/{self.epochs}", initial=meter.batches, total=len(loader))
        batches = self.looked_at(bar, loader.dataset.classes, epoch, profiled) if self.ranks.is_main else iter(bar)
        images = len(loader.dataset) / len(loader)  # a batch

        def show_and_pulse(meter: Meter) -> None:
            speed = images * meter.batches / meter.seconds
            text = f"loss {meter.mean()['total']:.3f}, {speed:.1f} images/s, lr {self.updater.learning_rate:.2e}"
            bar.set_postfix_str(text, refresh=False)
            pulse(meter)

        with bar, self.failures_explained(loader, frozen):
            fit_one_epoch(model, criterion, batches, self.updater, self.ranks, meter, show_and_pulse)
        means = meter.mean()
        row = {"epoch": epoch + 1, "loss": means.pop("total"), "positives": means.pop("positives")}
        row |= {f"loss_{name}": value for name, value in means.items()}
        rate = self.updater.schedule(self.updater.schedule.plan.before(epoch))
        row |= {"learning_rate": rate, "skipped_steps": int(self.updater.skipped), "seconds": meter.seconds}
        return row | {"images_per_second": len(loader.dataset) / meter.seconds}

    def validate(self, epoch: int) -> dict:
        """Figures on the validation pictures -> columns of the log; pictures and figures of the classes to TensorBoard."""
        if self.save.equalise:
            self.updater.equalise_statistics(self.ranks)
        model, loader, asked = self.updater.ema.model, self.val_loader, lambda: self.watch.asked
        criterion = self.criterion(model, torch.ones_like)
        with self.bar(None, "evaluation", total=len(loader)) as bar:
            figures = evaluate(model, loader, self.ranks, criterion, progress=lambda _: bar.update(), stop=asked)
        if self.ranks.is_main:
            with a_full_disk_is_said():
                per_class = {name: c["AP"] for name, c in figures["per_class"].items() if c["AP"] >= 0}
                self.run.scalars({f"AP_class/{name}": value for name, value in per_class.items()}, epoch + 1)
                sheet = prediction_sheet(loader.dataset, figures["detections"])
                show_sheet(self.run, "val_predictions", sheet, epoch + 1)
        return {name: value for name, value in figures.items() if isinstance(value, float)}

    def bar(self, batches: DataLoader | None, text: str, **begun) -> tqdm:
        """A progress bar, seen in one process."""
        return tqdm(batches, text, dynamic_ncols=True, leave=False, disable=not self.ranks.is_main, **begun)

    def looked_at(self, batches: tqdm, classes: tuple[str, ...], epoch: int, profiled: int) -> Iterator:
        """The batches, unchanged; the first of a run go to its pages of samples, and the work on some of them to a trace."""
        begun, path = batches.n, self.run.folder / f"profile_epoch_{epoch + 1:04}.json.gz"
        if epoch == 0:
            batches = shown(batches, classes, partial(show_sheet, self.run, step=0), begun)
        if profiled:
            batches = traced(batches, profiled, path, tqdm.write)
        return iter(batches)

    @contextmanager
    def failures_explained(self, loader: DataLoader, frozen: bool):
        """What ends a training, with what to do about it."""
        try:
            yield
        except NonFiniteLoss as error:
            paths = [loader.dataset.annotations.path(i) for i in error.ids]
            raise SystemExit(
                f"{error}; training stops, last.pt and best.pt stay as they were. The {len(paths)} pictures of these "
                f"steps, the last first: {', '.join(paths[:64])}. Try a lower learning_rate, or amp=bf16"
            ) from error
        except torch.cuda.OutOfMemoryError as error:
            cure = less_memory(self.updater.schedule.plan, self.updater.accumulate, frozen)
            raise SystemExit(f"CUDA out of memory: {cure}") from error


def epoch_text(row: dict, epochs: int, state: State) -> str:
    """A line for the console."""
    parts = [f"epoch {row['epoch']:3}/{epochs}", f"loss {row['loss']:.3f}"]
    if "AP" in row:
        parts.append(f"val loss {row['val_loss']:.3f}  mAP50-95 {row['AP']:.4f}  mAP50 {row['AP50']:.4f}")
    parts.append(f"{row['images_per_second']:.1f} images/s")
    if row["skipped_steps"]:
        parts.append(f"{row['skipped_steps']} steps so far skipped: gradients not finite")
    return "  ".join(parts) + ("  (best)" if state.best_epoch == row["epoch"] else "")
