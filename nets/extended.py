"""Classes added to a trained model: everything that it has stays frozen, and a new neck and head learn the new classes."""

import re
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from nets.model import DetectionHead, DetectionModel, HeadPredictions
from utils.file_checks import MAX_ADDED, CheckpointError

_ADDED = re.compile(r"added\.(\d+)\.(.+)")


class Branch(nn.Module):
    """A neck and a head that were added to a model, for the added classes."""

    def __init__(self, neck: nn.Module, head: DetectionHead):
        super().__init__()
        self.neck, self.head = neck, head

    def levels(self, features: tuple[Tensor, ...]) -> list:
        """Outputs of the backbone -> Predictions of maps `[B, C, H, W]` for each stride."""
        return self.head.levels(self.neck(*features))


class ExtendedModel(DetectionModel):
    """A trained model and branches that were added to it, each a neck and a head. Only the newest branch is trained.

    Each head predicts its own anchor points, so the outputs of the older heads keep their bits. Raw predictions are a tuple
    with the Predictions of each head, and in training mode of the newest one only. The classes of an added head come after
    the classes of the heads before it. `counts`: the number of classes of each added head.
    """

    def __init__(self, base: DetectionModel, added: Sequence[Branch], counts: Sequence[int]):
        super().__init__()
        self.backbone, self.neck, self.head = base.backbone, base.neck, base.head
        self.added = nn.ModuleList(added)
        self._base = (base,)  # in a tuple, so that its parts are registered only once, under the names of a plain model
        self.letterbox, self.strides, self.clips = base.letterbox, base.strides, base.clips
        self.added_counts = tuple(counts)
        self.num_classes = base.num_classes + sum(counts)
        self.first_class = self.num_classes - counts[-1]  # the classes before it are frozen
        self.requires_grad_(False)
        self.added[-1].requires_grad_(True)

    @property
    def base(self) -> DetectionModel:
        """The model without the added heads."""
        return self._base[0]

    @property
    def branches(self) -> list[Branch]:
        """The added branches, the newest one last."""
        return [branch for branch in self.added if isinstance(branch, Branch)]

    def train(self, mode: bool = True):
        """Sets training or evaluation mode of the newest branch; all other parts stay in evaluation mode."""
        super().train(mode)
        for part in (self.backbone, self.neck, self.head, *self.added[:-1]):
            part.eval()
        return self

    def prepare(self, images: Tensor) -> Tensor:
        """Images -> input of the backbone, as the family prepares it."""
        return self.base.prepare(images)

    def forward(self, images: Tensor) -> tuple:
        """Images `[B, 3, H, W]` -> the Predictions of each head; in training mode only of the newest head."""
        with torch.no_grad():
            features = self.features(images)
        if self.training:
            newest = self.branches[-1]
            return (newest.head.flatten(newest.levels(features)),)
        return self.flatten(self.levels(features))

    def levels(self, features: tuple[Tensor, ...]) -> list:
        """Outputs of the backbone -> Predictions of maps `[B, C, H, W]`, for each head and stride."""
        return [*super().levels(features), *(level for branch in self.branches for level in branch.levels(features))]

    def flatten(self, levels: list) -> tuple:
        """Maps of each head and stride -> a tuple with the Predictions `[B, A, ...]` of each head."""
        count = len(self.strides)
        starts = range(0, len(levels), count)
        heads = (self.head, *(branch.head for branch in self.branches))
        return tuple(head.flatten(levels[i : i + count]) for head, i in zip(heads, starts, strict=True))

    def per_head(self, predictions: tuple) -> list[HeadPredictions]:
        """Divides raw predictions among the heads of the model."""
        heads, first = [], 0
        for one, count in zip(predictions, (self.base.num_classes, *self.added_counts), strict=True):
            heads.append(HeadPredictions(self.base, one, first, count))
            first += count
        return heads

    def decode(self, predictions: tuple, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns boxes `[B, A, 4]`, and scores and labels `[B, A]`, of the anchor points of all heads one after another."""
        boxes, scores, labels = zip(*self.decode_heads(predictions, image_size), strict=True)
        return torch.cat(boxes, 1), torch.cat(scores, 1), torch.cat(labels, 1)


class NewestCriterion:
    """The loss of the newest head of an extended model, from a family's criterion. Boxes of older classes do not count."""

    def __init__(self, criterion: Callable, first_class: int):
        self.criterion, self.first_class = criterion, first_class

    def __call__(
        self,
        predictions: tuple,
        targets: Tensor,
        labels: Tensor,
        image_size: tuple[int, int],
        ignore: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Computes the losses as the criterion of the family; labels `[B, M]` count all classes of the model."""
        own = (labels - self.first_class).clamp(min=-1)  # -1: padding
        return self.criterion(predictions[-1], targets, own, image_size, ignore)


def extended(model: DetectionModel, fresh: DetectionModel) -> ExtendedModel:
    """Adds the neck and the head of `fresh`, a new model of the same family, with the weights of the model's own neck and head.

    The class predictors keep their fresh weights, and so does every tensor that has another shape.
    """
    branch = Branch(fresh.neck, fresh.head)
    own, old = branch.state_dict(), model.state_dict()
    for name, value in own.items():
        if "class_predictors." not in name and old[name].shape == value.shape:
            own[name] = old[name].clone()
    branch.load_state_dict(own)
    if isinstance(model, ExtendedModel):
        return ExtendedModel(model.base, [*model.branches, branch], [*model.added_counts, fresh.num_classes])
    return ExtendedModel(model, [branch], [fresh.num_classes])


def added_states(state: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Returns the tensors of each added branch in a state dict, by the names that they would have in a separate model."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, value in state.items():
        if match := _ADDED.fullmatch(name):
            found.setdefault(int(match[1]), {})[match[2]] = value
    if sorted(found) != list(range(len(found))) or len(found) > MAX_ADDED:
        raise CheckpointError(f"the added heads are not numbered from 0 to at most {MAX_ADDED - 1}: use another copy")
    return [found[number] for number in range(len(found))]
