"""KMIFQE: in-sample fitted Q evaluation with a learned kernel bandwidth and metric, after Algorithm 1.

`step` is the inner loop: bandwidth, weights and resampling, TD update. `refresh` is the outer one: a copy of the
target network, Hessians and metrics. Between two copies the target network does not change, so what it gives for
every row is kept in a table, and a step touches only h. The kernel's bias, a departure from the paper, is at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from kmifqe.estimators.base import (
    Info,
    RowMeans,
    ValueUnits,
    action_scale,
    learning_rates,
    mean_over_rows,
    row_means,
    row_weights,
    value_units,
)
from kmifqe.estimators.kmifqe import rows as table
from kmifqe.estimators.kmifqe import sampling
from kmifqe.estimators.kmifqe.config import KMIFQEConfig
from kmifqe.estimators.kmifqe.rows import TargetTable, inputs, log_mu
from kmifqe.maths import mlp
from kmifqe.maths.batches import minibatch_pass
from kmifqe.maths.kernel import log_kernel, optimal_bandwidth, value_bias, variance_term
from kmifqe.maths.sampling import Accepted, Envelope, row_numbers
from kmifqe.mdp.problem import Problem

RUNNING = 0.05  # weight of a step in the running mean of log h


class KMIFQEState(NamedTuple):
    """Network and optimiser, and what the target network gives for every row."""

    params: mlp.QParams
    opt_state: optax.OptState
    table: TargetTable
    envelope: Envelope  # bounds of the rows' weights, to draw from
    h: Float[Array, ""]
    log_h: Float[Array, ""]  # running mean of log h, which the envelope is built around
    log_v: Float[Array, ""]  # running log of v, used where μ(π̃(s')|s') is unknown
    units: ValueUnits  # what the network's output means
    row_means: RowMeans | None  # of the rows' bootstrap weights; None without a bootstrap
    target: mlp.QParams | None  # the target network, where a step asks it for the rows of its minibatch


def init(config: KMIFQEConfig, key: Array, problem: Problem) -> KMIFQEState:
    """Return the state before the first step: L = I, and the target network is the network.

    `config`: the settings. `key`: random, for the network and the first bandwidth. `problem`: the log.
    """
    table.check_problem(config, problem)
    means = row_means(problem)
    network_key, bandwidth_key = jax.random.split(key)
    params = mlp.init_q(network_key, problem.state_dim + problem.action_dim, config.hidden)
    first = table.build_table(config, params, problem, metric=False)
    h = jnp.float32(config.bandwidth or 1.0) if first.bandwidths is None else first.bandwidths.pilot
    first = first._replace(bias=_bias_for_every_row(config, params, problem))
    state = KMIFQEState(
        params,
        _optimizer(config).init(params),
        table=first,
        envelope=sampling.envelope_around(config, jnp.log(h), first, problem),
        h=h,
        log_h=jnp.log(h),
        log_v=jnp.float32(jnp.nan),
        units=value_units(problem, config.units),
        row_means=means,
        target=None if config.has_target_values else params,
    )
    if config.bandwidth is not None:
        return state
    h, log_v = _optimal_bandwidth(config, jax.random.bits(bandwidth_key, (config.batch,)), state, problem)
    envelope = sampling.envelope_around(config, jnp.log(h), first, problem)
    return state._replace(h=h, log_h=jnp.log(h), log_v=log_v, envelope=envelope)


def step(
    config: KMIFQEConfig, key: Array, t: Array, state: KMIFQEState, problem: Problem
) -> tuple[KMIFQEState, Info]:
    """Return the state after one step of Algorithm 1's inner loop, and numbers to watch it by.

    `config`: the settings. `key`: random, of this step. `t`: how many steps came before. `state`: the state before.
    `problem`: the log.
    """
    random_bits = jax.random.bits(key, (config.batch + sampling.bits_to_draw(config, state.envelope),))
    # Line 3: the bandwidth.
    if config.bandwidth is None:
        state = _with_bandwidth(config, random_bits[: config.batch], t, state, problem)
    # Lines 4 to 6: importance weights, resampling probabilities, a minibatch.
    drawn = sampling.draw_by_weight(
        config,
        random_bits[config.batch :],
        state.h,
        state.table,
        state.envelope,
        state.row_means,
        problem,
    )
    # Lines 7 and 8: the TD update.
    state, info = _td_update(config, drawn, state, problem)
    info |= {
        "h": state.h,
        "mean_weight": drawn.mean_weight,
        "ess": sampling.effective_sample_size(drawn, problem),
        "filled": jnp.mean(drawn.filled),
    }
    return state, info


def _with_bandwidth(
    config: KMIFQEConfig, random_bits: Array, t: Array, state: KMIFQEState, problem: Problem
) -> KMIFQEState:
    """Return the state with the bandwidth of step t: h*, or the one before within a `bandwidth_period`."""

    def renewed() -> tuple[Array, Array, Array]:
        h, log_v = _optimal_bandwidth(config, random_bits, state, problem)
        return h, (1.0 - RUNNING) * state.log_h + RUNNING * jnp.log(h), log_v

    if config.bandwidth_period == 1:
        h, log_h, log_v = renewed()
    else:
        before = (state.h, state.log_h, state.log_v)
        h, log_h, log_v = jax.lax.cond(t % config.bandwidth_period == 0, renewed, lambda: before)
    if sampling.proposes(config):
        h = jnp.clip(h, *state.envelope.interval)
    return state._replace(h=h, log_h=log_h, log_v=log_v)


def _optimal_bandwidth(
    config: KMIFQEConfig, random_bits: Array, state: KMIFQEState, problem: Problem
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return h* of Prop. 1 and log v, from a uniform minibatch; terminal rows add 0 to b and v alike."""
    assert state.table.bandwidths is not None  # the bandwidth is learned
    pilot, widest = state.table.bandwidths
    if problem.counts.nonterminal == 0:  # no update depends on a next action, nor on h
        return widest, state.log_v
    n, d, gamma = problem.counts.in_sample, problem.action_dim, problem.gamma
    rows = row_numbers(random_bits, n)
    x = inputs(config, problem, problem.states[rows], problem.actions[rows])
    weights = row_weights(problem, rows, state.row_means and state.row_means.in_sample)
    bias = 0.5 * gamma * state.table.laplacian[rows]
    bias = bias if weights is None else weights * bias
    p = minibatch_pass(state.params, x, bias, jnp.zeros(config.batch), config.precision)
    b_squared = optax.tree.norm(p.gradient, squared=True) / config.batch**2
    nonterminal = rows < problem.counts.nonterminal
    reward = state.units.reward(problem.rewards[rows], gamma)
    td_error = reward + gamma * _target_values(config, rows, state, problem) - p.q
    # The floor is one of densities in the log's own units of action, as the paper's; h is in half action ranges.
    log_half = jnp.sum(jnp.log(action_scale(problem)[1]))
    log_floor = jnp.log(config.density_floor) + log_half
    if problem.log_mu_target is not None:
        mu_target = jnp.exp(jnp.maximum(problem.log_mu_target[rows] + log_half, log_floor))
        terms = nonterminal * variance_term(td_error, p.norms, mu_target, d)
        log_v = jnp.log(mean_over_rows(terms, weights))
    else:
        # μ at the target action is unknown; at leading order E[w²|s'] = C(K)/(hᵈ μ(π̃(s')|s')).
        near = jnp.minimum(rows, problem.counts.nonterminal - 1)
        log_mu_total = jnp.maximum(log_mu(config, problem, near).sum(axis=1), log_floor)
        log_w = log_kernel(state.table.squared[near].sum(axis=1), pilot, d) - log_mu_total
        largest = jnp.max(log_w)  # taken out, or squares of weights leave float32's range
        terms = nonterminal * jnp.exp(2.0 * (log_w - largest)) * td_error**2 * p.norms
        log_v_of_batch = jnp.log(mean_over_rows(terms, weights) + 1e-30) + 2.0 * largest + d * jnp.log(pilot)
        # The mean of v, not of log v: a minibatch with no row near π̃ has v ≈ 0 and would drag h down.
        running = jnp.logaddexp(jnp.log(0.99) + state.log_v, jnp.log(0.01) + log_v_of_batch)
        log_v = jnp.where(jnp.isnan(state.log_v), log_v_of_batch, running)
    h = optimal_bandwidth(jnp.exp(log_v), b_squared, n, d)
    return jnp.clip(jnp.nan_to_num(h, nan=widest, posinf=widest), config.bandwidth_bounds[0], widest), log_v


def _target_values(
    config: KMIFQEConfig, rows: Array, state: KMIFQEState, problem: Problem
) -> Float[Array, " rows"]:
    """Return Q̄(s', π̃(s')) of rows by the target network; 0 for terminal rows."""
    if state.table.target_value is not None:
        return state.table.target_value[rows]
    assert state.target is not None  # kept for this
    x = inputs(config, problem, problem.next_states[rows], problem.target_actions[rows])
    q = jax.vmap(mlp.q_value, in_axes=(None, 0))(state.target, x)
    return jnp.where(rows < problem.counts.nonterminal, q, 0.0)


def _td_update(
    config: KMIFQEConfig, drawn: Accepted, state: KMIFQEState, problem: Problem
) -> tuple[KMIFQEState, Info]:
    """Return the state after one Adam step on w̄ times the mean squared TD error, and the loss."""
    rows = drawn.rows
    x = inputs(config, problem, problem.states[rows], problem.actions[rows])
    nonterminal = rows < problem.counts.nonterminal
    bootstrap_value, bias = _bootstrap_values(config, rows, state, problem)
    if bias is not None:
        bootstrap_value = bootstrap_value - bias
    info: Info = {}
    if config.bounded:
        bounded = state.units.bounded(bootstrap_value, problem)
        info["cut"] = state.units.scale * jnp.mean(jnp.abs(bounded - bootstrap_value))
        bootstrap_value = bounded
    bootstrap_value = jnp.where(nonterminal, bootstrap_value, state.units.end)
    goal = state.units.reward(problem.rewards[rows], problem.gamma) + problem.gamma * bootstrap_value
    # The gradient of the mean squared TD error: coefficients q − goal, and the constants outside.
    weights = sampling.loss_weights(drawn, state.row_means, problem)
    p = minibatch_pass(state.params, x, -weights * goal, weights, config.precision)
    filled = jnp.maximum(jnp.sum(drawn.filled, dtype=jnp.float32), 1.0)
    scale = 2.0 * drawn.mean_weight / filled
    gradient = jax.tree.map(lambda g: scale * g, p.gradient)
    updates, opt_state = _optimizer(config).update(gradient, state.opt_state, state.params)
    info["loss"] = jnp.sum(weights * (goal - p.q) ** 2) / filled
    if bias is not None:
        info["bias"] = _bias_of_value(bias, weights, rows, state, problem)
    params, target = optax.apply_updates(state.params, updates), state.target
    if config.tau:
        target = optax.incremental_update(params, target, config.tau)
    return state._replace(params=params, opt_state=opt_state, target=target), info


def _bootstrap_values(
    config: KMIFQEConfig, rows: Array, state: KMIFQEState, problem: Problem
) -> tuple[Float[Array, " rows"], Float[Array, " rows"] | None]:
    """Return Q̄(s', a') of rows, and the kernel's bias of it that is to be subtracted; None for nothing."""
    if config.tau:
        assert state.target is not None  # it moves at every step, so that no table of it would last
        read = table.for_rows(config, state.target, problem, rows)
        bootstrap_value = table.bootstrap_value(config, state.target, read)
        bias = None if config.bias == "ignored" else table.taylor_bias(config, state.target, read)
    else:
        assert state.table.bootstrap_value is not None
        bootstrap_value = state.table.bootstrap_value[rows]
        bias = None if state.table.bias is None else state.table.bias[rows]
    return bootstrap_value, None if bias is None else _bias_of_neighbours(rows, bias, state)


def _optimizer(config: KMIFQEConfig) -> optax.GradientTransformation:
    """Return Adam on one flat vector: one kernel instead of one for every layer's weights."""
    return optax.flatten(optax.adam(learning_rates(config)))


class RefreshKind(NamedTuple):
    """What is done between two steps."""

    copy: bool  # the target network is replaced; otherwise only the envelope is brought to h
    metrics: bool = False  # with new Hessians and metrics, not only with new bootstrap values


def refresh_kind(config: KMIFQEConfig, step: int) -> RefreshKind:
    """Return what is due after `step` steps."""
    if step % config.target_period:
        return RefreshKind(copy=False)
    # A network that has learned nothing yet has no metric to keep.
    metrics = step % config.metric_steps == 0 or step == config.target_period
    return RefreshKind(copy=True, metrics=metrics)


def refresh(config: KMIFQEConfig, kind: RefreshKind, state: KMIFQEState, problem: Problem) -> KMIFQEState:
    """Return the state after Algorithm 1's outer loop: a new target network, and L updated for every row.

    `config`: the settings. `kind`: which parts are due. `state`: the state before. `problem`: the log.
    """
    if not kind.copy:
        new = sampling.updated_envelope(config, state.log_h, state.envelope, state.table, problem)
        return state._replace(envelope=new)
    params = state.params
    if config.tau:
        assert state.target is not None
        params = state.target
    if kind.metrics:
        new_table = table.build_table(config, params, problem, metric=config.metric == "learned")
    else:
        values = table.for_every_row(config, params, problem, table.bootstrap_value)
        new_table = state.table._replace(bootstrap_value=values)
    new_table = new_table._replace(bias=_bias_for_every_row(config, params, problem))
    return state._replace(
        table=new_table,
        envelope=sampling.envelope_around(config, state.log_h, new_table, problem),
        target=None if config.has_target_values else params,
    )


def refresh_every(config: KMIFQEConfig) -> int:
    """Return the steps between two refreshes: a target period, or less where h's drift is checked in between.

    A check comes after a divisor of the target period near `envelope_period`, if there is one.
    """
    if not sampling.proposes(config):
        return config.target_period
    most = min(config.target_period, config.envelope_period)
    divisors = [n for n in range(1, most + 1) if config.target_period % n == 0]
    return divisors[-1] if 5 * divisors[-1] >= config.envelope_period else config.target_period


def _first_value(
    config: KMIFQEConfig, params: mlp.QParams, units: ValueUnits, problem: Problem
) -> Float[Array, ""]:
    """Return the mean of Q(s₀, π̃(s₀)), in the units Q is learned in."""
    x = inputs(config, problem, problem.first_states, problem.first_actions)
    q = jax.vmap(mlp.q_value, in_axes=(None, 0))(params, x)
    return mean_over_rows(units.bounded(q, problem) if config.bounded else q, problem.episode_weights)


def value(config: KMIFQEConfig, state: KMIFQEState, problem: Problem) -> Float[Array, ""]:
    """Return V̂, the last line of Algorithm 1, from the settings `config`, a `state` and the log, `problem`."""
    return state.units.value(_first_value(config, state.params, state.units, problem))


# --- The kernel's bias, a departure from the paper (docs/concepts/intervals.md, "The kernel's bias")

NEIGHBOUR = 4.0  # bandwidths: only the clip from below draws rows beyond, where the expansion does not hold


def _bias_for_every_row(
    config: KMIFQEConfig, params: mlp.QParams, problem: Problem
) -> Float[Array, " n"] | None:
    """Return the bias of every row's bootstrap value; None where it is ignored or computed for a minibatch."""
    if config.bias == "ignored" or config.tau:
        return None
    return table.for_every_row(config, params, problem, table.taylor_bias)


def _bias_of_neighbours(rows: Array, bias: Array, state: KMIFQEState) -> Float[Array, " rows"]:
    """Return the `bias` of `rows` at neighbours of π̃(s'), and 0 elsewhere."""
    squared = state.table.squared
    if len(squared) == 0:
        return bias
    distance = jnp.sum(squared[jnp.minimum(rows, len(squared) - 1)], axis=1)
    return jnp.where(distance <= (NEIGHBOUR * state.h) ** 2, bias, 0.0)


def _bias_of_value(
    bias: Array, weights: Array, rows: Array, state: KMIFQEState, problem: Problem
) -> Float[Array, ""]:
    """Return what the bias of a step's rows adds up to in V̂, by the weighted mean over the nonterminal rows."""
    counts = problem.counts
    nonterminal = jnp.where(rows < counts.nonterminal, weights, 0.0)
    mean = jnp.sum(nonterminal * bias) / jnp.maximum(jnp.sum(nonterminal), 1.0)
    return value_bias(mean, problem.gamma, counts.terminated / counts.in_sample) * state.units.scale
