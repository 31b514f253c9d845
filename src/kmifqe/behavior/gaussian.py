"""A known behaviour: a deterministic policy plus Gaussian noise, and a share of uniform actions if wished."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kmifqe.errors import InputError
from kmifqe.mdp.ask import Policy

HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


class GaussianBehavior:
    """μ(a|s) = Π_j [(1 − p_j) N(a_j; μ̃_j(s), (std_j·a_max_j)²) + p_j U(a_j; low_j, high_j)].

    a_max is half the action range, so `std` is in units of it; p is `uniform_share`. Both may be given per
    dimension: the paper's Pendulum with one dummy is std 0.5 and uniform_share (0.2, 1). Actions are logged
    as drawn: a Gaussian one may lie outside [low, high], and the density there is the Gaussian's alone.
    """

    def __init__(
        self,
        policy: Policy,
        std: float | Sequence[float],
        low: np.ndarray | Sequence[float],
        high: np.ndarray | Sequence[float],
        uniform_share: float | Sequence[float] = 0.0,
    ) -> None:
        self.policy = policy
        self.low, self.high = _bounds(low, high)
        self.std = _per_dimension(std, "std", len(self.low))
        self.uniform_share = _per_dimension(uniform_share, "uniform_share", len(self.low))
        if not ((self.std > 0) & np.isfinite(self.std)).all():
            raise InputError(
                f"Gaussian behaviour: std is {_show(self.std)}; expected positive, in units of a_max"
            )
        if not ((self.uniform_share >= 0) & (self.uniform_share <= 1)).all():
            raise InputError(
                f"Gaussian behaviour: uniform_share is {_show(self.uniform_share)}; expected within [0, 1]"
            )

    @property
    def scale(self) -> np.ndarray:
        """The Gaussian's standard deviation in action units, std·a_max, shape (d,)."""
        return self.std * 0.5 * (self.high - self.low)

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ(a|s), shape (n,), float64; −inf only where the density is exactly 0."""
        return self.log_prob_per_dimension(states, actions).sum(axis=1)

    def log_prob_per_dimension(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ_j(a_j|s), shape (n, d), float64."""
        mean = self._mean(states)
        actions = np.asarray(actions, np.float64)
        if actions.shape != mean.shape:
            raise InputError(f"Gaussian behaviour: actions have shape {actions.shape}; expected {mean.shape}")
        z = (actions - mean) / self.scale
        gaussian = -0.5 * z * z - np.log(self.scale) - HALF_LOG_2PI
        if not self.uniform_share.any():
            return gaussian
        inside = (actions >= self.low) & (actions <= self.high)
        with np.errstate(
            divide="ignore"
        ):  # log 0 = −inf is the right answer: a share of 0 or 1 has one part only
            gaussian += np.log1p(-self.uniform_share)
            uniform = np.where(inside, np.log(self.uniform_share / (self.high - self.low)), -np.inf)
        return np.logaddexp(gaussian, uniform)

    def sample(self, rng: np.random.Generator, states: np.ndarray) -> np.ndarray:
        """Return one action drawn for each state, shape (n, d), float32, as drawn: not clipped to the box."""
        mean = self._mean(states)
        drawn = mean + self.scale * rng.standard_normal(mean.shape)
        uniform = rng.uniform(self.low, self.high, mean.shape)
        return np.where(rng.random(mean.shape) < self.uniform_share, uniform, drawn).astype(np.float32)

    def _mean(self, states: np.ndarray) -> np.ndarray:
        states = np.asarray(states)
        mean = np.asarray(self.policy(states), np.float64)
        if mean.shape != (len(states), len(self.low)):
            raise InputError(
                f"Gaussian behaviour: the policy gave shape {mean.shape} for {len(states)} states; "
                f"expected ({len(states)}, {len(self.low)}), as many columns as action bounds"
            )
        return mean

    def __repr__(self) -> str:
        name = getattr(self.policy, "name", None) or type(self.policy).__name__
        share = f", uniform_share={_show(self.uniform_share)}" if self.uniform_share.any() else ""
        return f"GaussianBehavior({name}, std={_show(self.std)}{share})"


def _bounds(
    low: np.ndarray | Sequence[float], high: np.ndarray | Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    lower, upper = np.atleast_1d(np.asarray(low, np.float64)), np.atleast_1d(np.asarray(high, np.float64))
    if lower.ndim != 1 or lower.shape != upper.shape:
        raise InputError(
            f"Gaussian behaviour: low has shape {lower.shape} and high {upper.shape}; expected one number "
            "per action dimension in both"
        )
    if not (np.isfinite(lower).all() and np.isfinite(upper).all() and (lower < upper).all()):
        raise InputError(
            f"Gaussian behaviour: low is {_show(lower)} and high {_show(upper)}; expected low below high"
        )
    return lower, upper


def _per_dimension(value: float | Sequence[float], field: str, dims: int) -> np.ndarray:
    array = np.asarray(value, np.float64)
    if array.ndim > 1 or (array.ndim == 1 and array.shape not in ((1,), (dims,))):
        raise InputError(
            f"Gaussian behaviour: {field} has shape {array.shape}; expected one number, or one for each of "
            f"the {dims} action dimensions"
        )
    return np.broadcast_to(array, (dims,)).copy()


def _show(array: np.ndarray) -> str:
    distinct = np.unique(array)
    return f"{distinct[0]:g}" if len(distinct) == 1 else "(" + ", ".join(f"{x:g}" for x in array) + ")"
