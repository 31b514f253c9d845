"""`kmifqe example`: a log and a policy to try the other commands on."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from kmifqe.cli.config import Config
from kmifqe.errors import InputError, printable

EPISODES, LENGTH = 100, 40


def example(
    out: Annotated[Path, typer.Option(help="Directory for both files; made if missing.")] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Replace files of the same names.")] = False,
    config_file: Config = None,
) -> None:
    """Write a small log, log.npz, and a policy, policy.safetensors, to try the other commands on.

    Example: kmifqe example

    A cart on a rail is pushed to the middle. The log holds 100 episodes of a gentle controller with noise; the policy
    pushes harder. What the policy is truly worth is printed, so that an estimate can be held against it.
    """
    # Not above: --help does without these.
    import numpy as np

    from kmifqe.io.files import disk_sentence
    from kmifqe.io.logs import save_dataset
    from kmifqe.io.policies.actor import Actor
    from kmifqe.worlds.lqr import cart

    log_path, policy_path = out / "log.npz", out / "policy.safetensors"
    for path in (log_path, policy_path):
        if os.path.lexists(path) and not force:
            raise InputError(
                f"{path}: exists already; give --force to replace it, or --out another directory"
            )
    world = cart()
    log = world.collect(0, EPISODES, LENGTH)
    policy = Actor(
        weights=(-world.gain.T.astype(np.float32),),
        biases=(np.zeros(1, np.float32),),
        hidden="tanh",  # between layers, of which there is one
        output="clip",
        low=world.policy.low,
        high=world.policy.high,
    )
    with disk_sentence(out):
        out.mkdir(parents=True, exist_ok=True)
        save_dataset(log, log_path, overwrite=force)
        policy.save(policy_path)
    truth = world.value_from(log.states[log.first_rows])
    named = [escape(printable(shlex.quote(str(path)))) for path in (log_path, policy_path)]
    for line in (
        f"written: {escape(printable(str(log_path)))} and {escape(printable(str(policy_path)))}",
        f"The policy's true value from the logged first states is {truth:.3f} per step, with "
        f"gamma {world.gamma:g}.",
        f"Judge it by: kmifqe evaluate {named[0]} --policy {named[1]}",
    ):
        Console(emoji=False).print(line, highlight=False, soft_wrap=True)
