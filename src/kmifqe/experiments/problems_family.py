"""A family of problems whose true value is known, from easy to hopeless: what intervals and verdicts are tried on.

A problem is drawn from its number alone, before anything is estimated: a world, a discount, a log's size, how wide
the behaviour's noise is and how far its mean lies from the target. Linear-quadratic problems and Pendulum stand here,
and MuJoCo tasks in `problems_gym`. Problems come in a few array shapes, so that programs compiled for one serve the
others of its shape.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from kmifqe.experiments.policies import digest
from kmifqe.experiments.problems_base import (
    Arrays,
    FamilyProblem,
    Half,
    Part,
    Sources,
    halves,
    hopeless,
    overlap,
)
from kmifqe.experiments.problems_gym import GymProblem
from kmifqe.experiments.records import kept, kept_file
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.lqr import LQR, random_lqr, spectral_radius
from kmifqe.worlds.pendulum import TrueValue, collect, true_value
from kmifqe.worlds.pendulum_dynamics import EPISODE_STEPS
from kmifqe.worlds.pendulum_policies import PendulumBehavior, load_pendulum_actors, with_dummies

GAMMAS = (0.9, 0.95, 0.98, 0.99)
END_RATES = (0.0, 0.02, 0.05)  # LQR: the probability that an episode ends after a step
OFFSETS = (0.0, -10.0, 10.0, 100.0)  # LQR: added to the rewards, in standard deviations of a first reward
SCALES = (1e-2, 1e2)  # LQR: the range of factors on the rewards
TRUTH_EPISODES = 20_000  # Pendulum: the truth's standard error is then below a twentieth of any interval here
LQR_RADIUS = 0.6  # of the target's loop
LQR_GAIN = 0.3  # of what `random_lqr` draws
STABLE = 0.9  # largest spectral radius of the behaviour's loop: logged states stay of one order of magnitude

World = Literal["lqr", "pendulum"]


@dataclass(frozen=True, order=True)
class Shape:
    """What decides the arrays' shapes, the ends of episodes apart."""

    world: World
    state_dim: int
    action_dim: int
    episodes: int  # without ends; an end makes room for one more
    length: int  # steps after which an episode is cut

    @property
    def rows(self) -> int:
        """Logged steps."""
        return self.episodes * self.length

    def __str__(self) -> str:
        actions = f"{self.action_dim} action{'s' * (self.action_dim > 1)}"
        return f"{self.world}, {actions}, {self.rows:,} rows in episodes of at most {self.length}"


SHAPES = (
    Shape("lqr", 2, 1, 40, 15),
    Shape("lqr", 2, 1, 200, 20),
    Shape("lqr", 2, 2, 100, 20),
    Shape("lqr", 2, 2, 400, 25),
    Shape("lqr", 3, 3, 300, 20),
    Shape("lqr", 3, 4, 600, 25),
    Shape("lqr", 4, 5, 1000, 30),
    Shape("pendulum", 3, 1, 50, 40),
    Shape("pendulum", 3, 1, 200, 50),
    Shape("pendulum", 3, 1, 100, 200),
    Shape("pendulum", 3, 2, 200, 50),
    Shape("pendulum", 3, 3, 300, 50),
)


class _Shaped(FamilyProblem, frozen=True, kw_only=True):
    """A problem of one of the shapes."""

    shape: Shape

    @property
    def family(self) -> str:
        """The family of worlds."""
        return self.shape.world

    @property
    def rows(self) -> int:
        """Logged steps."""
        return self.shape.rows

    @property
    def action_dim(self) -> int:
        """How many numbers an action has."""
        return self.shape.action_dim

    @property
    def program(self) -> str:
        """A name that problems share which one compiled program serves."""
        return str(self.shape)


class LqrProblem(_Shaped, frozen=True, kw_only=True, tag="lqr"):
    """A random linear-quadratic world; its truth is a closed form."""

    width: float  # multiplies the behaviour's standard deviation
    departure: float  # multiplies the behaviour's departure from the target's gain
    end_rate: float = 0.0  # the probability that an episode ends after a step
    offset: float = 0.0  # added to the rewards, in standard deviations of an episode's first reward
    scale: float = 1.0  # multiplies the rewards

    @property
    def program(self) -> str:
        """A name that problems share which one compiled program serves."""
        ends = f", ends {self.end_rate:g} {self.half}" if self.end_rate else ""
        return f"{self.shape}{ends}"

    @property
    def accepted(self) -> tuple[str, ...]:
        """Whoever knows this world knows that its episodes end by chance."""
        return ("unexplained_ends",) if self.end_rate else ()

    @property
    def settings_text(self) -> str:
        """The settings of the world and the log in words."""
        return (
            f"{self.shape}, width {self.width:.2f}, departure {self.departure:.2f}, end rate {self.end_rate:g}, "
            f"rewards × {self.scale:.2g} {self.offset:+g}"
        )

    def arrays(self, sources: Sources) -> Arrays:
        """Return the arrays and the truth, from the files in `sources` where those are there."""
        world, log = self.world(), self.log()
        told = replace(world.behavior, std=world.behavior_std * self.told_width)
        return Arrays(Problem.build(log, world.policy, told, self.gamma), log, world.value, 0.0)

    def log(self) -> Transitions:
        """Return the log of the behaviour."""
        s = self.shape
        return self.world().collect(self.seed, s.episodes, s.length, self._end_seed())

    def world(self) -> LQR:
        """Return the world, with a behaviour this wide and this far off as far as its loop stays stable.

        Gains are small, so that the range of the actions, in which bandwidths are measured, is the noise's and not
        the states': else the least blur of an action would be many times what any controller does.
        """
        s = self.shape
        drawn = random_lqr(self.seed, s.state_dim, s.action_dim, gamma=self.gamma, radius=LQR_RADIUS)
        gain = LQR_GAIN * drawn.gain
        away = self.departure * (drawn.behavior_gain - drawn.gain)
        while spectral_radius(drawn.closed_loop - drawn.B @ away) > STABLE:
            away = 0.9 * away
        world = replace(
            drawn,
            F=drawn.closed_loop + drawn.B @ gain,
            cost=self.scale * drawn.cost,
            gain=gain,
            behavior_gain=gain + away,
            behavior_std=self.width * drawn.behavior_std,
            end_rate=self.end_rate,
        )
        return replace(world, reward_offset=self.offset * world.reward_std)

    def _end_seed(self) -> int:
        """Return the seed of the episodes' ends, which problems of one program share.

        Where episodes end decides the arrays' shapes and counts, and so costs a compilation. Ends do not depend on
        states or actions: each log is one that could have been collected, and only the luck of how many episodes
        ended is common to the problems that share it. The two halves share none.
        """
        numbers = (*astuple(self.shape)[1:], round(1e6 * self.end_rate), self.half == "report")
        return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class PendulumProblem(_Shaped, frozen=True, kw_only=True, tag="pendulum"):
    """Pendulum with the shipped actors and perhaps dummy actions; its truth is measured by rollouts.

    Pendulum never ends: rollouts go on, past the 200 steps of an episode, until γᵗ is below 1e-9.
    """

    width: float  # the behaviour's standard deviation, in half action ranges
    uniform_share: float  # of torques drawn uniformly from the box
    target: Literal["good", "behavior"]  # which of the shipped actors is judged

    @property
    def settings_text(self) -> str:
        """The settings of the world and the log in words."""
        knobs = f"std {self.width:.2f}, uniform share {self.uniform_share:.2f}"
        return f"{self.shape}, {self.target} target, {knobs}"

    def parts(self) -> dict[Part, float]:
        """Return which of its data are kept in files, each with the number of simulated steps that it takes."""
        return {
            "truth": 0.02 * TRUTH_EPISODES / (1.0 - self.gamma)
        }  # compiled steps, fifty to one of MuJoCo's

    def file(self, part: Part, sources: Sources) -> Path:
        """Return the file that keeps a `part` of the data, under the folder of `sources`."""
        return kept_file(sources.folder / "truths", f"pendulum-{self.target}", self._truth_settings())

    def make(self, part: Part, sources: Sources) -> None:
        """Make a `part` of the data and keep it in its file, unless it is there."""
        self._truth(sources)

    def arrays(self, sources: Sources) -> Arrays:
        """Return the arrays and the truth, from the files in `sources` where those are there."""
        good, behavior_mean = load_pendulum_actors()
        target = with_dummies(good if self.target == "good" else behavior_mean, self.shape.action_dim - 1)
        log, behavior = self.log()
        told = replace(behavior, std=behavior.std * self.told_width)
        truth = self._truth(sources)
        problem = Problem.build(log, target, told, self.gamma)
        return Arrays(problem, log, truth.value, truth.standard_error)

    def log(self) -> tuple[Transitions, PendulumBehavior]:
        """Return the log, and the behaviour that made it."""
        s, (_, mean) = self.shape, load_pendulum_actors()
        behavior = PendulumBehavior(mean, s.action_dim - 1, std=self.width, uniform_share=self.uniform_share)
        return _cut(collect(self.seed, behavior, s.episodes * EPISODE_STEPS), s.length), behavior

    def _truth(self, sources: Sources) -> TrueValue:
        good, behavior_mean = load_pendulum_actors()
        judged = good if self.target == "good" else behavior_mean
        return kept(
            sources.folder / "truths",
            f"pendulum-{self.target}",
            self._truth_settings(),
            TrueValue,
            lambda: true_value(0, judged, self.gamma, TRUTH_EPISODES),
        )

    def _truth_settings(self) -> dict[str, float | str]:
        judged = load_pendulum_actors()[self.target != "good"]
        return {"policy": digest(judged), "gamma": self.gamma, "episodes": TRUTH_EPISODES}


AnyProblem = LqrProblem | PendulumProblem | GymProblem


@dataclass(frozen=True)
class Facts:
    """What is known of a problem before anything is estimated."""

    settings: AnyProblem
    kind: str  # lqr, pendulum, or the MuJoCo task
    description: str
    truth: float  # V of the target over the population of first states
    truth_error: float  # its standard error; 0 where it is a closed form
    overlap: float  # see `problems_base.overlap`
    hopeless: bool  # see `problems_base.hopeless`


class Built(NamedTuple):
    """A problem's arrays, and what is known of it."""

    problem: Problem
    transitions: Transitions
    facts: Facts


def build(item: AnyProblem, sources: Sources) -> Built:
    """Return the arrays of a problem, its true value, and how well its log covers the target.

    `item` is the problem by its settings, and `sources` where simulated data and actors lie.
    """
    problem, transitions, truth, truth_error = item.arrays(sources)
    # Whatever density estimators are told, what the log covers is a matter of the true one.
    honest = problem
    if item.told_width != 1.0:
        honest = msgspec.structs.replace(item, told_width=1.0).arrays(sources).problem
    facts = Facts(item, item.kind, item.description, truth, truth_error, overlap(honest), hopeless(honest))
    return Built(problem, transitions, facts)


def family(
    per_shape: int, shapes: tuple[Shape, ...] = SHAPES, seed: int = 0
) -> tuple[LqrProblem | PendulumProblem, ...]:
    """Return `per_shape` problems of each of the `shapes`, shape after shape, drawn with `seed` (default 0).

    The first problems of a shape stay the same when more are asked for, if they are even in number.
    """
    drawn: list[LqrProblem | PendulumProblem] = []
    for shape in shapes:
        belong = halves([f"{shape}, family {seed}, number {number}" for number in range(per_shape)])
        make = _drawn_lqr if shape.world == "lqr" else _drawn_pendulum
        for number, half in enumerate(belong):
            rng = np.random.default_rng([seed, number, *astuple(shape)[1:], shape.world == "lqr"])
            drawn.append(make(rng, shape, half))
    return tuple(drawn)


def _drawn_lqr(rng: np.random.Generator, shape: Shape, half: Half) -> LqrProblem:
    return LqrProblem(
        shape=shape,
        half=half,
        seed=int(rng.integers(1, 2**31 - 1)),
        width=_log_uniform(rng, 0.25, 1.5),
        departure=float(rng.uniform(0.0, 2.0)),
        gamma=float(rng.choice(GAMMAS)),
        end_rate=float(rng.choice(END_RATES)),
        offset=float(rng.choice(OFFSETS)),
        scale=_log_uniform(rng, *SCALES),
    )


def _drawn_pendulum(rng: np.random.Generator, shape: Shape, half: Half) -> PendulumProblem:
    return PendulumProblem(
        shape=shape,
        half=half,
        seed=int(rng.integers(1, 2**31 - 1)),
        width=_log_uniform(rng, 0.1, 0.7),
        uniform_share=float(rng.choice([0.0, 0.05, 0.2, 0.5, 1.0])),
        target="good" if rng.uniform() < 0.7 else "behavior",
        gamma=float(rng.choice(GAMMAS)),
    )


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _cut(log: Transitions, length: int) -> Transitions:
    """Return the first `length` steps of every 200-step episode: more first states for as many rows."""
    steps = np.arange(len(log)) % EPISODE_STEPS
    kept_rows = steps < length
    return Transitions.from_arrays(
        observations=log.states[kept_rows],
        actions=log.actions[kept_rows],
        rewards=log.rewards[kept_rows],
        terminals=np.zeros(int(kept_rows.sum()), bool),
        timeouts=steps[kept_rows] == length - 1,
        next_observations=log.next_states[kept_rows],
        action_log_probs=None if log.log_mu is None else log.log_mu[kept_rows],
        name=log.name,
    )
