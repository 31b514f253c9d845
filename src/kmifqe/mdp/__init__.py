"""The two leaves that everybody may import: a log as Transitions, and a log with a target policy as a Problem."""

from kmifqe.mdp.host_rows import HostRows, largest_magnitudes
from kmifqe.mdp.problem import Problem, RowCounts
from kmifqe.mdp.transitions import Transitions

__all__ = ["HostRows", "Problem", "RowCounts", "Transitions", "largest_magnitudes"]
