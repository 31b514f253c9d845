"""The value of `--behavior`, or a user's own object -> a density that is checked each time it is asked."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kmifqe.behavior.gaussian import GaussianBehavior
from kmifqe.behavior.mixture import TanhMixture
from kmifqe.errors import InputError
from kmifqe.io.policies.load import load_policy
from kmifqe.io.policies.objects import IMPORTABLE, import_object
from kmifqe.mdp.ask import Behavior, FactorizedBehavior, Fit, Logged, Policy


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
    "gaussian:POLICY:STD, gaussian:POLICY:STD:UNIFORM_SHARE, logged, fit, "
    "a fitted FILE.safetensors, or module:function"
)


def parse_behavior(
    spec: str,
    *,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
    load: Callable[[str], Policy] = load_policy,
) -> Behavior | Logged | Fit:
    """Return what `spec` names (see FORMS).

    `low` and `high`, the action bounds, are needed for `gaussian` where the policy does not carry them; where
    both exist, the given ones rule. `load` reads POLICY; give another to pass `load_policy` settings.
    """
    spec = spec.strip()
    kind = spec.partition(":")[0]
    if spec == "logged":
        return Logged()
    if spec == "fit":
        return Fit()
    if kind == "gaussian":
        return _gaussian(spec, low, high, load)
    if spec.endswith(".safetensors"):
        if not Path(spec).is_file():
            raise InputError(f"behaviour {spec!r}: no such file; expected a density saved by a fit")
        return TanhMixture.load(spec)
    if kind in ("logged", "fit"):
        raise InputError(f"behaviour {spec!r}: {kind!r} takes nothing after a colon; expected {kind!r} alone")
    if re.fullmatch(IMPORTABLE, spec):
        return load_plugin(spec)
    raise InputError(f"behaviour {spec!r} is not understood; expected {FORMS}")


def _gaussian(
    spec: str, low: np.ndarray | None, high: np.ndarray | None, load: Callable[[str], Policy]
) -> GaussianBehavior:
    policy_name, std, share = _gaussian_parts(spec)
    policy = load(policy_name)
    low = getattr(policy, "low", None) if low is None else low
    high = getattr(policy, "high", None) if high is None else high
    if low is None or high is None:
        raise InputError(
            f"behaviour {spec!r}: STD is in units of half the action range, and policy {policy_name} does "
            "not say its bounds; expected low and high"
        )
    try:
        return GaussianBehavior(policy, std, low, high, share)
    except InputError as error:
        raise InputError(f"behaviour {spec!r}: {error}") from error


def _gaussian_parts(spec: str) -> tuple[str, list[float], list[float]]:
    """Split from the right: a policy may hold colons itself (module:function, a drive letter)."""
    head, _, last = spec.partition(":")[2].rpartition(":")
    policy, _, before = head.rpartition(":")
    share = "0"
    if policy and _is_numbers(before):
        std, share = before, last
    else:
        policy, std = head, last
    if not policy:
        raise InputError(
            f"behaviour {spec!r}: POLICY or STD is missing; expected gaussian:POLICY:STD[:UNIFORM_SHARE]"
        )
    for part, text in (("STD", std), ("UNIFORM_SHARE", share)):
        if not _is_numbers(text):
            raise InputError(
                f"behaviour {spec!r}: {part} is {text!r}; expected a number, or numbers with commas, one per "
                "action dimension"
            )
    return policy, _numbers(std), _numbers(share)


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _is_numbers(text: str) -> bool:
    try:
        _numbers(text)
    except ValueError:
        return False
    return True
