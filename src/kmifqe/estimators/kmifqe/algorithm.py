"""KMIFQE: in-sample fitted Q evaluation with a learned kernel bandwidth and metric."""

from __future__ import annotations

from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from kmifqe.estimators.base import Estimator, Info, RowMeans, in_unit, mean_over_rows, reward_scale, row_means
from kmifqe.estimators.kmifqe.bandwidth import Bandwidth, new_bandwidth
from kmifqe.estimators.kmifqe.config import KMIFQEConfig
from kmifqe.estimators.kmifqe.sampling import (
    check_problem,
    counted,
    draws,
    envelope_around,
    factors,
    followed,
    follows,
    fqe_values,
    inputs,
    minibatch,
    words_of_draws,
    words_of_fqe,
)
from kmifqe.estimators.kmifqe.target import Ahead, Reading, bends, changes, look_ahead, new_values
from kmifqe.maths import mlp
from kmifqe.maths.batches import minibatch_pass
from kmifqe.maths.sampling import Envelope
from kmifqe.mdp.problem import Problem

NEIGHBOUR = 4.0  # bandwidths: only the clip from below draws rows beyond, and an expansion says nothing there
RUNNING = 0.05  # weight of a step in the running mean of log h
AVERAGED = 0.05  # of the steps before a bias is held: over so many a mean network has lost the steps' noise


class Told(NamedTuple):
    """The mean of what the network said at copies, in the unit Q is learned in, and how many those were."""

    mean: Float[Array, ""]
    copies: Float[Array, ""]


class KMIFQEState(NamedTuple):
    """Network and optimiser, and what the frozen target network says about every row.

    Between two copies the target network does not change, so its values and Hessians are computed once per copy
    and a step touches only h. The target network itself need not be kept, unless FQE's rows ask it.
    """

    params: mlp.QParams
    opt_state: optax.OptState
    ahead: Ahead
    envelope: Envelope
    h: Float[Array, ""]
    log_h: Float[Array, ""]  # running mean of log h, what the envelope is built around
    log_v: Float[Array, ""]  # running log of v, used where μ(π̃(s')|s') is unknown
    reward_scale: Float[Array, ""]  # the unit Q is learned in
    row_means: RowMeans | None  # of the rows' episode weights; None without a bootstrap
    bent: mlp.QParams | None  # the mean network whose bias is taken off, where one is kept for it
    copied: mlp.QParams | None  # the target network, where FQE's rows ask it
    told: Told | None  # V̂ so far, where it is a mean over copies


PAPER = KMIFQEConfig()


@cache  # one set of functions per config, so that jit compiles it once
def kmifqe(config: KMIFQEConfig = PAPER) -> Estimator:
    """Return KMIFQE, Algorithm 1: per step h*, weights, resampling, TD update; per copy Hessians and metrics."""
    optimizer = optax.flatten(  # one vector: one kernel instead of one for every layer's weights
        optax.adam(
            optax.cosine_decay_schedule(config.learning_rate, config.decay_steps, alpha=0.01)
            if config.decay_steps
            else config.learning_rate
        )
    )
    metric_floor = config.metric_floor if config.metric == "learned" else None
    reading = Reading(config.precision, config.cut_actions)
    asks_fqe = config.half_fqe_at > 0
    looks_at_bias, holds_bias = config.bias != "ignored", config.bias == "held"

    def init(key: Array, problem: Problem) -> KMIFQEState:
        check_problem(config, problem)
        unit, means = reward_scale(problem), row_means(problem)
        network_key, bandwidth_key = jax.random.split(key)
        params = mlp.init_q(network_key, problem.state_dim + problem.action_dim, config.hidden)
        if config.start_at_mean:
            params = params._replace(b3=params.b3 + in_unit(jnp.mean(problem.rewards), unit))
        h = jnp.float32(config.bandwidth or config.bandwidth_bounds[1] / 4)
        log_v = jnp.float32(jnp.nan)
        ahead = look_ahead(params, problem, factors(config, problem), None, reading)
        if holds_bias:
            ahead = ahead._replace(bend=jnp.zeros(problem.counts.in_sample))
        elif looks_at_bias:
            ahead = ahead._replace(bend=bends(params, problem, reading))
        if config.bandwidth is None:
            words = jax.random.bits(bandwidth_key, (config.batch,))
            h, log_v = new_bandwidth(config, words, params, ahead, Bandwidth(h, log_v), unit, means, problem)
        envelope = envelope_around(config, jnp.log(h), ahead, problem)
        bent, copied = params if holds_bias else None, params if asks_fqe else None
        told = Told(jnp.float32(0), jnp.float32(0)) if config.average_step else None
        return KMIFQEState(
            params,
            optimizer.init(params),
            ahead,
            envelope,
            h,
            jnp.log(h),
            log_v,
            unit,
            means,
            bent,
            copied,
            told,
        )

    metric_steps = config.target_period * config.metric_period
    held_from = -(-config.bias_step // metric_steps) * metric_steps
    weight_of_copy = min(config.target_period / (AVERAGED * max(held_from, 1)), 1.0)

    def refresh_kind(step: int) -> str:
        if step % config.target_period:
            return "envelope"
        # A network that has learned nothing yet has no metric to keep.
        kind = "values" if step % metric_steps and step != config.target_period else "all"
        if not holds_bias:
            return kind
        if step < held_from:
            return f"{kind}, averaging"
        return "all, bias" if kind == "all" else kind  # at every new metric: a restart has no rows of it

    def refresh(kind: str, state: KMIFQEState, problem: Problem) -> KMIFQEState:
        """Copy the target network, with new metrics ("all") or without ("values"), or follow h ("envelope")."""
        if kind == "envelope":
            envelope = followed(config, state.log_h, state.envelope, state.ahead, problem)
            return state._replace(envelope=envelope)
        bent, bend = state.bent, state.ahead.bend
        if kind.startswith("values"):
            ahead = new_values(state.params, problem, state.ahead, reading)
        else:
            ahead = look_ahead(state.params, problem, factors(config, problem), metric_floor, reading)
        if kind.endswith("averaging"):
            bent = jax.tree.map(lambda mean, new: mean + weight_of_copy * (new - mean), bent, state.params)
        if looks_at_bias and not holds_bias:
            bend = bends(state.params, problem, reading)
        elif kind == "all, bias":
            assert bent is not None  # holds_bias
            bend = changes(bent, problem, reading)
        ahead = ahead._replace(bend=bend)
        envelope = envelope_around(config, state.log_h, ahead, problem)
        copied = state.params if asks_fqe else None
        return state._replace(ahead=ahead, envelope=envelope, bent=bent, copied=copied)

    def step(key: Array, t: Array, state: KMIFQEState, problem: Problem) -> tuple[KMIFQEState, Info]:
        drawn_by = config.batch + words_of_draws(config, state.envelope)
        words = jax.random.bits(key, (drawn_by + words_of_fqe(config),))
        h, log_h, log_v = state.h, state.log_h, state.log_v
        if config.bandwidth is None:

            def renewed() -> tuple[Array, Array, Array]:
                h, log_v = new_bandwidth(
                    config,
                    words[: config.batch],
                    state.params,
                    state.ahead,
                    Bandwidth(state.h, state.log_v),
                    state.reward_scale,
                    state.row_means,
                    problem,
                )
                return h, (1.0 - RUNNING) * log_h + RUNNING * jnp.log(h), log_v

            if config.bandwidth_period == 1:
                h, log_h, log_v = renewed()
            else:
                old = (h, log_h, log_v)
                h, log_h, log_v = jax.lax.cond(t % config.bandwidth_period == 0, renewed, lambda: old)
            if follows(config):
                h = jnp.clip(h, *state.envelope.interval)
        drawn = draws(
            config, words[config.batch : drawn_by], h, state.ahead, state.envelope, state.row_means, problem
        )
        taken = minibatch(config, words[drawn_by:], drawn, problem)
        rows = taken.rows
        x = inputs(config, problem, problem.states[rows], problem.actions[rows])
        rewards = in_unit(problem.rewards[rows], state.reward_scale)
        next_values = state.ahead.next_value[rows]
        if config.bias in ("subtracted", "held"):
            next_values = next_values - config.bias_share * bend_of(rows, h, state)
        if taken.of_fqe is not None:
            assert state.copied is not None  # kept for this
            told = fqe_values(config, state.copied, problem, rows)
            next_values = jnp.where(taken.of_fqe, told, next_values)
        goal = (1.0 - problem.gamma) * rewards + problem.gamma * next_values
        # The gradient of the mean squared TD error: coefficients q − goal, and the constants outside.
        counts = counted(taken, state.row_means, problem)
        p = minibatch_pass(state.params, x, -counts * goal, counts, config.precision)
        in_all = jnp.maximum(jnp.sum(taken.filled), 1.0)
        scale = 2.0 * drawn.mean_weight / in_all
        updates, opt_state = optimizer.update(
            jax.tree.map(lambda g: scale * g, p.gradient), state.opt_state, state.params
        )
        params = optax.apply_updates(state.params, updates)
        info = {
            "loss": jnp.sum(counts * (goal - p.q) ** 2) / in_all,
            "h": h,
            "mean_weight": drawn.mean_weight,
            "ess": taken.ess,
            "filled": jnp.mean(taken.filled),
        }
        if looks_at_bias:
            gain = problem.gamma / (1.0 - problem.gamma)
            of_kernel = counts if taken.of_fqe is None else jnp.where(taken.of_fqe, 0.0, counts)
            mean = jnp.sum(of_kernel * bend_of(rows, h, state)) / jnp.maximum(jnp.sum(of_kernel), 1.0)
            info["bias"] = gain * mean * state.reward_scale
        state = state._replace(params=params, opt_state=opt_state, h=h, log_h=log_h, log_v=log_v)
        if state.told is not None:
            so_far, is_copied = state.told, (t + 1) % config.target_period == 0
            averaged = partial(counted_in, params, so_far, problem)
            due = is_copied & (t >= config.average_step)
            state = state._replace(told=jax.lax.cond(due, averaged, lambda: so_far))
        return state, info

    def counted_in(params: mlp.QParams, told: Told, problem: Problem) -> Told:
        copies = told.copies + 1.0
        return Told(told.mean + (first_value(params, problem) - told.mean) / copies, copies)

    def bend_of(rows: Array, h: Array, state: KMIFQEState) -> Float[Array, " rows"]:
        """Return what a' changes of Q̄; an expansion says 0 where a' is no neighbour of π̃(s') in the kernel."""
        bend, squared = state.ahead.bend, state.ahead.squared
        assert bend is not None  # looks_at_bias
        if holds_bias or len(squared) == 0:
            return bend[rows]
        distance = jnp.sum(squared[jnp.minimum(rows, len(squared) - 1)], axis=1)
        return jnp.where(distance <= (NEIGHBOUR * h) ** 2, bend[rows], 0.0)

    def first_value(params: mlp.QParams, problem: Problem) -> Float[Array, ""]:
        x = inputs(config, problem, problem.first_states, problem.first_actions)
        told = jax.vmap(mlp.q_value, in_axes=(None, 0))(params, x)
        return mean_over_rows(told, problem.episode_weights)

    def value(state: KMIFQEState, problem: Problem) -> Float[Array, ""]:
        return first_value(state.params, problem) * state.reward_scale

    def settled(state: KMIFQEState, problem: Problem) -> Float[Array, ""]:
        assert state.told is not None  # average_step
        mean = state.told.mean * state.reward_scale
        return jnp.where(state.told.copies > 0, mean, value(state, problem))  # a fit may stop before

    check_every = _check_every(config.target_period, config.envelope_period) if follows(config) else 0
    name = "kmifqe" if config.metric == "learned" else "kmifqe-identity"
    return Estimator(
        name,
        config,
        init,
        step,
        value,
        default_steps=1_000_000,
        refresh=refresh,
        refresh_every=check_every or config.target_period,
        refresh_kind=refresh_kind,
        refreshed=("ahead", "envelope", "copied"),
        restart_every=metric_steps,
        settled=settled if config.average_step else None,
    )


def _check_every(target_period: int, envelope_period: int) -> int:
    """Return the steps between looks at h's drift: a divisor of the target's period, if there is a handy one."""
    divisors = [n for n in range(1, min(target_period, envelope_period) + 1) if target_period % n == 0]
    return divisors[-1] if 5 * divisors[-1] >= envelope_period else target_period
