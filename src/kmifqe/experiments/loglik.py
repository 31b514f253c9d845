"""The appendix's table of held-out log-likelihoods: how well each component count explains a log's actions."""

from __future__ import annotations

from kmifqe.experiments import rows as table
from kmifqe.experiments.context import Context
from kmifqe.experiments.data import data_settings, read_log
from kmifqe.experiments.data import prepare as collect_row
from kmifqe.experiments.density import fit_settings, fitted_density
from kmifqe.experiments.presets import Preset
from kmifqe.experiments.rows import row_named

EXPERIMENT = "loglik"
METHOD = "tanh-mixture"


def rows(preset: Preset) -> tuple[str, ...]:
    """Return the rows whose density is fitted."""
    return table.fitted_rows(preset)


file_rows = table.file_rows


def prepare(row: str, context: Context) -> None:
    """Collect the row's log and play its target."""
    collect_row(row, context)


def run(row: str, context: Context) -> None:
    """Fit the row's density, or take the fit that Table 1 made, and keep its report as a record."""
    of_data = data_settings(row_named(row), context)
    settings = fit_settings(context, of_data)
    if not context.wants(EXPERIMENT, row, METHOD, settings):
        return
    _, report = fitted_density(row, read_log(row, context), context, of_data)
    seconds = report.pop("seconds")
    context.keep(
        EXPERIMENT,
        row,
        METHOD,
        settings=settings,
        wall_seconds=seconds,
        packages=("gymnasium", "mujoco"),
        **report,
    )
