"""Policies that are Python (`module:function`, callables, objects with `predict`), checked where answers enter."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from kmifqe.errors import InputError, shown
from kmifqe.io.policies.normalization import Normalization, load_normalization
from kmifqe.mdp.ask import Bounds, Policy

PROBE_ROWS = 61  # more than any action has dimensions, so that a batch is never mistaken for one action
# Of max(1, |a|): a part of a batch may round differently (TF32 by 5e-4), a batch effect is far larger.
ROW_TOLERANCE = 1e-3
RANGE_TOLERANCE = 1e-5  # of high − low


class CheckedPolicy:
    """Calls `function` on batches and checks what comes back.

    On every call: shape (n, d), numbers, finite, within [low, high] where known. On first use also: the same
    batch gives the same actions, and a row's action does not depend on the rows beside it. A function of one
    state (q,) is recognised on first use and then called row by row.
    """

    def __init__(
        self,
        function: Callable[[np.ndarray], object],
        name: str,
        *,
        low: np.ndarray | None = None,
        high: np.ndarray | None = None,
        state_dim: int | None = None,
        action_dim: int | None = None,
        normalization: Normalization | None = None,
        shapes: tuple[tuple[int, ...], ...] = (),  # of its parameters, where they are known
    ) -> None:
        if (low is None) != (high is None):
            raise InputError(f"{name}: only one of low and high is given; expected both or neither")
        if low is not None and high is not None and (low.shape != high.shape or not (low < high).all()):
            raise InputError(f"{name}: bounds of shapes {low.shape}, {high.shape}; expected low below high")
        self.name, self.low, self.high, self.state_dim = name, low, high, state_dim
        self.action_dim = len(low) if low is not None else action_dim
        self.normalization = normalization
        self.shapes = shapes
        self._function = function
        self._row_by_row = False
        self._rows_verified = 0

    def __repr__(self) -> str:
        return f"CheckedPolicy({self.name}: states {self.state_dim or '?'}, actions {self.action_dim or '?'})"

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the action for each row of `states`, float32."""
        states = np.asarray(states, np.float32)
        if states.ndim != 2 or (self.state_dim is not None and states.shape[1] != self.state_dim):
            width = self.state_dim or "q"
            raise InputError(f"{self.name}: states have shape {states.shape}; expected (n, {width})")
        if self.normalization is not None:
            states = self.normalization(states)
        if len(states) == 0:
            raise InputError(f"{self.name}: asked about no state at all; expected at least one row")
        # One row cannot show an effect of its neighbours: look again at the first real batch.
        if self._rows_verified < min(len(states), 2):
            self._verify(states)
            self._rows_verified = len(states)
        return self._actions(states)

    def _verify(self, states: np.ndarray) -> None:
        probe = np.resize(states, (PROBE_ROWS + (states.shape[1] == PROBE_ROWS), states.shape[1]))
        if self._rows_verified == 0:
            self._row_by_row = not self._takes_batches(probe)
        first = self._actions(probe)
        if not np.array_equal(first, self._actions(probe)):
            raise InputError(
                f"{self.name}: gave two different answers to the same states; expected a deterministic policy"
            )
        part = self._actions(probe[::2])
        if (np.abs(part - first[::2]) > ROW_TOLERANCE * np.maximum(1.0, np.abs(part))).any():
            raise InputError(
                f"{self.name}: a state's action depends on the other states in the batch "
                "(batch normalisation left in training mode?); expected one action per state"
            )

    def _takes_batches(self, probe: np.ndarray) -> bool:
        try:
            self._batch_of_actions(probe)
        except InputError as error:
            try:
                self._one_action(probe[0])
            except InputError:
                raise error from None  # what it said to a batch is the better explanation
            return False
        return True

    def _actions(self, states: np.ndarray) -> np.ndarray:
        if self._row_by_row:
            answers = np.stack([self._one_action(state) for state in states])
        else:
            answers = self._batch_of_actions(states)
        if self.action_dim is not None and answers.shape[1] != self.action_dim:
            raise InputError(
                f"{self.name}: returned {answers.shape[1]} action dimensions; expected {self.action_dim}"
            )
        with np.errstate(over="ignore"):  # an overflow shows as infinity, which is refused next
            actions = answers.astype(np.float32)
        if not np.isfinite(actions).all():
            row = int(np.flatnonzero(~np.isfinite(actions).all(axis=1))[0])
            raise InputError(f"{self.name}: the action for row {row} holds NaN or infinity")
        self.action_dim = actions.shape[1]
        return self._within_bounds(actions)

    def _batch_of_actions(self, states: np.ndarray) -> np.ndarray:
        answers = self._ask(states)
        if answers.shape == (len(states),):
            return answers[:, None]
        if answers.ndim != 2 or len(answers) != len(states) or answers.shape[1] == 0:
            raise InputError(
                f"{self.name}: returned shape {answers.shape} for states of shape {states.shape}; "
                f"expected ({len(states)}, action dimensions)"
            )
        return answers

    def _one_action(self, state: np.ndarray) -> np.ndarray:
        answer = np.atleast_1d(self._ask(state))
        if answer.ndim != 1:
            raise InputError(
                f"{self.name}: returned shape {answer.shape} for one state; expected (action dimensions,)"
            )
        return answer

    def _ask(self, states: np.ndarray) -> np.ndarray:
        try:
            answer = self._function(states.copy())  # a policy may write into its input, not into the data
        except Exception as error:  # whatever a user's policy raises is a fact about that policy
            shape = states.shape
            raise InputError(f"{self.name}: failed on states of shape {shape} ({_reason(error)})") from error
        array = _to_numpy(answer, self.name)
        if array.dtype.kind not in "iuf":
            raise InputError(f"{self.name}: returned type {array.dtype}; expected numbers")
        return array

    def _within_bounds(self, actions: np.ndarray) -> np.ndarray:
        if self.low is None or self.high is None:
            return actions
        slack = RANGE_TOLERANCE * np.where(np.isfinite(self.high - self.low), self.high - self.low, 1.0)
        outside = (actions < self.low - slack) | (actions > self.high + slack)
        if outside.any():
            row, column = (int(i) for i in np.argwhere(outside)[0])
            raise InputError(
                f"{self.name}: action dimension {column} is {actions[row, column]:g} at row {row}; "
                f"expected within [{self.low[column]:g}, {self.high[column]:g}]"
            )
        return np.clip(actions, self.low, self.high)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A long one is a traceback: its end says why.
    return f"{type(error).__name__}: {shown(' '.join(lines) if len(lines) <= 3 else lines[-1])}"


def _to_numpy(answer: object, name: str) -> np.ndarray:
    if hasattr(answer, "detach"):  # a torch tensor
        answer = answer.detach().cpu().numpy()
    try:
        return np.asarray(answer)
    except (ValueError, TypeError) as error:
        raise InputError(f"{name}: returned a {type(answer).__name__}, not an array ({error})") from error


def check_policy_fits(policy: Policy, state_dim: int, action_dim: int) -> None:
    """Raise InputError unless `policy` maps states of `state_dim` numbers to actions of `action_dim`."""
    name = getattr(policy, "name", type(policy).__name__)
    takes = getattr(policy, "state_dim", None)
    if takes is not None and takes != state_dim:
        raise InputError(f"{name}: the policy takes states of {takes} numbers; the data has {state_dim}")
    gives = getattr(policy, "action_dim", None)
    if gives is None:
        probe = np.random.default_rng(0).standard_normal((2, state_dim)).astype(np.float32)
        gives = np.shape(policy(probe))[-1]
    if gives != action_dim:
        raise InputError(f"{name}: the policy gives actions of {gives} numbers; the data has {action_dim}")


IMPORTABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@contextmanager
def importable_from_here() -> Iterator[None]:
    """Put the current directory on the path: an installed command's path lacks it, and so does a worker's.

    A user's code may import its neighbours when it is imported itself, or only when it is called.
    """
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with suppress(ValueError):  # that code may have changed the path too
            sys.path.remove(here)


def import_object(spec: str) -> object:
    """Return what `module:name` names, current directory first. This runs the module's code."""
    module_name, _, attribute = spec.partition(":")
    try:
        with importable_from_here():
            found: object = importlib.import_module(module_name)
    except Exception as error:  # an import runs the user's code, which may raise anything
        raise InputError(f"{spec}: module {module_name} cannot be imported ({_reason(error)})") from error
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
    normalization_is_given: bool = False,
) -> CheckedPolicy:
    """Return a callable or an object with `predict` as a checked policy.

    Sizes come from the object where it shows them (Stable-Baselines3's spaces, d3rlpy's shapes).

    source: the callable or object.
    name: what messages call it.
    bounds: (low, high) of the action box; None by default: the object's own, where it shows them.
    normalization: the statistics that standardise its inputs; None by default.
    normalization_is_given: whether `normalization` rules, also where it is None. False by default: a model that
        still holds its VecNormalize wrapper brings its statistics along.
    """
    if isinstance(source, type):
        raise InputError(f"{name}: is a class; expected a function or an instance")
    function = _function_of(source, name)
    low, high = bounds if bounds is not None else _bounds_of(source)
    wrapper = getattr(source, "get_vec_normalize_env", lambda: None)()
    if wrapper is not None and not normalization_is_given:
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
        draws = hasattr(source, "sample") and hasattr(source, "log_prob")
        raise InputError(
            f"{name}: is a {type(source).__name__}; expected a callable, or one with predict"
            f"{', or judge the actions that it draws with --stochastic (stochastic=True)' if draws else ''}"
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


def torch_function(module: Callable[[object], object]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a PyTorch module or program as a function on arrays."""
    import torch

    parameter = next(iter(module.parameters()), None) if hasattr(module, "parameters") else None
    dtype = parameter.dtype if parameter is not None and parameter.is_floating_point() else torch.float32
    device = parameter.device if parameter is not None else "cpu"

    def act(states: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            answer = module(torch.from_numpy(states).to(device, dtype))
        if not isinstance(answer, torch.Tensor):
            raise TypeError(f"returned {type(answer).__name__}; expected one tensor of actions")
        return answer.cpu().numpy()

    return act
