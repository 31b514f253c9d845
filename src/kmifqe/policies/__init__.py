"""A file or a callable -> Policy: states -> actions. Files are data; nothing is unpickled."""

from kmifqe.policies.actor import Actor
from kmifqe.policies.base import Policy
from kmifqe.policies.checked import CheckedPolicy, check_policy_fits
from kmifqe.policies.load import load_policy

__all__ = ["Actor", "CheckedPolicy", "Policy", "check_policy_fits", "load_policy"]
