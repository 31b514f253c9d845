"""Policies that are Python: `module:function`, callables, and objects with `predict`."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable

import numpy as np

from kmifqe.errors import InputError
from kmifqe.policies.base import Bounds
from kmifqe.policies.checked import CheckedPolicy
from kmifqe.policies.graphs import torch_function
from kmifqe.policies.normalization import Normalization, load_normalization

IMPORTABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def import_object(spec: str) -> object:
    """Return what `module:name` names, current directory first. This runs the module's code."""
    module_name, _, attribute = spec.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:  # an import runs the user's code, which may raise anything
        raise InputError(
            f"{spec}: module {module_name} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(f"{spec}: module {module_name} has no {attribute}")
        found = getattr(found, part)
    return found


def wrap_object(
    source: object,
    name: str,
    *,
    bounds: Bounds | None = None,
    normalization: Normalization | None = None,
    normalization_settled: bool = False,
) -> CheckedPolicy:
    """Return a callable or an object with `predict` as a checked policy.

    Bounds and sizes come from the object where it shows them (Stable-Baselines3's spaces, d3rlpy's shapes),
    and so do the statistics of a model that still holds its VecNormalize wrapper, unless the caller settled
    them.
    """
    if isinstance(source, type):
        raise InputError(f"{name}: is a class; expected a function or an instance")
    function = _function_of(source, name)
    low, high = bounds if bounds is not None else _bounds_of(source)
    wrapper = getattr(source, "get_vec_normalize_env", lambda: None)()
    if wrapper is not None and not normalization_settled:
        normalization = load_normalization(wrapper)
    return CheckedPolicy(
        function,
        name,
        low=low,
        high=high,
        state_dim=_state_dim_of(source),
        action_dim=_size(getattr(source, "action_dim", None)) or _size(getattr(source, "action_size", None)),
        normalization=normalization,
    )


def _function_of(source: object, name: str) -> Callable[[np.ndarray], object]:
    predict = getattr(source, "predict", None)
    if callable(predict):
        return _predict_deterministically(predict)
    if not callable(source):
        raise InputError(
            f"{name}: is a {type(source).__name__}; expected a callable, or an object with predict(states)"
        )
    if any(base.__module__ == "torch.nn.modules.module" for base in type(source).__mro__):
        return torch_function(source)
    return source


def _predict_deterministically(predict: Callable[..., object]) -> Callable[[np.ndarray], object]:
    try:
        takes_deterministic = "deterministic" in inspect.signature(predict).parameters
    except (TypeError, ValueError):  # compiled code without a signature
        takes_deterministic = False
    keywords = {"deterministic": True} if takes_deterministic else {}

    def act(states: np.ndarray) -> object:
        answer = predict(states, **keywords)
        return answer[0] if isinstance(answer, tuple) else answer  # (actions, recurrent state)

    return act


def _bounds_of(source: object) -> Bounds | tuple[None, None]:
    for holder in (source, getattr(source, "action_space", None)):
        low, high = getattr(holder, "low", None), getattr(holder, "high", None)
        if isinstance(low, np.ndarray) and isinstance(high, np.ndarray) and low.ndim == 1:
            return low.astype(np.float32), high.astype(np.float32)
    return None, None


def _state_dim_of(source: object) -> int | None:
    if (size := _size(getattr(source, "state_dim", None))) is not None:
        return size
    space = getattr(source, "observation_space", None)
    shape = getattr(space, "shape", None) or getattr(source, "observation_shape", None)
    return _size(shape[0]) if isinstance(shape, tuple) and len(shape) == 1 else None


def _size(value: object) -> int | None:
    return int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else None
