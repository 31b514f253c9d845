import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from kmifqe.errors import InputError  # noqa: E402
from kmifqe.io.logs.table_guards import check_buffers  # noqa: E402


def write(path, columns, compression=None, stream=False):
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as sink:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        opener = pa.ipc.new_stream if stream else pa.ipc.new_file
        with opener(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=1_000)
    return path


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_what_pyarrow_writes_is_accepted(tmp_path, compression, stream):
    rng = np.random.default_rng(0)
    columns = {"x": rng.standard_normal(5_000), "word": pa.array(["a", "b"] * 2_500).dictionary_encode()}
    check_buffers(write(tmp_path / "a.arrow", columns, compression, stream), "log.arrow")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_dictionary", [False, True])
def test_buffers_that_unpack_beyond_the_limit_are_refused(tmp_path, stream, as_dictionary):
    column = pa.array(np.zeros(3_000_000))
    if as_dictionary:
        column = pa.DictionaryArray.from_arrays(np.zeros(1, np.int32), column)
    path = tmp_path / "a.arrow"
    batch = pa.record_batch({"x": column})
    with pa.OSFile(str(path), "wb") as sink:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        opener = pa.ipc.new_stream if stream else pa.ipc.new_file
        with opener(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
    with pytest.raises(InputError, match="the table declares 24,000,"):
        check_buffers(path, "log.arrow")


def test_offsets_that_lead_out_of_the_file_are_refused(tmp_path):
    path = write(tmp_path / "a.arrow", {"x": np.arange(300.0)}, "lz4")
    path.write_bytes(path.read_bytes()[8:])  # everything lies eight bytes from where it is said to be
    path.write_bytes(b"ARROW1\0\0" + path.read_bytes()[200:])
    with pytest.raises(ValueError, match="outside the file"):
        check_buffers(path, "log.arrow")
