import pickle

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies.pickles import read_inert, to_array

ARRAYS = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
    np.arange(6.0)[::2],
    np.array([True, False]),
    np.arange(3, dtype=">f4"),
    np.float64(2.5),
]


@pytest.mark.parametrize("array", ARRAYS)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_arrays_come_back_equal(array, protocol):
    found = to_array(read_inert(pickle.dumps(array, protocol), lambda name: True, "file"), "file")
    assert np.array_equal(found, array)
    assert found.shape == array.shape


@pytest.mark.parametrize("value", [np.array([object()]), np.array(["text"]), "text", [1.0]])
def test_anything_but_plain_numbers_is_refused(value):
    data = (
        value
        if isinstance(value, str | list)
        else pickle.dumps(value if value.dtype != object else np.array([None]))
    )
    node = data if isinstance(data, str | list) else read_inert(data, lambda name: True, "file")
    with pytest.raises(InputError, match="file: "):
        to_array(node, "file")


def test_a_shape_that_lies_is_refused():
    honest = pickle.dumps(np.arange(7.0), 3)
    lie = honest.replace(b"K\x07\x85", b"K\x09\x85")
    assert lie != honest
    with pytest.raises(InputError, match=r"claims shape \(9,\) of float64; found 56 bytes"):
        to_array(read_inert(lie, lambda name: True, "file"), "file")
