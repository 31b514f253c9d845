"""What the machine can do: rates of matrix products and of copies, measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from kmifqe.maths.fused import has_tensor_cores
from records import Row, number
from timing import medians

SECTION = "machine"


@dataclass(frozen=True)
class Work:
    """A program that does nothing but a known amount of work."""

    call: Callable[[], jax.Array]
    amount: float  # floating-point operations, or bytes


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def network_dtype() -> jnp.dtype:
    """Return what the estimators' matrix products are made of here by default."""
    return jnp.dtype(jnp.float16 if has_tensor_cores() else jnp.float32)


def square_products(dtype: jnp.dtype) -> Work:
    """Return products of matrices large enough for the best rate the machine has."""
    side, count = (8192, 4) if on_gpu() else (2048, 2)
    return _products((1, side, side), dtype, count)


def network_products(seeds: int, batch: int, hidden: int, dtype: jnp.dtype) -> Work:
    """Return products of a minibatch with the middle layer's weights, for all seeds at once."""
    flops = 2.0 * seeds * batch * hidden**2
    return _products((seeds, batch, hidden), dtype, count=max(8, int((1e12 if on_gpu() else 5e9) / flops)))


def _products(shape: tuple[int, int, int], dtype: jnp.dtype, count: int) -> Work:
    """Return a chain x ← x w: no product can begin before the one before it, as in a network."""
    batches, _, inner = shape
    x = jax.random.normal(jax.random.key(0), shape).astype(dtype)
    w = (jax.random.normal(jax.random.key(1), (batches, inner, inner)) * inner**-0.5).astype(dtype)
    amount = 2.0 * count * x.size * inner
    return Work(partial(_chain, count, x, w), amount)


@partial(jax.jit, static_argnums=0)
def _chain(count: int, x: jax.Array, w: jax.Array) -> jax.Array:
    product = partial(jnp.matmul, precision="highest")  # float32 stays float32; no effect on float16
    return jax.lax.fori_loop(0, count, lambda _, x: product(x, w), x)


def copies() -> Work:
    """Return a copy larger than any cache; read and written bytes both count."""
    x = jnp.ones(2**29 if on_gpu() else 2**26, jnp.float32)
    return Work(partial(_copy, x), 2.0 * x.nbytes)


@jax.jit
def _copy(x: jax.Array) -> jax.Array:
    return x * 1.0001  # not a mere alias of the input


def rows(quick: bool) -> list[Row]:
    """Return the table's rows on the machine itself."""
    seeds, batch, hidden = (10, 2048, 256) if on_gpu() else (1, 1024, 256)
    shape = f"{seeds} × ({batch:,} × {hidden}) · ({hidden} × {hidden})"
    dtypes = [jnp.dtype(jnp.float32)] + [network_dtype()] * (network_dtype() != jnp.float32)
    works = {"copy": copies()}
    for dtype in dtypes:
        works[f"square matmul, {dtype}"] = square_products(dtype)
        works[f"network's matmul, {dtype}"] = network_products(seeds, batch, hidden, dtype)
    seconds = medians({name: work.call for name, work in works.items()}, 3 if quick else 9)
    rates = {name: work.amount / seconds[name] for name, work in works.items()}
    result = [Row(SECTION, "copy, read and write", rates["copy"] / 1e9, "GB/s")]
    for dtype in dtypes:
        square, own = rates[f"square matmul, {dtype}"], rates[f"network's matmul, {dtype}"]
        result.append(Row(SECTION, f"matmul {dtype}, large and square", square / 1e9, "GFLOP/s"))
        of = "the square one's rate"
        result.append(Row(SECTION, f"matmul {dtype}, {shape}", own / 1e9, "GFLOP/s", own / square, of))
        balance = square / rates["copy"]
        result.append(
            Row(SECTION, f"{dtype} operations a byte copied", balance, "", note=_meaning(balance, hidden))
        )
    return result


def _meaning(balance: float, hidden: int) -> str:
    """Return where a layer that goes through memory stands against the machine's balance."""
    own = 2.0 * hidden**2 / (8.0 * hidden)  # a row: 2H² operations, H float32 numbers in and out
    return f"a {hidden}-wide layer through memory has {number(own)}"
