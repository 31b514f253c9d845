import collections
import pickle
import sys

import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.pickles import Built, Name, Reference, read_inert

PLAIN = {
    "a": [1, -2, 2**70, 1.5, None, True, False],
    "b": ("x", b"y", (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    3: {},
}


def anything(name):
    return True


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_comes_back_equal(protocol):
    data = {
        key: value for key, value in PLAIN.items() if protocol > 2 or key != "b"
    }  # protocol 2 has no bytes
    assert read_inert(pickle.dumps(data, protocol), anything, "file") == data


def test_shared_and_self_referring_data_keep_their_identity():
    inner = [1]
    outer = [inner, inner]
    outer.append(outer)
    found = read_inert(pickle.dumps(outer), anything, "file")
    assert found[0] is found[1]
    assert found[2] is found


def test_calls_and_objects_stay_descriptions():
    found = read_inert(pickle.dumps(collections.OrderedDict(a=1), 2), anything, "file")
    assert isinstance(found, Built)
    assert found.what == Name("collections", "OrderedDict")
    assert found.items == {"a": 1}
    assert read_inert(b"\x80\x02K\x07Q.", anything, "file") == Reference(7)


def test_a_hostile_pickle_runs_nothing_even_where_every_name_is_allowed(hostile, canary):
    found = read_inert(hostile, anything, "file")
    assert isinstance(found, Built)
    assert found.what == Name("io", "open") or found.what == Name("__builtin__", "open")
    assert not canary.exists()


def test_a_name_is_not_imported():
    module = "this_module_does_not_exist_anywhere"
    found = read_inert(f"\x80\x02c{module}\nboom\n.".encode("latin1"), anything, "file")
    assert found == Name(module, "boom")
    assert module not in sys.modules


def test_a_name_outside_the_allowed_ones_is_reported(hostile, canary):
    with pytest.raises(InputError, match=r"weights\.pth: refers to .*open"):
        read_inert(hostile, lambda name: False, "weights.pth")
    assert not canary.exists()


def test_a_name_cannot_write_over_the_terminal():
    with pytest.raises(InputError, match=r"refers to a\?\[2Jb\.c"):
        read_inert(b"\x80\x02ca\x1b[2Jb\nc\n.", lambda name: False, "file")


@pytest.mark.parametrize(
    "stream",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02.",  # nothing on the stack
        b"\x80\x02h\x05.",  # a memo entry that was never written
        b"\x80\x02t.",  # a tuple without a mark
        b"\x80\x02}K\x01s.",  # a key without a value
        b"\x80\x02}(K\x01u.",  # an odd number of items
        b"\x80\x02]K\x01b.",  # state given to a list
        b"\x80\x02K\x01K\x02a.",  # append to a number
        b"\x80\x02X\xff\xff\xff\x7fabc.",  # a string said to be 2 GB long
        b"\x80\x02\x8b\xff\xff\xff\x7fabc.",  # an integer said to be 2 GB long
        b"\x80\x02}(](K\x01lK\x01u.",  # an unhashable key
        b"cos\nsystem\n(S'true'\ntR.",  # protocol 0
        b"not a pickle at all",
    ],
)
def test_a_damaged_stream_is_an_input_error(stream):
    with pytest.raises(InputError, match=r"^file: "):
        read_inert(stream, anything, "file")


def test_deep_nesting_does_not_overflow_the_stack():
    depth = 200_000
    nested = (
        b"\x80\x02}" + b"K\x01" + b"\x85" * depth + b"K\x01s."
    )  # a tuple in a tuple in ... as a dictionary key
    with pytest.raises(InputError, match="dictionary key"):
        read_inert(nested, anything, "file")
