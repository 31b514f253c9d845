"""Small linear-quadratic problems that are sound, and the same with one fault planted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.lqr import LQR, LinearGaussian, random_lqr


def world_of(seed: int, d: int = 1, *, away: float = 0.3, gamma: float = 0.8) -> LQR:
    """Return the random world number `seed` with `d` actions, whose behaviour has ample noise.

    `away` is how far the behaviour lies from the target, as a share of that of `random_lqr`; `gamma` is the discount.
    """
    world = random_lqr(seed, 2, d, gamma=gamma)
    near = world.gain + away * (world.behavior_gain - world.gain)
    return replace(world, behavior_gain=near)


def log_of(world: LQR, seed: int, episodes: int = 150, length: int = 20) -> Transitions:
    """Return a log of the `world` with the number `seed`: 150 `episodes` of 20 steps, their `length`, by default."""
    return world.collect(seed, episodes, length)


def problem_of(
    world: LQR, log: Transitions, *, gain: np.ndarray | None = None, told: LinearGaussian | None = None
) -> Problem:
    """Return the problem of the target in a `world` and its `log`.

    `gain` is that of another target, and `told` another density than the true one; both are None by default.
    """
    policy = world.policy if gain is None else replace(world.policy, gain=gain)
    return Problem.build(log, policy, told or world.behavior, world.gamma)


@dataclass(frozen=True, eq=False)
class Shifted(LinearGaussian):
    """The density with its mean moved by a part of its standard deviation."""

    by: float

    def log_prob_per_dimension(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ_j(a_j|s) of the moved density for each dimension j, shape (n, d)."""
        return super().log_prob_per_dimension(states, actions - self.by * self.std)


def clipped_log(log: Transitions, share: float) -> Transitions:
    """Return the log with actions clipped to bounds that about `share` of the rows exceed on either side."""
    low, high = np.quantile(log.actions, [share, 1.0 - share], axis=0)
    return changed(log, actions=np.clip(log.actions, low, high))


def ended_log(log: Transitions, share: float = 1.0, seed: int = 0) -> Transitions:
    """Return the `log` with a `share` of its timeouts, all by default, marked as terminations; `seed` chooses."""
    chosen = np.random.default_rng(seed).random(len(log)) < share
    return changed(log, terminals=log.truncated & chosen, timeouts=log.truncated & ~chosen)


def shuffled_log(log: Transitions, seed: int = 0) -> Transitions:
    """Return the log with the rows of every episode in random order, and without next states."""
    order = np.lexsort((np.random.default_rng(seed).random(len(log)), log.episode))
    rows = {"observations": log.states[order], "actions": log.actions[order], "rewards": log.rewards[order]}
    return changed(log, **rows, next_observations=None)


def partly_shuffled_log(log: Transitions, share: float = 0.2, seed: int = 0) -> Transitions:
    """Return the `log` with the rows of a `share` of the episodes in an order that `seed` draws.

    Next states are kept. A log in which more than half of the rows are out of place is refused when it is read.
    """
    rng = np.random.default_rng(seed)
    chosen = rng.random(log.n_episodes) < share
    order = np.lexsort((np.where(chosen[log.episode], rng.random(len(log)), 0.0), log.episode))
    rows = {"observations": log.states[order], "actions": log.actions[order], "rewards": log.rewards[order]}
    return changed(log, **rows, next_observations=log.next_states[order])


def interrupted_log(log: Transitions, rate: float = 0.05, seed: int = 0) -> Transitions:
    """Return the `log` with episodes broken off at random, at a `rate` a step, and marked as terminated.

    What came after the interruption is not in the log; `seed` decides where it falls.
    """
    stopped = np.random.default_rng(seed).random(len(log)) < rate
    before: np.ndarray = np.cumsum(stopped) - stopped
    kept: np.ndarray = before == before[log.first_rows][log.episode]
    return chosen_rows(changed(log, terminals=stopped, timeouts=log.truncated & ~stopped), kept)


def reset_log(log: Transitions) -> Transitions:
    """Return the log with the next episode's first state as the next state where an episode is cut."""
    following = log.next_states.copy()
    last = np.flatnonzero(log.truncated)[:-1]
    following[last] = log.states[last + 1]
    return changed(log, next_observations=following)


def doubled_log(log: Transitions) -> Transitions:
    """Return the log with every row written twice, and without next states."""
    rows = np.repeat(np.arange(len(log)), 2)
    second = np.arange(len(rows)) % 2 == 1
    doubled = {"observations": log.states[rows], "actions": log.actions[rows], "rewards": log.rewards[rows]}
    ends = {"terminals": log.terminated[rows] & second, "timeouts": log.truncated[rows] & second}
    return changed(log, **doubled, **ends, next_observations=None)


def appended_log(log: Transitions) -> Transitions:
    """Return the log followed by itself."""
    return chosen_rows(log, np.tile(np.arange(len(log)), 2))


def copied_log(log: Transitions, episodes: int = 4, copies: int = 50) -> Transitions:
    """Return the first `episodes` of the `log`, each copied so many times (`copies`)."""
    return chosen_rows(log, np.tile(np.flatnonzero(log.episode < episodes), copies))


def reward_shift_log(log: Transitions, by: float = 0.5) -> Transitions:
    """Return the log with rewards raised by a part of their standard deviation from its middle on."""
    late = np.arange(len(log)) >= len(log) // 2
    return changed(log, rewards=log.rewards + by * log.rewards.std() * late)


def offset_log(log: Transitions, by: float = 1e8) -> Transitions:
    """Return the log with a constant added to its states, in float32."""
    return changed(
        log,
        observations=log.states + np.float32(by),
        next_observations=log.next_states + np.float32(by),
    )


def chosen_rows(log: Transitions, rows: np.ndarray) -> Transitions:
    """Return the log of these rows, numbers or flags; a row may come several times."""
    return changed(
        log,
        observations=log.states[rows],
        actions=log.actions[rows],
        rewards=log.rewards[rows],
        terminals=log.terminated[rows],
        timeouts=log.truncated[rows],
        next_observations=log.next_states[rows],
    )


def changed(log: Transitions, **fields: np.ndarray | None) -> Transitions:
    """Return the log with some of its `fields` replaced, which have the names of `Transitions.from_arrays`."""
    arrays: dict[str, np.ndarray | None] = {
        "observations": log.states,
        "actions": log.actions,
        "rewards": log.rewards,
        "terminals": log.terminated,
        "timeouts": log.truncated,
        "next_observations": log.next_states,
    }
    return Transitions.from_arrays(**(arrays | fields))  # type: ignore[arg-type]
