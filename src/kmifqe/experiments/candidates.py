"""Policies to choose among, made from a few actors: softened, perturbed, and between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kmifqe.experiments.problems_gym import Blend
from kmifqe.io.policies.actor import Actor

Candidate = Actor | Blend


def scaled(actor: Actor, factor: float) -> Actor:
    """Return the actor with its last layer times `factor`: below 1 it acts more softly, above 1 more sharply."""
    weights = (*actor.weights[:-1], (factor * actor.weights[-1]).astype(actor.weights[-1].dtype))
    biases = (*actor.biases[:-1], (factor * actor.biases[-1]).astype(actor.biases[-1].dtype))
    return replace(actor, weights=weights, biases=biases, name=f"{actor.name}, scaled by {factor:g}")


def perturbed(actor: Actor, share: float, seed: int = 0) -> Actor:
    """Return the actor with noise on its weights, whose standard deviation is a `share` of each layer's own.

    `seed` decides the noise; 0 by default.
    """
    rng = np.random.default_rng(seed)
    weights = tuple(
        (layer + share * layer.std() * rng.standard_normal(layer.shape)).astype(layer.dtype)
        for layer in actor.weights
    )
    return replace(actor, weights=weights, name=f"{actor.name}, perturbed by {share:g}")


def candidates(target: Actor, behavior: Actor, snapshots: Sequence[Actor] = ()) -> dict[str, Candidate]:
    """Return at least ten policies by name: `target`, `behavior`, versions of both, and `snapshots` of a training."""
    found: dict[str, Candidate] = {"target": target, "behavior": behavior}
    found |= {f"snapshot-{i}": actor for i, actor in enumerate(snapshots)}
    found |= {f"target-scaled-{factor:g}": scaled(target, factor) for factor in (0.3, 0.6)}
    found |= {f"target-perturbed-{share:g}": perturbed(target, share) for share in (0.1, 0.3)}
    found |= {f"blend-{share:g}": Blend(behavior, target, share) for share in (0.25, 0.5, 0.75)}
    found |= {
        "behavior-scaled-0.5": scaled(behavior, 0.5),
        "behavior-perturbed-0.2": perturbed(behavior, 0.2),
    }
    return found
