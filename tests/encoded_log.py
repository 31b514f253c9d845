"""Episodes whose every number encodes (episode, step), so that any shift shows exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kmifqe.io.logs.read import read_columns
from kmifqe.mdp.transitions import Transitions

LENGTHS = (3, 1, 5, 2, 1, 4)
TERMINATED = (True, False, False, True, True, False)


@pytest.fixture
def encoded() -> dict[str, np.ndarray]:
    """Flat D4RL fields of step t of episode e: observation (e, t), next (e, t+1), reward 100e + t, ..."""
    steps = [(e, t) for e, length in enumerate(LENGTHS) for t in range(length)]
    e, t = np.array(steps, np.float32).T
    last = np.array([t == LENGTHS[e] - 1 for e, t in steps])
    terminated = last & np.array([TERMINATED[e] for e, _ in steps])
    return {
        "observations": np.stack([e, t], axis=1),
        "actions": np.stack([e, t, e * t], axis=1),
        "rewards": 100 * e + t,
        "terminals": terminated,
        "timeouts": last & ~terminated,
        "next_observations": np.stack([e, t + 1], axis=1),
        "action_log_probs": -(e + t / 8),
    }


@pytest.fixture
def log(encoded: dict[str, np.ndarray]) -> Transitions:
    return Transitions.from_arrays(**encoded)


def read_here(path: Path) -> Transitions:
    """Read a log in this process, as the child does, so that a test can change how."""
    return Transitions.from_columns(read_columns(path, name=str(path)))


@pytest.fixture
def same_log():
    """Compare every array of two Transitions, bit for bit."""
    arrays = ["states", "actions", "rewards", "next_states", "next_actions", "log_mu"]
    arrays += ["terminated", "truncated", "has_next_state", "has_next_action", "episode"]

    def compare(a: Transitions, b: Transitions) -> None:
        for field in arrays:
            x, y = getattr(a, field), getattr(b, field)
            assert (x is None) == (y is None), field
            if x is not None:
                assert (x.dtype, x.shape) == (y.dtype, y.shape), field
                assert x.tobytes() == y.tobytes(), field

    return compare
