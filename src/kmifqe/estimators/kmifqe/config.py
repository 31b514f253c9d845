"""The settings of KMIFQE."""

from __future__ import annotations

from dataclasses import dataclass

from kmifqe.errors import InputError
from kmifqe.estimators.base import check_config

BIASES = ("ignored", "reported", "subtracted", "held")


@dataclass(frozen=True)
class KMIFQEConfig:
    """Settings of KMIFQE; defaults are the paper's for Pendulum (appendix) unless said.

    Actions are measured in half action ranges, so that h and the metric mean the same for any units; on tasks
    whose dimensions share one range this only renames h.
    """

    hidden: int = 256  # units in each of two tanh layers
    batch: int = 1024  # rows a step (MuJoCo: 2,048)
    learning_rate: float = 3e-4  # Adam
    decay_steps: int = (
        0  # steps over which the learning rate falls to a hundredth along a cosine; 0: constant
    )
    start_at_mean: bool = False  # Q begins around the log's mean reward instead of around 0
    target_period: int = 1000  # steps between hard copies of the target network
    metric: str = "learned"  # or "identity": the paper's ablation
    metric_floor: float = 0.1  # added to M, relative to max(M): condition number at most 1 + 1/floor
    bandwidth: float | None = None  # None: learned by Prop. 1; a number: fixed, in half action ranges
    bandwidth_bounds: tuple[float, float] = (0.01, 2.0)  # half action ranges; guards b -> 0
    clip: tuple[float, float] = (1e-3, 2.0)  # of the weight, or of each dimension's ratio
    clip_per_dimension: bool = False  # True for the paper's MuJoCo tasks; needs a density that factorises
    # Q is that of the action cut to the box, as it is wherever the system cuts what it is told; the kernel is not.
    cut_actions: bool = False
    # What Q̄ changes by from π̃(s') to a': "ignored" as in the paper; up to second order "reported", or "subtracted"
    # from every bootstrap value; or "held": from bias_step on the whole change is subtracted, as one network saw it.
    bias: str = "ignored"
    # That network is the mean of the copies up to the first new metric from this step on, over about a twentieth of
    # the steps: what Q learns later does not feed it.
    bias_step: int = 0
    bias_share: float = 1.0  # how much of the bias is subtracted
    # Effective sample, as a share x of the rows, at which half of a minibatch is drawn alike and bootstraps on
    # Q̄(s', π̃(s')), as FQE's rows do; at a share e it is x / (x + e) of it. 0: never.
    half_fqe_at: float = 0.0
    # From this step on V̂ is the mean of what Q says at every copy; 0: what it says at the end. On some logs that
    # moves for as long as Q trains (docs/best_settings.md).
    average_step: int = 0
    density_floor: float = 1e-5  # of μ(π̃(s')|s') inside v (fitted μ: 1e-3)
    bandwidth_period: int = 1  # steps between new bandwidths
    metric_period: int = 1  # target copies between new metrics; in between only the bootstrap values are new
    envelope_period: int = 50  # steps between looks at h's drift; 0: every weight anew at every step
    precision: str = "mixed"  # of matrix products on a GPU: float16/bfloat16 with float32 sums; or "float32"

    def __post_init__(self) -> None:
        check_config(self)
        if self.metric not in ("learned", "identity"):
            raise InputError(f"metric is {self.metric!r}; expected 'learned' or 'identity'")
        if self.bias not in BIASES:
            raise InputError(f"bias is {self.bias!r}; expected one of {', '.join(BIASES)}")
        if self.bandwidth is not None and not 0 < self.bandwidth < float("inf"):
            raise InputError(
                f"bandwidth is {self.bandwidth}; expected a positive number, in half action ranges"
            )
        low, high = self.clip
        if not 0 <= low < high:
            raise InputError(f"clip is [{low}, {high}]; expected 0 <= low < high")
        low, high = self.bandwidth_bounds
        if not 0 < low < high < float("inf"):
            raise InputError(f"bandwidth_bounds is [{low}, {high}]; expected 0 < low < high, finite")
        if self.precision not in ("mixed", "float32"):
            raise InputError(f"precision is {self.precision!r}; expected 'mixed' or 'float32'")
        if (self.bias == "held") != (self.bias_step > 0):
            raise InputError(
                f"bias is {self.bias!r} and bias_step {self.bias_step}; expected 'held' with a step, or neither"
            )
        if not 0 < self.bias_share <= 1:
            raise InputError(f"bias_share is {self.bias_share}; expected more than 0, at most 1")
        if self.bias_share < 1 and self.bias not in ("subtracted", "held"):
            raise InputError(
                f"bias is {self.bias!r} and bias_share {self.bias_share}; a share is of one 'subtracted' or 'held'"
            )
        for name in (
            "metric_floor",
            "density_floor",
            "decay_steps",
            "envelope_period",
            "bias_step",
            "average_step",
            "half_fqe_at",
        ):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"{name} is {getattr(self, name)}; expected 0 or more, finite")
