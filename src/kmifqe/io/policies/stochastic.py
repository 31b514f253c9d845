"""Targets that draw their actions: Gaussian heads of saved networks, and Python objects with a distribution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kmifqe.errors import InputError, shown
from kmifqe.io.policies.actor import Actor, d4rl_log_std
from kmifqe.io.policies.load import is_importable, load_policy, statistics_of
from kmifqe.io.policies.normalization import Normalization
from kmifqe.io.policies.objects import import_object
from kmifqe.io.policies.sb3 import sb3_log_std
from kmifqe.mdp.ask import StochasticPolicy

LOG_STD = (-20.0, 2.0)  # what Stable-Baselines3 and rlkit, which made D4RL's files, clip log σ to
EXPECTED = (
    "expected an object with sample(states, rng, n) and log_prob(states, actions), or a function of a torch tensor "
    "of states that returns a torch distribution"
)
EDGE = (
    1e-6  # of the squashed range: an action on the bound is read as one this far inside, as both libraries do
)


@dataclass(frozen=True)
class StochasticActor:
    """The network `actor` with a normal distribution around its last layer: log σ(s) = clip(latent @ w + b).

    With the output "tanh" an action is the box's middle plus half its range times tanh(u), u normal; its density has
    the Jacobian of that map. With the output "clip" an action is u itself, and a drawn one is cut to the box, as
    Stable-Baselines3 does before it acts; `log_prob` is that of u, so it is for actions logged as they were drawn.
    """

    actor: Actor
    log_std_weight: np.ndarray  # (latent, d); zeros where the standard deviation is the same everywhere
    log_std_bias: np.ndarray  # (d,)

    def __post_init__(self) -> None:
        latent, d = self.actor.weights[-1].shape
        shapes = self.log_std_weight.shape, self.log_std_bias.shape
        if shapes != ((latent, d), (d,)):
            raise InputError(
                f"{self.name}: the standard deviation's layer has shapes {shapes}; expected (({latent}, {d}), ({d},))"
            )

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.actor.name

    @property
    def low(self) -> np.ndarray:
        """Lower end of the action box, shape (d,)."""
        return self.actor.low

    @property
    def high(self) -> np.ndarray:
        """Upper end of the action box, shape (d,)."""
        return self.actor.high

    @property
    def state_dim(self) -> int:
        """q, the width of a state."""
        return self.actor.state_dim

    @property
    def action_dim(self) -> int:
        """d, the width of an action."""
        return self.actor.action_dim

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return the deterministic action for each row of `states`."""
        return self.actor(states)

    def sample(self, states: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
        """Return `n` actions drawn by `rng` for each row of `states`, shape (rows, n, d)."""
        mean, std = self._normal(states)
        drawn = mean[:, None] + std[:, None] * rng.standard_normal((len(mean), n, self.action_dim))
        if self.actor.output == "tanh":
            drawn = self.low + 0.5 * (np.tanh(drawn) + 1.0) * (self.high - self.low)
        return np.clip(drawn, self.low, self.high).astype(np.float32)

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log π(a|s) of `actions` at `states`, shape (rows,)."""
        mean, std = self._normal(states)
        u, log_jacobian = np.asarray(actions, np.float64), np.zeros(len(actions))
        if self.actor.output == "tanh":
            half = 0.5 * (np.asarray(self.high, np.float64) - self.low)
            y = np.clip((u - self.low) / half - 1.0, -1.0 + EDGE, 1.0 - EDGE)
            u, log_jacobian = np.arctanh(y), np.sum(np.log(half * (1.0 - y**2)), axis=1)
        z = (u - mean) / std
        log_normal = np.sum(-0.5 * z**2 - np.log(std) - 0.5 * np.log(2.0 * np.pi), axis=1)
        return np.asarray(log_normal - log_jacobian)

    def _normal(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        latent = self.actor.latent(states)
        mean = latent @ self.actor.weights[-1] + self.actor.biases[-1]
        log_std = np.clip(latent @ self.log_std_weight + self.log_std_bias, *LOG_STD)
        return mean.astype(np.float64), np.exp(log_std.astype(np.float64))


class StochasticObject:
    """An object that draws actions: one with `sample` and `log_prob`, or a function that returns a distribution.

    A distribution is what torch.distributions and its like offer: `sample` of a shape, and `log_prob`, which may be
    one number for a row or one for each action dimension; those are added up.
    """

    def __init__(self, source: Any, name: str, normalization: Normalization | None = None) -> None:
        self.name, self._source, self._normalization = name, source, normalization
        space = getattr(source, "action_space", None)
        self.low = getattr(source, "low", getattr(space, "low", None))
        self.high = getattr(source, "high", getattr(space, "high", None))
        self.state_dim, self.action_dim = (
            getattr(source, "state_dim", None),
            getattr(source, "action_dim", None),
        )

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Return one drawn action for each row of `states`, always the same ones."""
        return self.sample(states, np.random.default_rng(0), 1)[:, 0]

    def sample(self, states: np.ndarray, rng: np.random.Generator, n: int) -> np.ndarray:
        """Return `n` actions drawn for each row of `states`, shape (rows, n, d)."""
        seen = self._seen(states)
        if hasattr(self._source, "sample"):
            with self._naming("sample"):
                return np.asarray(self._source.sample(seen, rng, n))
        import torch

        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(int(rng.integers(2**31)))
            drawn = self._distribution(seen).sample((n,))
        drawn = np.asarray(drawn.cpu().numpy()).swapaxes(0, 1)
        return drawn[..., None] if drawn.ndim == 2 else drawn  # a distribution of numbers is of one dimension

    def log_prob(self, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return log π(a|s) of `actions` at `states`, shape (rows,)."""
        seen = self._seen(states)
        if hasattr(self._source, "log_prob"):
            with self._naming("log_prob"):
                return np.asarray(self._source.log_prob(seen, actions))
        import torch

        given = torch.from_numpy(np.asarray(actions, np.float32))
        with torch.no_grad():
            distribution = self._distribution(seen)
            is_of_numbers = len(distribution.batch_shape) + len(distribution.event_shape) == 1
            with self._naming("log_prob"):
                found = distribution.log_prob(given[:, 0] if is_of_numbers else given)
        log_prob = found.cpu().numpy()
        return np.asarray(log_prob.sum(axis=1) if log_prob.ndim == 2 else log_prob)

    def _distribution(self, states: np.ndarray) -> Any:
        import torch

        try:
            answer = self._source(torch.from_numpy(states))
        except Exception as error:  # whatever a user's policy raises is a fact about that policy
            raise InputError(
                f"{self.name}: failed on states of shape {states.shape} ({shown(error)}); {EXPECTED}"
            ) from error
        if not (hasattr(answer, "sample") and hasattr(answer, "log_prob")):
            raise InputError(
                f"{self.name}: returned a {type(answer).__name__}; {EXPECTED}; or judge it without --stochastic"
            )
        return answer

    @contextmanager
    def _naming(self, function: str) -> Iterator[None]:
        """Put into words what the policy's own `function` raises at logged states and actions."""
        try:
            yield
        except Exception as error:  # whatever a user's policy raises is a fact about that policy
            support = (
                "; of a distribution with a bounded support give validate_args=False, so that an action outside it "
                "has the density 0"
            )
            raise InputError(
                f"{self.name}: its {function} failed ({shown(error)}); {EXPECTED}"
                f"{support if function == 'log_prob' else ''}"
            ) from error

    def _seen(self, states: np.ndarray) -> np.ndarray:
        states = np.asarray(states, np.float32)
        return states if self._normalization is None else np.asarray(self._normalization(states), np.float32)


def load_stochastic_policy(source: Any, *, normalization: object = None) -> StochasticPolicy:
    """Return the policy of `source` as one that draws its actions, or refuse one that cannot.

    Files: a Stable-Baselines3 zip of SAC, TQC, PPO, A2C or TRPO, or a D4RL file with its policy. From Python, or
    behind `module:name`: an object with sample(states, rng, n) and log_prob(states, actions), or a function of a
    batch of states as a torch tensor that returns a torch distribution. `normalization` is as of `load_policy`.
    """
    if isinstance(source, str | Path) and not is_importable(source):
        actor = load_policy(source, normalization=normalization)
        kind = Path(source).suffix.lower()
        if not isinstance(actor, Actor) or kind not in (".zip", ".hdf5", ".h5"):
            raise InputError(
                f"{source}: holds a policy without a distribution; expected a Stable-Baselines3 .zip, a D4RL .hdf5, "
                "or module:name of an object with sample and log_prob, or judge it without --stochastic"
            )
        return StochasticActor(actor, *(sb3_log_std(source) if kind == ".zip" else d4rl_log_std(source)))
    found = import_object(source) if isinstance(source, str) else source
    if isinstance(found, StochasticActor | StochasticObject):
        return found
    name = str(getattr(found, "name", None) or getattr(found, "__name__", None) or type(found).__name__)
    if not (callable(found) or (hasattr(found, "sample") and hasattr(found, "log_prob"))):
        raise InputError(f"{name}: is a {type(found).__name__}; {EXPECTED}")
    return StochasticObject(found, name, statistics_of(normalization))
