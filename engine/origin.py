"""Where a run begins: at its own last save, at a trained model that gets new classes, at weights, or at random weights."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Protocol, TypeVar, cast

import nets
from datasets.classes import with_known_classes
from datasets.errors import DataError
from datasets.formats.options import read_options
from datasets.sources import is_demo
from datasets.store import Annotations
from engine import resume
from engine.state import State
from utils.config import ConfigError, check, show
from utils.file_checks import fitting
from utils.processes import Ranks

T = TypeVar("T")
# Constants that a run may choose, and then keeps. Course keeps the numbers of epochs, which hours= changes.
CHOSEN = (
    *("image_size", "batch_size", "freeze_batch_size", "flip"),
    *("learning_rate", "min_learning_rate", "weight_decay"),
)
AUTOMATIC_0 = ("batch_size", "freeze_batch_size")  # constants for which 0 means: chosen by the run


class Owner(Protocol):
    """What decides a part of a run, and keeps what last.pt needs to resume it."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> Any: ...


class Origin:
    """The owner of resume=, weights= and add_classes=, and of what follows from them.

    It finds the run to resume, whose owners get their states back by `restore`, or the model that gets new classes.
    `user_config`: the constants of train.py as the user wrote them.
    """

    def __init__(self, user_config: Any, ranks: Ranks):
        self.user_config, self.ranks = user_config, ranks
        self.weights, self.add_classes = user_config.weights, user_config.add_classes
        found = resume.find(user_config.resume, user_config.output, user_config.name, ranks)
        self.folder, self.last, self.saved_at = found  # of the run to resume; `last`: the contents of last.pt
        self.owners: dict[str, Owner] = {"origin": self}  # by their names in last.pt
        self.fingerprint: dict[str, Any] = {}  # see `checked_against_run`
        self.trained = self._trained_model()
        self.pretraining: nets.Pretraining | None = None  # what the initial weights were trained on

    def _trained_model(self) -> nets.Trained | None:
        """Returns what is known of the model that gets new classes; a resumed run does not need its file."""
        if not self.add_classes:
            return None
        if trained := self.saved.get("origin", {}).get("trained"):
            with fitting(f"{self.folder}/last.pt"):
                return nets.trained_from(trained)
        cfg = self.user_config
        return self.ranks.on_main(lambda: nets.trained_model(cfg.model, cfg.weights, self.ranks.log, cfg.image_size))

    @property
    def saved(self) -> dict[str, Any]:
        """The states of the owners of the run to resume; empty for a new run."""
        return self.last["resume"] if self.last else {}

    @property
    def is_optional(self) -> bool:
        """Whether a run may start without its weights: the demo, if they cannot be downloaded."""
        return is_demo(self.user_config.train)

    @property
    def thresholds(self) -> Mapping[str, float]:
        """The thresholds of the classes that are not trained."""
        return self.trained.thresholds if self.trained else {}

    def resolved_config(self, cfg: Any) -> Any:
        """Returns the constants with the values that follow from where the run begins: model, image size, and in a resumed run
        everything that it chose before."""
        if self.folder and self.last:
            chosen = self.last["config"]
            names = [name for name in CHOSEN if is_automatic(name, getattr(cfg, name)) and name in chosen]
            # A run whose weights could not be downloaded began without them, and froze nothing.
            names += [name for name in ("weights", "freeze_epochs") if name in chosen]
            with fitting(self.folder / "last.pt"):
                cfg = check(replace(cfg, **{name: chosen[name] for name in names}))
        if self.trained:
            if cfg.model not in (type(cfg).model, self.trained.model):
                raise ConfigError(
                    f"model={cfg.model}: weights={cfg.weights} is a {self.trained.model}, and add_classes=true adds to "
                    f"this model: leave out model="
                )
            cfg = replace(cfg, model=self.trained.model, image_size=cfg.image_size or self.trained.image_size)
        return replace(cfg, image_size=cfg.image_size or nets.official_size(cfg.model))

    def read(self, read_data: Callable) -> tuple[Annotations, Annotations]:
        """Reads the data, with the classes and the range of 16-bit values of the trained model, if there is one.

        Raises DataError, for a run to resume with the constants that name data in another place."""
        try:
            return self._read(read_data)
        except DataError as error:
            if not self.last:
                raise
            fix = "if its data are in another place now, name it in the command that resumes it, as in train=FOLDER"
            raise DataError(f"{error}\n{self.folder}: {fix}") from error

    def _read(self, read_data: Callable) -> tuple[Annotations, Annotations]:
        cfg, log = self.user_config, self.ranks.log
        names = "classes merge image_root bad_boxes bad_images split_by all_labeled ignore_regions"
        options = read_options(**{name: getattr(cfg, name) for name in names.split()})
        if self.trained is None:
            return read_data(cfg.train, cfg.val, options, log)
        options = replace(options, known=self.trained.classes)
        train, val = read_data(cfg.train, cfg.val, options, log)
        train, val, notes = with_known_classes(self.trained.classes, train, val, options.select)
        train, train_notes = train.with_range(self.trained.value_range)
        val, val_notes = val.with_range(self.trained.value_range)
        for note in (*notes, *train_notes, *val_notes):
            log(f"note: {note}")
        return train, val

    def checked_against_run(
        self, data: tuple[Annotations, Annotations], fingerprint: Mapping[str, Any], may_change: set[str]
    ) -> tuple[Annotations, Annotations]:
        """Returns the data as the run to resume reads them: with its range of 16-bit values.

        `fingerprint`: what determines the run besides the constants, such as digests of data and code. Raises ConfigError
        that names its entries and the constants, other than those that `may_change`, which differ from the run to resume.
        """
        self.fingerprint = dict(fingerprint)
        if not self.last:
            return data
        origin = self.saved["origin"]
        before = origin["user_config"] | origin["fingerprint"]
        now = asdict(self.user_config) | self.fingerprint
        names = [name for name in now if name in before and name not in may_change - fingerprint.keys()]
        if changed := [name for name in names if show(before[name]) != show(now[name])]:
            text = ", ".join(f"{name}={show(now[name])} (was {show(before[name])})" for name in changed)
            raise ConfigError(
                f"{self.folder} was trained with other constants: {text}. Set them back, or start a new run"
            )
        value_range = self.last.get("value_range")
        train, val = (split.with_range(value_range and tuple(value_range))[0] for split in data)
        return train, val

    def build_model(self, build: Callable, name: str, classes: tuple[str, ...]) -> nets.DetectionModel:
        """Returns the model on its device, with its initial weights or those of the run to resume."""
        model, self.pretraining = build(name=name, classes=classes, origin=self, ranks=self.ranks)
        return self.restore("model", model)

    def without_weights(self, cfg: Any) -> Any:
        """Returns the constants without weights if they could not be downloaded: then nothing is worth freezing."""
        if self.last or self.pretraining or cfg.weights is None:
            return cfg
        return replace(cfg, weights=None, freeze_epochs=0)

    def restore(self, name: str, owner: T) -> T:
        """Returns an owner with its state of the run to resume, and enters it among those whose state last.pt keeps."""
        self.owners[name] = cast(Owner, owner)
        if name in self.saved:
            with fitting("last.pt"):
                cast(Owner, owner).load_state_dict(self.saved[name])
        return owner

    def progress(self) -> tuple[State, Mapping[str, Any] | None]:
        """Returns the progress of the run to resume, and the `Meter.state_dict` of the epoch that it had begun.

        Called last: the tensors of last.pt, which may take gigabytes, are freed.
        """
        if not self.folder or not self.last:
            return State(), None
        state, meter = State(**self.saved["state"]), self.saved["meter"]
        self.last = None
        return state, meter

    def state_dict(self) -> dict[str, Any]:
        """Returns the constants of the user, the fingerprint, and what is known of the trained model."""
        trained = self.trained._asdict() if self.trained else None
        return {"user_config": asdict(self.user_config), "fingerprint": self.fingerprint, "trained": trained}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Does nothing: the constructor has read the state, before the other owners could be built."""


def is_automatic(name: str, value: Any) -> bool:
    """Returns whether the run chooses the value of a constant, by what the user wrote."""
    return value is None or (name in AUTOMATIC_0 and value == 0)
