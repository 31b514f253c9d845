"""What KMIFQE asks of a problem, and how it reads its rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kmifqe.errors import InputError
from kmifqe.estimators.base import action_scale, network_input
from kmifqe.estimators.episode_weights import row_weights
from kmifqe.estimators.kmifqe_config import KMIFQEConfig
from kmifqe.maths import mlp
from kmifqe.problem import Problem


def check_problem(config: KMIFQEConfig, problem: Problem) -> None:
    """Refuse a problem without next actions or without the density that the weights need."""
    if problem.counts.in_sample == 0:
        raise InputError(
            "KMIFQE learns from logged next actions, and no row has one: every episode is cut after one step; "
            "FQE and SR-DICE need none"
        )
    if problem.log_mu is None:
        raise InputError("KMIFQE needs a behaviour density; the problem was built with behavior=None")
    if config.clip_per_dimension and problem.log_mu.shape[1] != problem.action_dim:
        raise InputError(
            "clip_per_dimension needs a behaviour density that factorises over action dimensions"
        )


def factors(config: KMIFQEConfig, problem: Problem) -> int:
    """Return how many factors of a weight are clipped one by one."""
    return problem.action_dim if config.clip_per_dimension else 1


def inputs(config: KMIFQEConfig, problem: Problem, states: Array, actions: Array) -> Array:
    """Return [s, a] as the network takes it."""
    return network_input(problem, states, actions, "standardized", cut_actions=config.cut_actions)


def log_mu(config: KMIFQEConfig, problem: Problem, rows: Array | slice) -> Float[Array, "rows k"]:
    """Return log μ(a'|s') of rows in the units of the kernel, as many columns as the weight has factors."""
    _, half = action_scale(problem)
    assert problem.log_mu is not None  # check_problem has looked
    columns = problem.log_mu[rows]
    if config.clip_per_dimension:
        return columns + jnp.log(half)
    return columns.sum(axis=1, keepdims=True) + jnp.sum(jnp.log(half))


def fqe_values(
    config: KMIFQEConfig, params: mlp.QParams, problem: Problem, rows: Array
) -> Float[Array, " rows"]:
    """Return what FQE bootstraps on, Q(s', π̃(s')), of rows; 0 for those that terminated."""
    x = inputs(config, problem, problem.next_states[rows], problem.target_actions[rows])
    told = jax.vmap(mlp.q_value, in_axes=(None, 0))(params, x)
    return jnp.where(rows < problem.counts.going_on, told, 0.0)


def going_on_multiples(problem: Problem) -> Float[Array, " going_on"] | None:
    """Return how often a bootstrap counts each row that goes on, with mean 1; None without a bootstrap."""
    weights = row_weights(problem, slice(problem.counts.going_on))
    return None if weights is None else weights / jnp.mean(weights)
