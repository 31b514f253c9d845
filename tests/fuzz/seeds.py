"""Honest files of every format that is read, small, to be damaged."""

from __future__ import annotations

import json
import pickle
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from kmifqe.behavior.mixture import TanhMixture, init_network
from kmifqe.behavior.support import Support
from kmifqe.io.logs.save import flat_fields, save_dataset
from kmifqe.io.policies.actor import Actor
from kmifqe.mdp.transitions import Transitions
from policy_files import torch_legacy, torch_zip, write_sb3

STATE_DIM, ACTION_DIM, ROWS = 3, 2, 60
THIRD_PARTY = Path(__file__).parents[3] / "shared" / "policies"


def make_log() -> Transitions:
    """Return a log with every optional field: 6 episodes of 10 steps, logged densities, next states."""
    rng = np.random.default_rng(0)
    last = np.arange(ROWS) % 10 == 9
    states = rng.standard_normal((ROWS + 1, STATE_DIM)).astype(np.float32)
    return Transitions.from_arrays(
        observations=states[:-1],
        actions=rng.uniform(-1, 1, (ROWS, ACTION_DIM)).astype(np.float32),
        rewards=rng.standard_normal(ROWS).astype(np.float32),
        terminals=last & (np.arange(ROWS) % 20 == 9),
        timeouts=last & (np.arange(ROWS) % 20 == 19),
        next_observations=states[1:],
        action_log_probs=-rng.random(ROWS).astype(np.float32),
    )


def make_actor() -> Actor:
    """Return a small native policy."""
    rng = np.random.default_rng(1)
    return Actor(
        weights=tuple(
            rng.standard_normal(shape).astype(np.float32) for shape in ((STATE_DIM, 8), (8, ACTION_DIM))
        ),
        biases=(np.zeros(8, np.float32), np.zeros(ACTION_DIM, np.float32)),
        hidden="tanh",
        output="tanh",
        low=-np.ones(ACTION_DIM, np.float32),
        high=np.ones(ACTION_DIM, np.float32),
        obs_mean=np.zeros(STATE_DIM),
        obs_var=np.ones(STATE_DIM),
    )


def write_hdf5(folder: Path) -> list[Path]:
    """Write D4RL logs: chunked and compressed, plain, and by the oldest and newest HDF5 layouts."""
    save_dataset(make_log(), folder / "gzip.hdf5")
    fields = flat_fields(make_log())
    for name, options in {"plain.hdf5": {}, "latest.hdf5": {"libver": "latest"}}.items():
        with h5py.File(folder / name, "w", **options) as file:
            for field, array in fields.items():
                file[field] = array
    with h5py.File(folder / "lzf.hdf5", "w") as file:
        for field, array in fields.items():
            file.create_dataset(field, data=array, compression="lzf", fletcher32=True, chunks=True)
    return [folder / name for name in ("gzip.hdf5", "plain.hdf5", "latest.hdf5", "lzf.hdf5")]


def write_hdf5_policy(folder: Path) -> list[Path]:
    """Write a D4RL file that carries a policy."""
    actor = make_actor()
    with h5py.File(folder / "policy.hdf5", "w") as file:
        group = file.create_group("metadata/policy")
        for name, w, b in zip(("fc0", "last_fc"), actor.weights, actor.biases):
            group[f"{name}/weight"], group[f"{name}/bias"] = w.T, b
        group["nonlinearity"], group["output_distribution"] = "tanh", "tanh_gaussian"
    return [folder / "policy.hdf5"]


def write_npz(folder: Path) -> list[Path]:
    """Write logs as .npz: streamed by us, and compressed by NumPy."""
    save_dataset(make_log(), folder / "ours.npz")
    np.savez_compressed(folder / "numpy.npz", **flat_fields(make_log()))
    return [folder / "ours.npz", folder / "numpy.npz"]


def write_npz_actor(folder: Path) -> list[Path]:
    """Write an actor as .npz, and take a third party's where there is one."""
    actor = make_actor()
    fields = {f"w{i}": w for i, w in enumerate(actor.weights)}
    fields |= {f"b{i}": b for i, b in enumerate(actor.biases)}
    fields |= {"hidden": np.array("tanh"), "output": np.array("tanh"), "low": actor.low, "high": actor.high}
    np.savez(folder / "actor.npz", n_layers=2, obs_mean=actor.obs_mean, obs_var=actor.obs_var, **fields)
    return [folder / "actor.npz", *_third_party("ddpg-Pendulum-v1.npz", "a2c-Pendulum-v1.npz")]


def write_parquet(folder: Path) -> list[Path]:
    """Write logs as Parquet: our fixed-size lists, and numbered columns with a dictionary and page checksums."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    save_dataset(make_log(), folder / "ours.parquet")
    pq.write_table(pa.table(_columns()), folder / "wide.parquet", compression="gzip", data_page_version="2.0")
    lists = {"observations": pa.array(make_log().states.tolist()), **_columns(skip="observations")}
    pq.write_table(pa.table(lists), folder / "lists.parquet", compression="zstd")
    return [folder / name for name in ("ours.parquet", "wide.parquet", "lists.parquet")]


def write_arrow(folder: Path) -> list[Path]:
    """Write logs as an Arrow file and as Arrow streams, one of lists of free length, compressed."""
    import pyarrow as pa

    save_dataset(make_log(), folder / "ours.arrow")
    lists = pa.table({"observations": pa.array(make_log().states.tolist()), **_columns(skip="observations")})
    for name, options in (("stream.arrow", None), ("lz4.arrow", pa.ipc.IpcWriteOptions(compression="lz4"))):
        with pa.OSFile(str(folder / name), "wb") as sink:
            writer = pa.ipc.new_stream if name == "stream.arrow" else pa.ipc.new_file
            with writer(sink, lists.schema, options=options) as out:
                out.write_table(lists, max_chunksize=25)
    return [folder / name for name in ("ours.arrow", "stream.arrow", "lz4.arrow")]


def write_minari(folder: Path) -> list[Path]:
    """Write Minari datasets: the three storages."""
    from gymnasium.spaces import Box
    from minari.dataset.minari_storage import MinariStorage

    from kmifqe.io.logs.minari import _split_episodes

    made = []
    for kind in ("hdf5", "arrow", "parquet"):
        made.append(folder / f"{kind}-v0")
        (made[-1] / "data").mkdir(parents=True)
        storage = MinariStorage.new(
            made[-1] / "data",
            observation_space=Box(-np.inf, np.inf, (STATE_DIM,), np.float32),
            action_space=Box(-1.0, 1.0, (ACTION_DIM,), np.float32),
            data_format=kind,
        )
        episodes = list(_split_episodes(make_log()))
        if kind != "hdf5":  # its tables pad everything to T + 1, infos included
            episodes = [replace(episode, infos=None) for episode in episodes]
        storage.update_episodes(episodes)
    return made


def write_sb3_zips(folder: Path) -> list[Path]:
    """Write Stable-Baselines3 zips with weights in both of PyTorch's layouts, and take real ones."""
    actor = make_actor()
    layers = zip(("actor.mu.0", "actor.mu.2"), actor.weights, actor.biases)
    arrays = {
        f"{name}.{part}": array
        for name, w, b in layers
        for part, array in (("weight", w.T.copy()), ("bias", b))
    }
    write_sb3(folder / "td3.zip", arrays, pth=torch_zip(arrays))
    write_sb3(folder / "old.zip", arrays, pth=torch_legacy(arrays))
    return [folder / "td3.zip", folder / "old.zip", *_third_party("sb3/a2c-Hopper-v3.zip")]


def write_torchscript(folder: Path) -> list[Path]:
    """Write a TorchScript program."""
    import torch

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(STATE_DIM, ACTION_DIM), torch.nn.Tanh())
    torch.jit.trace(network, torch.zeros(1, STATE_DIM)).save(str(folder / "policy.pt"))
    return [folder / "policy.pt"]


def write_onnx(folder: Path) -> list[Path]:
    """Write an ONNX graph."""
    import onnx

    rng = np.random.default_rng(2)
    arrays = {"w": rng.standard_normal((STATE_DIM, ACTION_DIM)), "b": np.zeros(ACTION_DIM)}
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Gemm", ["input_0", "w", "b"], ["y"]),
            onnx.helper.make_node("Tanh", ["y"], ["action"]),
        ],
        "policy",
        [value("input_0", onnx.TensorProto.FLOAT, ["n", STATE_DIM])],
        [value("action", onnx.TensorProto.FLOAT, ["n", ACTION_DIM])],
        [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    (folder / "policy.onnx").write_bytes(model.SerializeToString())
    return [folder / "policy.onnx"]


def write_safetensors(folder: Path) -> list[Path]:
    """Write a native actor."""
    make_actor().save(folder / "actor.safetensors")
    return [folder / "actor.safetensors"]


def write_behavior(folder: Path) -> list[Path]:
    """Write a fitted density."""
    ones = np.ones(ACTION_DIM)
    TanhMixture(
        network=init_network(np.random.default_rng(3), STATE_DIM, (4,), 2, ACTION_DIM),
        support=Support(-ones, ones, 0 * ones, ones, 1e-3),
        state_mean=np.zeros(STATE_DIM, np.float32),
        state_std=np.ones(STATE_DIM, np.float32),
    ).save(folder / "behavior.safetensors")
    return [folder / "behavior.safetensors"]


def write_normalization(folder: Path) -> list[Path]:
    """Write VecNormalize statistics as pickles of two protocols, .npz and .json."""
    statistics = {"obs_mean": np.zeros(STATE_DIM), "obs_var": np.ones(STATE_DIM)}
    np.savez(folder / "statistics.npz", epsilon=1e-8, clip_obs=10.0, **statistics)
    plain = {key: value.tolist() for key, value in statistics.items()} | {"epsilon": 1e-8, "clip_obs": 10.0}
    (folder / "statistics.json").write_text(json.dumps(plain))
    for protocol in (2, 4):
        (folder / f"vecnormalize{protocol}.pkl").write_bytes(_vecnormalize_pickle(statistics, protocol))
    return [
        folder / name
        for name in ("statistics.npz", "statistics.json", "vecnormalize2.pkl", "vecnormalize4.pkl")
    ]


SEEDS: dict[str, Callable[[Path], list[Path]]] = {
    "hdf5": write_hdf5,
    "hdf5_policy": write_hdf5_policy,
    "npz": write_npz,
    "npz_actor": write_npz_actor,
    "parquet": write_parquet,
    "arrow": write_arrow,
    "minari": write_minari,
    "sb3": write_sb3_zips,
    "torchscript": write_torchscript,
    "onnx": write_onnx,
    "safetensors": write_safetensors,
    "behavior": write_behavior,
    "normalization": write_normalization,
}


def _columns(skip: str = "") -> dict[str, np.ndarray]:
    """Return the log as plain columns: a matrix as numbered ones."""
    columns = {}
    for field, array in flat_fields(make_log()).items():
        if field != skip and array.ndim == 1:
            columns[field] = array
        elif field != skip:
            columns |= {f"{field}_{j}": array[:, j] for j in range(array.shape[1])}
    return columns


def _third_party(*names: str) -> list[Path]:
    return [THIRD_PARTY / name for name in names if (THIRD_PARTY / name).is_file()]


def _vecnormalize_pickle(statistics: dict[str, np.ndarray], protocol: int) -> bytes:
    """Return what VecNormalize.save writes, by classes of the same names that exist only meanwhile."""
    before = dict(sys.modules)
    running, wrapper = (
        "stable_baselines3.common.running_mean_std",
        "stable_baselines3.common.vec_env.vec_normalize",
    )
    try:
        for name in ("stable_baselines3", "stable_baselines3.common", "stable_baselines3.common.vec_env"):
            sys.modules[name] = types.ModuleType(name)
        made = {}
        for module, name in ((running, "RunningMeanStd"), (wrapper, "VecNormalize")):
            sys.modules[module] = types.ModuleType(module)
            made[name] = type(name, (), {"__module__": module})
            setattr(sys.modules[module], name, made[name])
        rms, normalize = made["RunningMeanStd"](), made["VecNormalize"]()
        rms.__dict__.update(mean=statistics["obs_mean"], var=statistics["obs_var"], count=1e-4)
        normalize.__dict__.update(obs_rms=rms, epsilon=np.float64(1e-6), clip_obs=5.0, norm_obs=True)
        return pickle.dumps(normalize, protocol)
    finally:
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
