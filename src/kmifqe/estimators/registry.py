"""The paper's settings by kind of task, faster ones beside them, and settings given as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimator
from kmifqe.estimators.fqe import FQEConfig, fqe
from kmifqe.estimators.kmifqe.algorithm import KMIFQEConfig, kmifqe
from kmifqe.estimators.sr_dice import SRDICEConfig, sr_dice

# What differs between the columns of the paper's appendix; everything else is the configs' own default.
COLUMNS: dict[str, dict[str, Any]] = {
    "pendulum": {"batch": 1024, "ratio_batch": 1024},
    "mujoco": {"batch": 2048, "clip_per_dimension": True},
    "d4rl": {"batch": 2048, "density_floor": 1e-3},
}
PAPER_STEPS = {"pendulum": 2_000_000, "mujoco": 1_000_000, "d4rl": 1_000_000}

# The same estimate for a tenth of the arithmetic or less (docs/speed.md: what was tried, and what each bought). A
# copy of the target network contracts by γ only, so copies, not steps, are what convergence counts: 800 of them at
# γ = 0.99, and 160 at Pendulum's 0.95.
FAST = {"learning_rate": 1e-3, "bandwidth_period": 4, "target_period": 125, "metric_period": 20}
FAST_PENDULUM = {"target_period": 250, "metric_period": 4}
FAST_STEPS = {"fast": 100_000, "pendulum-fast": 40_000, "mujoco-fast": 100_000, "d4rl-fast": 100_000}

PRESETS = (*COLUMNS, *FAST_STEPS)

# Our best documented settings, the same for every task. Most systems cut actions to the box and most targets act at
# its edge, where a smooth Q of uncut actions rounds a corner off. Where few rows have an action near the target's,
# FQE's rows fill the minibatch; where hardly any row teaches it, a network says what it began with, and the log's
# mean reward is nearer to V than 0. From half of the steps on the bias is taken off the kernel's rows; V̂ is the mean
# over the copies of the last quarter (docs/best_settings.md has what each does, and what was tried).
BEST = KMIFQEConfig(
    cut_actions=True,
    half_fqe_at=0.02,
    start_at_mean=True,
    bias="held",
    bias_step=500_000,  # of a million; `make_estimator` knows how many there are
    average_step=750_000,
)


@cache  # one object per config, as of `kmifqe`
def kmifqe_best(config: KMIFQEConfig = BEST) -> Estimator:
    """Return KMIFQE under the name of its best settings, so that both can stand in one table."""
    return kmifqe(config)._replace(name="kmifqe-best")


ESTIMATORS: dict[str, tuple[Callable[..., Estimator], Any]] = {
    "kmifqe": (kmifqe, KMIFQEConfig()),
    "kmifqe-best": (kmifqe_best, BEST),
    "kmifqe-identity": (kmifqe, KMIFQEConfig(metric="identity")),
    "fqe": (fqe, FQEConfig()),
    "sr-dice": (sr_dice, SRDICEConfig()),
}


def make_estimator(
    name: str, preset: str = "pendulum", settings: Sequence[str] = (), steps: int | None = None
) -> Estimator:
    """Return the estimator `name` with a preset's settings and then `settings`, each "field=value".

    A setting may name its estimator, "fqe.hidden=128"; without a name it goes to every estimator that has it.
    `steps`, where given, is what SR-DICE's three stages then share in their usual proportion, what a fast preset's
    learning rate falls over, and what the steps of KMIFQE's best settings are shares of.
    """
    if name not in ESTIMATORS:
        raise InputError(f"estimator {name!r} is unknown; expected one of {', '.join(ESTIMATORS)}")
    if preset not in PRESETS:
        raise InputError(f"preset {preset!r} is unknown; expected one of {', '.join(PRESETS)}")
    make, config = ESTIMATORS[name]
    known = {field.name for field in fields(config)}
    changes = _preset_changes(name, preset, steps, known)
    in_all = steps or default_steps(preset)
    if steps is not None and "stages" in known:
        changes["stages"] = _shared_out(steps, config.stages)
    if name == "kmifqe-best":
        changes |= {"bias_step": max(in_all // 2, 1), "average_step": in_all * 3 // 4}
    for setting in settings:
        owner, field, value = parse_setting(setting)
        if owner in (None, name) and field in known:
            changes[field] = _converted(value, getattr(config, field), setting)
    chosen = replace(config, **changes)
    for begins in ("bias_step", "average_step"):
        if getattr(chosen, begins, 0) >= in_all:
            raise InputError(
                f"{begins} is {getattr(chosen, begins)}; expected less than the {in_all:,} steps of the fit"
            )
    estimator = make(chosen)
    return estimator if "stages" in known else estimator._replace(default_steps=default_steps(preset))


def _preset_changes(name: str, preset: str, steps: int | None, known: set[str]) -> dict[str, Any]:
    column = preset.removesuffix("-fast")
    changes = dict(COLUMNS["pendulum" if column == "fast" else column])
    if name in ("fqe", "sr-dice"):
        changes.pop("batch")  # their minibatch is 256 in every column, and fast presets leave them alone
    elif preset in FAST_STEPS:
        changes |= FAST | {"decay_steps": steps or FAST_STEPS[preset]}
        changes |= FAST_PENDULUM if preset == "pendulum-fast" else {}
    return {field: value for field, value in changes.items() if field in known}


def default_steps(preset: str) -> int:
    """Return how many steps FQE and KMIFQE take with a preset unless told otherwise."""
    return FAST_STEPS[preset] if preset in FAST_STEPS else PAPER_STEPS[preset]


def check_settings(names: Sequence[str], settings: Sequence[str]) -> None:
    """Refuse a setting that none of the estimators `names` has."""
    for setting in settings:
        owner, field, _ = parse_setting(setting)
        owners = [name for name in names if owner in (None, name)]
        if not owners:
            raise InputError(f"setting {setting!r} is for {owner!r}, which is not among {', '.join(names)}")
        known = {f.name for name in owners if name in ESTIMATORS for f in fields(ESTIMATORS[name][1])}
        if known and field not in known:
            raise InputError(
                f"setting {setting!r} names no field; expected one of {', '.join(sorted(known))}"
            )


def parse_setting(setting: str) -> tuple[str | None, str, str]:
    """Return (estimator or None, field, value) of "field=value" or "estimator.field=value"."""
    name, equals, value = setting.partition("=")
    if not equals or not name or not value:
        raise InputError(f"setting {setting!r} is malformed; expected FIELD=VALUE or ESTIMATOR.FIELD=VALUE")
    owner, dot, field = name.strip().rpartition(".")
    return (owner if dot else None), field, value.strip()


def _shared_out(steps: int, stages: tuple[int, ...]) -> tuple[int, ...]:
    """Return whole numbers in the proportion of `stages` that add up to `steps`, each at least 1."""
    if steps < len(stages):
        raise InputError(f"steps is {steps}; SR-DICE needs at least {len(stages)}, one for each stage")
    shares = [max(1, steps * stage // sum(stages)) for stage in stages[:-1]]
    return (*shares, steps - sum(shares))


def _converted(value: str, default: Any, setting: str) -> Any:
    """Return `value` as the type of `default`: "a,b" for tuples; None defaults take a number."""
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[value.lower()]
        if isinstance(default, tuple):
            parts = value.split(",")
            if len(parts) != len(default):
                raise ValueError
            return tuple(type(d)(part) for d, part in zip(default, parts))
        if default is None:
            return None if value.lower() == "none" else float(value)
        return type(default)(value)
    except (KeyError, ValueError) as error:
        kind = "true or false" if isinstance(default, bool) else f"a value like {default!r}"
        raise InputError(f"setting {setting!r} has the value {value!r}; expected {kind}") from error
