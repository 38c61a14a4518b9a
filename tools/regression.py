"""Log-odds of probabilities, and a logistic regression."""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

MIN_PROBABILITY = 0.02  # smaller probabilities count as this one
RIDGE = 10.0  # L2 penalty of what the weights differ from the expected ones


def logit(probabilities: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the odds."""
    clipped = np.clip(probabilities.astype(float), MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.log(clipped / (1 - clipped))


def probability(log_odds: np.ndarray) -> np.ndarray:
    """Returns the probabilities of log-odds."""
    return 1 / (1 + np.exp(-log_odds))


def logistic_regression(x: np.ndarray, y: np.ndarray, expected: Sequence[float]) -> np.ndarray:
    """Returns the weights [f] that predict y [n], 0 or 1, from features x [n, f]. With few data they stay near `expected`."""
    features, target = torch.from_numpy(x), torch.from_numpy(y)
    start = torch.tensor(expected, dtype=torch.float64)
    weights = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        errors = binary_cross_entropy_with_logits(features @ weights, target, reduction="sum")
        value = errors + RIDGE / 2 * (weights - start).square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return weights.detach().numpy()
