"""A file or a callable -> Policy: states -> actions. Files are data; nothing is unpickled."""

from kmifqe.io.policies.actor import Actor
from kmifqe.io.policies.load import load_policy
from kmifqe.io.policies.objects import CheckedPolicy, check_policy_fits
from kmifqe.io.policies.stochastic import StochasticActor, load_stochastic_policy
from kmifqe.mdp.ask import Policy

__all__ = [
    "Actor",
    "CheckedPolicy",
    "Policy",
    "StochasticActor",
    "check_policy_fits",
    "load_policy",
    "load_stochastic_policy",
]
