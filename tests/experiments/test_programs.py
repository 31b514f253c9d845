"""The process keeps its compiled programs until they are too many for it."""

import jax
import jax.numpy as jnp
import pytest

from kmifqe.experiments import drive as programs


@pytest.fixture
def compilations():
    """Return a function that runs a compiled program and tells how often it was traced."""
    traced = []

    @jax.jit
    def program(x):
        traced.append(x)
        return 2 * x

    def run():
        program(jnp.float32(1.0))
        return len(traced)

    return run


@pytest.mark.parametrize("limit, expected", [("65530", 1), ("9", 2)])
def test_programs_are_dropped_only_near_the_systems_limit(
    tmp_path, monkeypatch, compilations, limit, expected
):
    (tmp_path / "maps").write_text("a map\n" * 4)
    (tmp_path / "limit").write_text(f"{limit}\n")
    monkeypatch.setattr(programs, "MAPS", tmp_path / "maps")
    monkeypatch.setattr(programs, "LIMIT", tmp_path / "limit")
    assert compilations() == 1
    programs.drop_programs_if_many()
    assert compilations() == expected


def test_a_system_without_the_limit_keeps_its_programs(tmp_path, monkeypatch, compilations):
    monkeypatch.setattr(programs, "MAPS", tmp_path / "none")
    assert compilations() == 1
    programs.drop_programs_if_many()
    assert compilations() == 1
