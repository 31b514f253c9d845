"""Loads one file after another as told on stdin, watched; says what happened on stdout, one JSON line each.

Run by run.py: `python worker.py TARGET SANDBOX SEED ...`; a line is PATH, or another target, a tab and PATH.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
import unicodedata  # noqa: F401 (tokenize asks for it late, on names beyond ASCII)
import warnings
from pathlib import Path

import numpy as np

from fuzz.watch import Watch
from kmifqe.behavior.load import parse_behavior
from kmifqe.errors import InputError
from kmifqe.io import child
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.summary import inspect
from kmifqe.io.policies.load import load_policy
from kmifqe.io.policies.normalization import load_normalization

ADDRESS_SPACE = 4 * 2**30  # beyond what is mapped at the start: what asks for more gets a MemoryError
ENDED = re.compile(r"took more than [\d.]+ s|took more than .* of memory|crashed|was ended by the system")
SECONDS, MEMORY = 8.0, 256 * 2**20  # the child's limits, for inputs below 1 MiB
DATASETS = ("hdf5", "npz", "parquet", "arrow", "minari")


def load(target: str, path: Path) -> None:
    """Load `path` as a user's command would, to the point where its numbers are used."""
    if target in DATASETS:
        try:
            load_dataset(path)
        finally:
            inspect(load_dataset(path, max_episode_steps=7, check_finite=False))
    elif target == "behavior":
        parse_behavior(str(path))
    elif target == "normalization":
        load_normalization(path)
    else:
        policy = load_policy(path, normalization="none")
        width = getattr(policy, "state_dim", None) or 3
        if width < 10_000:
            policy(np.zeros((3, width), np.float32))


def outcome(target: str, path: Path, watch: Watch) -> dict[str, object]:
    """Return how one load ended: `ok`, `refused` or a finding, with the memory it took."""
    began = time.monotonic()
    kind, detail = "ok", ""
    with watch:
        try:
            load(target, path)
        except InputError as error:
            kind, detail = "refused", str(error)
            if "as no honest file does; refused" in detail:
                kind = "forbidden act"
            elif ended := ENDED.search(detail):  # by the child's death: one sentence all the same
                kind = f"refused: {ended[0]}"
            if not detail.isprintable():
                kind, detail = "unprintable message", _where(error)
            elif len(detail) > 2000:
                kind, detail = "endless message", _where(error)
        except BaseException as error:  # any other exception is what is looked for
            kind, detail = f"raised {type(error).__name__}", _where(error)
    if watch.seen:
        kind, detail = "forbidden act", "; ".join(watch.seen)
    return {
        "kind": kind,
        "detail": detail[:600],
        "mib": round(watch.grown / 2**20),
        "seconds": round(time.monotonic() - began, 2),
    }


def _where(error: BaseException) -> str:
    trace, places = error.__traceback__, []
    while trace is not None:
        places.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return f"{' > '.join(places[-6:])}: {str(error)[:300]}"


def main() -> None:
    """Answer each path on stdin."""
    target, sandbox = sys.argv[1], Path(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    child.LEAST_SECONDS, child.LEAST_MEMORY = SECONDS, MEMORY
    os.dup2(2, 1)  # native libraries print; answers have a pipe of their own
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    for seed in sys.argv[3:]:  # what is imported for honest files is no surprise later
        load(target, Path(seed))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ADDRESS_SPACE, mapped + ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    watch = Watch(sandbox)
    answers.write("ready\n")
    for line in sys.stdin:
        kind, _, path = line.rstrip("\n").rpartition("\t")
        answers.write(json.dumps(outcome(kind or target, Path(path), watch)) + "\n")


if __name__ == "__main__":
    main()
