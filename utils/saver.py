"""What a run writes between its epochs, in the order that makes a kill at any moment harmless."""

from collections.abc import Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

from utils.checkpoint import DiskError
from utils.distributed import Ranks
from utils.fit import Meter
from utils.optim import Updater
from utils.resume import State
from utils.run import Run


class Saver:
    """Saves last.pt; after an epoch also the log, best.pt and a checkpoint every `save_every` epochs. All processes call it.

    `run`: None in processes that write nothing. `config` and `classes`: for those who use the checkpoint; `fixed`: what else
    a resumed run must know that no step changes. `equalise`: batch norm is not synchronised while training.
    """

    def __init__(
        self, run: Run | None, ranks: Ranks, updater: Updater, config: Mapping[str, Any], classes: list[str],
        fixed: Mapping[str, Any], save_every: int = 0, equalise: bool = False,
    ):  # fmt: skip
        self.run, self.ranks, self.updater = run, ranks, updater
        self.config, self.classes, self.fixed = config, classes, fixed
        self.save_every, self.equalise = save_every, equalise

    def __call__(self, state: State, meter: Meter, row: Mapping[str, Any] | None = None, last: bool = False) -> None:
        """`row` of the log: the epoch that `state` has just ended with. `meter`: of the epoch that is running. `last`: there
        is no later try, so what cannot be written is an error."""
        if self.equalise:
            self.updater.equalise_statistics(self.ranks)
        if self.run is None:
            return
        careful, contents = nullcontext if last else a_full_disk_is_said, self._contents(state)
        if row and self.ranks.is_main:
            with careful():
                self.run.log(row)
                self.run.scalars({name: value for name, value in row.items() if name != "epoch"}, state.epoch)
        for name in self._names(state) if row else ():
            with careful():
                self.run.save(name, contents)
        rest = {"model": self.updater.model.state_dict(), "updater": self.updater.state_dict()}
        rest |= {"meter": meter.state_dict(), "state": asdict(state), "classes": self.classes, **self.fixed}
        with careful():
            self.run.save("last.pt", {**contents, "resume": rest})

    def _contents(self, state: State) -> dict[str, Any]:
        return {
            "config": self.config,
            "classes": self.classes,
            "epoch": state.epoch,
            "step": self.updater.step_number,
            "metrics": {name: value for name, value in (state.rows or ({},))[-1].items() if name != "epoch"},
            "model": self.updater.ema.model.state_dict(),
        }

    def _names(self, state: State) -> list[str]:
        names = ["best.pt"] if state.best_epoch == state.epoch else []
        return names + (
            [f"epoch_{state.epoch:04}.pt"] if self.save_every and state.epoch % self.save_every == 0 else []
        )


@contextmanager
def a_full_disk_is_said():
    """What cannot be written now is no reason to lose what is being trained; the next time it is tried again."""
    try:
        yield
    except (OSError, DiskError) as error:
        print(f"WARNING: {error}\nWARNING: training goes on and will try again; make room before it ends")
