"""Known, logged or fitted behaviour densities: log μ(a|s)."""

from kmifqe.behavior.fit import FitConfig, FitProgress, Fitted, fit_behavior, fit_or_load
from kmifqe.behavior.fit_report import FitReport
from kmifqe.behavior.load import FitRequest, GaussianBehavior, parse_behavior
from kmifqe.behavior.mixture import TanhMixture
from kmifqe.mdp.ask import Behavior, FactorizedBehavior, Logged

__all__ = [
    "Behavior",
    "FactorizedBehavior",
    "FitConfig",
    "FitProgress",
    "FitReport",
    "FitRequest",
    "Fitted",
    "GaussianBehavior",
    "Logged",
    "TanhMixture",
    "fit_behavior",
    "fit_or_load",
    "parse_behavior",
]
