"""Train the two Pendulum actors that the package ships: a good target and an inferior behaviour mean.

`python -m kmifqe.worlds.train_pendulum --out DIR --seed 0` writes both, and a README with what they reach. The
whole training runs inside jax, in seconds. On any other task, `kmifqe train` does this with Gymnasium.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor
from kmifqe.worlds import pendulum_dynamics
from kmifqe.worlds.pendulum import TrueValue, true_value
from kmifqe.worlds.pendulum_policies import PendulumBehavior
from kmifqe.worlds.td3 import Batch, Buffer, Td3, Td3Config, Td3State, add, init_buffer, td3

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
class Environment:
    """Pure functions over any leading batch axes, and the numbers that a learner needs."""

    reset: Callable[[jax.Array, int], jax.Array]  # key, n -> n first states
    observe: Callable[[jax.Array], jax.Array]  # states -> what a policy sees, (n, observation_dim)
    # states, actions -> next states, rewards, whether the environment itself ended; a time limit truncates only
    step: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]
    observation_dim: int
    low: tuple[float, ...]  # action bounds
    high: tuple[float, ...]
    time_limit: int  # steps


PENDULUM = Environment(
    reset=pendulum_dynamics.reset,
    observe=pendulum_dynamics.observe,
    step=pendulum_dynamics.step,
    observation_dim=3,
    low=(-pendulum_dynamics.MAX_TORQUE,),
    high=(pendulum_dynamics.MAX_TORQUE,),
    time_limit=pendulum_dynamics.EPISODE_STEPS,
)


class _Progress(NamedTuple):
    learner: Td3State
    buffer: Buffer
    env_states: jax.Array  # one row per environment
    elapsed: jax.Array  # steps of each environment's episode so far


def train(
    seed: int,
    environment: Environment,
    learner: Td3,
    *,
    steps: int,
    n_envs: int = 8,
    warmup: int = 1_000,
    report_every: int = 500,
) -> Iterator[tuple[int, Td3State]]:
    """Yield (environment steps so far, learner's state) about every `report_every` steps until `steps`.

    seed: decides the first weights, the environments and the exploration.
    environment: what is played; `n_envs` copies of it (8) advance together.
    learner: makes one update per environment step.
    warmup: steps of uniform actions at the beginning, in which nothing is learned; 1,000, at least `n_envs`.
    """
    if min(steps, n_envs, report_every) < 1 or warmup < n_envs:
        raise InputError(
            f"steps {steps}, n_envs {n_envs}, report_every {report_every}, warmup {warmup}; "
            "expected each 1 or more, and warmup at least n_envs"
        )
    init_key, reset_key, warmup_key, run_key = jax.random.split(jax.random.key(seed), 4)
    progress = _Progress(
        learner=learner.init(init_key),
        buffer=init_buffer(steps + n_envs, environment.observation_dim, len(environment.low)),
        env_states=environment.reset(reset_key, n_envs),
        elapsed=jnp.zeros(n_envs, jnp.int32),
    )
    advance = partial(_advance, environment, learner)
    progress = advance(progress, warmup_key, rounds=warmup // n_envs, learning=False)
    done, reports = warmup // n_envs * n_envs, 0
    rounds = max(1, report_every // n_envs)
    while done + rounds * n_envs <= steps:
        progress = advance(progress, jax.random.fold_in(run_key, reports), rounds=rounds, learning=True)
        done, reports = done + rounds * n_envs, reports + 1
        yield done, progress.learner


@partial(jax.jit, static_argnums=(0, 1), static_argnames=("rounds", "learning"))
def _advance(
    environment: Environment,
    learner: Td3,
    progress: _Progress,
    key: jax.Array,
    *,
    rounds: int,
    learning: bool,
) -> _Progress:
    """Return the progress after `rounds` more steps of every environment."""
    low, high = np.asarray(environment.low, np.float32), np.asarray(environment.high, np.float32)

    def one_round(progress: _Progress, key: jax.Array) -> tuple[_Progress, None]:
        act_key, reset_key, update_key = jax.random.split(key, 3)
        learner_state, buffer, env_states, elapsed = progress
        n_envs = len(elapsed)
        states = environment.observe(env_states)
        if learning:
            actions = learner.explore(act_key, learner_state, states)
        else:
            actions = jax.random.uniform(act_key, (n_envs, len(low)), minval=low, maxval=high)
        next_env_states, rewards, terminated = environment.step(env_states, actions)
        # The state reached is stored before any reset: past a time limit the value goes on.
        reached = environment.observe(next_env_states)
        buffer = add(buffer, Batch(states, actions, rewards, reached, terminated))
        over = terminated | (elapsed + 1 >= environment.time_limit)
        env_states = jnp.where(over[:, None], environment.reset(reset_key, n_envs), next_env_states)
        elapsed = jnp.where(over, 0, elapsed + 1)
        if learning:
            learner_state, _ = learner.update(update_key, learner_state, buffer, n_envs)
        return _Progress(learner_state, buffer, env_states, elapsed), None

    return jax.lax.scan(one_round, progress, jax.random.split(key, rounds))[0]


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
