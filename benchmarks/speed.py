"""Everything about speed in one table: against the machine's floor, against a peer, and as sizes grow.

    python benchmarks/speed.py [--quick] [--only machine floor ...] [--json FILE]

Sizes depend on the device: on a GPU those of Hopper and Humanoid (n = 1 M, batch 2,048, 10 seeds), on a CPU
n = 200,000, batch 1,024, one seed. What is compared is measured in turns, so that both sides of a ratio see the
same load; a time by itself means little on a machine that does other work. Nothing is asserted. Each section runs
in a process of its own, which leaves the device's memory to the next. docs/evidence/speed.md explains the rows.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import records

# What it is called: the module and the function that returns its rows.
SECTIONS = {
    "machine": ("machine", "rows"),
    "floor": ("near_floor", "rows"),
    "fqe": ("peers", "rows"),
    "seeds": ("scaling", "seed_rows"),
    "rows": ("scaling", "log_rows"),
    "actions": ("scaling", "action_rows"),
    "memory": ("memory_rows", "rows"),
    "start": ("start", "rows"),
    "bits": ("determinism", "rows"),
}
OWN_PROCESSES = ("start", "bits")  # these start processes on the device and must leave it free


def in_process(section: str, quick: bool) -> tuple[dict[str, Any], list[records.Row]]:
    """Return what a process of its own says of a section: about the device, and its rows."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, __file__, "--section", section, "--json", str(file), *["--quick"] * quick]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            note = f"failed: {last[0] if last else f'exit {done.returncode}'}"
            return {}, [records.Row(section, "failed", note=note)]
        return records.read(file)


def run_section(section: str, quick: bool, file: Path) -> None:
    """Write one section's rows, and the device they were measured on."""
    module, function = SECTIONS[section]
    rows = getattr(importlib.import_module(module), function)(quick)
    about: dict[str, Any] = {}
    if section not in OWN_PROCESSES:
        import jax

        about = {"device": jax.devices()[0].device_kind, "backend": jax.default_backend()}
    records.write(file, about, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, no log of ten million rows")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--json", type=Path, help="also write the rows here, for compare.py")
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.section:
        run_section(options.section, options.quick, options.json)
        return
    about, rows = records.versions(), []
    for section in options.only:
        print(f"{section} …", file=sys.stderr, flush=True)
        device, more = in_process(section, options.quick)
        about |= device
        rows += more
        if options.json:  # a long run that is cut short keeps what it has
            records.write(options.json, about, rows)
    about_run = ", ".join(f"{name} {about[name]}" for name in ("device", "jax", "load") if name in about)
    records.console().print(records.table_of(rows, about_run))
    if any(row.what == "failed" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
