"""How KMIFQE reads its rows, and which rows a step learns from: drawn by their weights at the step's bandwidth."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kmifqe.errors import InputError
from kmifqe.estimators.base import RowMeans, action_scale, network_input, row_weights
from kmifqe.estimators.kmifqe.config import KMIFQEConfig
from kmifqe.estimators.kmifqe.target import Ahead
from kmifqe.maths import mlp
from kmifqe.maths.kernel import log_clipped_weight
from kmifqe.maths.sampling import (
    LARGEST_LOG,
    Accepted,
    Envelope,
    Interval,
    build_envelope,
    draw,
    draw_accepted,
    row_numbers,
    uniforms,
)
from kmifqe.mdp.problem import Problem


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


# A minibatch's log h scatters by 0.6/(d + 4) and now and then jumps up by five times that (docs/speed.md); the
# envelope covers both, and is rebuilt when the running mean of log h has moved by DRIFT.
BELOW, ABOVE, DRIFT = 1.5, 4.0, 0.5  # in 1/(d + 4)
PROPOSALS = 2  # a row: over about that interval 0.6 or more of the proposals were accepted


def follows(config: KMIFQEConfig) -> bool:
    """Return whether an envelope that follows h proposes the rows; else h is fixed, or weights are new every step."""
    return config.bandwidth is None and config.envelope_period > 0


def followed(
    config: KMIFQEConfig, log_h: Array, envelope: Envelope, ahead: Ahead, problem: Problem
) -> Envelope:
    """Return an envelope around the running mean of h: the one there is, unless h has drifted."""
    margin = 1.0 / (problem.action_dim + 4)
    centre = jnp.log(envelope.interval.low) + BELOW * margin
    drifted = jnp.abs(log_h - centre) > DRIFT * margin

    def rebuilt() -> Envelope:
        new = envelope_around(config, log_h, ahead, problem)
        return jax.tree.map(lambda new, old: jnp.where(drifted, new, old), new, envelope)

    return jax.lax.cond(_in_any_seed(drifted), rebuilt, lambda: envelope)


def envelope_around(config: KMIFQEConfig, log_h: Array, ahead: Ahead, problem: Problem) -> Envelope:
    """Return the envelope for the bandwidths that may come: around h, or h alone where it is fixed."""
    below, above = (BELOW, ABOVE) if follows(config) else (0.0, 0.0)
    margin = 1.0 / (problem.action_dim + 4)
    interval = Interval(jnp.exp(log_h - below * margin), jnp.exp(log_h + above * margin))
    squared, density = ahead.squared, log_mu(config, problem, slice(problem.counts.going_on))
    if problem.counts.going_on == 0:  # never drawn from, but a maximum needs a row
        squared = density = jnp.zeros((1, factors(config, problem)))
        return build_envelope(squared, interval, density, problem.action_dim, config.clip)
    return build_envelope(
        squared, interval, density, problem.action_dim, config.clip, going_on_multiples(problem)
    )


def words_of_draws(config: KMIFQEConfig, envelope: Envelope) -> int:
    """Return how many random words `draws` takes: for the terminal rows, and every level of every proposal."""
    levels = len(envelope.sums)
    if follows(config):
        return 2 * config.batch + (levels + 1) * PROPOSALS * config.batch
    return (2 + levels) * config.batch


def draws(
    config: KMIFQEConfig,
    words: Array,
    h: Array,
    ahead: Ahead,
    envelope: Envelope,
    means: RowMeans | None,
    problem: Problem,
) -> Accepted:
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
        return ahead.squared[rows], log_mu(config, problem, rows)

    kernel = (problem.action_dim, config.clip)
    levels = len(envelope.sums)
    if follows(config):
        numbers = uniforms(words).reshape(levels + 1, -1)
        accepted = draw_accepted(numbers, envelope, h, of_rows, *kernel, config.batch)
    else:
        if config.bandwidth is None:
            everything = ahead.squared, Interval(h, h), log_mu(config, problem, slice(going_on))
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
    ending = (n - going_on) / n if means is None else means.ending
    ends = uniforms(for_terminal[1]) < ending
    rows = jnp.where(ends, terminal, accepted.rows)
    # A place left empty stays so: given to terminal rows only, these would be drawn too often.
    if means is None:
        mean_square = (going_on * accepted.mean_square + (n - going_on) * accepted.mean_weight**2) / n
    else:
        mean_square = (1.0 - ending) * accepted.mean_square + ending * accepted.mean_weight**2
    return accepted._replace(rows=rows, mean_square=mean_square)


class Minibatch(NamedTuple):
    """The rows of a step."""

    rows: Int[Array, " batch"]
    filled: Float[Array, " batch"]  # 0 in a place that stayed empty
    of_fqe: Bool[Array, " batch"] | None  # drawn from all rows alike; None: no row is
    ess: Float[Array, ""]  # effective sample of the weighted draw


def words_of_fqe(config: KMIFQEConfig) -> int:
    """Return how many random words `minibatch` takes."""
    return 2 * config.batch if config.half_fqe_at else 0


def minibatch(config: KMIFQEConfig, words: Array, drawn: Accepted, problem: Problem) -> Minibatch:
    """Return the drawn rows, some of them replaced by rows of FQE: the more, the fewer rows carry the weights."""
    n = problem.counts.in_sample
    filled = drawn.filled.astype(jnp.float32)
    share = drawn.mean_weight**2 / jnp.maximum(drawn.mean_square, 1e-30)
    if not config.half_fqe_at:
        return Minibatch(drawn.rows, filled, None, n * share)
    which, rows = words.reshape(2, -1)
    of_fqe = uniforms(which) < config.half_fqe_at / (config.half_fqe_at + share)
    rows = jnp.where(of_fqe, row_numbers(rows, n), drawn.rows)
    return Minibatch(rows, jnp.where(of_fqe, 1.0, filled), of_fqe, n * share)


def counted(taken: Minibatch, means: RowMeans | None, problem: Problem) -> Float[Array, " batch"]:
    """Return how much each place of a minibatch counts in the loss: 0 or 1, or an episode weight.

    The rows that go on were drawn by their episode weights. The terminal ones, which are few and need no table
    to draw from, and FQE's rows were drawn alike: they count by their weights.
    """
    weights = row_weights(problem, taken.rows)
    if weights is None or means is None:
        return taken.filled
    counts = taken.filled * jnp.where(taken.rows < problem.counts.going_on, 1.0, weights / means.terminal)
    return counts if taken.of_fqe is None else jnp.where(taken.of_fqe, weights / means.in_sample, counts)


@jax.custom_batching.custom_vmap
def _in_any_seed(flag: Array) -> Array:
    """Return whether any of the seeds under a vmap raises the flag: one answer, so that a branch stays one."""
    return flag


@_in_any_seed.def_vmap
def _(size: int, batched: list[bool], flag: Array) -> tuple[Array, bool]:
    return jnp.any(flag), False
