"""Logistic regression."""

from collections.abc import Sequence

import numpy as np

MIN_PROBABILITY = 0.02  # smaller probabilities count as this one
RIDGE = 10.0  # L2 penalty of what the weights differ from the expected ones
STEPS = 50  # about ten are needed


def logit(probabilities: np.ndarray) -> np.ndarray:
    """Returns the logarithm of the odds."""
    clipped = np.clip(probabilities.astype(float), MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.log(clipped / (1 - clipped))


def probability(log_odds: np.ndarray) -> np.ndarray:
    """Returns the probabilities of log-odds."""
    return 1 / (1 + np.exp(-log_odds))


def logistic_regression(x: np.ndarray, y: np.ndarray, expected: Sequence[float]) -> np.ndarray:
    """Returns the weights [f] that predict y [n], 0 or 1, from features x [n, f]. With few data they stay near `expected`."""
    start = np.array(expected, float)

    def loss(weights: np.ndarray) -> float:
        log_odds = x @ weights
        return float((np.logaddexp(0, log_odds) - y * log_odds).sum() + RIDGE / 2 * np.square(weights - start).sum())

    weights = start.copy()
    for _ in range(STEPS):  # of Newton's method, each halved until it lowers the loss
        found = probability(x @ weights)
        gradient = x.T @ (found - y) + RIDGE * (weights - start)
        step = np.linalg.solve((x.T * (found * (1 - found))) @ x + RIDGE * np.eye(len(start)), gradient)
        while np.abs(step).max() > 1e-12 and loss(weights - step) > loss(weights):
            step /= 2
        weights -= step
    return weights
