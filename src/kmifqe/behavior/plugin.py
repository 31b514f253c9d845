"""A user's own density, checked each time it is asked."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np

from kmifqe.behavior.base import Behavior, FactorizedBehavior
from kmifqe.errors import InputError
from kmifqe.policies.callables import import_object


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
