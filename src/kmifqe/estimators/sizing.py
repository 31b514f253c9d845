"""How large a fit is by default: network, minibatch, learning rate and steps follow from the log's size and γ."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from kmifqe.mdp.problem import Problem


class ProblemSize(NamedTuple):
    """What the sizes of a fit depend on."""

    rows: int  # logged transitions that can be learned from
    gamma: float
    like: int | None = (
        None  # a smaller log has so many rows, whose recipe is taken; None: the log's own recipe
    )

    @property
    def recipe_rows(self) -> int:
        """How many rows the log has whose recipe is taken."""
        return self.rows if self.like is None else self.like

    def with_recipe(self, rows: int) -> ProblemSize:
        """Return this size with the recipe of a log of so many `rows`, or with its own where it has no more."""
        return self._replace(like=rows if rows < self.rows else None)


TYPICAL = ProblemSize(rows=100_000, gamma=0.99)  # where no problem is known yet


class FitSize(NamedTuple):
    """The sizes of one fit."""

    hidden: int  # units in each of two layers
    batch: int  # rows a step
    learning_rate: float
    steps: int
    tau: float  # share of the network that moves into the target network at each step
    passes: float  # how often the steps go over the log

    def settings(self) -> dict[str, Any]:
        """Return these sizes as config fields, with a learning rate that falls over all of the steps."""
        sizes = self._asdict()
        del sizes["passes"]
        return sizes | {"decay_steps": sizes.pop("steps")}

    def decay(self) -> dict[str, Any]:
        """Return the steps over which the learning rate falls, alone: of a ratio the network's size matters less."""
        return {"decay_steps": self.steps}


# Up to so many rows -> hidden units, minibatch, learning rate, steps. A large network learns a log of a few thousand
# rows by heart, and a large log is worth more steps (docs/estimators/fqe.md has what was tried).
SIZES: tuple[tuple[float, int, int, float, int], ...] = (
    (1_000, 16, 256, 2e-3, 6_000),
    (4_000, 32, 256, 2e-3, 6_000),
    (40_000, 64, 256, 2e-3, 6_000),
    (200_000, 128, 256, 1e-3, 12_000),
    (400_000, 128, 256, 1e-3, 30_000),
    (math.inf, 256, 512, 1e-3, 30_000),
)
# The target network passes a share τ(1 − γ) of a value on in a step. With so many e-foldings nothing is left over; τ
# itself is bounded, because a target network that is too fast lets Q run away.
FOLDS = 12.0
TAU = (0.01, 0.1)


def size_of(problem: Problem) -> ProblemSize:
    """Return the size of `problem`."""
    return ProblemSize(problem.counts.used, float(problem.gamma))


def fit_size(size: ProblemSize, steps: int | None = None) -> FitSize:
    """Return the sizes of a fit to a problem of this `size`, with `steps` steps if they are given."""
    _, hidden, batch, learning_rate, own = next(line for line in SIZES if size.recipe_rows <= line[0])
    total = own if steps is None else steps
    low, high = TAU
    tau = min(max(FOLDS / (total * (1.0 - size.gamma)), low), high)
    passes = total * batch / max(size.rows, 1)
    return FitSize(hidden, batch, learning_rate, total, round(tau, 4), passes)


# --- Under a time budget: from a first estimate to the recipe above


class Rung(NamedTuple):
    """One fit of several, each larger than the one before: the problem size whose recipe it has, and its networks."""

    size: ProblemSize
    networks: int

    @property
    def work(self) -> float:
        """Return how much arithmetic the fit takes, in units of no meaning: only the ratio of two rungs has one."""
        recipe = fit_size(self.size)
        return float(self.networks * recipe.steps * recipe.batch * recipe.hidden**2)

    def __str__(self) -> str:
        recipe = fit_size(self.size)
        networks = f"{self.networks} network{'s' * (self.networks > 1)}"
        return f"{networks} of {recipe.hidden} units, {recipe.steps:,} steps"


FIRST_ROWS = 40_000  # the first estimate has the recipe of a log with so many rows, or of a smaller one
FIRST_NETWORKS = 4


def ladder(size: ProblemSize, networks: int) -> tuple[Rung, ...]:
    """Return the fits that a time budget may choose from, the smallest first, for a problem of `size`.

    The first one gives the first estimate, the last one is the whole recipe with all of the `networks`.
    """
    first = Rung(size.with_recipe(FIRST_ROWS), min(FIRST_NETWORKS, networks))
    return (first, *(rung for rung in _rungs(size, networks) if rung.work > first.work))


def _rungs(size: ProblemSize, networks: int) -> Iterator[Rung]:
    for bound, *_ in SIZES:
        rows = int(min(bound, size.rows))
        if rows >= min(FIRST_ROWS, size.rows):
            # Half of the networks of the first recipe would hardly be more than the first estimate has.
            few = networks if rows <= FIRST_ROWS else -(-networks // 2)
            yield from (Rung(size.with_recipe(rows), each) for each in dict.fromkeys((few, networks)))
        if bound >= size.rows:
            return
