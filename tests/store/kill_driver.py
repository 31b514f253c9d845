"""Run a run directory's fits again and again, kill them with SIGKILL at random moments; print what happened.

Usage: kill_driver.py KILLS FOLDER

A process of its own: it imports everything once and forks before JAX has started any thread, so that a child is
at work within a fraction of a second. Compiled programs come from a cache that the first, undisturbed child fills.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import jax
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[1]))

from kmifqe.estimators.fit import make_plan
from kmifqe.runner import run_estimators
from kmifqe.store.directory import open_run
from store.toy import SEEDS, toy, toy_problem

STEPS = 600


def evaluate(out: Path) -> None:
    """Fit as `kmifqe evaluate --resume --save-seconds 0` does, with 60 snapshots on the way."""
    problem = toy_problem()
    with open_run(out, {}, resume=True, save_seconds=0) as run:
        plans = [make_plan(toy(), problem, seeds=SEEDS, steps=STEPS)]
        run.begin(plans, problem)
        run_estimators(problem, [toy()], plans, store=run, forecast=False)


def start(out: Path, log: Path) -> int:
    """Fork a child that evaluates; return its id."""
    child = os.fork()
    if child:
        return child
    try:
        evaluate(out)
        os._exit(0)
    except BaseException:
        log.write_text(traceback.format_exc())
    finally:
        os._exit(1)


def wait(child: int, seconds: float) -> int | None:
    """Return the child's exit code, or None if it had to be killed after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def outcome(out: Path) -> dict[str, bytes]:
    """Return the bits of the estimate as stored: V̂ and infos at every record."""
    return {name: array.tobytes() for name, array in load_file(out / "finished" / "toy.safetensors").items()}


def saved_step(out: Path) -> int:
    """Return the step of the newest snapshot, 0 if there is none."""
    steps = [int(path.stem[5:]) for path in out.glob("checkpoints/*/step-*.safetensors")]
    return max(steps, default=0)


def drive(kills: int, folder: Path) -> dict[str, object]:
    """Return how many kills were survived, where they hit, and how many runs ended with the same bits."""
    jax.config.update("jax_compilation_cache_dir", str(folder / "cache"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    log = folder / "error.txt"
    if wait(start(folder / "warm", log), 300.0) != 0:
        return {"failed": "the first run", "log": log.read_text()}
    begun = time.monotonic()
    child, starting = start(folder / "reference", log), 0.0
    while not starting and time.monotonic() < begun + 300.0:
        time.sleep(0.002)
        starting = time.monotonic() - begun if saved_step(folder / "reference") else 0.0
    if wait(child, 300.0) != 0:
        return {"failed": "the undisturbed run", "log": log.read_text()}
    stepping = time.monotonic() - begun - starting
    expected = outcome(folder / "reference")
    rng = random.Random(0)
    finished, interrupted, saved_steps = 0, 0, []
    out, killed_here = folder / "run-0", 0
    while len(saved_steps) < kills or killed_here:
        left = starting + stepping * (
            1 - saved_step(out) / STEPS
        )  # roughly: most kills shall come before the end
        code = wait(start(out, log), rng.uniform(0.4, 1.05) * left if len(saved_steps) < kills else 300.0)
        if code is None:
            killed_here += 1
            interrupted += any(out.rglob(".*.part"))
            saved_steps.append(saved_step(out))
        elif code != 0:
            return {"failed": f"{out.name}, after {killed_here} kills", "log": log.read_text()}
        elif outcome(out) != expected:
            return {"failed": f"{out.name}, after {killed_here} kills: other bits"}
        else:
            finished, killed_here = finished + 1, 0
            out = folder / f"run-{finished}"
    return {
        "kills": len(saved_steps),
        "finished": finished,
        "arrays": len(expected),
        "inside_a_write": interrupted,
        "saved_steps": saved_steps,
        "seconds_undisturbed": [starting, stepping],
    }


if __name__ == "__main__":
    print(json.dumps(drive(int(sys.argv[1]), Path(sys.argv[2]))))
