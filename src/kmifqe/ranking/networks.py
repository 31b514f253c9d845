"""The networks of many policies: who gets how many, trained side by side and kept in a run directory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kmifqe.cluster import Cluster, Job, memory_of, packed
from kmifqe.estimators import Estimate, Estimator
from kmifqe.estimators.fit import make_plan, state_shapes
from kmifqe.estimators.forecast import policies_at_once
from kmifqe.io.format import duration
from kmifqe.mdp.policies import judged
from kmifqe.ranking.case import Case
from kmifqe.report.watch import Watch
from kmifqe.runner import Store, examined, fit_in_task, run_policies
from kmifqe.store import RunDirectory
from kmifqe.store.identity import fingerprint, joint_fingerprint
from kmifqe.trust.checks import Shared
from kmifqe.trust.ranking import combined, joint, p_best, value_draws
from kmifqe.trust.verdict import judge_run

TRAINING = (
    0.8  # share of the time in which networks are trained; the rest is reading, compiling and examining
)
CONTENDER = 0.05  # chance to be the best, by the rough values, from which on a policy gets all networks


class Networks:
    """Trains networks of a case's policies, and keeps them in a run directory if there is one."""

    def __init__(
        self,
        case: Case,
        estimators: Sequence[Estimator],
        steps: int | None,
        run: RunDirectory | None,
        watch: Watch,
        cluster: Cluster | None = None,
    ) -> None:
        self._cluster = cluster
        self._packed = None if cluster is None else cluster.share(packed(case.problem))
        self._answers = [] if cluster is None else [cluster.share(each) for each in case.answers]
        self.case, self.estimators, self.watch = case, estimators, watch
        self._steps, self._run = steps, run
        self._shared = Shared()
        first = fingerprint(judged(case.problem, case.answers[0]))
        others = [fingerprint(judged(case.problem, each), first) for each in case.answers[1:]]
        self.data = [first, *others]  # of every policy

    def train(self, policies: Sequence[int], seeds: tuple[int, ...]) -> dict[int, dict[str, Estimate]]:
        """Return the estimates of `policies` by networks of these `seeds`, by policy and estimator."""
        if self._cluster is not None:
            return self._train_on(self._cluster, policies, seeds)
        found: dict[int, dict[str, Estimate]] = {policy: {} for policy in policies}
        label = f"networks-{seeds[0]}-{seeds[-1]}"
        for estimator in self.estimators:
            plan = make_plan(estimator, self.case.problem, seeds=seeds, steps=self._steps, bootstrap=True)
            size = policies_at_once(estimator, self.case.problem, plan, len(policies))
            for start in range(0, len(policies), size):
                turn = list(policies[start : start + size])
                self.watch.say(
                    f"{estimator.name}: {len(seeds)} networks each of "
                    f"{', '.join(self.case.names[policy] for policy in turn)}"
                )
                estimates = run_policies(
                    self.case.problem,
                    [self.case.answers[policy] for policy in turn],
                    estimator,
                    plan,
                    size=size,
                    stores=[self._store(f"{label}.policy-{policy}", [policy]) for policy in turn],
                    together=lambda positions, turn=turn: self._store(  # type: ignore[misc]
                        f"{label}.policies-{turn[positions[0]]}-{turn[positions[-1]]}",
                        [turn[position] for position in positions],
                    ),
                    watch=self.watch,
                    examine=partial(examined, None, self._shared),
                )
                for policy, estimate in zip(turn, estimates, strict=True):
                    found[policy][estimator.name] = estimate
        return found

    def _train_on(
        self, cluster: Cluster, policies: Sequence[int], seeds: tuple[int, ...]
    ) -> dict[int, dict[str, Estimate]]:
        """Return what `train` does, from a cluster: a task is one policy, one estimator and these seeds."""
        found: dict[int, dict[str, Estimate]] = {policy: {} for policy in policies}
        tasks: dict[str, tuple[int, Any]] = {}
        jobs = []
        for estimator in self.estimators:
            plan = make_plan(estimator, self.case.problem, seeds=seeds, steps=self._steps, bootstrap=True)
            memory = memory_of(self.case.problem, state_shapes(estimator, plan, self.case.problem))
            for policy in policies:
                store = self._store(f"networks-{seeds[0]}-{seeds[-1]}.policy-{policy}", [policy])
                stored = store.finished(plan)
                if stored is not None:
                    found[policy][estimator.name] = stored
                    continue
                store.begin_fit(plan)
                kept = store.checkpoints(plan)
                start = None if kept is None else kept.restore(plan, self.case.problem)
                name = f"{self.case.names[policy]}, {estimator.name}, seeds {seeds[0]} to {seeds[-1]}"
                arguments = (estimator, plan, self._packed, self._answers[policy])
                jobs.append(Job(name, fit_in_task, arguments, plan, kept, start, memory))
                tasks[name] = policy, store

        def keep(job: Job, estimate: Estimate) -> None:
            policy, store = tasks[job.name]
            store.finish(job.plan, estimate)
            found[policy][estimate.estimator] = estimate

        cluster.run(jobs, self.watch, keep)
        order = [each.name for each in self.estimators]
        return {policy: {name: own[name] for name in order} for policy, own in found.items()}

    def _store(self, name: str, policies: Sequence[int]) -> Any:
        if self._run is None:
            return Store()
        data = [self.data[policy] for policy in policies]
        return self._run.part(name, data[0] if len(data) == 1 else joint_fingerprint(data))


def allocate(
    networks: Networks,
    seeds: tuple[int, ...],
    rough: int,
    minutes: float,
    accept: Sequence[str],
    watch: Watch,
) -> list[dict[str, Estimate]]:
    """Return the estimates of every policy: of a few networks for all, of all networks for those that may be best.

    What was decided follows from stored estimates alone, so that a run that is resumed decides alike.

    Args:
        networks: trains them.
        seeds: of all networks that a policy can get.
        rough: how many of them every policy gets.
        minutes: the time that all of it may take; infinite for no limit.
        accept: checks whose question the user has answered, as of `judge_run`.
        watch: hears what is decided.
    """
    everyone = range(len(networks.case.names))
    first = networks.train(everyone, seeds[:rough])
    estimates = [first[policy] for policy in everyone]
    rest = seeds[rough:]
    if not rest:
        return estimates
    contenders = _contenders(estimates, accept)
    spent = sum(each.seconds for policy in estimates for each in policy.values())
    if minutes < math.inf:
        a_network = spent / (len(estimates) * rough)
        affordable = int((TRAINING * 60.0 * minutes - spent) / max(a_network * len(contenders), 1e-9))
        if affordable < len(rest):
            rest = rest[: max(affordable, 0)]
            watch.warn(
                f"the first {rough} networks of every policy were trained in {duration(spent)}: "
                f"{minutes:g} minute{'s' * (minutes != 1)} leave room for {len(rest) or 'no'} more of those that may "
                "be the best; to go on: the same again with more minutes and resume (--resume)"
            )
    if not contenders or not rest:
        return estimates
    watch.say(
        f"{len(rest)} more networks for those that may be the best: "
        f"{', '.join(networks.case.names[policy] for policy in contenders)}"
    )
    more = networks.train(contenders, rest)
    for policy, own in more.items():
        estimates[policy] = {name: joined(estimates[policy][name], own[name]) for name in own}
    return estimates


def _contenders(estimates: Sequence[Mapping[str, Estimate]], accept: Sequence[str]) -> list[int]:
    """Return the policies that may be the best by their rough values; at least two where two can be ranked."""
    values = combined(estimates, [judge_run(list(each.values()), accept) for each in estimates])
    sound = [i for i, each in enumerate(values) if each.is_ranked]
    if len(sound) < 2:
        return sound
    episodes = next(iter(estimates[0].values())).episodes
    chances = p_best(value_draws(joint([values[i] for i in sound], episodes)))
    order = np.argsort(-chances, kind="stable")
    chosen = [sound[i] for place, i in enumerate(order) if place < 2 or chances[i] >= CONTENDER]
    return sorted(chosen)


def joined(first: Estimate, more: Estimate) -> Estimate:
    """Return one estimate of the networks of two fits with the same plan and other seeds.

    What was measured of the first one's networks stands for all: the log's part is read off a few of them anyway.
    """
    return replace(
        first,
        seeds=(*first.seeds, *more.seeds),
        values=np.concatenate([first.values, more.values]),
        trajectory=np.concatenate([first.trajectory, more.trajectory], axis=1),
        infos={name: np.concatenate([first.infos[name], more.infos[name]], axis=1) for name in first.infos},
        seconds=first.seconds + more.seconds,
    )
