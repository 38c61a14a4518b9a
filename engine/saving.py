"""Saving a run: the row of the log, best.pt and last.pt after each epoch, and last.pt between two steps."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
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


class Saver:
    """The owner of what is saved, and when. All ranks call it.

    The order (log, at the end curves, best.pt, last.pt) makes a kill at any moment harmless. A file that cannot be written, for
    example because the disk is full, never stops the others from being written: it is reported and tried again at every later
    save. If it is still missing at the last save of a run, that is an error.

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
        self.pending: dict[str, dict] = {}  # checkpoints, by file name, that could not be written yet

    def begin(self, state: State, meter: Meter, initial_row: dict[str, Any]) -> State:
        """Saves what is known before the first step: the evaluation of initial weights, so that best.pt holds them until training
        beats them; with hours= the number of epochs, before a step depends on it; and a best.pt that the run to resume lacks."""
        lacks_best = self.ranks.on_main(lambda: self._lacks_best(state))
        if initial_row:
            state = self.finish(state, initial_row)
        elif lacks_best and state.best_epoch == state.epoch and not meter.batches:  # these are its weights
            self._save(state, meter, False, names=["best.pt"])
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
        """Saves the end of an epoch, and logs its line: the row of the log, best.pt if it is the best, and last.pt.

        Returns the state after the epoch.
        """
        state = state.after(row)
        names = ["best.pt"] if state.best_epoch == state.epoch else []
        if self.save_every and state.epoch and state.epoch % self.save_every == 0:
            names.append(f"epoch_{state.epoch:04}.pt")
        is_last = self.course.done(state) is not None
        self._save(state, Meter(), is_last, state.rows[-1], names)
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
        """Saves if `save_minutes` have passed. Raises Interrupted in all processes if one was asked to stop."""
        if self.stop.orphaned():
            raise SystemExit("torchrun has ended without its processes; training stops, what was saved remains")
        due = (
            self.ranks.is_main
            and self.run is not None
            and 0 < 60 * self.save_minutes < time.monotonic() - self.run.saved
        )
        to_save, to_stop = self.ranks.any(due, self.stop.received)
        if to_stop:
            raise Interrupted
        if to_save:
            self.within_epoch(state, meter)

    def _save(
        self, state: State, meter: Meter, last: bool, row: Mapping | None = None, names: Sequence[str] = ()
    ) -> None:
        """Saves while the timer of `stop` waits, in all processes until the slowest has written its files.

        `last`: no save follows.
        """
        self.stop.saving = True
        self.updater.average_statistics(self.ranks)
        errors: list[Exception] = []
        if self.run:
            with self.run.clock.during("saving"):
                errors = self._write(self.run, state, meter, last, row, names)
        self.ranks.gather(None)
        self.stop.saving = last
        if last and errors:
            raise errors[-1]

    def _write(
        self, run: Run, state: State, meter: Meter, last: bool, row: Mapping | None, names: Sequence[str]
    ) -> list[Exception]:
        """Writes the row of the log and the checkpoints. Returns the errors of files that could not be written."""
        errors: list[Exception] = []
        run.require_own()
        if row and self.ranks.is_main:
            with warn_if_disk_fails(errors):
                run.log(row, last)
            run.scalars(tensorboard_scalars(row), state.epoch)
        contents = self._contents(run, state)
        self.pending |= dict.fromkeys(names, contents)
        for name in list(self.pending):
            with warn_if_disk_fails(errors):
                run.save(name, self.pending[name])
                del self.pending[name]
        self.pending = copy.deepcopy(checkpoint.plain(self.pending))  # training will change the tensors
        states = {name: owner.state_dict() for name, owner in self.owners.items()}
        states |= {"state": asdict(state), "meter": meter.state_dict()}
        with warn_if_disk_fails(errors):
            run.save("last.pt", {**contents, "resume": states})
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
