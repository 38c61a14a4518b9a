"""Loading the weights of a file that fit a model, by the names and shapes of the tensors, with a report of what fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from utils.file_checks import CheckpointError, refuse_non_finite
from utils.text import first_of


@dataclass(frozen=True)
class LoadReport:
    """Which tensors of a file fit a model, by name. A module is one of the model's top level: backbone, neck, head."""

    sizes: dict[str, int]  # tensor of the model -> number of its values
    loaded: tuple[str, ...]  # copied into the model
    mismatched: dict[str, str]  # of another shape -> both shapes
    missing: tuple[str, ...]  # in the model but not in the file
    unused: tuple[str, ...]  # in the file but not in the model
    fresh: Mapping[str, int]  # values of a loaded tensor that do not come from the file: rows of new classes

    def counts(self, module: str) -> tuple[int, int, int, int]:
        """Counts of a module: tensors loaded, all tensors, values loaded and all values."""
        names = [name for name in self.sizes if name.startswith(f"{module}.")]
        values = [self.sizes[name] - self.fresh.get(name, 0) for name in names if name in self.loaded]
        return sum(count > 0 for count in values), len(names), sum(values), sum(self.sizes[name] for name in names)

    def fraction(self, module: str) -> float:
        """The fraction of a module that was loaded: of its tensors or of its values, whichever is smaller.

        Most tensors belong to batch norms and most values to convolutions, so either alone would hide a mismatch.
        """
        loaded, tensors, loaded_values, values = self.counts(module)
        return min(loaded / tensors, loaded_values / values)

    def text(self) -> str:
        """One line per module, then the names that were not loaded, by reason."""
        lines = []
        for module in dict.fromkeys(name.partition(".")[0] for name in self.sizes):
            loaded, tensors, loaded_values, values = self.counts(module)
            fraction = f"{loaded_values / values:.1%} of {values / 1e6:.3f} M values"
            lines.append(f"{module:9} {loaded} of {tensors} tensors taken, {fraction}")
        shapes = [f"{name} ({why})" for name, why in self.mismatched.items()]
        reasons = {"different shape": shapes, "not in the file": self.missing, "not in the model": self.unused}
        lines += [f"{reason}: {', '.join(first_of(names, 3))}" for reason, names in reasons.items() if names]
        return "\n".join(lines)

    def require(self, **fractions: float) -> "LoadReport":
        """Raises CheckpointError if less than this fraction of a module was loaded: `require(backbone=.8)`."""
        for module, minimum in fractions.items():
            if self.fraction(module) < minimum:
                raise CheckpointError(
                    f"only {self.fraction(module):.0%} of the {module} fits, but {minimum:.0%} must. Is model= the model "
                    f"of this file? Use another one, or weights=none to train from scratch.\n{self.text()}"
                )
        return self


def load_compatible(model: nn.Module, state: Mapping[str, Any], fresh: Mapping[str, int] | None = None) -> LoadReport:
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
    mismatched = {}
    for name in sizes:
        if name in state and name not in fits:
            theirs, ours = list(getattr(state[name], "shape", [])), list(own[name].shape)
            mismatched[name] = f"file {theirs}, model {ours}" if theirs != ours else "another type of numbers"
    return LoadReport(
        sizes,
        loaded=tuple(name for name in sizes if name in fits),
        mismatched=mismatched,
        missing=tuple(name for name in sizes if name not in state),
        unused=tuple(name for name in state if name not in own),
        fresh=fresh or {},
    )


def without_prefixes(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state dict without the prefixes of DDP and DataParallel (`module.`) and of torch.compile (`_orig_mod.`)."""
    return {name.replace("_orig_mod.", "").removeprefix("module."): value for name, value in state.items()}
