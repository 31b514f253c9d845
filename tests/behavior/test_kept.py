"""A fitted density is kept with its report, for the log it was fitted to and as it was written."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace

import numpy as np
import pytest

from kmifqe.behavior import FitConfig, fit_or_load
from kmifqe.behavior.fit import DENSITY_FILE, REPORT_FILE, _read_kept
from kmifqe.errors import InputError
from kmifqe.mdp.transitions import Transitions

TINY = FitConfig(components=(2, 3), hidden=(4,), batch=16, steps=4, check_every=2)
BOX = {"low": np.array([-1.0]), "high": np.array([1.0])}


@pytest.fixture(scope="module")
def log():
    rng = np.random.default_rng(0)
    arrays = (rng.normal(size=(60, 2)), rng.uniform(-1, 1, (60, 1)), np.zeros(60), np.arange(60) % 20 == 19)
    return Transitions.from_arrays(*arrays)


@pytest.fixture
def kept(tmp_path, log):
    return fit_or_load(tmp_path, log, **BOX, config=TINY)


def test_a_second_call_returns_the_same_density_and_report(tmp_path, log, kept):
    again = fit_or_load(tmp_path, log, **BOX, config=TINY)
    assert (kept.is_kept, again.is_kept) == (False, True)
    assert json.dumps(again.report.as_record()) == json.dumps(kept.report.as_record())
    assert again.report.seconds == kept.report.seconds > 0
    assert again.report.components == kept.report.components == (2, 3)
    first, second = (each.density.log_prob(log.states, log.actions) for each in (kept, again))
    assert first.tobytes() == second.tobytes()


def test_without_a_folder_nothing_is_kept(tmp_path, log, kept):
    fitted = fit_or_load(None, log, **BOX, config=TINY)
    assert not fitted.is_kept
    np.testing.assert_array_equal(
        fitted.density.log_prob(log.states, log.actions), kept.density.log_prob(log.states, log.actions)
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [DENSITY_FILE, REPORT_FILE]


@pytest.mark.parametrize(
    "name, change",
    [
        ("states", lambda log, box: (replace(log, states=log.states + 1), box, TINY)),
        ("episode", lambda log, box: (replace(log, episode=log.episode // 2), box, TINY)),
        ("low", lambda log, box: (log, box | {"low": np.array([-2.0])}, TINY)),
        ("high", lambda log, box: (log, {}, TINY)),
        ("config", lambda log, box: (log, box, replace(TINY, seed=1))),
    ],
)
def test_other_data_is_refused_by_name(tmp_path, log, kept, name, change):
    transitions, box, config = change(log, BOX)
    with pytest.raises(InputError, match=f"was fitted to other data: .*{name}.* differ"):
        fit_or_load(tmp_path, transitions, **box, config=config)
    assert not fit_or_load(tmp_path, transitions, **box, config=config, afresh=True).is_kept
    assert fit_or_load(tmp_path, transitions, **box, config=config).is_kept


@pytest.mark.parametrize("name", [DENSITY_FILE, REPORT_FILE])
@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b'{"sch')])
def test_what_is_missing_cut_or_changed_is_fitted_again(tmp_path, log, kept, name, damage):
    damage(tmp_path / name)
    assert not fit_or_load(tmp_path, log, **BOX, config=TINY).is_kept
    assert fit_or_load(tmp_path, log, **BOX, config=TINY).is_kept


def test_another_schema_is_refused(tmp_path, log, kept):
    record = json.loads((tmp_path / REPORT_FILE).read_text()) | {"schema": "kmifqe.behavior_fit/9"}
    (tmp_path / REPORT_FILE).write_text(json.dumps(record))
    with pytest.raises(InputError, match="behavior_fit/9"):
        fit_or_load(tmp_path, log, **BOX, config=TINY)


def test_a_flipped_bit_of_the_report_is_noticed(tmp_path, log, kept):
    path = tmp_path / REPORT_FILE
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    places = rng.choice(np.arange(whole.index(b"report"), len(whole)), 40, replace=False)
    fitted = json.dumps(kept.report.as_record())
    for place in places:
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << rng.integers(7)
        path.write_bytes(spoilt)
        found = _read_kept(tmp_path, json.loads(whole)["fitted_on"])
        assert found is None or json.dumps(found.as_record()) == fitted  # white space may change


def test_a_digit_that_was_changed_by_hand_is_noticed(tmp_path, log, kept):
    record = json.loads((tmp_path / REPORT_FILE).read_text())
    record["report"]["log_likelihood"][0][0] += 0.001
    (tmp_path / REPORT_FILE).write_text(json.dumps(record))
    assert not fit_or_load(tmp_path, log, **BOX, config=TINY).is_kept


def test_both_files_have_the_mode_that_the_user_asks_for(tmp_path, log):
    for mask, mode in ((0o022, 0o644), (0o077, 0o600)):
        before = os.umask(mask)
        try:
            fit_or_load(tmp_path, log, **BOX, config=TINY, afresh=True)
        finally:
            os.umask(before)
        modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in (DENSITY_FILE, REPORT_FILE)}
        assert modes == {mode}
