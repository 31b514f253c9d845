"""What the controller that made the log was worth, and whether a policy is better than that.

The logged controller's value is the mean over logged episodes of their discounted returns. It comes from the same
episodes as V̂, so what another log would change moves both, and their difference is known better than either
(`trust.ranking`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from scipy.special import stdtrit

from kmifqe.estimators.base import Estimate, bootstrapped
from kmifqe.io.format import number
from kmifqe.mdp.problem import Problem
from kmifqe.trust.influence import chosen_episodes, moves_of_mean
from kmifqe.trust.ranking import PolicyValue, joint, least_error, moves_of
from kmifqe.trust.verdict import WORDS, Verdict

Answer = Literal["better", "worse", "cannot tell"]


@dataclass(frozen=True)
class LoggedController:
    """What the log says of the controller that made it."""

    returns: np.ndarray  # (episodes,): normalised returns (`mdp.returns.credited_returns`)
    values: np.ndarray  # (networks,): their mean by the episode weights of each seed
    moves: np.ndarray  # of the mean, as `ChanceFacts.moves`


class LoggedValue(msgspec.Struct, frozen=True):
    """What the controller that made the log was worth: the mean return of its episodes."""

    value: float
    low: float
    high: float
    episodes: int
    return_std: float  # standard deviation of one episode's normalised return


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A policy beside the controller that made the log; values are normalised per step."""

    logged: LoggedValue
    difference: float  # the policy's value less the logged controller's
    low: float
    high: float
    answer: Answer  # whether the interval of the difference lies above 0, below it, or neither
    is_usable: bool  # False where the policy's value is not to be used: then the answer is "cannot tell"


def logged_controller(problem: Problem, returns: np.ndarray, seeds: Sequence[int]) -> LoggedController:
    """Return what the `returns` of logged episodes say of their controller, also by each network's weights of them.

    `problem` was built from the log, `seeds` are those of the networks that judge a policy on it.
    """
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    weights = np.asarray(bootstrapped(problem, keys).episode_weights, np.float64)
    values = weights @ returns / weights.sum(axis=1)
    chosen = chosen_episodes(problem.counts.used, len(returns))
    return LoggedController(returns, values, moves_of_mean(returns, chosen))


def logged_value(returns: np.ndarray, level: float) -> LoggedValue:
    """Return what the controller that made the log was worth, by the normalised `returns` of its episodes."""
    count = len(returns)
    std = float(returns.std(ddof=1)) if count > 1 else 0.0
    half = float(stdtrit(count - 1, 0.5 + 0.5 * level)) * std / np.sqrt(count) if count > 1 else 0.0
    mean = float(returns.mean())
    return LoggedValue(mean, float(mean - half), float(mean + half), count, std)


def compared_with_logged(
    estimate: Estimate, verdict: Verdict, logged: LoggedController, level: float
) -> Comparison:
    """Return whether the policy of `estimate` is better than the `logged` controller, at this `level`.

    Where the `verdict` forbids the use of the estimate, or it has no spread over networks, nothing can be told.
    """
    worth = logged_value(logged.returns, level)
    if int(np.isfinite(estimate.values).sum()) < 2 or len(logged.returns) < 2:
        nothing = float("nan")
        return Comparison(
            logged=worth, difference=nothing, low=nothing, high=nothing, answer="cannot tell", is_usable=False
        )
    chance = None if estimate.measurements is None else estimate.measurements.chance
    between = 0.0 if chance is None else chance.between_std
    policy = PolicyValue(
        np.where(np.isfinite(estimate.values), estimate.values, np.nan),
        moves_of(estimate),
        least_error(estimate),
        weights={estimate.estimator: 1.0},
        deviations={estimate.estimator: between},
    )
    known = joint([policy, PolicyValue(logged.values, logged.moves)], len(logged.returns))
    # The plain mean over episodes is the logged controller's value, not its mean over the networks' weights.
    shift = known.values[1] - worth.value
    difference, low, high = (each + shift for each in known.difference(0, 1, level))
    is_usable = verdict.word != WORDS[-1]
    answer: Answer = "better" if low > 0.0 else "worse" if high < 0.0 else "cannot tell"
    return Comparison(
        logged=worth,
        difference=difference,
        low=low,
        high=high,
        answer=answer if is_usable else "cannot tell",
        is_usable=is_usable,
    )


def comparison_sentence(found: Comparison, level: float) -> str:
    """Return the comparison in a sentence; `level` is that of its intervals."""
    logged, percent = found.logged, f"{100 * level:.4g} %"
    size = max(abs(logged.low), abs(logged.high))
    worth = (
        f"The logged controller earned {number(logged.value, size)} per step ({percent} interval "
        f"{number(logged.low, size)} … {number(logged.high, size)}): "
    )
    if not found.is_usable:
        return f"{worth}whether the policy is better cannot be told, because its value is not to be used."
    width = max(abs(found.low), abs(found.high))
    by = f"the difference is {number(found.difference, width, sign=True)} ({number(found.low, width, sign=True)} … "
    by += f"{number(found.high, width, sign=True)})"
    words = {"better": "the policy is better", "worse": "the policy is worse"}
    return f"{worth}{words.get(found.answer, 'whether the policy is better cannot be told')}; {by}."
