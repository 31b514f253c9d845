"""Reads mutated files under the child's limits until so many were tried, and counts how they ended.

    python benchmarks/fuzz_child.py --inputs 200000 --seed 9000000

Every format that the child reads gets batches of 500 mutated files in turn (`tests/fuzz/batches.py`): a fork does the
child's job with the limits of memory, time and file size on each file, and then what the asking process does with the
arrays. A file that ends such a fork is loaded again as a command does it, through the child process. The counts go to
experiments/results/fuzz_child.json; the exit code is 1 if there was a finding. Linux only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from fuzz.batches import HARMLESS, MEMORY, SECONDS, Batches  # noqa: E402
from fuzz.run import Worker, is_finding, signature  # noqa: E402
from fuzz.seeds import SEEDS  # noqa: E402

RECORD = ROOT / "experiments" / "results" / "fuzz_child.json"
IN_THE_PARENT = ("safetensors", "behavior")  # formats that are read without the child


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Read mutated files under the child's limits, and count.")
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument(
        "--seed", type=int, default=9_000_000, help="of the first batch; each has the next one"
    )
    parser.add_argument("--record", type=Path, default=RECORD)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", "Duplicate name")  # a doubled member is one of the damages
    counts: dict[str, Counter[str]] = {target: Counter() for target in SEEDS if target not in IN_THE_PARENT}
    again: Counter[str] = Counter()
    findings: list[str] = []
    began, seed = time.monotonic(), arguments.seed
    with tempfile.TemporaryDirectory(prefix="fuzz-child-") as scratch:
        batches = {}
        for target in counts:
            Path(scratch, target).mkdir()
            batches[target] = Batches(target, Path(scratch, target))
        while sum(each.total() for each in counts.values()) < arguments.inputs:
            for target, batch in batches.items():
                found, killer = batch.run(seed)
                counts[target] += found
                findings += [
                    f"{target}, seed {seed}: {number} times {outcome}"
                    for outcome, number in found.items()
                    if not outcome.startswith(HARMLESS)
                ]
                if killer is not None:
                    worker = Worker(target, killer.parent, batch.seeds)
                    answer = worker.load(killer)
                    worker.stop()
                    again[str(answer["kind"])] += 1
                    if is_finding(answer):
                        findings.append(f"{target}, seed {seed}, as a command: {signature(answer)}")
            seed += 1
            record: dict[str, Any] = {
                "first_seed": arguments.seed,
                "last_seed": seed - 1,
                "inputs": sum(each.total() for each in counts.values()),
                "limits": {"seconds": SECONDS, "memory_bytes": MEMORY},
                "minutes": round((time.monotonic() - began) / 60, 1),
                "outcomes": {target: dict(each) for target, each in counts.items()},
                "what ended a batch, as a command loads it": dict(again),
                "findings": findings,
            }
            arguments.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    print(json.dumps(record, indent=1, sort_keys=True))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
