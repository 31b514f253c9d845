from kmifqe.report.terminal import verdict_lines
from kmifqe.trust.verdict import Verdict


def test_every_verdict_that_is_no_praise_has_its_weightiest_reasons():
    reasons = tuple(f"reason [{i}]" for i in range(6))
    verdicts = {"kmifqe": Verdict("do not use", reasons), "fqe": Verdict("trustworthy", ())}
    lines = verdict_lines(verdicts)
    assert lines[0] == "kmifqe: [red]do not use[/]"
    assert lines[1] == "  · reason [0]"  # what is no markup is not escaped
    assert lines[5:] == ["  · and 2 more in result.json"]  # the table says the other verdict
