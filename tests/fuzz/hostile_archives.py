"""Hostile zips, pickles and JSON made by code (see hostile.py)."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fuzz.seeds import make_log
from kmifqe.io.logs.save import flat_fields
from policy_files import Stream, state_dict_stream, torch_zip, write_sb3

# Written once by seeds.write_torchscript, so that the tests need not import PyTorch for it.
HONEST_PROGRAM = Path(__file__).parent / "corpus" / "policy.pt"
ARRAYS = {
    "actor.mu.0.weight": np.ones((8, 3), np.float32), "actor.mu.0.bias": np.zeros(8, np.float32),
    "actor.mu.2.weight": np.ones((2, 8), np.float32), "actor.mu.2.bias": np.zeros(2, np.float32),
}  # fmt: skip


def npy(header: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    """Return an array file with this header, and a length of it that may lie."""
    raw = header.encode("latin1") + b"\n"
    size = len(raw) if length is None else length
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", size) + raw


def descr(kind: str, shape: str) -> str:
    """Return the text of an array's header."""
    return f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"


def npz_with(make: Callable[[], bytes], method: int = zipfile.ZIP_STORED) -> Callable[[Path], Path]:
    """Return a writer of a log, and of an actor, whose rewards or first weight are made so."""

    def write(folder: Path) -> Path:
        member = make()
        fields: dict[str, np.ndarray] = {"low": -np.ones(2), "high": np.ones(2), "b0": np.zeros(2)}
        fields |= {"hidden": np.array("tanh"), "output": np.array("tanh"), **flat_fields(make_log())}
        with zipfile.ZipFile(folder / "a.npz", "w", method) as archive:
            for name, array in fields.items():
                buffer = io.BytesIO()
                np.save(buffer, array)
                archive.writestr(f"{name}.npy", member if name == "rewards" else buffer.getvalue())
            archive.writestr("w0.npy", member)
        return folder / "a.npz"

    return write


def sb3_with(
    pth: Callable[[], bytes] | None = None, data: Callable[[], bytes] | None = None
) -> Callable[[Path], Path]:
    """Return a writer of a Stable-Baselines3 zip with other weights or settings."""

    def write(folder: Path) -> Path:
        path = write_sb3(folder / "a.zip", ARRAYS, pth=None if pth is None else pth())
        if data is not None:
            with zipfile.ZipFile(path) as archive:
                weights = archive.read("policy.pth")
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("data", data())
                archive.writestr("policy.pth", weights)
        return path

    return write


def tensor_stream(shape: bytes, strides: bytes) -> Callable[[], bytes]:
    """Return weights whose one tensor has the shape and strides that these opcodes build."""

    def make() -> bytes:
        stream = Stream().name("collections", "OrderedDict").op(b")R(").text("actor.mu.0.weight")
        stream.name("torch._utils", "_rebuild_tensor_v2").op(b"((").text("storage").name(
            "torch", "FloatStorage"
        )
        stream.text("0").text("cpu").integer(24).op(b"tQ").integer(0).op(shape + strides)
        stream.op(b"\x89").name("collections", "OrderedDict").op(b")RtRu.")
        return torch_zip({"x": np.zeros(24, np.float32)}, stream.code)

    return make


def legacy_keys(keys: bytes) -> Callable[[], bytes]:
    """Return weights of the old layout whose list of storages is built by these opcodes."""
    import pickle

    def make() -> bytes:
        head = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
        return b"".join(head) + state_dict_stream(ARRAYS, legacy=True) + b"\x80\x02" + keys

    return make


def many_steps() -> bytes:
    """Return a stream that leaves half a million objects on the stack, and then asks for the mark below them."""
    return torch_zip({}, b"\x80\x02(" + b")" * 3_000_000 + b"(t" * 200_000 + b".")


def pickle_file(code: bytes) -> Callable[[Path], Path]:
    """Return a writer of VecNormalize statistics that are these opcodes."""

    def write(folder: Path) -> Path:
        (folder / "a.pkl").write_bytes(b"\x80\x02" + code + b".")
        return folder / "a.pkl"

    return write


def statistics_stream(text: str, kind: str = "f8") -> bytes:
    """Return VecNormalize's stream with arrays of this type, whose bytes are spelled by this text."""
    stream = Stream().name("stable_baselines3", "VecNormalize").op(b")\x81}(").text("obs_rms")
    stream.name("stable_baselines3", "RunningMeanStd").op(b")\x81}(")
    for field in ("mean", "var"):
        stream.text(field).name("numpy._core.multiarray", "scalar").op(b"(").name("numpy", "dtype")
        stream.op(b"(").text(kind).op(b"tR").name("_codecs", "encode").op(b"(").text(text).text("latin1")
        stream.op(b"tRtR")
    return stream.op(b"ubub").code[2:]


def json_file(text: str) -> Callable[[Path], Path]:
    """Return a writer of statistics that are this JSON."""

    def write(folder: Path) -> Path:
        (folder / "a.json").write_text(text)
        return folder / "a.json"

    return write


def torchscript_with(change: Callable[[str, bytes], bytes]) -> Callable[[Path], Path]:
    """Return a writer of a TorchScript program whose members are changed by name."""

    def write(folder: Path) -> Path:
        path = folder / "policy.pt"
        with zipfile.ZipFile(HONEST_PROGRAM) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, blob in members.items():
                archive.writestr(name, change(name, blob))
        return path

    return write


def empty_storage(name: str, blob: bytes) -> bytes:
    """Leave a tensor's storage empty."""
    return b"" if name.endswith("data/1") else blob


def endless_text(name: str, blob: bytes) -> bytes:
    """Let the program's state begin with a text of two gigabytes."""
    return b"\x80\x02X\xff\xff\xff\x7f" + blob if name.endswith("/data.pkl") else blob


def saves_a_file(name: str, blob: bytes) -> bytes:
    """Let the program write a file when it acts."""
    harm = b'    ops.aten.save(input, "left-behind")\n    bias = self.bias\n'
    return blob.replace(b"    bias = self.bias\n", harm) if name.endswith("linear.py") else blob


def saves_when_loaded(name: str, blob: bytes) -> bytes:
    """Let the program write a file where it takes its state, in words set apart."""
    harm = b"  def __setstate__(self, state: Tensor) -> NoneType:\n"
    harm += b'    torch . save(state, "left-behind")\n    return None\n'
    return blob + harm if name.endswith("linear.py") else blob


def integers(*numbers: bytes) -> bytes:
    """Return opcodes for a tuple of these."""
    return b"(" + b"".join(numbers) + b"t"


MISNUMBERED = {f"actor.mu.{'9' * 5000}.weight": np.ones((2, 8), np.float32)}
WIDE = b"\x8b" + struct.pack("<i", 20) + b"\x7f" * 20  # an integer of 160 bits
LONG = b"\x8b" + struct.pack("<i", 3000) + b"\x7f" * 3000  # an integer of 7,000 digits
DOUBLED = b"(K\x01tq\x01" + b"".join(b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(1, 60))
ONE = integers(b"K\x18", b"K\x01")
ARCHIVE_CASES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    f"{what} ({target})": (target, npz_with(make, method))
    for target in ("npz", "npz_actor")
    for what, make, method in (
        ("a header with an open bracket", lambda: npy("{'descr': ("), zipfile.ZIP_STORED),
        ("a header nested without end", lambda: npy(descr("'<f4'", "-" * 3000 + "1")), zipfile.ZIP_STORED),
        ("an array of 70 dimensions", lambda: npy(descr("'V1'", "(" + "1, " * 70 + ")")) + b"x", zipfile.ZIP_STORED),
        ("an array of numbers without size", lambda: npy(descr("'V0'", "(9,)")), zipfile.ZIP_STORED),
        ("a shape of truths", lambda: npy(descr("'<f4'", "(True,)")) + bytes(4), zipfile.ZIP_STORED),
        ("text of letters that are none", lambda: npy(descr("'<U1'", "()")) + b"\xff" * 4, zipfile.ZIP_STORED),
        ("a header of 32 MiB", lambda: npy(" " * 2**25, (2, 0)), zipfile.ZIP_DEFLATED),
        ("a bzip2 bomb", lambda: npy(descr("'<f4'", "(60,)")) + bytes(2**25), zipfile.ZIP_BZIP2),
    )
} | {
    "settings of 9 MiB of brackets": ("sb3", sb3_with(data=lambda: b"[" + b"[]," * 3_000_000 + b"[]]")),
    "settings nested without end": ("sb3", sb3_with(data=lambda: b"[" * 100_000)),
    "a layer numbered by 5,000 digits": ("sb3", sb3_with(lambda: torch_zip(ARRAYS | MISNUMBERED))),
    "a shape that doubles sixty times": ("sb3", sb3_with(tensor_stream(DOUBLED, ONE))),
    "a shape of an endless integer": ("sb3", sb3_with(tensor_stream(integers(LONG, b"K\x01"), ONE))),
    "strides beyond any integer": ("sb3", sb3_with(tensor_stream(integers(b"K\x01"), integers(WIDE)))),
    "a tensor of 70 dimensions": ("sb3", sb3_with(tensor_stream(*[integers(*[b"K\x01"] * 70)] * 2))),
    "a storage named by a list": ("sb3", sb3_with(legacy_keys(b"(]l."))),
    "a storage named by what doubles": ("sb3", sb3_with(legacy_keys(b"(" + DOUBLED + b"l."))),
    "a stream of millions of steps": ("sb3", sb3_with(many_steps)),
    "statistics of bytes that are none": ("normalization", pickle_file(statistics_stream("\u20ac"))),
    "statistics of a type that is none": ("normalization", pickle_file(statistics_stream("x", "f1"))),
    "statistics that double": ("normalization", pickle_file(DOUBLED)),
    "statistics of an endless integer": ("normalization", json_file(f'{{"obs_mean": [{10**400}], "obs_var": [1]}}')),
    "statistics nested without end": ("normalization", json_file("[" * 100_000)),
    "statistics named by an escape": ("normalization", json_file(json.dumps({"\x1b[2J": 1}))),
    "a program whose tensor has no numbers": ("torchscript", torchscript_with(empty_storage)),
    "a program that begins with an endless text": ("torchscript", torchscript_with(endless_text)),
    "a program that writes a file": ("torchscript", torchscript_with(saves_a_file)),
    "a program whose __setstate__ writes a file": ("torchscript", torchscript_with(saves_when_loaded)),
}  # fmt: skip
