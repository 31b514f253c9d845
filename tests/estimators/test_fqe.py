"""FQE against exact solutions."""

from __future__ import annotations

import pytest

from estimators.small import (
    chain_problem,
    chain_value,
    lqr_problem,
    quick,
    run,
    tabular_problem,
    tabular_value,
)

either = pytest.mark.parametrize("name", ["fqe", "fqe-paper"])


@either
@pytest.mark.parametrize("gamma", [0.0, 0.8])
def test_equals_the_linear_solve_on_a_table(name: str, gamma: float) -> None:
    result = run(quick(name), tabular_problem(gamma))
    assert result.values == pytest.approx(tabular_value(gamma), abs=5e-3)


@either
@pytest.mark.parametrize("gamma", [0.0, 0.8])
def test_recovers_the_value_of_the_linear_quadratic_world(name: str, gamma: float) -> None:
    problem, _, truth = lqr_problem(gamma)
    result = run(quick(name), problem)
    # 0.04 is a tenth of what separates the target from the log's mean reward.
    assert abs(result.value - truth) < 0.04
    assert result.spread < 0.04


@either
@pytest.mark.parametrize("terminated", [True, False])
def test_only_the_flag_of_the_last_row_tells_an_end_from_a_cut(name: str, terminated: bool) -> None:
    result = run(quick(name), chain_problem(terminated=terminated))
    assert result.value == pytest.approx(chain_value(terminated=terminated), abs=0.03)
