"""Our FQE beside d3rlpy's: the same network, minibatch, data and target policy."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from kmifqe import Transitions
from kmifqe.estimators import FQEConfig, make_fqe
from kmifqe.mdp.problem import Problem
from records import Row, number
from timing import Run, medians

SECTION = "FQE and d3rlpy's"
INSTALL = "not installed: pip install d3rlpy torch==2.13.0"
ROWS, STATES, ACTIONS, EPISODE = 100_000, 11, 3, 1_000
WARM_UP = 200  # steps of theirs before the clock starts


def rows(quick: bool) -> list[Row]:
    """Return steps per second of both, or a row that says how to install theirs."""
    if importlib.util.find_spec("d3rlpy") is None:
        return [Row(SECTION, "d3rlpy", note=INSTALL)]
    log = _log()
    peer = _Peer(log)
    count = 50 if quick else 200
    ours = Run.begin(make_fqe(FQEConfig()), _problem(log, peer.target), seeds=1)
    batches = [peer.data.sample_transition_batch(FQEConfig().batch) for _ in range(count)]
    works: dict[str, Callable[[], Any]] = {"ours": partial(ours.steps, count)}
    for threads in sorted({1, peer.default_threads}):
        works[f"fit {threads}"] = partial(peer.fit, count, threads)
        works[f"update {threads}"] = partial(peer.update, batches, threads)
    seconds = medians(works, 3 if quick else 7)
    rates = {name: count / taken for name, taken in seconds.items()}
    result = [Row(SECTION, f"FQE, batch 256, one seed, {jax.default_backend()}", rates["ours"], "steps/s")]
    for kind, what in (("fit", "d3rlpy's fit"), ("update", "d3rlpy's update alone, minibatches at hand")):
        best = max((name for name in rates if name.startswith(kind)), key=lambda name: rates[name])
        tried = ", ".join(f"{number(r)}/s at {n.split()[1]}" for n, r in rates.items() if n.startswith(kind))
        ratio = rates["ours"] / rates[best]
        note = f"their better thread count: {tried}"
        result.append(Row(SECTION, what, rates[best], "steps/s", ratio, "our rate over theirs", note))
    return result


class _Peer:
    """d3rlpy's FQE on a log, its networks built and warmed up.

    The target policy is a one-unit network, so that asking it at every step costs them next to nothing: we ask a
    policy once, before the fit. Threads are set for each call: on a busy machine PyTorch's default, a thread a core,
    can be ten times slower than one thread, and the comparison is to be with the better of the two.
    """

    def __init__(self, log: dict[str, np.ndarray]) -> None:
        import d3rlpy
        import torch
        from d3rlpy.models.encoders import VectorEncoderFactory

        self.logger = d3rlpy.logging.NoopAdapterFactory()
        self.data = d3rlpy.dataset.MDPDataset(**log)
        on_gpu = jax.default_backend() == "gpu" and torch.cuda.is_available()
        device = "cuda:0" if on_gpu else "cpu:0"
        policy = d3rlpy.algos.DDPGConfig(actor_encoder_factory=VectorEncoderFactory([1])).create(device)
        policy.create_impl((STATES,), ACTIONS)
        ours = FQEConfig()
        config = d3rlpy.ope.FQEConfig(
            learning_rate=ours.learning_rate,
            batch_size=ours.batch,
            gamma=0.99,
            encoder_factory=VectorEncoderFactory([ours.hidden, ours.hidden], activation="relu"),
        )
        self.fqe = d3rlpy.ope.FQE(policy, config, device=device)
        self.target: Callable[[np.ndarray], np.ndarray] = policy.predict
        self.default_threads: int = torch.get_num_threads()
        self.set_threads: Callable[[int], None] = torch.set_num_threads
        self.fit(WARM_UP, 1)

    def fit(self, count: int, threads: int) -> None:
        """Run its training loop: what a user waits for, without log files and progress bar."""
        self.set_threads(threads)
        settings = {"n_steps": count, "n_steps_per_epoch": count, "show_progress": False}
        self.fqe.fit(self.data, logger_adapter=self.logger, **settings)

    def update(self, batches: list[Any], threads: int) -> None:
        """Run its update on minibatches already drawn."""
        self.set_threads(threads)
        for batch in batches:
            self.fqe.update(batch)


def _log() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    number = np.arange(ROWS)
    return {
        "observations": rng.standard_normal((ROWS, STATES), np.float32),
        "actions": rng.uniform(-1, 1, (ROWS, ACTIONS)).astype(np.float32),
        "rewards": rng.standard_normal(ROWS, np.float32),
        "terminals": np.zeros(ROWS, np.float32),
        "timeouts": ((number + 1) % EPISODE == 0).astype(np.float32),
    }


def _problem(log: dict[str, np.ndarray], target: Callable[[np.ndarray], np.ndarray]) -> Problem:
    fields = (log["observations"], log["actions"], log["rewards"])
    ends = (log["terminals"].astype(bool), log["timeouts"].astype(bool))
    return Problem.build(Transitions.from_arrays(*fields, *ends), lambda states: target(states), None, 0.99)
