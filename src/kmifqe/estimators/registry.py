"""The estimators by name: one entry for each, ours and those of installed packages, and settings given as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module, metadata
from typing import Any, Literal

from kmifqe.errors import InputError, meant
from kmifqe.estimators.base import Estimator
from kmifqe.estimators.sizing import TYPICAL, FitSize, ProblemSize, fit_size

DEFAULT = "default"  # the preset whose sizes follow from the problem (`EstimatorEntry.sized`)
# Preset -> the steps of a fit, for estimators that leave the number to the preset (`EstimatorEntry.steps_at`). The
# first three are the columns of the paper's appendix. The fast ones give the same estimates with a tenth of the
# arithmetic or less (docs/evidence/speed.md).
PRESETS = {
    DEFAULT: 100_000,
    "pendulum": 2_000_000,
    "mujoco": 1_000_000,
    "d4rl": 1_000_000,
    "fast": 100_000,
    "pendulum-fast": 40_000,
    "mujoco-fast": 100_000,
    "d4rl-fast": 100_000,
}
GROUP = "kmifqe.estimators"  # the entry-point group of estimators that other packages bring
BUILT_IN = (  # modules with ENTRIES
    "kmifqe.estimators.auto",
    "kmifqe.estimators.kmifqe",
    "kmifqe.estimators.fqe",
    "kmifqe.estimators.sr_dice",
    "kmifqe.estimators.in_sample",
    "kmifqe.estimators.importance_sampling",
    "kmifqe.estimators.doubly_robust",
    "kmifqe.estimators.dice",
    "kmifqe.estimators.mis",
    "kmifqe.estimators.bandit",
)


@dataclass(frozen=True)
class EstimatorEntry:
    """Everything that the rest of the library knows of one estimator.

    A package adds an estimator by an entry point of the group `kmifqe.estimators` that loads to an EstimatorEntry;
    a program adds one by `register`. A preset changes nothing of an estimator that does not define `at_preset`.
    """

    name: str  # what `-e` and the records call it
    label: str  # what a person reads
    color: str  # "#rrggbb", on a light page
    dark_color: str  # "#rrggbb", on a dark page
    config: Any  # a frozen dataclass: the default settings
    make: Callable[
        [Any], Estimator
    ]  # of a config; the same object for the same config, or jit compiles again
    needs_density: bool  # whether it weights rows by the behaviour density
    summary: str  # one line for --help
    page: str  # of the documentation, from the project's root
    needs_trajectories: bool = False  # whether it follows episodes step by step
    targets: Literal["both", "deterministic", "stochastic"] = "both"  # that it can judge
    use_when: str = ""  # one sentence without its full stop, for `kmifqe estimators`
    avoid_when: str = ""  # the same
    # Preset, and the steps of the fit (None: as many as the preset says) -> the config fields that change.
    at_preset: Callable[[str, int | None], dict[str, Any]] = lambda preset, steps: {}
    steps_at: Callable[[str], int] | None = None  # preset -> steps; None: the estimator's `default_steps`
    # The sizes of a fit -> the config fields that the preset "default" changes; None: it is as the preset "fast".
    sized: Callable[[FitSize], dict[str, Any]] | None = None
    # Estimators that are fitted in its place and averaged (`trust.choice`), those of them that can judge the kind of
    # target that is asked about; empty for one that is fitted itself.
    panel: tuple[str, ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """What a user must have, in words."""
        target = () if self.targets == "both" else (f"a {self.targets} target",)
        density = ("a behaviour density",) if self.needs_density else ()
        return (*target, *density, *(("rows in time order",) if self.needs_trajectories else ()))


def entries() -> tuple[EstimatorEntry, ...]:
    """Return every estimator that is fitted: built-in, of installed packages, and registered by a program."""
    return tuple(entry for entry in _entries().values() if not entry.panel)


def all_entries() -> tuple[EstimatorEntry, ...]:
    """Return everything that can be asked for by name: `entries`, and averages over some of them."""
    return tuple(_entries().values())


def fitted_names(names: Sequence[str], *, stochastic: bool = False) -> list[str]:
    """Return which estimators are fitted for `names`, each once: an average stands for those that it averages.

    `stochastic` says whether the target draws its actions; of an average's panel only those count that can judge it.
    """
    kinds = ("both", "stochastic" if stochastic else "deterministic")
    found: list[str] = []
    for name in names:
        entry = find_entry(name)
        panel = () if entry is None else entry.panel
        found += [each for each in panel if entry_named(each).targets in kinds] or [name]
    return list(dict.fromkeys(found))


def entry_named(name: str) -> EstimatorEntry:
    """Return the entry of the estimator `name`, or refuse the name and list those that are known."""
    found = find_entry(name)
    if found is None:
        raise InputError(
            f"estimator {name!r} is unknown; expected one of {', '.join(_entries())}{meant(name, _entries())}"
        )
    return found


def find_entry(name: str) -> EstimatorEntry | None:
    """Return the entry of the estimator `name`; None where there is none, as for a record of another machine."""
    return _entries().get(name)


def register(entry: EstimatorEntry) -> None:
    """Add an entry for this process; a name that an estimator has already is refused."""
    _add(_entries(), entry, "register")


@cache
def _entries() -> dict[str, EstimatorEntry]:
    known: dict[str, EstimatorEntry] = {}
    for module in BUILT_IN:
        for entry in import_module(module).ENTRIES:
            _add(known, entry, module)
    for point in metadata.entry_points(group=GROUP):
        source = f"the entry point {point.name!r} ({point.value}) of the group {GROUP}"
        try:
            entry = point.load()
        except Exception as error:  # another package's code runs here, and may raise anything
            raise InputError(
                f"{source} does not load: {error}; mend or uninstall the package that brings it"
            ) from error
        if not isinstance(entry, EstimatorEntry):
            raise InputError(f"{source} is a {type(entry).__name__}; expected an EstimatorEntry")
        _add(known, entry, source)
    return known


def _add(known: dict[str, EstimatorEntry], entry: EstimatorEntry, source: str) -> None:
    if entry.name in known:
        raise InputError(f"{source}: an estimator {entry.name!r} exists already; choose another name")
    known[entry.name] = entry


def make_estimator(
    name: str,
    preset: str = DEFAULT,
    settings: Sequence[str] = (),
    steps: int | None = None,
    size: ProblemSize = TYPICAL,
) -> Estimator:
    """Return an estimator with a preset's settings and the user's.

    `name` is that of a registry entry, `preset` one of `PRESETS`. `settings` are texts "field=value" or
    "estimator.field=value", which win over the preset; without a name a setting goes to every estimator that has
    the field. `steps` is the number of steps of the fit, on which a preset's settings may depend; by default as
    many as the preset says. `size` is that of the problem, which the preset "default" follows.
    """
    entry = entry_named(name)
    if preset not in PRESETS:
        raise InputError(
            f"preset {preset!r} is unknown; expected one of {', '.join(PRESETS)}{meant(preset, PRESETS)}"
        )
    known = {field.name for field in fields(entry.config)}
    sized, own_size = entry.sized if preset == DEFAULT else None, fit_size(size, steps)
    if sized is not None:
        changes = sized(own_size)
    else:
        changes = entry.at_preset("fast" if preset == DEFAULT else preset, steps)
    for setting in settings:
        owner, field, value = parse_setting(setting)
        if owner in (None, name) and field in known:
            changes[field] = _converted(value, getattr(entry.config, field), setting)
    estimator = entry.make(replace(entry.config, **changes))
    if sized is not None:
        estimator = estimator._replace(default_steps=own_size.steps)
    elif entry.steps_at is not None:
        estimator = estimator._replace(default_steps=entry.steps_at(preset))
    return estimator


def check_settings(names: Sequence[str], settings: Sequence[str]) -> None:
    """Refuse a setting that none of the estimators `names` has."""
    for setting in settings:
        owner, field, _ = parse_setting(setting)
        owners = [name for name in names if owner in (None, name)]
        if not owners:
            raise InputError(f"setting {setting!r} is for {owner!r}, which is not among {', '.join(names)}")
        configs = [entry.config for entry in map(find_entry, owners) if entry is not None]
        known = {f.name for config in configs for f in fields(config)}
        if known and field not in known:
            raise InputError(
                f"setting {setting!r} names no field; expected one of {', '.join(sorted(known))}{meant(field, known)}"
            )


def parse_setting(setting: str) -> tuple[str | None, str, str]:
    """Return (estimator or None, field, value) of "field=value" or "estimator.field=value"."""
    name, equals, value = setting.partition("=")
    if not equals or not name or not value:
        raise InputError(f"setting {setting!r} is malformed; expected FIELD=VALUE or ESTIMATOR.FIELD=VALUE")
    owner, dot, field = name.strip().rpartition(".")
    return (owner if dot else None), field, value.strip()


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
