"""The estimators, by name, behind one protocol."""

from kmifqe.estimators.base import Estimate, Estimator
from kmifqe.estimators.fit import Progress, fit
from kmifqe.estimators.fqe import FQEConfig, fqe
from kmifqe.estimators.kmifqe.algorithm import KMIFQEConfig, kmifqe
from kmifqe.estimators.registry import ESTIMATORS, PRESETS, make_estimator
from kmifqe.estimators.sr_dice import SRDICEConfig, sr_dice

__all__ = [
    "ESTIMATORS",
    "PRESETS",
    "Estimate",
    "Estimator",
    "FQEConfig",
    "KMIFQEConfig",
    "Progress",
    "SRDICEConfig",
    "fit",
    "fqe",
    "kmifqe",
    "make_estimator",
    "sr_dice",
]
