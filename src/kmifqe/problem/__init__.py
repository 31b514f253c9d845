"""Transitions + policy + behaviour -> the arrays every estimator needs."""

from kmifqe.problem.host_rows import HostRows, largest_magnitudes
from kmifqe.problem.problem import Problem
from kmifqe.problem.rows import RowCounts

__all__ = ["HostRows", "Problem", "RowCounts", "largest_magnitudes"]
