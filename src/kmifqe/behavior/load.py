"""Densities that need no fit: Gaussian noise around a policy, a user's own object, what `--behavior` names."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import numpy as np

from kmifqe.behavior.mixture import TanhMixture
from kmifqe.behavior.support import Box, Numbers, make_box, per_dimension
from kmifqe.errors import InputError
from kmifqe.io.files import require_file
from kmifqe.io.policies.load import load_policy
from kmifqe.io.policies.objects import IMPORTABLE, import_object
from kmifqe.mdp.ask import Behavior, FactorizedBehavior, Logged, Policy


class FitRequest:
    """Stands for: no density is known; fit one to the log with `fit_or_load`."""

    def __repr__(self) -> str:
        return "FitRequest()"


HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)


class GaussianBehavior:
    """μ(a|s) = Π_j [(1 − p_j) N(a_j; μ̃_j(s), (std_j·a_max_j)²) + p_j U(a_j; low_j, high_j)].

    a_max is half the action range, so `std` is in units of it; p is `uniform_share`. Both may be given per
    dimension: the paper's Pendulum with one dummy is std 0.5 and uniform_share (0.2, 1). Actions are logged
    as drawn: a Gaussian one may lie outside [low, high], and the density there is the Gaussian's alone.
    """

    def __init__(
        self, policy: Policy, std: Numbers, low: Numbers, high: Numbers, uniform_share: Numbers = 0.0
    ) -> None:
        self.policy = policy
        dims, where = np.size(low), "Gaussian behaviour"
        if np.size(high) != dims:
            raise InputError(f"{where}: {dims} numbers in low and {np.size(high)} in high; expected as many")
        self.low, self.high = make_box(low, high, dims, where)
        self.std = per_dimension(std, dims, f"{where}: std")
        self.uniform_share = per_dimension(uniform_share, dims, f"{where}: uniform_share")
        if not (self.std > 0).all():
            raise InputError(f"{where}: std is {_show(self.std)}; expected positive, in units of a_max")
        if not ((self.uniform_share >= 0) & (self.uniform_share <= 1)).all():
            raise InputError(f"{where}: uniform_share is {_show(self.uniform_share)}; expected within [0, 1]")

    @property
    def scale(self) -> np.ndarray:
        """The Gaussian's standard deviation in action units, std·a_max, shape (d,)."""
        return self.std * 0.5 * (self.high - self.low)

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ(a|s), shape (n,), float64; −inf only where the density is exactly 0."""
        return self.log_prob_per_dimension(states, actions).sum(axis=1)

    def log_prob_per_dimension(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ_j(a_j|s), shape (n, d), float64."""
        mean = self._mean(states)
        actions = np.asarray(actions, np.float64)
        if actions.shape != mean.shape:
            raise InputError(f"Gaussian behaviour: actions have shape {actions.shape}; expected {mean.shape}")
        z = (actions - mean) / self.scale
        gaussian = -0.5 * z * z - np.log(self.scale) - HALF_LOG_2PI
        if not self.uniform_share.any():
            return gaussian
        inside = (actions >= self.low) & (actions <= self.high)
        with np.errstate(divide="ignore"):  # log 0 = −inf is right: a share of 0 or 1 has one part only
            gaussian += np.log1p(-self.uniform_share)
            uniform = np.where(inside, np.log(self.uniform_share / (self.high - self.low)), -np.inf)
        return np.logaddexp(gaussian, uniform)

    def sample(self, rng: np.random.Generator, states: np.ndarray) -> np.ndarray:
        """Return one action drawn for each state, shape (n, d), float32, as drawn: not clipped to the box."""
        mean = self._mean(states)
        drawn = mean + self.scale * rng.standard_normal(mean.shape)
        uniform = rng.uniform(self.low, self.high, mean.shape)
        return np.where(rng.random(mean.shape) < self.uniform_share, uniform, drawn).astype(np.float32)

    def _mean(self, states: np.ndarray) -> np.ndarray:
        states = np.asarray(states)
        mean = np.asarray(self.policy(states), np.float64)
        if mean.shape != (len(states), len(self.low)):
            raise InputError(
                f"Gaussian behaviour: the policy gave shape {mean.shape} for {len(states)} states; "
                f"expected ({len(states)}, {len(self.low)}), as many columns as action bounds"
            )
        return mean

    def __repr__(self) -> str:
        name = getattr(self.policy, "name", None) or type(self.policy).__name__
        share = f", uniform_share={_show(self.uniform_share)}" if self.uniform_share.any() else ""
        return f"GaussianBehavior({name}, std={_show(self.std)}{share})"


def _show(array: np.ndarray) -> str:
    distinct = np.unique(array)
    return f"{distinct[0]:g}" if len(distinct) == 1 else "(" + ", ".join(f"{x:g}" for x in array) + ")"


class CheckedBehavior:
    """A behaviour whose answers must have the right shape and hold no NaN and no +inf."""

    def __init__(self, behavior: Behavior, name: str) -> None:
        self.behavior = behavior
        self.name = name

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ(a|s), shape (n,), float64."""
        answer = self.behavior.log_prob(states, actions)
        return _checked(answer, (len(states),), "log_prob", self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


class CheckedFactorizedBehavior(CheckedBehavior):
    """The same for a density that is a product over action dimensions."""

    behavior: FactorizedBehavior

    def log_prob_per_dimension(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log μ_j(a_j|s), shape (n, d), float64."""
        answer = self.behavior.log_prob_per_dimension(states, actions)
        return _checked(answer, np.shape(actions), "log_prob_per_dimension", self.name)


def checked(behavior: object, name: str) -> CheckedBehavior:
    """Return `behavior` behind the checks, or raise if it has no log_prob(states, actions)."""
    if isinstance(behavior, type) or not isinstance(behavior, Behavior):
        raise InputError(
            f"{name}: {type(behavior).__name__} has no log_prob(states, actions); expected an object with "
            "it, or a function of no arguments that returns one"
        )
    if isinstance(behavior, FactorizedBehavior):
        return CheckedFactorizedBehavior(behavior, name)
    return CheckedBehavior(behavior, name)


def load_plugin(spec: str) -> CheckedBehavior:
    """Return the density that `module:name` names: an object, or what a class or function returns."""
    found = import_object(spec)
    is_density = not isinstance(found, type) and isinstance(found, Behavior)
    return checked(found if is_density or not callable(found) else _made(found, spec), spec)


def _made(factory: Callable[[], object], spec: str) -> object:
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise InputError(f"{spec}: cannot be called without arguments ({error})") from error
    return factory()


def _checked(answer: object, shape: tuple[int, ...], method: str, name: str) -> np.ndarray:
    array = np.asarray(answer)
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name}: {method} gave type {array.dtype}; expected numbers")
    if array.shape != shape:
        raise InputError(f"{name}: {method} gave shape {array.shape}; expected {shape}")
    wrong = np.isnan(array) | (array == np.inf)
    if wrong.any():
        row = int(np.flatnonzero(wrong.reshape(len(array), -1).any(axis=1))[0])
        raise InputError(f"{name}: {method} gave NaN or +inf, first at row {row}; expected finite or −inf")
    return array.astype(np.float64)


FORMS = (
    "gaussian:POLICY:STD (:UNIFORM_SHARE and the action bounds, :LOW..HIGH, may follow), logged, fit, "
    "a fitted FILE.safetensors, or module:function"
)


def parse_behavior(
    spec: str,
    *,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
    load: Callable[[str], Policy] = load_policy,
) -> Behavior | Logged | FitRequest:
    """Return what `spec` names (see FORMS).

    `low` and `high`, the action bounds, are needed for `gaussian` where neither `spec` nor the policy says them;
    those of `spec` rule, then `low` and `high`. `load` reads POLICY; give another to pass `load_policy` settings.
    """
    spec = spec.strip()
    kind = spec.partition(":")[0]
    if spec == "logged":
        return Logged()
    if spec == "fit":
        return FitRequest()
    if kind == "gaussian":
        return _gaussian(spec, low, high, load)
    if spec.endswith(".safetensors"):
        require_file(spec, "a density saved by a fit")
        return TanhMixture.load(spec)
    if kind in ("logged", "fit"):
        raise InputError(f"behaviour {spec!r}: {kind!r} takes nothing after a colon; expected {kind!r} alone")
    if re.fullmatch(IMPORTABLE, spec):
        return load_plugin(spec)
    raise InputError(f"behaviour {spec!r} is not understood; expected {FORMS}")


def _gaussian(
    spec: str, low: np.ndarray | None, high: np.ndarray | None, load: Callable[[str], Policy]
) -> GaussianBehavior:
    policy_name, std, share, box = _gaussian_parts(spec)
    policy = load(policy_name)
    if box is not None:
        low, high = box
    low = getattr(policy, "low", None) if low is None else low
    high = getattr(policy, "high", None) if high is None else high
    if low is None or high is None:
        raise InputError(
            f"behaviour {spec!r}: STD is in units of half the action range, and policy {policy_name} does "
            f"not say its bounds; expected them as LOW..HIGH at the end, for example {spec}:-1..1, with "
            "commas for several action dimensions: -1,-2..1,2"
        )
    try:
        return GaussianBehavior(policy, std, low, high, share)
    except InputError as error:
        raise InputError(f"behaviour {spec!r}: {error}") from error


def _gaussian_parts(spec: str) -> tuple[str, list[float], list[float], Box | None]:
    """Split from the right: a policy may hold colons itself (module:function, a drive letter)."""
    words = spec.partition(":")[2]
    before_box, _, last = words.rpartition(":")
    box = _box_of(last)
    head, _, last = (words if box is None else before_box).rpartition(":")
    policy, _, before = head.rpartition(":")
    share = "0"
    if policy and _is_numbers(before):
        std, share = before, last
    else:
        policy, std = head, last
    if not policy:
        raise InputError(f"behaviour {spec!r}: POLICY or STD is missing; expected {FORMS}")
    for part, text in (("STD", std), ("UNIFORM_SHARE", share)):
        if not _is_numbers(text):
            also = ", or action bounds as LOW..HIGH" if ".." in text else ""
            raise InputError(
                f"behaviour {spec!r}: {part} is {text!r}; expected a number, or numbers with commas, one per "
                f"action dimension{also}"
            )
    return policy, _numbers(std), _numbers(share), box


def _box_of(text: str) -> Box | None:
    """Return the bounds that LOW..HIGH says, None where `text` is something else."""
    low, dots, high = text.partition("..")
    if not (dots and _is_numbers(low) and _is_numbers(high)):
        return None
    return np.array(_numbers(low)), np.array(_numbers(high))


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _is_numbers(text: str) -> bool:
    try:
        _numbers(text)
    except ValueError:
        return False
    return True
