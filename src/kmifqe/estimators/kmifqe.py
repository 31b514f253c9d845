"""KMIFQE: in-sample fitted Q evaluation with a learned kernel bandwidth and metric."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from kmifqe.estimators.base import Estimator, Info
from kmifqe.estimators.episode_weights import RowMeans, mean_over_rows, row_means, row_weights
from kmifqe.estimators.kmifqe_bandwidth import Bandwidth, new_bandwidth
from kmifqe.estimators.kmifqe_config import KMIFQEConfig
from kmifqe.estimators.kmifqe_rows import check_problem, factors, going_on_multiples, inputs, log_mu
from kmifqe.estimators.look_ahead import Ahead, Reading, bends, changes, look_ahead, new_values
from kmifqe.estimators.scales import in_unit, reward_scale
from kmifqe.maths import mlp
from kmifqe.maths.envelope import LARGEST_LOG, Accepted, Envelope, Interval, build_envelope, draw_accepted
from kmifqe.maths.kernel import log_clipped_weight
from kmifqe.maths.minibatch import minibatch_pass
from kmifqe.maths.random_words import row_numbers, uniforms
from kmifqe.maths.resample import draw
from kmifqe.problem import Problem

# A minibatch's log h scatters by 0.6/(d + 4) and now and then jumps up by five times that (docs/speed.md); the
# envelope covers both, and is rebuilt when the running mean of log h has moved by DRIFT.
BELOW, ABOVE, DRIFT = 1.5, 4.0, 0.5  # in 1/(d + 4)
PROPOSALS = 2  # a row: over about that interval 0.6 or more of the proposals were accepted
NEIGHBOUR = 4.0  # bandwidths: only the clip from below draws rows beyond, and an expansion says nothing there
RUNNING = 0.05  # weight of a step in the running mean of log h


class KMIFQEState(NamedTuple):
    """Network and optimiser, and what the frozen target network says about every row.

    Between two copies the target network does not change, so its values and Hessians are computed once per copy
    and a step touches only h. The target network itself need not be kept.
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
    bent: mlp.QParams | None  # the network whose bias is taken off, where one is kept for it


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
    looks_at_bias, holds_bias = config.bias != "ignored", config.bias == "held"
    follows = config.bandwidth is None and config.envelope_period > 0  # else one h, or weights at every step

    def init(key: Array, problem: Problem) -> KMIFQEState:
        check_problem(config, problem)
        unit, means = reward_scale(problem), row_means(problem)
        network_key, bandwidth_key = jax.random.split(key)
        params = mlp.init_q(network_key, problem.state_dim + problem.action_dim, config.hidden)
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
        envelope = envelope_around(jnp.log(h), ahead, problem)
        bent = params if holds_bias else None
        return KMIFQEState(
            params, optimizer.init(params), ahead, envelope, h, jnp.log(h), log_v, unit, means, bent
        )

    def refresh_kind(step: int) -> str:
        if step % config.target_period:
            return "envelope"
        metric_steps = config.target_period * config.metric_period
        if step % metric_steps:
            # A network that has learned nothing yet has no metric to keep.
            return "all" if step == config.target_period else "values"
        if not holds_bias or step < config.bias_step:
            return "all"
        return "all, bias" if step - metric_steps < config.bias_step else "all, old bias"

    def refresh(kind: str, state: KMIFQEState, problem: Problem) -> KMIFQEState:
        """Copy the target network, with new metrics ("all") or without ("values"), or follow h ("envelope")."""
        if kind == "envelope":
            return state._replace(envelope=followed(state, problem))
        bent, bend = state.bent, state.ahead.bend
        if kind == "values":
            ahead = new_values(state.params, problem, state.ahead, reading)
        else:
            ahead = look_ahead(state.params, problem, factors(config, problem), metric_floor, reading)
        if kind == "all, bias":
            bent = state.params
        if looks_at_bias and not holds_bias:
            bend = bends(state.params, problem, reading)
        elif kind in ("all, bias", "all, old bias"):  # the old one too: a restart has no rows of it
            assert bent is not None  # holds_bias
            bend = changes(bent, problem, reading)
        ahead = ahead._replace(bend=bend)
        return state._replace(ahead=ahead, envelope=envelope_around(state.log_h, ahead, problem), bent=bent)

    def followed(state: KMIFQEState, problem: Problem) -> Envelope:
        """Return an envelope around the running mean of h: the one there is, unless h has drifted."""
        margin = 1.0 / (problem.action_dim + 4)
        centre = jnp.log(state.envelope.interval.low) + BELOW * margin
        drifted = jnp.abs(state.log_h - centre) > DRIFT * margin

        def rebuilt() -> Envelope:
            new = envelope_around(state.log_h, state.ahead, problem)
            return jax.tree.map(lambda new, old: jnp.where(drifted, new, old), new, state.envelope)

        return jax.lax.cond(_in_any_seed(drifted), rebuilt, lambda: state.envelope)

    def envelope_around(log_h: Array, ahead: Ahead, problem: Problem) -> Envelope:
        """Return the envelope for the bandwidths that may come: around h, or h alone where it is fixed."""
        below, above = (BELOW, ABOVE) if follows else (0.0, 0.0)
        margin = 1.0 / (problem.action_dim + 4)
        interval = Interval(jnp.exp(log_h - below * margin), jnp.exp(log_h + above * margin))
        squared, density = ahead.squared, log_mu(config, problem, slice(problem.counts.going_on))
        if problem.counts.going_on == 0:  # never drawn from, but a maximum needs a row
            squared = density = jnp.zeros((1, factors(config, problem)))
            return build_envelope(squared, interval, density, problem.action_dim, config.clip)
        return build_envelope(
            squared, interval, density, problem.action_dim, config.clip, going_on_multiples(problem)
        )

    def draws(words: Array, h: Array, state: KMIFQEState, problem: Problem) -> Accepted:
        """Return a minibatch of ρᴷ at bandwidth h.

        A terminal row, whose update ignores a', has the others' mean weight (spec: their expected one), so the
        terminal rows as a whole are drawn as often as they were logged, whatever h.
        """
        n, going_on = problem.counts.in_sample, problem.counts.going_on
        for_terminal, words = words[: 2 * config.batch].reshape(2, -1), words[2 * config.batch :]
        terminal = going_on + row_numbers(for_terminal[0], max(n - going_on, 1))
        all_places = jnp.ones(config.batch, bool)
        if going_on == 0:
            return Accepted(terminal, all_places, jnp.float32(1.0), jnp.float32(1.0))

        def of_rows(rows: Array) -> tuple[Array, Array]:
            return state.ahead.squared[rows], log_mu(config, problem, rows)

        kernel = (problem.action_dim, config.clip)
        levels = len(state.envelope.sums)
        if follows:
            numbers = uniforms(words).reshape(levels + 1, -1)
            accepted = draw_accepted(numbers, state.envelope, h, of_rows, *kernel, config.batch)
        else:
            envelope = state.envelope
            if config.bandwidth is None:
                everything = state.ahead.squared, Interval(h, h), log_mu(config, problem, slice(going_on))
                envelope = build_envelope(*everything, *kernel, going_on_multiples(problem))
            rows = draw(uniforms(words).reshape(levels, -1), envelope.sums)
            # Unclipped over a density near 0 weights overflow: capped, as one, they keep their ratios.
            excess = jnp.maximum(envelope.log_scale - LARGEST_LOG, 0.0)
            weigh = lambda s, m: jnp.exp(log_clipped_weight(s, h, m, *kernel) - excess)  # noqa: E731
            w = jax.vmap(weigh)(*of_rows(rows))
            mean = jnp.exp(envelope.log_scale - excess) * envelope.mean
            accepted = Accepted(rows, all_places, mean, mean * jnp.mean(w))
        if going_on == n:
            return accepted
        ending = (n - going_on) / n if state.row_means is None else state.row_means.ending
        ends = uniforms(for_terminal[1]) < ending
        rows = jnp.where(ends, terminal, accepted.rows)
        # A place left empty stays so: given to terminal rows only, these would be drawn too often.
        if state.row_means is None:
            mean_square = (going_on * accepted.mean_square + (n - going_on) * accepted.mean_weight**2) / n
        else:
            mean_square = (1.0 - ending) * accepted.mean_square + ending * accepted.mean_weight**2
        return accepted._replace(rows=rows, mean_square=mean_square)

    def counted(rows: Array, filled: Array, state: KMIFQEState, problem: Problem) -> Float[Array, " batch"]:
        """Return how much each place of a minibatch counts in the loss: 0 or 1; terminal rows by their weights.

        The rows that go on were drawn by their episode weights, the terminal ones uniformly: these are few, and
        need no table to draw from.
        """
        weights = row_weights(problem, rows, state.row_means and state.row_means.terminal)
        if weights is None or problem.counts.terminated == 0:
            return filled
        return filled * jnp.where(rows < problem.counts.going_on, 1.0, weights)

    def step(key: Array, t: Array, state: KMIFQEState, problem: Problem) -> tuple[KMIFQEState, Info]:
        # Words for the bandwidth's minibatch, the terminal rows, and every level of every proposal.
        per_row = len(state.envelope.sums) + 1 if follows else len(state.envelope.sums)
        proposals = config.batch * (PROPOSALS if follows else 1)
        words = jax.random.bits(key, (3 * config.batch + per_row * proposals,))
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
            if follows:
                h = jnp.clip(h, *state.envelope.interval)
        drawn = draws(words[config.batch :], h, state, problem)
        rows, filled = drawn.rows, drawn.filled.astype(jnp.float32)
        x = inputs(config, problem, problem.states[rows], problem.actions[rows])
        rewards = in_unit(problem.rewards[rows], state.reward_scale)
        next_values = state.ahead.next_value[rows]
        if config.bias in ("subtracted", "held"):
            next_values = next_values - bend_of(rows, h, state)
        goal = (1.0 - problem.gamma) * rewards + problem.gamma * next_values
        # The gradient of the mean squared TD error: coefficients q − goal, and the constants outside.
        counts = counted(rows, filled, state, problem)
        p = minibatch_pass(state.params, x, -counts * goal, counts, config.precision)
        scale = 2.0 * drawn.mean_weight / jnp.maximum(jnp.sum(filled), 1.0)
        updates, opt_state = optimizer.update(
            jax.tree.map(lambda g: scale * g, p.gradient), state.opt_state, state.params
        )
        params = optax.apply_updates(state.params, updates)
        info = {
            "loss": jnp.sum(counts * (goal - p.q) ** 2) / jnp.maximum(jnp.sum(filled), 1.0),
            "h": h,
            "mean_weight": drawn.mean_weight,
            "ess": problem.counts.in_sample * drawn.mean_weight**2 / jnp.maximum(drawn.mean_square, 1e-30),
            "filled": jnp.mean(filled),
        }
        if looks_at_bias:
            gain = problem.gamma / (1.0 - problem.gamma)
            mean = jnp.sum(counts * bend_of(rows, h, state)) / jnp.maximum(jnp.sum(counts), 1.0)
            info["bias"] = gain * mean * state.reward_scale
        state = state._replace(params=params, opt_state=opt_state, h=h, log_h=log_h, log_v=log_v)
        return state, info

    def bend_of(rows: Array, h: Array, state: KMIFQEState) -> Float[Array, " rows"]:
        """Return what a' changes of Q̄; an expansion says 0 where a' is no neighbour of π̃(s') in the kernel."""
        bend, squared = state.ahead.bend, state.ahead.squared
        assert bend is not None  # looks_at_bias
        if holds_bias or len(squared) == 0:
            return bend[rows]
        distance = jnp.sum(squared[jnp.minimum(rows, len(squared) - 1)], axis=1)
        return jnp.where(distance <= (NEIGHBOUR * h) ** 2, bend[rows], 0.0)

    def value(state: KMIFQEState, problem: Problem) -> Float[Array, ""]:
        x = inputs(config, problem, problem.first_states, problem.first_actions)
        told = jax.vmap(mlp.q_value, in_axes=(None, 0))(state.params, x)
        return mean_over_rows(told, problem.episode_weights) * state.reward_scale

    check_every = _check_every(config.target_period, config.envelope_period) if follows else 0
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
        refreshed=("ahead", "envelope"),
        restart_every=config.target_period * config.metric_period,
    )


@jax.custom_batching.custom_vmap
def _in_any_seed(flag: Array) -> Array:
    """Return whether any of the seeds under a vmap raises the flag: one answer, so that a branch stays one."""
    return flag


@_in_any_seed.def_vmap
def _(size: int, batched: list[bool], flag: Array) -> tuple[Array, bool]:
    return jnp.any(flag), False


def _check_every(target_period: int, envelope_period: int) -> int:
    """Return the steps between looks at h's drift: a divisor of the target's period, if there is a handy one."""
    divisors = [n for n in range(1, min(target_period, envelope_period) + 1) if target_period % n == 0]
    return divisors[-1] if 5 * divisors[-1] >= envelope_period else target_period
