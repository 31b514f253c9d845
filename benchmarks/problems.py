"""Synthetic problems of any size, made on the device."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from kmifqe.mdp.problem import Problem, RowCounts

SPREAD = (
    0.3  # of the logged actions around the target's, in half action ranges, as in the paper's MuJoCo logs
)
EPISODE = 1_000


def synthetic_problem(rows: int, states: int, actions: int) -> Problem:
    """Return a log of Gaussian states and of actions Gaussian around the target's, which are 0."""
    return _made(rows, states, actions)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _made(n: int, q: int, d: int) -> Problem:
    m = max(1, n // EPISODE)
    keys = jax.random.split(jax.random.key(0), 6)
    next_actions = SPREAD * jax.random.normal(keys[0], (n, d))
    return Problem(
        states=jax.random.normal(keys[1], (n, q)),
        actions=SPREAD * jax.random.normal(keys[2], (n, d)),
        rewards=jax.random.normal(keys[3], (n,)),
        next_states=jax.random.normal(keys[4], (n, q)),
        has_next_state=jnp.ones(n, bool),
        terminated=jnp.zeros(n, bool),
        next_actions=next_actions,
        target_actions=jnp.zeros((n, d)),
        log_mu=norm.logpdf(next_actions, scale=SPREAD),
        log_mu_target=jnp.full(n, d * norm.logpdf(0.0, scale=SPREAD)),
        first_states=jax.random.normal(keys[5], (m, q)),
        first_actions=jnp.zeros((m, d)),
        episode=jnp.minimum(jnp.arange(n) // EPISODE, m - 1),
        action_low=-jnp.ones(d),
        action_high=jnp.ones(d),
        state_mean=jnp.zeros(q),
        state_std=jnp.ones(q),
        gamma=jnp.float32(0.99),
        value_center=jnp.float32(0.0),
        value_scale=jnp.float32(1.0),
        counts=RowCounts(
            logged=n,
            used=n,
            in_sample=n,
            without_next_state=0,
            without_next_action=0,
            terminated=0,
            episodes=m,
        ),
    )
