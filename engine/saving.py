"""Saving a run: the row of the log after each epoch, and best.pt and last.pt as often as their time allows."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from engine.course import Course
from engine.epoch import Meter, epoch_text
from engine.memory import reserved_bytes
from engine.optimizer import Updater
from engine.origin import Origin
from engine.run_folder import Run, tensorboard_scalars
from engine.state import State
from utils import checkpoint
from utils.file_checks import CheckpointError
from utils.files import warn_if_disk_fails
from utils.processes import Interrupted, Ranks
from utils.signals import StopSignal

SAVING = 0.02  # of the time of a run, which its saves may take (a save of YOLOv9-s: 0.5 s)


class Saver:
    """The owner of what is saved, and when. All ranks call it.

    After an epoch the row of the log is written, and last.pt if it is due. A best.pt that is not due stays in memory. It is
    written just before the next last.pt, and always before the run ends. The order is log, curves (once a minute and at the
    end), best.pt, last.pt; a kill costs only the epochs or steps since the last save.

    A file that cannot be written, for example because the disk is full, never stops the others from being written: it is
    reported and tried again at every later save. If it is still missing at the last save of a run, that is an error.

    `cfg`: the constants of train.py; `run`: None in ranks that write nothing; `data`: annotations of training and validation;
    `on_row`: called with each row of the log.
    """

    def __init__(
        self,
        cfg: Any,
        run: Run | None,
        origin: Origin,
        stop: StopSignal,
        data: Sequence[Any],
        ranks: Ranks,
        on_row: Callable,
    ):
        self.save_every, self.save_minutes = cfg.save_every, cfg.save_minutes
        self.run, self.stop, self.data, self.ranks, self.on_row = run, stop, data, ranks, on_row
        self.owners, self.frozen_thresholds = origin.owners, origin.thresholds
        self.updater, self.course = cast(Updater, origin.owners["updater"]), cast(Course, origin.owners["course"])
        self.pending: dict[str, dict] = {}  # checkpoints, by file name, that are not written yet
        self.save_seconds = 0.0  # of the last save; 0: the first one is always due
        self.saved_at = run.clock.now() if run else 0.0  # when the last save ended

    def begin(self, state: State, meter: Meter, initial_row: dict[str, Any]) -> State:
        """Saves what is known before the first step: the evaluation of initial weights, so that best.pt holds them until training
        beats them; with hours= the number of epochs, before a step depends on it; and a best.pt that the run to resume lacks."""
        lacks_best = self.ranks.on_main(lambda: self._lacks_best(state))
        if initial_row:
            state = self.finish(state, initial_row)
        elif lacks_best and state.best_epoch == state.epoch and not meter.batches:  # these are its weights
            self._save(state, meter, False, ["best.pt"])
        elif self.course.budget.limit:
            self.within_epoch(state, meter)
        elif lacks_best:
            self.ranks.log(
                f"WARNING: best.pt is not that of epoch {state.best_epoch}, the best: a better epoch replaces it"
            )
        self.course.budget.begin_epochs()
        return state

    def _lacks_best(self, state: State) -> bool:
        """Whether best.pt is missing, or of another epoch than the best: the run was stopped before it could be written."""
        return self.run is not None and state.best_epoch is not None and not has_best(self.run.folder, state)

    def follow(self, course: Course) -> None:
        """Changes the constants and the marks of the curves to those of a course with another number of epochs."""
        if self.run:
            self.run.change({**self.run.config, **course.constants}, course.marks)

    def finish(self, state: State, row: dict[str, Any]) -> State:
        """Writes the row of the log after an epoch, saves best.pt and last.pt if they are due, and logs the line of the epoch.

        Returns the state after the epoch.
        """
        state = state.after(row)
        names = ["best.pt"] if state.best_epoch == state.epoch else []
        is_kept = self.save_every > 0 and state.epoch > 0 and state.epoch % self.save_every == 0
        if is_kept:
            names.append(f"epoch_{state.epoch:04}.pt")
        is_last = self.course.done(state) is not None
        errors = self._log(state, is_last)
        (due,) = self.ranks.any(is_last or is_kept or self._is_due())
        if due:
            self._save(state, Meter(), is_last, names, errors)
        else:
            self.updater.average_statistics(self.ranks)  # so that a save changes no bit
            self._keep(state, names)
        if self.run:
            with self.run.clock.during("log"):
                self.on_row(state.rows[-1], self.run)
        self.course.budget.end_epoch()
        is_best = state.epoch > 0 and state.best_epoch == state.epoch
        left, memory = self.course.seconds_left(state.epoch), reserved_bytes(self.ranks.device)
        self.ranks.log(epoch_text(row, self.course.epochs, is_best, left, memory))
        return state

    def within_epoch(self, state: State, meter: Meter, last: bool = False) -> None:
        """Saves last.pt within an epoch. `state`: after the last whole epoch; `meter`: of the current epoch."""
        self._save(state, meter, last)

    def between_steps(self, state: State, meter: Meter) -> None:
        """Saves if `save_minutes` have passed. Raises Interrupted in all processes if one was asked to stop, and SystemExit if
        torchrun has ended."""
        if self.stop.orphaned():
            raise SystemExit("torchrun has ended without its processes; training stops, what was saved remains")
        due = 0 < 60 * self.save_minutes < self._seconds_since_save()
        to_save, to_stop = self.ranks.any(due, self.stop.received)
        if to_stop:
            raise Interrupted
        if to_save:
            self.within_epoch(state, meter)

    def close(self) -> None:
        """Writes what is still in memory, if an error has ended the run, and closes the run folder."""
        if self.run:
            if self.run.is_own() and not self.stop.orphaned():
                with self.run.clock.during("saving"), suppress(OSError, CheckpointError):  # the first error counts
                    for name, contents in self.pending.items():
                        self.run.save(name, contents)
            self.run.close()

    def _seconds_since_save(self) -> float:
        """Returns the seconds since the last save, in the process that writes; 0 in the others."""
        return self.run.clock.now() - self.saved_at if self.run else 0.0

    def _is_due(self) -> bool:
        """Whether last.pt is due after an epoch: after 1 / SAVING times the duration of the last save, at most `save_minutes`."""
        wait = min(self.save_seconds / SAVING, 60 * self.save_minutes)
        return self.run is not None and self._seconds_since_save() >= wait

    def _log(self, state: State, last: bool) -> list[Exception]:
        """Writes the last row of the log. Returns the errors of files that could not be written."""
        errors: list[Exception] = []
        if self.run:
            self.run.require_own()
            with warn_if_disk_fails(errors):
                self.run.log(state.rows[-1], last)
            self.run.scalars(tensorboard_scalars(state.rows[-1]), state.epoch)
        return errors

    def _keep(self, state: State, names: Sequence[str]) -> None:
        """Keeps checkpoints in memory until the next save."""
        if self.run and names:
            with self.run.clock.during("saving"):
                contents = checkpoint.plain(self._contents(self.run, state), copy=True)
                self.pending |= dict.fromkeys(names, contents)

    def _save(
        self, state: State, meter: Meter, last: bool, names: Sequence[str] = (), errors: Sequence[Exception] = ()
    ) -> None:
        """Writes the checkpoints in rank 0 while the other ranks wait; the timer of `stop` is paused.

        `last`: no save follows; `errors`: of the files that are written already.
        """
        self.stop.saving = True
        self.updater.average_statistics(self.ranks)
        if self.run:
            with self.run.clock.during("saving"):
                errors = [*errors, *self._write(self.run, state, meter, names)]
        self.ranks.gather(None)
        self.stop.saving = last
        if last and errors:
            raise errors[-1]

    def _write(self, run: Run, state: State, meter: Meter, names: Sequence[str]) -> list[Exception]:
        """Writes the checkpoints. Returns the errors of those that could not be written."""
        errors: list[Exception] = []
        began = run.clock.now()
        run.require_own()
        contents = self._contents(run, state)
        self.pending |= dict.fromkeys(names, contents)
        for name in list(self.pending):
            with warn_if_disk_fails(errors):
                run.save(name, self.pending[name])
                del self.pending[name]
        self.pending = checkpoint.plain(self.pending, copy=True)  # training will change the tensors
        states = {name: owner.state_dict() for name, owner in self.owners.items()}
        states |= {"state": asdict(state), "meter": meter.state_dict()}
        with warn_if_disk_fails(errors):
            run.save("last.pt", {**contents, "resume": states})
        self.saved_at = run.clock.now()
        self.save_seconds = self.saved_at - began
        return errors

    def _contents(self, run: Run, state: State) -> dict[str, Any]:
        """Returns what each checkpoint holds, for prediction."""
        data = self.data[0]
        return {
            "config": run.config,
            "classes": list(data.classes),
            "epoch": state.epoch,
            "step": self.updater.step_number,
            "date": time.strftime("%Y-%m-%d %H:%M:%S"),
            "metrics": {name: value for name, value in (state.rows or ({},))[-1].items() if name != "epoch"},
            "thresholds": {**self.frozen_thresholds, **state.thresholds},
            "value_range": data.value_range,
            "model": self.updater.ema.model.state_dict(),
        }


def has_best(folder: Path, state: State) -> bool:
    """Returns whether the best.pt of a run is that of its best epoch."""
    try:
        return checkpoint.read(folder / "best.pt", on_disk=True)["epoch"] == state.best_epoch
    except (CheckpointError, LookupError):
        return False
