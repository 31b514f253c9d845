"""One door for every policy: a file or an object -> Policy."""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from kmifqe.errors import InputError
from kmifqe.io.child import run_in_child
from kmifqe.io.files import require_file, temporary_folder
from kmifqe.io.policies.actor import Actor, load_safetensors_actor
from kmifqe.io.policies.graphs import load_program
from kmifqe.io.policies.normalization import Normalization, load_normalization
from kmifqe.io.policies.objects import IMPORTABLE, CheckedPolicy, import_object, wrap_object
from kmifqe.mdp.ask import Bounds, Policy

NO_NORMALIZATION = "none"
PROGRAMS = {**dict.fromkeys((".pt", ".ts", ".torchscript"), "torch"), ".onnx": "onnxruntime"}
FORMATS = (
    "a .safetensors or .npz actor, a Stable-Baselines3 .zip, D4RL .hdf5, TorchScript .pt, ONNX .onnx, "
    "or module:function"
)


def load_policy(
    source: str | Path | object,
    *,
    normalization: object = None,
    bounds: tuple[object, object] | None = None,
    hidden: str | None = None,
) -> Policy:
    """Return the deterministic policy in a file, behind a `module:function` name, or in a Python object.

    Files that hold a plain network come back as an `Actor`, everything else as a `CheckedPolicy`. No file is
    unpickled. Files are read by a second process under limits of memory and time; a TorchScript or ONNX program,
    which this process must run itself, is loaded only after the other has survived loading and running it once.

    source: the file, the name or the object.
    normalization: the statistics of the wrapper that standardised the agent's inputs (see `load_normalization`),
        or "none" to state that there was none. None by default: what the source says.
    bounds: (low, high) of the action box where the source does not carry it; None by default.
    hidden: the activation of a Stable-Baselines3 zip that does not show it; None by default.
    """
    box = None if bounds is None else _box(bounds)
    statistics = statistics_of(normalization)
    is_given = normalization is not None
    if isinstance(source, str | Path) and not is_importable(source):
        if not str(source).strip():
            raise InputError(f"the name of a policy is empty; expected {FORMATS}")
        policy = _load_file(Path(source), box, hidden, is_given)
    elif hidden is not None:
        raise InputError(f"{source}: the argument hidden is for Stable-Baselines3 zips")
    elif isinstance(source, Actor | CheckedPolicy) and box is None and statistics is None:
        return source
    elif isinstance(source, Actor):
        policy = source if box is None else replace(source, low=box[0], high=box[1])
    else:
        found = import_object(source) if isinstance(source, str) else source
        name = source if isinstance(source, str) else _name_of(source)
        return wrap_object(found, name, bounds=box, normalization=statistics, normalization_is_given=is_given)
    return policy if statistics is None else _normalized(policy, statistics)


def _load_file(path: Path, box: Bounds | None, hidden: str | None, is_given: bool) -> Actor | CheckedPolicy:
    _check_path(path)
    kind = path.suffix.lower()
    if hidden is not None and kind != ".zip":
        raise InputError(f"{path}: the argument hidden is for Stable-Baselines3 zips; this file says its own")
    if kind in (".zip", ".hdf5", ".h5", ".npz"):
        actor = _actor_from_child(path, box, hidden, is_given)
        return actor if box is None else replace(actor, low=box[0], high=box[1])
    if kind == ".safetensors":  # plain arrays already
        actor = load_safetensors_actor(path)
        return actor if box is None else replace(actor, low=box[0], high=box[1])
    if kind in PROGRAMS:
        libraries = (PROGRAMS[kind],)
        run_in_child("program", str(path), path.stat().st_size, libraries, path=os.fspath(path))
        return load_program(path, box)
    if kind in (".pkl", ".pickle", ".d3", ".pth", ".joblib"):
        raise InputError(f"{path}: a pickle, which could run any code and is not read; expected {FORMATS}")
    raise InputError(f"{path}: unknown kind of policy file; expected {FORMATS}")


def _actor_from_child(path: Path, box: Bounds | None, hidden: str | None, is_given: bool) -> Actor:
    """Return the network in `path`, which the child reads and hands over as a safetensors file."""
    with temporary_folder(Path(tempfile.gettempdir(), "actor")) as folder:
        written = folder / "actor.safetensors"
        run_in_child(
            "actor",
            str(path),
            path.stat().st_size,
            written=os.fspath(written),
            path=os.fspath(path),
            bounds=None if box is None else [bound.tolist() for bound in box],
            hidden=hidden,
            normalization_is_given=is_given,
        )
        return replace(load_safetensors_actor(written), name=str(path))


def _check_path(path: Path) -> None:
    beside = f"{path}.zip"
    require_file(path, f"{beside}?" if os.path.isfile(beside) and not os.path.exists(path) else FORMATS)


def is_importable(source: str | Path) -> bool:
    """Return whether `source` is a name like module:function, and no file of that name exists."""
    return isinstance(source, str) and bool(re.fullmatch(IMPORTABLE, source)) and not Path(source).exists()


def _name_of(source: object) -> str:
    return str(getattr(source, "name", None) or getattr(source, "__name__", None) or type(source).__name__)


def statistics_of(normalization: object) -> Normalization | None:
    """Return the statistics that `normalization` names, None where there are none."""
    if normalization is None or (isinstance(normalization, str) and normalization == NO_NORMALIZATION):
        return None
    return load_normalization(normalization)


def _normalized(policy: Actor | CheckedPolicy, statistics: Normalization) -> Actor | CheckedPolicy:
    if isinstance(policy, CheckedPolicy):
        policy.normalization = statistics
        return policy
    if policy.obs_mean is not None:
        raise InputError(f"{policy.name}: carries normalisation statistics; expected none beside them")
    if len(statistics.mean) != policy.state_dim:
        raise InputError(
            f"{statistics.name}: covers {len(statistics.mean)} state dimensions; "
            f"{policy.name} takes {policy.state_dim}"
        )
    return replace(
        policy,
        obs_mean=statistics.mean,
        obs_var=statistics.var,
        obs_eps=statistics.epsilon,
        obs_clip=statistics.clip,
    )


def _box(bounds: tuple[object, object]) -> Bounds:
    try:
        low, high = (np.atleast_1d(np.asarray(bound, np.float32)) for bound in bounds)
    except (TypeError, ValueError) as error:
        raise InputError(f"bounds are {bounds!r}; expected (low, high), a number per dimension") from error
    return low, high
