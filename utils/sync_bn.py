"""Batch norm over all processes on any device. PyTorch's own works on GPUs only; this one is for clusters of CPUs and for tests.

The batch of all processes is normalised as one, shares may be unequal or empty, and gradients flow through the sums.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn


class _SumOverProcesses(torch.autograd.Function):
    """y = the sum of x over all processes; each x has its part in every y, so gradients are summed as well."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d whose statistics in training are those of all processes. In evaluation mode it is BatchNorm2d."""

    def forward(self, x: Tensor) -> Tensor:
        """`[B, C, H, W]` -> the same; B may be 0 here as long as some process has a picture."""
        if not self.training:
            return super().forward(x)
        wide = x if x.dtype == torch.float64 else x.float()
        here = x.new_full((1,), x.numel() // x.shape[1], dtype=wide.dtype)
        sums = _SumOverProcesses.apply(torch.cat([wide.sum((0, 2, 3)), here]))
        count = sums[-1].detach()
        mean = sums[:-1] / count
        centred = wide - mean[:, None, None]
        variance = _SumOverProcesses.apply(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            self.num_batches_tracked += 1
            unbiased = variance * (count / (count - 1).clamp(min=1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)


def synchronise(model: nn.Module) -> nn.Module:
    """Makes the batch norms of `model` those of all processes, in place, names and tensors as they were."""
    if next(model.parameters()).device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SyncBatchNorm2d
    return model
