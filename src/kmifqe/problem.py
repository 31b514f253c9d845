"""Transitions + policy + behaviour -> the arrays every estimator needs, computed once, in chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from kmifqe.behavior.base import Behavior, FactorizedBehavior, Logged
from kmifqe.data.transitions import Transitions
from kmifqe.errors import InputError
from kmifqe.policies.base import Policy

CHUNK = 65_536  # rows handed to a policy or density at a time


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Problem:
    """What π̃ is to be judged on. Rows that in-sample learning can use come first: `counts.in_sample` of them.

    The target policy and the behaviour density have been asked already: no estimator calls either.
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
    counts: RowCounts = field(metadata={"static": True})

    @classmethod
    def build(
        cls,
        transitions: Transitions,
        policy: Policy,
        behavior: Behavior | Logged | None,
        gamma: float,
    ) -> Problem:
        """Ask the policy and the density once, at every next state, and lay the arrays out.

        `behavior=None` leaves the densities out: enough for FQE and SR-DICE.
        """
        if not 0.0 <= gamma < 1.0:
            raise InputError(f"gamma is {gamma}; expected 0 <= gamma < 1")
        t = transitions
        order, counts = _row_order(t)
        states, next_states, next_actions = t.states[order], t.next_states[order], t.next_actions[order]
        asked = t.has_next_state[order]  # a terminal row without a next state has nothing to ask about
        # In its place a state of the log: at zeros, which nobody visited, a policy need not be defined.
        ask_at = np.where(asked[:, None], next_states, states)
        target = _in_chunks(lambda s: _checked_actions(policy, s, t), len(order), ask_at)
        target[~asked] = 0.0
        log_mu, log_mu_target = _densities(t, order, behavior, ask_at, target)
        low, high = _action_box(t, policy)
        first_states = t.states[t.first_rows]
        mean, std = t.states.mean(axis=0, dtype=np.float64), t.states.std(axis=0, dtype=np.float64)
        std = np.where(std > 1e-6 * np.maximum(np.abs(mean), 1e-6), std, 1.0)
        as_float = lambda x: jnp.asarray(x, jnp.float32)  # noqa: E731
        return cls(
            states=as_float(states),
            actions=as_float(t.actions[order]),
            rewards=as_float(t.rewards[order]),
            next_states=as_float(next_states),
            has_next_state=jnp.asarray(asked),
            terminated=jnp.asarray(t.terminated[order]),
            next_actions=as_float(next_actions),
            target_actions=as_float(target),
            log_mu=None if log_mu is None else as_float(log_mu),
            log_mu_target=None if log_mu_target is None else as_float(log_mu_target),
            first_states=as_float(first_states),
            first_actions=as_float(
                _in_chunks(lambda s: _checked_actions(policy, s, t), len(first_states), first_states)
            ),
            episode=jnp.asarray(t.episode[order]),
            action_low=as_float(low),
            action_high=as_float(high),
            state_mean=as_float(mean),
            state_std=as_float(std),
            gamma=jnp.float32(gamma),
            counts=counts,
        )

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
            f"{c.episodes:,} episodes, "
            f"states {self.state_dim}, actions {self.action_dim}, gamma {float(self.gamma):g})"
        )


def _row_order(t: Transitions) -> tuple[np.ndarray, RowCounts]:
    """Return the rows to keep, those usable in-sample first, each part in time order."""
    usable = t.terminated | t.has_next_state
    in_sample = t.terminated | t.has_next_action
    order = np.concatenate([np.flatnonzero(in_sample), np.flatnonzero(usable & ~in_sample)])
    if not in_sample.any():
        raise InputError(f"{t.name}: no row has a next action in its own episode; every episode has length 1")
    return order, RowCounts(
        logged=len(t),
        used=len(order),
        in_sample=int(in_sample.sum()),
        without_next_state=int((~usable).sum()),
        without_next_action=int((usable & ~in_sample).sum()),
        terminated=int(t.terminated.sum()),
        episodes=t.n_episodes,
    )


def _densities(
    t: Transitions,
    order: np.ndarray,
    behavior: Behavior | Logged | None,
    next_states: np.ndarray,
    target: np.ndarray,
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return log μ(a'|s') as (n, k) and log μ(π̃(s')|s') as (n,), each where it is known."""
    if behavior is None:
        return None, None
    in_sample = t.has_next_action[order]
    if isinstance(behavior, Logged):
        if t.log_mu is None:
            raise InputError(f"{t.name}: behavior is 'logged', but the field action_log_probs is missing")
        logged = t.log_mu.reshape(len(t), -1)
        following = logged[np.minimum(order + 1, len(t) - 1)]
        return np.where(in_sample[:, None], following, 0.0), None
    ask = behavior.log_prob_per_dimension if isinstance(behavior, FactorizedBehavior) else behavior.log_prob
    next_actions = t.next_actions[order]
    log_mu = _in_chunks(lambda s, a: _columns(ask(s, a)), len(order), next_states, next_actions)
    log_mu = np.where(in_sample[:, None], log_mu, 0.0)
    if not np.isfinite(log_mu).all():
        row = int(np.flatnonzero(~np.isfinite(log_mu).all(axis=1))[0])
        raise InputError(
            f"{t.name}: the behaviour density gives log μ = {log_mu[row].sum()} at the logged action of row "
            f"{int(order[row]) + 1}; expected a finite number: this density cannot have drawn that action"
        )
    log_mu_target = _in_chunks(
        lambda s, a: _columns(behavior.log_prob(s, a)), len(order), next_states, target
    )[:, 0]
    return log_mu, np.where(t.terminated[order], 0.0, log_mu_target)


def _columns(log_prob: np.ndarray) -> np.ndarray:
    log_prob = np.asarray(log_prob, np.float32)
    return log_prob.reshape(len(log_prob), -1)


def _in_chunks(function: Callable[..., np.ndarray], n: int, *arrays: np.ndarray) -> np.ndarray:
    """Return function(*arrays), row block by row block: peak memory stays near the result's own size."""
    first = function(*(a[: min(CHUNK, n)] for a in arrays))
    result = np.empty((n, first.shape[1]), np.float32)
    result[: len(first)] = first
    for start in range(CHUNK, n, CHUNK):
        result[start : start + CHUNK] = function(*(a[start : start + CHUNK] for a in arrays))
    return result


def _checked_actions(policy: Policy, states: np.ndarray, t: Transitions) -> np.ndarray:
    name = getattr(policy, "name", getattr(policy, "__name__", type(policy).__name__))
    width = getattr(policy, "state_dim", t.state_dim)
    if width != t.state_dim:
        raise InputError(
            f"{name}: the policy takes {width} inputs; {t.name} has states of width {t.state_dim}"
        )
    actions = np.asarray(policy(states))
    if actions.ndim == 1 and t.action_dim == 1:
        actions = actions[:, None]
    if actions.shape != (len(states), t.action_dim):
        raise InputError(
            f"{name}: for {len(states)} states the policy returned shape {actions.shape}; expected "
            f"({len(states)}, {t.action_dim}), the width of the actions in {t.name}"
        )
    if not np.isfinite(actions).all():
        raise InputError(f"{name}: the policy returned NaN or infinity at states of {t.name}")
    return actions.astype(np.float32)


def _action_box(t: Transitions, policy: Policy) -> tuple[np.ndarray, np.ndarray]:
    """Return the action bounds: the policy's own where it has finite ones, else the range seen in the log."""
    low, high = t.actions.min(axis=0), t.actions.max(axis=0)
    for bound, seen in (("low", low), ("high", high)):
        stated = getattr(policy, bound, None)
        if stated is not None:
            stated = np.broadcast_to(np.asarray(stated, np.float32), seen.shape)
            np.copyto(seen, stated, where=np.isfinite(stated))
    flat = high - low <= 0
    return np.where(flat, low - 0.5, low), np.where(flat, high + 0.5, high)
