"""The one shape of an estimator, what comes out of a run, and the units and episode weights all of them share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from kmifqe.errors import InputError
from kmifqe.mdp.host_rows import largest_magnitudes
from kmifqe.mdp.problem import Problem

State = Any  # a pytree: what the next step needs
Info = dict[str, Array]  # scalars a person wants to see: h, mean weight, ESS, loss


class Refresh(NamedTuple):
    """What `fit` does between steps: recompute what the state holds about all n rows.

    As a branch inside `step` such arrays would be carried and selected at every step.
    """

    run: Callable[[Any, State, Problem], State]  # kind, state, problem
    every: int  # steps between two refreshes
    kind: Callable[[int], Hashable] = lambda step: (
        None
    )  # what is due after so many steps: `run` is compiled for it
    recomputed: tuple[str, ...] = ()  # state fields that a refresh recomputes: no snapshot keeps them
    restart_every: int = (
        0  # at multiples a fit can begin again from a state without those fields; 0: anywhere
    )


class Network(NamedTuple):
    """A Q network as plain layers, for those who evaluate it outside of JAX (the report's explorer).

    Q(s, a) = unit · layers(([s, cut(a)] − shift)/scale), normalised as V̂ is. An estimator may cut Q to the range that
    rewards allow (`bounded`); the layers say what it was before.
    """

    layers: tuple[tuple[Array, Array], ...]  # weights (inputs, outputs) and biases (outputs,) of each layer
    activation: str  # between two layers: "relu" or "tanh"
    shift: Float[Array, " q+d"]
    scale: Float[Array, " q+d"]
    unit: Float[Array, ""]
    cut_actions: bool  # whether actions are cut to the action box first


class Kernel(NamedTuple):
    """What an estimator with a kernel offers to diagnostics: functions of one seed's state.

    It learns in-sample: from the first `problem.counts.in_sample` rows, and bootstraps on the logged next action.
    Rows are numbers below `problem.counts.nonterminal`; distances between actions are in half action ranges.
    """

    bandwidth: Callable[[State], Float[Array, ""]]  # h
    # State, problem, rows -> the factors' logarithms, unclipped: one a row, or one for each action dimension.
    log_weight_factors: Callable[[State, Problem, Array], Float[Array, "rows k"]]
    importance_weights: Callable[
        [State, Problem, Array], Float[Array, " rows"]
    ]  # clipped, as rows are drawn by
    # State, problem, states, actions -> ∇²ₐQ and the metric A, of the network that `Estimator.q` evaluates. The
    # Hessian is in units of V̂ per squared half action range; the metric has determinant 1.
    hessians_and_metrics: Callable[[State, Problem, Array, Array], tuple[Array, Array]]
    clip: tuple[float, float]  # least and largest value of every factor of a weight
    bandwidth_bounds: tuple[float, float] | None  # between which h is chosen; None: h is fixed
    # The widest bandwidth that the log allows, beyond which h is not chosen; None: h is fixed.
    widest_bandwidth: Callable[[State], Float[Array, ""]] | None
    bias_removed: Callable[[Estimate], float | None]  # how far V̂ moved by a correction of the kernel's bias


class Estimator(NamedTuple):
    """Pure functions for one seed; `fit` scans `step` and runs all seeds under one vmap.

    The parts after `default_steps` are optional. `q` maps a seed's state, the problem, states (n, q) and actions
    (n, d) to Q (n,), in the units of V̂ and with actions read exactly as in training: diagnostics judge the
    function that was trained. `state_of_seed` takes one seed's state out of an estimate's `final_state`.
    """

    name: str
    config: Any  # a frozen dataclass, which checks itself
    init: Callable[[Array, Problem], State]
    step: Callable[[Array, Array, State, Problem], tuple[State, Info]]  # key, t, state, problem
    value: Callable[[State, Problem], Float[Array, ""]]
    default_steps: int
    refresh: Refresh | None = None
    final_value: Callable[[State, Problem], Float[Array, ""]] | None = None  # V̂ at the end; None: `value`
    q: Callable[[State, Problem, Array, Array], Float[Array, " n"]] | None = None  # None: it learns no Q
    network: Callable[[State, Problem], Network] | None = None  # the same Q as plain layers
    # State, problem, states, actions -> φ, (n, width): Q is linear in φ and a constant. None: it has no such form.
    features: Callable[[State, Problem, Array, Array], Float[Array, "n width"]] | None = None
    # State, problem, rows -> how often the target visits a row for every visit of the log. None: it learns no ratio.
    ratio: Callable[[State, Problem, Array], Float[Array, " rows"]] | None = None
    kernel: Kernel | None = None  # None: it learns from all rows, without importance weights
    # Steps, γ -> the largest share of V that can have arrived by then; None: it arrives at once.
    arrived: Callable[[int, float], float | None] = lambda steps, gamma: None
    at_once: bool = False  # it needs no training: one step answers, however many are asked for
    uses_density: bool = False  # it weights logged actions by their density; with a `kernel` always


def state_of_seed(states: State, position: int) -> State:
    """Return one seed's state: `states` is an estimate's `final_state`, `position` the seed's place in `seeds`."""
    return _at(states, position)


@jax.jit  # one program for all leaves: leaf by leaf, each shape would be compiled by itself
def _at(states: State, position: int) -> State:
    return jax.tree.map(lambda leaf: leaf[position], states)


@dataclass(frozen=True)
class Estimate:
    """What came out of a fit: a value per seed, and the trajectory that led there.

    Values are normalised, V = (1 − γ) E Σ γᵗ r; `discounted_return` is V/(1 − γ), as other libraries print.
    """

    estimator: str
    config: dict[str, Any]
    gamma: float
    seeds: tuple[int, ...]
    steps: int
    values: np.ndarray  # (seeds,)
    recorded_steps: np.ndarray  # (records,)
    trajectory: np.ndarray  # (records, seeds): V̂
    infos: dict[str, np.ndarray]  # each (records, seeds), averaged since the record before
    seconds: float
    device: str
    final_state: State = None
    bootstrap: bool = False  # every seed had its own episode weights: the spread is the finite log's too
    episodes: int = 0  # of the log; 0: not known
    measurements: Any = None  # trust.checks.Measurements of the fit; None where it was not measured
    # Of an average over estimators, the weight of each; empty for an estimate that was fitted.
    members: dict[str, float] = field(default_factory=dict)

    @property
    def known(self) -> np.ndarray:
        """V̂ of the seeds that ended with a finite one: seeds train apart, so one that diverged spoils no other."""
        return self.values[np.isfinite(self.values)]

    @property
    def diverged(self) -> int:
        """How many seeds ended without a finite V̂; the figures below are about the others."""
        return len(self.values) - len(self.known)

    @property
    def value(self) -> float:
        """V̂: the mean over seeds; NaN if none has a value."""
        return float(np.mean(self.known)) if len(self.known) else float("nan")

    @property
    def spread(self) -> float:
        """Standard deviation of V̂ over seeds; NaN for fewer than two."""
        return float(np.std(self.known, ddof=1)) if len(self.known) > 1 else float("nan")

    @property
    def standard_error(self) -> float:
        """Standard error of the mean over seeds; what the log's finite size does to V̂ is no part of it."""
        return self.spread / float(np.sqrt(max(len(self.known), 1)))

    @property
    def discounted_return(self) -> float:
        """V̂/(1 − γ), the expected discounted return."""
        return self.value / (1.0 - self.gamma)

    @property
    def corrected(self) -> float | None:
        """V̂ less the kernel's bias, if measured and not subtracted in training (docs/concepts/intervals.md)."""
        kernel = None if self.measurements is None else self.measurements.kernel
        return self.value - kernel.kernel_bias if kernel is not None and kernel.bias_removed is None else None

    def without_state(self) -> Estimate:
        """Return the same without its final state, which is as large as the log."""
        return replace(self, final_state=None)

    def __repr__(self) -> str:
        seeds = f"{len(self.known)} of {len(self.seeds)}" if self.diverged else f"{len(self.seeds)}"
        return (
            f"Estimate({self.estimator}: V = {self.value:.5g} ± {self.spread:.3g} over {seeds} seeds, "
            f"discounted return {self.discounted_return:.5g}, {self.steps:,} steps, {self.seconds:.1f} s)"
        )


def config_dict(config: Any) -> dict[str, Any]:
    """Return a config's fields as JSON can hold them."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()}


def require(holds: bool, name: str, value: Any, expected: str) -> None:
    """Raise an InputError unless `holds`, naming a setting's `name`, its `value`, and what was `expected`."""
    if not holds:
        raise InputError(f"{name} is {value}; expected {expected}")


def require_counts(config: Any, *names: str) -> None:
    """Refuse a config in which one of the fields `names` is not at least 1."""
    for name in names:
        value = getattr(config, name)
        require(value >= 1, name, value, "a whole number of at least 1")


def require_positive(config: Any, *names: str) -> None:
    """Refuse a config in which one of the fields `names` is not a positive, finite number."""
    for name in names:
        value = getattr(config, name)
        require(0 < value < float("inf"), name, value, "a positive number")


def require_choice(config: Any, name: str, choices: Sequence[str]) -> None:
    """Refuse a `config` whose field `name` is none of the `choices`."""
    value = getattr(config, name)
    require(value in choices, name, repr(value), f"one of {', '.join(choices)}")


INPUTS_CHOICES = ("raw", "standardized")


def require_soft_target(config: Any) -> None:
    """Refuse a config whose `tau` or `inputs` is none that FQE and SR-DICE know."""
    require(0 < config.tau <= 1, "tau", config.tau, "0 < tau <= 1")
    require_choice(config, "inputs", INPUTS_CHOICES)


def network_input(
    problem: Problem, states: Array, actions: Array, inputs: str, *, cut_actions: bool = False
) -> Array:
    """Return [s, a], the input of a network, from `states` (…, q) and `actions` (…, d) in the units of `problem`.

    `inputs`: "raw", or "standardized" with states in standard deviations and actions scaled to [−1, 1].
    `cut_actions`: whether standardized actions are cut to the action box; by default no.
    """
    if inputs == "raw":
        return jnp.concatenate([states, actions], axis=-1)
    parts = [standardized(problem, states), scaled(problem, actions, cut=cut_actions)]
    return jnp.concatenate(parts, axis=-1)


def input_units(problem: Problem, inputs: str) -> tuple[Float[Array, " q+d"], Float[Array, " q+d"]]:
    """Return shift and scale such that `network_input` is ([s, a] − shift)/scale, where no action is cut."""
    if inputs == "raw":
        width = problem.state_dim + problem.action_dim
        return jnp.zeros(width), jnp.ones(width)
    middle, half = action_scale(problem)
    return jnp.concatenate([problem.state_mean, middle]), jnp.concatenate([problem.state_std, half])


def over_target(
    f: Callable[[Array, Array], Float[Array, " n *columns"]], problem: Problem, rows: Array
) -> Float[Array, " n *columns"]:
    """Return `f`(s', a') of `rows` of `problem`, with a' the target's action.

    Where the target is stochastic this is the mean over its draws.
    """
    if problem.target_samples is None:
        return f(problem.next_states[rows], problem.target_actions[rows])
    return _over_draws(f, problem.next_states[rows], problem.target_samples[rows])


def over_first(
    f: Callable[[Array, Array], Float[Array, " n *columns"]], problem: Problem, episodes: Array | slice
) -> Float[Array, " n *columns"]:
    """Return `f`(s₀, a) of `episodes` of `problem` with a the target's action, as `over_target` does."""
    if problem.first_samples is None:
        return f(problem.first_states[episodes], problem.first_actions[episodes])
    return _over_draws(f, problem.first_states[episodes], problem.first_samples[episodes])


def _over_draws(f: Callable[[Array, Array], Array], states: Array, samples: Array) -> Array:
    n, draws, d = samples.shape
    each = f(jnp.repeat(states, draws, axis=0), samples.reshape(n * draws, d))
    return jnp.mean(each.reshape(n, draws, *each.shape[1:]), axis=1)


def standardized(problem: Problem, states: Float[Array, "... q"]) -> Float[Array, "... q"]:
    """Return states less the log's mean, in the log's standard deviations."""
    return (states - problem.state_mean) / problem.state_std


def scaled(problem: Problem, actions: Float[Array, "... d"], *, cut: bool = False) -> Float[Array, "... d"]:
    """Return `actions` in the units in which the action box of `problem` is [−1, 1], cut to it if `cut`."""
    middle, half = action_scale(problem)
    in_half_ranges = (actions - middle) / half
    return jnp.clip(in_half_ranges, -1.0, 1.0) if cut else in_half_ranges


def action_scale(problem: Problem) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Return the middle and half the range of the action box."""
    middle = 0.5 * (problem.action_high + problem.action_low)
    return middle, 0.5 * (problem.action_high - problem.action_low)


# --- The units that values are learned in


class ValueUnits(NamedTuple):
    """What a network's output f means: Q = center + scale·f, normalised as V̂ is.

    The reward of a step and the value after an end are brought to the same units, so that f obeys
    f(s, a) = reward + γ f(s', a'), with `end` in place of f(s', a') where an episode has ended and Q is 0.
    """

    center: Float[Array, ""]
    scale: Float[Array, ""]

    def reward(self, rewards: Float[Array, " rows"], gamma: Float[Array, ""]) -> Float[Array, " rows"]:
        """Return (1 − `gamma`) times the `rewards`, in these units."""
        return (1.0 - gamma) * ((rewards - self.center) / self.scale)

    @property
    def end(self) -> Float[Array, ""]:
        """f of a value of 0, which follows every end."""
        return -self.center / self.scale

    def value(self, f: Float[Array, "*any"]) -> Float[Array, "*any"]:
        """Return Q, or V̂, of the output `f`."""
        return self.center + self.scale * f

    def bounded(self, f: Float[Array, "*any"], problem: Problem) -> Float[Array, "*any"]:
        """Return `f` cut to what rewards like those of `problem` can add up to.

        That is a mean of them; where episodes end, it may be as near to 0 as a single reward with nothing after it.
        """
        # The same at every step: the compiler takes it out of the loop (measured with a million rows).
        low, high = jnp.min(problem.rewards), jnp.max(problem.rewards)
        if problem.counts.terminated:
            one = 1.0 - problem.gamma
            low, high = jnp.minimum(low, one * low), jnp.maximum(high, one * high)
        return jnp.clip(f, (low - self.center) / self.scale, (high - self.center) / self.scale)


UNITS = ("returns", "rewards")


def value_units(problem: Problem, units: str, *, normalized: bool = True) -> ValueUnits:
    """Return the units in which the values of `problem` are learned.

    `units`: "returns" centres and scales by the log's own returns (`mdp.returns.value_units`), so that an estimate
    is equivariant to a shift and to the scale of the rewards, and a network that has learned nothing says what the
    log's controller is worth. "rewards" leaves rewards as they were logged, but for a power of two where they are
    extreme throughout; f is then Q itself, or with `normalized` False (by default True) Q/(1 − γ), as the paper's
    FQE has it.
    """
    if units == "returns":
        return ValueUnits(problem.value_center, problem.value_scale)
    scale = _scale(jnp.max(jnp.abs(problem.rewards)), REWARDS)
    return ValueUnits(jnp.float32(0.0), scale if normalized else (1.0 - problem.gamma) * scale)


def centred_rewards(problem: Problem) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the mean and the scale of the rewards of `problem`, in which an estimate by a ratio is equivariant."""
    largest = jnp.maximum(jnp.max(jnp.abs(problem.rewards)), 1e-30)  # squares of large rewards overflow
    shares = problem.rewards / largest
    mean, std = jnp.mean(shares) * largest, jnp.std(shares) * largest
    # Constant rewards are 0 once they are centred, in any unit.
    return mean, jnp.where(std > 1e-6 * jnp.abs(mean), std, jnp.maximum(jnp.abs(mean), 1e-30))


def value_by_ratio(ratios: Float[Array, " rows"], state: Any, problem: Problem) -> Float[Array, ""]:
    """Return V̂, the mean of the `ratios` of the `value_rows` of the `state` times their rewards in `problem`.

    The state also has the rewards' `reward_center` and `reward_scale`, and the `mean_weight` of a bootstrap.
    """
    mean = partial(mean_over_rows, weights=row_weights(problem, state.value_rows, state.mean_weight))
    rewards = (problem.rewards[state.value_rows] - state.reward_center) / state.reward_scale
    # Of every step of an endless task some row tells. After an end no row does, and the reward is 0: the ratio's
    # own mean is the share of the steps that come before.
    told = 1.0 if problem.counts.terminated == 0 else mean(ratios)
    return state.reward_scale * mean(ratios * rewards) + told * state.reward_center


# Rewards whose largest magnitude lies between these are learned as they are. On a linear-quadratic world FQE's
# errors are much the same from 0.04 to 700, and several times larger at 0.005 and at 5,600 (docs/notes/numbers.md).
REWARDS = (2.0**-6, 2.0**10)
# The same for each raw input column; wide, so that what the paper ran on raw states stays as it was.
INPUTS = (2.0**-16, 2.0**16)
EXPONENT_BITS = 0x7F80_0000  # of a float32


def input_scale(problem: Problem, inputs: str) -> Float[Array, " q+d"]:
    """Return what to divide [s, a] by, column by column: 1, or a power of two where a raw column is extreme."""
    if inputs != "raw":
        return jnp.ones(problem.state_dim + problem.action_dim)
    largest = [largest_magnitudes(problem.states), largest_magnitudes(problem.actions)]
    return _scale(jnp.concatenate(largest), INPUTS)


def in_unit(x: Float[Array, ...], scale: Float[Array, ...]) -> Float[Array, ...]:
    """Return x/scale, and x itself, to the bit and in any fusion, where the scale is 1."""
    return jnp.where(scale == 1.0, x, x / scale)


def _scale(largest: Float[Array, ...], as_it_is: tuple[float, float]) -> Float[Array, ...]:
    """Return 1 for a magnitude within the bounds, or 0; else the power of two at or just below it."""
    bits = jax.lax.bitcast_convert_type(largest.astype(jnp.float32), jnp.int32)
    power = jax.lax.bitcast_convert_type(bits & EXPONENT_BITS, jnp.float32)
    low, high = as_it_is
    extreme = (power > 0) & ((largest < low) | (largest > high))
    return jnp.where(extreme, power, 1.0)


STREAM = 2**31 - 2  # folded into a seed's key: no step and no initial network shares this randomness


class RowMeans(NamedTuple):
    """Mean episode weight of groups of rows; 1 over all rows only where all episodes are equally long."""

    in_sample: Float[Array, ""]
    terminal: Float[Array, ""]  # of the in-sample rows that terminated; 1 where there are none
    ending: Float[Array, ""]  # share of the in-sample weight that the terminal rows hold


def bootstrapped(problem: Problem, keys: Array) -> Problem:
    """Return the problem with episode weights for the seed of every key, shape (seeds, episodes)."""
    episodes = problem.first_states.shape[0]

    def of_seed(key: Array) -> Array:
        weights = jax.random.exponential(jax.random.fold_in(key, STREAM), (episodes,))
        return weights / jnp.mean(weights)

    return replace(problem, episode_weights=jax.vmap(of_seed)(keys))


def of_seed(problem: Problem, weights: Array | None) -> Problem:
    """Return the problem as one seed sees it: all seeds share the arrays, each has its own weights or none."""
    return replace(problem, episode_weights=weights)


def row_weights(
    problem: Problem, rows: Array | slice, mean: Float[Array, ""] | None = None
) -> Float[Array, " rows"] | None:
    """Return the episode weights of `rows` of `problem`, divided by `mean` if it is given; None without weights."""
    if problem.episode_weights is None:
        return None
    weights = problem.episode_weights[problem.episode[rows]]
    return weights if mean is None else weights / mean


def row_means(problem: Problem) -> RowMeans | None:
    """Return what the weights of single rows are measured against, None where there are no weights."""
    weights = row_weights(problem, slice(problem.counts.in_sample))
    if weights is None:
        return None
    ends = weights[problem.counts.nonterminal :]
    total = jnp.sum(weights)
    terminal = jnp.mean(ends) if len(ends) else jnp.float32(1.0)
    return RowMeans(total / len(weights), terminal, jnp.sum(ends) / total)


def soft_share(tau: float, steps: int, gamma: float) -> float:
    """Return the largest share of V that has arrived after `steps` soft updates of the target network.

    It moves by `tau` of the way to Q at each, and passes on `gamma` of what it holds: a contraction.
    """
    return 1.0 - (1.0 - tau * (1.0 - gamma)) ** steps


def learning_rates(config: Any) -> float | optax.Schedule:
    """Return the learning rate of `config`, falling to a hundredth of it over its `decay_steps` if there are any."""
    if not config.decay_steps:
        return float(config.learning_rate)
    return optax.cosine_decay_schedule(config.learning_rate, config.decay_steps, alpha=0.01)


def mean_over_rows(
    terms: Float[Array, " rows *columns"], weights: Float[Array, " rows"] | None
) -> Float[Array, ""]:
    """Return the mean of the terms, each row's times its weight where there are weights, whose mean is 1."""
    if weights is None:
        return jnp.mean(terms)
    return jnp.mean(weights.reshape(-1, *[1] * (terms.ndim - 1)) * terms)
