"""Pendulum with dummy actions: logs of the paper's behaviour, and true values."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.pendulum_dynamics import EPISODE_STEPS, observe, reset, state_of, step
from kmifqe.worlds.pendulum_policies import Controller, PendulumBehavior, WithDummies, controller_of

NEGLIGIBLE = 1e-9  # a discount at which rewards (at most 16.3 in size) no longer matter in float32
TRUTH_STREAM = 1
DENSITY_ROWS = 65_536  # rows whose densities are computed at once, to bound memory


def collect(seed: int, behavior: PendulumBehavior, n_transitions: int) -> Transitions:
    """Return `n_transitions` steps in 200-step episodes under `behavior`, log-densities per dimension.

    The same `seed` gives the same log, because it is made on the processor, whatever else there is. On a GPU one
    seed gave two logs in two processes: rounding turned one swing-up into another. A resumed fit needs its own log.
    """
    if n_transitions < 1:
        raise InputError(f"n_transitions is {n_transitions}; expected 1 or more")
    n_episodes = -(-n_transitions // EPISODE_STEPS)
    with jax.default_device(_processor()):
        reset_key, roll_key = jax.random.split(jax.random.key(seed))
        log = _log_steps(controller_of(behavior), roll_key, reset(reset_key, n_episodes))
        states, actions, rewards, next_states = (_flat(array)[:n_transitions] for array in log)
        log_densities = np.concatenate(
            [
                behavior.log_prob_per_dimension(states[i : i + DENSITY_ROWS], actions[i : i + DENSITY_ROWS])
                for i in range(0, n_transitions, DENSITY_ROWS)
            ]
        )
    return Transitions.from_arrays(
        observations=states,
        actions=actions,
        rewards=rewards,
        terminals=np.zeros(n_transitions, bool),
        timeouts=np.arange(1, n_transitions + 1) % EPISODE_STEPS == 0,
        next_observations=next_states,
        action_log_probs=log_densities,
        name=f"pendulum, {behavior.n_dummies} dummies, seed {seed}",
    )


def _processor() -> jax.Device | None:
    """Return the CPU as JAX knows it; None, which leaves the choice to JAX, where JAX_PLATFORMS leaves it out."""
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:
        return None


@jax.jit
def _log_steps(controller: Controller, key: jax.Array, start: jax.Array) -> tuple[jax.Array, ...]:
    """Return (s, a, r, s') of one episode from each row of `start`, time first."""

    def advance(
        carry: tuple[jax.Array, jax.Array], step_key: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, ...]]:
        state, observation = carry
        action = controller.draw(step_key, observation)
        state, reward, _ = step(state, action)
        return (state, observe(state)), (observation, action, reward)

    carry = (start, observe(start))
    (_, last), (states, actions, rewards) = jax.lax.scan(advance, carry, jax.random.split(key, EPISODE_STEPS))
    # Not logged a second time inside the loop: the compiler may compute cos θ twice, in two ways, and then a next
    # state differs from the next row.
    next_states = jnp.concatenate([states[1:], last[None]])
    return states, actions, rewards, next_states


def _flat(array: jax.Array) -> np.ndarray:
    """Return a (steps, episodes, ...) array as rows in time order, episode after episode."""
    return np.swapaxes(np.asarray(array), 0, 1).reshape(-1, *array.shape[2:])


@dataclass(frozen=True)
class TrueValue:
    """A policy's value over the distribution of first states, from simulated episodes."""

    value: float  # V = (1 − γ) E Σ γ^t r_t, per step; the time limit does not end it
    standard_error: float
    episode_return: float  # R, the undiscounted sum of an episode's 200 rewards
    episode_return_standard_error: float
    gamma: float
    episodes: int


def true_value(
    seed: int, policy: Actor | WithDummies | PendulumBehavior, gamma: float, episodes: int = 1_500
) -> TrueValue:
    """Return the value of a policy from simulated episodes.

    seed: decides first states and draws; `collect` with the same seed starts from others.
    policy: a deterministic one, or the stochastic behaviour.
    gamma: the discount, in [0, 1).
    episodes: how many, 2 or more; 1,500 by default.
    """
    if episodes < 2:
        raise InputError(f"episodes is {episodes}; expected 2 or more, for a standard error")
    discounts = _discounts(gamma)
    undiscounted = (np.arange(len(discounts)) < EPISODE_STEPS).astype(np.float32)
    # Folded in, lest the truth share its first states with the data that `collect` draws from the same seed.
    reset_key, roll_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), TRUTH_STREAM))
    sums = _weighted_returns(
        controller_of(policy),
        roll_key,
        reset(reset_key, episodes),
        jnp.asarray(np.stack([discounts, undiscounted], axis=1)),
    )
    sums = np.asarray(sums, np.float64)
    (value, episode_return), errors = sums.mean(axis=0), sums.std(axis=0, ddof=1) / math.sqrt(episodes)
    return TrueValue(
        value=float(value),
        standard_error=float(errors[0]),
        episode_return=float(episode_return),
        episode_return_standard_error=float(errors[1]),
        gamma=gamma,
        episodes=episodes,
    )


def value_of_states(states: np.ndarray, policy: Actor | WithDummies, gamma: float) -> np.ndarray:
    """Return V(s) of the deterministic `policy` at each row of `states`, (n, 3), discounted by `gamma`; shape (n,).

    Nothing is random, so the values are exact.
    """
    if isinstance(policy, PendulumBehavior):
        raise TypeError(
            "value_of_states is exact for deterministic policies; use true_value for the behaviour"
        )
    start = state_of(jnp.asarray(states, jnp.float32))
    key_unused = jax.random.key(0)
    sums = _weighted_returns(
        controller_of(policy), key_unused, start, jnp.asarray(_discounts(gamma)[:, None])
    )
    return np.asarray(sums, np.float64)[:, 0]


def _discounts(gamma: float) -> np.ndarray:
    """Return (1 − γ) γ^t until it is negligible, and for an episode at least."""
    if not 0.0 <= gamma < 1.0:
        raise InputError(f"gamma is {gamma}; expected 0 <= gamma < 1")
    steps = EPISODE_STEPS
    if gamma > 0.0:
        steps = max(steps, math.ceil(math.log(NEGLIGIBLE) / math.log(gamma)))
    return ((1.0 - gamma) * gamma ** np.arange(steps)).astype(np.float32)


@jax.jit
def _weighted_returns(
    controller: Controller, key: jax.Array, start: jax.Array, weights: jax.Array
) -> jax.Array:
    """Return Σ_t weights[t] r_t of one rollout from each row of `start`, for each column of `weights`."""

    def advance(
        carry: tuple[jax.Array, jax.Array], xs: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        state, sums = carry
        step_key, weight = xs
        state, reward, _ = step(state, controller.draw(step_key, observe(state)))
        return (state, sums + reward[:, None] * weight), None

    sums = jnp.zeros((len(start), weights.shape[1]))
    (_, sums), _ = jax.lax.scan(advance, (start, sums), (jax.random.split(key, len(weights)), weights))
    return sums
