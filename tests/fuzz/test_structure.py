"""Files of any structure: a log, a policy or statistics come out whole, or InputError does; nothing else."""

from __future__ import annotations

import io
import json
import struct
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kmifqe.errors import InputError
from kmifqe.io.logs.d4rl import ALIASES
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.summary import inspect
from kmifqe.io.policies.load import load_policy
from kmifqe.io.policies.normalization import load_normalization
from kmifqe.io.policies.pickles import read_inert

FIELDS = [alias for names in ALIASES.values() for alias in names]
quickly = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)

dtypes = st.one_of(
    hnp.floating_dtypes(), hnp.integer_dtypes(), hnp.boolean_dtypes(), hnp.byte_string_dtypes(max_len=4),
    hnp.complex_number_dtypes(), hnp.unicode_string_dtypes(max_len=4),
)  # fmt: skip
anything = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
words = st.text("ab01\x1b[]<é\u202e", max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@st.composite
def logs(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Draw a log that is right but for a few fields."""
    rows = draw(st.integers(1, 6))
    log = {
        "observations": np.arange(2.0 * rows).reshape(rows, 2),
        "actions": np.ones((rows, 1)),
        "rewards": np.ones(rows),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(rows) == rows - 1,
    }
    return log | draw(st.dictionaries(st.sampled_from(FIELDS), anything, max_size=2))


def refused_or(load: Callable[[], Any]) -> Any:
    """Return what `load` returns, or None where it refuses, in a line that can be printed."""
    try:
        return load()
    except InputError as error:
        message = str(error)
    assert message.isprintable(), message
    return None


def check_log(path: Path) -> None:
    """Load as a command does; what comes out is aligned and finite."""
    for check_finite in (True, False):
        log = refused_or(partial(load_dataset, path, max_episode_steps=3, check_finite=check_finite))
        if log is None:
            continue
        assert inspect(log).transitions == len(log) == len(log.states) == len(log.actions) == len(log.episode)
        assert not check_finite or np.isfinite(log.states).all()


@quickly
@given(logs())
def test_an_npz_of_any_arrays(fields: dict[str, np.ndarray]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "log.npz"), **fields)
        check_log(Path(folder, "log.npz"))


@quickly
@given(logs(), st.sampled_from([None, "gzip", "lzf"]))
def test_an_hdf5_file_of_any_arrays(fields: dict[str, np.ndarray], compression: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.hdf5")
        with h5py.File(path, "w") as file:
            for field, array in fields.items():
                if array.dtype.kind == "U":
                    array = array.astype(h5py.string_dtype())
                packed = compression if array.size else None
                file.create_dataset(field, data=array, compression=packed if array.ndim else None)
        check_log(path)


@quickly
@given(
    st.dictionaries(
        st.sampled_from(["w0", "b0", "w1", "b1", "low", "high", "hidden", "obs_mean", "n_layers"]), anything
    )
)
def test_an_actor_of_any_arrays(fields: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    honest = {"w0": rng.standard_normal((2, 1)), "b0": np.zeros(1), "low": -np.ones(1), "high": np.ones(1)}
    honest |= {"hidden": np.array("tanh"), "output": np.array("clip")}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "actor.npz"), **honest | fields)
        policy = refused_or(lambda: load_policy(Path(folder, "actor.npz")))
        assert policy is None or policy.weights[0].dtype == np.float32


@quickly
@given(
    st.dictionaries(st.sampled_from(["obs_mean", "obs_var", "epsilon", "clip_obs"]), json_values)
    | json_values
)
def test_statistics_of_any_json(value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.json").write_text(json.dumps(value), encoding="utf-8", errors="surrogatepass")
        found = refused_or(lambda: load_normalization(Path(folder, "a.json")))
        assert found is None or np.isfinite(found.mean).all()


@quickly
@given(
    st.lists(
        st.sampled_from(sorted(set(b"()]}NtlR\x81\x85\x86\x87ausebdQ\x88\x89J\x94qhc0.@"))), max_size=60
    ),
    st.binary(max_size=20),
)
def test_a_pickle_of_any_opcodes(codes: list[int], tail: bytes) -> None:
    stream = b"\x80\x02" + bytes(codes) + tail + b"."
    refused_or(lambda: read_inert(stream, lambda _: True, "stream"))


@quickly
@given(st.dictionaries(words, json_values, max_size=3) | json_values, st.binary(max_size=40))
def test_safetensors_of_any_header(header: Any, body: bytes) -> None:
    raw = json.dumps(header).encode("utf-8", "surrogatepass")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.safetensors")
        path.write_bytes(struct.pack("<Q", len(raw)) + raw + body)
        refused_or(lambda: load_policy(path))


@quickly
@given(
    st.dictionaries(
        st.sampled_from(["data", "policy.pth", "../x", "/etc/x", "\x1b[2J"]), st.binary(max_size=60)
    )
)
def test_a_zip_of_any_members(members: dict[str, bytes]) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, blob in members.items():
            archive.writestr(name, blob)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.zip").write_bytes(packed.getvalue())
        refused_or(lambda: load_policy(Path(folder, "a.zip")))
        assert [path.name for path in Path(folder).iterdir()] == ["a.zip"]
