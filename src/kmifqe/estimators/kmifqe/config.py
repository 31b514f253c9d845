"""The settings of KMIFQE."""

from __future__ import annotations

from dataclasses import dataclass

from kmifqe.errors import InputError
from kmifqe.estimators.base import UNITS, require, require_choice, require_counts, require_positive

CHOICES = {
    "metric": ("learned", "identity"),
    "bias": ("ignored", "subtracted"),
    "precision": ("mixed", "float32"),
    "units": UNITS,
}


@dataclass(frozen=True)
class KMIFQEConfig:
    """Settings of KMIFQE; defaults are the paper's for Pendulum (appendix) unless said.

    Actions are measured in half action ranges, so that h and the metric mean the same for any units; on tasks
    whose dimensions share one range this only renames h. Fields marked "ours" are departures from the paper, which
    docs/estimators/kmifqe.md explains; their defaults leave the paper's algorithm as it is.
    """

    hidden: int = 256  # units in each of two tanh layers
    batch: int = 1024  # rows a step (MuJoCo: 2,048)
    learning_rate: float = 3e-4  # Adam
    decay_steps: int = 0  # ours: steps over which the learning rate falls to a hundredth; 0: constant
    # "rewards": Q is learned as it is and begins around 0. Ours, "returns": it begins at the mean of the log's
    # returns and is learned in their spread, so that V̂ is equivariant to a shift and to the scale of the rewards.
    units: str = "rewards"
    target_period: int = (
        1000  # steps between hard copies of the target network; with tau, between new metrics
    )
    # Ours: the share of the network that moves into the target network at every step, as in FQE. Bootstrap values are
    # then computed for the rows of a minibatch, not for all rows at every copy. 0: hard copies.
    tau: float = 0.0
    metric: str = "learned"  # or "identity": the paper's ablation
    metric_floor: float = 0.1  # added to M, relative to max(M): condition number at most 1 + 1/floor
    bandwidth: float | None = None  # None: learned by Prop. 1; a number: fixed, in half action ranges
    bandwidth_bounds: tuple[float, float] = (0.01, 2.0)  # half action ranges; guards b -> 0
    clip: tuple[float, float] = (1e-3, 2.0)  # of the weight, or of each dimension's ratio
    clip_per_dimension: bool = False  # True for the paper's MuJoCo tasks; needs a density that factorises
    bounded: bool = (
        False  # ours: bootstrap values and V̂ are cut to what rewards like those logged can add up to
    )
    cut_actions: bool = False  # ours: the network reads actions cut to the action box; the kernel does not
    # Ours: what is done about the kernel's bias, the change of Q̄ from π̃(s') to a'. "ignored": nothing, as in the
    # paper. "subtracted": every bootstrap value is less its second-order expansion.
    bias: str = "ignored"
    density_floor: float = 1e-5  # of μ(π̃(s')|s') inside v (fitted μ: 1e-3)
    bandwidth_period: int = 1  # steps between new bandwidths
    metric_period: int = 1  # target copies between new metrics; in between only the bootstrap values are new
    envelope_period: int = (
        50  # ours: steps between checks whether h has drifted; 0: all weights at every step
    )
    precision: str = "mixed"  # of matrix products on a GPU: float16/bfloat16 with float32 sums; or "float32"

    def __post_init__(self) -> None:
        require_counts(self, "hidden", "batch", "target_period", "bandwidth_period", "metric_period")
        require_positive(self, "learning_rate")
        infinity = float("inf")
        for name in ("metric_floor", "density_floor", "decay_steps", "envelope_period"):
            value = getattr(self, name)
            require(0 <= value < infinity, name, value, "0 or more, finite")
        for name, choices in CHOICES.items():
            require_choice(self, name, choices)
        require(0 <= self.tau <= 1, "tau", self.tau, "0 <= tau <= 1")
        if self.tau and self.metric_period > 1:
            raise InputError(
                f"tau is {self.tau} and metric_period {self.metric_period}; expected metric_period = 1 where the "
                "target network moves at every step: target_period has the steps between metrics"
            )
        positive = self.bandwidth is None or 0 < self.bandwidth < infinity
        require(positive, "bandwidth", self.bandwidth, "a positive number, in half action ranges")
        low, high = self.clip
        require(0 <= low < high, "clip", [low, high], "0 <= low < high")
        low, high = self.bandwidth_bounds
        require(0 < low < high < infinity, "bandwidth_bounds", [low, high], "0 < low < high, finite")

    @property
    def metric_steps(self) -> int:
        """Steps between two new metrics."""
        return self.target_period * self.metric_period

    @property
    def has_target_values(self) -> bool:
        """Whether the table of all rows holds Q̄(s', π̃(s')): only where every copy brings new Hessians, and so it."""
        return self.metric_period == 1 and not self.tau
