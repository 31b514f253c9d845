"""`kmifqe resume`: going on with an evaluation or a ranking by what its run directory says of it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from kmifqe.cli.config import Config
from kmifqe.cli.evaluate import Ray, Track, run_evaluation
from kmifqe.cli.rank import run_ranking
from kmifqe.cli.session import check_memory_limit
from kmifqe.errors import InputError, listed, printable, shown

CODE = re.compile(
    r"[\w.]:[A-Za-z_]"
)  # in whatever may be imported as module:function, and in some file names


def resume(
    run: Annotated[
        Path,
        typer.Argument(
            help="The --out of an evaluation or a ranking that was stopped.",
            metavar="RUN",
            show_default=False,
        ),
    ],
    allow_code: Annotated[
        bool,
        typer.Option(
            "--allow-code", help="Import the policies or the density that run.json names as module:function."
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Minutes from here on: the largest fit that they allow follows; a ranking keeps the size of its "
            "networks, and may train more of them.",
            show_default="as many as the run began with",
        ),
    ] = None,
    ray: Ray = None,
    track: Track = None,
    config_file: Config = None,
) -> None:
    """Go on with a run that was stopped, or that had too little time, with the options it was started with.

    Example: kmifqe resume runs/first --minutes 20

    A run whose policies or density are code (module:function) is resumed only after a yes in a terminal, or with
    --allow-code: whoever wrote run.json chose what would be run.
    """
    check_memory_limit()
    from kmifqe.api import Options  # with them comes JAX, which --help does without
    from kmifqe.io.serialize import from_json, to_json
    from kmifqe.ranking import SIZED_FOR, RankOptions
    from kmifqe.store.manifest import MANIFEST, RANK, read_manifest

    path = run / MANIFEST
    manifest = read_manifest(run)
    if manifest is None:
        raise InputError(
            f"{path}: does not exist; expected the --out of an evaluation or a ranking that was stopped"
        )
    is_ranking = manifest.task == RANK
    # What a ranking's time has decided is no option; `rank` reads it by itself.
    options = {name: value for name, value in manifest.options.items() if name != SIZED_FOR}
    if not options:
        raise InputError(
            f"{path}: does not name the log and the policy: they were objects of Python, or files whose names are no "
            "UTF-8; go on with what began the run, and --resume (resume=True)"
        )
    if is_ranking and track:
        raise InputError(f"--track shows one evaluation while it goes on; {run} holds a ranking")
    kind: Any = RankOptions if is_ranking else Options
    unknown = sorted(set(options) - set(kind.__annotations__))
    if unknown:
        raise InputError(f"{path}: the option {unknown[0]} is unknown to this version")
    from_json(to_json(options), kind, name=path)
    if not allow_code:
        policies = options["policies"].values() if is_ranking else [options["policy"]]
        _refuse_code([*policies, options.get("behavior")], manifest.directory, path)
    out = run.resolve()
    if Path(manifest.directory).is_dir():
        os.chdir(manifest.directory)  # relative paths in the options start there
    options |= {} if minutes is None else {"minutes": minutes}
    if is_ranking:
        run_ranking(options, out, resume=True, force=False, more={"ray": ray})
    else:
        run_evaluation(options, out, resume=True, force=False, more={"ray": ray}, track=track)


def _refuse_code(named: Iterable[str | None], directory: str, path: Path) -> None:
    """Ask in a terminal whether code that `path` names may be run, elsewhere refuse it.

    `named` are its policies and its density, None for none; code is imported from `directory`.
    """
    # The policy inside gaussian:POLICY:STD may be code too. A file name with a colon is asked about as well.
    plain = [str(each or "").strip().removeprefix("gaussian:") for each in named]
    code = [name for name in plain if CODE.search(name)]
    if not code:
        return
    said = f"{path}: names code that would be run: {listed(code)}, imported from {shown(directory)}"
    asks = sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()
    if not (asks and typer.confirm(f"{printable(said)}. Run it?", default=False, err=True)):
        raise InputError(f"{said}; give --allow-code if you trust whoever wrote it")
