"""How large the experiments are: from seconds (smoke) to the paper's own sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kmifqe.errors import InputError
from kmifqe.estimators import Estimator, make_estimator
from kmifqe.estimators.registry import default_steps

METHODS = ("kmifqe", "kmifqe-best", "kmifqe-identity", "sr-dice", "fqe", "fqe-standardized")

_ESTIMATOR_OF = {"fqe-standardized": "fqe"}
_EXTRA = {"fqe-standardized": ("inputs=standardized",)}
_PAPER_STEPS = {"pendulum": 2_000_000, "mujoco": 1_000_000, "d4rl": 1_000_000}


class Training(NamedTuple):
    """How `reproduce policies` trains TD3."""

    steps: int  # environment steps in all
    envs: int  # side by side
    hidden: int  # units in each of two layers
    episodes: int  # per checkpoint; ten times as many per finalist, at most 100
    checkpoints: int = 100


class Run(NamedTuple):
    """An estimator and how many steps it takes."""

    estimator: Estimator
    steps: int


@dataclass(frozen=True)
class Preset:
    """The sizes of every experiment.

    Settings are texts as `kmifqe evaluate --setting` takes them ("field=value"). `kind` is a column of the
    paper's appendix: "pendulum", "mujoco" (known density) or "d4rl" (fitted density).
    """

    name: str
    seeds: int
    pendulum_rows: int
    mujoco_rows: int
    mix_rows: int  # of a regenerated medium-expert log
    replay_rows: Mapping[str, int]  # of a regenerated medium-replay log, by task
    truth_episodes: int
    pendulum_truth_episodes: int
    training: Training
    kernel: Mapping[str, str]  # kind -> the estimators' preset for KMIFQE
    kernel_steps: Mapping[str, int | None]  # kind -> steps; None: the estimators' preset says
    fqe_steps: Mapping[str, int]
    sr_dice_stages: tuple[int, int, int]
    best_steps: int | None = None  # of KMIFQE at our best settings, on every row; None: as many as KMIFQE
    settings: tuple[str, ...] = ()  # of every estimator that has the field
    fit_settings: Mapping[str, object] = field(default_factory=dict)  # fields of behavior.FitConfig
    known_tasks: tuple[str, ...] = ("hopper", "halfcheetah", "walker2d", "ant", "humanoid")
    mix_tasks: tuple[str, ...] = ("hopper", "halfcheetah", "walker2d")
    replay_tasks: tuple[str, ...] = ("hopper", "halfcheetah", "walker2d")
    trains_policies: bool = False  # whether `all` trains its own policies, or takes the shipped ones
    methods_by_recipe: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # all, where not said

    def methods_of(self, recipe: str) -> tuple[str, ...]:
        """Return the methods that Table 1 runs on rows of a recipe ("pendulum", "known", "mix", ...)."""
        return self.methods_by_recipe.get(recipe, METHODS)

    def run_of(self, method: str, kind: str, settings: Sequence[str] = ()) -> Run:
        """Return the estimator of a method for a kind of row, with `settings` on top, and its steps."""
        if method not in METHODS:
            raise InputError(f"method {method!r} is unknown; expected one of {', '.join(METHODS)}")
        name = _ESTIMATOR_OF.get(method, method)
        texts = (*self.settings, *_EXTRA.get(method, ()), *settings)
        if name == "sr-dice":
            stages = ",".join(map(str, self.sr_dice_stages))
            return Run(make_estimator(name, kind, (f"stages={stages}", *texts)), sum(self.sr_dice_stages))
        if name == "fqe":
            return Run(make_estimator(name, kind, texts), self.fqe_steps[kind])
        steps = (method == "kmifqe-best" and self.best_steps) or self.kernel_steps[kind]
        estimator = make_estimator(name, self.kernel[kind], texts, steps)
        return Run(estimator, steps or default_steps(self.kernel[kind]))


def _of_kmifqe(setting: str) -> tuple[str, ...]:
    """Return the setting for KMIFQE, its best settings and its ablation, and for no baseline."""
    return tuple(f"{name}.{setting}" for name in ("kmifqe", "kmifqe-best", "kmifqe-identity"))


_FAST_KERNEL = {kind: f"{kind}-fast" for kind in _PAPER_STEPS}
_D4RL_REPLAY = {
    "hopper": 400_000,
    "halfcheetah": 200_000,
    "walker2d": 300_000,
}  # rounded from D4RL's -v2 files

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="smoke",
            seeds=2,
            pendulum_rows=600,
            mujoco_rows=300,
            mix_rows=300,
            replay_rows={"hopper": 300},
            truth_episodes=2,
            pendulum_truth_episodes=20,
            training=Training(steps=160, envs=4, hidden=8, episodes=1, checkpoints=3),
            kernel=_FAST_KERNEL,
            kernel_steps=dict.fromkeys(_PAPER_STEPS, 20),
            fqe_steps=dict.fromkeys(_PAPER_STEPS, 20),
            sr_dice_stages=(5, 5, 10),
            settings=(
                *("hidden=8", "features=8", *_of_kmifqe("batch=16"), "fqe.batch=16"),
                *(
                    "sr-dice.batch=16",
                    "ratio_batch=16",
                    "value_rows=50",
                    "target_period=5",
                    "metric_period=2",
                ),
            ),
            fit_settings={"components": (2, 3), "hidden": (8,), "batch": 32, "steps": 20, "check_every": 10},
            known_tasks=("hopper",),
            mix_tasks=("hopper",),
            replay_tasks=("hopper",),
            trains_policies=True,
            methods_by_recipe={  # compiling is all the time this takes: the figures use Pendulum's programs again
                "pendulum": ("kmifqe", "kmifqe-identity", "sr-dice", "fqe"),
                "known": ("fqe",),
                "mix": ("kmifqe-best",),
                "replay": ("fqe-standardized",),
            },
        ),
        Preset(
            name="small",
            seeds=3,
            pendulum_rows=40_000,
            mujoco_rows=25_000,
            mix_rows=25_000,
            replay_rows=dict.fromkeys(_D4RL_REPLAY, 25_000),
            truth_episodes=50,
            pendulum_truth_episodes=1_500,
            training=Training(steps=20_000, envs=8, hidden=64, episodes=4),
            kernel=_FAST_KERNEL,
            kernel_steps={"pendulum": 6_000, "mujoco": 6_000, "d4rl": 6_000},
            fqe_steps=dict.fromkeys(_PAPER_STEPS, 15_000),
            sr_dice_stages=(1_500, 10_000, 9_000),
            settings=(
                *("hidden=64", "features=64", *_of_kmifqe("batch=256"), *_of_kmifqe("learning_rate=0.003")),
                *("ratio_batch=512", "target_period=12", "metric_period=50", "tau=0.05"),
            ),
            fit_settings={"components": (5, 10), "hidden": (64, 64), "steps": 1_500},
        ),
        Preset(
            name="fast",
            seeds=10,
            pendulum_rows=500_000,
            mujoco_rows=1_000_000,
            mix_rows=1_000_000,
            replay_rows=_D4RL_REPLAY,
            truth_episodes=1_000,
            pendulum_truth_episodes=1_500,
            training=Training(steps=1_000_000, envs=32, hidden=256, episodes=10),
            kernel=_FAST_KERNEL,
            kernel_steps=dict.fromkeys(_PAPER_STEPS, None),
            fqe_steps=dict.fromkeys(_PAPER_STEPS, 200_000),
            best_steps=100_000,
            sr_dice_stages=(10_000, 35_000, 85_000),
            settings=("sr-dice.tau=0.02",),
        ),
        Preset(
            name="paper",
            seeds=10,
            pendulum_rows=500_000,
            mujoco_rows=1_000_000,
            mix_rows=2_000_000,
            replay_rows=_D4RL_REPLAY,
            truth_episodes=1_000,
            pendulum_truth_episodes=1_500,
            training=Training(steps=1_000_000, envs=8, hidden=256, episodes=10),
            kernel={kind: kind for kind in _PAPER_STEPS},
            kernel_steps=dict.fromkeys(_PAPER_STEPS, None),
            fqe_steps=_PAPER_STEPS,
            sr_dice_stages=(30_000, 100_000, 250_000),
        ),
    )
}


def preset_named(name: str) -> Preset:
    """Return the preset; refuse a name that is none."""
    if name not in PRESETS:
        raise InputError(f"preset {name!r} is unknown; expected one of {', '.join(PRESETS)}")
    return PRESETS[name]
