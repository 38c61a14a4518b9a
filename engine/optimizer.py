"""The optimizer, the moving average of the weights (EMA), and the Updater, which performs a step."""

import copy
from itertools import compress

import torch
from torch import Tensor, nn

from engine.schedule import Schedule
from nets import DetectionModel

MAX_BAD_STEPS = 20  # non-finite steps in a row before training stops: fp16 needs a few to find its scale
LOSS_SCALE = 2.0**10  # of fp16 at the start: from 2**16, YOLOX skips its first nine steps (input 0-255, decisions.md)
MOMENTUM = 0.9  # of SGD, and the first beta of Adam (YOLOX, section 2)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Splits parameters into two groups: weight decay for convolution and linear weights, none for norms and biases.

    Parameters that are frozen for the whole run are in no group.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.ndim > 1]
    others = [p for p in trained if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_optimizer(name: str, model: nn.Module, weight_decay: float) -> torch.optim.Optimizer:
    """Builds an optimizer: "sgd" (with Nesterov momentum), "adam" or "adamw". The schedule sets its learning rate.

    The fused implementations are the fastest, and skip a non-finite step without waiting for the device.
    """
    groups = parameter_groups(model, weight_decay)
    if name == "sgd":
        optimizer = torch.optim.SGD(groups, lr=0.0, momentum=MOMENTUM, nesterov=True, fused=True)
        for p in (p for group in groups for p in group["params"]):
            # A first step that is skipped must not leave uninitialized buffers behind.
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return optimizer
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[name](groups, lr=0.0, betas=(MOMENTUM, 0.999), fused=True)


def usable_amp(amp: str, device: torch.device) -> str:
    """Returns the mixed precision that a device can train with: "fp16" needs CUDA and becomes "none" elsewhere."""
    if amp == "fp16" and device.type != "cuda":
        return "none"
    return amp


class EMA:
    """Exponential moving average (EMA) of the weights. It shares the batch-norm buffers of the model.

    The decay after n steps is decay * (1 - exp(-n / tau)). Both constants depend on the length of the run: 0.9998 and 2000 as
    in YOLOX for long runs, less for runs of a few hundred steps, whose average would otherwise lag behind.
    """

    def __init__(self, model: DetectionModel, total_steps: int):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        # Listed once: the walk through all modules takes milliseconds of every step.
        self.parameters: tuple[list[Tensor], list[Tensor]] = list(self.model.parameters()), list(model.parameters())
        for ours, theirs in zip(self.model.modules(), model.modules(), strict=True):
            ours._buffers = theirs._buffers
        self.set_length(total_steps)
        self.count = torch.zeros((), device=next(model.parameters()).device)

    def set_length(self, total_steps: int) -> None:
        """Sets the decay for a run of this length."""
        self.decay = 1 - 1 / min(5000, max(total_steps / 20, 1))
        self.tau = min(2000.0, max(total_steps / 20, 1))

    @torch.no_grad()
    def update(self, finite: Tensor) -> None:
        """Updates the average after a step. `finite` (0-dim) is 1, or 0 for a skipped step, which leaves the EMA unchanged.

        Frozen weights need no update: they equal the model's.
        """
        self.count += finite
        weight = (1 - self.decay * (1 - torch.exp(self.count / -self.tau))) * finite
        trained = [p.requires_grad for p in self.parameters[1]]
        ours, theirs = (list(compress(parameters, trained)) for parameters in self.parameters)
        if self.decay == 0:  # a run of at most 20 steps
            torch._foreach_copy_(ours, theirs)  # bitwise equal, also after a skipped step
        elif weight.device.type == "cpu":  # .item() waits for nothing on a CPU, and allows one pass instead of three
            torch._foreach_lerp_(ours, theirs, weight.item())
        else:
            difference = list(torch._foreach_sub(theirs, ours))
            torch._foreach_mul_(difference, weight)
            torch._foreach_add_(ours, difference)


class Updater:
    """Performs a training step: mixed precision, loss scaling, accumulation, clipping, schedule, optimizer and EMA.

    A step with non-finite gradients changes neither the weights, nor the batch-norm statistics, nor the EMA. It is counted
    on the device, without a host synchronization; `check` reads the count. The schedule counts attempted steps.
    """

    def __init__(
        self,
        model: DetectionModel,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule,
        ema: EMA,
        amp: str = "none",
        accumulate: int = 1,
        clip: float = 0.0,
    ):
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

    def follow(self, course) -> None:
        """Takes the schedule of a course, and the length of the moving average, after its number of epochs has changed."""
        self.schedule = course.schedule
        self.ema.set_length(course.plan.total_steps)

    def autocast(self, cache: bool = True):
        """Returns the autocast context for the forward pass. `cache`: cast a weight once for all its uses."""
        dtype = torch.float16 if self.amp == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=self.amp != "none", cache_enabled=cache)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self.schedule(self.step_number)

    def backward(self, loss: Tensor, images: int = 1) -> None:
        """Runs the backward pass of a batch with `images` images, and `optimizer_step` after every `accumulate` batches."""
        self.images += images
        self.scaler.scale(loss / self.accumulate).backward()
        self.micro += 1
        if self.micro == self.accumulate:
            self.optimizer_step()

    @torch.no_grad()
    def optimizer_step(self) -> None:
        """Runs an optimizer step in this order: learning rate, unscale, clip, weights, scale, batch-norm statistics, EMA.

        With gradients that are not finite, weights, statistics and EMA stay as they were.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        self.scaler.unscale_(self.optimizer)
        trained = [p for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm([p.grad for p in trained])
        finite = norm.isfinite().float()  # 0-dim, stays on the device: 1 or 0
        if self.clip > 0:
            nn.utils.clip_grads_with_norm_(trained, self.clip, norm)
        self._change_weights(finite)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self._keep_good_statistics(finite)
        self.ema.update(finite)
        self.skipped += 1 - finite
        self.bad_in_a_row = (self.bad_in_a_row + 1) * (1 - finite)
        self.step_number += 1
        self.micro = 0

    def _change_weights(self, finite: Tensor) -> None:
        """Changes the weights, unless `finite` is 0.

        Not scaler.step: it detects only gradients that are not finite, but the norm of finite ones can overflow, too.
        """
        if self.fused:
            self.optimizer.found_inf = 1 - finite  # type: ignore[attr-defined]  # read by PyTorch's fused optimizers
            self.optimizer.step()
        elif bool(finite):  # waits for the device
            self.optimizer.step()

    def _flat_statistics(self) -> Tensor:
        """Returns a copy of all batch-norm statistics in one vector."""
        return torch.cat([b.flatten() for b in self.statistics])

    def _keep_good_statistics(self, finite: Tensor) -> None:
        """Remembers the batch-norm statistics after a step, or restores the remembered ones if the step was skipped."""
        self.good_statistics.copy_(self._flat_statistics().where(finite > 0, self.good_statistics))
        torch._foreach_copy_(self.statistics, self.good_parts)

    def average_statistics(self, ranks) -> None:
        """Averages batch-norm statistics over the processes, before an evaluation or a save: without SyncBN they differ.

        Each rank is weighted by the images that it trained on since the last average, after which all ranks were equal: a rank
        whose shards were empty has not updated its statistics. The weight is exactly 1 where all shards have the same size.
        """
        norms = []
        if ranks.world_size > 1:
            norms = [m for m in self.model.modules() if type(m) is nn.BatchNorm2d and m.training]
        if norms:
            images = int(ranks.sum(torch.tensor(self.images, device=self.device)))
            if images:  # else the statistics are still equal
                local = [b for norm in norms for b in (norm.running_mean, norm.running_var) if b is not None]
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
        self.images = 0  # a state is saved after the statistics were averaged
        self.good_statistics.copy_(self._flat_statistics())
