"""What the kernel alone takes off V on Pendulum: the value of the policy that KMIFQE's weights make of the target.

KMIFQE bootstraps on logged actions drawn in proportion to their clipped weights. With an exact Q its estimate is the
value of the policy that acts so, and the dynamics are known, so that policy can be played. Actions are drawn from μ
and one of them is taken in proportion to its weight.

    python benchmarks/kernel_blur.py                 # the paper's clip, learned h of the records of preset paper
"""

from __future__ import annotations

import argparse
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from kmifqe.maths.kernel import clipped_weight
from kmifqe.worlds.pendulum import value_of_states
from kmifqe.worlds.pendulum_dynamics import MAX_TORQUE, observe, reset, step
from kmifqe.worlds.pendulum_policies import (
    PendulumBehavior,
    controller_of,
    jax_actor,
    load_pendulum_actors,
    with_dummies,
)

GAMMA = 0.95
DUMMIES = 1
EPISODES = 2_500
STEPS = 160  # γ^160 = 0.0003
STRETCH = 11**0.25  # of L's axes at the metric's largest condition number, 1 + 1/floor at the floor of 0.1
NO_CLIP = (0.0, math.inf)

TARGET, MEAN = load_pendulum_actors()
BEHAVIOR = PendulumBehavior(MEAN, DUMMIES)


@partial(jax.jit, static_argnames=("clip", "candidates"))
def blurred_value(
    key: jax.Array, start: jax.Array, h: float, stretch: float, clip: tuple[float, float], candidates: int
) -> jax.Array:
    """Return V of each first state under the policy that the weights make, L = diag(stretch, 1/stretch)."""
    behavior, target, mean = controller_of(BEHAVIOR), jax_actor(TARGET), jax_actor(MEAN)
    half, axes = MAX_TORQUE, jnp.array([stretch, 1.0 / stretch])

    # In half action ranges, as h is. PendulumBehavior's own density is NumPy's and cannot be scanned.
    def log_mu(observations: jax.Array, actions: jax.Array) -> jax.Array:
        std = BEHAVIOR.std * half
        gaussian = jax.scipy.stats.norm.pdf(actions[:, 0], mean(observations)[:, 0], std)
        inside = (jnp.abs(actions[:, 0]) <= half) / (2.0 * half)
        first = (1.0 - BEHAVIOR.uniform_share) * gaussian + BEHAVIOR.uniform_share * inside
        return jnp.log(first / (2.0 * half) * half**2)

    def advance(carry: tuple[jax.Array, ...], step_key: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
        state, value, discount = carry
        draw_key, choose_key = jax.random.split(step_key)
        seen = observe(state)
        middle = jnp.concatenate([target(seen), jnp.zeros((len(state), DUMMIES))], axis=1)

        def weighted(one_key: jax.Array) -> tuple[jax.Array, jax.Array]:
            actions = behavior.draw(one_key, seen)
            squared = jnp.sum((axes * (actions - middle) / half) ** 2, axis=1, keepdims=True)
            weigh = partial(clipped_weight, h=h, action_dim=1 + DUMMIES, clip=clip)
            return actions, jax.vmap(lambda s, m: weigh(s, log_mu=m))(squared, log_mu(seen, actions)[:, None])

        actions, weights = jax.vmap(weighted)(jax.random.split(draw_key, candidates))
        chosen = jax.random.categorical(choose_key, jnp.log(weights), axis=0)
        state, reward, _ = step(state, actions[chosen, jnp.arange(len(state))])
        return (state, value + discount * (1.0 - GAMMA) * reward, discount * GAMMA), None

    begin = (start, jnp.zeros(len(start)), jnp.float32(1.0))
    (_, value, _), _ = jax.lax.scan(advance, begin, jax.random.split(key, STEPS))
    return value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--candidates", type=int, default=2_000, help="actions of μ to choose from at every step"
    )
    candidates = parser.parse_args().candidates
    reset_key, key = jax.random.split(jax.random.key(0))
    start = reset(reset_key, EPISODES)  # the first states of the log of seed 0
    exact = value_of_states(np.asarray(observe(start)), with_dummies(TARGET, DUMMIES), GAMMA)
    print(f"V(π̃) {exact.mean():.3f} at the logged first states\n   h   L axes      clip          V − V(π̃)")
    for h, stretch, clip in (
        (0.060, STRETCH, (1e-3, 2.0)),
        (0.068, 1.0, (1e-3, 2.0)),
        (0.060, STRETCH, NO_CLIP),
        (0.068, 1.0, NO_CLIP),
    ):
        lost = np.asarray(blurred_value(key, start, h, stretch, clip, candidates)) - exact
        error = lost.std(ddof=1) / math.sqrt(len(lost))
        print(
            f"{h:.3f} {stretch:.2f}, {1 / stretch:.2f}  {clip!s:<13} {lost.mean():+.3f} ± {error:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
