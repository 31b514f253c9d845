"""What a policy must be: a deterministic function from a batch of states to a batch of actions."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

Bounds = tuple[np.ndarray, np.ndarray]  # (low, high) of the action box, each (d,)


@runtime_checkable
class Policy(Protocol):
    """A deterministic policy over NumPy batches: (n, q) float32 states -> (n, d) float32 actions.

    It may also carry `low` and `high`, the action bounds, shape (d,), `state_dim`, `action_dim` and `name`.
    """

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the action for each row of `states`."""
        ...
