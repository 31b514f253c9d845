"""The value of `--behavior` -> a behaviour density, or the wish to use logged densities or to fit one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kmifqe.behavior.base import Behavior, Fit, Logged
from kmifqe.behavior.gaussian import GaussianBehavior
from kmifqe.behavior.mixture import TanhMixture
from kmifqe.behavior.plugin import load_plugin
from kmifqe.errors import InputError
from kmifqe.policies.base import Policy
from kmifqe.policies.callables import IMPORTABLE
from kmifqe.policies.load import load_policy

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
