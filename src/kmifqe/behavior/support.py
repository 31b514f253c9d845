"""Actions in a box ↔ the unbounded space in which the mixture lives, with the box's edges kept finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kmifqe.errors import InputError

ON_BOUND = 1e-6  # of the half-range: float32 rounding of a bound, so still an action on it
WIDEN_MARGIN = 0.1  # of the half-range: room beyond the most extreme logged action of an unbounded dimension
ATOM_ROWS = 10  # this many rows with the very same extreme value are a bound, not chance
MIN_SPREAD = 1e-3  # a dimension that never varies still gets a finite scale

Numbers = np.ndarray | Sequence[float] | float
Box = tuple[np.ndarray, np.ndarray]  # (low, high), each (d,) float64


@dataclass(frozen=True)
class Latent:
    """Actions as the mixture sees them; all arrays (n, d)."""

    z: np.ndarray  # float32, standardised atanh of the action
    side: np.ndarray  # int8: −1 or +1 in the lower or upper boundary layer, 0 between
    log_jacobian: np.ndarray  # float64: log |dz/da| between the layers, −log(layer width) in them


@dataclass(frozen=True)
class Support:
    """The map a = mid + half·tanh(centre + scale·z) and the two boundary layers of each dimension.

    atanh is infinite on the bound, where clipped logs have an atom. The outermost `layer` of the half-range
    is therefore one cell: the density there is the cell's probability over its width, which is finite,
    integrates to one with the rest, and makes an atom's likelihood that of a clipped (censored) action.
    """

    low: np.ndarray  # (d,) float64
    high: np.ndarray
    centre: np.ndarray  # (d,) mean of atanh over the log
    scale: np.ndarray  # (d,) its spread
    layer: float

    @property
    def half(self) -> np.ndarray:
        """Half the width of the box, shape (d,)."""
        return 0.5 * (self.high - self.low)

    @property
    def edges(self) -> np.ndarray:
        """The inner edges of the lower and upper layer in latent space, shape (2, d), float32."""
        edge = np.arctanh(1.0 - self.layer)
        return (np.stack([-edge - self.centre, edge - self.centre]) / self.scale).astype(np.float32)

    def to_latent(self, actions: np.ndarray) -> Latent:
        """Return `actions` in latent space; one beyond the box counts as being in its boundary layer."""
        t = (np.asarray(actions, np.float64) - 0.5 * (self.low + self.high)) / self.half
        inner = 1.0 - self.layer
        side = np.where(np.abs(t) < inner, 0, np.sign(t)).astype(np.int8)
        t = np.clip(t, -inner, inner)
        between = -np.log(self.half * self.scale) - np.log1p(-t * t)
        log_jacobian = np.where(side == 0, between, -np.log(self.layer * self.half))
        z = ((np.arctanh(t) - self.centre) / self.scale).astype(np.float32)
        return Latent(z, side, log_jacobian)

    def to_actions(self, z: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return actions, float64; `uniform` in [0, 1) places those that fall into a boundary layer."""
        t = np.tanh(self.centre + self.scale * np.asarray(z, np.float64))
        inner = 1.0 - self.layer
        t = np.where(np.abs(t) < inner, t, np.sign(t) * (inner + self.layer * uniform))
        return 0.5 * (self.low + self.high) + self.half * t


def given_box(low: np.ndarray | None, high: np.ndarray | None, dims: int) -> Box | None:
    """Return the action bounds `low` and `high` that the user gave, each of shape (`dims`,), or None for none."""
    if low is None and high is None:
        return None
    if low is None or high is None:
        raise InputError("behaviour fit: one of low and high is missing; expected both or neither")
    return make_box(low, high, dims, "behaviour fit")


def make_box(low: Numbers, high: Numbers, dims: int, where: str) -> Box:
    """Return `low` and `high` as arrays of shape (`dims`,), low below high; messages begin with `where`."""
    lower, upper = per_dimension(low, dims, f"{where}: low"), per_dimension(high, dims, f"{where}: high")
    if not (lower < upper).all():
        raise InputError(f"{where}: low is {lower} and high {upper}; expected low below high in each")
    return lower, upper


def per_dimension(value: Numbers, dims: int, what: str) -> np.ndarray:
    """Return `value`, one finite number or one for each of `dims` action dimensions; messages begin with `what`."""
    array = np.asarray(value, np.float64)
    if array.shape not in ((), (1,), (dims,)) or not np.isfinite(array).all():
        raise InputError(f"{what} is {array}; expected a finite number, or one for each of {dims} dimensions")
    return np.broadcast_to(array, (dims,)).copy()


def support_box(actions: np.ndarray, given: Box | None = None) -> Box:
    """Return the box (low, high) of the density: the given one, widened where the log leaves it.

    A bound that logged actions cross is no bound of the behaviour (Gaussian actions logged as drawn): that
    side moves beyond the most extreme action. Without a given box every side is found so, except where many
    rows share the very same extreme value: the log was clipped there, and that value is the bound.
    """
    actions = np.asarray(actions, np.float64)
    least, most = actions.min(axis=0), actions.max(axis=0)
    room = np.maximum(0.5 * (most - least), MIN_SPREAD) * WIDEN_MARGIN
    if given is not None:
        slack = ON_BOUND * 0.5 * (given[1] - given[0])
        return (
            np.where(least < given[0] - slack, least - room, given[0]),
            np.where(most > given[1] + slack, most + room, given[1]),
        )
    varies = least < most  # an action that never varies needs a box around it, not one of no width
    clipped_low = varies & ((actions == least).sum(axis=0) >= ATOM_ROWS)
    clipped_high = varies & ((actions == most).sum(axis=0) >= ATOM_ROWS)
    return np.where(clipped_low, least, least - room), np.where(clipped_high, most, most + room)


def make_support(actions: np.ndarray, low: np.ndarray, high: np.ndarray, layer: float) -> Support:
    """Return the support on [`low`, `high`] with that `layer` in which `actions` have latent mean 0, spread 1."""
    plain = Support(low, high, np.zeros_like(low), np.ones_like(low), layer)
    z = plain.to_latent(actions).z.astype(np.float64)
    return Support(low, high, z.mean(axis=0), np.maximum(z.std(axis=0), MIN_SPREAD), layer)


def share_on_bound(actions: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the share of `actions` that sit exactly on `low` or `high`, to float32 rounding, shape (d,)."""
    slack = ON_BOUND * 0.5 * (high - low)
    return ((np.abs(actions - low) <= slack) | (np.abs(actions - high) <= slack)).mean(axis=0)
