"""What stopping after a first estimate costs: four networks beside ten, read off the records of the study.

    python benchmarks/early_stop.py experiments/results/choosing/records.tar.xz
    python benchmarks/early_stop.py experiments/results/reporting/records.tar.xz

Problems of at most 40,000 rows count, whose first estimate is the first four networks of the whole recipe. Of the
checks only those of the trajectory and of the interval see four networks; the others see the record's ten.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from kmifqe.budget import SETTLED
from kmifqe.estimators import Estimate
from kmifqe.estimators.registry import fitted_names
from kmifqe.estimators.sizing import FIRST_NETWORKS, FIRST_ROWS, ProblemSize, fit_size
from kmifqe.experiments.records import read_record
from kmifqe.experiments.study import ProblemRecord
from kmifqe.trust.checks import restored
from kmifqe.trust.choice import average
from kmifqe.trust.interval import interval_of, narrowing
from kmifqe.trust.verdict import judge_run


def main(archive: str) -> None:
    """Print what the records in `archive` show for several shares of narrowing at which to stop."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        records = [read_record(path, ProblemRecord) for path in sorted(Path(folder).glob("full-*.json"))]
    largest = fit_size(ProblemSize(FIRST_ROWS, 0.99)).hidden
    small = [
        each
        for each in records
        if each.facts.settings.told_width == 1.0 and each.estimates[0].config["hidden"] <= largest
    ]
    found = [row for row in map(both, small) if row is not None]
    print(f"{len(found)} problems of at most {FIRST_ROWS:,} rows with an interval")
    for share in sorted({0.05, 0.1, SETTLED, 0.25, 1.0}):
        stopped = np.array([row[1:] for row in found if row[0] < share])
        moved, error, whole_error, held, whole_held = stopped.T
        print(
            f"stop below {share:.0%}: {len(stopped)} problems; V moves by {np.median(moved):.3f} "
            f"half-widths (median), {np.quantile(moved, 0.9):.3f} (90 % quantile), {moved.max():.3f} (most); RMSE "
            f"{np.sqrt(np.mean(error**2)):.3f}, with all networks {np.sqrt(np.mean(whole_error**2)):.3f}; "
            f"95 % intervals hold the truth in {held.mean():.0%}, {whole_held.mean():.0%}"
        )


def both(record: ProblemRecord) -> tuple[float, ...] | None:
    """Return the expected narrowing, how far V̂ moves in half-widths, both errors, and whether both intervals hold."""
    fits = [restored(each) for each in record.estimates if each.estimator in fitted_names(["auto"])]
    accepted = record.facts.settings.accepted
    few, all_networks = (
        average("auto", each, accepted) for each in ([first_networks(fit) for fit in fits], fits)
    )
    verdict = judge_run([few, *map(first_networks, fits)], accepted).verdict
    interval, whole = interval_of(few), interval_of(all_networks)
    gained = narrowing(few, len(fits[0].values))
    if interval is None or whole is None or gained is None:
        return None
    if verdict.word != "trustworthy":
        gained = np.inf  # never settled
    truth, unit = record.facts.truth, few.measurements.log.value_unit
    errors = ((each.value - truth) / unit for each in (few, all_networks))
    moved = abs(few.value - all_networks.value) / (0.5 * interval.width)
    return (gained, moved, *errors, interval.contains(truth), whole.contains(truth))


def first_networks(estimate: Estimate) -> Estimate:
    """Return `estimate` as the first estimate has it: of its first networks alone."""
    k = FIRST_NETWORKS
    return replace(
        estimate,
        seeds=estimate.seeds[:k],
        values=estimate.values[:k],
        trajectory=estimate.trajectory[:, :k],
        infos={name: column[:, :k] for name, column in estimate.infos.items()},
    )


if __name__ == "__main__":
    main(sys.argv[1])
