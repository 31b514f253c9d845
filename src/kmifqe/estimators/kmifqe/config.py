"""The settings of KMIFQE."""

from __future__ import annotations

from dataclasses import dataclass

from kmifqe.errors import InputError
from kmifqe.estimators.base import UNITS, require, require_choice, require_counts, require_positive

CHOICES = {
    "metric": ("learned", "identity"),
    "bias": ("ignored", "subtracted", "held"),
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
    # paper. "subtracted": every bootstrap value is less its second-order expansion. "held": from bias_step on, every
    # bootstrap value is less the change of one fixed network, so that what Q learns later does not feed back into
    # the correction. That network is the running mean of the copies before bias_step.
    bias: str = "ignored"
    bias_step: int = 0  # of "held": the step from which on the bias is subtracted; more than 0
    # Ours: the effective sample size, as a share x of the rows, at which half of a minibatch is drawn uniformly and
    # bootstraps on Q̄(s', π̃(s')), as FQE does. At an effective share e that part is x/(x + e). 0: never.
    half_fqe_at: float = 0.0
    # Ours: from this step on V̂ is the mean over the copies of the target network; 0: V̂ is that of the last step.
    average_step: int = 0
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
        floors = "metric_floor", "density_floor", "half_fqe_at"
        for name in (*floors, "decay_steps", "envelope_period", "bias_step", "average_step"):
            value = getattr(self, name)
            require(0 <= value < infinity, name, value, "0 or more, finite")
        for name, choices in CHOICES.items():
            require_choice(self, name, choices)
        require(0 <= self.tau <= 1, "tau", self.tau, "0 <= tau <= 1")
        if self.tau and (self.bias == "held" or self.metric_period > 1):
            raise InputError(
                f"tau is {self.tau}, bias {self.bias!r} and metric_period {self.metric_period}; expected tau = 0 "
                "with a held bias, and metric_period = 1 otherwise: target_period has the steps between metrics"
            )
        positive = self.bandwidth is None or 0 < self.bandwidth < infinity
        require(positive, "bandwidth", self.bandwidth, "a positive number, in half action ranges")
        low, high = self.clip
        require(0 <= low < high, "clip", [low, high], "0 <= low < high")
        low, high = self.bandwidth_bounds
        require(0 < low < high < infinity, "bandwidth_bounds", [low, high], "0 < low < high, finite")
        if (self.bias == "held") != (self.bias_step > 0):
            raise InputError(
                f"bias is {self.bias!r} and bias_step {self.bias_step}; expected 'held' with a step, or neither"
            )

    def check_steps(self, steps: int) -> None:
        """Refuse a fit of `steps` steps that would end before a setting's step is reached."""
        for name in ("bias_step", "average_step"):
            value = getattr(self, name)
            require(value < steps, name, value, f"less than the {steps:,} steps of the fit")
        if self.bias == "held" and self.held_from >= steps:
            raise InputError(
                f"bias_step is {self.bias_step}, and the next copy of the target network is at step "
                f"{self.held_from}; expected a copy before the {steps:,} steps of the fit are over, or the bias is "
                "never subtracted"
            )

    @property
    def held_from(self) -> int:
        """The step of the first copy of the target network from `bias_step` on: the bias is subtracted from there."""
        return -(-self.bias_step // self.target_period) * self.target_period

    @property
    def metric_steps(self) -> int:
        """Steps between two new metrics."""
        return self.target_period * self.metric_period

    @property
    def has_target_values(self) -> bool:
        """Whether the table of all rows holds Q̄(s', π̃(s')): only where every copy brings new Hessians, and so it."""
        return self.metric_period == 1 and not self.tau
