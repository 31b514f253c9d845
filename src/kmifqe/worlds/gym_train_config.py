"""What a training run is: its settings and what it tells while it runs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from kmifqe.errors import InputError
from kmifqe.worlds.td3 import Td3Config

MAY_CHANGE = ("steps", "workers", "save_seconds")  # on resuming; the rest is what the run is


@dataclass(frozen=True)
class TrainConfig:
    """Settings of `train`. The learner's own are in `td3`."""

    env_id: str
    steps: int  # environment steps in all, one update each after the warm-up
    seed: int = 0
    envs: int = 8  # stepped side by side; the learner makes as many updates after each common step
    workers: int = 1  # processes that step them; 1: this one
    warmup: int | None = None  # steps of uniform actions first; None: steps / 20, at most 25,000 (TD3's code)
    eval_every: int | None = None  # steps between checkpoints; None: steps / 100
    eval_episodes: int = 10  # per checkpoint
    choice_episodes: int = 100  # per finalist, at the end
    replay: int = 1_000_000  # transitions kept
    save_seconds: float = 300.0  # least time between two savings of the whole state
    td3: Td3Config = field(default_factory=Td3Config)

    def __post_init__(self) -> None:
        for name in ("steps", "envs", "workers", "eval_episodes", "choice_episodes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; expected 1 or more")
        for name in ("warmup", "eval_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} is {value}; expected 1 or more")
        if self.replay < self.envs:
            raise InputError(f"replay is {self.replay}; expected at least envs, {self.envs}")
        if self.seed < 0:
            raise InputError(f"seed is {self.seed}; expected 0 or more")

    @property
    def warmup_steps(self) -> int:
        """Steps of uniform actions before learning begins."""
        return min(25_000, self.steps // 20) if self.warmup is None else self.warmup

    @property
    def steps_between_checkpoints(self) -> int:
        """Steps between two evaluations."""
        return max(1, self.steps // 100) if self.eval_every is None else self.eval_every

    def as_record(self) -> dict[str, Any]:
        """Return the settings as JSON knows them."""
        record = asdict(self)
        record["td3"] = {k: list(v) if isinstance(v, tuple) else v for k, v in record["td3"].items()}
        return record

    def refuse_unlike(self, record: dict[str, Any], where: str) -> None:
        """Refuse to resume a run that was started with other settings."""
        ours = self.as_record()
        for name in ours:
            if name not in MAY_CHANGE and ours[name] != record.get(name):
                raise InputError(
                    f"{where}: the run was started with {name} = {record.get(name)}; found {ours[name]} "
                    f"(only {', '.join(MAY_CHANGE)} may change on resuming)"
                )


@dataclass(frozen=True)
class TrainProgress:
    """What a person wants to see while waiting."""

    steps: int  # taken so far, of all runs
    total: int
    last_return: float
    best_return: float
    choosing: bool = False  # the steps are done, the finalists are being evaluated
