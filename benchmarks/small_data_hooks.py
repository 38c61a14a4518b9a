"""Changes of the training for which there is no constant, for benchmarks.small_data: one function per change.

A hook takes its settings and returns replacements: name in train.py -> function that takes the present value of the name and
returns the value during the run. `hooked` applies the replacements for the time of a run, so train.py itself stays unchanged.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import cv2
import numpy as np
import torch
from torch import nn

import train
from datasets.dataset import DetectionDataset
from datasets.loader import ValSampler, build_loader
from engine.schedule import REFERENCE_BATCH
from utils.boxes import pairwise_iou

Replacements = dict[str, Callable]
Hook = tuple  # (function of this module, its settings ...)


@contextmanager
def hooked(hooks: Sequence[Hook]) -> Iterator[None]:
    """Replaces names of train.py while the context is open; hooks on the same name are applied one after another."""
    before = {}
    try:
        for function, *settings in hooks:
            for name, wrap in function(*settings).items():
                before.setdefault(name, getattr(train, name))
                setattr(train, name, wrap(getattr(train, name)))
        yield
    finally:
        for name, value in before.items():
            setattr(train, name, value)


def text(hooks: Sequence[Hook]) -> str:
    """Returns hooks as text, for the table: backbone_rate(0.3)."""
    return " ".join(f"{function.__name__}({','.join(map(str, settings))})" for function, *settings in hooks)


def backbone_rate(factor: float) -> Replacements:
    """The learning rate of the backbone is `factor` times that of the neck and the head."""

    def wrap(build_optimizer: Callable) -> Callable:
        def build(name: str, model: nn.Module, weight_decay: float) -> torch.optim.Optimizer:
            optimizer = build_optimizer(name, model, weight_decay)
            of_backbone = {id(p) for p in model.backbone.parameters()}
            for group in list(optimizer.param_groups):
                inside = [p for p in group["params"] if id(p) in of_backbone]
                group["params"] = [p for p in group["params"] if id(p) not in of_backbone]
                optimizer.add_param_group({**group, "params": inside, "factor": factor})
            optimizer.register_step_pre_hook(scale_rates)
            return optimizer

        return build

    return {"build_optimizer": wrap}


def scale_rates(optimizer: torch.optim.Optimizer, *_) -> None:
    """Multiplies the learning rates that the Updater has just set by the factors of their groups."""
    for group in optimizer.param_groups:
        group["lr"] *= group.get("factor", 1.0)


def eval_norms() -> Replacements:
    """The batch norms of the backbone stay in evaluation mode after the thaw; their weights and biases are trained."""
    return {"build_model": _with_backbone(train=lambda self, mode=True: nn.Module.train(self, False))}


def frozen_stem() -> Replacements:
    """The first convolution of the backbone is never trained, and its batch norm stays in evaluation mode."""

    def set_mode(self, mode: bool = True) -> nn.Module:
        nn.Module.train(self, mode)
        self.stem.eval()
        return self

    def set_gradients(self, required: bool = True) -> nn.Module:
        nn.Module.requires_grad_(self, required)
        self.stem.requires_grad_(False)
        return self

    return {"build_model": _with_backbone(train=set_mode, requires_grad_=set_gradients)}


def _with_backbone(**methods: Callable) -> Callable:
    """Returns a replacement of build_model, whose backbone has these methods instead of its own."""

    def wrap(build_model: Callable) -> Callable:
        def build(*args):
            model, pretrained = build_model(*args)
            kind = type(model.backbone)
            model.backbone.__class__ = type(kind.__name__, (kind,), methods)  # a copy for the EMA has it too
            return model, pretrained

        return build

    return wrap


def norm_momentum(momentum: float) -> Replacements:
    """The momentum of all batch norms, instead of .03."""

    def wrap(build_model: Callable) -> Callable:
        def build(*args):
            model, pretrained = build_model(*args)
            for norm in norms_of(model):
                norm.momentum = momentum
            return model, pretrained

        return build

    return {"build_model": wrap}


def norms_of(model: nn.Module) -> list[nn.BatchNorm2d]:
    """Returns the batch norms of a model."""
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


def second_warmup(epochs: float) -> Replacements:
    """After the thaw the learning rate grows quadratically from 0 again, for this number of epochs."""

    def wrap(schedule: type) -> type:
        class SecondWarmup(schedule):
            def at(self, epoch: float) -> float:
                since = epoch - self.plan.freeze_epochs
                again = 0 <= since < epochs and self.plan.freeze_epochs > 0
                return super().at(epoch) * ((since / epochs) ** 2 if again else 1)

        return SecondWarmup

    return {"Schedule": wrap}


def cosine_to_the_end() -> Replacements:
    """The cosine ends with the last epoch, so the epochs without augmentation do not all have the lowest rate."""

    def wrap(schedule: type) -> type:
        class ToTheEnd(schedule):
            def at(self, epoch: float) -> float:
                return schedule.at(replace(self, no_aug_epochs=0), epoch)

        return ToTheEnd

    return {"Schedule": wrap}


def ema_length(factor: float) -> Replacements:
    """The EMA averages over `factor` times as many steps."""

    def wrap(ema: type) -> type:
        class Longer(ema):
            def __init__(self, *args):
                super().__init__(*args)
                self.decay = 1 - (1 - self.decay) / factor

        return Longer

    return {"EMA": wrap}


def no_clipping() -> Replacements:
    """Turns gradient clipping off."""

    def wrap(choose: Callable) -> Callable:
        def new(*args):
            return choose(*args) | {"clip": 0.0}

        return new

    return {"choose": wrap}


def l1_always() -> Replacements:
    """The L1 loss of YOLOX is on in all epochs, not only in those without augmentation."""

    def wrap(fit_one_epoch: Callable) -> Callable:
        def fit(network, criterion, *rest):
            criterion.l1 = True
            return fit_one_epoch(network, criterion, *rest)

        return fit

    return {"fit_one_epoch": wrap}


def loss_weight(name: str, factor: float) -> Replacements:
    """The loss `name` counts `factor` times as much in the total, which is minimized."""

    def wrap(fit_one_epoch: Callable) -> Callable:
        def fit(network, criterion, *rest):
            def weighted(*args):
                losses = criterion(*args)
                return losses | {"total": losses["total"] + (factor - 1) * losses[name]}

            return fit_one_epoch(network, weighted, *rest)

        return fit

    return {"fit_one_epoch": wrap}


def few_images(images: int) -> Replacements:
    """Trains with this number of training images only, evenly spaced in their list."""

    def wrap(read_data: Callable) -> Callable:
        def read(*args):
            train_data, val_data = read_data(*args)
            return train_data.select(np.linspace(0, len(train_data) - 1, images).round()), val_data

        return read

    return {"read_data": wrap}


def gray_negatives() -> Replacements:
    """All images become gray negatives, a little like those of a thermal camera: known classes that look different."""

    def wrap(dataset: type) -> type:
        class Negatives(dataset):
            def read(self, *args):
                sample = super().read(*args)
                gray = cv2.cvtColor(sample.image, cv2.COLOR_BGR2GRAY)
                return sample._replace(image=255 - np.repeat(gray[..., None], 3, 2))

        return Negatives

    return {"DetectionDataset": wrap}


def new_statistics(images: int) -> Replacements:
    """Before each evaluation the batch-norm statistics of the EMA model become the means over training images.

    Afterwards it restores them, because the model in training shares these buffers. The first `images` training images are
    letterboxed without augmentation. A frozen backbone keeps its statistics.
    """
    loaders = []

    def wrap_data(build_train_set: Callable) -> Callable:
        def build(cfg, letterbox, train_data, extra_augment):
            data = train_data.select(np.arange(min(images, len(train_data))))
            sampler = ValSampler(len(data), cfg.batch_size, cfg.image_size, 0, 1)
            loaders.append(build_loader(DetectionDataset(data, letterbox), sampler, 0, False))
            return build_train_set(cfg, letterbox, train_data, extra_augment)

        return build

    def wrap_validate(validate: Callable) -> Callable:
        def new(updater, *rest):
            model = updater.ema.model
            before = [buffer.clone() for buffer in model.buffers()]
            estimate_statistics(model, loaders[-1], updater.model.frozen)
            row = validate(updater, *rest)
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)  # the trained model has the same buffers
            return row

        return new

    return {"build_train_set": wrap_data, "validate": wrap_validate}


@torch.no_grad()
def estimate_statistics(model: nn.Module, loader, frozen: bool) -> None:
    """Sets the statistics of all batch norms, except those of a `frozen` backbone, to their means over the batches."""
    model.eval()
    kept, momentum = set(norms_of(model.backbone)) if frozen else set(), {}
    norms = [norm for norm in norms_of(model) if norm not in kept]
    for norm in norms:
        momentum[norm] = norm.momentum
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches since the reset
        norm.train()
    device = next(model.parameters()).device
    for batch in loader:
        model(batch.to(device).images)
    for norm in norms:
        norm.momentum = momentum[norm]
    model.eval()


def copy_paste(probability: float) -> Replacements:
    """Each box is copied within its image with this probability, to a place where it covers no other box by IoU .1 or more."""
    return {"build_train_set": _with_augment(CopyPaste(probability))}


def _with_augment(augment: Callable) -> Callable:
    """Returns a replacement of build_train_set, whose training samples get `augment` as `extra_augment`."""

    def wrap(build_train_set: Callable) -> Callable:
        def build(cfg, letterbox, train_data, _):
            return build_train_set(cfg, letterbox, train_data, augment)

        return build

    return wrap


def vertical_flip(probability: float) -> Replacements:
    """Finished training samples are mirrored top to bottom with this probability, except in the no-augmentation epochs."""

    def flip(image: np.ndarray, boxes: np.ndarray, labels: np.ndarray, rng: np.random.Generator):
        if rng.random() < probability:
            height = image.shape[0]
            image, boxes = image[::-1].copy(), boxes.copy()
            boxes[:, [1, 3]] = height - boxes[:, [3, 1]]
        return image, boxes, labels

    return {"build_train_set": _with_augment(flip)}


class CopyPaste:
    """An `extra_augment` that pastes copies of boxes, mirrored with probability 1/2, at random places of the same image."""

    def __init__(self, probability: float):
        self.probability = probability

    def __call__(self, image: np.ndarray, boxes: np.ndarray, labels: np.ndarray, rng: np.random.Generator):
        height, width = image.shape[:2]
        original, image = image, image.copy()
        for number in np.flatnonzero(rng.random(len(boxes)) < self.probability).tolist():
            x1, y1, x2, y2 = boxes[number].round().astype(int).clip(0, [width, height] * 2)
            wide, high = x2 - x1, y2 - y1
            if min(wide, high) < 2:
                continue
            left, top = int(rng.integers(0, width - wide + 1)), int(rng.integers(0, height - high + 1))
            mirrored = rng.random() < 0.5
            place = np.array([[left, top, left + wide, top + high]], np.float32)
            if pairwise_iou(place, boxes).max() < 0.1:
                part = original[y1:y2, x1:x2]
                image[top : top + high, left : left + wide] = part[:, ::-1] if mirrored else part
                boxes, labels = np.concatenate([boxes, place]), np.append(labels, labels[number])
        return image, boxes, labels


def linear_rate() -> Replacements:
    """The learning rate grows linearly with the images per step for every optimizer, as it did in the first rows."""

    def wrap(schedule: type) -> type:
        class Linear(schedule):
            def scale(self, images: int) -> float:
                return images / REFERENCE_BATCH

        return Linear

    return {"Schedule": wrap}


def rescaled_rate(power: float) -> Replacements:
    """The learning rate grows with the images per step to this power, and equals the linear rule at 16 images."""

    def wrap(schedule: type) -> type:
        class Rescaled(schedule):
            def __call__(self, step: int) -> float:
                images = self.plan.images_at(step)
                return super().__call__(step) * (images / 16) ** (power - 1)

        return Rescaled

    return {"Schedule": wrap}
