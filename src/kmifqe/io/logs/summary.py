"""What a person should know about a log before trusting an estimate made from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kmifqe.errors import InputError
from kmifqe.io.logs.fault_signs import LogFaults, log_faults
from kmifqe.io.logs.faults import faults_found
from kmifqe.io.logs.time_order import TimeOrdered
from kmifqe.mdp.ask import seen_range
from kmifqe.mdp.columns import row_slices
from kmifqe.mdp.transitions import Transitions

_ATOM_SHARE = 1e-3  # of the rows: below it, repeated extremes are float32's coarseness rather than clipping


@dataclass(frozen=True)
class Spread:
    """Smallest, mean, largest and standard deviation of the finite values."""

    low: float
    mean: float
    high: float
    std: float


@dataclass(frozen=True)
class ActionRange:
    """One action dimension: the range attained, and how many rows sit exactly on a repeated extreme."""

    low: float
    high: float
    at_low: int
    at_high: int


@dataclass(frozen=True)
class DatasetSummary:
    """What `inspect` found; every count is in rows unless said otherwise."""

    name: str
    transitions: int
    episodes: int
    state_dim: int
    action_dim: int
    length_min: int
    length_median: float
    length_max: int
    terminated: int
    truncated: int
    rewards: Spread
    returns: Spread  # undiscounted, per episode
    actions: tuple[ActionRange, ...]
    rows_on_bound: int  # rows with at least one action dimension on a repeated extreme
    nan: dict[str, int]  # values, by field
    infinite: dict[str, int]  # values, by field
    constant_states: tuple[int, ...]  # column numbers
    constant_actions: tuple[int, ...]
    unusable: dict[str, int]  # reason -> rows that in-sample learning must drop
    no_next_state: int  # cut rows whose next state was not logged: FQE and SR-DICE must drop these too
    logged_densities: str  # "none", "total" or "per dimension"
    faults: LogFaults | None  # None where values are not finite, or no row can be used
    notes: tuple[str, ...]  # what the reader decided
    warnings: tuple[str, ...]  # what looks wrong


def inspect(transitions: Transitions) -> DatasetSummary:
    """Return a summary of a log; works on logs loaded with `check_finite=False` too."""
    lengths = np.bincount(transitions.episode)
    nan, infinite, bad_rows = _non_finite(transitions)
    actions = tuple(_action_range(transitions.actions[:, j]) for j in range(transitions.action_dim))
    rows_on_bound = _rows_on_bound(transitions.actions, actions)
    no_next_action = ~transitions.terminated & ~transitions.has_next_action
    unusable = {
        "the next action was not logged (last row of a cut episode, or before lost rows)": int(
            no_next_action.sum()
        ),
        "NaN or infinity in the row": int((bad_rows & ~no_next_action).sum()),
    }
    with np.errstate(invalid="ignore", over="ignore"):
        returns = np.bincount(transitions.episode, weights=transitions.rewards)
    log_mu = transitions.log_mu
    summary = DatasetSummary(
        name=transitions.name,
        transitions=len(transitions),
        episodes=transitions.n_episodes,
        state_dim=transitions.state_dim,
        action_dim=transitions.action_dim,
        length_min=int(lengths.min()),
        length_median=float(np.median(lengths)),
        length_max=int(lengths.max()),
        terminated=int(transitions.terminated.sum()),
        truncated=int(transitions.truncated.sum()),
        rewards=_spread(transitions.rewards),
        returns=_spread(returns),
        actions=actions,
        rows_on_bound=rows_on_bound,
        nan=nan,
        infinite=infinite,
        constant_states=_constant_columns(transitions.states),
        constant_actions=_constant_columns(transitions.actions),
        unusable={reason: count for reason, count in unusable.items() if count},
        no_next_state=int((~transitions.terminated & ~transitions.has_next_state).sum()),
        logged_densities="none" if log_mu is None else ("total" if log_mu.ndim == 1 else "per dimension"),
        faults=None if bad_rows.any() else _faults(transitions),
        notes=transitions.notes,
        warnings=(),
    )
    return _with_warnings(summary, transitions)


def _faults(transitions: Transitions) -> LogFaults | None:
    try:
        rows = TimeOrdered.of_transitions(transitions)
    except InputError:
        return None  # No row has a next state. The summary shows that, and whoever estimates refuses the log.
    return log_faults(rows)


def _with_warnings(summary: DatasetSummary, transitions: Transitions) -> DatasetSummary:
    n = summary.transitions
    warnings = []
    for _, finding, advice in () if summary.faults is None else faults_found(summary.faults):
        warnings.append(f"{finding}. {advice}")
    if any(summary.nan.values()) or any(summary.infinite.values()):
        warnings.append("the log holds NaN or infinity: estimators refuse it")
    atoms = [j for j, a in enumerate(summary.actions) if a.at_low + a.at_high > _ATOM_SHARE * n]
    if atoms:
        warnings.append(
            f"{summary.rows_on_bound / n:.1%} of the actions sit exactly on a bound (dimensions "
            f"{_listed(atoms)}): they were probably clipped, and their density has an atom there"
        )
    if not (summary.nan["actions"] or summary.infinite["actions"]):
        for j, column in enumerate(transitions.actions.T):
            outliers = seen_range(column)[2]
            if outliers:
                lie = "lie" if outliers > 1 else "lies"
                warnings.append(
                    f"{outliers:,} of the actions {lie} far outside all others in dimension {j}, which spans "
                    f"{summary.actions[j].low:.4g} to {summary.actions[j].high:.4g}: an error of the logger?"
                )
    if summary.constant_actions:
        warnings.append(
            f"action dimensions {_listed(summary.constant_actions)} never change: nothing is learned there"
        )
    if summary.episodes == 1:
        warnings.append("there is one episode, so the value rests on a single first state")
    if sum(summary.unusable.values()) > n / 2:
        warnings.append("more than half of the rows are unusable for in-sample learning")
    return replace(summary, warnings=tuple(warnings))


def _listed(numbers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")


def _spread(values: np.ndarray) -> Spread:
    finite = values[np.isfinite(values)].astype(np.float64)
    if finite.size == 0:
        return Spread(*[float("nan")] * 4)
    return Spread(float(finite.min()), float(finite.mean()), float(finite.max()), float(finite.std()))


def _action_range(column: np.ndarray) -> ActionRange:
    finite = column[np.isfinite(column)]
    if finite.size == 0:
        return ActionRange(float("nan"), float("nan"), 0, 0)
    low, high = finite.min(), finite.max()
    at_low, at_high = int((finite == low).sum()), int((finite == high).sum())
    if low == high:
        return ActionRange(float(low), float(high), 0, 0)
    return ActionRange(float(low), float(high), at_low if at_low > 1 else 0, at_high if at_high > 1 else 0)


def _rows_on_bound(actions: np.ndarray, ranges: tuple[ActionRange, ...]) -> int:
    on_bound = np.zeros(len(actions), bool)
    for column, bounds in zip(actions.T, ranges):
        if bounds.at_low:
            on_bound |= column == np.float32(bounds.low)
        if bounds.at_high:
            on_bound |= column == np.float32(bounds.high)
    return int(on_bound.sum())


def _constant_columns(values: np.ndarray) -> tuple[int, ...]:
    varies = np.zeros(values.shape[1], bool)
    for rows in row_slices(len(values), values.itemsize * values.shape[1]):
        varies |= (values[rows] != values[0]).any(axis=0)
    return tuple(int(j) for j in np.flatnonzero(~varies))


def _non_finite(transitions: Transitions) -> tuple[dict[str, int], dict[str, int], np.ndarray]:
    """Return NaN and infinity counts by field, and which rows hold any."""
    fields = {
        "observations": transitions.states,
        "actions": transitions.actions,
        "rewards": transitions.rewards,
        "next_observations": transitions.next_states,
        "action_log_probs": transitions.log_mu,
    }
    nan: dict[str, int] = {}
    infinite: dict[str, int] = {}
    bad_rows = np.zeros(len(transitions), bool)
    for field, array in fields.items():
        if array is None:
            continue
        nan[field] = infinite[field] = 0
        for rows in row_slices(len(array), array.itemsize * int(np.prod(array.shape[1:]))):
            block = array[rows].reshape(rows.stop - rows.start, -1)
            bad = ~np.isfinite(block)
            if bad.any():
                not_a_number = int(np.isnan(block).sum())
                nan[field] += not_a_number
                infinite[field] += int(bad.sum()) - not_a_number
                bad_rows[rows] |= bad.any(axis=1)
    return nan, infinite, bad_rows
