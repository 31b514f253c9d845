"""Broken input of many kinds, through `kmifqe evaluate`: one clear sentence, exit code 2, nothing half-written."""

import io
import os
import zipfile
import zlib
from dataclasses import replace

import h5py
import numpy as np
import pytest

from kmifqe.io.policies.actor import Actor


def saved(path, fields):
    np.savez(path, **fields)
    return path


def hdf5(path, fields):
    with h5py.File(path, "w") as file:
        for name, array in fields.items():
            file[name] = array
    return path


def truncated_hdf5(folder, log):
    whole = hdf5(folder / "whole.hdf5", log).read_bytes()
    (folder / "log.hdf5").write_bytes(whole[: len(whole) // 2])
    return folder / "log.hdf5"


def truncated_npz(folder, log):
    whole = saved(folder / "whole.npz", log).read_bytes()
    (folder / "log.npz").write_bytes(whole[: len(whole) // 2])
    return folder / "log.npz"


def text_file(folder, log):
    (folder / "log.npz").write_text("these are not the arrays you are looking for")
    return folder / "log.npz"


def csv(folder, log):
    (folder / "log.csv").write_text("observation_0,action_0,reward\n1,2,3\n")
    return folder / "log.csv"


def object_array(folder, log):
    """A hostile pickle: opening it with unpickling allowed would make a directory."""

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(folder / "executed"),)

    np.savez(folder / "log.npz", **{**log, "rewards": np.array([Bomb()] * len(log["rewards"]), object)})
    return folder / "log.npz"


def lying_header(folder, log):
    """An array whose header claims a terabyte."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": "<f4", "fortran_order": False, "shape": (250_000_000_000,)}
    )
    saved(folder / "log.npz", {k: v for k, v in log.items() if k != "rewards"})
    with zipfile.ZipFile(folder / "log.npz", "a") as archive:
        archive.writestr("rewards.npy", buffer.getvalue())
    return folder / "log.npz"


def changed(**changes):
    """Return a maker of an .npz in which fields are replaced (a function of the log) or removed (None)."""

    def make(folder, log):
        for name, change in changes.items():
            if change is None:
                del log[name]
            else:
                log[name] = change(log)
        return saved(folder / "log.npz", log)

    return make


def at(name, row, value, dtype=None):
    def change(log):
        array = np.array(log[name], dtype=dtype or log[name].dtype)
        array[row] = value
        return array

    return change


BROKEN_DATA = {
    "no such file": (lambda folder, log: folder / "absent.npz", ["absent.npz"]),
    "truncated HDF5": (truncated_hdf5, ["log.hdf5"]),
    "truncated npz": (truncated_npz, ["log.npz"]),
    "text in an npz": (text_file, ["log.npz"]),
    "csv": (csv, ["log.csv", "Parquet"]),
    "pickled objects": (object_array, ["log.npz", "rewards"]),
    "header that lies": (lying_header, ["log.npz", "rewards"]),
    "mismatched lengths": (changed(rewards=lambda log: log["rewards"][:-1]), ["rewards", "119", "120"]),
    "NaN rewards": (changed(rewards=at("rewards", 7, np.nan)), ["rewards", "row 7"]),
    "infinite observation": (changed(observations=at("observations", 5, np.inf)), ["observations", "row 5"]),
    "float64 overflow": (
        changed(rewards=at("rewards", 3, 1e300, np.float64)),
        ["rewards", "1e+300", "float32"],
    ),
    "missing rewards": (changed(rewards=None), ["rewards"]),
    "missing terminals": (changed(terminals=None), ["terminals"]),
    "missing timeouts": (changed(timeouts=None), ["timeouts", "max_episode_steps"]),
    "flags that are not flags": (changed(terminals=lambda log: np.full(120, 3)), ["terminals", "3"]),
    "text for numbers": (changed(rewards=lambda log: np.array(["a"] * 120)), ["rewards"]),
    "three axes": (changed(actions=lambda log: log["actions"][..., None]), ["actions", "(120, 2, 1)"]),
    "no rows": (
        lambda folder, log: saved(folder / "log.npz", {k: v[:0] for k, v in log.items()}),
        ["log.npz", "empty"],
    ),
    "episodes of one step": (changed(timeouts=lambda log: np.ones(120, bool)), ["no row has a next state"]),
    "no logged densities": (changed(action_log_probs=None), ["action_log_probs"]),
    "densities of another width": (
        changed(action_log_probs=lambda log: np.zeros((120, 3))),
        ["action_log_probs", "3", "2"],
    ),
    "infinite density": (
        changed(action_log_probs=at("action_log_probs", 9, -np.inf)),
        ["action_log_probs", "row 9"],
    ),
}


@pytest.mark.parametrize("kind", BROKEN_DATA)
def test_broken_data(kmifqe_command, tmp_path, log, actor_path, kind):
    make, fragments = BROKEN_DATA[kind]
    data = make(tmp_path, log)
    before = sorted(os.listdir(tmp_path))
    done = kmifqe_command(
        "evaluate", data, "--policy", actor_path, "--behavior", "logged", "--out", tmp_path / "run"
    )
    check_refusal(done, fragments)
    assert sorted(os.listdir(tmp_path)) == before


def wrong_policy(**changes):
    def make(folder, actor):
        replace(actor, **changes).save(folder / "wrong.safetensors")
        return folder / "wrong.safetensors"

    return make


def policy_without(field):
    def make(folder, actor):
        fields = {
            "w0": actor.weights[0],
            "b0": actor.biases[0],
            "hidden": "tanh",
            "output": "tanh",
            "low": actor.low,
            "high": actor.high,
        }
        del fields[field]
        return saved(folder / "wrong.npz", fields)

    return make


def python_policy(body):
    def make(folder, actor):
        module = f"broken_policy_{zlib.crc32(body.encode())}"  # one name each: Python imports a name once
        (folder / f"{module}.py").write_text(f"import numpy as np\ndef act(states):\n    {body}\n")
        return f"{module}:act"

    return make


def narrow(folder, actor):
    weights = (np.zeros((4, 2), np.float32),)
    return wrong_policy(weights=weights)(folder, actor)


BROKEN_POLICIES = {
    "no such file": (lambda folder, actor: folder / "absent.zip", ["absent.zip"]),
    "unknown suffix": (lambda folder, actor: folder, [""]),
    "wrong input size": (narrow, ["wrong.safetensors", "4", "3"]),
    "missing bounds": (policy_without("low"), ["wrong.npz", "low"]),
    "missing bias": (policy_without("b0"), ["wrong.npz", "b0"]),
    "no such module": (lambda folder, actor: "no_such_module_here:act", ["no_such_module_here"]),
    "returns NaN": (python_policy("return np.full((len(states), 2), np.nan)"), ["NaN"]),
    "returns three actions": (python_policy("return np.zeros((len(states), 3))"), ["3", "2"]),
    "is random": (
        python_policy("return np.random.default_rng().normal(size=(len(states), 2))"),
        ["determin"],
    ),
}


@pytest.mark.parametrize("kind", BROKEN_POLICIES)
def test_broken_policy(kmifqe_command, tmp_path, monkeypatch, log, kind):
    monkeypatch.syspath_prepend(tmp_path)
    make, fragments = BROKEN_POLICIES[kind]
    actor = Actor(
        weights=(np.zeros((3, 2), np.float32),),
        biases=(np.zeros(2, np.float32),),
        hidden="tanh",
        output="tanh",
        low=-np.ones(2, np.float32),
        high=np.ones(2, np.float32),
    )
    policy = make(tmp_path, actor)
    data = saved(tmp_path / "log.npz", log)
    done = kmifqe_command(
        "evaluate", data, "--policy", policy, "--behavior", "logged", "--out", tmp_path / "run"
    )
    check_refusal(done, fragments)
    assert not (tmp_path / "run").exists()


def check_refusal(done, fragments):
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    sentence = " ".join(done.err.split())
    assert sentence.count("error:") == 1
    for fragment in fragments:
        assert fragment in sentence
