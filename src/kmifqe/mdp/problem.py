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
    Empty,
    Logged,
    Policy,
    action_box,
    aligned_empty,
    densities,
    first_densities,
    gathered,
    mean_and_std,
    policy_answers,
)
from kmifqe.mdp.host_rows import HostRows, free_device_bytes
from kmifqe.mdp.memory import is_large, mapped_empty
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
            f"{t.name}: no row has a next state; every episode is cut after one step and next_observations is "
            "missing; where an action is all that there is to an episode (a bandit), mark its row as terminated"
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


NEGLIGIBLE = 1e-3  # a discount below which no later step of an episode is laid out


def trajectory_rows(t: Transitions, order: np.ndarray, gamma: float) -> np.ndarray:
    """Return the rows of a problem that an episode's steps are, (episodes, horizon): −1 where it has no such step.

    An episode of the log `t` is laid out until it ends, until rows were lost, or until its discount is negligible.
    `order` are the rows that the problem keeps; `gamma` is the discount.
    """
    place = np.full(len(t), -1, np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    first = t.first_rows
    time = np.arange(len(t)) - first[t.episode]
    missing = np.cumsum(place < 0)  # a row that is not kept ends what can be laid out of its episode
    before = missing[first] - (place[first] < 0)
    longest = int(np.max(time)) + 1
    horizon = 1 if gamma == 0.0 else min(longest, int(np.ceil(np.log(NEGLIGIBLE) / np.log(gamma))))
    kept = (missing == before[t.episode]) & (time < horizon)
    rows = np.full((len(first), int(np.max(time[kept], initial=0)) + 1), -1, np.int32)
    rows[t.episode[kept], time[kept]] = place[kept]
    return rows


WIDE = (
    *("states", "actions", "next_states", "next_actions", "target_actions"),
    "target_samples",
)  # what host memory can hold
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
NARROW = (
    *("rewards", "has_next_state", "terminated", "log_mu", "log_mu_target", "episode"),
    "log_pi",
)  # the other rows
OF_POLICY = (
    *("target_actions", "log_mu_target", "first_actions"),
    *("target_samples", "first_samples", "log_pi", "first_log_pi"),
)  # what another policy would change
Place = Literal["auto", "device", "host", "disk"]


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
    # Of a stochastic target; None for a deterministic one. `target_actions` and `first_actions` hold the first draws.
    target_samples: Float[Array, "n draws d"] | None = field(default=None, kw_only=True)  # a' ~ π(·|s')
    first_samples: Float[Array, "m draws d"] | None = field(default=None, kw_only=True)  # a ~ π(·|s₀)
    log_pi: Float[Array, " n"] | None = field(default=None, kw_only=True)  # log π(a'|s') of the logged a'
    first_log_pi: Float[Array, " m"] | None = field(
        default=None, kw_only=True
    )  # log π(a₀|s₀), of the logged a₀
    # For estimators that follow episodes; None where none does.
    trajectory_rows: Int[Array, "m horizon"] | None = field(
        default=None, kw_only=True
    )  # see `trajectory_rows`
    first_log_mu: Float[Array, "m k"] | None = field(default=None, kw_only=True)  # log μ(a₀|s₀)
    counts: RowCounts = field(metadata={"static": True})
    # The wide fields lie in files that are mapped: they take memory only while it is free.
    is_mapped: bool = field(default=False, kw_only=True, metadata={"static": True})

    @classmethod
    def build(
        cls,
        transitions: Transitions,
        policy: Policy,
        behavior: Behavior | Logged | None,
        gamma: float,
        *,
        place: Place = "auto",
        trajectories: bool = False,
        draws: int = 0,
    ) -> Problem:
        """Ask the policy and the density once, at every next state, and lay the arrays out.

        Peak memory is the log and the problem, no more: each array is made once, at its place where the device
        is a CPU. Where the wide fields take more than a quarter of the free memory they are laid out in files
        without a name, which are mapped: pages that are not in use need no memory then.

        transitions: the log.
        policy: the target policy π̃.
        behavior: the density of the logged actions; None leaves it out, which is enough for FQE and SR-DICE.
        gamma: the discount, 0 <= gamma < 1.
        place: where the wide fields go: "device", "host", "disk" (in mapped files), or "auto" (the default), onto the
            device unless they alone would not fit there, and in mapped files where memory is short of them.
        trajectories: whether to lay episodes out step by step, for estimators that follow them; by default no.
        draws: actions drawn from a stochastic target at every state; 0, the default, for a deterministic target.
        """
        if not 0.0 <= gamma < 1.0:
            raise InputError(f"gamma is {gamma}; expected 0 <= gamma < 1")
        if place not in ("auto", "device", "host", "disk"):
            raise InputError(f"place is {place!r}; expected 'auto', 'device', 'host' or 'disk'")
        t = transitions
        order, counts = row_order(t)
        on_host = place == "host" or (place == "auto" and not _fits_device(t, len(order), draws))
        is_mapped = place == "disk" or (place == "auto" and is_large(_wide_bytes(t, len(order), draws)))
        empty: Empty = mapped_empty if is_mapped else aligned_empty

        def put(name: str, array: np.ndarray) -> Any:
            return HostRows.hold(array) if on_host and name in WIDE else jax.device_put(array)

        answers = policy_answers(policy, t, order, draws, empty)
        log_mu, log_mu_target = densities(behavior, t, order, answers["target_actions"])
        asked: dict[str, Any] = {name: put(name, array) for name, array in answers.items()}
        if trajectories:
            first_log_mu = first_densities(behavior, t)
            asked["trajectory_rows"] = jax.device_put(trajectory_rows(t, order, gamma))
            asked["first_log_mu"] = None if first_log_mu is None else jax.device_put(first_log_mu)
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
            log_mu=None if log_mu is None else jax.device_put(log_mu),
            log_mu_target=None if log_mu_target is None else jax.device_put(log_mu_target),
            first_states=jax.device_put(gathered(t.states, t.first_rows)),
            **{
                name: put(name, gathered(getattr(t, name), order, empty if name in WIDE else aligned_empty))
                for name in LOGGED
            },
            **{name: jnp.asarray(value, jnp.float32) for name, value in small.items()},
            **asked,
            counts=counts,
            is_mapped=is_mapped and free_device_bytes() is None,  # another device has a copy
        )

    def on_host(self, *, release: bool = False) -> Problem:
        """Return the same problem with its wide fields in host memory, fetched by minibatch.

        `release=True` also frees them on the device: this problem, and others that share its arrays, are
        then of no more use.
        """
        wide = self._wide
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
        return replace(self, **{name: jax.device_put(np.asarray(rows)) for name, rows in self._wide.items()})

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
    def _wide(self) -> dict[str, Any]:
        """The fields that host memory can hold, those that there are."""
        held = {name: getattr(self, name) for name in WIDE}
        return {name: rows for name, rows in held.items() if rows is not None}

    @property
    def is_stochastic(self) -> bool:
        """Whether the target draws its actions."""
        return self.target_samples is not None

    @property
    def is_on_host(self) -> bool:
        """Whether the wide fields are in host memory."""
        return isinstance(self.states, HostRows)

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory that the problem takes."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self))

    @property
    def mapped_bytes(self) -> int:
        """Bytes of the wide fields that lie in mapped files and need no memory of their own."""
        held = () if not self.is_mapped or self.is_on_host else self._wide.values()
        return sum(rows.nbytes for rows in held)

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
            f"gamma {float(self.gamma):g}{', in host memory' if self.is_on_host else ''}"
            f"{', mapped from disk' if self.mapped_bytes else ''})"
        )


def _fits_device(t: Transitions, rows: int, draws: int) -> bool:
    """Return whether the wide fields alone leave room on the device; what else a run needs is not known yet."""
    free = free_device_bytes()
    return free is None or _wide_bytes(t, rows, draws) < 0.9 * free


def _wide_bytes(t: Transitions, rows: int, draws: int) -> int:
    return 4 * rows * (2 * t.state_dim + (3 + draws) * t.action_dim)
