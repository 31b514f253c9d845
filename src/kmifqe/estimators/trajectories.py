"""Logged episodes side by side, and how much likelier the target makes each of their actions.

The ratio of a step is π(a|s)/μ(a|s) for a stochastic target. A deterministic one has no density: its ratio is that of
a Gaussian kernel around its action, h⁻ᵈ K((a − π̃(s))/h)/μ(a|s), as in KMIFQE without a metric (Kallus & Zhou, 2018).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from kmifqe.errors import InputError
from kmifqe.estimators.base import action_scale, scaled
from kmifqe.maths.kernel import effective_sample_size, log_kernel
from kmifqe.mdp.problem import Problem

LARGEST = 40.0  # of a product's logarithm: its square stays finite in float32
LEAST = -1e4  # of a ratio's logarithm: nothing, but differences of sums stay numbers


class Steps(NamedTuple):
    """The steps of all episodes, (episodes, horizon); after an episode's last step everything is 0 or False."""

    rows: Int[Array, "m horizon"]  # of the problem; 0 where there is none
    there: Bool[Array, "m horizon"]  # whether the episode has this step
    rewards: Float[Array, "m horizon"]
    ended: Bool[Array, " m"]  # whether the episode terminated within the horizon
    log_mu: Float[Array, "m horizon"]  # log μ(a|s), per half action range for a deterministic target
    log_pi: Float[Array, "m horizon"] | None  # log π(a|s); None for a deterministic target
    squared: (
        Float[Array, "m horizon"] | None
    )  # ‖a − π̃(s)‖² in half action ranges; None for a stochastic target

    @property
    def goes_on(self) -> Bool[Array, "m horizon"]:
        """Whether an episode is known to go on after this step."""
        last = jnp.sum(self.there, axis=1) - 1
        is_end = self.ended[:, None] & (jnp.arange(self.there.shape[1]) == last[:, None])
        return self.there & ~is_end

    def standing(self, e: Float[Array, " m"]) -> Float[Array, "m horizon"]:
        """Return for how many episodes each stands at each time; 0 where its reward is not known.

        A reward is 0 after an end, and unknown after a cut. Episodes that were cut are not like those that are known
        for longer, because an end is known for good: so those that still went on at a cut stand for the ones that
        were cut there, 1/G of them with G the share that no cut has met (Kaplan and Meier, 1958). `e` are the
        episodes' own weights. Where every episode ends or is as long as the others it stands for itself alone.
        """
        going_on = jnp.sum(e[:, None] * self.goes_on, axis=0)[:-1]
        not_cut = jnp.sum(e[:, None] * self.there, axis=0)[1:]
        uncut = jnp.concatenate([jnp.ones(1), jnp.cumprod(not_cut / jnp.maximum(going_on, 1e-30))])
        last = jnp.sum(self.there, axis=1, keepdims=True) - 1
        at = jnp.minimum(jnp.arange(len(uncut)), last)  # after an end it stands for as many as at the end
        return jnp.where(self.there | self.ended[:, None], 1.0 / uncut[at], 0.0)


def check_trajectories(name: str, problem: Problem) -> None:
    """Refuse, for the estimator `name`, a `problem` without episodes that are laid out or without a density."""
    if problem.trajectory_rows is None:
        raise InputError(
            f"{name} follows episodes; build the problem with Problem.build(..., trajectories=True)"
        )
    if problem.log_mu is None or problem.first_log_mu is None:
        raise InputError(f"{name} needs a behaviour density; give one with --behavior (behavior=)")


def steps_of(problem: Problem) -> Steps:
    """Return the steps of the episodes of `problem`, which has them laid out and has a density.

    A row tells of its next state and action, so what the policies say of an action stands on the row before, and for
    an episode's first action in arrays of its own.
    """
    assert problem.trajectory_rows is not None
    assert problem.log_mu is not None
    assert problem.first_log_mu is not None
    rows, there = jnp.maximum(problem.trajectory_rows, 0), problem.trajectory_rows >= 0
    before = rows[:, :-1]

    def by_step(first: Array, following: Array) -> Array:
        return jnp.concatenate([first[:, None], following[before]], axis=1)

    log_mu = by_step(problem.first_log_mu.sum(axis=1), problem.log_mu.sum(axis=1))
    log_pi = squared = None
    if problem.log_pi is not None and problem.first_log_pi is not None:
        log_pi = by_step(problem.first_log_pi, problem.log_pi)
    else:
        _, half = action_scale(problem)
        log_mu = log_mu + jnp.sum(jnp.log(half))
        first_rows = jnp.maximum(problem.trajectory_rows[:, 0], 0)
        gap = scaled(problem, problem.actions[first_rows]) - scaled(problem, problem.first_actions)
        between = scaled(problem, problem.next_actions[before]) - scaled(
            problem, problem.target_actions[before]
        )
        squared = jnp.concatenate([jnp.sum(gap**2, axis=-1)[:, None], jnp.sum(between**2, axis=-1)], axis=1)
    return Steps(
        rows=jnp.where(there, rows, 0),
        there=there,
        rewards=jnp.where(there, problem.rewards[rows], 0.0),
        ended=jnp.any(there & problem.terminated[rows], axis=1),
        log_mu=jnp.where(there, log_mu, 0.0),
        log_pi=None if log_pi is None else jnp.where(there, log_pi, 0.0),
        squared=None if squared is None else jnp.where(there, squared, 0.0),
    )


def log_ratios(
    steps: Steps, h: Float[Array, ""] | float, action_dim: int, largest: float
) -> Float[Array, "m horizon"]:
    """Return the logarithm of each ratio in `steps`, at most log `largest`; 0 where an episode has no such step.

    `h` is the kernel's bandwidth in half action ranges, of `action_dim` dimensions; a stochastic target has none.
    """
    if steps.log_pi is not None:
        log_ratio = steps.log_pi - steps.log_mu
    else:
        assert steps.squared is not None
        log_ratio = log_kernel(steps.squared, h, action_dim) - steps.log_mu
    return jnp.where(steps.there, jnp.clip(log_ratio, LEAST, jnp.log(largest)), 0.0)


def widest_bandwidth(steps: Steps, grid: Float[Array, " g"], action_dim: int) -> Int[Array, ""]:
    """Return the place in the `grid` of the widest bandwidth that the log allows: of the largest effective sample.

    Beyond it the kernel is wider than the logged actions: the rare ones in its tails have most of the weight, so that
    bias and variance both grow. Only bandwidths count at which the log holds half of the kernel's mass, or the rows
    that would show it are not there. `steps` and `action_dim` are as for `log_ratios`.
    """

    def at(h: Array) -> tuple[Array, Array]:
        ratios = jnp.where(steps.there, jnp.exp(log_ratios(steps, h, action_dim, jnp.inf)), 0.0).ravel()
        return jnp.sum(ratios) / jnp.sum(steps.there), effective_sample_size(ratios)

    means, effective = jax.lax.map(at, grid)
    return jnp.argmax(jnp.where(means > 0.5, effective, 0.0))
