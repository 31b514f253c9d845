"""Which rows of a log a problem keeps, and in what order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kmifqe.data.transitions import Transitions
from kmifqe.errors import InputError


@dataclass(frozen=True)
class RowCounts:
    """What became of the log's rows."""

    logged: int
    used: int  # by FQE and SR-DICE
    in_sample: int  # by KMIFQE
    without_next_state: int  # dropped: cut off, and the state after the cut was not logged
    without_next_action: int  # not for in-sample learning: the last row of a cut episode
    terminated: int
    episodes: int

    @property
    def going_on(self) -> int:
        """In-sample rows that did not terminate: they come first, the terminal ones follow."""
        return self.in_sample - self.terminated


def row_order(t: Transitions) -> tuple[np.ndarray, RowCounts]:
    """Return the rows to keep and their counts: in-sample rows that go on, terminal rows, the rest.

    Each part is in time order. Every terminal row is usable in-sample: nothing after it is asked for.
    """
    usable = t.terminated | t.has_next_state
    in_sample = t.terminated | t.has_next_action
    if not usable.any():
        raise InputError(
            f"{t.name}: no row has a next state; every episode is cut after one step and next_observations is missing"
        )
    parts = (in_sample & ~t.terminated, t.terminated, usable & ~in_sample)
    order = np.concatenate([np.flatnonzero(part) for part in parts])
    return order, RowCounts(
        logged=len(t),
        used=len(order),
        in_sample=int(in_sample.sum()),
        without_next_state=int((~usable).sum()),
        without_next_action=int((usable & ~in_sample).sum()),
        terminated=int(t.terminated.sum()),
        episodes=t.n_episodes,
    )
