"""A family of problems whose true value is known, from easy to hopeless: what intervals and verdicts are tried on.

A problem is drawn from its number alone, before anything is estimated: a world, a log's size, how wide the
behaviour's noise is and how far its mean lies from the target. Problems come in a few array shapes, so that
programs compiled for one serve the others of its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.maths.kernel import clipped_weight, effective_sample_size
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.trust.checks.overlap import REFERENCE_BANDWIDTHS
from kmifqe.worlds.lqr import LQR, random_lqr, spectral_radius
from kmifqe.worlds.pendulum import TrueValue, collect, true_value
from kmifqe.worlds.pendulum_dynamics import EPISODE_STEPS
from kmifqe.worlds.pendulum_policies import PendulumBehavior, load_pendulum_actors, with_dummies

GAMMA = {"lqr": 0.9, "pendulum": 0.9}
TRUTH_EPISODES = 20_000  # Pendulum: the truth's standard error is then below a twentieth of any interval here
HOPELESS_ROWS = 100.0  # see `hopeless`
LQR_RADIUS = 0.6  # of the target's loop
LQR_GAIN = 0.3  # of what `random_lqr` draws
STABLE = 0.9  # largest spectral radius of the behaviour's loop: logged states stay of one order of magnitude

World = Literal["lqr", "pendulum"]


@dataclass(frozen=True, order=True)
class Shape:
    """What decides the arrays' shapes."""

    world: World
    state_dim: int
    action_dim: int
    episodes: int
    length: int  # steps of an episode

    @property
    def rows(self) -> int:
        """Logged steps."""
        return self.episodes * self.length


SHAPES = (
    Shape("lqr", 2, 1, 40, 15),
    Shape("lqr", 2, 1, 200, 20),
    Shape("lqr", 2, 2, 100, 20),
    Shape("lqr", 2, 2, 400, 25),
    Shape("lqr", 3, 3, 300, 20),
    Shape("pendulum", 3, 1, 50, 40),
    Shape("pendulum", 3, 1, 200, 50),
    Shape("pendulum", 3, 2, 200, 50),
    Shape("pendulum", 3, 3, 300, 50),
)


@dataclass(frozen=True)
class FamilyProblem:
    """One problem of the family, by its settings; `build` makes its arrays."""

    shape: Shape
    seed: int  # of the world, where it is random, and of its log
    width: float  # LQR: multiplies the behaviour's standard deviation; Pendulum: it, in half action ranges
    departure: float  # LQR: multiplies the behaviour's departure from the target's gain; Pendulum: unused
    uniform_share: float = 0.0  # Pendulum: torques drawn uniformly from the box; LQR: unused
    target: Literal["good", "behavior"] = "good"  # Pendulum: which of the shipped actors is judged
    told_width: float = 1.0  # the density told to estimators is this many times as wide as the true one

    @property
    def gamma(self) -> float:
        """The discount."""
        return GAMMA[self.shape.world]

    def build(self) -> Built:
        """Return the problem's arrays, its true value, and how well its log covers the target."""
        make = _lqr if self.shape.world == "lqr" else _pendulum
        problem, transitions, truth, truth_error = make(self)
        # Whatever density estimators are told, what the log covers is a matter of the true one.
        honest = problem if self.told_width == 1.0 else make(replace(self, told_width=1.0))[0]
        facts = Facts(self, self.description, truth, truth_error, overlap(honest), hopeless(honest))
        return Built(problem, transitions, facts)

    @property
    def description(self) -> str:
        """The settings in words."""
        s = self.shape
        knobs = (
            f"width {self.width:.2f}, departure {self.departure:.2f}"
            if s.world == "lqr"
            else f"{self.target} target, std {self.width:.2f}, uniform share {self.uniform_share:.2f}"
        )
        told = "" if self.told_width == 1.0 else f", density told {self.told_width:g} times as wide"
        return (
            f"{s.world}, {s.action_dim} action{'s' * (s.action_dim > 1)}, {s.episodes} episodes of {s.length}, "
            f"{knobs}, seed {self.seed}{told}"
        )


@dataclass(frozen=True)
class Facts:
    """What is known of a problem before anything is estimated."""

    settings: FamilyProblem
    description: str
    truth: float  # V of the target over the population of first states
    truth_error: float  # its standard error; 0 where it is a closed form
    overlap: float  # see `overlap`
    hopeless: bool  # see `hopeless`


class Built(NamedTuple):
    """A problem's arrays, and what is known of it."""

    problem: Problem
    transitions: Transitions
    facts: Facts


def family(per_shape: int, shapes: tuple[Shape, ...] = SHAPES, seed: int = 0) -> tuple[FamilyProblem, ...]:
    """Return `per_shape` problems of each of the `shapes`, shape after shape, drawn with `seed` (default 0).

    The first problems of a shape stay the same when more are asked for.
    """
    return tuple(_drawn(shape, number, seed) for shape in shapes for number in range(per_shape))


def overlap(problem: Problem, bandwidths: Sequence[float] = REFERENCE_BANDWIDTHS) -> float:
    """Return the effective share of in-sample rows, unclipped, with the identity metric, at the best bandwidth.

    1 over E[w²]: at h = 0.2 about 0.35 for actions uniform over the box in one dimension, 0.04 in three; towards 0
    where the log has few actions near the target's. Behaviour narrower than a bandwidth has its best below that.
    It needs no estimate and no truth.
    """
    n = problem.counts.nonterminal
    if n == 0 or problem.log_mu is None:
        return float("nan")
    half = 0.5 * (problem.action_high - problem.action_low)
    d = problem.action_dim
    next_actions, target_actions = (jnp.asarray(a) for a in (problem.next_actions, problem.target_actions))
    squared = jnp.sum(((next_actions[:n] - target_actions[:n]) / half) ** 2, axis=1, keepdims=True)
    log_mu = problem.log_mu[:n].sum(axis=1, keepdims=True) + jnp.sum(jnp.log(half))

    def effective_rows(h: float) -> float:
        w = jax.vmap(lambda s, m: clipped_weight(s, h, m, d, (0.0, float("inf"))))(squared, log_mu)
        return float(effective_sample_size(w))

    return max(effective_rows(h) for h in bandwidths) / n


def hopeless(problem: Problem) -> bool:
    """Return whether the log has too few actions near the target's to say anything, judged before estimating.

    Fewer than 100 effective rows at the best of the reference bandwidths: a mean over so few has an error of a
    tenth of the spread of what is averaged, at every one of the steps that a value is made of.
    """
    return overlap(problem) * problem.counts.nonterminal < HOPELESS_ROWS


def _drawn(shape: Shape, number: int, seed: int) -> FamilyProblem:
    rng = np.random.default_rng([seed, number, *astuple(shape)[1:], shape.world == "lqr"])
    log_seed = int(rng.integers(1, 2**31 - 1))
    if shape.world == "lqr":
        return FamilyProblem(
            shape,
            log_seed,
            width=float(np.exp(rng.uniform(np.log(0.25), np.log(1.5)))),
            departure=float(rng.uniform(0.0, 2.0)),
        )
    return FamilyProblem(
        shape,
        log_seed,
        width=float(np.exp(rng.uniform(np.log(0.1), np.log(0.7)))),
        departure=0.0,
        uniform_share=float(rng.choice([0.0, 0.05, 0.2, 0.5, 1.0])),
        target="good" if rng.uniform() < 0.7 else "behavior",
    )


def _lqr(item: FamilyProblem) -> tuple[Problem, Transitions, float, float]:
    s = item.shape
    world = _lqr_world(item.seed, s, item.width, item.departure)
    log = world.collect(item.seed, s.episodes, s.length)
    told = replace(world.behavior, std=world.behavior_std * item.told_width)
    return Problem.build(log, world.policy, told, item.gamma), log, world.value, 0.0


def _lqr_world(seed: int, shape: Shape, width: float, departure: float) -> LQR:
    """Return a random world whose behaviour is this wide and this far off, as far as its loop stays stable.

    Gains are small, so that the range of the actions, in which bandwidths are measured, is the noise's and not
    the states': else the least blur of an action would be many times what any controller does.
    """
    world = random_lqr(seed, shape.state_dim, shape.action_dim, gamma=GAMMA["lqr"], radius=LQR_RADIUS)
    gain = LQR_GAIN * world.gain
    away = departure * (world.behavior_gain - world.gain)
    while spectral_radius(world.closed_loop - world.B @ away) > STABLE:
        away = 0.9 * away
    return replace(
        world,
        F=world.closed_loop + world.B @ gain,
        gain=gain,
        behavior_gain=gain + away,
        behavior_std=width * world.behavior_std,
    )


def _pendulum(item: FamilyProblem) -> tuple[Problem, Transitions, float, float]:
    s = item.shape
    good, behavior_mean = load_pendulum_actors()
    dummies = s.action_dim - 1
    target = with_dummies(good if item.target == "good" else behavior_mean, dummies)
    behavior = PendulumBehavior(behavior_mean, dummies, std=item.width, uniform_share=item.uniform_share)
    log = _cut(collect(item.seed, behavior, s.episodes * EPISODE_STEPS), s.length)
    told = replace(behavior, std=behavior.std * item.told_width)
    truth = _pendulum_truth(item.target, item.gamma)
    return Problem.build(log, target, told, item.gamma), log, truth.value, truth.standard_error


@cache
def _pendulum_truth(target: str, gamma: float) -> TrueValue:
    good, behavior_mean = load_pendulum_actors()
    return true_value(0, good if target == "good" else behavior_mean, gamma, TRUTH_EPISODES)


def _cut(log: Transitions, length: int) -> Transitions:
    """Return the first `length` steps of every 200-step episode: more first states for as many rows."""
    steps = np.arange(len(log)) % EPISODE_STEPS
    kept = steps < length
    return Transitions.from_arrays(
        observations=log.states[kept],
        actions=log.actions[kept],
        rewards=log.rewards[kept],
        terminals=np.zeros(int(kept.sum()), bool),
        timeouts=steps[kept] == length - 1,
        next_observations=log.next_states[kept],
        action_log_probs=None if log.log_mu is None else log.log_mu[kept],
        name=log.name,
    )
