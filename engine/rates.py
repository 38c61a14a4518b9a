"""The learning rates of a run, its weight decay and its clipping of gradients."""

from collections.abc import Mapping
from typing import Any

import nets
from engine.schedule import REFERENCE_BATCH
from nets import Pretraining, SGDDefaults

MAX_GRADIENT_NORM = 10.0  # larger gradients are clipped to this norm
LOWEST_RATE = 1 / 32  # factor of the usual learning rate on images like the training images of the official weights


class Rates:
    """The owner of the learning rates: the values that `cfg` (the constants of train.py) gives, defaults for the others.

    `pretrained`: whether the run starts from weights. `domain_similarity`: see `domain_similarity_of`. `power` and `max_images`
    scale a learning rate with the images per step, see `Schedule`. `clip` is the largest norm of the gradients; 0: any norm. See
    docs/constants.md. In a resumed run, `cfg` has the learning rates that it chose before (`Origin.resolved_config`).
    """

    def __init__(self, cfg: Any, pretrained: bool, domain_similarity: float):
        sgd = nets.sgd_defaults(cfg.model)
        self.usual = usual_rate(cfg.optimizer, sgd)
        if cfg.optimizer == "sgd":
            decay = 5e-4 / sgd.factor  # as in YOLOX; a step subtracts rate * decay
            self.power, self.max_images = 1.0, sgd.max_images  # Goyal et al. 2017
            clips = pretrained or sgd.clip_from_scratch
        else:
            decay = 0.05 if cfg.optimizer == "adamw" else 5e-4  # only adamw decouples the decay from the gradients
            self.power, self.max_images = 0.5, REFERENCE_BATCH  # Malladi et al. 2022
            clips = True
        self.clip = MAX_GRADIENT_NORM if clips else 0.0
        self.weight_decay = given_or(cfg.weight_decay, decay)
        # The less there is to learn, the more a high rate makes the network forget.
        rate = max(self.usual * LOWEST_RATE**domain_similarity, cfg.min_learning_rate or 0.0)
        self.learning_rate = given_or(cfg.learning_rate, rate)
        self.min_learning_rate = given_or(cfg.min_learning_rate, self.learning_rate / 20)

    @property
    def constants(self) -> dict[str, Any]:
        """The constants that this object owns, with their values in this run."""
        names = ("learning_rate", "min_learning_rate", "weight_decay")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, float]:
        """Returns the values that no constant has: a later version may have other defaults."""
        return {"power": self.power, "max_images": self.max_images, "clip": self.clip}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restores a `state_dict`."""
        self.power, self.max_images, self.clip = state["power"], state["max_images"], state["clip"]


def given_or(given: float | None, default: float) -> float:
    """Returns the constant as it was given, or the default in place of None."""
    return default if given is None else given


def usual_rate(optimizer: str, sgd: SGDDefaults) -> float:
    """Returns the default learning rate for 64 images per step, on data that are new to the initial weights."""
    return 0.01 * sgd.factor if optimizer == "sgd" else 4e-3


def domain_similarity_of(pretraining: Pretraining, mean_ap: float, expected: float) -> float:
    """Returns how much the data look like what the official weights were trained on, from 0 (no lower rate) to 1.

    `mean_ap`: the mAP50-95 of the weights on the validation data before training. `expected`: the mAP50-95 that official
    weights reach on images like their training images. The ratios of mAP and of classes are ramps, so that one more class
    or image changes little: from half of the classes to all, and from .3 of the expected mAP to .7. Measured in
    benchmarks/decisions.md.
    """
    if not pretraining.official or expected <= 0:
        return 0.0
    by_name = (pretraining.known - 0.5) / 0.5
    by_map = (mean_ap / expected - 0.3) / 0.4
    return min(max(by_name, 0.0), 1.0) * min(max(by_map, 0.0), 1.0)
