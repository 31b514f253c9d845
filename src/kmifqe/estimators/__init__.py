"""The estimators, by name, behind one shape."""

from kmifqe.estimators.base import Estimate, Estimator, Refresh
from kmifqe.estimators.fit import Progress, fit
from kmifqe.estimators.fqe import FQEConfig, make_fqe
from kmifqe.estimators.kmifqe import KMIFQEConfig, make_kmifqe
from kmifqe.estimators.registry import PRESETS, EstimatorEntry, entries, entry_named, make_estimator, register
from kmifqe.estimators.sr_dice import SRDICEConfig, make_sr_dice

__all__ = [
    "PRESETS",
    "Estimate",
    "Estimator",
    "EstimatorEntry",
    "FQEConfig",
    "KMIFQEConfig",
    "Progress",
    "Refresh",
    "SRDICEConfig",
    "entries",
    "entry_named",
    "fit",
    "make_estimator",
    "make_fqe",
    "make_kmifqe",
    "make_sr_dice",
    "register",
]
