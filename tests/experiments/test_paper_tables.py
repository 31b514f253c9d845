from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.experiments.context import Context
from kmifqe.experiments.paper_tables import (
    LIKELIHOODS,
    MARKED,
    PIECES,
    POLICY_VALUES,
    TABLE1,
    bias_table,
    conditions_line,
    error_table,
    fill_page,
    filled,
    judged_table,
    likelihood_table,
    means_table,
    missing_line,
    piece_text,
    policies_table,
    render,
    score_line,
    values_table,
)
from kmifqe.experiments.presets import METHODS, preset_named, row_named, table_rows
from kmifqe.experiments.records import (
    RESULTS,
    LikelihoodRecord,
    Place,
    PolicyValue,
    is_done,
    read_records,
    write_record,
)
from kmifqe.experiments.table1 import method_settings

ROOT = Path(__file__).parents[2]
PAGES = tuple(ROOT / "docs" / name for name in ("evidence/reproduction.md", "evidence/ranking.md"))


def error(rmse, standard_error=0.01, truth=2.0, bias=-0.5, diverged=0):
    return {
        "rmse": rmse,
        "standard_error": standard_error,
        "truth": truth,
        "bias": bias,
        "spread": 0.25,
        "diverged": diverged,
    }


def record(row, method, rmse, standard_error=0.01, **more):
    fields = {
        "values": np.zeros(10),
        "errors": {"population": error(rmse, standard_error)},
        "policies": {
            "target": PolicyValue(R=100.0, R_standard_error=2.0, V=2.0, V_standard_error=0.125, episodes=1000)
        },
        "counts": {},
        "truth": {},
        "discounted_return": 0.0,
        "trajectory": {},
    }
    place = Place("smoke", "table1", row, method)
    made = place.record({}, 1800.0, **fields | more)
    made.created, made.versions, made.device = "2030-01-02T03:04:05+00:00", {"kmifqe": "1", "jax": "2"}, "cpu"
    return made


def cells(table, *start):
    """Return the cells of the first line that begins with these."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return next(line[len(start) :] for line in lines if tuple(line[: len(start)]) == start)


def test_our_errors_stand_above_the_papers():
    table = error_table([record("hopper", "kmifqe-paper", 0.5), record("hopper", "sr-dice", 0.25, None)])
    assert cells(table, "hopper", "population") == ["0.500 ± 0.010", "–", "–", "–", "–", "0.250", "–"]
    assert cells(table, "", "paper") == [
        "0.023 ± 0.006",
        "0.034 ± 0.009",
        "–",
        "0.083 ± 0.011",
        "–",
        "0.129 ± 0.023",
        "–",
    ]


def test_a_regenerated_row_stands_beside_d4rls_and_says_whose_it_is():
    table = error_table([record("hopper-medium-replay-regenerated", "kmifqe-paper", 0.5)])
    assert cells(table, "", "paper, D4RL")[0] == "0.536 ± 0.099"


def test_pendulum_shows_both_truths_and_the_paper_beside_the_population():
    both = {"population": error(0.3), "logged_first_states": error(0.2)}
    table = error_table([record("pendulum", "kmifqe", 0.3, errors=both)])
    assert [line.split("|")[2].strip() for line in table.splitlines()[2:]] == [
        "logged first states",
        "population",
        "paper",
    ]


def test_rows_come_in_the_papers_order():
    table = error_table(
        [record(row, "kmifqe", 1.0) for row in ("humanoid", "hopper-medium-expert", "hopper")]
    )
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert [row for row in rows if row] == ["hopper", "humanoid", "hopper-medium-expert"]


def test_a_method_that_diverged_is_said_to_have():
    diverged = record("ant", "fqe", None, errors={"population": error(None, None, diverged=3)})
    assert cells(error_table([diverged]), "ant", "population")[4] == "diverged (3 of 10)"


def test_bias_has_its_sign_and_the_seeds_spread():
    assert cells(bias_table([record("ant", "fqe", 1.0)]), "ant")[6] == "-0.500 ± 0.250"


def scored(row, method, errors):
    """Return a record whose seeds miss the truth by these errors."""
    values = np.array([math.nan if e is None else 2.0 + e for e in errors])
    return record(row, method, None, values=values)


def row_of(errors, row="ant"):
    """Return records of all methods: by method the errors of its seeds, or 99 with every seed."""
    return [scored(row, method, errors.get(method, (99.0, 99.0))) for method in METHODS]


# Two seeds a and b off: RMSE² = (a² + b²)/2, and its standard error is |a² − b²|/2 through the root. 0.3 ± 0.1 here:
TWO = (math.sqrt(0.09 + 0.06), math.sqrt(0.09 - 0.06))


@pytest.mark.parametrize("ours", ["kmifqe", "auto"])
@pytest.mark.parametrize(
    ("errors", "baseline", "good"),
    [
        ((0.1, 0.1), (0.2, 0.2), 1),
        (TWO, (0.21, 0.21), 1),
        (TWO, (0.19, 0.19), 0),
        ((9.0, 9.0), (0.1, None), 1),
    ],
)
def test_as_good_means_within_one_standard_error_of_the_difference(ours, errors, baseline, good):
    line = score_line(row_of({ours: errors, "fqe": baseline}))
    assert f"on {good} of 1 rows." in line
    assert ("Behind: ant." in line) == (not good)


def test_how_far_auto_is_behind_the_best_method_is_said():
    near = row_of({"auto": (0.3, 0.3), "fqe": (0.25, 0.25)})
    far = row_of({"auto": (0.8, 0.8), "sr-dice": (0.25, 0.25)}, "hopper")
    assert score_line(near).endswith("auto's RMSE is at most 1.20 times the best method's (ant).")
    assert score_line([*near, *far]).endswith(
        "at most 3.20 times the best method's (hopper); more than 1.5 times on hopper (3.20)."
    )


def test_a_row_that_lacks_a_method_is_not_scored():
    assert score_line(row_of({})[1:]).startswith("No row")
    assert "of 1 rows." in score_line([*row_of({}), *row_of({}, "hopper")[1:]])


def test_pendulum_is_scored_once_against_its_logged_first_states():
    both = {"population": error(None, truth=0.0), "logged_first_states": error(None, truth=1.0)}
    values = {"auto": 1.1, "fqe": 0.1}  # auto is the nearer one to the value of the logged first states only
    found = [
        record("pendulum", method, None, values=np.array([values.get(method, 99.0)] * 2), errors=both)
        for method in METHODS
    ]
    assert "on 1 of 1 rows." in score_line(found)


def test_means_over_networks_are_compared_with_means_over_as_many():
    # Ours scatters around the truth, the baseline misses it by 0.5 with every seed.
    ours = [0.01 + sign for sign in (-1.0, 1.0) * 5]
    ten = {method: [99.0] * 10 for method in METHODS} | {"auto": ours, "fqe": [0.5] * 10}
    records = row_of(ten)
    line = score_line(records)
    assert "on 0 of 1 rows. Behind: ant." in line
    assert "alike: 0 over 2, 1 over 4, 1 over 10." in line
    assert "means" not in score_line(row_of({"auto": [0.1], "fqe": [0.2]}))
    # s² = 10/9: RMSE² = 0.01² + 10/9 (1/4 − 1/10) = 0.1668
    means = dict(zip(METHODS, cells(means_table(records), "ant", "population")))
    assert means["auto"].startswith("0.408 ±")
    assert means["fqe"] == "0.500 ± 0.000"
    assert cells(means_table([scored("ant", "fqe", [0.5] * 3)]), "ant", "population") == ["–"] * len(METHODS)


def test_what_evaluate_would_say_of_a_row_stands_in_a_table_of_its_own():
    said = record("ant", "auto", 1.0, values=np.array([1.0, 2.0]), interval=(1.0, 2.5), verdict="trustworthy")
    table = judged_table([said, record("ant", "fqe-paper", 1.0)])
    assert cells(table, "ant", "2.000") == ["–", "–", "1.500 (1.000 … 2.500), trustworthy"]
    assert "hopper" not in judged_table([record("hopper", "fqe-paper", 1.0)])


def test_policy_values_carry_their_errors():
    table = values_table([record("hopper", "kmifqe", 0.5)])
    assert cells(table, "hopper", "1,000 episodes") == ["100 ± 2", "–", "–", "2.000 ± 0.125", "–", "–"]
    assert cells(table, "", "paper") == ["2600", "2054", "–", "2.571", "2.553", "2.506"]


def test_the_chosen_component_count_is_bold():
    entries = [{"components": c, "log_likelihood": 0.5 * c, "standard_error": 0.25} for c in (10, 20)]
    row = "hopper-medium-expert-regenerated"
    rest = dict.fromkeys(LikelihoodRecord.__struct_fields__[-13:])
    fields = rest | {"table": entries, "chosen": 20, "held_out_episodes": 7}
    told = Place("smoke", "loglik", row, "tanh-mixture").record({}, 1.0, **fields)
    table = likelihood_table([told])
    assert cells(table, row, "7 episodes held out") == ["5.000 ± 0.250", "**10.000 ± 0.250**"]
    assert cells(table, "", "paper, D4RL") == ["2.089 ± 0.002", "2.114 ± 0.002"]


def test_training_is_shown_with_the_level_reached():
    target = {"steps": 1000, "episode_return": 3000.0, "standard_error": 10.0}
    choice = {
        "target": target,
        "behavior": target | {"steps": 400, "episode_return": 2250.0},
        "behavior_level": 0.75,
    }
    table = policies_table({"hopper": choice, "ant": choice | {"behavior": None, "behavior_level": None}})
    assert cells(table, "hopper") == ["1,000", "3000 ± 10", "400", "2250 ± 10", "75%"]
    assert cells(table, "ant")[2:] == ["–", "–", "–"]


def test_conditions_name_the_device_and_the_hours():
    line = conditions_line([record("ant", "fqe", 1.0), record("ant", "kmifqe", 1.0)])
    assert line == "2 records, 2030-01-02; cpu; kmifqe 1, jax 2; 1.00 hours of running in all."


def test_a_method_that_was_run_on_another_log_than_the_others_is_named():
    three = [record("ant", method, 1.0, counts={"rows": 9}) for method in ("fqe", "kmifqe", "sr-dice")]
    assert conditions_line(three).endswith(" in all.")
    other = [*three[:2], record("ant", "sr-dice", 1.0, counts={"rows": 8})]
    assert conditions_line(other).endswith(
        " By its rows or truth, another log of the same seed: ant (sr-dice)."
    )
    other = [*three[:2], record("ant", "sr-dice", 1.0, counts={"rows": 9}, truth={"population": 7.0})]
    assert conditions_line(other).endswith(
        " By its rows or truth, another log of the same seed: ant (sr-dice)."
    )


def test_the_papers_numbers_are_whole():
    assert len(TABLE1) == 12
    assert len(LIKELIHOODS) == len(POLICY_VALUES) == 6
    assert TABLE1["walker2d"]["fqe-paper"] == (241.319, 49.248)
    assert max(LIKELIHOODS["walker2d-medium-expert"].items(), key=lambda item: item[1][0])[0] == 30


@pytest.fixture
def results(tmp_path):
    """Return a root with one record of Table 1."""
    made = record("pendulum", "sr-dice", 0.354, 0.25, values=np.array([1.0, 1.5]), policies={})
    write_record(made, Place("smoke", "table1", "pendulum", "sr-dice").path(tmp_path / "results"))
    return tmp_path / "results"


def test_the_pages_say_what_the_committed_records_say():
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    assert {found[2] for text in texts.values() for found in MARKED.finditer(text)} == {*PIECES, "missing"}
    for page, text in texts.items():
        assert filled(text, ROOT / RESULTS) == text, (
            f"stale: kmifqe reproduce render --preset fast --page {page.relative_to(ROOT)}"
        )


def test_a_committed_record_of_the_table_is_not_made_again(tmp_path):
    """A new setting, or a new field of one, would let `--resume` forget hours of a GPU."""
    for preset in ("small", "fast"):
        context = Context(preset_named(preset), results=ROOT / RESULTS, work=tmp_path, resume=True)
        for name in table_rows(context.preset):
            for method, settings in method_settings(row_named(name), context).items():
                path = context.place("table1", name, method).path(ROOT / RESULTS)
                assert not path.exists() or is_done(
                    ROOT / RESULTS, context.place("table1", name, method), settings
                ), path


def test_committed_records_are_small_and_regenerable():
    for found in read_records(ROOT / RESULTS):
        assert found.command.startswith(f"kmifqe reproduce {found.experiment} --preset {found.preset} ")
    assert all(path.stat().st_size < 50_000 for path in (ROOT / RESULTS).glob("*/*/*/*.json"))


def test_a_page_is_filled_between_its_markers_and_nowhere_else(results, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- records: errors smoke -->\nold\n<!-- end of records -->\nafter\n")
    fill_page(page, results)
    text = page.read_text()
    assert text.startswith("before\n<!-- records: errors smoke -->\n\n| row | against |")
    assert text.endswith("|\n\n<!-- end of records -->\nafter\n")
    assert "| pendulum | population | – |" in text
    assert "old" not in text
    fill_page(page, results)
    assert page.read_text() == text


def test_what_is_missing_is_named(results):
    line = missing_line(results, "smoke")
    assert line.startswith(
        "Not run yet with preset smoke: pendulum (kmifqe-paper, kmifqe-identity, fqe-paper); hopper (all"
    )
    assert missing_line(results, "fast").count("(all methods)") == 12
    assert piece_text(results, "likelihoods", "smoke") == (
        "No records of `kmifqe reproduce loglik --preset smoke` yet."
    )


def test_a_preset_without_records_and_an_unknown_table_are_refused(results, tmp_path):
    with pytest.raises(InputError, match="holds no experiment records"):
        render(results, tmp_path / "out", "fast")
    with pytest.raises(InputError, match="holds no experiment records"):
        render(tmp_path / "nowhere", tmp_path / "out", "smoke")
    with pytest.raises(InputError, match="'errata' is no table; expected one of conditions, errors"):
        piece_text(results, "errata", "smoke")
    with pytest.raises(InputError, match=r"nowhere\.md: no such file"):
        fill_page(tmp_path / "nowhere.md", results)


def test_the_tables_of_a_preset_are_written(results, tmp_path):
    assert render(results, tmp_path / "out", "smoke") == [tmp_path / "out" / "tables.md"]
    assert "0.354 ± " in (tmp_path / "out" / "tables.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["tables.md", "fig1a.png"])
def test_tables_and_figures_of_somebody_else_are_not_replaced(results, tmp_path, name):
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    with pytest.raises(InputError, match=name):
        render(results, out, "smoke")
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [(name, "mine")]


def test_a_page_that_is_a_pipe_or_no_text_is_refused(results, tmp_path):
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "latin.md").write_bytes(b"\xe9")
    for name in ("pipe.md", "latin.md"):
        with pytest.raises(InputError, match=name):
            fill_page(tmp_path / name, results)
