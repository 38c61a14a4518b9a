"""Loading weights into a model by the names and shapes of the tensors, with a report of what fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from utils.file_checks import CheckpointError, refuse_non_finite
from utils.text import first_of


@dataclass(frozen=True)
class MatchReport:
    """Which tensors of a file fit a model, by name. Parts are the top-level modules of the model: backbone, neck, head."""

    sizes: dict[str, int]  # tensor of the model -> number of its values
    taken: tuple[str, ...]  # copied into the model
    mismatched: dict[str, str]  # of another shape -> both shapes
    missing: tuple[str, ...]  # in the model but not in the file
    unused: tuple[str, ...]  # in the file but not in the model
    fresh: Mapping[str, int]  # values of a taken tensor that do not come from the file: rows of new classes

    def counts(self, part: str) -> tuple[int, int, int, int]:
        """Counts of a part: tensors taken, all tensors, values taken and all values."""
        names = [name for name in self.sizes if name.startswith(f"{part}.")]
        values = {name: self.sizes[name] - self.fresh.get(name, 0) for name in names if name in self.taken}
        tensors = sum(count > 0 for count in values.values())
        return tensors, len(names), sum(values.values()), sum(self.sizes[name] for name in names)

    def fraction(self, part: str) -> float:
        """The fraction of a part that was taken: of its tensors or of its values, whichever is smaller.

        Most tensors belong to batch norms and most values to convolutions, so either alone would hide a mismatch.
        """
        taken, tensors, taken_values, values = self.counts(part)
        return min(taken / tensors, taken_values / values)

    def text(self) -> str:
        """One line per part, then the names that were not taken, by reason."""
        lines = []
        for part in dict.fromkeys(name.partition(".")[0] for name in self.sizes):
            taken, tensors, taken_values, values = self.counts(part)
            fraction = f"{taken_values / values:.1%} of {values / 1e6:.3f} M values"
            lines.append(f"{part:9} {taken} of {tensors} tensors taken, {fraction}")
        shapes = [f"{name} ({why})" for name, why in self.mismatched.items()]
        reasons = {"different shape": shapes, "not in the file": self.missing, "not in the model": self.unused}
        for reason, names in reasons.items():
            if names:
                lines.append(f"{reason}: {', '.join(first_of(names, 3))}")
        return "\n".join(lines)

    def require(self, **fractions: float) -> "MatchReport":
        """Raises CheckpointError if less than this fraction of a part was taken: `require(backbone=.8)`."""
        for part, minimum in fractions.items():
            if self.fraction(part) < minimum:
                raise CheckpointError(
                    f"only {self.fraction(part):.0%} of the {part} fits, but {minimum:.0%} must. Is model= the model of "
                    f"this file? Use another one, or weights=none to train from scratch.\n{self.text()}"
                )
        return self


def load_matching(model: nn.Module, state: Mapping[str, Any], fresh: Mapping[str, int] | None = None) -> MatchReport:
    """Copies every tensor of `state` that has the name and the shape of a tensor of `model` into it.

    The step counters of batch norms are copied but not counted. `fresh`: values of `state` that do not come from the file, by
    tensor; see `pretrained.adapt_classes`. Raises CheckpointError for weights that are not finite.
    """
    state, own = without_prefixes(state), model.state_dict()
    fits = {n: v for n, v in state.items() if n in own and isinstance(v, Tensor) and v.shape == own[n].shape}
    fits = {n: v for n, v in fits.items() if v.is_floating_point() == own[n].is_floating_point()}
    refuse_non_finite("the weights", fits)
    model.load_state_dict(fits, strict=False)
    sizes = {name: value.numel() for name, value in own.items() if not name.endswith("num_batches_tracked")}
    different = [name for name in sizes if name in state and name not in fits]
    mismatched = {}
    for name in different:
        theirs, ours = list(getattr(state[name], "shape", [])), list(own[name].shape)
        mismatched[name] = f"file {theirs}, model {ours}" if theirs != ours else "another type of numbers"
    return MatchReport(
        sizes,
        taken=tuple(name for name in sizes if name in fits),
        mismatched=mismatched,
        missing=tuple(name for name in sizes if name not in state),
        unused=tuple(name for name in state if name not in own),
        fresh=fresh or {},
    )


def without_prefixes(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state dict without the prefixes of DDP and DataParallel (`module.`) and of torch.compile (`_orig_mod.`)."""
    return {name.replace("_orig_mod.", "").removeprefix("module."): value for name, value in state.items()}
