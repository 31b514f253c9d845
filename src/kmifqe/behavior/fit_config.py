"""The settings of a behaviour fit, and what its progress callback is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kmifqe.errors import InputError


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
    check_every: int = 100  # steps between looks at the held-out likelihood
    patience: int = 10  # checks without a gain in any count before stopping
    restarts: int = 1  # independent starts per count; more give the table a second standard error
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("batch", "steps", "check_every", "patience", "restarts"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise InputError(f"behaviour fit: {field} is {value}; expected at least 1")
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
