"""`kmifqe evaluate`: the command and its options; what it does is in `evaluation`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kmifqe.cli.dataset import Data, MaxEpisodeSteps

# Said again here, and compared with the library by a test: --help is not to wait for JAX.
ESTIMATORS = "kmifqe, kmifqe-best, kmifqe-identity, fqe, sr-dice"
PRESETS = "pendulum, mujoco, d4rl, fast, pendulum-fast, mujoco-fast, d4rl-fast"
SAVE_SECONDS = 30.0


def evaluate(
    data: Data,
    policy: Annotated[
        str,
        typer.Option(
            help="The policy to judge: .safetensors or .npz actor, SB3 .zip, TorchScript .pt, .onnx, "
            "D4RL .hdf5, or module:function.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Directory for result.json and figures; made if missing.", show_default=False)
    ],
    behavior: Annotated[
        str | None,
        typer.Option(
            help="Who collected the log: gaussian:POLICY:STD (STD in half action ranges, actions logged as "
            "drawn; :UNIFORM_SHARE may follow), logged (densities in DATA), fit (learn it from DATA), a fitted "
            "FILE.safetensors, or module:function. Not needed for fqe and sr-dice.",
            show_default=False,
        ),
    ] = None,
    gamma: Annotated[float, typer.Option(help="Discount, 0 <= gamma < 1.")] = 0.99,
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            "--estimator",
            "-e",
            help=f"One of {ESTIMATORS}; repeat for several.",
            show_default="kmifqe",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="How many seeds, trained side by side; an interval needs about 10.")
    ] = 10,
    bootstrap: Annotated[
        bool,
        typer.Option(
            help="Give every seed its own weights of the log's episodes, for an interval that tells of the "
            "finite log; without, seeds differ by training only and there is no interval."
        ),
    ] = True,
    level: Annotated[float, typer.Option(help="Of the interval: how often it should hold the truth.")] = 0.95,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps of every estimator.", show_default="the paper's")
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="Settings: the paper's for a kind of task (pendulum, mujoco, d4rl), or fast ones: fast, "
            "pendulum-fast, mujoco-fast, d4rl-fast (docs/speed.md)."
        ),
    ] = "fast",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any field of an estimator's config, e.g. --set target_period=250 --set clip=0.001,10 "
            "--set fqe.inputs=standardized; repeat for several.",
            show_default=False,
        ),
    ] = None,
    policy_normalization: Annotated[
        str | None,
        typer.Option(help="Statistics the policy's inputs were normalised with (VecNormalize), or 'none'."),
    ] = None,
    max_episode_steps: MaxEpisodeSteps = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an earlier run in the directory, finished or not.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in the directory; begin if there is none."),
    ] = False,
    save_seconds: Annotated[
        float,
        typer.Option(min=0, help="Save at most this often, and never for more than 1 % of the time."),
    ] = SAVE_SECONDS,
) -> None:
    """Estimate what a deterministic policy is worth from a log that another controller collected.

    Example: kmifqe evaluate log.npz --policy actor.npz --behavior logged --gamma 0.95 --out runs/first

    Prints a table and writes result.json (schema: docs/result.md) and figures. V̂ is normalised per step,
    (1 − gamma) times the expected discounted return; both are printed, with an interval (docs/intervals.md).
    Ctrl-C saves and stops; the same command with --resume goes on, and ends with the same bits.
    """
    asked = {name: value for name, value in locals().items() if name not in ("out", "force", "resume")}
    from kmifqe.cli.evaluation import Asked, run_evaluation

    run_evaluation(Asked(**asked), out, force=force, resume=resume)
