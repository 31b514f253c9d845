"""KMIFQE put together: the estimator, its settings by preset, its registry entries, and what diagnostics ask of it.

The algorithm itself is in `algorithm`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from kmifqe.estimators.base import Estimate, Estimator, Kernel, Network, Refresh, input_units, soft_share
from kmifqe.estimators.kmifqe import algorithm
from kmifqe.estimators.kmifqe.algorithm import KMIFQEState
from kmifqe.estimators.kmifqe.config import KMIFQEConfig
from kmifqe.estimators.kmifqe.rows import inputs, log_mu
from kmifqe.estimators.registry import PRESETS, EstimatorEntry
from kmifqe.estimators.sizing import FitSize
from kmifqe.maths import mlp
from kmifqe.maths.kernel import clipped_weight, log_kernel
from kmifqe.maths.metric import optimal_metric
from kmifqe.mdp.problem import Problem

__all__ = [
    "DEFAULT",
    "ENTRIES",
    "PAPER",
    "KMIFQEConfig",
    "KMIFQEState",
    "make_kmifqe",
]

PAPER = KMIFQEConfig()


@cache  # one set of functions per config, so that jit compiles it once
def make_kmifqe(config: KMIFQEConfig = PAPER) -> Estimator:
    """Return KMIFQE with the settings `config`; by default the paper's for Pendulum."""
    return Estimator(
        "kmifqe" if config.metric == "learned" else "kmifqe-identity",
        config,
        partial(algorithm.init, config),
        partial(algorithm.step, config),
        partial(algorithm.value, config),
        default_steps=1_000_000,
        refresh=Refresh(
            partial(algorithm.refresh, config),
            every=algorithm.refresh_every(config),
            kind=partial(algorithm.refresh_kind, config),
            recomputed=("table", "envelope") if config.tau else ("table", "envelope", "target"),
            restart_every=config.metric_steps,
        ),
        q=jax.jit(partial(_q, config)),
        network=partial(_network, config),
        features=jax.jit(partial(_features, config)),
        kernel=Kernel(
            lambda state: state.h,
            jax.jit(partial(_log_weight_factors, config)),
            jax.jit(partial(_importance_weights, config)),
            jax.jit(partial(_hessians_and_metrics, config)),
            clip=config.clip,
            bandwidth_bounds=config.bandwidth_bounds if config.bandwidth is None else None,
            widest_bandwidth=(
                (lambda state: state.table.bandwidths.widest) if config.bandwidth is None else None
            ),
            bias_removed=partial(_bias_removed, config),
        ),
        arrived=partial(_arrived, config),
    )


def _arrived(config: KMIFQEConfig, steps: int, gamma: float) -> float:
    """Return the largest share of V that can have arrived after `steps`: each copy passes on γ of what it holds."""
    if config.tau:
        return soft_share(config.tau, steps, gamma)
    return 1.0 - gamma ** (steps // config.target_period)


# What differs between the columns of the paper's appendix; everything else is the config's own default.
_COLUMNS: dict[str, dict[str, Any]] = {
    "pendulum": {"batch": 1024},
    "mujoco": {"batch": 2048, "clip_per_dimension": True},
    "d4rl": {"batch": 2048, "density_floor": 1e-3},
}
# The same estimate with a tenth of the arithmetic or less (docs/evidence/speed.md has what was tried, and what
# each setting gave). A copy of the target network contracts by γ only, so convergence needs a number of copies, not
# of steps: 800 at γ = 0.99, and 160 at Pendulum's 0.95.
_FAST = {"learning_rate": 1e-3, "bandwidth_period": 4, "target_period": 125, "metric_period": 20}
_FAST_PENDULUM = {"target_period": 250, "metric_period": 4}


def _at_preset(preset: str, steps: int | None) -> dict[str, Any]:
    """Return a preset's settings; with a fast one the learning rate falls over all `steps` of the fit."""
    column = preset.removesuffix("-fast")
    if column == preset and preset in _COLUMNS:
        return dict(_COLUMNS[preset])
    changes = _COLUMNS.get(column, _COLUMNS["pendulum"]) | _FAST | {"decay_steps": steps or PRESETS[preset]}
    return changes | _FAST_PENDULUM if column == "pendulum" else changes


# What users get (docs/estimators/kmifqe.md has why): weights are cut at 10, the kernel's bias is subtracted, Q is
# learned in the units of the log's returns, and the target network moves softly, so that few steps are enough.
DEFAULT = KMIFQEConfig(
    clip=(1e-3, 10.0),
    bias="subtracted",
    units="returns",
    bounded=True,
    cut_actions=True,
    learning_rate=1e-3,
    bandwidth_period=4,
    tau=0.02,
)
# Metrics in a fit of the default sizes: one for every time that its steps go over the log, but so few and so many at
# least and at most. Each takes the Hessians of all rows, which on a large log is more work than the steps in between.
METRICS = (6, 30)


def _sized(size: FitSize) -> dict[str, Any]:
    """Return the sizes of a fit, and the steps between its metrics."""
    least, most = METRICS
    metrics = min(max(int(size.passes), least), most)
    return size.settings() | {"target_period": max(1, size.steps // metrics)}


def _default_at_preset(preset: str, steps: int | None) -> dict[str, Any]:
    """Return the batch and the steps of a preset; what else a preset has is the paper's, or was made for it."""
    column = preset.removesuffix("-fast")
    return {"batch": _COLUMNS.get(column, {}).get("batch", 1024), "decay_steps": steps or PRESETS[preset]}


@cache  # one object per config, as of `make_kmifqe`
def make_kmifqe_paper(config: KMIFQEConfig = PAPER) -> Estimator:
    """Return KMIFQE under the name of the paper's settings, so that both can stand in one table."""
    return make_kmifqe(config)._replace(name="kmifqe-paper")


_PAPER = EstimatorEntry(
    name="kmifqe-paper",
    label="KMIFQE, as in the paper",
    color="#4a5fc1",
    dark_color="#96a6f5",
    config=PAPER,
    make=make_kmifqe_paper,
    needs_density=True,
    targets="deterministic",
    summary="in-sample fitted Q evaluation with a learned kernel, to the paper's letter",
    page="docs/estimators/kmifqe.md",
    at_preset=_at_preset,
    steps_at=PRESETS.__getitem__,
    use_when="the target is deterministic, actions are noisy in the log, and their density is known or can be fitted",
    avoid_when="hardly any logged action lies near the target's, or actions have many dimensions that all matter",
)
ENTRIES = (
    replace(
        _PAPER,
        name="kmifqe",
        label="KMIFQE",
        color="#0072b2",
        dark_color="#56b4e9",
        config=DEFAULT,
        make=make_kmifqe,
        summary="in-sample fitted Q evaluation with a learned kernel",
        at_preset=_default_at_preset,
        sized=_sized,
    ),
    _PAPER,
    replace(
        _PAPER,
        name="kmifqe-identity",
        label="KMIFQE without metric",
        color="#c98500",
        dark_color="#f0b440",
        config=KMIFQEConfig(metric="identity"),
        make=make_kmifqe,
        summary="KMIFQE without its metric, the paper's ablation",
    ),
)


# --- What diagnostics ask (`base.Estimator`, `base.Kernel`)


def _q(
    config: KMIFQEConfig, state: KMIFQEState, problem: Problem, states: Array, actions: Array
) -> Float[Array, " n"]:
    x = inputs(config, problem, states, actions)
    f = jax.vmap(mlp.q_value, in_axes=(None, 0))(state.params, x)
    return state.units.value(state.units.bounded(f, problem) if config.bounded else f)


def _features(
    config: KMIFQEConfig, state: KMIFQEState, problem: Problem, states: Array, actions: Array
) -> Float[Array, "n hidden"]:
    passes = jax.vmap(mlp.q_pass, in_axes=(None, 0))(state.params, inputs(config, problem, states, actions))
    return passes.u2


def _network(config: KMIFQEConfig, state: KMIFQEState, problem: Problem) -> Network:
    p = state.params
    b3 = p.b3 + state.units.center / state.units.scale
    layers = (p.w1, p.b1), (p.w2, p.b2), (p.w3[:, None], b3[None])
    shift, scale = input_units(problem, "standardized")
    return Network(layers, "tanh", shift, scale, state.units.scale, config.cut_actions)


def _log_weight_factors(
    config: KMIFQEConfig, state: KMIFQEState, problem: Problem, rows: Array
) -> Float[Array, "rows k"]:
    squared = state.table.squared[rows]
    dims = problem.action_dim // squared.shape[1]
    return log_kernel(squared, state.h, dims) - log_mu(config, problem, rows)


def _importance_weights(
    config: KMIFQEConfig, state: KMIFQEState, problem: Problem, rows: Array
) -> Float[Array, " rows"]:
    weigh = lambda s, m: clipped_weight(s, state.h, m, problem.action_dim, config.clip)  # noqa: E731
    return jax.vmap(weigh)(state.table.squared[rows], log_mu(config, problem, rows))


def _hessians_and_metrics(
    config: KMIFQEConfig, state: KMIFQEState, problem: Problem, states: Array, actions: Array
) -> tuple[Float[Array, "n d d"], Float[Array, "n d d"]]:
    def at(x: Array) -> tuple[Array, Array]:
        H = mlp.action_hessian(state.params, x, problem.action_dim)
        H = 0.5 * (H + H.T)
        learned = config.metric == "learned"
        A = optimal_metric(H, config.metric_floor) if learned else jnp.eye(problem.action_dim)
        return state.units.scale * H, A

    return jax.vmap(at)(inputs(config, problem, states, actions))


def _bias_removed(config: KMIFQEConfig, estimate: Estimate) -> float | None:
    """Return how far V̂ moved by subtracting the kernel's bias; None where it was not subtracted."""
    if config.bias == "ignored":
        return None
    return -float(np.mean(estimate.infos["bias"][-1][np.isfinite(estimate.values)]))
