"""Which rows a step of KMIFQE learns from: drawn by their weights at the step's bandwidth."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kmifqe.estimators.base import RowMeans, row_weights
from kmifqe.estimators.kmifqe.config import KMIFQEConfig
from kmifqe.estimators.kmifqe.rows import TargetTable, log_mu, weight_factors
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

# A minibatch's log h scatters by 0.6/(d + 4) and now and then jumps up by five times that (docs/evidence/speed.md);
# the envelope covers both, and is rebuilt when the running mean of log h has moved by DRIFT.
BELOW, ABOVE, DRIFT = 1.5, 4.0, 0.5  # in 1/(d + 4)
PROPOSALS = 2  # a row: over about that interval 0.6 or more of the proposals were accepted


def proposes(config: KMIFQEConfig) -> bool:
    """Return whether rows are proposed by bounds of their weights and then accepted by the weights at h.

    Otherwise rows are drawn by the weights themselves, since h is fixed or all weights are new at every step.
    """
    return config.bandwidth is None and config.envelope_period > 0


def envelope_around(config: KMIFQEConfig, log_h: Array, table: TargetTable, problem: Problem) -> Envelope:
    """Return bounds of the weights of the rows of `problem`, ready to draw from.

    They hold for the bandwidths that may come: around exp(`log_h`), or exp(`log_h`) alone where `config` fixes the
    bandwidth. `table` has the rows' distances.
    """
    below, above = (BELOW, ABOVE) if proposes(config) else (0.0, 0.0)
    margin = 1.0 / (problem.action_dim + 4)
    interval = Interval(jnp.exp(log_h - below * margin), jnp.exp(log_h + above * margin))
    squared, density = table.squared, log_mu(config, problem, slice(problem.counts.nonterminal))
    if problem.counts.nonterminal == 0:  # never drawn from, but a maximum needs a row
        squared = density = jnp.zeros((1, weight_factors(config, problem)))
        return build_envelope(squared, interval, density, problem.action_dim, config.clip)
    return build_envelope(squared, interval, density, problem.action_dim, config.clip, _multiples(problem))


def updated_envelope(
    config: KMIFQEConfig, log_h: Array, envelope: Envelope, table: TargetTable, problem: Problem
) -> Envelope:
    """Return `envelope`, or a new one around exp(`log_h`) where the running mean of log h has drifted.

    `config`, `table` and `problem` are as of `envelope_around`.
    """
    margin = 1.0 / (problem.action_dim + 4)
    centre = jnp.log(envelope.interval.low) + BELOW * margin
    drifted = jnp.abs(log_h - centre) > DRIFT * margin

    def rebuilt() -> Envelope:
        new = envelope_around(config, log_h, table, problem)
        return jax.tree.map(lambda new, old: jnp.where(drifted, new, old), new, envelope)

    return jax.lax.cond(_in_any_seed(drifted), rebuilt, lambda: envelope)


def bits_to_draw(config: KMIFQEConfig, envelope: Envelope) -> int:
    """Return how many random numbers `draw_by_weight` needs: for terminal rows, and each level of each proposal."""
    levels = len(envelope.sums)
    if proposes(config):
        return 2 * config.batch + (levels + 1) * PROPOSALS * config.batch
    return (2 + levels) * config.batch


def draw_by_weight(
    config: KMIFQEConfig,
    random_bits: Array,
    h: Array,
    table: TargetTable,
    envelope: Envelope,
    means: RowMeans | None,
    problem: Problem,
) -> Accepted:
    """Return a minibatch drawn by ρᴷ at bandwidth `h`: Algorithm 1, lines 4 to 6.

    A terminal row, whose update ignores a', has the others' mean weight, which is its expected one. So the terminal
    rows as a whole are drawn as often as they were logged, whatever h.

    `config`: batch size and clip. `random_bits`: `bits_to_draw` random 32-bit numbers. `table`: the rows' distances
    in the metric. `envelope`: bounds of their weights. `means`: of the rows' bootstrap weights, None without a
    bootstrap. `problem`: the log.
    """
    n, nonterminal = problem.counts.in_sample, problem.counts.nonterminal
    for_terminal, random_bits = (
        random_bits[: 2 * config.batch].reshape(2, -1),
        random_bits[2 * config.batch :],
    )
    terminal = nonterminal + row_numbers(for_terminal[0], max(n - nonterminal, 1))
    if nonterminal == 0:
        return Accepted(terminal, jnp.ones(config.batch, bool), jnp.float32(1.0), jnp.float32(1.0))

    def distance_and_density(rows: Array) -> tuple[Array, Array]:
        return table.squared[rows], log_mu(config, problem, rows)

    kernel = (problem.action_dim, config.clip)
    levels = len(envelope.sums)
    if proposes(config):
        numbers = uniforms(random_bits).reshape(levels + 1, -1)
        accepted = draw_accepted(numbers, envelope, h, distance_and_density, *kernel, config.batch)
    else:
        if config.bandwidth is None:
            density = log_mu(config, problem, slice(nonterminal))
            envelope = build_envelope(table.squared, Interval(h, h), density, *kernel, _multiples(problem))
        rows = draw(uniforms(random_bits).reshape(levels, -1), envelope.sums)
        # Unclipped over a density near 0 weights overflow: capped, as one, they keep their ratios.
        excess = jnp.maximum(envelope.log_scale - LARGEST_LOG, 0.0)
        weigh = lambda s, m: jnp.exp(log_clipped_weight(s, h, m, *kernel) - excess)  # noqa: E731
        w = jax.vmap(weigh)(*distance_and_density(rows))
        mean = jnp.exp(envelope.log_scale - excess) * envelope.mean
        accepted = Accepted(rows, jnp.ones(config.batch, bool), mean, mean * jnp.mean(w))
    if nonterminal == n:
        return accepted
    ending = (n - nonterminal) / n if means is None else means.ending
    is_terminal = uniforms(for_terminal[1]) < ending
    rows = jnp.where(is_terminal, terminal, accepted.rows)
    # A place left empty stays so: given to terminal rows only, these would be drawn too often.
    if means is None:
        mean_square = (nonterminal * accepted.mean_square + (n - nonterminal) * accepted.mean_weight**2) / n
    else:
        mean_square = (1.0 - ending) * accepted.mean_square + ending * accepted.mean_weight**2
    return accepted._replace(rows=rows, mean_square=mean_square)


def effective_sample_size(drawn: Accepted, problem: Problem) -> Float[Array, ""]:
    """Return how many rows of `problem` count, at most all of them, by the weights of the minibatch `drawn`."""
    # Of a minibatch's weights, so that chance may take it beyond all rows where these are few.
    share = jnp.minimum(drawn.mean_weight**2 / jnp.maximum(drawn.mean_square, 1e-30), 1.0)
    return problem.counts.in_sample * share


def loss_weights(drawn: Accepted, means: RowMeans | None, problem: Problem) -> Float[Array, " batch"]:
    """Return how much each place of the minibatch `drawn` counts in the loss: 0 or 1, or a bootstrap weight.

    The rows of `problem` that go on were drawn in proportion to their bootstrap weights. The terminal rows, which
    are few and need no table to draw from, were drawn uniformly: they count by their weights, in units of their mean
    (`means` is None without a bootstrap). A place that stayed empty counts 0.
    """
    filled = drawn.filled.astype(jnp.float32)
    weights = row_weights(problem, drawn.rows)
    if weights is None or means is None:
        return filled
    return filled * jnp.where(drawn.rows < problem.counts.nonterminal, 1.0, weights / means.terminal)


def _multiples(problem: Problem) -> Float[Array, " nonterminal"] | None:
    """Return how often a bootstrap counts each row that goes on, with mean 1; None without a bootstrap."""
    weights = row_weights(problem, slice(problem.counts.nonterminal))
    return None if weights is None else weights / jnp.mean(weights)


@jax.custom_batching.custom_vmap
def _in_any_seed(flag: Array) -> Array:
    """Return whether any of the seeds under a vmap raises the flag: one answer, so that a branch stays one."""
    return flag


@_in_any_seed.def_vmap
def _(size: int, batched: list[bool], flag: Array) -> tuple[Array, bool]:
    return jnp.any(flag), False
