"""Off-policy evaluation of deterministic, continuous-action policies from logged data.

The public names below are imported on first use: `import kmifqe` itself loads nothing, JAX least of all.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kmifqe.api import evaluate
    from kmifqe.behavior import GaussianBehavior, Logged
    from kmifqe.errors import InputError
    from kmifqe.estimators import Estimate, FQEConfig, KMIFQEConfig, SRDICEConfig, fit
    from kmifqe.estimators import make_fqe as fqe
    from kmifqe.estimators import make_kmifqe as kmifqe
    from kmifqe.estimators import make_sr_dice as sr_dice
    from kmifqe.io.logs.load import load_dataset
    from kmifqe.io.policies.load import load_policy
    from kmifqe.mdp.problem import Problem
    from kmifqe.mdp.transitions import Transitions
    from kmifqe.ranking import next_policy, rank
    from kmifqe.report.ranking import Ranking
    from kmifqe.report.result import Result

__version__ = "0.2.0"

__all__ = [
    "Estimate",
    "FQEConfig",
    "GaussianBehavior",
    "InputError",
    "KMIFQEConfig",
    "Logged",
    "Problem",
    "Ranking",
    "Result",
    "SRDICEConfig",
    "Transitions",
    "evaluate",
    "fit",
    "fqe",
    "kmifqe",
    "load_dataset",
    "load_policy",
    "next_policy",
    "rank",
    "sr_dice",
]

_NAMES_OF = {
    "behavior": ("GaussianBehavior", "Logged"),
    "io.logs": ("load_dataset",),
    "io.policies": ("load_policy",),
    "mdp": ("Problem", "Transitions"),
    "errors": ("InputError",),
    "estimators": (
        "Estimate",
        "FQEConfig",
        "KMIFQEConfig",
        "SRDICEConfig",
        "fit",
        "fqe",
        "kmifqe",
        "sr_dice",
    ),
    "api": ("evaluate",),
    "ranking": ("next_policy", "rank"),
    "report.ranking": ("Ranking",),
    "report.result": ("Result",),
}

# The factories have other names inside, where `kmifqe.estimators.kmifqe` and its neighbours are modules.
_CALLED = {"fqe": "make_fqe", "kmifqe": "make_kmifqe", "sr_dice": "make_sr_dice"}


def __getattr__(name: str) -> object:
    """Return a public name, or a module that holds some, on first use."""
    for module, names in _NAMES_OF.items():
        if name in names:
            value: object = getattr(import_module(f"kmifqe.{module}"), _CALLED.get(name, name))
            globals()[name] = value
            return value
        if name == module:
            return import_module(f"kmifqe.{module}")
    raise AttributeError(f"module 'kmifqe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_NAMES_OF})
