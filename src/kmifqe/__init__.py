"""Off-policy evaluation of deterministic, continuous-action policies from logged data."""

from kmifqe.behavior import GaussianBehavior, Logged
from kmifqe.data import Transitions, load_dataset
from kmifqe.errors import InputError
from kmifqe.estimators import Estimate, FQEConfig, KMIFQEConfig, SRDICEConfig, fit, fqe, kmifqe, sr_dice
from kmifqe.policies import load_policy
from kmifqe.problem import Problem

__version__ = "0.1.0"

__all__ = [
    "Estimate",
    "FQEConfig",
    "GaussianBehavior",
    "InputError",
    "KMIFQEConfig",
    "Logged",
    "Problem",
    "SRDICEConfig",
    "Transitions",
    "fit",
    "fqe",
    "kmifqe",
    "load_dataset",
    "load_policy",
    "sr_dice",
]
