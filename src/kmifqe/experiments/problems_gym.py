"""Problems on MuJoCo tasks: an actor is judged from the noisy log of the same or of another actor.

The actors are those that come with the package, and those that others trained, which a user has in a folder. A target
acts at a share of the way from the behaviour's mean to another actor: at 1 it is that actor, which mostly acts so
differently that nothing can be said of it, and at a quarter the log still holds actions like its own. The truth is
measured by playing the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from kmifqe.behavior import GaussianBehavior
from kmifqe.experiments.policies import digest, load_shipped_actors
from kmifqe.experiments.problems_base import Arrays, FamilyProblem, Part, Sources, halves
from kmifqe.experiments.records import kept, kept_file, settings_hash
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.policies.actor import Actor, load_npz_actor
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.worlds.gym_truth import Truth

GAMMAS = (0.95, 0.99)
NOISES = (0.1, 0.2, 0.3, 0.5)  # standard deviations of the behaviour, in half action ranges
ROWS = (10_000, 30_000, 100_000)
SHARES = (0.25, 0.5, 1.0)  # of the way from the behaviour's mean to the other actor
TRUTH_SEED = 1_000  # not a log's: the truth is of the population, not of the logged first states
LONGEST = 1_146  # steps of a rollout, after which 0.99ᵗ is negligible
SHIPPED = ("target", "behavior")  # the actors that come with the package, by name
ROWS_AS_LONG = 30_000  # so many rows take as long as the rest of a fit, roughly


@dataclass(frozen=True)
class GymTask:
    """A MuJoCo task, and which pairs of its actors make problems."""

    env_name: str  # without the version
    action_dim: int
    ends: bool  # whether episodes can end before their time limit
    pairs: tuple[tuple[str, str], ...]  # (target, behaviour's mean), by name
    per_pair: int = 2  # problems

    @property
    def env_id(self) -> str:
        """The Gymnasium id."""
        return f"{self.env_name}-v5"


def _with_itself(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


_SHIPPED_PAIRS = (("target", "target"), ("target", "behavior"), ("behavior", "target"))
TASKS = {
    "hopper": GymTask(
        "Hopper",
        3,
        True,
        (
            *_SHIPPED_PAIRS,
            *_with_itself("sac", "trpo", "ppo", "a2c"),
            ("trpo", "sac"),
            ("sac", "ppo"),
            ("a2c", "trpo"),
        ),
    ),
    "walker2d": GymTask(
        "Walker2d",
        6,
        True,
        (
            *_SHIPPED_PAIRS,
            *_with_itself("sac", "trpo", "a2c"),
            ("sac", "trpo"),
            ("trpo", "a2c"),
            ("a2c", "sac"),
        ),
    ),
    "halfcheetah": GymTask(
        "HalfCheetah",
        6,
        False,
        (
            *_SHIPPED_PAIRS,
            *_with_itself("sac", "trpo", "ppo", "a2c"),
            ("sac", "ppo"),
            ("trpo", "sac"),
            ("ppo", "a2c"),
        ),
    ),
    "swimmer": GymTask(
        "Swimmer", 2, False, (*_with_itself("sac", "a2c"), ("sac", "a2c"), ("a2c", "sac")), per_pair=4
    ),
}


@dataclass(frozen=True)
class Blend:
    """A policy at a share of the way from one actor's action to another's."""

    start: Actor
    end: Actor
    share: float

    @property
    def low(self) -> np.ndarray:
        """Lower end of the action box, shape (d,)."""
        return self.start.low

    @property
    def high(self) -> np.ndarray:
        """Upper end of the action box, shape (d,)."""
        return self.start.high

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the action for each row of `states`."""
        return (1.0 - self.share) * self.start(states) + self.share * self.end(states)


class GymProblem(FamilyProblem, frozen=True, kw_only=True, tag="mujoco"):
    """A target on a MuJoCo task, judged from a log of another policy with Gaussian noise."""

    task: str
    target: str  # an actor's name
    behavior: str  # likewise, of the behaviour's mean
    share: float = 1.0  # of the way from the behaviour's mean to the target's actor
    noise: float  # standard deviation of the behaviour, in half action ranges
    transitions: int
    truth_episodes: int

    @property
    def family(self) -> str:
        """The family of worlds."""
        return "mujoco"

    @property
    def kind(self) -> str:
        """The task."""
        return self.task

    @property
    def rows(self) -> int:
        """Logged steps."""
        return self.transitions

    @property
    def action_dim(self) -> int:
        """How many numbers an action has."""
        return TASKS[self.task].action_dim

    @property
    def program(self) -> str:
        """A name that problems share which one compiled program serves."""
        # Where episodes end decides the arrays' shapes; tasks without ends have the same in every log of a size.
        log = f" {self.behavior} {self.noise} {self.seed}" if TASKS[self.task].ends else ""
        return f"{self.task} {self.transitions}{log}"

    @property
    def weight(self) -> float:
        """How long it takes beside a linear-quadratic problem."""
        return 1.0 + self.transitions / ROWS_AS_LONG

    @property
    def settings_text(self) -> str:
        """The settings of the world and the log in words."""
        target = self.target if self.is_whole else f"{self.share:g} of the way to {self.target}"
        return f"{self.task}, {target} from {self.behavior}, std {self.noise:g}, {self.transitions:,} rows"

    @property
    def is_whole(self) -> bool:
        """Whether the target is an actor itself, and not between two."""
        return self.share == 1.0 or self.target == self.behavior

    def missing(self, sources: Sources) -> str | None:
        """Return what the problem needs and `sources` or this machine lack; None where nothing is missing."""
        if find_spec("mujoco") is None:
            return "the package mujoco (pip install 'kmifqe[mujoco]')"
        for name in (self.target, self.behavior):
            if name not in SHIPPED and not self._is_there(name, sources):
                return "actors that others trained (--policies DIR)"
        return None

    def parts(self) -> dict[Part, float]:
        """Return which of its data are kept in files, each with the number of simulated steps that it takes."""
        return {"log": self.transitions, "truth": self.truth_episodes * LONGEST}

    def file(self, part: Part, sources: Sources) -> Path:
        """Return the file that keeps a `part` of the data, under the folder of `sources`."""
        if part == "truth":
            return kept_file(sources.folder / "truths", self.task, self._truth_settings(sources))
        settings = {
            "env": TASKS[self.task].env_id,
            "behavior": digest(self._actor(self.behavior, sources)),
            "noise": self.noise,
            "rows": self.transitions,
            "seed": self.seed,
        }
        return sources.folder / "logs" / f"{self.task}-{settings_hash(settings)}.hdf5"

    def make(self, part: Part, sources: Sources) -> None:
        """Make a `part` of the data and keep it in its file, unless it is there."""
        if part == "truth":
            self._truths(sources)
        else:
            self._log_file(sources)

    def arrays(self, sources: Sources) -> Arrays:
        """Return the arrays and the truth, from the files in `sources` where those are there."""

        from kmifqe.worlds.gym_envs import describe_task

        log = self.log(sources)
        # The task's own bounds, as the collection used: an actor's may be rounded.
        task = describe_task(TASKS[self.task].env_id)
        told = GaussianBehavior(
            self._actor(self.behavior, sources), self.noise * self.told_width, task.low, task.high
        )
        truth = self._truths(sources)[GAMMAS.index(self.gamma)]
        problem = Problem.build(log, self._policy(sources), told, self.gamma)
        return Arrays(problem, log, truth.value, truth.value_standard_error)

    def log(self, sources: Sources) -> Transitions:
        """Return the log, from its file in `sources` where that is there."""
        return load_dataset(self._log_file(sources))

    def _log_file(self, sources: Sources) -> Path:
        """Return the file of the log, after collecting it if it is not there."""
        from kmifqe.worlds.gym_collect import collect

        path = self.file("log", sources)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            collect(
                TASKS[self.task].env_id,
                self._actor(self.behavior, sources),
                path,
                transitions=self.transitions,
                noise=self.noise,
                seed=self.seed,
                overwrite=True,  # another process may have collected the same rows meanwhile
            )
        return path

    def _truths(self, sources: Sources) -> list[Truth]:
        """Return the target's value at each of `GAMMAS`, from the same episodes."""
        from kmifqe.worlds.gym_truth import measure_truths

        def measured() -> list[Truth]:
            found = measure_truths(
                TASKS[self.task].env_id,
                self._policy(sources),
                GAMMAS,
                episodes=self.truth_episodes,
                seed=TRUTH_SEED,
            )
            return list(found)

        settings = self._truth_settings(sources)
        return kept(sources.folder / "truths", self.task, settings, list[Truth], measured)

    def _truth_settings(self, sources: Sources) -> dict[str, Any]:
        names = (self.target,) if self.is_whole else (self.behavior, self.target)
        return {
            "env": TASKS[self.task].env_id,
            "policies": [digest(self._actor(name, sources)) for name in names],
            "share": 1.0 if self.is_whole else self.share,
            "gammas": list(GAMMAS),
            "episodes": self.truth_episodes,
            "seed": TRUTH_SEED,
        }

    def _policy(self, sources: Sources) -> Actor | Blend:
        target = self._actor(self.target, sources)
        return target if self.is_whole else Blend(self._actor(self.behavior, sources), target, self.share)

    def _actor(self, name: str, sources: Sources) -> Actor:
        if name in SHIPPED:
            return getattr(load_shipped_actors(self.task), name)
        assert sources.policies is not None, "`missing` says whether an actor is there"
        return load_npz_actor(sources.policies / self._file_name(name))

    def _is_there(self, name: str, sources: Sources) -> bool:
        return sources.policies is not None and (sources.policies / self._file_name(name)).is_file()

    def _file_name(self, name: str) -> str:
        return f"{name}-{TASKS[self.task].env_name}-v3.npz"  # as rl-trained-agents calls them


def gym_family(tasks: tuple[str, ...], truth_episodes: int, seed: int = 0) -> tuple[GymProblem, ...]:
    """Return the problems of these MuJoCo `tasks`, pair after pair.

    `truth_episodes` are played to measure each truth. `seed` (default 0) decides what is drawn. All problems of a
    pair of actors belong to one half. Where episodes can end, they share one log too: every such log has its own
    counts of rows and episodes, which cost a compilation.
    """
    drawn = []
    for task in tasks:
        found = TASKS[task]
        belong = halves([f"{task}, {target} from {behavior}" for target, behavior in found.pairs])
        for number, ((target, behavior), half) in enumerate(zip(found.pairs, belong)):
            rng = np.random.default_rng([seed, list(TASKS).index(task), number])
            log = _drawn_log(rng)
            for each in range(found.per_pair):
                log = log if found.ends else _drawn_log(rng)
                drawn.append(
                    GymProblem(
                        task=task,
                        target=target,
                        behavior=behavior,
                        share=1.0 if target == behavior else float(rng.choice(SHARES)),
                        truth_episodes=truth_episodes,
                        gamma=GAMMAS[each % len(GAMMAS)],
                        half=half,
                        **log,
                    )
                )
    return tuple(drawn)


def _drawn_log(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "noise": float(rng.choice(NOISES)),
        "transitions": int(rng.choice(ROWS)),
        "seed": int(rng.integers(1, 2**31 - 1)),
    }
