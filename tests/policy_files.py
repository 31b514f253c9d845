"""Writers of policy files in other libraries' layouts, so that no test needs those libraries."""

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np


class Stream:
    """Pickle opcodes put together by hand: any name can be written without importing it."""

    def __init__(self) -> None:
        self.code = b"\x80\x02"

    def text(self, value: str) -> "Stream":
        raw = value.encode()
        self.code += b"X" + struct.pack("<I", len(raw)) + raw
        return self

    def integer(self, value: int) -> "Stream":
        self.code += b"J" + struct.pack("<i", value)
        return self

    def name(self, module: str, name: str) -> "Stream":
        self.code += f"c{module}\n{name}\n".encode()
        return self

    def integers(self, values: tuple[int, ...]) -> "Stream":
        self.code += b"("
        for value in values:
            self.integer(value)
        self.code += b"t"
        return self

    def op(self, code: bytes) -> "Stream":
        self.code += code
        return self


def state_dict_stream(
    arrays: dict[str, np.ndarray], sizes: dict[str, int] | None = None, legacy: bool = False
) -> bytes:
    """The stream torch.save writes for a state dict; `sizes` lets a storage lie about its length."""
    stream = Stream().name("collections", "OrderedDict").op(b")R(")
    for key, (name, array) in enumerate(arrays.items()):
        strides = tuple(int(step) for step in np.array(array.strides) // array.itemsize)
        stream.text(name).name("torch._utils", "_rebuild_tensor_v2").op(b"((").text("storage")
        stream.name("torch", {"f4": "FloatStorage", "f8": "DoubleStorage"}[array.dtype.str[1:]])
        stream.text(str(key)).text("cpu").integer((sizes or {}).get(name, array.size))
        stream.op(b"N" if legacy else b"").op(b"tQ").integer(0).integers(array.shape).integers(strides)
        stream.op(b"\x89").name("collections", "OrderedDict").op(b")RtR")
    return stream.op(b"u.").code


def torch_zip(arrays: dict[str, np.ndarray], stream: bytes | None = None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", state_dict_stream(arrays) if stream is None else stream)
        for key, array in enumerate(arrays.values()):
            archive.writestr(f"archive/data/{key}", array.tobytes())
    return buffer.getvalue()


def torch_legacy(arrays: dict[str, np.ndarray]) -> bytes:
    head = [pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    keys = pickle.dumps([str(key) for key in range(len(arrays))], 2)
    storages = b"".join(struct.pack("<q", array.size) + array.tobytes() for array in arrays.values())
    return b"".join(head) + state_dict_stream(arrays, legacy=True) + keys + storages


def sb3_settings(**changes: object) -> dict[str, object]:
    box = {":type:": "<class 'gymnasium.spaces.box.Box'>", ":serialized:": "never read"}
    settings: dict[str, object] = {
        "policy_class": {":type:": "<class 'abc.ABCMeta'>", "__module__": "stable_baselines3.sac.policies"},
        "policy_kwargs": {},
        "observation_space": box | {"dtype": "float32", "low": "[-inf -inf -inf]", "high": "[inf inf inf]"},
        "action_space": box | {"dtype": "float32", "low": "[-2.  -0.5]", "high": "[1.  0.5]"},
        "_last_obs": None,
        "_last_original_obs": None,
    }
    return settings | changes


def write_sb3(path: Path, arrays: dict[str, np.ndarray], pth: bytes | None = None, **changes: object) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(sb3_settings(**changes)))
        archive.writestr("policy.pth", torch_zip(arrays) if pth is None else pth)
    return path
