"""The arithmetic and the traffic that KMIFQE cannot do without, written out.

A multiplication and an addition are two operations. Counted is what the mathematics asks for, each thing once, with
every intermediate kept on the chip: tanh, random numbers, the metric's eigenvalues and rereading are not in it. So
the floor is a lower bound, and the gap to it is what an implementation adds.
"""

from __future__ import annotations

from dataclasses import dataclass

from kmifqe.maths.sampling import FANOUT

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Size:
    """How large a fit is."""

    rows: int
    states: int
    actions: int
    batch: int
    seeds: int
    per_dimension: bool = False  # weights clipped per dimension: d factors instead of one
    hidden: int = 256

    @property
    def inputs(self) -> int:
        """Width of the network's input."""
        return self.states + self.actions

    @property
    def factors(self) -> int:
        """Factors of a weight that are clipped one by one."""
        return self.actions if self.per_dimension else 1

    @property
    def parameters(self) -> int:
        """Numbers in one network: two hidden layers, one output, biases."""
        H = self.hidden
        return self.inputs * H + H + H * H + H + H + 1

    def __str__(self) -> str:
        return f"({self.states}, {self.actions})"


@dataclass(frozen=True)
class Cost:
    """Operations of matrix products, and bytes to and from memory."""

    flops: float
    bytes: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def times(self, count: float) -> Cost:
        """Return the cost of `count` of these."""
        return Cost(count * self.flops, count * self.bytes)

    def seconds(self, flops_per_second: float, bytes_per_second: float) -> float:
        """Return the least time: arithmetic and traffic overlap, so the longer of the two."""
        return max(self.flops / flops_per_second, self.bytes / bytes_per_second)


def pass_flops(size: Size) -> float:
    """Return one pass of one seed's minibatch: values, deltas, and a weighted sum of gradients.

    Forward in·H + H² + H. Deltas H²: only the middle layer has one to carry back, the last layer's is w₃ itself.
    Gradients in·H + H² + H: Σ c x δᵀ of each layer is one matrix product. Norms of single gradients come from
    activations and deltas, at no product.
    """
    H = size.hidden
    layers = size.inputs * H + H * H + H
    return 2.0 * size.batch * (layers + H * H + layers)


def step(size: Size, bandwidth_period: int = 1) -> Cost:
    """Return one step of all seeds: a pass for h (uniform minibatch) and one for the TD update (resampled).

    Traffic: rows of the first minibatch (s, a, r, Laplacian, Q̄ and log μ at the target action) and of the second
    (s, a, r, Q̄(s', a')); for a draw, a way down the sampling tree and k distances and densities; the parameters
    and both Adam moments, read and written once.
    """
    share = 1.0 / bandwidth_period
    levels, covered = 1, FANOUT
    while covered < size.rows:
        levels, covered = levels + 1, covered * FANOUT
    first, second = size.inputs + 4, size.inputs + 2
    draw = levels + 2 * size.factors
    numbers = size.batch * (share * first + second + draw) + 6 * size.parameters
    return Cost(size.seeds * (1.0 + share) * pass_flops(size), size.seeds * FLOAT * numbers)


def refresh(size: Size) -> Cost:
    """Return one refresh of all seeds: values, Hessians and distances of every row, and the sampling envelope.

    A row, with d actions: the states' part of the first layer once, q·H. At each of a' and π̃(s') the actions' part
    d·H, the middle layer H² and the output H. For the Hessian the deltas H², J₂ = W₂ᵀJ₁ d·H², and two symmetric
    sums over units, J₂ᵀ diag(c₂) J₂ and Wₐ diag(c₁) Wₐᵀ, d(d+1)/2·H each (the first factor pairs of the second are
    shared by all rows). Traffic: s', a', π̃(s') and log μ read once for all seeds; k distances, three numbers and
    the envelope written for each.
    """
    q, d, H, k = size.states, size.actions, size.hidden, size.factors
    values = q * H + 2 * (d * H + H * H + H)
    hessian = H * H + d * H * H + d * (d + 1) * H
    shared = q + 2 * d + k
    own = k + 3 + (1.0 + 1.0 / FANOUT)
    return Cost(
        2.0 * size.seeds * size.rows * (values + hessian), FLOAT * size.rows * (shared + size.seeds * own)
    )


def new_values(size: Size) -> Cost:
    """Return one refresh of the bootstrap values alone: the state part once, and one action a row."""
    q, d, H = size.states, size.actions, size.hidden
    values = q * H + d * H + H * H + H
    numbers = q + d + size.factors + size.seeds * (1 + size.factors + 1)
    return Cost(2.0 * size.seeds * size.rows * values, FLOAT * size.rows * numbers)


def run(
    size: Size, steps: int, target_period: int, metric_period: int = 1, bandwidth_period: int = 1
) -> Cost:
    """Return a whole fit: its steps, and a refresh at every copy of the target network."""
    copies = steps / target_period
    renewed = copies / metric_period
    return (
        step(size, bandwidth_period).times(steps)
        + refresh(size).times(renewed)
        + new_values(size).times(copies - renewed)
    )
