"""The time budget: a first estimate soon, then the largest fit that the time which is left allows.

A ranking has no first estimate: all policies get networks of one size, because only networks that are alike can be
compared pair by pair. The time decides which size.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax

from kmifqe.errors import InputError
from kmifqe.estimators import Estimator
from kmifqe.estimators.fit import make_plan
from kmifqe.estimators.forecast import make_forecast, policies_at_once
from kmifqe.estimators.registry import DEFAULT, entry_named, fitted_names
from kmifqe.estimators.sizing import ProblemSize, Rung, ladder, size_of
from kmifqe.io.format import duration, number, percent
from kmifqe.mdp import Problem, Transitions
from kmifqe.report.result import Result
from kmifqe.report.watch import Watch
from kmifqe.store import Interrupted
from kmifqe.trust.interval import narrowing

CPU_MINUTES, GPU_MINUTES = 10.0, 3.0
FOR_A_RANKING = 2.0  # times as long: what depends on the log alone is done once for all policies
# Of a ranking's time the first networks of all policies may take this share. The rest is for the contenders' further
# networks, for compiling and for examining.
FOR_ALL = 0.6
# A fit of the behaviour density may take this share of the time: the first estimate waits for it, and should come
# within a minute of ten.
FOR_THE_DENSITY = 0.02
FIRST_SECONDS = 45.0  # a whole recipe that takes less needs no first estimate before it
# The first estimate learns from about so many rows of a larger log, but not from fewer episodes than these, whose
# scatter its interval needs. Its steps are few, and KMIFQE's work for every row at each copy of the target network
# would take longer than all of them.
SAMPLE_ROWS, SAMPLE_EPISODES = 100_000, 50
# A larger fit takes less time than the ratio of the arithmetic says, because larger products use the cores better,
# but hardly less than this share: where even that is too long, no time is spent on measuring it.
HOPELESS = 0.1
# A first estimate that is trustworthy, and whose interval all networks would narrow by less than this share, is the
# answer. Chosen on the half of the study that is for choosing (docs/guides/runs.md).
SETTLED = 0.15
Make = Callable[[ProblemSize], Sequence[Estimator]]
# A fit to the problem -> its result, and the problem to go on with: the rung, its estimators, the name of its files
# in the run directory, and a note for the record.
Judge = Callable[[Problem, Rung, Sequence[Estimator], str, str], tuple[Result, Problem]]


@dataclass
class Budget:
    """The time that an evaluation may take, from now on."""

    minutes: float
    began: float = field(default_factory=time.perf_counter)

    @property
    def for_the_density(self) -> float:
        """Seconds that a fit of the behaviour density may take."""
        return 60.0 * FOR_THE_DENSITY * self.minutes

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return 60.0 * self.minutes - (time.perf_counter() - self.began)


def default_minutes() -> float:
    """Return how long an evaluation may take on this machine where nobody says."""
    return CPU_MINUTES if jax.devices()[0].platform == "cpu" else GPU_MINUTES


def what_fixes_sizes(preset: str, steps: int | None, estimators: Sequence[str | Estimator]) -> list[str]:
    """Return what of a user's options fixes the sizes of fits, so that no time can choose them.

    `preset`, `steps` and `estimators` are those of `evaluate`.
    """
    names = fitted_names([each for each in estimators if isinstance(each, str)])
    fixed = [f"the preset {preset}"] * (preset != DEFAULT)
    fixed += ["a number of steps"] * (steps is not None)
    fixed += ["an estimator made by hand"] * any(not isinstance(each, str) for each in estimators)
    return fixed + [f"the estimator {name}" for name in names if entry_named(name).sized is None]


def make_budget(
    minutes: float | None, preset: str, steps: int | None, estimators: Sequence[str | Estimator]
) -> Budget | None:
    """Return the budget of an evaluation, None where what the user asked for fixes the sizes of its fits.

    `minutes` is what the user gave, None for the default of the device; `preset`, `steps` and `estimators` are those
    of `evaluate`.
    """
    fixed = what_fixes_sizes(preset, steps, estimators)
    if minutes is None:
        return None if fixed else Budget(default_minutes())
    if not 0 < minutes < float("inf"):
        raise InputError(f"minutes are {minutes:g}; expected a time greater than 0")
    if fixed:
        raise InputError(
            f"minutes choose the sizes of the fits, but {fixed[0]} fixes them; leave one of them out"
        )
    return Budget(minutes)


def first_sample(log: Transitions) -> Transitions | None:
    """Return the episodes of a large `log` that the first estimate learns from; None where it learns from all."""
    if len(log) <= 2 * SAMPLE_ROWS:
        return None
    sample = log.some_episodes(SAMPLE_ROWS)
    return sample if sample.n_episodes >= SAMPLE_EPISODES else None


def evaluate_within(
    budget: Budget,
    problem: Problem,
    sample: Problem | None,
    networks: int,
    make: Make,
    judge: Judge,
    watch: Watch,
    folder: Path | None = None,
    goes_on: bool = False,
    stop_asked: Callable[[], bool] = lambda: False,
) -> Result:
    """Return the result of the largest fit that `budget` has time for, after a first estimate.

    Where the first estimate has the recipe's networks, only fewer of them, and the others would hardly change it, it
    is the answer.

    Args:
        budget: the time that the evaluation may take.
        problem: the arrays to learn from.
        sample: a part of them that the first estimate learns from; None for all of them.
        networks: how many networks the whole recipe has.
        make: returns the estimators with the recipe of a problem size.
        judge: fits them, and returns their result and the problem to go on with.
        watch: hears what is done, and what was not reached.
        folder: of the run that a later command can go on with; by default there is none.
        goes_on: whether it goes on from an earlier result, and so past a first estimate that would be the answer; by
            default it does not.
        stop_asked: asked after the first estimate; True raises `store.Interrupted`. By default nobody stops.
    """
    rungs = ladder(size_of(problem), networks)
    first, whole = rungs[0], rungs[-1]
    is_small = first.size == whole.size
    soon = min(FIRST_SECONDS, budget.left)
    if is_small and budget.left > 0 and _training_seconds(whole, make(whole.size), problem, watch) <= soon:
        return judge(problem, whole, make(whole.size), "", "")[0]
    started = time.perf_counter()
    learned = problem if sample is None else sample
    seen = "" if sample is None else f" from {sample.counts.used:,} of {problem.counts.used:,} rows"
    result, learned = judge(learned, first, make(first.size), _part(first, whole), _note(first, whole, seen))
    problem = learned if sample is None else problem
    took = time.perf_counter() - started
    beside = max(0.0, took - sum(each.seconds for each in result.estimates))  # compiling and examining
    if first != whole:
        over = f"it came {duration(-budget.left)} after the end of the time given"
        left = f"{duration(budget.left)} of the time is left" if budget.left >= 0 else over
        watch.say(f"first estimate{seen}: {_in_short(result)}; {left}")
    if is_small and first != whole and not goes_on:
        gained = narrowing(result.estimates[0], whole.networks)
        if gained is not None and gained < SETTLED and result.verdict.word == "trustworthy":
            watch.say(
                f"stopped early: {whole.networks} networks instead of {first.networks} would narrow the interval by "
                f"about {percent(max(gained, 0.0))}; the rest of its width no further network takes away. To train "
                f"them all the same: {_going_on(folder)}"
            )
            return result
    unreached: list[tuple[Rung, float]] = []
    for rung in rungs[:0:-1]:
        needed = took * rung.work / first.work
        if HOPELESS * needed < budget.left:
            estimators = make(rung.size)
            if (
                stop_asked()
            ):  # while the first estimate was examined: compiling would come before the next question
                raise Interrupted(estimators[0].name, None, estimators[0].default_steps, result.estimates)
            needed = (
                _training_seconds(rung, estimators, problem, watch) + beside * rung.networks / first.networks
            )
            if needed < budget.left:
                watch.say(f"going on with {rung}: about {duration(needed)}")
                result, problem = judge(problem, rung, estimators, _part(rung, whole), _note(rung, whole))
                break
        unreached.append((rung, needed))
    if unreached:
        rung, needed = unreached[-1]
        minutes = max(1, math.ceil(1.3 * needed / 60))
        how = _going_on(folder, minutes)
        watch.warn(
            f"not reached in {_minutes(budget.minutes)}: {rung}, about {duration(needed)} more; to go on: {how}"
        )
    return result


def _going_on(folder: Path | None, minutes: int | None = None) -> str:
    """Return how to go on with the run in `folder`, if a command can, with so many `minutes`, if they are needed."""
    how = "in Python: resume=True" + (f", minutes={minutes}" if minutes else "")
    if folder is None:
        return how
    return f"kmifqe resume {shlex.quote(str(folder))}{f' --minutes {minutes}' * bool(minutes)} ({how})"


def size_within(
    minutes: float, problem: Problem, policies: int, networks: int, make: Make, watch: Watch
) -> ProblemSize:
    """Return the problem size with the largest recipe by which so many policies can be judged in the time.

    Where there is none, it is the smallest one, and `watch` hears how long that takes.

    Args:
        minutes: the time that a ranking may take.
        problem: the arrays to learn from, those of the first policy.
        policies: how many policies are judged.
        networks: how many networks every policy gets.
        make: returns the estimators with the recipe of a problem size.
        watch: hears what is measured, and what was not reached.
    """
    sizes = list(dict.fromkeys(rung.size for rung in ladder(size_of(problem), networks)))
    if len(sizes) == 1:
        return sizes[0]  # nothing can be chosen, so nothing is measured
    whole = Rung(sizes[-1], networks)
    needed = {}
    for size in reversed(sizes):
        rung = Rung(size, networks)
        needed[size] = 0.0
        for estimator in make(size):
            one = make_plan(estimator, problem, seeds=networks, bootstrap=True)
            at_once = policies_at_once(estimator, problem, one, policies)
            # Networks of one policy stand in for those of several: the arithmetic of a step is the same.
            plan = make_plan(estimator, problem, seeds=networks * at_once, bootstrap=True)
            with watch.status(f"{estimator.name}: compiling, and measuring how long {rung} a policy take …"):
                seconds = make_forecast(estimator, problem, plan).seconds
            needed[size] += math.inf if seconds is None else seconds * -(-policies // at_once)
        if needed[size] < FOR_ALL * 60.0 * minutes:
            break
    chosen = Rung(size, networks)
    if needed[size] < math.inf:  # else memory lacks, of which the fits' own forecasts speak
        longer = (
            "" if needed[size] < 60.0 * minutes else f", longer than the {_minutes(minutes)} that were given"
        )
        watch.say(f"{policies} policies, {chosen} each: about {duration(needed[size])}{longer}")
    if chosen != whole:
        enough = needed[whole.size] / FOR_ALL / 60
        how = "" if enough == math.inf else f"; it would take --minutes {math.ceil(enough)} and --force"
        watch.warn(f"not reached in {_minutes(minutes)}: {whole} each{how}")
    return size


def size_note(size: ProblemSize, whole: ProblemSize, networks: int) -> str:
    """Return what the record of a ranking says of the recipe for `size`, where it is smaller than the `whole` one's.

    Every policy has so many `networks`. Nothing is said where the recipe is the whole one.
    """
    return _note(Rung(size, networks), Rung(whole, networks))


def _minutes(minutes: float) -> str:
    return f"{minutes:g} minute{'s' * (minutes != 1)}"


def _training_seconds(rung: Rung, estimators: Sequence[Estimator], problem: Problem, watch: Watch) -> float:
    """Return how many seconds a rung's training takes, measured on this machine; infinite where memory lacks.

    The programs that are compiled for it are those of the fit, so that no time is lost where it is done. That takes
    longer than a small fit, so `watch` shows what is being waited for.
    """
    seconds = 0.0
    for estimator in estimators:
        plan = make_plan(estimator, problem, seeds=rung.networks, bootstrap=True)
        with watch.status(f"{estimator.name}: compiling, and measuring how long {rung} take …"):
            measured = make_forecast(estimator, problem, plan).seconds
        seconds += math.inf if measured is None else measured
    return seconds


def _in_short(result: Result) -> str:
    interval = result.interval
    between = "" if interval is None else f" ({number(interval.low)} to {number(interval.high)})"
    return f"{number(result.value)} per step{between}, {result.verdict.word}"


def _note(rung: Rung, whole: Rung, seen: str = "") -> str:
    """Return what the record says of a rung that is not the whole recipe; `seen`: of which rows, if not of all."""
    return (
        ""
        if rung == whole
        else f"a part of the recipe: {rung}{seen}; the whole recipe for this log is {whole}"
    )


def _part(rung: Rung, whole: Rung) -> str:
    """Return what the files of a rung's fits are called after; the whole recipe's have the estimator's name alone."""
    return "" if rung == whole else f"{rung.size.recipe_rows}-rows-{rung.networks}-networks"
