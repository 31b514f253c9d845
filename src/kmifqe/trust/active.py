"""Which policy to try next online, where a ranking from a log does not settle it (Konyushova et al., 2021).

What the log says of the policies' values is the prior, v ~ N(m, C), with the paired covariance of the ranking: an
episode of one policy therefore tells of the others that share its errors. An online episode of policy i returns
v_i + noise, noise ~ N(0, s²). The posterior is Gaussian in closed form; an acquisition rule reads off it which policy
to try. Konyushova et al. have a Gaussian process over the policies' actions in the place of C, with an off-policy
estimate as one more feature; here C is measured (docs/guides/ranking.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kmifqe.errors import InputError, shown
from kmifqe.trust.ranking import p_best

RULES = ("ucb", "thompson")
OPTIMISM = 2.0  # standard deviations that "ucb" adds to a mean; ours
PRIOR_EPISODES = 5.0  # how many episodes' worth the logged returns' spread counts in the noise; ours
DRAWS = 20_000  # of the posterior, for the chances to be the best


@dataclass(frozen=True)
class Posterior:
    """What the log and the online episodes together say of the policies' values: N(mean, covariance)."""

    mean: np.ndarray  # (policies,)
    covariance: np.ndarray  # (policies, policies)
    noise_std: float  # of one episode's normalised return

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of each value, (policies,)."""
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))

    def draws(self, count: int = DRAWS, seed: int = 0) -> np.ndarray:
        """Return (count, policies): values as they may be, drawn with `seed`."""
        normal = np.random.default_rng(seed).standard_normal((count, len(self.mean)))
        return self.mean + normal @ covariance_root(self.covariance).T


@dataclass(frozen=True)
class Choice:
    """Which policy to try next, and what is known of all of them by now."""

    policies: tuple[str, ...]
    try_next: str
    best: str  # the largest posterior mean: what to deploy if no more episodes can be played
    p_best: tuple[float, ...]  # chance of every policy to be the best
    episodes: tuple[int, ...]  # played online, of every policy
    posterior: Posterior

    @property
    def sentence(self) -> str:
        """What to do, for a person."""
        played = sum(self.episodes)
        chance = self.p_best[self.policies.index(self.best)]
        return (
            f"Next, play an episode of {self.try_next}. After {played:,} online episode{'s' * (played != 1)} "
            f"{self.best} is the best with a chance of {chance:.0%}."
        )


def posterior(
    mean: np.ndarray, covariance: np.ndarray, returns: Sequence[Sequence[float]], return_std: float
) -> Posterior:
    """Return what is known of values with the prior N(`mean`, `covariance`) after some online episodes.

    `returns` are the normalised returns of every policy's episodes, perhaps none. `return_std` is the spread of one
    episode's return that is expected beforehand. It counts as much as `PRIOR_EPISODES` episodes beside the spread of
    the returns around their policies' means.
    """
    counts = np.array([len(each) for each in returns])
    squares = sum(float(np.sum((np.asarray(each) - np.mean(each)) ** 2)) for each in returns if len(each))
    freedom = float(np.sum(np.maximum(counts - 1, 0)))
    noise = (PRIOR_EPISODES * return_std**2 + squares) / (PRIOR_EPISODES + freedom)
    tried = np.flatnonzero(counts)
    if not len(tried):
        return Posterior(np.asarray(mean, float), np.asarray(covariance, float), float(np.sqrt(noise)))
    means = np.array([np.mean(each) for each in returns if len(each)])
    observed = covariance[np.ix_(tried, tried)] + np.diag(noise / counts[tried])
    gain = np.linalg.solve(observed, covariance[tried]).T
    left = covariance - gain @ covariance[tried]
    return Posterior(mean + gain @ (means - mean[tried]), 0.5 * (left + left.T), float(np.sqrt(noise)))


def acquire(known: Posterior, rule: str = "ucb", seed: int = 0) -> int:
    """Return the policy to try next by the `rule`, one of `RULES`; `seed` is that of "thompson", which draws.

    `known` is what is known of all values so far.
    "ucb": the largest mean + 2 standard deviations. "thompson": the best policy of one draw of all values.
    """
    if rule not in RULES:
        raise InputError(f"rule is {shown(rule)}; expected one of {', '.join(RULES)}")
    if rule == "thompson":
        return int(known.draws(1, seed)[0].argmax())
    return int(np.argmax(known.mean + OPTIMISM * known.std))


def choose(
    policies: Sequence[str],
    mean: np.ndarray,
    covariance: np.ndarray,
    returns: Mapping[str, Sequence[float]],
    return_std: float,
    *,
    rule: str = "ucb",
) -> Choice:
    """Return which of the `policies` to try next.

    `mean` and `covariance` are those of the policies' estimates. `returns` are the online ones, normalised and by
    policy; one has the standard deviation `return_std`. `rule` is one of `RULES`, "ucb" by default.
    """
    unknown = [name for name in returns if name not in policies]
    if unknown:
        raise InputError(
            f"online returns are of the policy {shown(unknown[0])}; expected one that is ranked: "
            f"{', '.join(map(shown, policies))}"
        )
    own = [tuple(returns.get(name, ())) for name in policies]
    known = posterior(mean, covariance, own, return_std)
    played = tuple(len(each) for each in own)
    return Choice(
        policies=tuple(policies),
        try_next=policies[acquire(known, rule, seed=sum(played))],
        best=policies[int(known.mean.argmax())],
        p_best=tuple(map(float, p_best(known.draws()))),
        episodes=played,
        posterior=known,
    )


def paired_covariance(variances: np.ndarray, differences: np.ndarray) -> np.ndarray:
    """Return the covariance of values from their `variances` (n,) and those of their `differences` (n, n).

    Var(a − b) = Var a + Var b − 2 Cov(a, b). Variances that were estimated one by one need not fit together: what
    has a negative eigenvalue is replaced by the nearest covariance that has none.
    """
    found = 0.5 * (variances[:, None] + variances[None, :] - differences)
    np.fill_diagonal(found, variances)
    root = covariance_root(found)
    return np.asarray(root @ root.T)


def covariance_root(covariance: np.ndarray) -> np.ndarray:
    """Return R with R Rᵀ = `covariance`, whose negative eigenvalues count as 0."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
