"""The behaviour density of a row where it is unknown: fitted once, and kept in the work folder."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from kmifqe.behavior import FitConfig, TanhMixture, fit_behavior
from kmifqe.experiments.context import Context, kept_json, settings_hash
from kmifqe.experiments.data import Log


def fit_config(context: Context) -> FitConfig:
    """Return how the preset fits densities."""
    return FitConfig(**context.preset.fit_settings)  # type: ignore[arg-type]


def fit_settings(context: Context, data: dict[str, Any]) -> dict[str, Any]:
    """Return everything that decides a fit, as JSON can hold it."""
    config = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(fit_config(context)).items()}
    return {"data": data, "fit": config}


def fitted_density(
    row: str, log: Log, context: Context, data: dict[str, Any]
) -> tuple[TanhMixture, dict[str, Any]]:
    """Return the density and its report with the seconds it took, from an earlier run where one was kept."""
    settings = fit_settings(context, data)
    folder = context.work / "density"
    path = folder / f"{row}-{settings_hash(settings)}.safetensors"

    def fit() -> dict[str, Any]:
        context.say(f"{row}: fitting the behaviour density")
        t, started = log.transitions, time.perf_counter()
        low, high = getattr(log.target, "low", None), getattr(log.target, "high", None)
        density, report = fit_behavior(t.states, t.actions, t.episode, low, high, fit_config(context))
        folder.mkdir(parents=True, exist_ok=True)
        density.save(path)
        return report.as_record() | {"seconds": time.perf_counter() - started}

    report = kept_json(folder, row, settings, fit)
    return TanhMixture.load(path), report
