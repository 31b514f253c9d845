"""The estimators, by name, behind one protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kmifqe.estimators.base import Estimate, Estimator
from kmifqe.estimators.fit import Progress, fit
from kmifqe.estimators.fqe import FQEConfig, fqe
from kmifqe.estimators.kmifqe import KMIFQEConfig, kmifqe
from kmifqe.estimators.sr_dice import SRDICEConfig, sr_dice


def kmifqe_identity(config: KMIFQEConfig | None = None) -> Estimator:
    """Return KMIFQE without metric: the paper's ablation, L = I throughout."""
    from dataclasses import replace

    return kmifqe(replace(config or KMIFQEConfig(), metric="identity"))


ESTIMATORS: dict[str, tuple[Callable[..., Estimator], Any]] = {
    "kmifqe": (kmifqe, KMIFQEConfig),
    "kmifqe-identity": (kmifqe_identity, KMIFQEConfig),
    "fqe": (fqe, FQEConfig),
    "sr-dice": (sr_dice, SRDICEConfig),
}

__all__ = [
    "ESTIMATORS",
    "Estimate",
    "Estimator",
    "FQEConfig",
    "KMIFQEConfig",
    "Progress",
    "SRDICEConfig",
    "fit",
    "fqe",
    "kmifqe",
    "kmifqe_identity",
    "sr_dice",
]
