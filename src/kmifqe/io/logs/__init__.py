"""A file or arrays -> Transitions, validated once, here.

Summaries are imported on first use: with them comes SciPy, which reading a log does without.
"""

from typing import TYPE_CHECKING

from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.save import save_dataset
from kmifqe.mdp.transitions import Transitions

if TYPE_CHECKING:
    from kmifqe.io.logs.summary import DatasetSummary, inspect

__all__ = ["DatasetSummary", "Transitions", "inspect", "load_dataset", "save_dataset"]


def __getattr__(name: str) -> object:
    if name in ("DatasetSummary", "inspect"):
        from kmifqe.io.logs import summary

        return getattr(summary, name)
    raise AttributeError(f"module 'kmifqe.io.logs' has no attribute {name!r}")
