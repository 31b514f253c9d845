"""KMIFQE's bandwidth: h* of Prop. 1 from a minibatch."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from kmifqe.estimators.base import RowMeans, action_scale, in_unit, mean_over_rows, row_weights
from kmifqe.estimators.kmifqe.config import KMIFQEConfig
from kmifqe.estimators.kmifqe.sampling import inputs, log_mu
from kmifqe.estimators.kmifqe.target import Ahead
from kmifqe.maths import mlp
from kmifqe.maths.batches import minibatch_pass
from kmifqe.maths.kernel import clipped_weight, optimal_bandwidth, variance_term
from kmifqe.maths.sampling import row_numbers
from kmifqe.mdp.problem import Problem


class Bandwidth(NamedTuple):
    """A bandwidth, and what the next one needs of the steps before."""

    h: Float[Array, ""]
    log_v: Float[Array, ""]  # running log of v, used where μ(π̃(s')|s') is unknown


def new_bandwidth(
    config: KMIFQEConfig,
    words: Array,
    params: mlp.QParams,
    ahead: Ahead,
    before: Bandwidth,
    unit: Array,
    means: RowMeans | None,
    problem: Problem,
) -> Bandwidth:
    """Return h* of Prop. 1 from a uniform minibatch, in place of the one used before."""
    h, log_v = before
    if problem.counts.going_on == 0:  # no update depends on a next action, nor on h
        return Bandwidth(jnp.float32(config.bandwidth_bounds[1]), log_v)
    n, d, gamma = problem.counts.in_sample, problem.action_dim, problem.gamma
    rows = row_numbers(words, n)
    x = inputs(config, problem, problem.states[rows], problem.actions[rows])
    weights = row_weights(problem, rows, means and means.in_sample)
    # The terminal rows, which come last, have no next action: 0 in b and v alike.
    bias = 0.5 * gamma * ahead.laplacian[rows]
    bias = bias if weights is None else weights * bias
    p = minibatch_pass(params, x, bias, jnp.zeros(config.batch), config.precision)
    b_squared = optax.tree.norm(p.gradient, squared=True) / config.batch**2
    going_on = rows < problem.counts.going_on
    reward = (1.0 - gamma) * in_unit(problem.rewards[rows], unit)
    if problem.log_mu_target is not None:
        _, half = action_scale(problem)
        mu_target = jnp.exp(problem.log_mu_target[rows] + jnp.sum(jnp.log(half)))
        mu_target = jnp.maximum(mu_target, config.density_floor)
        td_error = reward + gamma * ahead.target_value[rows] - p.q
        terms = going_on * variance_term(td_error, p.norms, mu_target, d)
        log_v = jnp.log(mean_over_rows(terms, weights))
    else:
        # μ at the target action is unknown; at leading order E[w²‖Δ‖²] = v/hᵈ.
        near = jnp.minimum(rows, problem.counts.going_on - 1)
        log_mu_total = jnp.maximum(log_mu(config, problem, near).sum(axis=1), jnp.log(config.density_floor))
        w = jax.vmap(lambda s, m: clipped_weight(s[None], h, m[None], d, (0.0, float("inf"))))(
            ahead.squared[near].sum(axis=1), log_mu_total
        )
        td_error = reward + gamma * ahead.next_value[rows] - p.q
        mean = mean_over_rows(going_on * w**2 * td_error**2 * p.norms, weights)
        log_v_now = jnp.log(h**d * mean + 1e-30)
        # The mean of v, not of log v: a minibatch with no row near π̃ has v ≈ 0 and would drag h down.
        running = jnp.logaddexp(jnp.log(0.99) + log_v, jnp.log(0.01) + log_v_now)
        log_v = jnp.where(jnp.isnan(log_v), log_v_now, running)
    h = optimal_bandwidth(jnp.exp(log_v), b_squared, n, d)
    bounded = jnp.clip(jnp.nan_to_num(h, nan=config.bandwidth_bounds[1]), *config.bandwidth_bounds)
    return Bandwidth(bounded, log_v)
