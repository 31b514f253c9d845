"""An actor that runs inside jax: the same forward pass as `kmifqe.policies.actor.Actor`, as a pytree."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from kmifqe.policies.actor import Actor

HIDDEN = {"tanh": jnp.tanh, "relu": jax.nn.relu}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class JaxActor:
    """An `Actor` whose arrays are leaves, so that a jitted function takes it as an argument."""

    weights: tuple[jax.Array, ...]
    biases: tuple[jax.Array, ...]
    low: jax.Array
    high: jax.Array
    obs_mean: jax.Array | None
    obs_var: jax.Array | None
    hidden: str = field(metadata={"static": True})
    output: str = field(metadata={"static": True})
    obs_eps: float = field(metadata={"static": True})
    obs_clip: float = field(metadata={"static": True})
    mean_clip: float | None = field(metadata={"static": True})

    def __call__(self, states: jax.Array) -> jax.Array:
        """Return the action for each row of `states`."""
        x = states
        if self.obs_mean is not None and self.obs_var is not None:
            scale = jnp.sqrt(self.obs_var + self.obs_eps)
            x = jnp.clip((x - self.obs_mean) / scale, -self.obs_clip, self.obs_clip)
        for w, b in zip(self.weights[:-1], self.biases[:-1]):
            x = HIDDEN[self.hidden](x @ w + b)
        x = x @ self.weights[-1] + self.biases[-1]
        if self.output == "clip":
            return jnp.clip(x, self.low, self.high)
        if self.mean_clip is not None:
            x = jnp.clip(x, -self.mean_clip, self.mean_clip)
        return self.low + 0.5 * (jnp.tanh(x) + 1.0) * (self.high - self.low)


def jax_actor(actor: Actor) -> JaxActor:
    """Return `actor` with its arrays on jax's default device."""

    def optional(array: object) -> jax.Array | None:
        return None if array is None else jnp.asarray(array)

    return JaxActor(
        weights=tuple(jnp.asarray(w) for w in actor.weights),
        biases=tuple(jnp.asarray(b) for b in actor.biases),
        low=jnp.asarray(actor.low),
        high=jnp.asarray(actor.high),
        obs_mean=optional(actor.obs_mean),
        obs_var=optional(actor.obs_var),
        hidden=actor.hidden,
        output=actor.output,
        obs_eps=actor.obs_eps,
        obs_clip=actor.obs_clip,
        mean_clip=actor.mean_clip,
    )
