"""Checks of training: whether V̂ converged, and whether Q agrees with itself along logged episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from kmifqe.estimators.base import Estimate, Estimator, bootstrapped, state_of_seed
from kmifqe.io.format import digits, number, percent
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import ROUNDING
from kmifqe.trust.checks.base import Check, Reach, Thresholds, half_widths
from kmifqe.trust.checks.log import in_time_order
from kmifqe.trust.checks.overlap import NextActions, root_mean_square, whitening
from kmifqe.trust.influence import ChanceFacts

LAST = 0.75  # where the last quarter of a run begins
FAR = 100.0  # a seed this many typical distances from the median has run away
KEPT_SEEDS = 3  # networks whose Q is looked at; one of the paper's size takes 0.3 MB in a landscape
TD_ROWS = 20_000  # looked at for held-out TD errors
HELD_OUT_EPISODES = 0.2  # of the episodes, those with the least weights
EARLY_ROWS = 40_000  # looked at along episodes, at most
NEGLIGIBLE = 0.01  # a discount at which a TD error no longer matters for V̂
NEAR = 0.5  # standard deviation of the weight of rows near the target's action, in typical logged distances
SIGNIFICANT = 2.0  # standard errors that are left to chance

DIVERGED = (
    "a seed without a finite value is an estimator that does not converge on this log; others may do the same"
)
RAN_AWAY = "seeds differ by chance only; a hundred times their usual distance is no chance"
ARRIVED = Thresholds(
    0.98,
    0.8,
    "each copy of the target network lets one more step of the future in: c copies 1 − γᶜ of the value, t soft steps "
    "1 − (1 − τ(1 − γ))ᵗ; 2 % missing is within most intervals, 20 % is not",
    below=True,
)
MOVED = Thresholds(
    1.0, 5.0, "what moves by more than the seeds differ, or 1 %, in a quarter of the run will go on moving"
)
START = Thresholds(
    0.27,
    1.2,
    "along logged episodes a right Q's TD errors cancel; what is left over is missing from V̂, or too much in it. A "
    "bias of 0.27 of the half-width lowers a 95 % interval's coverage to 91 %, 1.2 of it puts the truth outside",
)
HELD_OUT = Thresholds(
    1.5, 3.0, "TD errors half as large again on other episodes mean that Q has learned the log by heart"
)
UNSOLVED = Thresholds(
    0.5,
    2.0,
    "what least squares on Q's own features would still add to V̂ is what more steps would add; of 278 fits that ran "
    "to their end 13 were above half of the half-width (the half of the study that is for choosing)",
)
STATES = Thresholds(
    0.25,
    0.6,
    "a policy visits no state a negative number of times; where the log's rows can only be put together so that it "
    "does, it goes where the log never was, and Q is made up there",
)

Q = Callable[[np.ndarray, np.ndarray], np.ndarray]  # states (n, q), actions (n, d) -> Q (n,), in units of V̂


class TdFacts(msgspec.Struct, frozen=True, kw_only=True):
    """TD errors over 1 − γ, which is how far they move V̂, on episodes that a seed was trained on and on others."""

    td_rms_trained: float
    td_rms_held_out: float


class StartFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What Q misses of its own promise along logged episodes, in units of V̂, with its standard error."""

    start_td: float
    start_td_error: float


def trained_q(estimator: Estimator, estimate: Estimate, problem: Problem) -> dict[int, Q]:
    """Return the Q functions that were trained, by the positions of the first KEPT_SEEDS seeds with a finite value.

    `estimator`, which made the `estimate` of the `problem`, evaluates its networks exactly as in training. There are
    none where it learns no Q, or where the estimate has no final state because it was read from disk.
    """
    trained = estimator.q
    if trained is None or estimate.final_state is None:
        return {}

    def q(position: int, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        state = state_of_seed(estimate.final_state, position)
        return np.asarray(trained(state, problem, jnp.asarray(states), jnp.asarray(actions)))

    kept = np.flatnonzero(np.isfinite(estimate.values))[:KEPT_SEEDS]
    return {int(position): partial(q, int(position)) for position in kept}


def td_facts(estimator: Estimator, estimate: Estimate, problem: Problem) -> TdFacts | None:
    """Return TD errors on held-out and other episodes; None without a bootstrap or without a Q.

    `estimator` made the `estimate` of the `problem`.
    """
    networks = trained_q(estimator, estimate, problem) if estimate.bootstrap else {}
    if not networks:
        return None
    in_sample = estimator.kernel is not None
    n = problem.counts.in_sample if in_sample else problem.counts.used
    rng = np.random.default_rng(0)
    rows = np.arange(n) if n <= TD_ROWS else np.sort(rng.choice(n, TD_ROWS, replace=False))
    nonterminal, episode = ~np.asarray(problem.terminated)[rows], np.asarray(problem.episode)[rows]
    keys = jnp.stack([jax.random.key(int(estimate.seeds[position])) for position in networks])
    episode_weights = np.asarray(bootstrapped(problem, keys).episode_weights)
    next_actions = problem.next_actions if in_sample else problem.target_actions
    found = []
    for (position, q), drawn in zip(networks.items(), episode_weights):
        errors = _td_errors(q, problem, rows, next_actions[rows])
        weights = np.ones(len(rows))
        if estimator.kernel is not None and nonterminal.any():
            of = state_of_seed(estimate.final_state, position), problem, jnp.asarray(rows[nonterminal])
            weights[nonterminal] = np.asarray(estimator.kernel.importance_weights(*of))
            weights[~nonterminal] = weights[nonterminal].mean()
        held_out = (drawn <= np.quantile(drawn, HELD_OUT_EPISODES))[episode]
        if held_out.any() and not held_out.all():
            found.append([_weighted_rms(errors, weights, part) for part in (~held_out, held_out)])
    means = np.mean(found, axis=0) / (1.0 - float(problem.gamma)) if found else np.array([np.nan])
    if not np.isfinite(means).all():
        return None
    return TdFacts(td_rms_trained=float(means[0]), td_rms_held_out=float(means[1]))


def start_facts(
    estimator: Estimator, estimate: Estimate, problem: Problem, near: NextActions
) -> StartFacts | None:
    """Return what V̂ misses along logged episodes; None without a Q.

    `estimator` made the `estimate` of the `problem`; `near` tells how far apart logged actions lie.
    """
    networks = trained_q(estimator, estimate, problem)
    if not networks:
        return None
    early, gamma = _early_rows(problem), float(problem.gamma)
    targets = problem.target_actions[early.rows]
    errors = np.mean([_td_errors(q, problem, early.rows, targets) for q in networks.values()], axis=0)
    distance = root_mean_square((np.asarray(problem.actions[early.rows]) - early.targets) @ whitening(near).T)
    missed, error = _discounted_mean(errors, np.exp(-0.5 * (distance / NEAR) ** 2), early, gamma)
    return StartFacts(start_td=missed, start_td_error=error) if np.isfinite([missed, error]).all() else None


def _td_errors(q: Q, problem: Problem, rows: np.ndarray, next_actions: Any) -> np.ndarray:
    """Return (1−γ) r + γ Q(s', a') − Q(s, a) of rows, a' the next action that is given."""
    now = q(np.asarray(problem.states[rows]), np.asarray(problem.actions[rows]))
    later = q(np.asarray(problem.next_states[rows]), np.asarray(next_actions))
    gamma, nonterminal = float(problem.gamma), ~np.asarray(problem.terminated)[rows]
    return (1.0 - gamma) * np.asarray(problem.rewards, np.float64)[rows] + gamma * nonterminal * later - now


def _weighted_rms(errors: np.ndarray, weights: np.ndarray, part: np.ndarray) -> float:
    total = max(float(weights[part].sum()), 1e-300)
    return float(np.sqrt(np.sum(weights[part] * errors[part] ** 2) / total))


class _Early(NamedTuple):
    """Rows of whole episodes while their discount matters."""

    rows: np.ndarray
    time: np.ndarray  # steps since the episode began
    episode: np.ndarray
    targets: np.ndarray  # (n, d): π̃(s_t)
    ends: np.ndarray  # bool: the episode terminates here


def _early_rows(problem: Problem) -> _Early:
    """Return the early rows of all episodes, or of evenly chosen ones where they are too many."""
    gamma, (order, episodes, time) = float(problem.gamma), in_time_order(problem)
    early = time <= (np.log(NEGLIGIBLE) / np.log(gamma) if gamma > 0.0 else 0.0)
    every = -(-int(early.sum()) // EARLY_ROWS)
    kept = np.flatnonzero(early & (episodes % every == 0))
    first, before = time[kept] == 0, order[np.maximum(kept - 1, 0)]
    # Where rows were lost, the row before does not lead to this one, and the target's action here is not known.
    states = np.asarray(problem.states[order[kept]])
    gaps = np.abs(np.asarray(problem.next_states[before]) - states)
    led_to = (gaps <= ROUNDING * np.abs(states).max(axis=0, initial=0.0)).all(axis=1)
    kept, first, before = (each[first | led_to] for each in (kept, first, before))
    targets = np.asarray(problem.target_actions[before])
    targets = np.where(first[:, None], np.asarray(problem.first_actions)[episodes[kept]], targets)
    ends = np.asarray(problem.terminated)[order[kept]]
    return _Early(order[kept], time[kept], episodes[kept], targets, ends)


def _discounted_mean(errors: np.ndarray, g: np.ndarray, early: _Early, gamma: float) -> tuple[float, float]:
    """Return Σ_t γᵗ Σ g δ_t / Σ g over episodes, and its standard error with episodes as units.

    Time t counts as far as episodes get there without terminating. Where they are cut before the discount has
    faded, what was seen stands for the rest: the sum is divided by the share of the discounts that it covers.
    """
    total = np.maximum(np.bincount(early.time, weights=g), 1e-300)
    means = np.bincount(early.time, weights=g * errors) / total
    continuing = 1.0 - np.bincount(early.time, weights=early.ends) / np.bincount(early.time)
    reached = gamma ** np.arange(len(means) + 1) * np.cumprod([1.0, *continuing])
    discounts = reached[:-1] / (1.0 - reached[-1])
    scatter = discounts[early.time] * g * (errors - means[early.time]) / total[early.time]
    by_episode = np.bincount(early.episode, weights=scatter)
    return float(discounts @ means), float(np.sqrt(np.sum(by_episode**2)))


def without_diverged(estimate: Estimate) -> Estimate:
    """Return the estimate of the seeds that ended with a finite value, which trained apart; all if none did."""
    finite = np.isfinite(estimate.values)
    if finite.all() or not finite.any():
        return estimate
    return replace(
        estimate,
        seeds=tuple(seed for seed, kept in zip(estimate.seeds, finite) if kept),
        values=estimate.values[finite],
        trajectory=estimate.trajectory[:, finite],
        infos={name: series[:, finite] for name, series in estimate.infos.items()},
        final_state=None,
    )


def training_checks(estimate: Estimate, arrived: float | None) -> list[Check]:
    """Return the checks of convergence: seeds that diverged are named, the rest is about the others.

    `arrived` is the largest share of the value that can have reached Q; None where the estimator does not say.
    """
    found: list[Check | None] = [_diverged(estimate, arrived)]
    if np.isfinite(estimate.values).any():
        healthy = without_diverged(estimate)
        copies = None if arrived is None else _copies(healthy, arrived)
        found += [_ran_away(healthy), copies, _moving(healthy)]
    return [check for check in found if check is not None]


def consistency_checks(
    td: TdFacts | None, start: StartFacts | None, chance: ChanceFacts | None, reach: Reach | None
) -> list[Check]:
    """Return the checks of whether Q agrees with itself and with the log, each where it was measured.

    `td` are TD errors on held-out episodes, `start` along episodes, and `chance` says what least squares would add to
    V̂ and where the target goes. `reach` is that of V̂'s interval, None where there is no interval.
    """
    found = []
    if start is not None and reach is not None:
        found.append(_start(start, reach))
    if td is not None:
        found.append(_held_out(td))
    if chance is not None:
        found.append(_states(chance))
        if reach is not None:
            found.append(_unsolved(chance, reach))
    return found


def _diverged(estimate: Estimate, arrived: float | None) -> Check:
    lost = ~np.isfinite(estimate.values)
    count, seeds = int(lost.sum()), len(lost)
    advice = "Lower the learning rate, or renew the target network more slowly, and look for extreme rewards."
    if not count:
        finding = "Every seed ended with a finite value."
    elif arrived == 0.0:
        finding = f"{estimate.steps:,} steps are too few for this estimator: there is no value yet."
        advice = f"Train for more steps than {estimate.steps:,}."
    elif count == seeds:
        finding = f"{_names(estimate, lost)} diverged: there is no value."
    else:
        spread = f" ± {number(estimate.spread)}" if len(estimate.known) > 1 else ""
        finding = (
            f"{count} of {seeds} seeds diverged ({_names(estimate, lost).lower()}); V̂ of the remaining "
            f"{len(estimate.known)} is {number(estimate.value)}{spread}."
        )
    threshold = "care from 1 seed, bad from half of them"
    thresholds = Thresholds(0, -(-seeds // 2) - 1, DIVERGED)
    return thresholds.check("diverged", count, finding, advice, threshold=threshold)


def _ran_away(estimate: Estimate) -> Check | None:
    """Name seeds far from all others: finite still, but diverging."""
    if len(estimate.values) < 3:
        return None
    distance = np.abs(estimate.values - np.median(estimate.values))
    typical = max(float(np.median(distance)), 1e-3 * abs(float(np.median(estimate.values))))
    far = distance > FAR * typical
    if typical == 0 or not far.any():
        return None
    return Thresholds(0, -(-len(far) // 5) - 1, RAN_AWAY).check(
        "ran_away",
        int(far.sum()),
        f"{_names(estimate, far)} ended at {', '.join(digits(v) for v in estimate.values[far])}, far from the other "
        f"seeds' median {number(float(np.median(estimate.values[~far])))}: diverging.",
        "Lower the learning rate or renew the target network more slowly; dropping these seeds mends nothing.",
        threshold=f"care from one seed {FAR:g} times as far as the others, bad from a fifth of them",
    )


def _copies(estimate: Estimate, arrived: float) -> Check:
    """Say when the target network was renewed too seldom: a copy contracts by γ, a soft step by 1 − τ(1 − γ)."""
    steps, gamma = f"{estimate.steps:,} steps", f"gamma {estimate.gamma:g}"
    finding = (
        f"In {steps} the target network can have passed on at most {arrived:.0%} of the value at {gamma}."
    )
    advice = "Train for more steps, or renew the target network faster (smaller target_period, larger tau)."
    return ARRIVED.check("target_copies", arrived, finding, advice)


def _moving(estimate: Estimate) -> Check | None:
    """Say when V̂ moved over the last quarter by more than the seeds differ."""
    late = int(np.searchsorted(estimate.recorded_steps, LAST * estimate.steps))
    earlier = estimate.trajectory[min(late, len(estimate.trajectory) - 1)]
    if not np.isfinite(earlier).all():
        return None
    moved = float(np.mean(estimate.trajectory[-1] - earlier))  # a mean over the last steps would hide it
    noise = estimate.spread if len(estimate.values) > 1 else 0.0
    allowed = max(noise, 0.01 * abs(estimate.value))
    ratio = abs(moved) / allowed if allowed > 0 else float(moved != 0)
    more_than = ""
    if MOVED.level(ratio) != "ok":
        more_than = f", more than the seeds differ ({digits(noise)})" if noise else ", more than 1 % of it"
    finding = f"V̂ moved by {moved:+.3g} over the last quarter of the steps{more_than}."
    advice = "Train for more steps, or let the learning rate fall towards the end, until V̂ stays where it is."
    return MOVED.check("drift", ratio, finding, advice, shown=digits)


def _start(facts: StartFacts, reach: Reach) -> Check:
    missed, error = facts.start_td, facts.start_td_error
    finding = (
        f"Followed along logged episodes, V̂ seems {digits(abs(missed))} ± {digits(error)} too "
        f"{'low' if missed > 0 else 'high'}; {reach.said}."
    )
    return START.check(
        "start_td",
        reach.held_against(max(0.0, abs(missed) - SIGNIFICANT * error)),
        finding,
        "Train for more steps or with a larger network; more logged episodes help where episodes begin.",
        shown=lambda x: f"{half_widths(x)} beyond chance",
    )


def _unsolved(facts: ChanceFacts, reach: Reach) -> Check:
    ratio = reach.held_against(facts.unsolved)
    finding = f"By least squares, more training would move V̂ by about {facts.unsolved:+.2g}; {reach.said}"
    finding += (
        ": training stopped too early, or the log is too small for it." if ratio > UNSOLVED.care else "."
    )
    advice = "Train for more steps (--steps, --minutes); if V̂ does not settle, log more rows near the target."
    return UNSOLVED.check("unsolved", ratio, finding, advice, shown=half_widths)


def _states(facts: ChanceFacts) -> Check:
    share = facts.negative_visits
    finding = (
        "To weight the logged rows like the target's visits, weights below 0 are needed that make up "
        f"{percent(share)} of all weight"
    )
    finding += ": the target goes where the log never was." if share > STATES.care else "."
    advice = (
        "Log episodes that reach the target's states: with the target plus noise, or from later first states."
    )
    return STATES.check("state_coverage", share, finding, advice)


def _held_out(facts: TdFacts) -> Check:
    ratio = facts.td_rms_held_out / max(facts.td_rms_trained, 1e-300)
    finding = (
        f"Q's errors from step to step are {digits(ratio)} times as large on episodes that training hardly saw as on "
        "others."
    )
    advice = "Log more episodes, or use a smaller network or fewer steps: Q has learned the log by heart."
    return HELD_OUT.check("held_out_td", ratio, finding, advice, shown=digits)


def _names(estimate: Estimate, which: np.ndarray) -> str:
    names = [str(seed) for seed, chosen in zip(estimate.seeds, which) if chosen]
    return f"Seed{'s' if len(names) > 1 else ''} {', '.join(names)}"
