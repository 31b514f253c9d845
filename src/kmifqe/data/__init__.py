"""A file or arrays -> Transitions, validated once, here."""

from kmifqe.data.load import load_dataset
from kmifqe.data.save import save_dataset
from kmifqe.data.summary import DatasetSummary, inspect
from kmifqe.data.transitions import Transitions

__all__ = ["DatasetSummary", "Transitions", "inspect", "load_dataset", "save_dataset"]
