"""What the experiments are made of: the methods, the rows of Table 1, and the sizes from smoke to the paper's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kmifqe.errors import InputError
from kmifqe.estimators import Estimator, entry_named, make_estimator
from kmifqe.estimators.registry import DEFAULT
from kmifqe.estimators.sizing import TYPICAL, ProblemSize

PENDULUM = "pendulum"
TASKS = {  # -v4: the closest to the paper's -v2 that Gymnasium still has
    "hopper": "Hopper-v4",
    "halfcheetah": "HalfCheetah-v4",
    "walker2d": "Walker2d-v4",
    "ant": "Ant-v4",
    "humanoid": "Humanoid-v4",
}
FILE_TASKS = ("hopper", "halfcheetah", "walker2d")  # those that D4RL has files of
REGENERATED = "-regenerated"  # our own data by D4RL's recipes, never to be mistaken for D4RL's files
SUFFIXES: dict[str, Recipe] = {"-medium-expert": "mix", "-medium-replay": "replay"}

Recipe = Literal["pendulum", "known", "mix", "replay", "file"]
Kind = Literal["pendulum", "mujoco", "d4rl"]  # a column of the paper's appendix; d4rl: the density is fitted


@dataclass(frozen=True)
class Method:
    """A column of Table 1: an estimator, perhaps with settings of its own."""

    label: str  # in tables and figures
    base: str  # the method whose sizes it has in a preset; DEFAULT: those that users get
    estimator: str  # its name in the registry
    settings: tuple[str, ...] = ()

    @property
    def is_default(self) -> bool:
        """Whether it is what users get: sized by the log, with episode weights for every network, and judged."""
        return self.base == DEFAULT

    @property
    def members(self) -> tuple[str, ...]:
        """The methods that it averages; none for one that is fitted."""
        panel = entry_named(self.estimator).panel
        return tuple(name for name, method in METHODS.items() if method.is_default and name in panel)

    @property
    def needs_density(self) -> bool:
        """Whether its estimator weights rows by the behaviour density."""
        return entry_named(self.estimator).needs_density


METHODS = {
    "kmifqe-paper": Method("KMIFQE-paper", "kmifqe", "kmifqe-paper"),
    "kmifqe-identity": Method("w/o metric", "kmifqe", "kmifqe-identity"),
    "kmifqe": Method("KMIFQE", DEFAULT, "kmifqe"),
    "fqe-paper": Method("FQE-paper", "fqe", "fqe-paper"),
    "fqe": Method("FQE", DEFAULT, "fqe"),
    "sr-dice": Method("SR-DICE", "sr-dice", "sr-dice", ("center_rewards=false",)),
    "auto": Method("auto", DEFAULT, "auto"),
}


class Run(NamedTuple):
    """An estimator and how many steps it is trained for."""

    estimator: Estimator
    steps: int


class Training(NamedTuple):
    """How `reproduce policies` trains TD3."""

    steps: int  # environment steps in all
    envs: int  # side by side
    hidden: int  # units in each of two layers
    episodes: int  # per checkpoint; ten times as many per finalist, at most 100
    checkpoints: int = 100


@dataclass(frozen=True)
class Preset:
    """The sizes of every experiment."""

    name: str
    seeds: int
    rows: Mapping[str, int]  # logged rows, by row of the table or by recipe
    truth_episodes: int
    training: Training
    # By a method's base; a tuple has the steps of each stage. Default: the estimator's own.
    steps: Mapping[str, int | tuple[int, ...]]
    # Texts such as "field=value", by base; those of "" are for every method that is not a user's default.
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fast: bool = True  # whether KMIFQE has its fast settings or the paper's
    # What users get has at most the recipe of a log with so many rows, where a machine's time allows no larger one
    # (`budget`); None: each log's own recipe.
    recipe_rows: int | None = None
    fit_settings: Mapping[str, Any] = field(default_factory=dict)  # fields of behavior.FitConfig
    pendulum_truth_episodes: int = 1_500
    tasks: tuple[str, ...] = tuple(TASKS)
    trains_policies: bool = False  # whether `all` trains its own policies, or uses the shipped ones
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by recipe; default: all

    def methods_of(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the methods that Table 1 runs on rows of a recipe."""
        return self.methods.get(recipe, tuple(METHODS))

    def run_of(self, method: str, kind: str, size: ProblemSize = TYPICAL) -> Run:
        """Return the estimator of a method that is fitted, and its steps.

        `kind` is that of the row. `size` is the size of its log, which the methods that are a user's default need.
        """
        if method not in METHODS:
            raise InputError(f"method {method!r} is unknown; expected one of {', '.join(METHODS)}")
        found = METHODS[method]
        steps = self.steps.get(found.base)
        own = (*self.settings.get(found.base, ()), *found.settings)
        if found.is_default:
            texts = (
                *(("density_floor=1e-3",) if kind == "d4rl" else ()),
                *own,
            )  # as `evaluate` for a fitted μ
            assert not isinstance(steps, tuple)
            estimator = make_estimator(found.estimator, DEFAULT, texts, steps, size)
            return Run(estimator, steps or estimator.default_steps)
        texts = (*self.settings.get("", ()), *own)
        column = f"{kind}-fast" if self.fast else kind
        if isinstance(steps, tuple):
            stages = f"stages={','.join(map(str, steps))}"
            return Run(make_estimator(found.estimator, column, (stages, *texts)), sum(steps))
        estimator = make_estimator(found.estimator, column, texts, steps)
        return Run(estimator, steps or estimator.default_steps)


# Rounded from D4RL's -v2 files.
_REPLAY_ROWS = {
    "hopper-medium-replay-regenerated": 400_000,
    "halfcheetah-medium-replay-regenerated": 200_000,
    "walker2d-medium-replay-regenerated": 300_000,
}

PRESETS = {
    "smoke": Preset(
        name="smoke",
        seeds=2,
        rows={"pendulum": 600, "known": 300, "mix": 300, "replay": 300},
        truth_episodes=2,
        pendulum_truth_episodes=20,
        training=Training(steps=160, envs=4, hidden=8, episodes=1, checkpoints=3),
        steps={"kmifqe": 20, "fqe": 20, "sr-dice": (5, 5, 10), DEFAULT: 20},
        settings={
            DEFAULT: ("hidden=8", "batch=16"),
            "": ("hidden=8", "features=8", "batch=16", "ratio_batch=16", "value_rows=50", "target_period=5"),
            "kmifqe": ("metric_period=2",),
        },
        fit_settings={"components": (2, 3), "hidden": (8,), "batch": 32, "steps": 20, "check_every": 10},
        tasks=("hopper",),
        trains_policies=True,
        methods={  # compiling is nearly all the time: the figures use the programs of Pendulum's methods again
            "pendulum": ("kmifqe-paper", "kmifqe-identity", "sr-dice", "fqe-paper"),
            "known": ("fqe-paper",),
            "mix": ("kmifqe", "fqe", "auto"),
            "replay": ("fqe",),
        },
    ),
    "small": Preset(
        name="small",
        seeds=3,
        rows={"pendulum": 40_000, "known": 25_000, "mix": 25_000, "replay": 25_000},
        truth_episodes=50,
        training=Training(steps=20_000, envs=8, hidden=64, episodes=4),
        steps={"kmifqe": 6_000, "fqe": 15_000, "sr-dice": (1_500, 10_000, 9_000)},
        settings={
            "": ("hidden=64", "features=64", "batch=256", "ratio_batch=512"),
            "kmifqe": ("learning_rate=0.003", "target_period=12", "metric_period=50"),
            "fqe": ("tau=0.05",),
            "sr-dice": ("tau=0.05",),
        },
        fit_settings={"components": (5, 10), "hidden": (64, 64), "steps": 1_500},
    ),
    "fast": Preset(
        name="fast",
        seeds=10,
        rows={"pendulum": 500_000, "known": 1_000_000, "mix": 1_000_000} | _REPLAY_ROWS,
        truth_episodes=1_000,
        training=Training(steps=1_000_000, envs=32, hidden=256, episodes=10),
        steps={"fqe": 200_000, "sr-dice": (10_000, 35_000, 85_000)},
        settings={"sr-dice": ("tau=0.02",)},
        recipe_rows=400_000,  # what two cores reach in the ten minutes that `evaluate` takes by default
    ),
    "paper": Preset(
        name="paper",
        seeds=10,
        rows={"pendulum": 500_000, "known": 1_000_000, "mix": 2_000_000} | _REPLAY_ROWS,
        truth_episodes=1_000,
        training=Training(steps=1_000_000, envs=8, hidden=256, episodes=10),
        steps={"sr-dice": (30_000, 100_000, 250_000)},
        fast=False,
    ),
}


def preset_named(name: str) -> Preset:
    """Return the preset; refuse a name that is none."""
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]


@dataclass(frozen=True)
class Row:
    """One row of Table 1; its name says everything else."""

    name: str
    task: str
    kind: Kind
    recipe: Recipe

    @property
    def gamma(self) -> float:
        """The paper's discount."""
        return 0.95 if self.kind == "pendulum" else 0.99

    @property
    def env_id(self) -> str:
        """The Gymnasium id of a MuJoCo row."""
        return TASKS[self.task]

    def logged(self, preset: Preset) -> int:
        """Return how many rows of data the preset asks for; a file has as many as it has."""
        return preset.rows.get(self.name) or preset.rows[self.recipe]


def row_named(name: str) -> Row:
    """Return the row of a name; refuse a name that is none."""
    if name == PENDULUM:
        return Row(name, PENDULUM, "pendulum", "pendulum")
    if name in TASKS:
        return Row(name, name, "mujoco", "known")
    for suffix, recipe in SUFFIXES.items():
        task, found, rest = name.partition(suffix)
        if task in FILE_TASKS and found and rest in ("", REGENERATED):
            return Row(name, task, "d4rl", recipe if rest else "file")
    raise InputError(f"row {name!r} is unknown; expected {PENDULUM}, {', '.join(TASKS)}, or a D4RL name")


def fitted_rows(preset: Preset) -> tuple[str, ...]:
    """Return the rows whose density is fitted: our regeneration of D4RL's recipes."""
    tasks = [task for task in FILE_TASKS if task in preset.tasks]
    return tuple(f"{task}{suffix}{REGENERATED}" for suffix in SUFFIXES for task in tasks)


def table_rows(preset: Preset) -> tuple[str, ...]:
    """Return all rows of the table, in the paper's order."""
    return (PENDULUM, *preset.tasks, *fitted_rows(preset))


def file_rows(d4rl_dir: Path) -> tuple[str, ...]:
    """Return the rows whose D4RL files lie in the folder; refuse a folder without any."""
    names = [f"{task}{suffix}" for suffix in SUFFIXES for task in FILE_TASKS]
    found = tuple(name for name in names if _matches(d4rl_dir, name))
    if not found:
        raise InputError(
            f"{d4rl_dir}: holds no D4RL file; expected names such as hopper_medium_expert-v2.hdf5"
        )
    return found


def d4rl_file(d4rl_dir: Path | None, name: str) -> Path:
    """Return the D4RL file of a data set such as hopper-medium-expert; refuse a missing or an ambiguous one."""
    if d4rl_dir is None:
        raise InputError(f"{name}: D4RL's own file is needed; say where it lies with --d4rl-dir")
    found = _matches(d4rl_dir, name)
    if len(found) != 1:
        held = ", ".join(path.name for path in found) or "none"
        stem = name.replace("-", "_")
        raise InputError(f"{d4rl_dir}: found {held}; expected one file {stem}-v2.hdf5 for {name}")
    return found[0]


def _matches(folder: Path, name: str) -> list[Path]:
    stem = name.replace("-", "_")
    exact = folder / f"{stem}.hdf5"
    return [*([exact] if exact.is_file() else []), *sorted(folder.glob(f"{stem}-v[0-9]*.hdf5"))]
