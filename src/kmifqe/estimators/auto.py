"""auto: the estimate to ask for first. It fits two estimators and averages what they say (`trust.choice`)."""

from __future__ import annotations

from dataclasses import dataclass

from kmifqe.errors import InputError
from kmifqe.estimators.base import Estimator
from kmifqe.estimators.registry import EstimatorEntry


@dataclass(frozen=True)
class AutoConfig:
    """Settings of auto: it has none; those of its members are set by their own names, such as "fqe.hidden=128"."""


def _refuse(config: AutoConfig) -> Estimator:
    raise InputError("auto is an average over other estimators; expected the name of one that is fitted")


ENTRIES = (
    EstimatorEntry(
        name="auto",
        label="auto",
        color="#1a1a2e",
        dark_color="#f2f2f7",
        config=AutoConfig(),
        make=_refuse,
        needs_density=True,
        summary="the average of kmifqe (in-sample for stochastic targets) and fqe, by how well each is known",
        page="docs/estimators/auto.md",
        panel=("kmifqe", "in-sample", "fqe"),
        use_when="you want one number and have no reason to prefer an estimator",
        avoid_when="you compare estimators, or reproduce a paper's numbers",
    ),
)
