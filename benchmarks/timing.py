"""Times taken in turns, so that all see the same load; and fit's own programs, ready to be timed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.estimators import Estimator
from kmifqe.mdp.problem import Problem

programs = sys.modules["kmifqe.estimators.fit"]  # as a name of the package, `fit` is the function


def medians(works: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each, after a call that compiles; they take turns, one call each."""
    for work in works.values():
        jax.block_until_ready(work())
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            clock = time.perf_counter()
            jax.block_until_ready(work())
            times[name].append(time.perf_counter() - clock)
    return {name: float(np.median(series)) for name, series in times.items()}


@dataclass
class Run:
    """A fit under way, advanced by the programs that `fit` runs."""

    estimator: Estimator
    problem: Problem
    keys: jax.Array
    state: Any

    @classmethod
    def begin(cls, estimator: Estimator, problem: Problem, seeds: int, like: Estimator | None = None) -> Run:
        """Return a fit of `seeds` seeds at its start.

        With `like`, the same estimator with a narrow network, what is known of every row comes from that one: a
        step costs the same whatever the values, and a start on millions of rows takes seconds, not minutes.
        """
        keys = jnp.stack([jax.random.key(seed) for seed in range(seeds)])
        if like is None:
            return cls(estimator, problem, keys, programs._init(estimator, keys, problem))
        state = programs._init(estimator, keys, problem.head(1024))
        about_rows = programs._init(like, keys, problem)
        fields = ("table", "envelope", "h", "log_h")
        return cls(
            estimator, problem, keys, state._replace(**{name: getattr(about_rows, name) for name in fields})
        )

    def steps(self, count: int) -> Any:
        """Take `count` steps, one scan."""
        start = jnp.int32(0)
        args = (self.estimator, count, self.keys, self.state, self.problem, start)
        self.state, _ = programs._run_steps(*args)
        return self.state

    def refresh(self) -> Any:
        """Refresh once, with new metrics."""
        refresh = self.estimator.refresh
        kind = refresh.kind(refresh.restart_every)
        self.state = programs._refresh(refresh.run, kind, self.state, self.problem)
        return self.state

    def period(self, steps: int) -> Any:
        """Take the steps between two copies of the target network, with every refresh that falls due."""
        args = (self.estimator, self.keys, self.state, self.problem)
        self.state, _ = programs._advance(*args, 0, steps)
        self.state = programs._refreshed(self.estimator, steps, self.state, self.problem)
        return self.state
