"""What a policy and a behaviour density must offer, and how they are asked once, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike

from kmifqe.errors import InputError
from kmifqe.mdp.transitions import Transitions

Bounds = tuple[np.ndarray, np.ndarray]  # (low, high) of the action box, each (d,)


@runtime_checkable
class Policy(Protocol):
    """A deterministic policy over NumPy batches: (n, q) float32 states -> (n, d) float32 actions.

    It may also carry `low` and `high`, the action bounds, shape (d,), `state_dim`, `action_dim` and `name`.
    """

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the action for each row of `states`."""
        ...


@runtime_checkable
class StochasticPolicy(Policy, Protocol):
    """A policy that draws its actions, and says how likely an action is. Called, it may return its mean or mode."""

    def sample(self, states: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
        """Return `n` actions drawn for each row of `states`, shape (rows, n, d)."""
        ...

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log π(a|s), shape (rows,); −inf for an action that is never taken."""
        ...


@runtime_checkable
class Behavior(Protocol):
    """A known or fitted behaviour density. Arrays are NumPy, one row a sample."""

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ(a|s), shape (n,)."""
        ...


@runtime_checkable
class FactorizedBehavior(Behavior, Protocol):
    """A density that is a product over action dimensions, so that weights can be clipped per dimension."""

    def log_prob_per_dimension(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ_j(a_j|s) for each dimension j, shape (n, d)."""
        ...


class Logged:
    """Stands for: the log itself carries log μ(a|s) at its own actions, and nothing is known elsewhere."""

    def __repr__(self) -> str:
        return "Logged()"


CHUNK = 65_536  # rows handed to a policy or density at a time
_ALIGNMENT = 64  # bytes: from here on XLA's CPU device uses a NumPy array in place instead of copying it


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> np.ndarray:
    """Return an array, not yet filled, that `jax.device_put` need not copy on a CPU."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def row_chunks(n: int) -> Iterator[slice]:
    """Yield consecutive slices that cover n rows."""
    for start in range(0, n, CHUNK):
        yield slice(start, min(start + CHUNK, n))


Empty = Callable[[tuple[int, ...], DTypeLike], np.ndarray]  # makes an array that is not filled yet


def gathered(values: np.ndarray, order: np.ndarray, empty: Empty = aligned_empty) -> np.ndarray:
    """Return `values[order]`; values are cast to float32 unless they are flags or whole numbers.

    `empty` makes the array, by default in memory and aligned.
    """
    dtype = values.dtype if values.dtype.kind in "bi" else np.dtype(np.float32)
    result = empty((len(order), *values.shape[1:]), dtype)
    for rows in row_chunks(len(order)):
        result[rows] = values[order[rows]]
    return result


def mean_and_std(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and standard deviation of every column, in float64 without a float64 copy."""
    mean = values.mean(axis=0, dtype=np.float64)
    squares = np.zeros_like(mean)
    for rows in row_chunks(len(values)):
        squares += np.square(values[rows] - mean).sum(axis=0)
    return mean, np.sqrt(squares / len(values))


def policy_answers(
    policy: Policy, t: Transitions, order: np.ndarray, draws: int, empty: Empty = aligned_empty
) -> dict[str, np.ndarray]:
    """Return what `policy` says at the states of the log `t`, by the field of `Problem` that it is.

    `order` are the rows of `t` that are meant. `draws` is the number of actions drawn at every state, 0 for a
    deterministic policy, which has no samples and no densities. `empty` makes the widest arrays; by default in
    memory.
    """
    if not draws:
        return {
            "target_actions": target_actions(policy, t, order, empty),
            "first_actions": first_actions(policy, t),
        }
    samples, first_samples = target_samples(policy, t, order, draws, empty)
    log_pi, first_log_pi = target_densities(policy, t, order)
    return {
        "target_actions": np.ascontiguousarray(samples[:, 0]),
        "first_actions": np.ascontiguousarray(first_samples[:, 0]),
        "target_samples": samples,
        "first_samples": first_samples,
        "log_pi": log_pi,
        "first_log_pi": first_log_pi,
    }


def target_actions(
    policy: Policy, t: Transitions, order: np.ndarray, empty: Empty = aligned_empty
) -> np.ndarray:
    """Return π̃(s') of the rows `order` of the log `t` under `policy`, (n, d); zeros where no s' was logged.

    `empty` makes the array, by default in memory.
    """
    result = empty((len(order), t.action_dim), np.float32)
    for rows, states in _next_states(t, order):
        result[rows] = checked_actions(policy, states, t)
        result[rows][~t.has_next_state[order[rows]]] = 0.0
    return result


def first_actions(policy: Policy, t: Transitions) -> np.ndarray:
    """Return π̃(s₀) of every episode, (m, d)."""
    first = t.first_rows
    result = aligned_empty((len(first), t.action_dim))
    for rows in row_chunks(len(first)):
        result[rows] = checked_actions(policy, t.states[first[rows]], t)
    return result


SAMPLE_SEED = 0  # of the target's actions: one log and one policy make one problem, whatever is trained on it


def target_samples(
    policy: Policy, t: Transitions, order: np.ndarray, draws: int, empty: Empty = aligned_empty
) -> tuple[np.ndarray, np.ndarray]:
    """Return `draws` actions of a stochastic `policy` at every s' of the rows `order` of `t`, and at every s₀.

    `empty` makes the first of these arrays, by default in memory.
    """
    stochastic = _stochastic(policy)
    rng = np.random.default_rng(SAMPLE_SEED)
    samples = empty((len(order), draws, t.action_dim), np.float32)
    for rows, states in _next_states(t, order):
        samples[rows] = _drawn(stochastic, states, t, rng, draws)
        samples[rows][~t.has_next_state[order[rows]]] = 0.0
    first = t.first_rows
    first_samples = aligned_empty((len(first), draws, t.action_dim))
    for rows in row_chunks(len(first)):
        first_samples[rows] = _drawn(stochastic, t.states[first[rows]], t, rng, draws)
    return samples, first_samples


def target_densities(policy: Policy, t: Transitions, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log π(a'|s') of the logged a' of the rows `order` of `t`, 0 without an a', and log π(a₀|s₀).

    `policy` is the stochastic target π.
    """
    stochastic = _stochastic(policy)
    log_pi = aligned_empty((len(order),))
    for rows, states in _next_states(t, order):
        asked = _target_log_prob(stochastic, states, t.next_actions[order[rows]], t)
        log_pi[rows] = np.where(t.has_next_action[order[rows]], asked, 0.0)
    first = t.first_rows
    first_log_pi = aligned_empty((len(first),))
    for rows in row_chunks(len(first)):
        logged = first[rows]
        first_log_pi[rows] = _target_log_prob(stochastic, t.states[logged], t.actions[logged], t)
    return log_pi, first_log_pi


def first_densities(behavior: Behavior | Logged | None, t: Transitions) -> np.ndarray | None:
    """Return log μ(a₀|s₀) of every episode of `t`, (m, k); None without a density."""
    first = t.first_rows
    if behavior is None:
        return None
    if isinstance(behavior, Logged):
        if t.log_mu is None:
            raise InputError(f"{t.name}: behavior is 'logged', but the field action_log_probs is missing")
        return gathered(t.log_mu.reshape(len(t), -1), first)
    ask = behavior.log_prob_per_dimension if isinstance(behavior, FactorizedBehavior) else behavior.log_prob
    result: np.ndarray | None = None
    for rows in row_chunks(len(first)):
        columns = _columns(ask(t.states[first[rows]], t.actions[first[rows]]))
        _refuse_impossible_actions(columns, first[rows] - 1, t)
        result = aligned_empty((len(first), columns.shape[1])) if result is None else result
        result[rows] = columns
    return result


def _stochastic(policy: Policy) -> StochasticPolicy:
    if isinstance(policy, StochasticPolicy):
        return policy
    raise InputError(
        f"{_policy_name(policy)}: a stochastic target must offer sample(states, rng, n) and "
        "log_prob(states, actions); this policy only says one action for each state, so judge it without "
        "--stochastic (stochastic=True)"
    )


def _drawn(
    policy: StochasticPolicy, states: np.ndarray, t: Transitions, rng: np.random.Generator, draws: int
) -> np.ndarray:
    actions = np.asarray(policy.sample(states, rng, draws))
    expected = (len(states), draws, t.action_dim)
    if actions.shape != expected:
        raise InputError(
            f"{_policy_name(policy)}: sample of {draws} actions at {len(states)} states returned shape "
            f"{actions.shape}; expected {expected}"
        )
    if not np.isfinite(actions).all():
        raise InputError(f"{_policy_name(policy)}: sample returned NaN or infinity at states of {t.name}")
    return actions.astype(np.float32)


def _target_log_prob(
    policy: StochasticPolicy, states: np.ndarray, actions: np.ndarray, t: Transitions
) -> np.ndarray:
    log_pi = np.asarray(policy.log_prob(states, actions), np.float32)
    if log_pi.shape != (len(states),):
        raise InputError(
            f"{_policy_name(policy)}: log_prob of {len(states)} actions returned shape {log_pi.shape}; expected "
            f"({len(states)},)"
        )
    if not (log_pi < np.inf).all():
        raise InputError(
            f"{_policy_name(policy)}: log_prob returned NaN or +inf at logged actions of {t.name}; expected a finite "
            "number, or -inf for an action that the policy never takes"
        )
    return log_pi


def _policy_name(policy: object) -> str:
    return str(getattr(policy, "name", getattr(policy, "__name__", type(policy).__name__)))


def _logged_densities(t: Transitions, order: np.ndarray) -> np.ndarray:
    """Return log μ(a'|s') from the log itself, (n, k): the following row's; 0 where there is no a'."""
    if t.log_mu is None:
        raise InputError(f"{t.name}: behavior is 'logged', but the field action_log_probs is missing")
    columns = t.log_mu.reshape(len(t), -1)
    result = aligned_empty((len(order), columns.shape[1]))
    for rows in row_chunks(len(order)):
        has_next = t.has_next_action[order[rows], None]
        result[rows] = np.where(has_next, columns[np.minimum(order[rows] + 1, len(t) - 1)], 0.0)
    return result


def densities(
    behavior: Behavior | Logged | None, t: Transitions, order: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return log μ(a'|s') as (n, k), 0 where there is no a', and log μ(π̃(s')|s') as (n,), 0 where terminal.

    Each is None where it is not known.

    behavior: the density, `Logged` for the log's own at its own actions, None for no density.
    t: the log.
    order: the n rows of the log to ask about.
    target: π̃(s') of these rows, (n, d).
    """
    if behavior is None:
        return None, None
    if isinstance(behavior, Logged):
        return _logged_densities(t, order), None
    ask = behavior.log_prob_per_dimension if isinstance(behavior, FactorizedBehavior) else behavior.log_prob
    log_mu: np.ndarray | None = None
    for rows, states in _next_states(t, order):
        logged = order[rows]
        columns = _columns(ask(states, t.next_actions[logged]))
        columns = np.where(t.has_next_action[logged, None], columns, 0.0)
        _refuse_impossible_actions(columns, logged, t)
        if log_mu is None:
            log_mu = aligned_empty((len(order), columns.shape[1]))
        log_mu[rows] = columns
    assert log_mu is not None, "row_order refuses a log without rows"
    return log_mu, density_at_target(behavior, t, order, target)


def density_at_target(
    behavior: Behavior, t: Transitions, order: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """Return log μ(π̃(s')|s') as (n,), 0 where terminal.

    `behavior` is the density μ, `order` the rows of the log `t` that are meant, and `target` their π̃(s'), (n, d).
    """
    result = aligned_empty((len(order),))
    for rows, states in _next_states(t, order):
        logged = order[rows]
        at_target = _columns(behavior.log_prob(states, target[rows]))[:, 0]
        result[rows] = np.where(t.terminated[logged], 0.0, at_target)
        _refuse_unknown_densities(result[rows], logged, t)
    return result


def checked_actions(policy: Policy, states: np.ndarray, t: Transitions) -> np.ndarray:
    """Return the actions of `policy` at `states`, float32; refuse those that do not fit the log `t`."""
    name = _policy_name(policy)
    width = getattr(policy, "state_dim", None)
    if width is not None and width != t.state_dim:
        raise InputError(f"{name}: the policy takes {width} inputs; states of {t.name} have {t.state_dim}")
    actions = np.asarray(policy(states))
    if actions.ndim == 1 and t.action_dim == 1:
        actions = actions[:, None]
    if actions.shape != (len(states), t.action_dim):
        raise InputError(
            f"{name}: for {len(states)} states the policy returned shape {actions.shape}; expected "
            f"({len(states)}, {t.action_dim}), the width of the actions in {t.name}"
        )
    if not np.isfinite(actions).all():
        raise InputError(f"{name}: the policy returned NaN or infinity at states of {t.name}")
    return actions.astype(np.float32)


# A logged action is an outlier if it lies further outside the central 98 % of its dimension than these are wide, and
# if no more than one in a thousand does: so rare an action is more likely an error of the logger than a choice.
# A single one is an outlier in a shorter log too, if it lies ten times as far from all others as they span.
CENTRAL = (0.01, 0.99)
OUTLIERS = 1e-3
ALONE = 10.0
FEWEST_OTHERS = 20  # actions: fewer do not show what range is usual


def seen_range(column: np.ndarray) -> tuple[float, float, int]:
    """Return the least and largest action of one dimension but for outliers, and how many those are."""
    lower, upper = np.quantile(column, CENTRAL)
    inside = (column >= 2 * lower - upper) & (column <= 2 * upper - lower)
    outliers = int(len(column) - inside.sum())
    if lower == upper or not 0 < outliers <= OUTLIERS * len(column):
        inside = _without_one_alone(column)
        outliers = int(len(column) - inside.sum())
    rest = column[inside] if outliers else column
    return float(rest.min()), float(rest.max()), outliers


def _without_one_alone(column: np.ndarray) -> np.ndarray:
    """Return a mask of all actions but a single one that lies far from all others, where there is one."""
    others = np.ones(len(column), bool)
    if len(column) <= FEWEST_OTHERS:
        return others
    for place in (int(column.argmin()), int(column.argmax())):
        others[place] = False
        low, high = float(column[others].min()), float(column[others].max())
        if max(low - column[place], column[place] - high) > ALONE * (high - low) > 0:
            return others
        others[place] = True
    return others


def action_box(t: Transitions, policy: Policy) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return the action bounds, and what is to be said of them.

    They are the policy's own where it has finite ones, else the range seen in the log without its outliers.
    """
    box = np.full((2, t.action_dim), np.nan, np.float32)
    for stated, bounds in zip((getattr(policy, side, None) for side in ("low", "high")), box):
        if stated is not None:
            bounds[:] = np.asarray(stated, np.float32)
    box[~np.isfinite(box)] = np.nan
    notes = []
    for j in np.flatnonzero(np.isnan(box).any(axis=0)):
        low, high, outliers = seen_range(t.actions[:, j])
        box[:, j] = np.where(np.isnan(box[:, j]), (low, high), box[:, j])
        if outliers:
            notes.append(
                f"{outliers:,} logged action{'s lie' if outliers > 1 else ' lies'} far outside all others in "
                f"dimension {j}, whose range is taken to be {low:.4g} to {high:.4g}; give the policy bounds if that "
                "is wrong"
            )
    flat = box[1] - box[0] <= 0
    return np.where(flat, box[0] - 0.5, box[0]), np.where(flat, box[1] + 0.5, box[1]), tuple(notes)


def _next_states(t: Transitions, order: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the states to ask at, chunk by chunk: s', or s where a terminal row has no s'.

    At zeros, which nobody visited, a policy need not be defined.
    """
    for rows in row_chunks(len(order)):
        logged = order[rows]
        yield rows, np.where(t.has_next_state[logged, None], t.next_states[logged], t.states[logged])


def _refuse_impossible_actions(log_mu: np.ndarray, logged: np.ndarray, t: Transitions) -> None:
    possible = np.isfinite(log_mu).all(axis=1)
    if not possible.all():
        row = int(np.argmin(possible))
        raise InputError(
            f"{t.name}: the behaviour density gives log μ = {log_mu[row].sum()} at the logged action of row "
            f"{int(logged[row]) + 1}; expected a finite number: this density cannot have drawn that action"
        )


def _refuse_unknown_densities(log_mu_target: np.ndarray, logged: np.ndarray, t: Transitions) -> None:
    """Refuse NaN and +inf; a density of 0 (−inf) at the target's action is an answer, and floored later."""
    unknown = ~(log_mu_target < np.inf)
    if unknown.any():
        row = int(np.argmax(unknown))
        raise InputError(
            f"{t.name}: the behaviour density gives log μ = {log_mu_target[row]} at the target's action after row "
            f"{int(logged[row])}; expected a finite number, or -inf where the density is 0"
        )


def _columns(log_prob: np.ndarray) -> np.ndarray:
    log_prob = np.asarray(log_prob, np.float32)
    return log_prob.reshape(len(log_prob), -1)
