import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from kmifqe.errors import InputError  # noqa: E402
from kmifqe.io.logs.table_guards import check_pages  # noqa: E402

ROWS = 5_000


def write(path, **options):
    rng = np.random.default_rng(0)
    columns = {
        "x": rng.standard_normal(ROWS),
        "repeated": np.arange(ROWS) // 100,
        "lists": pa.array([[float(i)] * (i % 4) if i % 7 else None for i in range(ROWS)]),
        "flags": rng.random(ROWS) < 0.5,
        "text": [f"row {i}" for i in range(ROWS)],
    }
    pq.write_table(pa.table(columns), path, **options)
    return path


def check(path):
    check_pages(path, "log.parquet")


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize(
    "more", [{}, {"use_dictionary": False, "row_group_size": 999, "data_page_size": 512}]
)
def test_what_pyarrow_writes_is_accepted(tmp_path, compression, version, more):
    check(write(tmp_path / "a.parquet", compression=compression, data_page_version=version, **more))


def test_every_single_byte_of_a_page_header_changed_is_read_or_refused(tmp_path):
    path = write(tmp_path / "a.parquet", use_dictionary=False, compression="none")
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    whole = path.read_bytes()
    refused = 0
    for at in range(start, start + 20):
        for value in (0, 1, 127, 128, 255):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                check(path)
            except (InputError, ValueError, LookupError, TypeError):  # which TableFile makes sentences of
                refused += 1
    assert refused > 20


def test_equal_numbers_beyond_the_limit_are_refused_unread(tmp_path):
    pq.write_table(pa.table({"x": np.zeros(3_000_000)}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"log\.parquet: the table declares [\d,]+ bytes"):
        check(tmp_path / "a.parquet")


def test_metadata_that_pyarrow_dies_of_is_read_or_refused(tmp_path):
    path = write(tmp_path / "a.parquet")
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    rng = np.random.default_rng(0)
    refused = 0
    for at in rng.integers(start, len(whole) - 8, 400):
        path.write_bytes(whole[:at] + rng.bytes(1) + whole[at + 1 :])
        try:
            check(path)
        except (InputError, ValueError, LookupError, TypeError):  # which TableFile makes sentences of
            refused += 1
    assert 40 < refused < 400


def test_a_list_without_end_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    footer = b"\x49\xf1\xff\xff\xff\x7f" + b"\x01" * 1_500_000  # field 4, a list of 2^28 flags
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(ValueError, match="too many values"):
        check(path)
