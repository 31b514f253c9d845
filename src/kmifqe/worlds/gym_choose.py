"""The learning curve of a training run, and which of its checkpoints become target and behaviour mean."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

FINALISTS = 5  # checkpoints that get the fresh, larger evaluation
BEHAVIOR_BAND = (0.7, 0.8)  # the paper's behaviour means reach 70–80 % of the target's return
CLIMBED = 0.9  # share of the target's level at which the way up is over; later dips are accidents


@dataclass(frozen=True)
class Checkpoint:
    """A policy met while training, and its undiscounted return with a standard error."""

    steps: int  # environment steps taken
    episode_return: float
    standard_error: float
    episodes: int


@dataclass(frozen=True)
class Choice:
    """The two checkpoints, with their fresh evaluations."""

    target: Checkpoint
    behavior: Checkpoint | None  # None: nothing came before the target
    behavior_level: float | None  # see `level`
    notes: tuple[str, ...]  # what is not as wished, one sentence each


def level(episode_return: float, target_return: float, initial_return: float) -> float:
    """Return how far a policy has come, 1 at the target's return.

    Where the target's return is positive it is the plain ratio, as in the paper. Where it is not (Pendulum
    pays costs) a ratio means nothing: it is then the share of the way up from the untrained policy.
    """
    if target_return > 0.0:
        return episode_return / target_return
    gap = target_return - initial_return
    return (episode_return - initial_return) / gap if gap > 0.0 else 1.0


def choose(curve: Sequence[Checkpoint], measure: Callable[[Checkpoint], Checkpoint]) -> Choice:
    """Return the best checkpoint and one on the way up whose level is nearest to the middle of the band.

    `curve` is in order of steps and begins with the untrained policy. Its few episodes only nominate;
    `measure` evaluates the finalists again, afresh, and that decides.
    """
    best = sorted(curve, key=lambda point: point.episode_return)[-FINALISTS:]
    target = max((measure(point) for point in best), key=lambda point: point.episode_return)
    initial = curve[0].episode_return

    def level_of(point: Checkpoint) -> float:
        return level(point.episode_return, target.episode_return, initial)

    def distance(point: Checkpoint) -> float:
        return abs(level_of(point) - sum(BEHAVIOR_BAND) / 2)

    def nearest(points: Iterable[Checkpoint]) -> list[Checkpoint]:
        return [measure(point) for point in sorted(points, key=distance)[:FINALISTS]]

    before = [point for point in curve if point.steps < target.steps]
    if not before:
        return Choice(target, None, None, ("no checkpoint came before the target: no behaviour mean",))
    candidates = nearest(itertools.takewhile(lambda p: level_of(p) < CLIMBED, before))
    if not any(_in_band(level_of(point)) for point in candidates):
        candidates += nearest(before)
    behavior = min(candidates, key=distance)
    reached = level_of(behavior)
    notes = () if _in_band(reached) else (_outside_band(reached),)
    return Choice(target, behavior, reached, notes)


def _in_band(reached: float) -> bool:
    return BEHAVIOR_BAND[0] <= reached <= BEHAVIOR_BAND[1]


def _outside_band(reached: float) -> str:
    low, high = BEHAVIOR_BAND
    return (
        f"no checkpoint at {low:.0%} to {high:.0%} of the target's level; the nearest is at {reached:.0%} "
        "(evaluate more often)"
    )
