"""Default numbers of the optimization, optimizer, learning-rate schedule, EMA, and the Updater, which performs a step."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor, nn

MAX_BAD_STEPS = 20  # non-finite steps in a row before training stops: fp16 needs a few to find its scale
LOSS_SCALE = 2.0**10  # of fp16 at the start: from 2**16, YOLOX skips its first nine steps (input 0-255, decisions.md)
MOMENTUM = 0.9  # of SGD, and the first beta of Adam (YOLOX, section 2)
MAX_GRADIENT_NORM = 10.0  # larger gradients are clipped to this norm
GENTLE = 1 / 32  # factor of the default learning rate on images like the training images of the official weights
REFERENCE_BATCH = 64  # images per step that the constants learning_rate and min_learning_rate refer to
LEAST_WARMUP = 3  # steps: the first step of AdamW moves every weight by the whole rate, whatever its gradient
ENOUGH_SAMPLES, ENOUGH_STEPS = 20_000, 1_000  # of a training with epochs=0
CHOSEN = ("no_aug_epochs", "warmup_epochs", "weight_decay", "learning_rate", "min_learning_rate")


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
        """Builds the plan for `length` training images. Batch sizes are those of all processes together."""
        frozen_images, images = freeze_batch_size * accumulate, batch_size * accumulate
        steps = (-(-length // frozen_images), -(-length // images))
        return cls(epochs, min(freeze_epochs, epochs), *steps, frozen_images, images)

    def before(self, epoch: int) -> int:
        """Returns the number of optimizer steps before an epoch (counted from 0)."""
        frozen = min(epoch, self.freeze_epochs)
        return frozen * self.frozen_steps + (epoch - frozen) * self.steps

    def position(self, step: int) -> float:
        """Converts a step to epochs: 2.5 is the middle of the third epoch."""
        frozen = self.freeze_epochs * self.frozen_steps
        if step < frozen:
            return step / self.frozen_steps
        return self.freeze_epochs + (step - frozen) / self.steps

    def images_at(self, step: int) -> int:
        """Returns the number of images in an optimizer step."""
        return self.frozen_images if step < self.freeze_epochs * self.frozen_steps else self.images


def enough_epochs(images: int, batch: int) -> int:
    """Returns the number of epochs for `epochs=0`, with `batch` images per step: 30 to 300. See docs/constants.md.

    It is enough for 20,000 training samples and for 1,000 steps, whichever needs more epochs.
    """
    for_samples = max(round(ENOUGH_SAMPLES / images), 30)
    for_steps = math.ceil(ENOUGH_STEPS / math.ceil(images / batch))
    return min(max(for_samples, for_steps), 300)


class SGDDefaults(NamedTuple):
    """The defaults of SGD that depend on the model family."""

    factor: float = 1.0  # of the learning rate of YOLOX, and divisor of its weight decay
    clip_from_scratch: bool = False  # clips gradients without pretrained weights, too
    max_images: float = math.inf  # images per step above which the learning rate grows no further


def likeness(known: float, mean_ap: float, expected: float) -> float:
    """Returns how much the data look like what the official weights were trained on, from 0 (no lower rate) to 1.

    `known`: fraction of the classes that the weights were trained on. `mean_ap`: their mAP50-95 on the validation data before
    training. `expected`: the mAP50-95 that they reach on images like those of their training. Both ratios are ramps, so that
    one more class or image changes little: from half of the classes to all, and from .3 of the expected mAP to .7. Measured
    in benchmarks/results/known_classes.md.
    """
    by_name = (known - 0.5) / 0.5
    by_map = (mean_ap / expected - 0.3) / 0.4 if expected > 0 else 0.0
    return min(max(by_name, 0.0), 1.0) * min(max(by_map, 0.0), 1.0)


def usual_rate(optimizer: str, sgd: SGDDefaults) -> float:
    """Returns the default learning rate for 64 images per step, on data that are new to the initial weights."""
    return 0.01 * sgd.factor if optimizer == "sgd" else 4e-3


def choose(
    given: Mapping, saved: Mapping, optimizer: str, sgd: SGDDefaults, pretrained: bool, like: float, plan: Plan
) -> dict[str, float]:
    """Returns the constants `CHOSEN` with a number for each None in `given`, and three more numbers.

    `rate_power` and `max_images` are those of `Schedule`, and `clip` is the largest norm of the gradients (0: any norm). The
    numbers of a `saved` run stay. `pretrained`: whether the run starts from weights. `like`: see `likeness`. See
    docs/constants.md.
    """
    chosen = {name: given[name] for name in CHOSEN if given[name] is not None}
    chosen |= {name: saved[name] for name in (*CHOSEN, "rate_power", "max_images", "clip") if name in saved}
    chosen.setdefault("no_aug_epochs", min(round(plan.epochs / 5), 15))
    decays = {"adamw": 0.05, "sgd": 5e-4 / sgd.factor}  # of sgd: a step subtracts rate * decay
    chosen.setdefault("weight_decay", decays.get(optimizer, 5e-4))
    total = plan.before(plan.epochs)
    steps = min(max(100, plan.before(1)), total / 10)
    chosen.setdefault("warmup_epochs", plan.position(min(max(steps, LEAST_WARMUP), total)))
    # Runs that older versions began have no power saved: their rates were linear for every optimizer.
    chosen.setdefault("rate_power", 1.0 if optimizer == "sgd" or saved else 0.5)
    chosen.setdefault("max_images", REFERENCE_BATCH if chosen["rate_power"] < 1 else sgd.max_images)
    rate = usual_rate(optimizer, sgd) * GENTLE**like
    chosen.setdefault("learning_rate", max(rate, chosen.get("min_learning_rate", 0.0)))
    chosen.setdefault("min_learning_rate", chosen["learning_rate"] / 20)
    clips = optimizer != "sgd" or pretrained or sgd.clip_from_scratch
    chosen.setdefault("clip", MAX_GRADIENT_NORM if clips else 0.0)
    return chosen


@dataclass(frozen=True)
class Schedule:
    """Learning rate as a function of the step: quadratic warm-up, decay, then the rate that the decay has reached.

    That rate is held during the last `no_aug_epochs`. `schedule(step)` is scaled with the images per step, up to `max_images`:
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

    def __post_init__(self):
        if self.kind not in ("cosine", "step", "constant"):
            raise ValueError(f"schedule={self.kind!r} is not known; choose cosine, step or constant")

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


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Splits parameters into two groups: weight decay for convolution and linear weights, none for norms and biases."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_optimizer(name: str, model: nn.Module, weight_decay: float) -> torch.optim.Optimizer:
    """Builds an optimizer: "sgd" (with Nesterov momentum), "adam" or "adamw". The schedule sets its learning rate.

    The fused implementations are the fastest, and skip a non-finite step without waiting for the device.
    """
    groups = parameter_groups(model, weight_decay)
    if name == "sgd":
        optimizer = torch.optim.SGD(groups, lr=0.0, momentum=MOMENTUM, nesterov=True, fused=True)
        for p in model.parameters():  # a first step that is skipped must not leave uninitialized buffers behind
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return optimizer
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if name not in kinds:
        raise ValueError(f"optimizer={name!r} is not known; choose sgd, adam or adamw")
    return kinds[name](groups, lr=0.0, betas=(MOMENTUM, 0.999), fused=True)


class EMA:
    """Exponential moving average (EMA) of the weights. Batch-norm statistics have no average: both models share them.

    The decay after n steps is decay * (1 - exp(-n / tau)). Both constants depend on the length of the run: 0.9998 and 2000 as
    in YOLOX for long runs, less for runs of a few hundred steps, whose average would otherwise lag behind.
    """

    def __init__(self, model: nn.Module, total_steps: int, enabled: bool = True):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        # Listed once: the walk through all modules takes milliseconds of every step.
        self.parameters = list(self.model.parameters()), list(model.parameters())
        for ours, theirs in zip(self.model.modules(), model.modules(), strict=True):
            ours._buffers = theirs._buffers
        self.decay = 1 - 1 / min(5000, max(total_steps / 20, 1)) if enabled else 0.0
        self.tau = min(2000.0, max(total_steps / 20, 1))
        self.count = torch.zeros((), device=next(model.parameters()).device)

    @torch.no_grad()
    def update(self, happened: Tensor) -> None:
        """Updates the average after a step. `happened` (0-dim) is 1, or 0 for a skipped step, which leaves the EMA unchanged.

        Frozen weights need no update: they are equal to those of the model.
        """
        self.count += happened
        weight = (1 - self.decay * (1 - torch.exp(self.count / -self.tau))) * happened
        trained = [p.requires_grad for p in self.parameters[1]]
        ours, theirs = (list(compress(parameters, trained)) for parameters in self.parameters)
        if self.decay == 0:
            torch._foreach_copy_(ours, theirs)  # bitwise equal, also after a skipped step
        elif weight.device.type == "cpu":  # .item() waits for nothing on a CPU, and allows one pass instead of three
            torch._foreach_lerp_(ours, theirs, weight.item())
        else:
            difference = torch._foreach_sub(theirs, ours)
            torch._foreach_mul_(difference, weight)
            torch._foreach_add_(ours, difference)


class Updater:
    """Performs a training step: mixed precision, loss scaling, accumulation, clipping, schedule, optimizer and EMA.

    A step with non-finite gradients changes neither the weights, nor the batch-norm statistics, nor the EMA. It is counted
    on the device, without a host synchronization; `check` reads the count. The schedule counts attempted steps.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        ema: EMA,
        amp: str = "none",
        accumulate: int = 1,
        clip: float = 0.0,
    ):
        if amp not in ("none", "fp16", "bf16"):
            raise ValueError(f"amp={amp!r} is not known; choose fp16, bf16 or none")
        self.model, self.optimizer, self.schedule, self.ema = model, optimizer, schedule, ema
        self.amp, self.accumulate, self.clip = amp, accumulate, clip
        self.device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(self.device.type, init_scale=LOSS_SCALE, enabled=amp == "fp16")
        # Fused optimizers skip a step when their attribute found_inf is 1; the fused kernels of MPS ignore it.
        self.fused = getattr(optimizer, "_step_supports_amp_scaling", False) and self.device.type != "mps"
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.statistics = [b for b in model.buffers() if b.is_floating_point()]
        self.good_statistics = self._flat_statistics()
        parts = self.good_statistics.split([b.numel() for b in self.statistics])
        self.good_parts = [part.view_as(b) for part, b in zip(parts, self.statistics, strict=True)]
        self.step_number = 0  # optimizer steps attempted
        self.micro = 0  # batches since the last optimizer step
        self.images = 0  # of this rank since its batch-norm statistics were last averaged
        self.skipped = torch.zeros((), device=self.device)
        self.bad_in_a_row = torch.zeros((), device=self.device)

    def autocast(self, cache: bool = True):
        """Returns the autocast context for the forward pass. `cache`: cast a weight once for all its uses."""
        dtype = torch.float16 if self.amp == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=self.amp != "none", cache_enabled=cache)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self.schedule(self.step_number)

    def step(self, loss: Tensor, images: int = 1) -> None:
        """Runs the backward pass of a batch with `images` images, and an optimizer step after every `accumulate` batches."""
        self.images += images
        self.scaler.scale(loss / self.accumulate).backward()
        self.micro += 1
        if self.micro == self.accumulate:
            self._update()

    @torch.no_grad()
    def _update(self) -> None:
        """Runs the optimizer step and updates the EMA, unless the gradients are not finite."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(self.step_number)
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        happened = norm.isfinite().float()
        failed = 1 - happened
        if self.clip > 0:
            nn.utils.clip_grads_with_norm_([p for p in self.parameters if p.grad is not None], self.clip, norm)
        # Not scaler.step: it only detects gradients that are not finite, and the norm of finite ones can overflow, too.
        if self.fused:
            self.optimizer.found_inf = failed
        if self.fused or bool(happened):  # bool() waits for the device
            self.optimizer.step()
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._keep_good_statistics(happened)
        self.ema.update(happened)
        self.skipped += failed
        self.bad_in_a_row = (self.bad_in_a_row + 1) * failed
        self.step_number += 1
        self.micro = 0

    def _flat_statistics(self) -> Tensor:
        """Returns a copy of all batch-norm statistics in one vector."""
        return torch.cat([b.flatten() for b in self.statistics])

    def _keep_good_statistics(self, happened: Tensor) -> None:
        """Remembers the batch-norm statistics after a step, or restores the remembered ones if the step was skipped."""
        self.good_statistics.copy_(self._flat_statistics().where(happened > 0, self.good_statistics))
        torch._foreach_copy_(self.statistics, self.good_parts)

    def average_statistics(self, ranks) -> None:
        """Averages batch-norm statistics over the processes, before an evaluation or a save: without SyncBN they differ.

        Each rank is weighted by the images that it trained on since the last average, after which all ranks were equal: a rank
        whose shards were empty has not updated its statistics. The weight is exactly 1 where all shards have the same size.
        """
        norms = [m for m in self.model.modules() if type(m) is nn.BatchNorm2d and m.training]
        if ranks.world_size > 1 and norms:
            images = int(ranks.sum(torch.tensor(self.images, device=self.device)))
            if images:  # else the statistics are still equal
                local = [b for norm in norms for b in (norm.running_mean, norm.running_var)]
                weight = self.images * ranks.world_size / images
                mean = ranks.sum(torch.cat(local) * weight) / ranks.world_size
                torch._foreach_copy_(local, list(mean.split([len(b) for b in local])))
                self.good_statistics.copy_(self._flat_statistics())
        self.images = 0

    def check(self) -> bool:
        """Returns False after `MAX_BAD_STEPS` non-finite steps in a row. Waits for the device."""
        return int(self.bad_in_a_row) < MAX_BAD_STEPS

    def state_dict(self) -> dict:
        """Returns all state that the next step depends on, except the raw weights, as plain containers and tensors."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ema": self.ema.model.state_dict(),
            "ema_count": self.ema.count,
            "step_number": self.step_number,
            "skipped": self.skipped,
            "bad_in_a_row": self.bad_in_a_row,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restores a `state_dict`. The raw weights must have been loaded into the model before."""
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty if saved on a device without a scaler; a fresh scaler finds its scale again
            self.scaler.load_state_dict(state["scaler"])
        self.ema.model.load_state_dict(state["ema"])
        self.ema.count.copy_(state["ema_count"])
        self.step_number = state["step_number"]
        self.skipped.copy_(state["skipped"])
        self.bad_in_a_row.copy_(state["bad_in_a_row"])
        self.good_statistics.copy_(self._flat_statistics())
