"""What an experiment is told (size, methods, folders), and work that is done once and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from kmifqe.errors import InputError
from kmifqe.estimators import Progress
from kmifqe.experiments.presets import Preset
from kmifqe.experiments.records import experiment_record, is_done, write_record
from kmifqe.io.files import disk_sentence, whole_file
from kmifqe.store.checkpoints import CheckpointFolder


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Return twelve letters that name the settings."""
    return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def kept_json(
    folder: Path, name: str, settings: Mapping[str, Any], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return what `make` gave under these settings, now or in an earlier run; settings go into the file."""
    path = folder / f"{name}-{settings_hash(settings)}.json"
    if path.is_file():
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))["made"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}: cannot be read ({error}); remove it, and it is made again") from error
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_text(json.dumps({"settings": settings, "made": made}), encoding="utf-8")
    return made


def silent(words: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Context:
    """One call of `reproduce`.

    An experiment is a module with `rows(preset) -> tuple[str, ...]` and `run(row, context) -> None`, which makes
    and keeps one record per method. Where it also has `prepare(row, context)`, that does the row's work for the
    processor alone (collection, truth) into `work`, so that it can run ahead in another process.
    """

    preset: Preset
    results: Path  # root of the records
    work: Path  # logs, truths, densities, policies, unfinished fits: large, and made again if missing
    method: str | None = None  # only this one
    resume: bool = False
    workers: int = 1  # processes that step environments
    d4rl_dir: Path | None = None
    say: Callable[[str], None] = silent  # one line for a person
    on_progress: Callable[[Progress], None] | None = None  # of `fit`

    def wants(self, experiment: str, row: str, method: str, settings: Mapping[str, Any]) -> bool:
        """Return whether the record is asked for and not there already; say why not where it is."""
        if self.method not in (None, method):
            return False
        done = self.resume and is_done(self.results, self.preset.name, experiment, row, method, settings)
        if done:
            self.say(f"{experiment} {row} {method}: there already")
        return not done

    def checkpoints(self, row: str, method: str, settings: Mapping[str, Any]) -> CheckpointFolder:
        """Return where the fit of a record keeps how far it is, so that `resume` goes on from there."""
        folder = self.work / "fits" / f"{row}-{method}-{settings_hash(settings)}"
        with disk_sentence(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
        checkpoints = CheckpointFolder(folder, warn=self.say)
        if not self.resume:
            checkpoints.clear()
        return checkpoints

    def keep(
        self,
        experiment: str,
        row: str,
        method: str,
        *,
        settings: Mapping[str, Any],
        wall_seconds: float,
        packages: Sequence[str] = (),
        **measured: Any,
    ) -> None:
        """Write the record (`experiment_record` says what is in it), and say where and, if it has one, its error."""
        record = experiment_record(
            experiment,
            row,
            method,
            self.preset.name,
            settings=settings,
            wall_seconds=wall_seconds,
            packages=packages,
            **measured,
        )
        path = write_record(record, self.results)
        errors = record.get("errors", {})
        said = "".join(_error_words(name, error) for name, error in errors.items())
        self.say(f"{experiment} {row} {method}: {wall_seconds:.1f} s{said} -> {path}")


def _error_words(name: str, error: Mapping[str, Any]) -> str:
    if error["rmse"] is None:
        return f", {error['diverged']} seeds diverged"
    give = "" if error["standard_error"] is None else f" ± {error['standard_error']:.3f}"
    return f", RMSE {error['rmse']:.3f}{give} ({name.replace('_', ' ')})"
