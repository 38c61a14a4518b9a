"""Parameter groups, the learning rate as a function of the step, the EMA, and the Updater that owns a training step."""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MOST_BAD_STEPS = 20  # non-finite steps in a row before training stops: fp16 needs about ten to find its scale
MOMENTUM = 0.9  # of SGD, and the first beta of Adam (YOLOX, section 2)
SELECTOR_RATE = 4.0  # times the learning rate, for a selector
LARGEST_NORM = 10.0  # of the gradients of a step, which are scaled down to it
REFERENCE_BATCH = 64  # learning rates are quoted for so many images a step


@dataclass(frozen=True)
class Plan:
    """How many steps there are, and where in the run a step lies. A frozen phase may have another batch size."""

    epochs: int
    freeze_epochs: int
    frozen_steps: int  # optimiser steps an epoch while frozen
    steps: int  # and afterwards
    frozen_images: int  # images an optimiser step while frozen
    images: int  # and afterwards

    def before(self, epoch: int) -> int:
        """Optimiser steps before this epoch."""
        frozen = min(epoch, self.freeze_epochs)
        return frozen * self.frozen_steps + (epoch - frozen) * self.steps

    def position(self, step: int) -> float:
        """Step -> epochs done, as a fraction."""
        frozen = self.freeze_epochs * self.frozen_steps
        if step < frozen:
            return step / self.frozen_steps
        return self.freeze_epochs + (step - frozen) / self.steps

    def images_at(self, step: int) -> int:
        """Images of an optimiser step."""
        return self.frozen_images if step < self.freeze_epochs * self.frozen_steps else self.images


@dataclass(frozen=True)
class Schedule:
    """Learning rate of a step: a quadratic warm-up from 0, then the schedule, whose end value holds for `plain_epochs`."""

    plan: Plan
    kind: str  # "cosine", "step" or "constant"
    learning_rate: float  # for 64 images a step
    min_learning_rate: float
    warmup_epochs: float
    plain_epochs: int

    def __post_init__(self):
        if self.kind not in ("cosine", "step", "constant"):
            raise ValueError(f"schedule={self.kind!r} is not known; choose cosine, step or constant")

    def __call__(self, step: int) -> float:
        scale = self.plan.images_at(step) / REFERENCE_BATCH
        return scale * self.at(self.plan.position(step))

    def at(self, epoch: float) -> float:
        """The learning rate for 64 images after so many epochs. (Quadratic warm-up and constant end: YOLOX, section 2.)"""
        if epoch < self.warmup_epochs:
            return self.learning_rate * (epoch / self.warmup_epochs) ** 2
        end = max(self.plan.epochs - self.plain_epochs, self.warmup_epochs + 1)
        done = min((epoch - self.warmup_epochs) / (end - self.warmup_epochs), 1.0)
        if self.kind == "constant":
            factor = 1.0
        elif self.kind == "cosine":
            factor = (1 + math.cos(math.pi * done)) / 2
        else:  # a tenth after 60 % of the way, a hundredth after 85 %
            factor = 0.01 if done >= 0.85 else 0.1 if done >= 0.6 else 1.0
        return self.min_learning_rate + (self.learning_rate - self.min_learning_rate) * factor


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Weight decay for the weights of convolutions and linear layers only; none for norms and biases. `scale`: of the learning
    rate; what a selector learns begins at nothing, beside what has been trained for long."""
    groups = []
    for scale, new in ((1.0, False), (SELECTOR_RATE, True)):
        some = [p for name, p in model.named_parameters() if name.startswith("selector.") == new]
        for decay, weights in ((weight_decay, True), (0.0, False)):
            params = [p for p in some if (p.ndim > 1) == weights]
            groups += [{"params": params, "weight_decay": decay, "scale": scale}] if params else []
    return groups


def build_optimizer(name: str, model: nn.Module, weight_decay: float) -> torch.optim.Optimizer:
    """`sgd` (nesterov), `adam` or `adamw`; the learning rate comes from the schedule. Fused: one pass over the weights."""
    groups = parameter_groups(model, weight_decay)
    if name == "sgd":
        optimizer = torch.optim.SGD(groups, lr=0.0, momentum=MOMENTUM, nesterov=True, fused=True)
        for p in model.parameters():  # a first step that is skipped must not leave uninitialised buffers behind
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return optimizer
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if name not in kinds:
        raise ValueError(f"optimizer={name!r} is not known; choose sgd, adam or adamw")
    return kinds[name](groups, lr=0.0, betas=(MOMENTUM, 0.999), fused=True)


class EMA:
    """Exponential moving average of the weights; batch-norm statistics are copied.

    decay(n) = decay * (1 - exp(-n / tau)) after n steps that happened. Both suit the length of the run: at most the
    .9998 and 2000 of YOLOX, less for runs of a few hundred steps, whose average would otherwise lag behind.
    """

    def __init__(self, model: nn.Module, total_steps: int, enabled: bool = True):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = 1 - 1 / min(5000, max(total_steps / 20, 1)) if enabled else 0.0
        self.tau = min(2000.0, max(total_steps / 20, 1))
        self.count = torch.zeros((), device=next(model.parameters()).device)

    @torch.no_grad()
    def update(self, model: nn.Module, happened: Tensor) -> None:
        """`happened`: 0-dim, 1 or 0: whether the step changed the weights. Nothing moves otherwise. Frozen weights are equal."""
        self.count += happened
        weight = (1 - self.decay * (1 - torch.exp(-self.count / self.tau))) * happened
        ours, theirs = [], []
        for mine, its in zip(self.model.parameters(), model.parameters(), strict=True):
            if its.requires_grad:
                ours.append(mine)
                theirs.append(its)
        if self.decay == 0:
            torch._foreach_copy_(ours, theirs)  # to the bit; a step that did not happen has left them as they were
        elif weight.device.type == "cpu":  # a number that nobody waits for: one pass instead of three
            torch._foreach_lerp_(ours, theirs, weight.item())
        else:
            difference = torch._foreach_sub(theirs, ours)
            torch._foreach_mul_(difference, weight)
            torch._foreach_add_(ours, difference)
        moving = [
            (ours, theirs)
            for mine, its in zip(self.model.modules(), model.modules(), strict=True)
            if its.training  # frozen batch norms are in evaluation mode
            for ours, theirs in zip(mine.buffers(recurse=False), its.buffers(recurse=False), strict=True)
        ]
        if moving:
            torch._foreach_copy_(*map(list, zip(*moving, strict=True)))


class Updater:
    """Owns a step: mixed precision, scaler, accumulation, clipping, schedule, optimiser, EMA. No host synchronisation.

    The schedule follows the attempted step. A step with non-finite gradients changes nothing: neither weights, nor
    batch-norm statistics, nor the EMA; it is counted on the device, and `check` looks at the count.
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
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=amp == "fp16")
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.statistics = [b for b in model.buffers() if b.is_floating_point()]
        self.good_statistics = self._flat_statistics()
        self.step_number = 0  # optimiser steps attempted
        self.micro = 0  # batches since the last of them
        self.skipped = torch.zeros((), device=self.device)
        self.bad_in_a_row = torch.zeros((), device=self.device)

    def autocast(self):
        """The context for the forward pass."""
        dtype = torch.float16 if self.amp == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=self.amp != "none")

    @property
    def learning_rate(self) -> float:
        """Of the coming step."""
        return self.schedule(self.step_number)

    def step(self, loss: Tensor) -> None:
        """Backward, and an optimiser step after every `accumulate` batches."""
        self.scaler.scale(loss / self.accumulate).backward()
        self.micro += 1
        if self.micro == self.accumulate:
            self._update()

    @torch.no_grad()
    def _update(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = group.get("scale", 1.0) * self.schedule(self.step_number)
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        happened = norm.isfinite().float()
        if self.clip > 0:
            nn.utils.clip_grads_with_norm_([p for p in self.parameters if p.grad is not None], self.clip, norm)
        if not self.scaler.is_enabled():  # fused optimisers leave everything alone where found_inf is 1
            self.optimizer.found_inf = 1 - happened
        if self.device.type != "mps" or bool(happened):  # the fused kernels of MPS do not look at found_inf
            self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._keep_good_statistics(happened)
        self.ema.update(self.model, happened)
        self.skipped += 1 - happened
        self.bad_in_a_row = (self.bad_in_a_row + 1) * (1 - happened)
        self.step_number += 1
        self.micro = 0

    def _flat_statistics(self) -> Tensor:
        return torch.cat([b.flatten() for b in self.statistics])

    def _keep_good_statistics(self, happened: Tensor) -> None:
        self.good_statistics = torch.where(happened > 0, self._flat_statistics(), self.good_statistics)
        parts = self.good_statistics.split([b.numel() for b in self.statistics])
        torch._foreach_copy_(self.statistics, [part.view_as(b) for part, b in zip(parts, self.statistics, strict=True)])

    def equalise_statistics(self, ranks) -> None:
        """The statistics of batch norms in training become their means over the processes: of `Ranks`, a collective. Needed
        before an evaluation or a save where batch norm is not synchronised."""
        norms = [m for m in self.model.modules() if isinstance(m, nn.BatchNorm2d) and m.training]
        if ranks.world > 1 and norms:
            ranks.equalise([b for norm in norms for b in (norm.running_mean, norm.running_var)])
            self.good_statistics = self._flat_statistics()
            torch._foreach_copy_(list(self.ema.model.buffers()), list(self.model.buffers()))

    def check(self) -> bool:
        """Whether training can go on: False after `MOST_BAD_STEPS` non-finite steps in a row. Waits for the device."""
        return int(self.bad_in_a_row) < MOST_BAD_STEPS

    def state_dict(self) -> dict:
        """All that the next step depends on beside the raw weights; plain containers and tensors."""
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
        """The inverse of `state_dict`, after the raw weights have been loaded into the model."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.ema.model.load_state_dict(state["ema"])
        self.ema.count.copy_(state["ema_count"])
        self.step_number = state["step_number"]
        self.skipped.copy_(state["skipped"])
        self.bad_in_a_row.copy_(state["bad_in_a_row"])
        self.good_statistics = self._flat_statistics()
