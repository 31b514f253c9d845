"""A file or arrays -> Transitions, validated once, here."""

from kmifqe.io.logs.load import load_dataset
from kmifqe.io.logs.save import save_dataset
from kmifqe.io.logs.summary import DatasetSummary, inspect
from kmifqe.mdp.transitions import Transitions

__all__ = ["DatasetSummary", "Transitions", "inspect", "load_dataset", "save_dataset"]
