"""Maximum-likelihood fit of the behaviour density: all component counts side by side, the best one kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from kmifqe.behavior.fit_report import FitReport, calibration, episode_standard_error
from kmifqe.behavior.mixture import Network, TanhMixture, components_at, init_network, mixture_log_prob
from kmifqe.behavior.support import given_box, make_support, share_on_bound, support_box
from kmifqe.errors import InputError, shown
from kmifqe.io.serialize import digest, read_json, to_json, write_json
from kmifqe.mdp.transitions import Transitions


@dataclass(frozen=True)
class FitConfig:
    """How the density is fitted. The paper fixes the counts and the share; the rest is ours."""

    components: tuple[int, ...] = (10, 20, 30, 40)  # the paper's counts
    held_out: float = 0.1  # share of the rows, whole episodes; the paper's 10 %
    hidden: tuple[int, ...] = (256, 256)  # the paper's network size
    layer: float = 1e-3  # boundary layer, share of the half-range: 0.1 % of a uniform log lies in it
    batch: int = 512  # rows a step
    learning_rate: float = 1e-3  # Adam's usual value; cosine decay to 0 over `steps` settles the fit
    steps: int | None = None  # at most; None: 1,500, or five passes over the log if that is more
    seconds: float | None = (
        None  # for training, where a time budget asks for it: fewer steps follow; None: no limit
    )
    check_every: int = 100  # steps between looks at the held-out likelihood
    patience: int = 10  # checks without a gain in any count before stopping
    restarts: int = 1  # independent starts per count; more give the table a second standard error
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("batch", "steps", "check_every", "patience", "restarts"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise InputError(f"behaviour fit: {field} is {value}; expected at least 1")
        if self.seconds is not None and not self.seconds > 0:
            raise InputError(f"behaviour fit: seconds is {self.seconds}; expected above 0")
        if not self.components or min(self.components) < 1:
            raise InputError(f"behaviour fit: components is {self.components}; expected positive counts")
        if not 0 < self.held_out < 1:
            raise InputError(f"behaviour fit: held_out is {self.held_out}; expected a share between 0 and 1")
        if not 0 < self.layer <= 0.1:
            raise InputError(f"behaviour fit: layer is {self.layer}; expected within (0, 0.1]")
        if not self.learning_rate > 0:
            raise InputError(f"behaviour fit: learning_rate is {self.learning_rate}; expected above 0")

    def most_steps(self, rows: int) -> int:
        """Return the largest number of steps for a log of `rows` training rows."""
        return self.steps if self.steps is not None else max(1500, 5 * rows // self.batch)


class FitProgress(NamedTuple):
    """Where a fit stands, handed to the progress callback after each check."""

    step: int
    steps: int  # at most this many
    components: tuple[int, ...]
    held_out: tuple[float, ...]  # best held-out log-likelihood so far, nats a row, for each count


Models = tuple[Network, optax.OptState]
CHECK_CHUNK = 2048  # held-out rows at a time: bounds the memory of a check
CHECK_ROWS = (
    20_000  # held-out rows that are looked at where time is limited: a check then costs as much as 40 steps
)
LEAST_STEPS = 500  # however little time there is: a density of fewer steps is none


class Rows(NamedTuple):
    """Logged rows as the network sees them."""

    states: jax.Array  # (n, q) standardised
    z: jax.Array  # (n, d) latent actions
    side: jax.Array  # (n, d) boundary layers


class Trained(NamedTuple):
    """The best networks seen, one for each count and restart, counts first."""

    networks: Network  # leaves have a leading axis of models, padded to the largest count
    held_out: np.ndarray  # (counts, restarts) best mean log-likelihood in latent space
    steps: int

    def network(self, count_index: int, count: int, dims: int) -> Network:
        """Return the best restart of one count, without the outputs of its padding components."""
        model = count_index * self.held_out.shape[1] + int(self.held_out[count_index].argmax())
        *layers, (weight, bias) = jax.tree.map(lambda leaf: leaf[model], self.networks)
        used = count * (1 + 2 * dims)
        return (*layers, (weight[:, :used], bias[:used]))


def train_networks(
    train: Rows,
    check: Rows,
    edges: jax.Array,
    log_jacobian: float,
    config: FitConfig,
    progress: Callable[[FitProgress], None] | None,
) -> Trained:
    """Return the networks at their best held-out likelihood, for every count and restart of `config`.

    train: the rows to learn from.
    check: the held-out rows.
    edges: where the boundary layers begin in latent space, (2, d).
    log_jacobian: the mean held-out log-Jacobian, which turns latent likelihoods into those of actions.
    config: how the density is fitted.
    progress: called after each check; None for nobody.
    """
    counts = np.repeat(config.components, config.restarts)
    padded = int(counts.max())
    masks = jnp.where(np.arange(padded) < counts[:, None], 0.0, -jnp.inf)
    init_rng, batch_rng = np.random.default_rng(config.seed).spawn(2)
    most_steps = config.most_steps(len(train.states))
    sizes = (train.states.shape[1], config.hidden, padded, train.z.shape[1])
    starts = [init_network(init_rng, *sizes) for _ in counts]
    networks: Network = jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *starts)
    states = jax.vmap(_OPTIMIZER.init)(networks)
    best = np.full(len(counts), -np.inf)
    best_networks, since, step = networks, 0, 0
    started = time.perf_counter()
    while step < most_steps and since < config.patience:
        before = time.perf_counter()
        chunk = min(config.check_every, most_steps - step)
        picked = batch_rng.integers(len(train.states), size=(chunk, config.batch), dtype=np.int32)
        rates = _cosine(config.learning_rate, np.arange(step, step + chunk), most_steps)
        networks, states = _advance(networks, states, masks, edges, train, picked, rates)
        is_second = step == config.check_every
        step += chunk
        now = np.asarray(_held_out(networks, masks, edges, check))  # waits, so that the clock sees the work
        if config.seconds is not None and is_second:  # the first steps waited for compilation
            last = time.perf_counter()
            more = int((config.seconds - (last - started)) / (last - before)) * chunk
            most_steps = min(most_steps, max(step + more, LEAST_STEPS))
        better = now > best
        best_networks = _where_model(better, networks, best_networks)
        since = 0 if better.any() else since + 1
        best = np.maximum(best, now)
        if progress is not None:
            by_count = best.reshape(len(config.components), -1).mean(axis=1) + log_jacobian
            progress(FitProgress(step, most_steps, config.components, tuple(by_count.tolist())))
    if not np.isfinite(best).all():
        raise InputError("behaviour fit: the likelihood never became finite; are states or actions huge?")
    return Trained(best_networks, best.reshape(len(config.components), config.restarts), step)


_OPTIMIZER = optax.chain(optax.clip_by_global_norm(10.0), optax.scale_by_adam())


def _cosine(learning_rate: float, steps: np.ndarray, most_steps: int) -> np.ndarray:
    """Return the learning rates of these `steps`, which fall from `learning_rate` to 0 at `most_steps`."""
    return (0.5 * learning_rate * (1.0 + np.cos(np.pi * steps / most_steps))).astype(np.float32)


@jax.jit
def _advance(
    networks: Network,
    states: optax.OptState,
    masks: jax.Array,
    edges: jax.Array,
    rows: Rows,
    picked: jax.Array,
    rates: jax.Array,
) -> Models:
    """Return all models one gradient step on for each row of `picked`, the minibatches' row numbers.

    The models share each minibatch, so that counts compare in pairs. `rates` are the steps' learning rates.
    """

    def one_step(carry: Models, given: tuple[jax.Array, jax.Array]) -> tuple[Models, None]:
        numbers, rate = given
        minibatch = jax.tree.map(lambda array: array[numbers], rows)

        def one_model(network: Network, state: optax.OptState, mask: jax.Array) -> Models:
            gradient = jax.grad(_loss)(network, mask, edges, minibatch)
            update, state = _OPTIMIZER.update(gradient, state)
            return optax.apply_updates(network, jax.tree.map(lambda each: -rate * each, update)), state

        return jax.vmap(one_model)(*carry, masks), None

    carry, _ = jax.lax.scan(one_step, (networks, states), (picked, rates))
    return carry


def _loss(network: Network, mask: jax.Array, edges: jax.Array, rows: Rows) -> jax.Array:
    return -jax.vmap(_log_prob, (None, None, None, 0))(network, mask, edges, rows).mean()


def _log_prob(network: Network, mask: jax.Array, edges: jax.Array, row: Rows) -> jax.Array:
    return mixture_log_prob(components_at(network, mask, row.states), row.z, row.side, edges)


@jax.jit
def _held_out(networks: Network, masks: jax.Array, edges: jax.Array, rows: Rows) -> jax.Array:
    """Return each model's mean held-out log-likelihood in latent space, shape (models,)."""

    def one_row(row: Rows) -> jax.Array:
        return jax.vmap(_log_prob, (0, 0, None, None))(networks, masks, edges, row)

    return jax.lax.map(one_row, rows, batch_size=CHECK_CHUNK).mean(axis=0)


def _where_model(better: np.ndarray, new: Network, old: Network) -> Network:
    def pick(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, new, old)


FEWEST_ROWS = 20


def fit_behavior(
    states: np.ndarray,
    actions: np.ndarray,
    episode: np.ndarray,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
    config: FitConfig = FitConfig(),
    progress: Callable[[FitProgress], None] | None = None,
) -> tuple[TanhMixture, FitReport]:
    """Return the density with the best held-out likelihood, and the report that says how good it is.

    states: the logged states, (n, q).
    actions: the logged actions, (n, d).
    episode: the number of each row's episode, (n,); whole episodes are held out.
    low: the lower bounds of the actions, (d,), where they are known; logged actions beyond the bounds widen the
        density's box (see `support_box`). None by default: the box is found in the log.
    high: the upper bounds, likewise.
    config: how the density is fitted; the paper's component counts and network by default.
    progress: called after each check of the held-out likelihood; None by default.
    """
    started = time.perf_counter()
    states, actions, episode = np.asarray(states), np.asarray(actions), np.asarray(episode)
    _check_rows(states, actions, episode)
    held = held_out_rows(episode, config.held_out, np.random.default_rng(config.seed))
    given = given_box(low, high, actions.shape[1])
    box = support_box(actions, given)
    support = make_support(actions[~held], *box, config.layer)
    state_mean, state_std = _state_scale(states[~held])
    latent = support.to_latent(actions)
    standardised = (np.asarray(states, np.float32) - state_mean) / state_std
    looked_at = np.flatnonzero(held)
    if config.seconds is not None:
        looked_at = looked_at[:: -(-len(looked_at) // CHECK_ROWS)]
    log_jacobian = float(latent.log_jacobian[looked_at].sum(axis=1).mean())

    train, check = (
        Rows(*(jnp.asarray(array[rows]) for array in (standardised, latent.z, latent.side)))
        for rows in (~held, looked_at)
    )
    trained = train_networks(train, check, jnp.asarray(support.edges), log_jacobian, config, progress)
    fits = [
        TanhMixture(trained.network(i, count, actions.shape[1]), support, state_mean, state_std)
        for i, count in enumerate(config.components)
    ]
    best = int(trained.held_out.mean(axis=1).argmax())
    held_out = (states[held], actions[held])
    errors = [episode_standard_error(fit.log_prob(*held_out), episode[held]) for fit in fits]
    report = FitReport(
        components=config.components,
        log_likelihood=trained.held_out + log_jacobian,
        standard_error=np.array(errors),
        chosen=config.components[best],
        held_out_rows=int(held.sum()),
        held_out_episodes=len(np.unique(episode[held])),
        train_rows=int((~held).sum()),
        steps=trained.steps,
        low=box[0],
        high=box[1],
        widened=(box[0] < (given or box)[0]) | (box[1] > (given or box)[1]),
        on_bound=share_on_bound(actions, *(given or box)),
        in_layer=(latent.side != 0).mean(axis=0),
        calibration=calibration(fits[best].pit(*held_out, config.seed)),
        seconds=time.perf_counter() - started,
    )
    return fits[best], report


DENSITY_FILE, REPORT_FILE = "behavior.safetensors", "behavior_fit.json"
SCHEMA = "kmifqe.behavior_fit/3"


class Fitted(NamedTuple):
    """A fitted density, the report of its fit, and whether both were kept by an earlier call."""

    density: TanhMixture
    report: FitReport
    is_kept: bool


@dataclass(frozen=True)
class _Kept:
    """What REPORT_FILE holds: it vouches for the density file beside it."""

    schema: str
    fitted_on: dict[str, str]  # a digest of everything that decides the fit
    density: str  # the digest of the density file
    report: FitReport
    checksum: str = ""  # the digest of all of the above

    def checked(self) -> _Kept:
        """Return the same with its checksum."""
        return replace(self, checksum=digest(to_json(replace(self, checksum=""), sort_keys=True)))


def fit_or_load(
    folder: Path | None,
    transitions: Transitions,
    *,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
    config: FitConfig = FitConfig(),
    progress: Callable[[FitProgress], None] | None = None,
    afresh: bool = False,
    claim: Callable[[], None] = lambda: None,
) -> Fitted:
    """Return the density that `folder` holds of this log, or fit one and keep it there with its report.

    A density fitted to another log, box or config is refused. One whose file is missing, cut or changed is
    fitted again. The density always comes from its file, so that a resumed run sees the same one.

    folder: an existing directory for the two files; None fits and keeps nothing.
    transitions: the log.
    low: the lower bounds of the actions, as for `fit_behavior`; None by default.
    high: the upper bounds; None by default.
    config: how the density is fitted, by default as the paper does.
    progress: called after each check of the held-out likelihood; None by default.
    afresh: fit again, whatever the folder holds; False by default.
    claim: called before the files are written, where a folder keeps a list of its own; by default nothing is.
    """
    t = transitions
    fitted_on = {
        "states": digest(t.states),
        "actions": digest(t.actions),
        "episode": digest(t.episode),
        "low": digest(None if low is None else np.asarray(low)),
        "high": digest(None if high is None else np.asarray(high)),
        "config": digest(
            to_json(replace(config, seconds=None))
        ),  # more time may be given to a run that goes on
    }
    report = None if folder is None or afresh else _read_kept(folder, fitted_on)
    if folder is not None and report is not None:
        return Fitted(TanhMixture.load(folder / DENSITY_FILE), report, True)
    density, report = fit_behavior(t.states, t.actions, t.episode, low, high, config, progress)
    if folder is not None:
        claim()
        path = folder / DENSITY_FILE
        density.save(path)
        kept = _Kept(SCHEMA, fitted_on, digest(path.read_bytes()), report)
        write_json(folder / REPORT_FILE, kept.checked())
        density = TanhMixture.load(path)
    return Fitted(density, report, False)


def _read_kept(folder: Path, fitted_on: dict[str, str]) -> FitReport | None:
    """Return the kept report, or None where there is none, or one of the two files is not what was written."""
    path, density = folder / REPORT_FILE, folder / DENSITY_FILE
    try:
        record = read_json(path, dict[str, Any])
    except InputError:
        return None  # missing, or as good as lost
    if record.get("schema") != SCHEMA:
        raise InputError(
            f"{path}: its schema is {shown(record.get('schema'))!r}, this version reads {SCHEMA!r}; "
            "--force to fit again"
        )
    try:
        kept = read_json(path, _Kept)
    except InputError:
        return None
    if kept.checksum != kept.checked().checksum:
        return None
    changed = [name for name, value in fitted_on.items() if kept.fitted_on.get(name) != value]
    if changed:
        raise InputError(
            f"{density}: was fitted to other data: {', '.join(changed)} differ; "
            "give the same, choose another --out, or --force to fit again"
        )
    is_whole = density.is_file() and digest(density.read_bytes()) == kept.density
    return kept.report if is_whole else None


def held_out_rows(episode: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return which rows are held out, bool: random whole episodes until `share` of the rows is reached.

    At least one episode is held out and one kept. A log of one episode gives up its last rows instead.
    `episode` is the number of each row's episode, (n,), and `rng` draws the episodes.
    """
    _, index, lengths = np.unique(episode, return_inverse=True, return_counts=True)
    if len(lengths) == 1:
        held = np.zeros(len(episode), bool)
        held[-max(1, round(share * len(episode))) :] = True
        return held
    order = rng.permutation(len(lengths))
    enough = int(np.searchsorted(np.cumsum(lengths[order]), share * len(episode))) + 1
    return np.isin(index, order[: min(enough, len(lengths) - 1)])


def _state_scale(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and spread of each state column; a constant column keeps its unit."""
    mean, std = states.mean(axis=0, dtype=np.float64), states.std(axis=0, dtype=np.float64)
    std = np.where(std > 1e-6 * (1.0 + np.abs(mean)), std, 1.0)
    return mean.astype(np.float32), std.astype(np.float32)  # float32, lest a wide log be copied in float64


def _check_rows(states: np.ndarray, actions: np.ndarray, episode: np.ndarray) -> None:
    rows = len(states)
    for field, array, ndim in (("states", states, 2), ("actions", actions, 2), ("episode", episode, 1)):
        if array.ndim != ndim or len(array) != rows:
            shape = array.shape
            raise InputError(f"behaviour fit: {field} has shape {shape}; expected {ndim} axes, {rows} rows")
        if not np.isfinite(array).all():
            raise InputError(f"behaviour fit: {field} holds NaN or infinity; expected finite numbers")
    if rows < FEWEST_ROWS:
        raise InputError(f"behaviour fit: {rows} rows; expected at least {FEWEST_ROWS}")
