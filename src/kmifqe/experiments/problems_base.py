"""What every problem of known value is: its settings, where it takes its data from, and what its log covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.trust.checks.overlap import REFERENCE_BANDWIDTHS, overlap_rows

HOPELESS_ROWS = 100.0  # see `hopeless`

Half = Literal[
    "choose", "report"
]  # for choosing settings and thresholds, or for reporting what they are worth
Part = Literal["log", "truth"]  # of a problem's data, each made once and kept in a file


@dataclass(frozen=True)
class Sources:
    """Where problems take their data from."""

    folder: Path  # keeps logs of simulators, and truths that were measured
    policies: Path | None = None  # holds actors that others trained; None: there are none


class Arrays(NamedTuple):
    """A problem's arrays, and its true value."""

    problem: Problem
    transitions: Transitions
    truth: float
    truth_error: float  # standard error of the truth; 0 where it is a closed form


class FamilyProblem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem by its settings; `arrays` makes its arrays. Subclasses say which world it is of."""

    gamma: float
    seed: int  # of the world, where it is random, and of its log
    half: Half
    told_width: float = 1.0  # the density told to estimators is this many times as wide as the true one

    @property
    def family(self) -> str:
        """The family of worlds: lqr, pendulum or mujoco."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """What tables count together: the family, or the MuJoCo task."""
        return self.family

    @property
    def rows(self) -> int:
        """Logged steps."""
        raise NotImplementedError

    @property
    def action_dim(self) -> int:
        """How many numbers an action has."""
        raise NotImplementedError

    @property
    def program(self) -> str:
        """A name that problems share which one compiled program serves: same array shapes, same counts of rows."""
        raise NotImplementedError

    @property
    def weight(self) -> float:
        """How long the problem takes beside others, roughly; a linear-quadratic one takes 1."""
        return 1.0

    @property
    def settings_text(self) -> str:
        """The settings of the world and the log in words."""
        raise NotImplementedError

    @property
    def description(self) -> str:
        """All settings in words."""
        told = "" if self.told_width == 1.0 else f", density told {self.told_width:g} times as wide"
        return f"{self.settings_text}, γ {self.gamma:g}, seed {self.seed}{told}"

    @property
    def accepted(self) -> tuple[str, ...]:
        """Checks whose question a person who knows the system would answer."""
        return ()

    def missing(self, sources: Sources) -> str | None:
        """Return what the problem needs and `sources` or this machine lack; None where nothing is missing."""
        return None

    def parts(self) -> dict[Part, float]:
        """Return which of its data are kept in files, each with the number of simulated steps that it takes."""
        return {}

    def file(self, part: Part, sources: Sources) -> Path:
        """Return the file that keeps a `part` of the data, under the folder of `sources`."""
        raise NotImplementedError

    def make(self, part: Part, sources: Sources) -> None:
        """Make a `part` of the data and keep it in its file, unless it is there."""
        raise NotImplementedError

    def arrays(self, sources: Sources) -> Arrays:
        """Return the arrays and the truth, from the files in `sources` where those are there."""
        raise NotImplementedError


def halves(names: Sequence[str]) -> list[Half]:
    """Return the half that each of these problems, or groups of problems, belongs to.

    Of every two neighbours, the one whose name has the smaller hash is for choosing and the other for reporting. So
    the halves are equally large in whatever the neighbours have in common, nobody picks, and more names at the end
    change nothing for the earlier ones. A last name without a neighbour goes where its own hash says.
    """
    hashes = [int(sha256(name.encode()).hexdigest(), 16) for name in names]
    found: list[Half] = []
    for i, own in enumerate(hashes):
        neighbour = i ^ 1
        chooses = own < hashes[neighbour] if neighbour < len(hashes) else own % 2 == 0
        found.append("choose" if chooses else "report")
    return found


def overlap(problem: Problem, bandwidths: Sequence[float] = REFERENCE_BANDWIDTHS) -> float:
    """Return the effective share of in-sample rows, unclipped, with the identity metric, at the best bandwidth.

    1 over E[w²]: at h = 0.2 about 0.35 for actions uniform over the box in one dimension, 0.04 in three; towards 0
    where the log has few actions near the target's. Behaviour narrower than a bandwidth has its best below that.
    It needs no estimate and no truth.
    """
    n = problem.counts.nonterminal
    if n == 0 or problem.log_mu is None:
        return float("nan")
    return overlap_rows(problem, bandwidths) / n


def hopeless(problem: Problem) -> bool:
    """Return whether the log has too few actions near the target's to say anything, judged before estimating.

    Fewer than 100 effective rows at the best of the reference bandwidths: a mean over so few has an error of a
    tenth of the spread of what is averaged, at every one of the steps that a value is made of.
    """
    return overlap(problem) * problem.counts.nonterminal < HOPELESS_ROWS
