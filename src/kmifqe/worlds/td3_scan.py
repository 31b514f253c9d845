"""TD3 on an environment of pure functions: acting, storing and learning in one scan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.errors import InputError
from kmifqe.worlds.environment import Environment
from kmifqe.worlds.td3 import Batch, Buffer, Td3, Td3State, add, init_buffer


class _Progress(NamedTuple):
    learner: Td3State
    buffer: Buffer
    env_states: jax.Array  # one row per environment
    elapsed: jax.Array  # steps taken in each environment's episode


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
    """Yield (environment steps taken, learner's state) about every `report_every` steps until `steps`.

    `n_envs` environments advance together, with one update per environment step. Actions are uniform and
    nothing is learned during the first `warmup` steps.
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
    taken, reports = warmup // n_envs * n_envs, 0
    rounds = max(1, report_every // n_envs)
    while taken + rounds * n_envs <= steps:
        progress = advance(progress, jax.random.fold_in(run_key, reports), rounds=rounds, learning=True)
        taken, reports = taken + rounds * n_envs, reports + 1
        yield taken, progress.learner


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
    """Return the progress after every environment took `rounds` steps."""
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
