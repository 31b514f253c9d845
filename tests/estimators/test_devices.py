"""Networks shared by eight devices end with the values that one device gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import kmifqe
from kmifqe.estimators.fit import _devices_for

FITS = """
import json
import jax
import numpy as np
import kmifqe
from kmifqe.estimators.fit import fit, fit_policies, make_plan
from kmifqe.estimators import make_estimator
from kmifqe.mdp.ask import Logged
from kmifqe.mdp.policies import ask_policy, judged_together

rng, n = np.random.default_rng(0), 400
log = kmifqe.Transitions.from_arrays(
    rng.normal(size=(n, 3)), rng.normal(size=(n, 1)), rng.normal(size=n), np.zeros(n),
    np.arange(n) % 50 == 49, action_log_probs=rng.normal(size=n),
)
policies = [lambda s, scale=scale: np.tanh(scale * s[:, :1]) for scale in (0.5, 1.0, 1.5, 2.0)]
problem = kmifqe.Problem.build(log, policies[0], Logged(), 0.9)
found = {"devices": len(jax.devices())}
for name in ("fqe", "kmifqe"):
    estimator = make_estimator(name, "fast", ["hidden=16"], 40)
    plan = make_plan(estimator, problem, seeds=8, steps=40, bootstrap=True)
    estimate = fit(estimator, problem, plan)
    found[name] = estimate.values.tolist()
    found[f"{name} lies on"] = len(jax.tree.leaves(estimate.final_state)[0].devices())
several = judged_together(problem, [ask_policy(log, policy, None) for policy in policies])
estimator = make_estimator("fqe", "fast", ["hidden=16"], 40)
plan = make_plan(estimator, problem, seeds=3, steps=40, bootstrap=True)
found["policies"] = [each.values.tolist() for each in fit_policies(estimator, several, plan)]
print(json.dumps(found))
"""


def values_with(devices: int) -> dict[str, object]:
    """Return what the fits say in a process that sees so many host devices."""
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(kmifqe.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-c", FITS],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_eight_devices_give_the_values_of_one():
    one, eight = values_with(1), values_with(8)
    assert (one["devices"], eight["devices"]) == (1, 8)
    assert eight["fqe lies on"] == 1
    for name in ("fqe", "kmifqe", "policies"):
        # Batches of matrix products of other sizes may round the last bits in another way.
        np.testing.assert_allclose(eight[name], one[name], rtol=2e-4, atol=1e-6, err_msg=name)
        assert np.std(one[name]) > 1e-3, "networks that are all alike would show nothing"


@pytest.mark.parametrize(("networks", "shared_by"), [(8, 8), (10, 5), (7, 7), (11, 1), (24, 8)])
def test_devices_divide_the_networks_evenly(networks, shared_by, monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda: list(range(8)))
    problem = SimpleNamespace(policies=None, is_on_host=False)
    assert len(_devices_for(np.zeros(networks), problem)) == shared_by
