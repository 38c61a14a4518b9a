"""How a model runs in training: on several processes or GPUs, with batch norms over all ranks and CUDA graphs."""

import gc
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from utils.processes import Ranks

EXACT_FROM = 4096  # pixels per channel in a batch, from which on a single process corrects the statistics of batch norm


class _Normalize(torch.autograd.Function):
    """Batch normalization of x [B, C, H, W] with given statistics of all ranks, `pixels` of them, and gradients through them."""

    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, pixels: float, eps: float
    ):
        ctx.save_for_backward(x, weight, mean, variance)
        ctx.pixels, ctx.eps = pixels, eps
        return torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, eps)[0]

    @staticmethod
    def backward(ctx, dy: Tensor):
        """dx = (dy - mean(dy) - z * mean(dy * z)) * weight / sqrt(variance + eps) with z = normalized x, means over all ranks.

        Ioffe and Szegedy 2015, section 3.
        """
        x, weight, mean, variance = ctx.saved_tensors
        scale, rest = torch.rsqrt(variance + ctx.eps), (None, None, None, None)
        if not dist.is_initialized():
            statistics = (None, None, mean, scale, True, ctx.eps, (True, True, True))
            return *torch.ops.aten.native_batch_norm_backward(dy, x, weight, *statistics), *rest
        z = (x - mean[:, None, None]) * scale[:, None, None]
        d_bias, d_weight = dy.sum((0, 2, 3)), (dy * z).sum((0, 2, 3))
        sums = torch.cat([d_bias, d_weight])
        dist.all_reduce(sums)
        shift, slope = (sums / ctx.pixels).chunk(2)
        dx = (dy - shift[:, None, None] - z * slope[:, None, None]) * (weight * scale)[:, None, None]
        return dx, d_weight, d_bias, *rest


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, float]:
    """Mean and biased variance of each channel over all ranks, and the number of pixels of all ranks; x [B, C, H, W].

    In a channels-last tensor, PyTorch's batch norm adds up all pixels one after the other in float32. That makes errors of
    1e-4 in the first layers, and of 1e-2 in the outputs of a network at 416 pixels. Here up to 1024 pixels next to each other
    form one row, so that the sums are short, and these sums are combined in float64.
    """
    pixels, channels = x.numel() // x.shape[1], x.shape[1]
    if pixels:
        rows = x.permute(0, 2, 3, 1).reshape(-1, math.gcd(pixels, 1024) * channels)
        means, variances = torch.batch_norm_update_stats(rows, None, None, 0.0)
    else:  # an empty shard
        means = variances = x.new_zeros(channels)
    means = means.double()
    moments = torch.cat([means, variances + means.square()]).view(2, -1, channels).mean(1)
    if dist.is_initialized():
        sums = torch.cat([pixels * moments.flatten(), moments.new_tensor([pixels])])
        dist.all_reduce(sums)
        pixels_of_all = sums[-1].item()
        moments = (sums[:-1] / pixels_of_all).view(2, channels)
    else:
        pixels_of_all = float(pixels)
    mean, squares = moments
    variance = (squares - mean.square()).clamp(min=0)
    return mean.to(x.dtype), variance.to(x.dtype), pixels_of_all


class ExactBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d for CPUs that uses the statistics of all ranks in training. In evaluation mode it is BatchNorm2d.

    nn.SyncBatchNorm works on GPUs only. A single process uses this class for its large layers, where the statistics of
    BatchNorm2d are not exact, so that one process and several differ in the last digits only.
    """

    num_batches_tracked: Tensor
    running_mean: Tensor
    running_var: Tensor
    momentum: float

    def forward(self, x: Tensor) -> Tensor:
        """x [B, C, H, W] -> the same shape. B may be 0 on this rank if another rank has an image."""
        few = x.numel() < EXACT_FROM * x.shape[1] and not dist.is_initialized()
        if few or not self.training:
            return super().forward(x)
        wide = x if x.dtype == torch.float64 else x.float()
        with torch.no_grad():
            mean, variance, pixels = _statistics(wide)
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            unbiased = variance * (pixels / max(pixels - 1, 1))
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return _Normalize.apply(wide, self.weight, self.bias, mean, variance, pixels, self.eps).to(x.dtype)


def convert_sync_batchnorm(model: nn.Module) -> nn.Module:
    """Converts batch norms to SyncBatchNorm, on a CPU to ExactBatchNorm2d, in place. Names and tensors stay the same."""
    if next(model.parameters()).device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = ExactBatchNorm2d
    return model


def wrap(model: nn.Module, ranks: Ranks, sync_bn: bool = True) -> nn.Module:
    """Returns the model as the training loop calls it: itself, or inside DistributedDataParallel or DataParallel.

    Called again after every freeze and thaw, because DDP looks up what is trained when it is built, and when the batch-norm
    statistics are fixed, because CUDA graphs must be captured again. Without DDP, the batch norms on a CPU become
    ExactBatchNorm2d, too, whose statistics are exact.
    """
    if ranks.world_size > 1:
        return _distributed(model, ranks.device, sync_bn)
    if ranks.all_gpus:
        return nn.DataParallel(model)
    if ranks.device.type == "cpu":
        convert_sync_batchnorm(model)  # for exact statistics
    return model


def _distributed(model: nn.Module, device: torch.device, sync_bn: bool) -> nn.Module:
    """Returns the model inside of DistributedDataParallel."""
    if sync_bn:
        model = convert_sync_batchnorm(model)
    ddp, devices = nn.parallel.DistributedDataParallel, [device] if device.type == "cuda" else None
    names = ("forward_sync_buffers", "broadcast_buffers")  # PyTorch renamed the option
    name = next(name for name in names if name in inspect.signature(ddp).parameters)
    options: dict[str, Any] = {name: False}
    return ddp(model, device_ids=devices, gradient_as_bucket_view=True, **options)


class Graphed(nn.Module):
    """A model on a GPU whose training passes are replayed from CUDA graphs: Python need not launch each operation.

    Outputs and gradients equal the model's. In evaluation mode, and for images of another shape than `shape`, the model
    runs without graphs. Each backward pass overwrites the gradients of the one before, so they cannot be accumulated.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...], autocast: Callable):
        super().__init__()
        self.model, self.shape = model.train(), shape
        before = [buffer.clone() for buffer in model.buffers()]
        images = torch.zeros(shape, dtype=torch.uint8, device=next(model.parameters()).device)
        try:
            with autocast(cache=False):  # so that casts of the weights become part of the graph
                passes = torch.cuda.make_graphed_callables(nn.Sequential(model), (images,), allow_unused_input=True)
        finally:
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)  # capturing runs the model, which changes the statistics of batch norms
        self.passes = passes

    def forward(self, images: Tensor):
        """Images [B, 3, H, W] -> predictions of the model."""
        replay = self.training and tuple(images.shape) == self.shape
        return self.passes(images) if replay else self.model(images)


def graphed(model: nn.Module, shape: tuple[int, ...], autocast: Callable, log: Callable[[str], None]) -> nn.Module:
    """Returns the model as `Graphed`; where CUDA graphs do not work, logs why and returns the model itself."""
    # A harmless warning: the passes are captured on another stream than the optimizer's, and PyTorch synchronizes the two.
    warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream does not match")
    gc.collect()  # frees the graphs of the previous phase and the activations that they hold
    torch.backends.cudnn.allow_tf32 = True  # as in `fit_one_epoch`: the kernels are chosen at the capture
    stream = torch.cuda.current_stream()
    try:
        return Graphed(model, shape, autocast)
    except RuntimeError as error:
        log(f"CUDA graphs are not used, training continues without them: {str(error).strip().splitlines()[0]}")
    torch.cuda.set_stream(stream)  # a capture that fails leaves its own stream behind
    gc.collect()
    torch.cuda.empty_cache()  # not within `except`, whose traceback still holds the activations
    return model
