"""torch.compile, where it works."""

import torch
from torch import nn


def compile_forward(model: nn.Module, sizes_vary: bool, processes: int = 1) -> str:
    """Lets torch.compile translate the model at its first call, in place -> a line that says whether it will.

    The tensors of the model keep their names, so that checkpoints are the same. `sizes_vary`: one translation for all
    sizes of the input instead of one for each. Where torch.compile does not work here, the model stays as it is.
    """
    device = next(model.parameters()).device
    if device.type == "cpu" and processes > 1:  # our batch norm over processes is not for it, and never was tried
        return "compile=true is NOT active: on CPUs it works in a single process only"
    try:
        torch.compile(nn.functional.silu)(torch.zeros(8, device=device))
    except Exception as error:  # no C++ compiler, no Triton, a Python that is too new: as many kinds as causes
        why = str(error).strip().splitlines()[0]
        return f"compile=true is NOT active, training goes on without it: {type(error).__name__}: {why}"
    model.compile(dynamic=sizes_vary)
    return "compile    active: the first step of each phase takes some minutes, those after it are faster"
