"""The two leaves that everybody may import: a log as Transitions, and a log with a target policy as a Problem.

`Problem` is imported on first use: with it comes JAX, which reading a log does without.
"""

from typing import TYPE_CHECKING

from kmifqe.mdp.transitions import Transitions

if TYPE_CHECKING:
    from kmifqe.mdp.problem import Problem

__all__ = ["Problem", "Transitions"]


def __getattr__(name: str) -> object:
    if name == "Problem":
        from kmifqe.mdp.problem import Problem

        return Problem
    raise AttributeError(f"module 'kmifqe.mdp' has no attribute {name!r}")
