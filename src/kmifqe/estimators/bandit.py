"""Kernel estimates for contextual bandits, whose episodes have one step: a ~ μ(·|s), a reward, and the end.

With the model r̂(s, a) of the reward, w = h⁻ᵈ K(Lᵀ(a − π̃(s))/h)/μ(a|s), and V = (1 − γ) E r (give --gamma 0 for E r):

    kernel-ipw   Σ w r / Σ w
    kernel-dr    mean of r̂(s, π̃(s)) + Σ w (r − r̂(s, a)) / Σ w

(Kallus and Zhou, 2018.) The bandwidth is the one of the least leading-order mean squared error, h⁴b² + v/(n hᵈ), and
the metric A = L Lᵀ is that of Lee et al. (2022), which stretches the kernel along actions that do not matter. Both
need the second derivatives of r̂, a network with tanh.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from kmifqe.errors import InputError
from kmifqe.estimators.base import (
    Estimator,
    Info,
    action_scale,
    learning_rates,
    mean_over_rows,
    network_input,
    require,
    require_counts,
    require_positive,
    row_weights,
    scaled,
)
from kmifqe.estimators.importance_sampling import BANDWIDTHS
from kmifqe.estimators.registry import PRESETS, EstimatorEntry
from kmifqe.estimators.sizing import FitSize
from kmifqe.estimators.trajectories import LARGEST, check_trajectories
from kmifqe.maths import mlp
from kmifqe.maths.kernel import effective_sample_size, kernel_roughness, log_kernel, optimal_bandwidth
from kmifqe.maths.metric import metric_root
from kmifqe.mdp.problem import Problem


@dataclass(frozen=True)
class BanditConfig:
    """Settings of the kernel estimates for bandits."""

    uses_model: bool = (
        True  # whether the model's own value is what the weights mend (DR), or they stand alone (IPW)
    )
    metric: str = "learned"  # of the kernel, from the model's Hessians (Lee et al., 2022), or "identity"
    metric_floor: float = 0.1  # bounds the metric's condition number by 1 + 1/floor, as in KMIFQE
    bandwidth: float | None = None  # in half action ranges; None: Kallus and Zhou's (2018)
    hidden: int = 64  # units in each of two tanh layers of the reward's model
    batch: int = 256  # rows a step
    learning_rate: float = 2e-3  # Adam
    decay_steps: int = 0  # steps over which the learning rate falls to a hundredth; 0: constant

    def __post_init__(self) -> None:
        require(self.metric in ("learned", "identity"), "metric", repr(self.metric), "learned or identity")
        require(self.metric_floor >= 0, "metric_floor", self.metric_floor, "0 or more")
        require(
            self.bandwidth is None or self.bandwidth > 0, "bandwidth", self.bandwidth, "a positive number"
        )
        require_counts(self, "hidden", "batch")
        require_positive(self, "learning_rate")


class BanditState(NamedTuple):
    """The model of the reward, in the units of the log's returns, and its optimiser."""

    params: mlp.QParams
    opt_state: optax.OptState
    info: dict[str, Array]  # of the weights of a pilot kernel, before any model is known


def check_problem(name: str, problem: Problem) -> None:
    """Refuse, for the estimator `name`, a `problem` that is no bandit's, or has a stochastic target or no density."""
    check_trajectories(name, problem)
    if problem.is_stochastic:
        raise InputError(
            f"{name} relaxes a deterministic target by a kernel; wis and wdr weight by a true ratio"
        )
    if problem.counts.terminated < problem.counts.used or problem.counts.episodes < problem.counts.used:
        raise InputError(
            f"{name} is for episodes of one step, each marked as terminated; this log has "
            f"{problem.counts.used:,} rows in {problem.counts.episodes:,} episodes, {problem.counts.terminated:,} of "
            "them terminated; wpdis and wdr follow longer episodes"
        )


def first_rows(problem: Problem) -> Int[Array, " m"]:
    """Return the row of every episode of `problem`."""
    assert problem.trajectory_rows is not None
    return jnp.maximum(problem.trajectory_rows[:, 0], 0)


def episode_weights(problem: Problem) -> Float[Array, " m"]:
    """Return the weights of a bootstrap's episodes, or ones."""
    e = problem.episode_weights
    return jnp.ones(problem.first_states.shape[0]) if e is None else e


def log_density(problem: Problem) -> Float[Array, " m"]:
    """Return log μ(a|s) per half action range."""
    assert problem.first_log_mu is not None
    return problem.first_log_mu.sum(axis=1) + jnp.sum(jnp.log(action_scale(problem)[1]))


def weights_at(problem: Problem, squared: Array, e: Array, h: Array) -> Float[Array, " m"]:
    """Return the kernel's weights in `problem` at the bandwidth `h`, times the episodes' own `e`.

    `squared` are the distances of logged actions from the target's, in half action ranges and the metric.
    """
    log_weight = log_kernel(squared, h, problem.action_dim) - log_density(problem)
    return e * jnp.exp(jnp.minimum(log_weight, LARGEST))


def pilot_weights(problem: Problem, squared: Array, e: Array) -> tuple[Float[Array, " m"], Float[Array, ""]]:
    """Return the weights of a pilot kernel, half as wide as the widest that the log allows, and that bandwidth.

    The widest one has the largest effective sample, of those at which the log holds half of the kernel's mass.
    `problem`, `squared` and `e` are as for `weights_at`.
    """
    grid = jnp.asarray(BANDWIDTHS)
    each = jax.lax.map(partial(weights_at, problem, squared, e), grid)
    held = jnp.mean(each, axis=1) > 0.5
    widest = grid[jnp.argmax(jnp.where(held, jax.vmap(effective_sample_size)(each), 0.0))]
    return weights_at(problem, squared, e, 0.5 * widest), widest


@cache  # one set of functions per name and config, so that jit compiles it once
def make_bandit(name: str, config: BanditConfig) -> Estimator:
    """Return the kernel estimator called `name` with the settings `config`."""
    optimizer = optax.adam(learning_rates(config))

    def inputs(problem: Problem, states: Array, actions: Array) -> Array:
        return network_input(problem, states, actions, "standardized")

    def rewards(problem: Problem, rows: Array | slice) -> Array:
        """Return V of single rows, (1 − γ) r, less its centre and in its scale."""
        return ((1.0 - problem.gamma) * problem.rewards[rows] - problem.value_center) / problem.value_scale

    def model(params: mlp.QParams, problem: Problem, states: Array, actions: Array) -> Float[Array, " n"]:
        return jax.vmap(mlp.q_value, in_axes=(None, 0))(params, inputs(problem, states, actions))

    def init(key: Array, problem: Problem) -> BanditState:
        check_problem(name, problem)
        params = mlp.init_q(key, problem.state_dim + problem.action_dim, config.hidden)
        rows = first_rows(problem)
        z = scaled(problem, problem.actions[rows]) - scaled(problem, problem.first_actions)
        pilot = pilot_weights(problem, jnp.sum(z**2, axis=1), episode_weights(problem))[0]
        info = {
            "effective_episodes": effective_sample_size(pilot),
            "largest_share": jnp.max(pilot) / jnp.maximum(jnp.sum(pilot), 1e-30),
        }
        return BanditState(params, optimizer.init(params), info)

    def step(key: Array, t: Array, state: BanditState, problem: Problem) -> tuple[BanditState, Info]:
        rows = jax.random.randint(key, (config.batch,), 0, len(problem))
        goal, weights = rewards(problem, rows), row_weights(problem, rows)

        def loss(params: mlp.QParams) -> Float[Array, ""]:
            now = model(params, problem, problem.states[rows], problem.actions[rows])
            return mean_over_rows((now - goal) ** 2, weights)

        error, gradient = jax.value_and_grad(loss)(state.params)
        updates, opt_state = optimizer.update(gradient, state.opt_state)
        params = optax.apply_updates(state.params, updates)
        return state._replace(params=params, opt_state=opt_state), {"loss": error} | state.info

    def hessians(state: BanditState, problem: Problem) -> Float[Array, "n d d"]:
        at_target = inputs(problem, problem.first_states, problem.first_actions)
        of_row = partial(mlp.action_hessian, state.params, action_dim=problem.action_dim)
        return jax.vmap(of_row)(at_target)

    def chosen(state: BanditState, problem: Problem, noise: Array, actions: Array, e: Array) -> Array:
        """Return the weights at the best bandwidth for a sum of `noise`, r or r − r̂(s, a)."""
        H, d = hessians(state, problem), problem.action_dim
        z = scaled(problem, actions) - scaled(problem, problem.first_actions)
        root = jax.vmap(partial(metric_root, floor=config.metric_floor))(H)
        if config.metric == "identity":
            root = jnp.broadcast_to(jnp.eye(d), root.shape)
        squared = jnp.sum(jnp.einsum("nij,nj->ni", root, z) ** 2, axis=1)
        if config.bandwidth is not None:
            return weights_at(problem, squared, e, jnp.float32(config.bandwidth))
        pilot, widest = pilot_weights(problem, squared, e)
        shares = pilot / jnp.maximum(jnp.sum(pilot), 1e-30)
        # E[noise²/μ] at the target's actions, and ½ E[tr(A⁻¹H)], as in Theorem 1 of the papers.
        v = kernel_roughness(d) * jnp.sum(shares * noise**2 * jnp.exp(-log_density(problem)))
        inverse = jnp.linalg.inv(jnp.einsum("nij,nkj->nik", root, root))
        b = 0.5 * mean_over_rows(jnp.trace(inverse @ H, axis1=1, axis2=2), e)
        h = optimal_bandwidth(v, jnp.maximum(b**2, 1e-12), len(z), d)
        return weights_at(problem, squared, e, jnp.clip(h, BANDWIDTHS[0], widest))

    def value(state: BanditState, problem: Problem) -> Float[Array, ""]:
        rows, e = first_rows(problem), episode_weights(problem)
        actions, logged = problem.actions[rows], rewards(problem, rows)
        now = model(state.params, problem, problem.first_states, actions)
        noise = logged - now if config.uses_model else logged
        weights = chosen(state, problem, noise, actions, e)
        found = jnp.sum(weights * noise) / jnp.maximum(jnp.sum(weights), 1e-30)
        if config.uses_model:
            at_target = model(state.params, problem, problem.first_states, problem.first_actions)
            found += mean_over_rows(at_target, e)
        return problem.value_center + problem.value_scale * found

    return Estimator(name, config, init, step, value, default_steps=6_000, uses_density=True)


def _sized(size: FitSize) -> dict[str, Any]:
    """Return what of a fit's sizes the reward's model takes."""
    settings = size.settings()
    return {field: settings[field] for field in ("hidden", "batch", "learning_rate", "decay_steps")}


_ENTRY: dict[str, Any] = {
    "needs_density": True,
    "needs_trajectories": True,
    "targets": "deterministic",
    "page": "docs/estimators/bandit.md",
    "steps_at": PRESETS.__getitem__,
    "sized": _sized,
    "avoid_when": "episodes have more than one step: it refuses them",
}
ENTRIES = (
    EstimatorEntry(
        name="kernel-dr",
        label="Kernel DR (bandit)",
        color="#053061",
        dark_color="#6ba3d6",
        config=BanditConfig(),
        make=partial(make_bandit, "kernel-dr"),
        summary="for episodes of one step: a reward model mended by a kernel of learned metric and best bandwidth",
        use_when="every episode has one step (contextual bandits) and the target is deterministic",
        **_ENTRY,
    ),
    EstimatorEntry(
        name="kernel-ipw",
        label="Kernel IPW (bandit)",
        color="#67001f",
        dark_color="#d98a9b",
        config=BanditConfig(uses_model=False),
        make=partial(make_bandit, "kernel-ipw"),
        summary="for episodes of one step: rewards weighted by a kernel of learned metric and best bandwidth",
        use_when="as kernel-dr, and the model is to choose the kernel only",
        **_ENTRY,
    ),
)
