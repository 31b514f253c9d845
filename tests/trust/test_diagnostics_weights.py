from dataclasses import replace

import numpy as np
import pytest

from kmifqe.estimators.base import Estimate
from kmifqe.trust.checks.weights import weight_diagnostics

FACTS = {
    "rows_in_sample": 5000,
    "raw_effective_rows": 800.0,
    "raw_mean_weight": 1.0,
    "raw_mean_weight_error": 0.01,
    "weight_cut_off": 0.0,
    "clipped_high": 0.0,
    "floor_weight_share": 0.0,
    "clipped_low": 0.4,
    "kernel_outside": 0.0,
    "metric_condition_quantiles": [1.0, 2.0, 8.0],
    "kernel_bias": 0.01,
}
SOUND = Estimate(
    estimator="kmifqe",
    config={"clip": [1e-3, 10.0], "bandwidth": None, "bandwidth_bounds": [0.01, 2.0]},
    gamma=0.9,
    seeds=(0, 1),
    steps=1000,
    values=np.array([-1.0, -1.1]),
    recorded_steps=np.arange(50, 1001, 50),
    trajectory=np.full((20, 2), -1.0),
    infos={"h": np.full((20, 2), 0.3)},
    seconds=1.0,
    device="cpu",
)


def found(estimate=SOUND, half_width=0.1, **facts):
    return {d.name: d for d in weight_diagnostics(estimate, FACTS | facts, half_width)}


def test_sound_weights_raise_no_alarm():
    assert {d.level for d in found().values()} == {"ok"}


@pytest.mark.parametrize(
    "name, fact, care, bad",
    [
        ("effective_rows", "raw_effective_rows", 60, 10),
        ("clipped_high", "weight_cut_off", 0.4, 0.95),
        ("clipped_low", "floor_weight_share", 0.3, 0.8),
        ("kernel_outside", "kernel_outside", 0.7, 0.95),
        ("kernel_bias", "kernel_bias", -0.2, 0.6),
    ],
)
def test_each_fault_has_its_name(name, fact, care, bad):
    for value, level in ((care, "care"), (bad, "bad")):
        told = found(**{fact: value})
        assert told[name].level == level
        assert told[name].line


def test_the_mean_weight_is_held_against_the_kernel_s_mass_where_actions_are():
    assert found(raw_mean_weight=0.55, kernel_outside=0.45)["mean_weight"].level == "ok"
    assert found(raw_mean_weight=0.55)["mean_weight"].level == "bad"
    assert found(raw_mean_weight=1.15)["mean_weight"].level == "care"


def test_a_mean_weight_is_no_proof_within_its_error_or_over_few_rows():
    assert found(raw_mean_weight=0.5, raw_mean_weight_error=0.13)["mean_weight"].level == "ok"
    assert found(raw_mean_weight=0.5, raw_effective_rows=40.0)["mean_weight"].level == "ok"


def with_bandwidths(h, **config):
    infos = {"h": np.tile(np.asarray(h, float)[:, None], (1, 2))}
    return replace(SOUND, infos=infos, config=SOUND.config | config)


def test_a_bandwidth_that_still_moves_or_sits_on_its_bound_is_told():
    falling = np.exp(-np.linspace(0, 4, 20))
    assert found(with_bandwidths(falling))["bandwidth"].level == "care"
    at_bound = found(with_bandwidths(np.full(20, 2.0)))["bandwidth"]
    assert at_bound.level == "care"
    assert "ended at its bound" in at_bound.line
    assert found(with_bandwidths(np.full(20, 2.0), bandwidth=2.0))["bandwidth"].level == "ok"


def test_a_bandwidth_that_scatters_about_a_constant_has_settled():
    scatter = 0.3 * np.exp(0.2 * np.random.default_rng(0).standard_normal(100))
    long = replace(with_bandwidths(scatter), recorded_steps=np.arange(10, 1001, 10))
    assert found(long)["bandwidth"].level == "ok"


def test_without_an_interval_the_bias_is_not_judged():
    assert "kernel_bias" not in found(half_width=None)


def moving(*values, **config):
    trajectory = np.repeat(np.asarray(values, float), 20 // len(values))[:, None] * np.ones(2)
    bias = {"bias": np.full((20, 2), -0.25)}
    return replace(
        SOUND,
        trajectory=trajectory,
        values=trajectory[-1],
        infos=SOUND.infos | bias,
        config=SOUND.config | config,
    )


def test_a_bias_that_is_taken_off_is_judged_by_how_far_it_moves_the_value():
    held = {"bias": "held", "bias_step": 500}
    for end, level in ((-1.05, "ok"), (-0.8, "care"), (-0.4, "bad")):
        told = found(moving(-1.0, end, **held), kernel_bias=9.0)
        assert told["bias_taken_off"].level == level
        assert "kernel_bias" not in told  # it is in V̂ no longer
    assert told["bias_taken_off"].line.startswith("taking the kernel's bias off moved V̂ by +0.6, 6 times")
    for share, moved in ((1.0, "+0.25"), (0.4, "+0.1")):
        subtracted = found(moving(-1.0, -1.0, bias="subtracted", bias_share=share))["bias_taken_off"]
        assert subtracted.line.startswith(f"taking the kernel's bias off moved V̂ by {moved},")


def test_a_bias_that_is_still_to_be_taken_off_is_judged_as_one_that_is_there():
    for config in ({"bias": "held", "bias_step": 1_000}, {"bias": "ignored", "bias_step": 0}, {}):
        assert {"kernel_bias", "bias_taken_off"} & set(found(moving(-1.0, -0.4, **config))) == {"kernel_bias"}
