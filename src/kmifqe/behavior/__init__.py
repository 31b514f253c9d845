"""Known, logged or fitted behaviour densities: log μ(a|s)."""

from kmifqe.behavior.fit import FitConfig, FitProgress, fit_behavior
from kmifqe.behavior.fit_report import FitReport
from kmifqe.behavior.gaussian import GaussianBehavior
from kmifqe.behavior.load import parse_behavior
from kmifqe.behavior.mixture import TanhMixture
from kmifqe.mdp.ask import Behavior, FactorizedBehavior, Fit, Logged

__all__ = [
    "Behavior",
    "FactorizedBehavior",
    "Fit",
    "FitConfig",
    "FitProgress",
    "FitReport",
    "GaussianBehavior",
    "Logged",
    "TanhMixture",
    "fit_behavior",
    "parse_behavior",
]
