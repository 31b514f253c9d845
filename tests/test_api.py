"""`kmifqe.evaluate` and its result, on a world of known value."""

from __future__ import annotations

import io
import json
import sys
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from kmifqe import InputError, Result, Transitions, evaluate
from kmifqe.behavior import FitConfig, fit_behavior
from kmifqe.estimators.fit import Progress
from kmifqe.io.logs.save import save_dataset
from kmifqe.io.serialize import plain
from kmifqe.report.terminal import TerminalWatch
from kmifqe.report.watch import Watch, default_watch
from kmifqe.store import Interrupted
from kmifqe.worlds.lqr import LQR

from estimators.small import estimator_with, logged  # isort: skip

KERNEL = estimator_with("kmifqe", hidden=16, batch=64, target_period=10, learning_rate=3e-3)
BASELINE = estimator_with("fqe", hidden=16, batch=64)
STEPS = 60


@pytest.fixture(scope="module")
def world() -> LQR:
    return logged()[0]


@pytest.fixture(scope="module")
def told() -> list[Progress]:
    return []


@pytest.fixture(scope="module")
def result(world: LQR, told: list[Progress]) -> Result:
    log = logged()[1]
    return evaluate(
        log,
        world.policy,
        behavior=world.behavior,
        gamma=world.gamma,
        estimators=(KERNEL, BASELINE),
        steps=STEPS,
        seeds=3,
        level=0.8,
        on_progress=told.append,
    )


def test_the_headline_is_the_first_estimator(result: Result) -> None:
    assert result.value == result.estimate.value == result.estimates[0].value
    assert result.discounted_return == pytest.approx(result.value / (1 - 0.8))
    assert result.interval is result.intervals["kmifqe"]
    assert result.verdict is result.verdicts["kmifqe"]
    assert result["fqe"] is result.estimates[1]
    with pytest.raises(KeyError, match="sr-dice"):
        result["sr-dice"]


def test_every_seed_carries_episode_weights_so_there_is_an_interval(result: Result) -> None:
    assert all(estimate.bootstrap for estimate in result.estimates)
    for estimate in result.estimates:
        interval = result.intervals[estimate.estimator]
        assert interval is not None
        assert interval.level == 0.8
        assert interval.low < estimate.value < interval.high


def test_a_run_of_sixty_steps_is_not_called_trustworthy(result: Result) -> None:
    assert result.verdict.word != "trustworthy"
    assert "target_copies" in result.verdict.checks


def test_states_as_large_as_the_log_are_not_kept(result: Result) -> None:
    assert all(estimate.final_state is None for estimate in result.estimates)
    assert all(estimate.measurements for estimate in result.estimates)


def test_progress_of_all_estimators_is_told(result: Result, told: list[Progress]) -> None:
    assert [p.step for p in told if p.estimator == "fqe"][-1] == STEPS
    assert {p.estimator for p in told} == {"kmifqe", "fqe"}


def test_frames_hold_the_same_numbers(result: Result) -> None:
    pytest.importorskip("pandas")
    estimates = result.to_frame()
    assert list(estimates["estimator"]) == ["kmifqe", "fqe"]
    assert estimates["value"][0] == result.value
    assert result.interval is not None
    assert estimates["low"][0] == result.interval.low
    trajectories = result.to_frame("trajectories")
    ends = trajectories[(trajectories.estimator == "kmifqe") & (trajectories.step == STEPS)]
    np.testing.assert_allclose(ends["value"], result.estimate.values, rtol=1e-6)
    assert len(result.to_frame("checks")) == len(result.checks)
    with pytest.raises(InputError, match="'seeds' is unknown; expected one of estimates"):
        result.to_frame("seeds")  # type: ignore[arg-type]


def test_terminal_and_notebook_say_value_interval_and_verdict(result: Result) -> None:
    out = io.StringIO()
    Console(file=out, width=160).print(result)
    html = result._repr_html_()
    for shown in (out.getvalue(), html, repr(result)):
        assert result.verdict.word in shown
        assert f"{result.value:.3f}" in shown
    assert "80% interval" in html
    assert "80% interval" in repr(result)
    assert "<script" not in html


def test_the_plot_has_a_curve_for_every_estimator(result: Result) -> None:
    axes = result.plot(title="a title").axes[0]
    assert {"kmifqe", "fqe"} <= {text.get_text() for text in axes.get_legend().get_texts()}


def test_files_and_names_do_as_well(world: LQR, tmp_path: Path) -> None:
    log = logged()[1]
    save_dataset(log, tmp_path / "log.npz")
    from_file = evaluate(
        tmp_path / "log.npz", world.policy, gamma=world.gamma, estimators=["fqe"], steps=3, seeds=2
    )
    from_memory = evaluate(log, world.policy, gamma=world.gamma, estimators=["fqe"], steps=3, seeds=2)
    np.testing.assert_array_equal(from_file.estimate.values, from_memory.estimate.values)


def test_a_result_comes_back_from_its_folder_as_it_was(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path)
    again = Result.load(tmp_path)
    assert repr(again) == repr(result)
    assert again.question == result.question
    assert again.provenance == result.provenance
    assert (again.intervals, again.verdicts, again.checks) == (
        result.intervals,
        result.verdicts,
        result.checks,
    )
    for estimate, other in zip(result.estimates, again.estimates):
        for name in ("values", "trajectory", "recorded_steps"):
            np.testing.assert_array_equal(getattr(estimate, name), getattr(other, name))
        assert estimate.infos.keys() == other.infos.keys()
        assert estimate.measurements == other.measurements
    assert again.to_record() == result.to_record()


def test_the_record_has_the_figures_that_follow_and_keeps_to_the_shipped_schema(result: Result) -> None:
    record = result.to_record()
    assert record["estimates"][0]["value"] == pytest.approx(result.value)
    assert record["estimates"][0]["discounted_return"] == pytest.approx(result.discounted_return)
    shipped = json.loads((files("kmifqe.report") / "result.schema.json").read_text(encoding="utf-8"))
    assert plain(Result.json_schema()) == shipped
    jsonschema.validate(record, shipped)
    wrong = record | {"estimates": [{**record["estimates"][0], "seeds": "three"}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, shipped)


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "cannot be read as JSON"),
        ("[]", "expected object"),
        (
            '{"schema": "kmifqe.result/2"}',
            "schema is 'kmifqe.result/2'.* this version reads 'kmifqe.result/3'",
        ),
        ('{"schema": "kmifqe.result/3"}', "missing required field"),
    ],
)
def test_what_is_no_result_is_refused_with_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        Result.load(tmp_path)
    assert str(tmp_path / "result.json") in str(refused.value)


def test_a_run_from_python_is_resumed_and_reported(world: LQR, tmp_path: Path) -> None:
    """What the command line does with a folder, a call with `out` does: snapshots, resume, report."""
    out, steps = tmp_path / "run", []
    asked = {"gamma": world.gamma, "estimators": (BASELINE,), "steps": 40, "seeds": 2}
    whole = evaluate(logged()[1], world.policy, **asked)

    def run(**options: Any) -> Result:
        return evaluate(logged()[1], world.policy, out=out, save_seconds=0, **asked, **options)

    with pytest.raises(Interrupted):
        run(stop_asked=lambda: len(steps) >= 20, on_progress=lambda p: steps.append(p.step))
    assert not (out / "result.json").exists()
    with pytest.raises(InputError, match="unfinished run"):
        run()
    again = run(resume=True, on_progress=lambda p: steps.append(p.step))
    assert steps == list(range(1, 41))  # no step is taken twice
    np.testing.assert_array_equal(again.estimate.trajectory, whole.estimate.trajectory)
    assert Result.load(out).value == whole.value
    assert (out / "report.html").exists()
    assert (out / "landscape.npz").exists()


def test_a_finished_run_is_not_resumed_with_another_policy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (200, 2))
    log = Transitions.from_arrays(
        rng.normal(size=(200, 2)), actions, actions @ [1.0, -1.0], np.zeros(200), np.arange(200) % 10 == 9
    )
    question: dict[str, Any] = {"gamma": 0.5, "estimators": (BASELINE,), "steps": 5, "seeds": 2}

    def constant(*action: float) -> Any:
        return lambda states: np.tile(np.float32(action), (len(states), 1))

    first = evaluate(log, constant(1.0, -1.0), out=tmp_path / "run", **question)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="another policy"):
        evaluate(log, constant(-1.0, 1.0), out=tmp_path / "run", resume=True, **question)
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before
    other = evaluate(log, constant(-1.0, 1.0), **question)
    ones, others = first.provenance.digests, other.provenance.digests
    assert ones["log"] == others["log"]
    assert ones["policy"] != others["policy"]
    assert Result.load(tmp_path / "run").provenance.digests == ones


@pytest.mark.parametrize("broken", ["save_figures", "Result.report"])
def test_a_picture_that_cannot_be_made_costs_a_warning_and_not_the_result(
    world: LQR, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    class Hearing(Watch):
        def warn(self, sentence: str) -> None:
            heard.append(sentence)

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("latex could not be found")

    heard: list[str] = []
    monkeypatch.setattr(f"kmifqe.api.{broken}", fail)
    question: dict[str, Any] = {"gamma": world.gamma, "estimators": (BASELINE,), "steps": 5, "seeds": 2}
    result = evaluate(logged()[1], world.policy, out=tmp_path / "run", watch=Hearing(), **question)
    assert Result.load(tmp_path / "run").value == result.value
    assert [("latex" in sentence, str(tmp_path / "run") in sentence) for sentence in heard] == [(True, True)]
    assert (tmp_path / "run" / "report.html").exists() == (broken == "save_figures")
    assert (tmp_path / "run" / "trajectories.png").exists() == (broken == "Result.report")


def test_a_fitted_density_has_its_floor_however_it_is_given(world: LQR, tmp_path: Path) -> None:
    log = logged()[1]
    density, _ = fit_behavior(
        log.states, log.actions, log.episode, config=FitConfig(components=(2,), hidden=(8,), steps=5)
    )
    density.save(tmp_path / "density.safetensors")
    asked = {"gamma": world.gamma, "estimators": ["kmifqe"], "steps": 2, "seeds": 2}
    asked["settings"] = ("hidden=8", "batch=16")
    results = [
        evaluate(log, world.policy, behavior=given, **asked)
        for given in (density, str(tmp_path / "density.safetensors"))
    ]
    assert [result.estimate.config["density_floor"] for result in results] == [1e-3, 1e-3]
    np.testing.assert_array_equal(*(result.estimate.values for result in results))


@pytest.mark.parametrize(
    "shell, shown", [(SimpleNamespace(kernel=object()), True), (object(), False), (None, False)]
)
def test_progress_is_shown_in_a_notebook(shell, shown, monkeypatch) -> None:
    """An imported IPython says nothing: it is the shell of a kernel that runs a notebook's cells."""
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert isinstance(default_watch(), TerminalWatch) == shown


def test_progress_is_silent_where_nobody_watches(world: LQR, capfd: pytest.CaptureFixture[str]) -> None:
    evaluate(logged()[1], world.policy, gamma=world.gamma, estimators=[BASELINE], steps=3, seeds=2)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "estimators, message",
    [((), "estimators are none"), ((BASELINE, BASELINE), "fqe, fqe; expected at least one, each once")],
)
def test_estimators_are_named_once(world: LQR, estimators: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(logged()[1], world.policy, gamma=0.8, estimators=estimators)
