import numpy as np
import pytest
from rich.console import Console

from kmifqe.estimators.base import Estimate
from kmifqe.report.tables import duration, estimates_table


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


@pytest.mark.parametrize("seconds, text", [(0.4, "0 s"), (99, "99 s"), (150, "2 min"), (7200, "2.0 h")])
def test_duration_as_a_person_says_it(seconds, text):
    assert duration(seconds) == text
