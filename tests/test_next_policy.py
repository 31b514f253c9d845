"""Online returns by file, and which policy of a ranking they leave to be tried."""

import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.ranking import next_policy
from report.small_ranking import small_ranking


def test_a_file_of_returns_is_normalised_and_moves_the_choice(tmp_path) -> None:
    ranking = small_ranking()
    first, last = ranking.ranking[0], ranking.ranking[-1]
    file = tmp_path / "returns.csv"
    file.write_text("policy,discounted_return\n")
    before = next_policy(ranking, file)
    assert before.best == first.policy
    assert set(before.episodes) == {0}
    np.testing.assert_allclose(before.posterior.mean, [each.value for each in ranking.ranking])
    # After many episodes the value of the policy that was played is their mean, in the ranking's unit.
    value = last.value + ranking.logged.return_std
    discounted = value / (1.0 - ranking.question.gamma)
    file.write_text("policy,discounted_return\n" + f"{last.policy},{discounted}\n" * 10_000)
    after = next_policy(ranking, file)
    assert after.episodes[-1] == 10_000
    assert abs(after.posterior.mean[-1] - value) < 3 * after.posterior.std[-1]
    assert after.posterior.std[-1] < 0.2 * before.posterior.std[-1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "policy,return\na,1\n",
        "policy,discounted_return\na,much\n",
        "policy,discounted_return\na,inf\n",
        "policy,discounted_return\n,1\n",
    ],
)
def test_other_files_are_refused_with_what_is_expected(tmp_path, text) -> None:
    file = tmp_path / "returns.csv"
    file.write_text(text)
    with pytest.raises(InputError, match="discounted_return, a line for every episode"):
        next_policy(small_ranking(), file)


def test_returns_of_a_policy_that_is_not_ranked_are_refused() -> None:
    with pytest.raises(InputError, match="that is ranked"):
        next_policy(small_ranking(), {"stranger": [1.0]})
