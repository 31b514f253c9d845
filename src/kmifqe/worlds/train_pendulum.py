"""Train the two Pendulum actors that the package ships: a good target and an inferior behaviour mean.

`python -m kmifqe.worlds.train_pendulum --out DIR --seed 0` writes both, and a README with what they reach.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass
from pathlib import Path

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor
from kmifqe.worlds.pendulum import TrueValue, true_value
from kmifqe.worlds.pendulum_dynamics import PENDULUM
from kmifqe.worlds.pendulum_policies import PendulumBehavior
from kmifqe.worlds.td3 import Td3Config, td3, train

CONFIG = Td3Config(actor_hidden=(64, 64), critic_hidden=(128, 128), learning_rate=1e-3)
STEPS = 15_000  # environment steps, one update each
SNAPSHOT_EVERY = 80  # steps; fine enough to meet the behaviour's level on the way up
BEHAVIOR_RETURN = -450.0  # the paper's behaviour mean
BEHAVIOR_TOLERANCE = 100.0
CLIMBED = -200.0  # the return at which the way up is over; later dips are not partly trained policies
CHOICE_EPISODES = 1_000  # per snapshot
REPORT_EPISODES = 10_000  # for the figures in the README, on first states that chose nothing
GAMMA = 0.95  # the paper's, for the values reported


@dataclass(frozen=True)
class Snapshot:
    """A policy met while training, and its return."""

    steps: int
    actor: Actor
    episode_return: float


def snapshots(seed: int) -> list[Snapshot]:
    """Return the policies met while training, in order."""
    learner = td3(CONFIG, PENDULUM.observation_dim, PENDULUM.low, PENDULUM.high)
    met = []
    for steps, state in train(seed, PENDULUM, learner, steps=STEPS, report_every=SNAPSHOT_EVERY):
        actor = learner.export(state, f"pendulum TD3 at {steps} steps")
        met.append(Snapshot(steps, actor, true_value(seed, actor, GAMMA, CHOICE_EPISODES).episode_return))
    return met


def choose(met: list[Snapshot]) -> tuple[Snapshot, Snapshot]:
    """Return the target, the best policy met, and the behaviour mean, one of those on the way up.

    Of the policies near the behaviour's level it is the one that noise hurts least: around most of them the
    mixture never stays upright, and its log says nothing about where the target lives.
    """
    target = max(met, key=lambda s: s.episode_return)
    way_up = itertools.takewhile(lambda s: s.episode_return < CLIMBED, met)
    near = [s for s in way_up if abs(s.episode_return - BEHAVIOR_RETURN) <= BEHAVIOR_TOLERANCE]
    if not near:
        raise InputError(
            f"no policy within {BEHAVIOR_TOLERANCE} of a return of {BEHAVIOR_RETURN}; try another seed"
        )
    return target, max(near, key=_mixture_return)


def _mixture_return(snapshot: Snapshot) -> float:
    mixture = PendulumBehavior(snapshot.actor, n_dummies=0)
    return true_value(0, mixture, GAMMA, CHOICE_EPISODES).episode_return


def main(arguments: list[str] | None = None) -> None:
    """Train, choose and write both actors and their README into a directory."""
    parser = argparse.ArgumentParser(prog="python -m kmifqe.worlds.train_pendulum", description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="directory for the two actors and their README"
    )
    parser.add_argument("--seed", type=int, default=0, help="of training and of the choice (default: 0)")
    options = parser.parse_args(arguments)
    target, behavior = choose(snapshots(options.seed))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, snapshot in (("pendulum-target", target), ("pendulum-behavior", behavior)):
        snapshot.actor.save(options.out / f"{name}.safetensors")
    (options.out / "README.md").write_text(_readme(options.seed, target, behavior), encoding="utf-8")


def _readme(seed: int, target: Snapshot, behavior: Snapshot) -> str:
    fresh_seed = seed + 1
    widths = "×".join(map(str, CONFIG.actor_hidden))
    level = f"{BEHAVIOR_RETURN:.0f} ± {BEHAVIOR_TOLERANCE:.0f}"
    rows: list[tuple[str, str, Actor | PendulumBehavior]] = [
        ("pendulum-target.safetensors", str(target.steps), target.actor),
        ("pendulum-behavior.safetensors", str(behavior.steps), behavior.actor),
        ("the behaviour mixture around the latter", "", PendulumBehavior(behavior.actor, n_dummies=0)),
    ]
    lines = [
        _row(name, steps, true_value(fresh_seed, who, GAMMA, REPORT_EPISODES)) for name, steps, who in rows
    ]
    return f"""# Pendulum actors

    python -m kmifqe.worlds.train_pendulum --out DIR --seed {seed}

made these files in one run of TD3 (`worlds/td3.py`): {STEPS:,} steps, policy {widths}. The target is the best
policy met. The behaviour mean is, of those on the way up with a return of {level}, the one
whose mixture returns most: noise keeps the others from staying upright, where the target lives.
The same seed on the same machine gives the same weights; another machine's rounding gives another run.

R: undiscounted return of 200 steps. V: normalised value at γ = {GAMMA}.
{REPORT_EPISODES:,} episodes that chose nothing, ± one standard error.

| actor | steps of training | R | V |
| --- | --- | --- | --- |
{chr(10).join(lines)}
"""


def _row(name: str, steps: str, truth: TrueValue) -> str:
    r = f"{truth.episode_return:.1f} ± {truth.episode_return_standard_error:.1f}"
    return f"| {name} | {steps} | {r} | {truth.value:.3f} ± {truth.standard_error:.3f} |"


if __name__ == "__main__":
    main()
