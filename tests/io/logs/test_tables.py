from __future__ import annotations

import numpy as np
import pytest

from encoded_log import read_here
from kmifqe.errors import InputError
from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.save import save_dataset
from kmifqe.mdp import columns as fill

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def lists(fields: dict[str, np.ndarray]) -> dict[str, object]:
    return {field: array.tolist() for field, array in fields.items()}


def numbered(fields: dict[str, np.ndarray]) -> dict[str, object]:
    columns: dict[str, object] = {}
    for field, array in fields.items():
        if array.ndim == 1:
            columns[field] = array
        else:
            columns |= {
                f"{field.removesuffix('s')}_{j}": array[:, j] for j in reversed(range(array.shape[1]))
            }
    return columns


def write_parquet(path, columns) -> None:
    pq.write_table(pa.table(columns), path, row_group_size=7)


def write_arrow(path, columns) -> None:
    table = pa.table(columns)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=5)


def write_stream(path, columns) -> None:
    table = pa.table(columns)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=5)


def write_feather(path, columns) -> None:
    pytest.importorskip("pyarrow.feather").write_feather(
        pa.table(columns), str(path), compression="zstd", chunksize=5
    )


WRITERS = [write_parquet, write_arrow, write_stream, write_feather]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("shape", [lists, numbered])
def test_list_and_numbered_columns_give_the_same_arrays(
    monkeypatch, tmp_path, encoded, log, same_log, write, shape
):
    monkeypatch.setattr(fill, "CHUNK_BYTES", 64)
    path = tmp_path / "log.arrow"  # parquet is known by its content, not by its name
    write(path, shape(encoded) | {"comment": ["ignored"] * 16})
    same_log(read_here(path), log)


@pytest.mark.parametrize("shape", [lists, numbered])
def test_null_next_observations_mean_not_logged(tmp_path, encoded, shape):
    columns = shape(encoded)
    for name in columns:
        if name.startswith("next_observation"):
            columns[name] = pa.array(
                [None if end else value for end, value in zip(encoded["timeouts"], columns[name])]
            )
    write_parquet(tmp_path / "log.parquet", columns)
    log = load_dataset(tmp_path / "log.parquet")
    assert np.array_equal(log.has_next_state, ~encoded["timeouts"])


def test_an_episode_column_replaces_timeouts(tmp_path, encoded, log, same_log):
    columns = lists({k: v for k, v in encoded.items() if k not in ("timeouts", "next_observations")})
    write_parquet(tmp_path / "log.parquet", columns | {"episode": log.episode})
    read = load_dataset(tmp_path / "log.parquet")
    assert np.array_equal(read.truncated, log.truncated)
    assert np.array_equal(read.next_actions, log.next_actions)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"rewards": [None] * 2 + [1.0] * 14}, "rewards holds 2 nulls, first at row 0"),
        ({"rewards": ["1.0"] * 16}, "rewards has type string; expected numbers"),
        (
            {"actions": [[1.0]] * 9 + [[1.0, 2.0]] + [[1.0]] * 6},
            "actions has 2 values at row 9; expected 1 on every",
        ),
        ({"actions": [[]] * 16}, "actions has type null; expected numbers"),
        ({"actions": [[[1.0]]] * 16}, "actions has type list<.*double>; expected numbers"),
        ({"actions": [[1.0, None]] * 16}, "actions holds NaN or infinity in 16 of 32"),
        ({"actions": pa.array([[]] * 16, pa.list_(pa.float32()))}, r"actions has shape \(16, 0\); expected"),
        ({"episode": [0.5] * 16}, "episode has type float64; expected integers"),
        ({"episode": ["a"] * 16}, "episode has type string; expected numbers"),
    ],
)
def test_broken_columns_are_refused_with_a_sentence(tmp_path, encoded, change, message):
    write_parquet(tmp_path / "log.parquet", lists(encoded) | change)
    with pytest.raises(InputError, match=rf"log\.parquet: ({message})"):
        load_dataset(tmp_path / "log.parquet")


def test_a_gap_in_numbered_columns_is_refused(tmp_path, encoded):
    columns = numbered(encoded)
    del columns["action_1"]
    write_parquet(tmp_path / "log.parquet", columns)
    with pytest.raises(InputError, match="actions has numbered columns, but no action_1"):
        load_dataset(tmp_path / "log.parquet")


@pytest.mark.parametrize("write", WRITERS)
def test_truncated_tables_are_refused(tmp_path, encoded, write):
    path = tmp_path / "log.arrow"
    write(path, lists(encoded))
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(InputError, match=r"log\.arrow: cannot be read as (a Parquet|an Arrow) table"):
        load_dataset(path)


def test_a_missing_pyarrow_names_the_extra(monkeypatch, tmp_path, encoded):
    write_parquet(tmp_path / "log.parquet", lists(encoded))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"need pyarrow; pip install 'kmifqe\[parquet\]'"):
        read_here(tmp_path / "log.parquet")


@pytest.mark.parametrize("claim", [15, 17])
def test_a_table_that_miscounts_its_rows_is_refused(log, tmp_path, claim):
    path = tmp_path / "log.parquet"
    save_dataset(log, path)
    data = path.read_bytes()
    rows = b"\x16" + bytes([2 * 16])  # field 3 of the footer: sixteen rows
    at = data.index(rows, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    path.write_bytes(data[: at + 1] + bytes([2 * claim]) + data[at + 2 :])
    with pytest.raises(InputError, match=rf"the {claim} rows declared|the file declares {claim}$"):
        load_dataset(path)


@pytest.mark.parametrize("write", WRITERS)
def test_any_changed_byte_of_the_metadata_is_read_or_refused(tmp_path, encoded, write):
    """pyarrow aborts the process on some of them."""
    path = tmp_path / "log.arrow"
    write(path, lists(encoded))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for at in rng.integers(8, len(whole), 40):
        path.write_bytes(whole[:at] + rng.bytes(1) + whole[at + 1 :])
        try:
            load_dataset(path)
        except InputError:
            refused += 1
    assert 0 < refused < 40


def test_lists_of_millions_of_equal_numbers_end_at_the_limit(tmp_path, encoded):
    """A few kilobytes would unpack to 800 MB."""
    values = pa.array(np.zeros(100_000_000, np.float64))
    long = pa.ListArray.from_arrays(np.arange(0, 17 * 6_250_000, 6_250_000, dtype=np.int32), values)
    write_parquet(tmp_path / "log.parquet", lists(encoded) | {"observations": long})
    assert (tmp_path / "log.parquet").stat().st_size < 100_000
    with pytest.raises(InputError, match=r"log\.parquet"):
        load_dataset(tmp_path / "log.parquet")
