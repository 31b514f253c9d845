"""Transitions -> a Minari dataset directory (HDF5 storage)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kmifqe.data.atomic import whole_folder
from kmifqe.data.minari import import_minari_storage, minari_root
from kmifqe.data.transitions import Transitions


def write_minari(transitions: Transitions, path: Path) -> None:
    """Write `path/data/` as minari does; inside Minari's own root the dataset is found by its id."""
    storage_class = import_minari_storage(str(path))
    from gymnasium.spaces import Box
    from minari import __version__

    root, place = minari_root().resolve(), path.resolve()
    dataset_id = place.relative_to(root).as_posix() if place.is_relative_to(root) else path.name
    with whole_folder(path) as partial:
        storage = storage_class.new(
            partial / "data",
            observation_space=Box(-np.inf, np.inf, (transitions.state_dim,), np.float32),
            action_space=Box(-np.inf, np.inf, (transitions.action_dim,), np.float32),
        )
        storage.update_metadata({"dataset_id": dataset_id, "minari_version": __version__})
        storage.update_episodes(_episodes(transitions))


def _episodes(transitions: Transitions) -> Iterator[Any]:
    from minari.data_collector import EpisodeBuffer

    bounds = np.append(transitions.first_rows, len(transitions))
    for number, (start, stop) in enumerate(pairwise(bounds)):
        rows, last = slice(start, stop), stop - 1
        # A last state that was not logged is a row of NaN, as in the flat formats.
        final = transitions.next_states[last] if transitions.has_next_state[last] else np.nan
        observations = np.empty((stop - start + 1, transitions.state_dim), np.float32)
        observations[:-1], observations[-1] = transitions.states[rows], final
        log_mu = transitions.log_mu
        yield EpisodeBuffer(
            id=number,
            observations=observations,
            actions=transitions.actions[rows],
            rewards=transitions.rewards[rows],
            terminations=transitions.terminated[rows],
            truncations=transitions.truncated[rows],
            infos=None if log_mu is None else {"action_log_probs": log_mu[rows]},
        )
