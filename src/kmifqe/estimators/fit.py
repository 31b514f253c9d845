"""Run any estimator: steps scanned, seeds under one vmap, progress reported, snapshots kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimate, Estimator, State, bootstrapped, config_dict, of_seed, require
from kmifqe.mdp.policies import policy_fields
from kmifqe.mdp.problem import OF_POLICY, Problem

RECORDS = 100  # points of the trajectory, when the caller does not say
# Between two records a wish to stop is heard after so many steps at most; a program is called for so many at least.
MOST_STEPS, LEAST_STEPS = 100, 25
MOST_SEEDS = 10_000  # networks of one fit
# On an NVIDIA GPU a step's products, 256 wide, run faster from cuBLAS (docs/evidence/speed.md).
STEP_OPTIONS = {"xla_gpu_enable_triton_gemm": False}
Stop = Callable[[np.ndarray, np.ndarray], bool]  # recorded steps (r,), V̂ (r, seeds) -> end here?


class Plan(NamedTuple):
    """What a fit was asked to do: two fits with one plan, problem and machine give the same bits."""

    estimator: str
    config: dict[str, Any]
    seeds: tuple[int, ...]
    steps: int
    record_every: int
    gamma: float
    stop: str  # the name of the rule that may end the fit early; "" for none
    bootstrap: bool = False  # every seed has its own episode weights


class Snapshot(NamedTuple):
    """A fit after a record, on the host.

    `state` is the state before the refresh at `step`, by path, without the fields that this refresh recomputes:
    those are arrays over all n rows, hundreds of times larger than the networks.
    """

    step: int
    state: dict[str, np.ndarray]
    recorded_steps: np.ndarray  # (records,)
    trajectory: np.ndarray  # (records, seeds); of several policies (records, policies, seeds)
    infos: dict[str, np.ndarray]  # each of the trajectory's shape
    seconds: float  # spent so far


class Checkpoints(Protocol):
    """Keeps a fit's snapshots; `fit` asks it again and again whether one is wanted, or the fit is to stop."""

    def restore(self, plan: Plan, problem: Problem) -> Snapshot | None:
        """Return where to go on from; None to begin at the beginning."""

    def due(self, step: int) -> bool:
        """Return whether a snapshot is wanted at `step`, which a restart can begin from."""

    def save(self, snapshot: Snapshot) -> None:
        """Keep the snapshot; an exception raised here ends the fit."""

    def stop_if_asked(self, last: Snapshot | None) -> None:
        """Raise where a stop was asked for between two steps that a restart can begin from.

        `last` is the newest snapshot that there is, which is kept first; None where there is none.
        """


class Progress(NamedTuple):
    """Where a fit stands after a record."""

    estimator: str
    step: int
    steps: int
    steps_per_second: float  # since the record before
    values: np.ndarray  # V̂ per seed; of several policies (policies, seeds)
    infos: dict[str, np.ndarray]  # each of the shape of `values`
    begun: int = 0  # the step this process began at: not 0 when it goes on from a snapshot


def fit(
    estimator: Estimator,
    problem: Problem,
    plan: Plan | None = None,
    *,
    seeds: int | Sequence[int] = 10,
    steps: int | None = None,
    record_every: int | None = None,
    bootstrap: bool = False,
    stop: Stop | None = None,
    checkpoints: Checkpoints | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Estimate:
    """Return what the estimator says after all steps of every seed, with the trajectory that led there.

    The same seeds on the same machine and versions give the same bits, however often progress is recorded, and
    however often the fit was stopped and went on from `checkpoints`.

    Args:
        estimator: what is fitted.
        problem: the log and the policy that is judged.
        plan: a plan that `make_plan` made, in place of the next four arguments.
        seeds: how many seeds are trained side by side, or their numbers; by default 10.
        steps: of every seed; by default the estimator's `default_steps`.
        record_every: steps between two points of the trajectory, rounded to a divisor or multiple of the
            estimator's periods; by default a hundredth of the steps.
        bootstrap: whether every seed weights the log's episodes by random weights of its own. The spread over seeds
            is then that of another log and another training, and `trust.interval` makes an interval of it.
        stop: asked after every record, with the recorded steps and V̂ so far; True ends the fit there.
        checkpoints: keeps snapshots and says where to go on from; by default nothing is kept.
        on_progress: called after every record.
    """
    if plan is None:
        plan = make_plan(
            estimator,
            problem,
            seeds=seeds,
            steps=steps,
            record_every=record_every,
            bootstrap=bootstrap,
            stop=stop,
        )
    trained = _train(estimator, problem, plan, stop, checkpoints, on_progress)
    return _estimate(estimator, plan, problem, trained)


def fit_policies(
    estimator: Estimator,
    problem: Problem,
    plan: Plan,
    *,
    checkpoints: Checkpoints | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Estimate]:
    """Return the estimate of every policy of `problem`, which `judged_together` made, trained side by side.

    Networks of one seed have the same initial weights, draws and episode weights for every policy, so that their
    values can be compared pair by pair. `estimator`, `plan`, `checkpoints` and `on_progress` are as for `fit`; every
    estimate has its share of the time.
    """
    trained = _train(estimator, problem, plan, None, checkpoints, on_progress)
    assert problem.policies is not None
    return [_estimate(estimator, plan, problem, trained.of_policy(p)) for p in range(problem.policies)]


class _Trained(NamedTuple):
    """Where a fit ended; of several policies every array but the steps has an axis over them before the seeds'."""

    values: np.ndarray
    recorded_steps: np.ndarray
    trajectory: np.ndarray
    infos: dict[str, np.ndarray]
    seconds: float
    state: State

    def of_policy(self, position: int) -> _Trained:
        """Return what one of several policies ended with."""
        return _Trained(
            self.values[position],
            self.recorded_steps,
            self.trajectory[:, position],
            {name: series[:, position] for name, series in self.infos.items()},
            self.seconds / len(self.values),
            jax.tree.map(lambda leaf: leaf[position], self.state),
        )


def _train(
    estimator: Estimator,
    problem: Problem,
    plan: Plan,
    stop: Stop | None,
    checkpoints: Checkpoints | None,
    on_progress: Callable[[Progress], None] | None,
) -> _Trained:
    """Take all steps of every network, recording and saving on the way; the arguments are those of `fit`."""
    started = time.perf_counter()
    snapshots = _Snapshots(estimator, plan, problem, checkpoints)
    saved = snapshots.newest
    keys, problem = seeded(plan, problem)
    devices = _devices_for(keys, problem)
    keys, problem = _spread(devices, keys, problem)
    state, records = _begin(estimator, keys, problem, saved)
    state = _spread_state(devices, state, problem)
    before = 0.0 if saved is None else saved.seconds
    begun = done = records.steps[-1] if records.steps else 0
    for end in [*range(done + plan.record_every, plan.steps, plan.record_every), plan.steps]:
        if done == plan.steps or (done and stop is not None and stop(*records.so_far())):
            break
        clock = time.perf_counter()
        state, info = _advance(estimator, keys, state, problem, done, end, plan, snapshots.stop_if_asked)
        snapshots.take(end, state)
        state = _refreshed(estimator, end, state, problem)
        values = np.asarray(_values(estimator.value, state, problem))
        rate = (end - done) / (time.perf_counter() - clock)
        records.add(end, values, {name: np.asarray(series) for name, series in info.items()})
        done = end
        if on_progress is not None:
            on_progress(Progress(estimator.name, end, plan.steps, rate, values, records.infos[-1], begun))
        snapshots.keep(end, records, before + time.perf_counter() - started)
    recorded, trajectory = records.so_far()
    values = trajectory[-1]
    if estimator.final_value is not None:
        values = np.asarray(_values(estimator.final_value, state, problem))
    if len(devices) > 1:
        state = jax.device_put(state, devices[0])  # what is measured of it afterwards runs there
    seconds = before + time.perf_counter() - started
    return _Trained(values, recorded, trajectory, records.stacked_infos(), seconds, state)


def _estimate(estimator: Estimator, plan: Plan, problem: Problem, trained: _Trained) -> Estimate:
    return Estimate(
        estimator=estimator.name,
        config=plan.config,
        gamma=plan.gamma,
        seeds=plan.seeds,
        steps=int(trained.recorded_steps[-1]),
        values=trained.values.astype(np.float64),
        recorded_steps=trained.recorded_steps,
        trajectory=trained.trajectory,
        infos=trained.infos,
        seconds=trained.seconds,
        device=str(jax.devices()[0].device_kind),
        final_state=trained.state,
        bootstrap=plan.bootstrap,
        episodes=problem.first_states.shape[0],
    )


def make_plan(
    estimator: Estimator,
    problem: Problem,
    *,
    seeds: int | Sequence[int] = 10,
    steps: int | None = None,
    record_every: int | None = None,
    bootstrap: bool = False,
    stop: Stop | None = None,
) -> Plan:
    """Return what `fit` with these arguments will do, or refuse arguments that make no sense.

    `estimator`, `problem`, `seeds`, `steps`, `record_every`, `bootstrap` and `stop` are those of `fit`.
    """
    seeds = seeds_of(seeds)
    steps = estimator.default_steps if steps is None or estimator.at_once else steps
    require(steps >= 1, "steps", steps, "at least 1")
    require(record_every is None or record_every >= 1, "record_every", record_every, "at least 1")
    if problem.episode_weights is not None:
        raise InputError("the problem carries episode weights; `fit` draws them, where bootstrap is True")
    refresh = estimator.refresh
    periods = () if refresh is None else (refresh.every, refresh.restart_every)
    return Plan(
        estimator=estimator.name,
        config=config_dict(estimator.config),
        seeds=seeds,
        steps=steps,
        record_every=_record_every(record_every or -(-steps // RECORDS), *periods),
        gamma=round(float(problem.gamma), 7),
        stop=rule_name(stop),
        bootstrap=bootstrap,
    )


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds themselves, where `seeds` is their number or they; refuse none, and more than can be meant."""
    count = seeds if isinstance(seeds, int) else len(seeds)
    require(1 <= count <= MOST_SEEDS, "the number of seeds", count, f"1 to {MOST_SEEDS:,}")
    found = tuple(range(seeds)) if isinstance(seeds, int) else tuple(int(seed) for seed in seeds)
    for seed in found:
        require(-(2**63) <= seed < 2**63, "a seed", seed, "an integer of 64 bits")
    return found


def rule_name(stop: Callable[..., bool] | None) -> str:
    """Return a name that tells one stopping rule from another, the same in every process."""
    if stop is None:
        return ""
    if hasattr(stop, "__qualname__"):  # a function: its repr holds an address
        return f"{stop.__module__}.{stop.__qualname__}"
    return repr(stop)


def seeded(plan: Plan, problem: Problem) -> tuple[Array, Problem]:
    """Return a key for each of the plan's seeds, and the problem with their episode weights if it asks for them."""
    keys = jnp.stack([jax.random.key(seed) for seed in plan.seeds])
    return keys, bootstrapped(problem, keys) if plan.bootstrap else problem


# --- Several devices: each trains a part of the networks, and holds the whole log


def _devices_for(keys: Array, problem: Problem) -> list[jax.Device]:
    """Return the local devices that share the networks: as many as divide them evenly.

    Rows in host memory reach one device only.
    """
    devices = jax.local_devices()
    networks = len(keys) if problem.policies is None else problem.policies
    most = 1 if problem.is_on_host else min(len(devices), networks)
    return devices[: next(count for count in range(most, 0, -1) if networks % count == 0)]


def _spread(devices: Sequence[jax.Device], keys: Array, problem: Problem) -> tuple[Array, Problem]:
    """Return keys and problem on all `devices`: split over networks what each network has of its own, the rest whole.

    Seeds are split; of several policies, the policies are.
    """
    if len(devices) == 1:
        return keys, problem
    whole, split = _placements(devices)
    of_network = ("episode_weights",) if problem.policies is None else OF_POLICY
    placed: dict[str, Any] = {}
    for each in fields(problem):
        value = getattr(problem, each.name)
        if not each.metadata.get("static") and value is not None:
            placed[each.name] = jax.device_put(value, split if each.name in of_network else whole)
    return jax.device_put(keys, split if problem.policies is None else whole), replace(problem, **placed)


def _spread_state(devices: Sequence[jax.Device], state: State, problem: Problem) -> State:
    """Return the state split over networks, seeds or policies, which are the first axis of every leaf."""
    return state if len(devices) == 1 else jax.device_put(state, _placements(devices)[1])


def _placements(devices: Sequence[jax.Device]) -> tuple[NamedSharding, NamedSharding]:
    mesh = Mesh(np.asarray(devices), ("networks",))
    return NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("networks"))


@dataclass
class _Records:
    """The trajectory as it grows, one entry a record."""

    steps: list[int] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    infos: list[dict[str, np.ndarray]] = field(default_factory=list)

    def add(self, step: int, values: np.ndarray, infos: dict[str, np.ndarray]) -> None:
        self.steps.append(step)
        self.values.append(values)
        self.infos.append(infos)

    def so_far(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.steps), np.stack(self.values)

    def stacked_infos(self) -> dict[str, np.ndarray]:
        return {name: np.stack([info[name] for info in self.infos]) for name in self.infos[0]}


def _begin(
    estimator: Estimator, keys: Array, problem: Problem, saved: Snapshot | None
) -> tuple[State, _Records]:
    """Return the state and records to go on from: those of `saved`, or none yet."""
    if saved is None:
        return _init(estimator, keys, problem), _Records()
    shapes = jax.eval_shape(partial(_init, estimator), keys, problem)
    state = _refreshed(estimator, saved.step, rebuilt_state(estimator, saved.state, shapes), problem)
    records = range(len(saved.recorded_steps))
    infos = [{name: series[i] for name, series in saved.infos.items()} for i in records]
    return state, _Records(saved.recorded_steps.tolist(), list(saved.trajectory), infos)


def _record_every(every: int, *periods: int) -> int:
    """Return the steps between two records: `every`, brought down to a multiple or divisor of each period.

    So the scan between two records or refreshes has one length, and is compiled once, and wherever a fit can begin
    again there is a record.
    """
    fits = (n for n in range(every, 0, -1) if all(n % p == 0 or p % n == 0 for p in periods if p))
    return next(fits)


def _of_every_network(
    run: Callable[[Any, State, Problem], Any], keys: Array | None, state: State, problem: Problem
) -> Any:
    """Return run(key, state, problem as the network sees it) of every network, stacked.

    Networks are seeds, or policies and seeds. Only what depends on the policy is mapped over policies: keys are not,
    so that all policies share the draws of a seed.
    """

    def of_policy(fields: dict[str, Any], state: State) -> Any:
        own = replace(problem, **fields)
        seed = lambda key, state, weights: run(key, state, of_seed(own, weights))  # noqa: E731
        return jax.vmap(seed)(keys, state, problem.episode_weights)

    if problem.policies is None:
        return of_policy({}, state)
    return jax.vmap(of_policy)(policy_fields(problem), state)


@partial(jax.jit, static_argnums=0)
def _init(estimator: Estimator, keys: Array, problem: Problem) -> State:
    # fold_in(-1): the initial networks must not share randomness with step 0.
    init_keys = jax.vmap(lambda key: jax.random.fold_in(key, 2**31 - 1))(keys)
    return _of_every_network(lambda key, _, own: estimator.init(key, own), init_keys, None, problem)


@partial(jax.jit, static_argnums=0)
def _values(
    value: Callable[[State, Problem], Float[Array, ""]], state: State, problem: Problem
) -> Float[Array, " seeds"]:
    return _of_every_network(lambda _, state, own: value(state, own), None, state, problem)


def _advance(
    estimator: Estimator,
    keys: Array,
    state: State,
    problem: Problem,
    done: int,
    end: int,
    plan: Plan,
    between: Callable[[State], None],
) -> tuple[State, dict[str, Array]]:
    """Take the steps done..end, refreshing wherever a period ends before `end`; return state and mean infos.

    The steps are taken in blocks, and `between` is called between two of them.
    """
    sums: dict[str, Any] = {}
    every = plan.record_every if estimator.refresh is None else estimator.refresh.every
    block = _block(min(every, plan.record_every))
    start = done
    while start < end:
        if start > done:
            between(state)
            state = _refreshed(estimator, start, state, problem)
        stop = min(end, (start // block + 1) * block)
        state, info = _run_steps(estimator, stop - start, keys, state, problem, jnp.int32(start))
        for name, total in info.items():
            sums[name] = sums.get(name, 0.0) + total
        start = stop
    return state, {name: total / (end - done) for name, total in sums.items()}


def _block(steps: int) -> int:
    """Return into blocks of how many steps so many are divided: all of one length, so that one program serves."""
    fits = (n for n in range(min(steps, MOST_STEPS), LEAST_STEPS - 1, -1) if steps % n == 0)
    return next(fits, steps)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=3, compiler_options=STEP_OPTIONS)
def _run_steps(
    estimator: Estimator, count: int, keys: Array, state: State, problem: Problem, start: Array
) -> tuple[State, dict[str, Array]]:
    """Scan `count` steps of all seeds; return the state and the sum of each info."""

    def one(state: State, t: Array) -> tuple[State, dict[str, Array]]:
        step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, t)
        step = lambda key, state, own: estimator.step(key, t, state, own)  # noqa: E731
        return _of_every_network(step, step_keys, state, problem)

    state, infos = jax.lax.scan(one, state, start + jnp.arange(count))
    return state, jax.tree.map(lambda series: series.sum(axis=0), infos)


def _refreshed(estimator: Estimator, step: int, state: State, problem: Problem) -> State:
    """Return the state after the refresh at `step`, if one is due there."""
    refresh = estimator.refresh
    if refresh is None or step % refresh.every:
        return state
    return _refresh(refresh.run, refresh.kind(step), state, problem)


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def _refresh(
    run: Callable[[Any, State, Problem], State], kind: Hashable, state: State, problem: Problem
) -> State:
    return _of_every_network(lambda _, state, own: run(kind, state, own), None, state, problem)


# --- Snapshots


def state_shapes(estimator: Estimator, plan: Plan, problem: Problem) -> State:
    """Return the state of the fit of a `plan` by an `estimator` to a `problem`, as shapes and types alone."""
    keys, problem = seeded(plan, problem)
    return jax.eval_shape(partial(_init, estimator), keys, problem)


def joined_snapshots(parts: Sequence[Snapshot]) -> Snapshot:
    """Return one snapshot of the networks of several, which stand at the same step of the same plan but for seeds."""
    first = parts[0]
    return Snapshot(
        first.step,
        {name: np.concatenate([part.state[name] for part in parts]) for name in first.state},
        first.recorded_steps,
        np.concatenate([part.trajectory for part in parts], axis=1),
        {name: np.concatenate([part.infos[name] for part in parts], axis=1) for name in first.infos},
        max(part.seconds for part in parts),
    )


class _Snapshots:
    """The newest snapshot of a fit, which `checkpoints` keeps when it wants to; None keeps nothing."""

    def __init__(
        self, estimator: Estimator, plan: Plan, problem: Problem, checkpoints: Checkpoints | None
    ) -> None:
        self._estimator, self._checkpoints, self._steps = estimator, checkpoints, plan.steps
        self.newest = None if checkpoints is None else checkpoints.restore(plan, problem)
        self._is_due = False
        self._state: dict[str, np.ndarray] | None = None

    def take(self, step: int, state: State) -> None:
        """Take what a snapshot at `step` keeps of `state`, which no refresh has touched yet.

        Where no restart can begin from there, the fit is stopped if that was asked for.
        """
        self._is_due, self._state = False, None
        if self._checkpoints is not None and restartable(self._estimator, step):
            self._state = kept_state(self._estimator, state)  # waits for the steps: a wish may come meanwhile
            self._is_due = self._checkpoints.due(step)
        elif step < self._steps:
            self.stop_if_asked(state)

    def stop_if_asked(self, state: State) -> None:
        """Stop the fit if that was asked for before the steps that led to `state` were over."""
        if self._checkpoints is not None:
            jax.block_until_ready(state)
            self._checkpoints.stop_if_asked(self.newest)

    def keep(self, step: int, records: _Records, seconds: float) -> None:
        """Let the snapshot at `step` be kept where one is due."""
        if self._checkpoints is None or self._state is None:
            return
        self.newest = Snapshot(step, self._state, *records.so_far(), records.stacked_infos(), seconds)
        if self._is_due:
            self._checkpoints.save(self.newest)


def restartable(estimator: Estimator, step: int) -> bool:
    """Return whether a fit can begin again at `step` from the state without its recomputed fields."""
    every = 0 if estimator.refresh is None else estimator.refresh.restart_every
    return every == 0 or step % every == 0


def kept_state(estimator: Estimator, state: State) -> dict[str, np.ndarray]:
    """Return, on the host and by path, the leaves of `state` that a refresh does not recompute."""
    kept = {name: leaf for name, leaf in _named_leaves(state).items() if not _recomputed(estimator, name)}
    return {name: np.asarray(leaf) for name, leaf in jax.device_get(kept).items()}


def rebuilt_state(estimator: Estimator, kept: dict[str, np.ndarray], like: State) -> State:
    """Return a state of `estimator` with the shapes of `like`, from what `kept_state` `kept` of it.

    Fields that a refresh recomputes are zeros.
    """
    wanted = _named_leaves(like)
    unknown = sorted(set(kept) - set(wanted))
    if unknown:
        raise InputError(f"the saved state has {unknown[0]}, which {estimator.name} of this version does not")
    leaves = [
        jnp.zeros(leaf.shape, leaf.dtype)
        if _recomputed(estimator, name)
        else _checked(kept.get(name), name, leaf)
        for name, leaf in wanted.items()
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _checked(found: np.ndarray | None, name: str, like: jax.ShapeDtypeStruct) -> jax.Array:
    if found is None or found.shape != like.shape or found.dtype != like.dtype:
        holds = "nothing" if found is None else f"{found.dtype} {found.shape}"
        raise InputError(f"the saved state holds {holds} as {name}; expected {like.dtype} {like.shape}")
    return jnp.array(found)  # a copy: the steps donate their state


def _recomputed(estimator: Estimator, name: str) -> bool:
    """Return whether a refresh recomputes the leaf with this path."""
    field_name = name.lstrip(".").partition(".")[0].partition("[")[0]
    return estimator.refresh is not None and field_name in estimator.refresh.recomputed


def _named_leaves(state: State) -> dict[str, Any]:
    return {jax.tree_util.keystr(where): leaf for where, leaf in jax.tree_util.tree_leaves_with_path(state)}
