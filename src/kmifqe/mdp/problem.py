"""The arrays of a log and a target policy that every estimator reads."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kmifqe.errors import InputError
from kmifqe.mdp.ask import (
    Behavior,
    Logged,
    Policy,
    action_box,
    densities,
    first_actions,
    gathered,
    mean_and_std,
    target_actions,
)
from kmifqe.mdp.host_rows import HostRows, free_device_bytes
from kmifqe.mdp.returns import value_units
from kmifqe.mdp.transitions import Transitions


@dataclass(frozen=True)
class RowCounts:
    """What became of the log's rows."""

    logged: int
    used: int  # by FQE and SR-DICE
    in_sample: int  # by KMIFQE
    without_next_state: (
        int  # dropped: the state after a cut was not logged, or the rows that follow were lost
    )
    without_next_action: int  # not for in-sample learning: the last row of a cut episode
    terminated: int
    episodes: int

    @property
    def nonterminal(self) -> int:
        """How many in-sample rows did not terminate; they come first, before the terminal ones."""
        return self.in_sample - self.terminated


def row_order(t: Transitions) -> tuple[np.ndarray, RowCounts]:
    """Return the rows to keep and their counts: nonterminal in-sample rows, terminal rows, the rest.

    Each part is in time order. Every terminal row is usable in-sample: nothing after it is asked for.
    """
    usable = t.terminated | (t.has_next_state & ~t.before_lost_rows)
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


WIDE = ("states", "actions", "next_states", "next_actions", "target_actions")  # what host memory can hold
LOGGED = (
    "states",
    "actions",
    "rewards",
    "next_states",
    "has_next_state",
    "terminated",
    "next_actions",
    "episode",
)
NARROW = ("rewards", "has_next_state", "terminated", "log_mu", "log_mu_target", "episode")  # the other rows
OF_POLICY = ("target_actions", "log_mu_target", "first_actions")  # what another policy would change
Place = Literal["auto", "device", "host"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Problem:
    """What π̃ is to be judged on. Rows that in-sample learning can use come first: `counts.in_sample` of them.

    Of these, `counts.nonterminal` rows that did not terminate come before the terminal ones. The target policy
    and the behaviour density have been asked already: no estimator calls either. The fields named in `WIDE`
    may be `HostRows`, so an estimator reads them as `problem.states[rows]`, with an array of row numbers.
    """

    states: Float[Array, "n q"]
    actions: Float[Array, "n d"]
    rewards: Float[Array, " n"]
    next_states: Float[Array, "n q"]  # zeros where terminated and not logged
    has_next_state: Bool[Array, " n"]
    terminated: Bool[Array, " n"]
    next_actions: Float[Array, "n d"]
    target_actions: Float[Array, "n d"]  # π̃(s')
    log_mu: Float[Array, "n k"] | None  # log μ(a'|s'), k = d where the density factorises, else 1
    log_mu_target: Float[Array, " n"] | None  # log μ(π̃(s')|s'); None where only the log knows its densities
    first_states: Float[Array, "m q"]
    first_actions: Float[Array, "m d"]  # π̃(s₀)
    episode: Int[Array, " n"]
    action_low: Float[Array, " d"]
    action_high: Float[Array, " d"]
    state_mean: Float[Array, " q"]
    state_std: Float[Array, " q"]  # 1 where a column is constant
    gamma: Float[Array, ""]
    value_center: Float[
        Array, ""
    ]  # mean of the normalised returns that follow logged rows, see `value_units`
    value_scale: Float[Array, ""]  # their standard deviation, always positive
    # Of a bootstrap, mean 1; `fit` gives each seed its own. None: every episode counts once.
    episode_weights: Float[Array, " m"] | None = field(default=None, kw_only=True)
    counts: RowCounts = field(metadata={"static": True})

    @classmethod
    def build(
        cls,
        transitions: Transitions,
        policy: Policy,
        behavior: Behavior | Logged | None,
        gamma: float,
        *,
        place: Place = "auto",
    ) -> Problem:
        """Ask the policy and the density once, at every next state, and lay the arrays out.

        Peak memory is the log and the problem, no more: each array is made once, at its place where the device
        is a CPU.

        transitions: the log.
        policy: the target policy π̃.
        behavior: the density of the logged actions; None leaves it out, which is enough for FQE and SR-DICE.
        gamma: the discount, 0 <= gamma < 1.
        place: where the wide fields go: "device", "host", or "auto" (the default), onto the device unless they
            alone would not fit there.
        """
        if not 0.0 <= gamma < 1.0:
            raise InputError(f"gamma is {gamma}; expected 0 <= gamma < 1")
        if place not in ("auto", "device", "host"):
            raise InputError(f"place is {place!r}; expected 'auto', 'device' or 'host'")
        t = transitions
        order, counts = row_order(t)
        on_host = place == "host" or (place == "auto" and not _fits_device(t, len(order)))

        def put(name: str, array: np.ndarray) -> Any:
            return HostRows.hold(array) if on_host and name in WIDE else jax.device_put(array)

        target = target_actions(policy, t, order)
        log_mu, log_mu_target = densities(behavior, t, order, target)
        low, high, _ = action_box(t, policy)
        mean, std = mean_and_std(t.states)
        std = np.where(std > 1e-6 * np.maximum(np.abs(mean), 1e-6), std, 1.0)
        center, scale = value_units(t, gamma)
        small = {
            "action_low": low,
            "action_high": high,
            "state_mean": mean,
            "state_std": std,
            "gamma": gamma,
            "value_center": center,
            "value_scale": scale,
        }
        return cls(
            target_actions=put("target_actions", target),
            log_mu=None if log_mu is None else jax.device_put(log_mu),
            log_mu_target=None if log_mu_target is None else jax.device_put(log_mu_target),
            first_states=jax.device_put(gathered(t.states, t.first_rows)),
            first_actions=jax.device_put(first_actions(policy, t)),
            **{name: put(name, gathered(getattr(t, name), order)) for name in LOGGED},
            **{name: jnp.asarray(value, jnp.float32) for name, value in small.items()},
            counts=counts,
        )

    def on_host(self, *, release: bool = False) -> Problem:
        """Return the same problem with its wide fields in host memory, fetched by minibatch.

        `release=True` also frees them on the device: this problem, and others that share its arrays, are
        then of no more use.
        """
        wide = {name: getattr(self, name) for name in WIDE}
        moved: dict[str, Any] = {
            name: rows if isinstance(rows, HostRows) else HostRows.hold(np.asarray(rows))
            for name, rows in wide.items()
        }
        if release:
            for rows in wide.values():
                if not isinstance(rows, HostRows):
                    rows.delete()
        return replace(self, **moved)

    def on_device(self) -> Problem:
        """Return the same problem with every field on the device."""
        wide = {name: getattr(self, name) for name in WIDE}
        return replace(self, **{name: jax.device_put(np.asarray(rows)) for name, rows in wide.items()})

    def head(self, rows: int) -> Problem:
        """Return the problem of the first in-sample rows, `rows` of them or all: enough to time a run on.

        Of several policies (`mdp.policies`) every one is kept.
        """
        n, c = min(rows, self.counts.in_sample), self.counts
        terminated = max(0, n - c.nonterminal)
        first: dict[str, Any] = {}
        for name in (*WIDE, *NARROW):
            array = getattr(self, name)
            if isinstance(array, HostRows):
                first[name] = HostRows.hold(np.asarray(array)[:n])
            elif array is not None:
                several = self.policies is not None and name in OF_POLICY
                first[name] = array[:, :n] if several else array[:n]
        counts = replace(c, used=n, in_sample=n, terminated=terminated, without_next_action=0)
        return replace(self, **first, counts=counts)

    @property
    def policies(self) -> int | None:
        """How many policies are judged together (`mdp.policies.judged_together`); None for a single one."""
        return self.first_actions.shape[0] if self.first_actions.ndim == 3 else None

    @property
    def is_on_host(self) -> bool:
        """Whether the wide fields are in host memory."""
        return isinstance(self.states, HostRows)

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that the problem takes."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory that the wide fields take, 0 where they are on the device."""
        held = (getattr(self, each.name) for each in fields(self))
        return sum(rows.nbytes for rows in held if isinstance(rows, HostRows))

    @property
    def action_dim(self) -> int:
        """d, the width of an action."""
        return self.actions.shape[1]

    @property
    def state_dim(self) -> int:
        """q, the width of a state."""
        return self.states.shape[1]

    def __len__(self) -> int:
        return self.rewards.shape[0]

    def __repr__(self) -> str:
        c = self.counts
        return (
            f"Problem({c.used:,} of {c.logged:,} rows, {c.in_sample:,} for in-sample learning, "
            f"{c.episodes:,} episodes, states {self.state_dim}, actions {self.action_dim}, "
            f"gamma {float(self.gamma):g}{', in host memory' if self.is_on_host else ''})"
        )


def _fits_device(t: Transitions, rows: int) -> bool:
    """Return whether the wide fields alone leave room on the device; what else a run needs is not known yet."""
    free = free_device_bytes()
    return free is None or 4 * rows * (2 * t.state_dim + 3 * t.action_dim) < 0.9 * free
