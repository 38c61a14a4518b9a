"""Steps and learning rates as pure functions of the step, and the usual lengths of the phases of a run."""

import math
from dataclasses import dataclass, replace

REFERENCE_BATCH = 64  # images per step that the constants learning_rate and min_learning_rate refer to
MIN_WARMUP = 3  # steps: the first step of AdamW moves every weight by the whole rate, whatever its gradient
ENOUGH_SAMPLES, ENOUGH_STEPS = 20_000, 1_000  # of a run with epochs=0


@dataclass(frozen=True)
class Plan:
    """Steps per epoch and images per step of a run. The frozen phase may have another batch size than the thawed one."""

    epochs: int
    freeze_epochs: int
    frozen_steps: int  # optimizer steps per epoch while frozen
    steps: int  # the same after the thaw
    frozen_images: int  # images per optimizer step while frozen
    images: int  # the same after the thaw

    @classmethod
    def of(cls, length: int, epochs: int, freeze_epochs: int, freeze_batch_size: int, batch_size: int, accumulate: int):
        """Builds the plan for `length` training images. Batch sizes count the images of all processes together."""
        frozen_images, images = freeze_batch_size * accumulate, batch_size * accumulate
        steps = (-(-length // frozen_images), -(-length // images))
        return cls(epochs, min(freeze_epochs, epochs), *steps, frozen_images, images)

    def shortened(self, epochs: int) -> "Plan":
        """Returns the plan with fewer epochs."""
        return replace(self, epochs=epochs, freeze_epochs=min(self.freeze_epochs, epochs))

    def steps_before(self, epoch: int) -> int:
        """Returns the number of optimizer steps before an epoch (counted from 0)."""
        frozen = min(epoch, self.freeze_epochs)
        return frozen * self.frozen_steps + (epoch - frozen) * self.steps

    @property
    def total_steps(self) -> int:
        """The number of optimizer steps of the run."""
        return self.steps_before(self.epochs)

    def position(self, step: float) -> float:
        """Converts a step to epochs: 2.5 is the middle of the third epoch."""
        frozen = self.freeze_epochs * self.frozen_steps
        if step < frozen:
            return step / self.frozen_steps
        return self.freeze_epochs + (step - frozen) / self.steps

    def images_at(self, step: int) -> int:
        """Returns the number of images in an optimizer step."""
        return self.frozen_images if step < self.freeze_epochs * self.frozen_steps else self.images


def enough_epochs(images: int, batch: int) -> int:
    """Returns the number of epochs for `epochs=0`, with `batch` images per step: 30 to 300. See docs/choosing.md.

    It is enough for 20,000 training samples and for 1,000 steps, whichever needs more epochs.
    """
    for_samples = max(round(ENOUGH_SAMPLES / images), 30)
    for_steps = math.ceil(ENOUGH_STEPS / math.ceil(images / batch))
    return min(max(for_samples, for_steps), 300)


def usual_no_aug_epochs(epochs: int) -> int:
    """Returns the default number of epochs without augmentation."""
    return min(round(epochs / 5), 15)


def first_fixed_epoch(epochs: int, first_no_aug: int) -> int:
    """Returns the first epoch (counted from 0) with fixed batch-norm statistics, in a run from scratch.

    It is the latest of: the first no-augmentation epoch, 4/5 of the run, 15 epochs before its end. Earlier, the statistics of a
    network from scratch are still far from what they become. See benchmarks/decisions.md.
    """
    return max(first_no_aug, epochs - usual_no_aug_epochs(epochs))


def usual_warmup(plan: Plan) -> float:
    """Returns the default length of the warm-up in epochs: 100 steps or an epoch, but at most a tenth of the run."""
    total = plan.total_steps
    steps = min(max(100, plan.steps_before(1)), total / 10)
    return plan.position(min(max(steps, MIN_WARMUP), total))


def curve_marks(plan: Plan, no_aug_epochs: int) -> dict[str, int]:
    """Returns the vertical lines of curves.png: name -> first epoch of a phase, counted from 1."""
    thaw, no_aug = plan.freeze_epochs, max(plan.epochs - no_aug_epochs, 0)
    marks = {"thaw, no augmentation": thaw} if thaw == no_aug else {"thaw": thaw, "no augmentation": no_aug}
    return {name: epoch + 1 for name, epoch in marks.items() if 0 < epoch < plan.epochs}


@dataclass(frozen=True)
class Schedule:
    """Learning rate as a function of the step: quadratic warm-up, then the decay, then constant at its final value.

    It is constant during the last `no_aug_epochs`. `schedule(step)` is scaled with the images per step, up to `max_images`:
    linearly with power 1 (Goyal et al. 2017), by their square root with power .5 (Malladi et al. 2022, for adam).
    """

    plan: Plan
    kind: str  # "cosine", "step" or "constant"
    learning_rate: float  # for 64 images per step
    min_learning_rate: float
    warmup_epochs: float
    no_aug_epochs: int
    power: float = 1.0
    max_images: float = math.inf

    def __call__(self, step: int) -> float:
        epoch = self.plan.position(step)
        if epoch < self.warmup_epochs:  # the first step has a rate, too
            epoch = min(self.plan.position(step + 1), self.warmup_epochs)
        return self.scale(self.plan.images_at(step)) * self.at(epoch)

    def scale(self, images: int) -> float:
        """Factor of the learning rate for a step of `images` images."""
        return (min(images, self.max_images) / REFERENCE_BATCH) ** self.power

    def at(self, epoch: float) -> float:
        """Learning rate for 64 images per step after `epoch` epochs (warm-up and constant end as in YOLOX, section 2)."""
        if epoch < self.warmup_epochs:
            return self.learning_rate * (epoch / self.warmup_epochs) ** 2
        end = max(self.plan.epochs - self.no_aug_epochs, self.warmup_epochs + 1)
        done = min((epoch - self.warmup_epochs) / (end - self.warmup_epochs), 1.0)
        if self.kind == "constant":
            factor = 1.0
        elif self.kind == "cosine":
            factor = (1 + math.cos(math.pi * done)) / 2
        else:  # of what is above the minimum: a tenth after 60 % of these epochs, a hundredth after 85 %
            factor = 0.01 if done >= 0.85 else 0.1 if done >= 0.6 else 1.0
        return self.min_learning_rate + (self.learning_rate - self.min_learning_rate) * factor
