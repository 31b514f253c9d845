import numpy as np
import pytest
from rich.console import Console

from kmifqe.estimators.base import Estimate
from kmifqe.report.terminal import estimates_table


def estimate(name, values, **infos):
    records = 4
    return Estimate(
        estimator=name,
        config={},
        gamma=0.5,
        seeds=tuple(range(len(values))),
        steps=40,
        values=np.asarray(values, float),
        recorded_steps=np.arange(1, records + 1) * 10,
        trajectory=np.tile(np.asarray(values, float), (records, 1)),
        infos={key: np.full((records, len(values)), value) for key, value in infos.items()},
        seconds=12.3,
        device="cpu",
    )


def shown(table):
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_table_fits_eighty_columns_and_marks_the_closest():
    text = shown(
        estimates_table(
            [estimate("kmifqe-identity", [-4.5, -4.3], h=0.3, ess=5566.0), estimate("fqe", [-4.1, -4.1])],
            -4.0,
        )
    )
    rows = {line.split()[1]: line for line in text.splitlines() if "±" in line and "│" in line}
    assert "-4.400 ± 0.141" in rows["kmifqe-identity"]
    assert "0.400" in rows["kmifqe-identity"]
    assert "5,566" in rows["kmifqe-identity"]
    assert "◂" in rows["fqe"]
    assert "◂" not in rows["kmifqe-identity"]


def test_without_a_truth_the_return_is_shown_instead():
    text = shown(estimates_table([estimate("fqe", [-4.1, -4.1])]))
    assert "-8.20" in text
    assert "error" not in text


def test_a_diverged_estimator_does_not_hide_the_others():
    text = shown(estimates_table([estimate("fqe", [np.nan, np.nan]), estimate("kmifqe", [-4.0, -4.0])], -4.1))
    assert "nan" in text
    assert next(line for line in text.splitlines() if "◂" in line).split()[1] == "kmifqe"


def test_one_diverged_seed_is_starred_and_does_not_poison_the_rest():
    text = shown(estimates_table([estimate("kmifqe-identity", [-4.5, np.nan, -4.3], h=0.3, ess=5.0)], -4.0))
    assert "-4.400 ± 0.141 *" in text
    assert "nan" not in text
    assert "◂" in text


@pytest.mark.parametrize(
    "values, text, returned",
    [
        ([1e-6, 3e-6], "2e-06 ± 1.41e-06", "4e-06"),
        ([1e6, 3e6], "2e+06 ± 1.41e+06", "4e+06"),
        ([0.0, 0.0], "0.000 ± 0.000", "0.00"),
    ],
)
def test_values_of_any_scale_are_readable(values, text, returned):
    row = shown(estimates_table([estimate("fqe", values)]))
    assert text in row
    assert f" {returned} " in row
