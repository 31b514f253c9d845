"""How far V̂ would move with another log: what each logged episode does to it, by the last layer of its networks.

Q is linear in the outputs φ(s, a) of a network's last hidden layer. With φ held, fitted Q evaluation is a linear
regression, θ = A⁻¹b with A = mean w φ (φ − γφ')ᵀ and b = (1 − γ) mean w φ r, and V̂ = νᵀθ with ν the mean of φ over
first states and the target's actions there. One row more or less then moves V̂ by its influence

    νᵀA⁻¹ φ w δ / n,    δ = (1 − γ) r + γ Q(s', π̃(s')) − Q(s, a),

and a first state by (Q(s₀, π̃(s₀)) − V̂)/m. The influences of an episode's rows are added up, because they depend on
each other, and V̂'s variance over logs like this one is the sum of the episodes' squares (docs/concepts/intervals.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array, Float

from kmifqe.estimators.base import Estimate, Estimator, state_of_seed
from kmifqe.mdp.problem import Problem

NETWORKS = (
    4  # looked at, at most: their influences are averaged, which the log decides and not a network's chance
)
ROWS = 50_000  # looked at, at most, of whole episodes
# Of the features' mean square, times 1 − γ, added to A: directions that the log hardly shows would else be blown up.
RIDGE = 0.1
BLOCK = 1024  # rows whose products are added up in single precision


class ChanceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How far V̂ is from what a log without end would give, in units of V̂."""

    log_std: float  # standard deviation of V̂ over logs of as many episodes
    first_std: float  # the part of it that is the choice of first states
    unsolved: float  # the sum of all influences: what a step of least squares would still add to V̂
    # νᵀA⁻¹φ w of a row estimates how often the target visits it for every visit of the log's controller.
    visited_rows: float  # Kish's effective sample size of these ratios, in rows
    negative_visits: float  # share of their absolute sum that is negative, which no visit can be: 0 to 0.5
    between_std: float = 0.0  # of an average over estimators: their standard deviation around it
    # What each of `chosen_episodes` does to V̂: the squares add up to log_std², and products with the moves of another
    # policy's V̂ from the same log to their covariance. Empty where the record was made without them.
    moves: tuple[float, ...] = ()


class _Rows(NamedTuple):
    """Rows of whole episodes, chosen evenly where the log has too many."""

    rows: np.ndarray
    episode: np.ndarray  # of each row, counted among the chosen ones
    chosen: np.ndarray  # the chosen episodes


def chance_facts(estimator: Estimator, estimate: Estimate, problem: Problem) -> ChanceFacts | None:
    """Return how far V̂ would move with another log; None where the estimator offers no features of its Q.

    `estimator` made the `estimate` of the `problem`.
    """
    if estimator.features is None or estimator.q is None or estimate.final_state is None:
        return None
    positions = np.flatnonzero(np.isfinite(estimate.values))[:NETWORKS]
    seen = _chosen_rows(problem, in_sample=estimator.kernel is not None)
    if len(positions) == 0 or len(seen.chosen) < 2:
        return None
    each = [
        _influences(estimator, state_of_seed(estimate.final_state, int(p)), problem, seen) for p in positions
    ]
    of_rows, of_first, ratios = (np.mean(column, axis=0) for column in zip(*each, strict=True))
    if not np.isfinite(np.concatenate([of_rows, of_first, ratios])).all():
        return None
    # The chosen episodes stand for all: a mean over m of them has this share of the variance of one over the chosen.
    episodes, chosen = problem.first_states.shape[0], len(seen.chosen)
    share = chosen / episodes * chosen / (chosen - 1)
    total = of_rows + of_first
    moves = np.sqrt(share) * (total - total.mean())
    return ChanceFacts(
        log_std=float(np.sqrt(np.sum(moves**2))),
        first_std=float(np.sqrt(share * np.sum(of_first**2))),
        unsolved=float(of_rows.sum()),
        visited_rows=_effective_rows(ratios) * problem.counts.used / len(ratios),
        negative_visits=float(np.maximum(-ratios, 0.0).sum() / max(np.abs(ratios).sum(), 1e-300)),
        moves=tuple(float(f"{move:.6g}") for move in moves),  # more digits would only make the record longer
    )


def moves_of_mean(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return what each of the `chosen` episodes does to the mean of `values`, one a logged episode.

    They go with `ChanceFacts.moves`: squares add up to the variance of the mean over logs, products to covariances.
    """
    seen = values[chosen]
    share = len(chosen) / len(values) * len(chosen) / max(len(chosen) - 1, 1)
    return np.asarray(np.sqrt(share) * (seen - seen.mean()) / len(chosen))


def chosen_episodes(rows: int, episodes: int) -> np.ndarray:
    """Return the episodes looked at, evenly chosen, of a log with so many usable `rows` and `episodes`."""
    return np.arange(0, episodes, -(-rows // ROWS))


def _chosen_rows(problem: Problem, *, in_sample: bool) -> _Rows:
    n = problem.counts.in_sample if in_sample else problem.counts.used
    episode = np.asarray(problem.episode)[:n]
    every = -(-problem.counts.used // ROWS)
    rows = np.flatnonzero(episode % every == 0)
    chosen = chosen_episodes(problem.counts.used, problem.first_states.shape[0])
    return _Rows(rows, episode[rows] // every, chosen)


def _influences(
    estimator: Estimator, state: object, problem: Problem, seen: _Rows
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how far each chosen episode's rows, and its first state, move V̂ of one network, and rows' ratios."""
    assert estimator.features is not None
    assert estimator.q is not None
    rows, gamma = seen.rows, float(problem.gamma)
    nonterminal = ~np.asarray(problem.terminated)[rows]
    now = jnp.asarray(problem.states[rows]), jnp.asarray(problem.actions[rows])
    later = jnp.asarray(problem.next_states[rows]), jnp.asarray(problem.target_actions[rows])
    first = problem.first_states[seen.chosen], problem.first_actions[seen.chosen]

    def asked(function: Callable[..., Any], at: tuple[object, object]) -> Any:
        return function(state, problem, *at)

    phi, phi_later, phi_first = (_with_constant(asked(estimator.features, at)) for at in (now, later, first))
    q, q_later, q_first = (np.asarray(asked(estimator.q, at), np.float64) for at in (now, later, first))
    weights = _weights(estimator, state, problem, rows, nonterminal)
    rewards = np.asarray(problem.rewards, np.float64)[rows]
    td_errors = (1.0 - gamma) * rewards + gamma * nonterminal * q_later - q
    shares = weights / len(rows)
    squares, ahead = _products(phi, phi_later, jnp.asarray(shares), jnp.asarray(shares * nonterminal))
    A = squares - gamma * ahead
    A += RIDGE * (1.0 - gamma) * np.trace(squares) / len(A) * np.eye(len(A))
    try:
        direction = np.linalg.solve(A.T, np.asarray(phi_first, np.float64).mean(axis=0))
    except np.linalg.LinAlgError:  # no row has a weight: nothing can be told, which NaN says
        direction = np.full(len(A), np.nan)
    ratios = shares * (np.asarray(phi) @ direction)
    of_rows = np.bincount(seen.episode, ratios * td_errors, len(seen.chosen))
    return of_rows, (q_first - q_first.mean()) / len(seen.chosen), len(rows) * ratios


@jax.jit
def _with_constant(features: Float[Array, "n k"]) -> Float[Array, "n k+1"]:
    return jnp.concatenate([features, jnp.ones((len(features), 1), features.dtype)], axis=1)


def _products(
    phi: Float[Array, "n k"], phi_later: Float[Array, "n k"], shares: Array, shares_ahead: Array
) -> tuple[np.ndarray, np.ndarray]:
    """Return Σ w φφᵀ and Σ w φφ'ᵀ of weighted rows.

    The device multiplies blocks of rows in single precision, and their products are added up in double: the sums of
    50,000 rows then have the digits that solving for A⁻¹ν needs, at a fraction of the time of doubles throughout.
    """
    blocks = _block_products(phi, phi_later, shares, shares_ahead)
    squares, ahead = (np.asarray(each).sum(axis=0, dtype=np.float64) for each in blocks)
    return squares, ahead


@jax.jit
def _block_products(phi: Array, phi_later: Array, shares: Array, shares_ahead: Array) -> tuple[Array, Array]:
    def in_blocks(x: Array) -> Array:
        missing = -len(x) % BLOCK
        return jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)).reshape(-1, BLOCK, *x.shape[1:])

    now, later = in_blocks(phi), in_blocks(phi_later)
    product = partial(jnp.einsum, "bri,br,brj->bij", precision=jax.lax.Precision.HIGHEST)
    return product(now, in_blocks(shares), now), product(now, in_blocks(shares_ahead), later)


def _effective_rows(ratios: np.ndarray) -> float:
    largest = max(float(np.abs(ratios).max()), 1e-300)
    return float(np.sum(ratios / largest) ** 2 / max(float(np.sum((ratios / largest) ** 2)), 1e-300))


def _weights(
    estimator: Estimator, state: object, problem: Problem, rows: np.ndarray, nonterminal: np.ndarray
) -> np.ndarray:
    """Return how much each row counts in training, with mean 1."""
    weights = np.ones(len(rows))
    if estimator.kernel is None or not nonterminal.any():
        return weights
    weights[nonterminal] = estimator.kernel.importance_weights(state, problem, jnp.asarray(rows[nonterminal]))
    weights[~nonterminal] = weights[nonterminal].mean()
    return weights / max(float(weights.mean()), 1e-300)
