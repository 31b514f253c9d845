"""What a behaviour density must offer: log μ(a|s)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Behavior(Protocol):
    """A known or fitted behaviour density. Arrays are NumPy, one row a sample."""

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ(a|s), shape (n,)."""
        ...


@runtime_checkable
class FactorizedBehavior(Behavior, Protocol):
    """A density that is a product over action dimensions, so that weights can be clipped per dimension."""

    def log_prob_per_dimension(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ_j(a_j|s) for each dimension j, shape (n, d)."""
        ...


class Logged:
    """Stands for: the log itself carries log μ(a|s) at its own actions, and nothing is known elsewhere."""

    def __repr__(self) -> str:
        return "Logged()"


class Fit:
    """Stands for: no density is known; fit one to the log with `fit_behavior`."""

    def __repr__(self) -> str:
        return "Fit()"
