"""Tiny actors, and a folder as a training run leaves it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kmifqe.io.policies.actor import Actor


def tiny_actor(seed=0, state_dim=11, action_dim=3, high=1.0, size=1.0) -> Actor:
    rng = np.random.default_rng(seed)
    return Actor(
        weights=(
            size * rng.standard_normal((state_dim, 8)).astype(np.float32),
            size * rng.standard_normal((8, action_dim)).astype(np.float32),
        ),
        biases=(
            rng.standard_normal(8).astype(np.float32),
            rng.standard_normal(action_dim).astype(np.float32),
        ),
        hidden="relu",
        output="tanh",
        low=np.full(action_dim, -high, np.float32),
        high=np.full(action_dim, high, np.float32),
    )


def training_folder(folder: Path, steps: list[int], target: int, behavior: int | None) -> Path:
    """Write checkpoints at `steps` and the record of a run that chose `target` and `behavior`."""
    (folder / "checkpoints").mkdir(parents=True)
    points = [{"steps": s, "episode_return": float(s), "standard_error": 1.0, "episodes": 10} for s in steps]
    for point in points:
        tiny_actor(point["steps"]).save(folder / "checkpoints" / f"step-{point['steps']:09d}.safetensors")
    by_steps = {point["steps"]: point for point in points}
    choice = {
        "target": by_steps[target],
        "behavior": None if behavior is None else by_steps[behavior],
        "behavior_level": None if behavior is None else 0.75,
        "notes": [],
    }
    record = {
        "settings": {"env_id": "Hopper-v4"},
        "jax": "0",
        "device": "cpu",
        "curve": points,
        "choice": choice,
    }
    (folder / "training.json").write_text(json.dumps(record))
    return folder
