"""What experiments keep: one family of typed records, their JSON, how they are read back, and the errors in them."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from kmifqe.errors import InputError
from kmifqe.io.files import read_file, write_file
from kmifqe.io.serialize import plain, read_json, write_json
from kmifqe.report.result import provenance
from kmifqe.trust.scores import Scores

RESULTS = Path("experiments") / "results"  # under the current directory, unless the user says where
OURS = re.compile(rb'\{\s*"schema": ?"kmifqe\.|# Preset ')  # how records and their tables begin
DIGITS = 6  # significant, of stored numbers: float32 has no more
# Settings that committed records may have or lack, each with the value at which it changes nothing.
WITHOUT_EFFECT = {
    "bias_share": 1.0,
    "start_at_mean": False,
    "average_step": 0,
    "bias_step": 0,
    "half_fqe_at": 0.0,
    "units": "rewards",
    "bounded": False,
    "center_rewards": False,
    "decay_steps": 0,
    "tau": 0.0,
}

T = TypeVar("T")
# Statistics of V̂'s error by name: rmse, bias, ... None: not known, or a training diverged.
Errors = dict[str, Any]


class Record(msgspec.Struct, tag_field="schema", kw_only=True, omit_defaults=True, eq=False):
    """What every record says of itself: schema and preset; when, with what and on which device it was made."""

    preset: str
    created: str
    versions: dict[str, str]
    device: str


AnyRecord = TypeVar("AnyRecord", bound=Record)


def made_here(packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of `Record` that say when, with what and on which device a record is made.

    `packages` are those besides ours whose versions are worth keeping.
    """
    made = provenance(packages=packages)
    return {"created": made.created, "versions": made.versions, "device": made.device}


class Place(NamedTuple):
    """Which record: its place under the root of the records, and the command that makes it again."""

    preset: str
    experiment: str
    row: str
    method: str

    def path(self, root: Path) -> Path:
        """Return ROOT/preset/experiment/row/method.json."""
        return root / self.preset / self.experiment / self.row / f"{self.method}.json"

    @property
    def command(self) -> str:
        """The command line that makes the record again."""
        only = f"--only {self.row} --method {self.method}"
        return f"kmifqe reproduce {self.experiment} --preset {self.preset} {only}"

    def record(
        self, settings: Mapping[str, Any], wall_seconds: float, packages: Sequence[str] = (), **measured: Any
    ) -> ExperimentRecord:
        """Return the record of this place, with the versions and the device of this process.

        `settings` is everything that decides the outcome, and `measured` are the fields that the experiment adds.
        `packages` are those besides ours whose versions are worth keeping.
        """
        return KINDS[self.experiment](
            **self._asdict(),
            command=self.command,
            **made_here(packages),
            wall_seconds=wall_seconds,
            settings=dict(settings),
            **measured,
        )


class ExperimentRecord(Record, tag="kmifqe.experiment/1", kw_only=True):
    """The record of one method on one row. Subclasses add what the experiment measured."""

    experiment: str
    row: str
    method: str
    command: str
    wall_seconds: float
    settings: dict[str, Any]  # everything that decides the outcome: `is_done` compares it


class PolicyValue(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Undiscounted return R and normalised value V of a policy, measured by playing it."""

    R: float
    R_standard_error: float | None
    V: float
    V_standard_error: float | None
    episodes: int
    length: float | None = None  # mean steps of an episode, where episodes may end early


class TableRecord(ExperimentRecord, kw_only=True):
    """A method on a row of Table 1."""

    truth: dict[str, float | None]  # what V̂ is compared with, by name
    policies: dict[str, PolicyValue]
    counts: dict[str, int]
    values: np.ndarray  # V̂ of every seed
    discounted_return: float | None
    trajectory: dict[str, np.ndarray]  # step, V̂ per seed, and the infos' means over seeds
    errors: dict[str, Errors]  # by truth: see `error_of`
    density: dict[str, Any] | None = None  # where it was fitted: components, likelihood, warnings
    interval: tuple[float, float] | None = None  # of 95 %, for the mean over networks: of what users get
    verdict: str = ""  # likewise
    members: dict[str, float] = {}  # of an average: the methods that it averages, with their weights


class DataRecord(ExperimentRecord, kw_only=True):
    """What the log of a row looks like."""

    log: dict[str, Any]
    policies: dict[str, PolicyValue]
    truth: dict[str, float | None]


class TrainingRecord(ExperimentRecord, kw_only=True):
    """The training of a task's policies."""

    curve: dict[str, np.ndarray]
    choice: dict[str, Any]  # the checkpoints that became target and behaviour mean, with their returns
    replay_steps: list[int]


class LikelihoodRecord(ExperimentRecord, kw_only=True):
    """The report of a fitted behaviour density, as `behavior.FitReport` has it."""

    table: list[dict[str, Any]]  # components, log_likelihood and standard_error of every count tried
    chosen: int  # components
    held_out_rows: int
    held_out_episodes: int
    train_rows: int
    steps: int
    low: list[float]
    high: list[float]
    widened: list[bool]
    on_bound: list[float]
    in_layer: list[float]
    calibration: dict[str, Any]
    warnings: list[str]


class TrialsRecord(ExperimentRecord, kw_only=True):
    """Repeated trials of a method on Pendulum: every log with every training on it."""

    values: np.ndarray  # logs × seeds (× bandwidths)
    truths: list[float]
    episodes: int
    fit_seconds: list[float]
    h: np.ndarray | None = None  # logs × seeds (× bandwidths), at the last step
    ess: np.ndarray | None = None
    errors: dict[str, Errors] = {}  # by truth: see `pendulum.trial_errors`
    by_bandwidth: list[Errors] = []  # instead, where bandwidths were fixed
    dummies: int | None = None
    width: float | None = None  # of the behaviour, in half action ranges
    rows: int | None = None
    panels: list[str] = []  # of the figure that the row belongs to


class LandscapeRecord(TrialsRecord, kw_only=True):
    """Q of the first seed over actions at a few states, beside the exact Q; both normalised as V̂ is."""

    axis: np.ndarray
    states: list[dict[str, Any]]  # name, angle from upright, speed
    target_torque: np.ndarray
    exact: np.ndarray  # state × torque: the dummy does nothing
    q: np.ndarray | None = None  # state × torque × dummy; None: every seed diverged
    metric: np.ndarray | None = None  # state × A, in half action ranges
    summary: dict[str, Any] | None = None  # per seed


class RankingRecord(ExperimentRecord, kw_only=True):
    """The ranking of many policies from one log, beside their true values."""

    policies: dict[str, dict[str, Any]]  # by name: truth, value, interval, verdict, what each estimator says
    not_ranked: list[str]
    scores: dict[str, Scores]  # by estimator; "ranking" is all of them together
    pairs: int  # of ranked policies
    separated: int  # of these, told apart by simultaneous intervals
    wrongly_separated: int  # of these, the wrong way round


KINDS: dict[str, type[ExperimentRecord]] = {
    "ranking": RankingRecord,
    "policies": TrainingRecord,
    "data": DataRecord,
    "table1": TableRecord,
    "loglik": LikelihoodRecord,
    "fig1a": TrialsRecord,
    "fig1b": TrialsRecord,
    "fig2": LandscapeRecord,
    "shift": TrialsRecord,
}


def write_record(record: Record, path: Path) -> Path:
    """Write the record as JSON, whole or not at all, one field a line; return the path."""
    refuse_others(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = (f" {_json(key)}: {_json(value)}" for key, value in stored(record).items())
    write_file(path, ("{\n" + ",\n".join(fields) + "\n}\n").encode())
    return path


def refuse_others(path: Path, *beside: Path) -> None:
    """Refuse to replace what no command of ours wrote: a file at `path`, or files `beside` it where there is none.

    Called before the work whose outcome is to lie there.
    """
    there = [each for each in (path, *beside) if os.path.lexists(each)]
    is_ours = path.is_file() and not path.is_symlink() and OURS.match(read_file(path))
    if there and not is_ours:
        raise InputError(
            f"{there[0]}: exists and was not written by this command; move it away, or choose another directory"
        )


def read_record(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    """Return the record in a file; refuse what is none of this kind, naming the file and the field."""
    try:
        return read_json(path, kind)
    except InputError as error:
        expected = kind.__struct_config__.tag
        raise InputError(
            f"{error}; expected the schema {expected!r}. "
            "Remove the file, and the command that wrote it makes it again"
        ) from error


def read_records(root: Path, experiment: str | None = None, preset: str | None = None) -> list[Any]:
    """Return the experiments' records under `root`, in order of their paths.

    `experiment` and `preset` choose the records of one experiment or preset; by default all are read.
    """
    paths = sorted(root.glob(f"{preset or '*'}/{experiment or '*'}/*/*.json"))
    kinds = (KINDS.get(read_record(path, ExperimentRecord).experiment, ExperimentRecord) for path in paths)
    return [read_record(path, kind) for path, kind in zip(paths, kinds)]


def is_done(root: Path, place: Place, settings: Mapping[str, Any]) -> bool:
    """Return whether the record of `place` under `root` is there already and was made with these `settings`."""
    path = place.path(root)
    return path.exists() and _same(read_record(path, ExperimentRecord).settings, stored(settings))


def _same(recorded: Any, asked: Any) -> bool:
    if not (isinstance(recorded, dict) and isinstance(asked, dict)):
        return bool(recorded == asked)
    both = recorded.keys() & asked.keys()
    only_one = {name: value for name, value in (recorded | asked).items() if name not in both}
    return all(
        name in WITHOUT_EFFECT and value == WITHOUT_EFFECT[name] for name, value in only_one.items()
    ) and all(_same(recorded[name], asked[name]) for name in both)


def stored(x: Any) -> Any:
    """Return x as JSON values: floats to DIGITS significant digits, non-finite numbers as None."""
    return _rounded(plain(x))


def _rounded(x: Any) -> Any:
    if isinstance(x, dict):
        return {key: _rounded(value) for key, value in x.items()}
    if isinstance(x, list):
        return [_rounded(value) for value in x]
    if isinstance(x, float):
        return float(f"{x:.{DIGITS}g}")
    return x


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Return twelve letters that name the settings."""
    return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]


def kept_file(folder: Path, name: str, settings: Mapping[str, Any]) -> Path:
    """Return the file in `folder` that keeps what `kept` made under this `name` and these `settings`."""
    return folder / f"{name}-{settings_hash(settings)}.json"


def kept(folder: Path, name: str, settings: Mapping[str, Any], kind: type[T], make: Callable[[], T]) -> T:
    """Return what `make` returned under these settings, in this run or in an earlier one.

    Args:
        folder: where the file lies; made if it is missing.
        name: how the file's name begins; a hash of the settings ends it.
        settings: everything that decides what is made. They go into the file.
        kind: the type of what is made, as msgspec writes and reads it.
        make: does the work, where no file has its outcome yet.
    """
    path = kept_file(folder, name, settings)
    if path.is_file():
        try:
            return msgspec.convert(read_json(path, dict[str, Any])["made"], kind)
        except (InputError, msgspec.ValidationError, KeyError) as error:
            raise InputError(f"{path}: cannot be read ({error}); remove it, and it is made again") from error
    made = make()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, {"settings": settings, "made": made}, indent=None)
    return made


def error_of(values: Sequence[float] | np.ndarray, truth: float) -> Errors:
    """Return RMSE over seeds with its standard error, bias, spread over seeds, and how many diverged.

    The standard error of the RMSE is that of the mean of e², carried through the root: sd(e²)/sqrt(n)/(2·RMSE)
    with e_i = V̂_i − V of n seeds. A seed without a finite value leaves no RMSE: an average over the other seeds
    would flatter the method.
    """
    errors = np.asarray(values, np.float64) - truth
    finite = errors[np.isfinite(errors)]
    n = len(errors)
    rmse = standard_error = None
    if len(finite) == n and n > 0:
        rmse, its_error = error_of_mean(errors, 0.0, 1)
        standard_error = its_error if n > 1 else None
    return {
        "truth": truth,
        "rmse": rmse,
        "standard_error": standard_error,
        "bias": float(finite.mean()) if len(finite) else None,
        "spread": float(finite.std(ddof=1)) if len(finite) > 1 else None,
        "diverged": n - len(finite),
    }


def error_of_mean(values: Sequence[float] | np.ndarray, truth: float, count: int) -> tuple[float, float]:
    """Return the RMSE of the mean of `count` of these seeds, over every choice of so many, and its standard error.

    With the errors' mean e and variance s² (n − 1): RMSE² = e² − s²/n + s²/count, which is unbiased for the squared
    error of a mean of `count` seeds. `count` = 1 is the RMSE over seeds. The standard error is the jackknife's, of
    the square, carried through the root. Infinite where one of the `values`, which are compared with the `truth`,
    is not finite: an average over the other seeds would flatter the method.
    """
    errors = np.asarray(values, np.float64) - truth
    n = len(errors)
    if not 1 <= count <= n:
        raise ValueError(f"count is {count}; expected 1 to {n}, the number of seeds")
    if not np.isfinite(errors).all():
        return math.inf, 0.0
    rmse = math.sqrt(_squared(errors, count))
    if n == 1 or rmse == 0.0:
        return rmse, 0.0
    without = np.array([_squared(np.delete(errors, i), count) for i in range(n)])
    return rmse, math.sqrt((n - 1) * float(np.var(without))) / (2.0 * rmse)


def _squared(errors: np.ndarray, count: int) -> float:
    n = len(errors)
    variance = float(np.var(errors, ddof=1)) if n > 1 else 0.0
    return float(np.mean(errors)) ** 2 + variance * (1.0 / count - 1.0 / n)
