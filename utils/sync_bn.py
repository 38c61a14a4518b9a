"""Batch norm over all processes on any device. PyTorch's own works on GPUs only; this one is for clusters of CPUs and for tests.

The batch of all processes is normalised as one, and shares may be unequal or empty. One collective forward, one backward.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _Normalise(torch.autograd.Function):
    """x `[B, C, H, W]` -> (x - mean) / sqrt(variance + eps), mean, variance (biased) and count over all processes.

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
        """dx = (dy - mean(dy) - y * mean(dy * y)) / sqrt(variance + eps), the means over all processes (Ioffe and Szegedy 2015,
        section 3)."""
        y, scale, count = ctx.saved_tensors
        sums = torch.cat([gradient.sum((0, 2, 3)), (gradient * y).sum((0, 2, 3))])
        dist.all_reduce(sums)
        shift, slope = (sums / count).chunk(2)
        return (gradient - shift[:, None, None] - y * slope[:, None, None]) * scale[:, None, None], None


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d whose statistics in training are those of all processes. In evaluation mode it is BatchNorm2d."""

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` -> the same; B may be 0 here as long as some process has a picture."""
        if not self.training:
            return super().forward(x)
        wide = x if x.dtype == torch.float64 else x.float()
        y, mean, variance, count = _Normalise.apply(wide, self.eps)
        with torch.no_grad():
            self.num_batches_tracked += 1
            unbiased = variance * (count / (count - 1).clamp(min=1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return (y * self.weight[:, None, None] + self.bias[:, None, None]).to(x.dtype)


def synchronise(model: nn.Module) -> nn.Module:
    """Makes the batch norms of `model` those of all processes, in place, names and tensors as they were."""
    if next(model.parameters()).device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SyncBatchNorm2d
    return model
