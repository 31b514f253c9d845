"""The Bayesian bootstrap over episodes: every seed sees the log with weights of its own.

Rows of one episode depend on each other, episodes do not: so it is episodes that are drawn again. A weight is
Exp(1), divided by the mean over episodes (Rubin 1981): a smooth version of drawing episodes with replacement,
with the same mean and, in all but few episodes, the same spread. Unlike that it never drops an episode, so what
is defined on the log is defined on every reweighted one, however few its episodes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from kmifqe.problem import Problem

STREAM = 2**31 - 2  # folded into a seed's key: no step and no initial network shares this randomness


class RowMeans(NamedTuple):
    """Mean episode weight of groups of rows; 1 over all rows only where all episodes are equally long."""

    in_sample: Float[Array, ""]
    terminal: Float[Array, ""]  # of the in-sample rows that terminated; 1 where there are none
    ending: Float[Array, ""]  # share of the in-sample weight that the terminal rows hold


def bootstrapped(problem: Problem, keys: Array) -> Problem:
    """Return the problem with episode weights for the seed of every key, shape (seeds, episodes)."""
    episodes = problem.first_states.shape[0]

    def of_seed(key: Array) -> Array:
        weights = jax.random.exponential(jax.random.fold_in(key, STREAM), (episodes,))
        return weights / jnp.mean(weights)

    return replace(problem, episode_weights=jax.vmap(of_seed)(keys))


def of_seed(problem: Problem, weights: Array | None) -> Problem:
    """Return the problem as one seed sees it: all seeds share the arrays, each has its own weights or none."""
    return replace(problem, episode_weights=weights)


def row_weights(
    problem: Problem, rows: Array | slice, mean: Float[Array, ""] | None = None
) -> Float[Array, " rows"] | None:
    """Return the rows' episode weights, divided by `mean` where it is given; None where there are none."""
    if problem.episode_weights is None:
        return None
    weights = problem.episode_weights[problem.episode[rows]]
    return weights if mean is None else weights / mean


def row_means(problem: Problem) -> RowMeans | None:
    """Return what the weights of single rows are measured against, None where there are no weights."""
    weights = row_weights(problem, slice(problem.counts.in_sample))
    if weights is None:
        return None
    ends = weights[problem.counts.going_on :]
    total = jnp.sum(weights)
    terminal = jnp.mean(ends) if len(ends) else jnp.float32(1.0)
    return RowMeans(total / len(weights), terminal, jnp.sum(ends) / total)


def mean_over_rows(
    terms: Float[Array, " rows *columns"], weights: Float[Array, " rows"] | None
) -> Float[Array, ""]:
    """Return the mean of the terms, each row's times its weight where there are weights, whose mean is 1."""
    if weights is None:
        return jnp.mean(terms)
    return jnp.mean(weights.reshape(-1, *[1] * (terms.ndim - 1)) * terms)
