"""One call from a log and a policy to a value with an interval, diagnostics and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from kmifqe.behavior import Fit, fit_behavior, parse_behavior
from kmifqe.errors import InputError
from kmifqe.estimators import Estimator, fit, make_estimator
from kmifqe.estimators.fit import Progress
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.policies.load import load_policy
from kmifqe.io.policies.objects import check_policy_fits
from kmifqe.mdp.ask import Behavior, Logged, Policy
from kmifqe.mdp.problem import Problem
from kmifqe.mdp.transitions import Transitions
from kmifqe.report.result import Result
from kmifqe.trust.checks.diagnose import measure
from kmifqe.trust.interval import LEVEL

SEEDS = 10


def evaluate(
    data: Transitions | str | PathLike[str],
    policy: Policy | Callable[..., Any] | str,
    *,
    behavior: Behavior | Logged | str | None = None,
    gamma: float = 0.99,
    estimators: Sequence[str | Estimator] = ("kmifqe",),
    preset: str = "fast",
    settings: Sequence[str] = (),
    steps: int | None = None,
    seeds: int | Sequence[int] = SEEDS,
    level: float = LEVEL,
    on_progress: Callable[[Progress], None] | None = None,
) -> Result:
    """Return what a deterministic policy is worth, judged from a log, with an interval and a verdict.

    `data` is a log or its file, `policy` a policy, a function of states or a file, `behavior` a density or what
    `kmifqe evaluate --behavior` takes ("logged", "fit", "gaussian:POLICY:STD", a fitted file). Estimators are
    named (with `preset`, `settings` such as "clip=0.001,10", and `steps`) or given. Estimates carry no final
    state, which is as large as the log; `fit` returns it.
    """
    transitions = data if isinstance(data, Transitions) else load_dataset(str(data))
    target = load_policy(policy)
    check_policy_fits(target, transitions.state_dim, transitions.action_dim)
    density = _density(behavior, transitions, target)
    chosen = [
        make_estimator(each, preset, [*density_settings(behavior), *settings], steps)
        if isinstance(each, str)
        else each
        for each in estimators
    ]
    names = [estimator.name for estimator in chosen]
    if not names or len(set(names)) < len(names):
        raise InputError(f"estimators are {', '.join(names) or 'none'}; expected at least one, each once")
    problem = Problem.build(transitions, target, density, gamma)
    estimates = []
    for estimator in chosen:
        estimate = fit(estimator, problem, seeds=seeds, steps=steps, on_progress=on_progress, bootstrap=True)
        found = measure(estimator, estimate, problem)
        estimates.append(replace(estimate, final_state=None, measurements=found))
    return Result.of(estimates, level)


def density_settings(behavior: object) -> list[str]:
    """Return the settings that go with a behaviour: the paper's floor where μ is fitted and unsure in its tails."""
    fitted = isinstance(behavior, str) and (behavior == "fit" or behavior.endswith(".safetensors"))
    return ["density_floor=1e-3"] if fitted else []


def _density(
    behavior: Behavior | Logged | str | None, transitions: Transitions, target: Policy
) -> Behavior | Logged | None:
    if not isinstance(behavior, str):
        return behavior
    low, high = getattr(target, "low", None), getattr(target, "high", None)
    parsed = parse_behavior(behavior, low=low, high=high)
    if isinstance(parsed, Fit):
        t = transitions
        return fit_behavior(t.states, t.actions, t.episode, low, high)[0]
    return parsed
