"""Time to the answer of `kmifqe evaluate LOG --policy POLICY`, or of `kmifqe rank`, with nothing else asked for.

    python benchmarks/answer.py prepare FOLDER            # collects the logs and plays the policies: needs MuJoCo
    python benchmarks/answer.py run FOLDER [--only NAME]  # one command after the other

Logs whose policies' values are known by rollouts: 20,000 rows with 2 states and 1 action (a mountain car), and
100,000 and 1,000,000 rows of Hopper (11 states, 3 actions), collected with noise 0.3 by another controller. A
million rows of Humanoid (376 states, 17 actions) are for a GPU and have to be asked for by name, with --only. `rank`
has 50,000 rows of Hopper and ten policies: both actors, and both made softer, sharper or noisier. The
densities are in the logs, γ is the default 0.99, and so is the time. The cache folder is new for every log, so that
reading the log and compiling count. The records go to experiments/results/answer.json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kmifqe.experiments.candidates import perturbed, scaled
from kmifqe.io.policies import load_policy

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "experiments" / "results" / "answer.json"
ACTORS = ROOT / "src" / "kmifqe" / "worlds" / "actors"
# Pushes in the direction of motion: weakly as it was logged, with all force as it is judged.
MOUNTAIN_CAR = """
import numpy as np

def logged(states):
    return 0.5 * np.sign(states[:, 1:])

def judged(states):
    return np.tanh(60.0 * states[:, 1:])
"""


def actors(task: str) -> dict[str, str]:
    """Return the files of the shipped actors of a MuJoCo `task`."""
    return {role: str(ACTORS / task / f"{role}.safetensors") for role in ("behavior", "target")}


CASES: dict[str, dict[str, Any]] = {
    "mountain-car": {
        "env": "MountainCarContinuous-v0",
        "rows": 20_000,
        "behavior": "cars:logged",
        "target": "cars:judged",
    },
    "hopper-100k": {"env": "Hopper-v4", "rows": 100_000, **actors("hopper")},
    "hopper-1m": {"env": "Hopper-v4", "rows": 1_000_000, **actors("hopper")},
    "humanoid-1m": {"env": "Humanoid-v4", "rows": 1_000_000, **actors("humanoid")},
    "rank-hopper-50k": {"env": "Hopper-v4", "rows": 50_000, **actors("hopper")},
}
FOR_GPUS = ("humanoid-1m",)
RANKED = "rank-hopper-50k"
TRUTH_EPISODES = 100  # of every policy that is ranked
FIRST = re.compile(r"first estimate(?: from [^:]+)?: (\S+) per step")


def asked(only: str | None) -> list[str]:
    """Return the names of the cases to make or judge: the one that was asked for, or all that two cores can judge."""
    return [only] if only else [name for name in CASES if name not in FOR_GPUS]


def kmifqe(folder: Path, *words: object, **more: Any) -> subprocess.Popen[str]:
    """Start a command of this checkout in `folder`."""
    command = [sys.executable, "-m", "kmifqe", *map(str, words)]
    path = {"PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(folder)))}
    return subprocess.Popen(
        command, cwd=folder, env=os.environ | path | more.pop("env", {}), text=True, **more
    )


def prepare(folder: Path, only: str | None) -> None:
    """Collect every log, and write the value of its policy beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cars.py").write_text(MOUNTAIN_CAR)
    values: dict[tuple[str, str], dict[str, float]] = {}
    for name in asked(only):
        case = CASES[name]
        collect = ("collect", case["env"], "--policy", case["behavior"], "-n", case["rows"])
        assert kmifqe(folder, *collect, "--out", folder / f"{name}.hdf5", "--force").wait() == 0
        if name == RANKED:
            truths = {
                path.name: played(folder, case["env"], path, TRUTH_EPISODES)["truth"]
                for path in ten_policies(folder / name, case)
            }
            (folder / f"{name}.json").write_text(json.dumps(truths))
            continue
        question = case["env"], case["target"]
        if question not in values:
            values[question] = played(folder, *question, 1000)
        (folder / f"{name}.json").write_text(json.dumps(values[question]))


def played(folder: Path, env: str, policy: str | Path, episodes: int) -> dict[str, float]:
    """Return the value of a `policy` by so many episodes."""
    truth = ("truth", env, "--policy", policy, "--episodes", episodes)
    shown = kmifqe(folder, *truth, stdout=subprocess.PIPE).communicate()[0]
    value, error = re.findall(r"V, normalised.*?│ *([-\d.]+) *│ *([-\d.]+)", shown)[0]
    return {"truth": float(value), "truth_standard_error": float(error)}


def ten_policies(folder: Path, case: dict[str, Any]) -> list[Path]:
    """Write ten policies into `folder`, and return their files."""
    folder.mkdir(exist_ok=True)
    made = {}
    for role in ("target", "behavior"):
        actor = load_policy(case[role])
        made[role] = actor
        made |= {f"{role}-scaled-{factor:g}": scaled(actor, factor) for factor in (0.6, 1.5)}
        made |= {f"{role}-perturbed-{share:g}": perturbed(actor, share) for share in (0.1, 0.3)}
    for name, actor in made.items():
        actor.save(folder / f"{name}.safetensors")
    return sorted(folder.glob("*.safetensors"))


def run(folder: Path, only: str | None) -> None:
    """Judge every policy as a user does, and add what came out to the record."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in asked(only):
        record[name] = ranked(folder, name) if name == RANKED else judge(folder, name, CASES[name]["target"])
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        print(name, json.dumps(record[name], indent=1), flush=True)


def judge(folder: Path, name: str, target: str) -> dict[str, Any]:
    """Return the times of one evaluation, and what it said."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "run")
        began = time.perf_counter()
        process = kmifqe(
            folder,
            *("evaluate", f"{name}.hdf5", "--policy", target, "--out", out),
            env={"XDG_CACHE_HOME": scratch},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        assert process.stderr is not None
        first, said = None, []
        for line in process.stderr:
            said.append(line.rstrip())
            if first is None and FIRST.search(line):
                first = time.perf_counter() - began
        code, seconds = process.wait(), time.perf_counter() - began
        assert code == 0, "\n".join(said)
        result = json.loads((out / "result.json").read_text())
    headline = result["estimates"][0]["estimator"]
    interval = result["intervals"][headline]
    return {
        "first_estimate_seconds": first,
        "answer_seconds": seconds,
        "estimator": headline,
        "value": 0.5 * (interval["low"] + interval["high"]),
        "low": interval["low"],
        "high": interval["high"],
        "verdict": result["verdicts"][headline]["word"],
        **json.loads((folder / f"{name}.json").read_text()),
        "better": result["comparison"],
        "estimates": {
            each["estimator"]: result["intervals"][each["estimator"]] for each in result["estimates"]
        },
        "sentences": [
            line.replace(str(out), "RUN")
            for line in said
            if re.search("first estimate|going on|not reached", line)
        ],
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
    }


def ranked(folder: Path, name: str) -> dict[str, Any]:
    """Return the time of one ranking, and what it said."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "run")
        truth, policies = folder / f"{name}.json", folder / name / "*.safetensors"
        began = time.perf_counter()
        process = kmifqe(
            folder,
            *("rank", f"{name}.hdf5", "--policy", policies, "--truth", truth, "--out", out),
            env={"XDG_CACHE_HOME": scratch},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        said = process.communicate()[1]
        assert process.returncode == 0, said
        seconds = time.perf_counter() - began
        ranking = json.loads((out / "ranking.json").read_text())
    fields = ("policy", "value", "low", "high", "verdict", "p_best", "networks")
    return {
        "answer_seconds": seconds,
        "ranking": [{field: each[field] for field in fields} for each in ranking["ranking"]],
        "not_ranked": [each["policy"] for each in ranking["not_ranked"]],
        "truths": json.loads(truth.read_text()),
        "scores": ranking["scores"],
        "sentences": [
            line for line in said.splitlines() if re.search("policies,|not reached|more network", line)
        ],
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Time to the answer of kmifqe evaluate.")
    parser.add_argument("what", choices=["prepare", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=CASES)
    arguments = parser.parse_args()
    {"prepare": prepare, "run": run}[arguments.what](arguments.folder.resolve(), arguments.only)


if __name__ == "__main__":
    main()
