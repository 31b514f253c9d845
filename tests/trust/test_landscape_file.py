"""A landscape reads back as written; anything else is refused in a sentence."""

from __future__ import annotations

import zipfile
from dataclasses import fields, replace

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.trust.landscape import Points, Surface, read_landscape, write_landscape
from report.html.small import small_landscape


def test_what_was_written_is_read_back(tmp_path):
    written = small_landscape()
    write_landscape(tmp_path / "landscape.npz", written)
    read = read_landscape(tmp_path / "landscape.npz")
    np.testing.assert_array_equal(read.low, written.low)
    for field in fields(Points):
        np.testing.assert_array_equal(getattr(read.points, field.name), getattr(written.points, field.name))
    assert len(read.surfaces) == len(written.surfaces) == 2
    for ours, theirs in zip(written.surfaces, read.surfaces):
        for field in fields(Surface):
            one, other = getattr(ours, field.name), getattr(theirs, field.name)
            if isinstance(one, tuple):
                assert len(one) == len(other)
                for a, b in zip(one, other):
                    np.testing.assert_array_equal(a, b)
            else:
                np.testing.assert_array_equal(one, other)


def test_q_of_a_linear_network_is_its_formula():
    surface = small_landscape().surfaces[1]
    identity = replace(surface, weights=surface.weights[:1], biases=surface.biases[:1])
    x = np.arange(10.0).reshape(2, 5)
    w, b = identity.weights[0][1], identity.biases[0][1]
    expected = (((x - surface.shift) / surface.scale) @ w + b)[:, 0] * surface.unit[1]
    np.testing.assert_allclose(identity.q(1, x[:, :3], x[:, 3:]), expected)


def broken(path, how):
    landscape = small_landscape()
    if how == "not a zip":
        path.write_bytes(b"PK but not really")
    elif how == "another archive":
        np.savez(path, actions=np.zeros(3))
    elif how == "cut off":
        write_landscape(path, landscape)
        path.write_bytes(path.read_bytes()[:-300])
    elif how == "a bomb":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("schema.npy", bytes(24 * 2**20))
    elif how == "objects":
        with open(path, "wb") as file:
            np.savez(file, schema=np.array([{}], dtype=object))
    elif how == "wrong shape":
        points = replace(landscape.points, targets=landscape.points.targets[:, :1])
        write_landscape(path, replace(landscape, points=points))
    elif how == "unknown activation":
        surface = replace(landscape.surfaces[0], hidden="sin")
        write_landscape(path, replace(landscape, surfaces=(surface,)))


@pytest.mark.parametrize(
    "how",
    ["not a zip", "another archive", "cut off", "a bomb", "objects", "wrong shape", "unknown activation"],
)
def test_anything_else_is_refused_and_named(how, tmp_path):
    path = tmp_path / "landscape.npz"
    broken(path, how)
    with pytest.raises(InputError, match=r"landscape\.npz: "):
        read_landscape(path)
