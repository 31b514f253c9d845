"""`kmifqe resume`: go on with a run, knowing only its directory."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Annotated

import typer

from kmifqe.cli.evaluate import evaluate
from kmifqe.errors import InputError


def resume(
    run: Annotated[Path, typer.Argument(help="The --out of an evaluation that was stopped.", metavar="RUN")],
) -> None:
    """Go on with a stopped evaluation, with the options it was started with.

    Example: kmifqe resume runs/first
    """
    from kmifqe.store.directory import MANIFEST, read_manifest

    manifest = read_manifest(run)
    if manifest is None:
        raise InputError(
            f"{run / MANIFEST}: does not exist; expected the --out of an evaluation that was stopped"
        )
    unknown = sorted(set(manifest.options) - set(inspect.signature(evaluate).parameters))
    if unknown:
        raise InputError(f"{run / MANIFEST}: the option {unknown[0]} is unknown to this version")
    out = run.resolve()
    if Path(manifest.directory).is_dir():
        os.chdir(manifest.directory)  # relative paths in the options start there
    evaluate(**manifest.options, out=out, force=False, resume=True)
