"""Changes a model for training: batch norms over all ranks, and torch.compile. The tensors keep their names."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from utils.config import ConfigError
from utils.distributed import Ranks


class _Normalize(torch.autograd.Function):
    """Batch normalization over all ranks: x [B, C, H, W] -> (x - mean) / sqrt(variance + eps), mean, biased variance, count.

    The second moments are combined in float64, so that their difference keeps its digits.
    """

    @staticmethod
    def forward(ctx, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        here = x.numel() // x.shape[1]
        total = x.sum((0, 2, 3)).double()
        mean = total / max(here, 1)
        squares = (x - mean.to(x.dtype)[:, None, None]).square().sum((0, 2, 3)).double() + here * mean.square()
        sums = torch.cat([total, squares, total.new_tensor([here])])
        dist.all_reduce(sums)
        count = sums[-1]
        mean, squares = (sums[:-1] / count).chunk(2)
        variance = (squares - mean.square()).clamp(min=0)
        mean, variance, count = (v.to(x.dtype) for v in (mean, variance, count))
        scale = torch.rsqrt(variance + eps)
        y = (x - mean[:, None, None]) * scale[:, None, None]
        ctx.save_for_backward(y, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return y, mean, variance, count

    @staticmethod
    def backward(ctx, gradient: Tensor, *_) -> tuple[Tensor, None]:
        """dx = (dy - mean(dy) - y * mean(dy * y)) / sqrt(variance + eps), means over all ranks (Ioffe and Szegedy 2015, 3)."""
        y, scale, count = ctx.saved_tensors
        sums = torch.cat([gradient.sum((0, 2, 3)), (gradient * y).sum((0, 2, 3))])
        dist.all_reduce(sums)
        shift, slope = (sums / count).chunk(2)
        return (gradient - shift[:, None, None] - y * slope[:, None, None]) * scale[:, None, None], None


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d for CPUs that uses the statistics of all ranks in training. In evaluation mode it is BatchNorm2d.

    nn.SyncBatchNorm works on GPUs only.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x [B, C, H, W] -> the same shape. B may be 0 on this rank if another rank has an image."""
        if not self.training:
            return super().forward(x)
        wide = x if x.dtype == torch.float64 else x.float()
        y, mean, variance, count = _Normalize.apply(wide, self.eps)
        with torch.no_grad():
            self.num_batches_tracked += 1
            unbiased = variance * (count / (count - 1).clamp(min=1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return (y * self.weight[:, None, None] + self.bias[:, None, None]).to(x.dtype)


def convert_sync_bn(model: nn.Module) -> nn.Module:
    """Makes the batch norms of `model` use the statistics of all ranks, in place. Names and tensors stay the same."""
    if next(model.parameters()).device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SyncBatchNorm2d
    return model


def compile_forward(model: nn.Module, sizes_vary: bool, ranks: Ranks, sync_bn: bool = True) -> str:
    """Makes torch.compile compile the model at its first call, in place -> a line to print: whether it will.

    The tensors keep their names, so that checkpoints are the same. `sizes_vary`: compile once for all input sizes instead
    of once for each. If torch.compile does not work here, the model stays as it is. Raises ConfigError where it would only
    seem to work.
    """
    if ranks.all_gpus:  # the replicas of DataParallel would compute with the weights of the first GPU
        raise ConfigError("compile=true does not work with device=cuda:all: use torchrun, or compile=false")
    device = next(model.parameters()).device
    if device.type == "cuda" and ranks.world_size > 1 and sync_bn:  # each batch norm interrupts the compiled graph
        raise ConfigError(
            "compile=true does not work with sync_bn=true on several GPUs: set sync_bn=false or compile=false"
        )
    if device.type == "cpu" and ranks.world_size > 1:  # SyncBatchNorm2d was never tested with it
        return "compile=true is NOT active: on CPUs it works in a single process only"
    try:
        torch.compile(nn.functional.silu)(torch.zeros(8, device=device))
    except Exception as error:  # no C++ compiler, no Triton or a Python that is too new: each raises another error
        why = str(error).strip().splitlines()[0]
        return f"compile=true is NOT active, training continues without it: {type(error).__name__}: {why}"
    model.compile(dynamic=sizes_vary)
    return "compile    active: the first step of each phase takes some minutes, later steps are faster"
