"""One log and many policies: their names, and what each of them says at the log's states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from os import PathLike
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from kmifqe.api import (
    PolicyLike,
)
from kmifqe.errors import InputError, shown
from kmifqe.mdp import Problem, Transitions
from kmifqe.mdp.ask import Behavior, Logged, Policy
from kmifqe.mdp.policies import Answers, ask_policy, common_box
from kmifqe.mdp.returns import credited_returns


def name_policies(policies: Sequence[PolicyLike] | Mapping[str, PolicyLike]) -> dict[str, PolicyLike]:
    """Return the policies by name: files by their file names, with as much of the path as tells them apart."""
    if isinstance(policies, Mapping):
        named = dict(policies)
    else:
        if isinstance(policies, str):
            raise InputError(f"policies is the text {shown(policies)}; expected a list of policies")
        files = [
            str(each) if isinstance(each, str | PathLike) else getattr(each, "name", "") or f"policy {i + 1}"
            for i, each in enumerate(policies)
        ]
        twice = sorted({file for file in files if files.count(file) > 1})
        if twice:
            raise InputError(f"the policy {shown(twice[0])} was given twice; expected each once")
        named = dict(zip(_short_names(files), policies))
    if len(named) < 2:
        raise InputError(
            f"{len(named)} {'policy was' if len(named) == 1 else 'policies were'} given; expected at least two to "
            "rank (`kmifqe evaluate` judges one)"
        )
    return named


def _short_names(files: Sequence[str]) -> list[str]:
    """Return for each path its shortest end that no other one has: the file name, or with the folders above it."""
    parts = [Path(file).parts or (file,) for file in files]
    ends = [["/".join(each[-depth:]) for depth in range(1, len(each) + 1)] for each in parts]
    owners = Counter(end for each in ends for end in each)
    return [next((end for end in own if owners[end] == 1), file) for own, file in zip(ends, files)]


class naming:
    """Puts the policy's name before an InputError that is raised inside."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InputError) and self._name not in str(error):
            raise InputError(f"{self._name}: {error}") from error


@dataclass(frozen=True)
class Case:
    """One log and many policies: what is shared, and what each policy says."""

    problem: Problem  # of the first policy, in the box that holds all policies' actions
    names: tuple[str, ...]
    answers: tuple[Answers, ...]
    returns: np.ndarray  # (episodes,): normalised returns of the logged episodes


def build_case(
    log: Transitions,
    names: Sequence[str],
    targets: Sequence[Policy],
    density: Behavior | Logged | None,
    gamma: float,
    trajectories: bool,
    draws: int,
) -> tuple[Case, list[str]]:
    """Return the case of the policies, and what the user should know of them.

    Args:
        log: what they are judged from.
        names: what they are called.
        targets: the policies, in the order of their names.
        density: of the logged actions; None where no estimator asks for it.
        gamma: the discount.
        trajectories: whether episodes are laid out step by step, for estimators that follow them.
        draws: actions drawn from a stochastic policy at every state; 0 for deterministic ones.
    """
    problem = Problem.build(log, targets[0], density, gamma, trajectories=trajectories, draws=draws)
    low, high, differ = common_box(log, targets)
    problem = replace(
        problem, action_low=jnp.asarray(low, jnp.float32), action_high=jnp.asarray(high, jnp.float32)
    )
    answers = []
    for name, target in zip(names, targets):
        with naming(name):
            answers.append(ask_policy(log, target, density, draws))
    notes = [
        "the policies differ in their action bounds; all are judged in the box that holds every one of them"
    ] * differ
    alike: dict[bytes, list[str]] = {}
    for name, answer in zip(names, answers):
        said = (answer.target_actions, answer.first_actions, answer.target_samples)
        digest = sha256(b"".join(each.tobytes() for each in said if each is not None)).digest()
        alike.setdefault(digest, []).append(name)
    notes += [
        f"{' and '.join(map(shown, same))} act alike at every logged state: nothing here can tell them apart"
        for same in alike.values()
        if len(same) > 1
    ]
    return Case(problem, tuple(names), tuple(answers), credited_returns(log, gamma)), notes
