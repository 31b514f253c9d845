"""Bytes per transition, from the shapes of the real programs, beside the formulas of docs/guides/memory.md."""

from __future__ import annotations

import jax

from kmifqe.estimators import make_estimator
from memory import SIZES, bytes_of, shapes_of_problem
from records import Row

SECTION = "memory"
FEW, MANY = 1_000_000, 10_000_000


def rows(quick: bool) -> list[Row]:
    """Return bytes a transition of the problem and of a seed, and what ten million transitions take."""
    result = []
    for q, d in SIZES:
        small, large = shapes_of_problem(FEW, q, d), shapes_of_problem(MANY, q, d)
        of_problem = (bytes_of(large) - bytes_of(small)) / (MANY - FEW)
        state = jax.eval_shape(make_estimator("kmifqe", "mujoco").init, jax.random.key(0), large)
        of_seed = bytes_of(state.table) / MANY + bytes_of(state.envelope) / MANY
        formula = 8 * q + 16 * d + 14
        what = f"({q}, {d}) data, a transition"
        result.append(Row(SECTION, what, of_problem, "bytes", of_problem / formula, "8q + 16d + 14"))
        what = f"({q}, {d}) KMIFQE, a transition and seed"
        result.append(Row(SECTION, what, of_seed, "bytes", of_seed / (4 * d + 16), "4d + 16"))
        total = MANY * (of_problem + of_seed) / 2**30
        what = f"({q}, {d}) {MANY:,} transitions, data and one seed"
        result.append(Row(SECTION, what, total, "GiB", total / 8, "8 GiB"))
    return result
