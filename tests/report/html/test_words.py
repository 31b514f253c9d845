"""The sentences say what the record says, and what it does not."""

from kmifqe.report.html import words
from kmifqe.report.html.source import read_run
from report.html.small import small_estimate, small_run


def test_the_headline_has_value_and_interval(tmp_path):
    run = read_run(small_run(tmp_path))
    assert words.headline(run) == "The policy is worth −3.790 per step (90 % interval −3.950 to −3.620)."
    assert words.discounted(run) == "As a discounted return: −37.90 (−39.50 to −36.20), with γ = 0.9."
    assert words.provenance(run).startswith(
        "Judged by KMIFQE from 2,000 logged steps in 100 episodes, 2 seeds"
    )
    assert words.missing_trust(run) == []


def test_the_truth_is_compared_with_value_and_interval(tmp_path):
    run = read_run(small_run(tmp_path))
    assert words.truth_words(run, -3.7).endswith("so the error is −0.090; the interval holds it.")
    assert words.truth_words(run, -3.5).endswith("the interval misses it.")


def test_what_is_missing_is_said(tmp_path):
    plain = small_estimate("kmifqe") | {"interval": None}
    old = read_run(small_run(tmp_path, schema="kmifqe.result/1", estimates=[plain], verdict=None))
    assert words.headline(old) == "The policy is worth −3.790 per step."
    assert "without intervals, diagnostics and verdicts" in words.missing_trust(old)[0]
    new = read_run(small_run(tmp_path, estimates=[plain], verdict=None))
    assert [sentence[:11] for sentence in words.missing_trust(new)] == ["No interval", "No verdict "]
    lost = plain | {"value": None, "values": [None, None]}
    run = read_run(small_run(tmp_path, estimates=[lost]))
    assert words.headline(run).startswith("There is no value: no seed of KMIFQE")


def test_minus_signs_are_true_and_hyphens_stay():
    assert (
        words.typeset("sr-dice says -2.3, (-1e-5) on 2026-01-02")
        == "sr-dice says −2.3, (−1e-5) on 2026-01-02"
    )
    assert words.show(None) == "–"
    assert words.show(-1234567.0) == "−1.23e+06"
