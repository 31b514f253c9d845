"""Peak memory and time of `load_dataset`, format by format, against the arrays that end up in a Problem.

    python benchmarks/loading.py [--rows 5000000] [--formats hdf5 npz ...]

Each file is written and read in processes of its own, so that one peak does not hide another.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

STATES, ACTIONS, EPISODE = 11, 3, 1_000
# float32: s, a, r, s', a', π̃(s'), log μ; int32: episode; bool: has_next_state, terminated
PROBLEM_ROW_BYTES = 4 * (2 * STATES + 3 * ACTIONS + 2) + 4 + 2
FORMATS = {
    "hdf5": ("log.hdf5", "D4RL HDF5, float32, gzip"),
    "hdf5-float64": ("log64.hdf5", "D4RL HDF5, float64, contiguous"),
    "npz": ("log.npz", ".npz, float32"),
    "npz-float64": ("log64.npz", ".npz, float64, deflated"),
    "parquet": ("log.parquet", "Parquet, float32"),
    "arrow": ("log.arrow", "Arrow, float32"),
    "minari": ("log-v0", "Minari, HDF5 storage"),
}


def peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def write(path: Path, kind: str, rows: int) -> None:
    import h5py

    from kmifqe.io.logs.save import save_dataset
    from kmifqe.mdp.transitions import Transitions

    rng = np.random.default_rng(0)
    states = rng.standard_normal((rows, STATES), dtype=np.float32)
    timeouts = np.arange(rows) % EPISODE == EPISODE - 1
    fields = {
        "observations": states,
        "actions": rng.uniform(-1, 1, (rows, ACTIONS)).astype(np.float32),
        "rewards": rng.standard_normal(rows, dtype=np.float32),
        "terminals": np.zeros(rows, bool),
        "timeouts": timeouts,
        "next_observations": np.roll(states, -1, axis=0),
        "action_log_probs": rng.standard_normal(rows, dtype=np.float32),
    }
    if not kind.endswith("float64"):
        save_dataset(Transitions.from_arrays(**fields), path)
        return
    wide = {
        field: array.astype(np.float64) if array.dtype != bool else array for field, array in fields.items()
    }
    if path.suffix == ".npz":
        np.savez_compressed(path, **wide)
        return
    with h5py.File(path, "w") as file:
        for field, array in wide.items():
            file[field] = array


def read(path: Path) -> None:
    from kmifqe.io.logs.load import load_dataset

    if path.suffix in (".parquet", ".arrow"):
        import pyarrow.parquet  # noqa: F401  the library itself is not the data
    if not path.suffix:
        import minari  # noqa: F401
    before, start = peak_bytes(), time.perf_counter()
    transitions = load_dataset(path)
    print(len(transitions), before, peak_bytes(), time.perf_counter() - start)


def child(*arguments: str) -> list[str]:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def measure(rows: int, kinds: list[str]) -> None:
    table = Table("file", "on disk", "arrays", "peak over start", "ratio", "seconds", "start RSS")
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            name, title = FORMATS[kind]
            path = Path(folder) / name
            child("--write", str(path), "--formats", kind, "--rows", str(rows))
            size = sum(f.stat().st_size for f in [path, *path.rglob("*")] if f.is_file())
            n, before, after, seconds = map(float, child("--read", str(path)))
            arrays, peak = n * PROBLEM_ROW_BYTES, after - before
            mb = [f"{value / 1e6:,.0f} MB" for value in (size, arrays, peak, before)]
            table.add_row(title, *mb[:3], f"{peak / arrays:.2f}", f"{seconds:.1f}", mb[3])
    Console().print(
        f"{rows:,} transitions of ({STATES}, {ACTIONS}) with next_observations and densities", table
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory and time of load_dataset, format by format.")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(options.write, options.formats[0], options.rows)
    elif options.read:
        read(options.read)
    else:
        measure(options.rows, options.formats)


if __name__ == "__main__":
    main()
