"""The rows of Table 1: which task, which recipe of data, which column of the paper's appendix."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kmifqe.errors import InputError
from kmifqe.experiments.policies import TASKS
from kmifqe.experiments.presets import Preset

PENDULUM = "pendulum"
REGENERATED = "-regenerated"  # our own data by D4RL's recipes, never to be taken for D4RL's files
MIX, REPLAY = "-medium-expert", "-medium-replay"
FILE_TASKS = ("hopper", "halfcheetah", "walker2d")

Recipe = Literal["pendulum", "known", "mix", "replay", "file"]


@dataclass(frozen=True)
class Row:
    """One row: its name says everything else."""

    name: str
    task: str
    kind: str  # the estimators' column: "pendulum", "mujoco" or "d4rl"
    recipe: Recipe

    @property
    def gamma(self) -> float:
        """The paper's discount."""
        return 0.95 if self.kind == PENDULUM else 0.99

    @property
    def env_id(self) -> str:
        """The Gymnasium id of a MuJoCo row."""
        return TASKS[self.task]

    def logged(self, preset: Preset) -> int:
        """Return how many rows of data the preset asks for; a file has as many as it has."""
        sizes = {"pendulum": preset.pendulum_rows, "known": preset.mujoco_rows, "mix": preset.mix_rows}
        return preset.replay_rows[self.task] if self.recipe == "replay" else sizes[self.recipe]


def row_named(name: str) -> Row:
    """Return the row of a name; refuse a name that is none."""
    if name == PENDULUM:
        return Row(name, PENDULUM, "pendulum", "pendulum")
    if name in TASKS:
        return Row(name, name, "mujoco", "known")
    data_name = name.removesuffix(REGENERATED)
    for suffix, recipe in ((MIX, "mix"), (REPLAY, "replay")):
        task = data_name.removesuffix(suffix)
        if task in FILE_TASKS and data_name == task + suffix:
            return Row(name, task, "d4rl", recipe if name.endswith(REGENERATED) else "file")  # type: ignore[arg-type]
    raise InputError(f"row {name!r} is unknown; expected {PENDULUM}, {', '.join(TASKS)}, or a D4RL name")


def fitted_rows(preset: Preset) -> tuple[str, ...]:
    """Return the rows whose density is fitted: our regeneration of D4RL's recipes."""
    mixes = (f"{task}{MIX}{REGENERATED}" for task in preset.mix_tasks)
    replays = (f"{task}{REPLAY}{REGENERATED}" for task in preset.replay_tasks)
    return (*mixes, *replays)


def table_rows(preset: Preset) -> tuple[str, ...]:
    """Return all rows of the table, in the paper's order."""
    return (PENDULUM, *preset.known_tasks, *fitted_rows(preset))


def file_rows(d4rl_dir: Path) -> tuple[str, ...]:
    """Return the rows whose D4RL files lie in the folder; refuse a folder without any."""
    names = [f"{task}{suffix}" for suffix in (MIX, REPLAY) for task in FILE_TASKS]
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
    stem = name.replace("-", "_")
    if len(found) != 1:
        held = ", ".join(path.name for path in found) or "none"
        raise InputError(f"{d4rl_dir}: found {held}; expected one file {stem}-v2.hdf5 for {name}")
    return found[0]


def _matches(folder: Path, name: str) -> list[Path]:
    stem = name.replace("-", "_")
    exact = folder / f"{stem}.hdf5"
    return [*([exact] if exact.is_file() else []), *sorted(folder.glob(f"{stem}-v[0-9]*.hdf5"))]
