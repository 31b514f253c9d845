"""Rows in host memory read like rows on the device: the same numbers, under every transformation `fit` uses."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kmifqe.mdp import host_rows
from kmifqe.mdp.host_rows import HostRows, largest_magnitudes

ARRAY = np.random.default_rng(0).standard_normal((100, 3), dtype=np.float32)


def test_rows_are_fetched_by_number_inside_and_outside_jit() -> None:
    held, rows = HostRows.hold(ARRAY), jnp.array([[5, 0], [99, 5]])
    np.testing.assert_array_equal(held[rows], ARRAY[np.asarray(rows)])
    np.testing.assert_array_equal(jax.jit(lambda h, r: h[r])(held, rows), ARRAY[np.asarray(rows)])
    np.testing.assert_array_equal(held[7], ARRAY[7])


def test_numbers_outside_the_array_mean_what_they_mean_on_the_device() -> None:
    rows = jnp.array([-1, -100, -101, 99, 100, 1000])
    np.testing.assert_array_equal(HostRows.hold(ARRAY)[rows], jnp.asarray(ARRAY)[rows])


def test_it_looks_like_the_array_it_stands_for() -> None:
    held = HostRows.hold(ARRAY)
    assert (held.shape, held.ndim, len(held), held.dtype, held.nbytes) == ((100, 3), 2, 100, np.float32, 1200)
    np.testing.assert_array_equal(np.asarray(held), ARRAY)
    assert np.shares_memory(np.asarray(held), ARRAY)


@pytest.mark.parametrize("rows", [slice(5), np.array([True, False]), 0.5])
def test_anything_but_row_numbers_is_refused(rows: object) -> None:
    with pytest.raises(TypeError, match="fetched by an array of row numbers"):
        HostRows.hold(ARRAY)[rows]  # type: ignore[index]


def descend(rows_of, keys: jax.Array, steps: int, batch: int) -> jax.Array:
    """Train one vector per seed by scan over vmap, as `fit` does, on minibatches of rows_of."""

    def one(w: jax.Array, key: jax.Array) -> jax.Array:
        rows = jax.random.randint(key, (batch,), 0, len(rows_of))
        gradient = jax.grad(lambda w: jnp.mean((rows_of[rows] @ w - 1.0) ** 2))(w)
        return w - 0.1 * gradient

    def step(w: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
        return jax.vmap(one)(w, jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, t)), None

    return jax.lax.scan(step, jnp.zeros((len(keys), rows_of.shape[1])), jnp.arange(steps))[0]


@pytest.mark.parametrize("batch", [4, 40_000])  # 40,000 numbers of three seeds: no small transfer any more
def test_training_from_the_host_gives_the_same_bits(batch: int) -> None:
    train = jax.jit(descend, static_argnums=(2, 3))
    keys = jax.random.split(jax.random.key(0), 3)
    from_host = train(HostRows.hold(ARRAY), keys, 5, batch)
    np.testing.assert_array_equal(from_host, train(jnp.asarray(ARRAY), keys, 5, batch))


def test_all_seeds_fetch_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, ...]] = []
    fetch = host_rows._fetch

    def counted(ticket, rows):
        shapes.append(rows.shape)
        return fetch(ticket, rows)

    monkeypatch.setattr(host_rows, "_fetch", counted)
    jax.jit(descend, static_argnums=(2, 3))(
        HostRows.hold(ARRAY), jax.random.split(jax.random.key(0), 6), 4, 8
    ).block_until_ready()
    assert shapes == [(6, 8)] * 4


def test_one_program_serves_all_arrays_of_a_shape_and_keeps_none_of_them_alive() -> None:
    traced = []

    @jax.jit
    def first_row(held: HostRows) -> jax.Array:
        traced.append(held.shape)
        return held[jnp.array([0])]

    arrays = [np.full((4, 2), value, np.float32) for value in (1.0, 2.0)]
    watched = weakref.ref(arrays[0])
    held = [HostRows.hold(array) for array in arrays]
    assert [float(first_row(each)[0, 0]) for each in held] == [1.0, 2.0]
    assert len(traced) == 1
    same = jax.tree.map(lambda leaf: leaf, held[0])
    del held
    arrays.clear()
    assert float(first_row(same)[0, 0]) == 1.0
    del same
    gc.collect()
    assert watched() is None


def test_largest_magnitudes_are_the_same_wherever_the_rows_are() -> None:
    expected = np.abs(ARRAY).max(axis=0)
    np.testing.assert_array_equal(largest_magnitudes(jnp.asarray(ARRAY)), expected)
    np.testing.assert_array_equal(jax.jit(largest_magnitudes)(HostRows.hold(ARRAY)), expected)
