"""Targets that draw their actions: densities against torch.distributions, draws against their own density."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from kmifqe.errors import InputError
from kmifqe.io.policies import load_stochastic_policy
from kmifqe.mdp.ask import StochasticPolicy
from policy_files import write_sb3

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
STATES = RNG.standard_normal((5, 3)).astype(np.float32)
LOW, HIGH = np.array([-2.0, -0.5]), np.array([1.0, 0.5])  # of the zips that `write_sb3` makes
HALF, MIDDLE = (HIGH - LOW) / 2, (HIGH + LOW) / 2


def linear(name: str, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    weight, bias = 0.4 * RNG.standard_normal((outputs, inputs)), 0.2 * RNG.standard_normal(outputs)
    return {f"{name}.weight": weight.astype(np.float32), f"{name}.bias": bias.astype(np.float32)}


SAC = linear("actor.latent_pi.0", 3, 8) | linear("actor.mu", 8, 2) | linear("actor.log_std", 8, 2)
PPO = (
    linear("mlp_extractor.policy_net.0", 3, 8)
    | linear("action_net", 8, 2)
    | {"log_std": np.array([-0.5, -2.0], np.float32)}
)
TD3 = linear("actor.mu.0", 3, 8) | linear("actor.mu.2", 8, 2)
GSDE = (
    linear("actor.latent_pi.0", 3, 8)
    | linear("actor.mu.0", 8, 2)
    | {"actor.log_std": np.zeros((8, 2), np.float32)}
)


def applied(arrays: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]


def squashed(mean: np.ndarray, log_std: np.ndarray, half: np.ndarray, middle: np.ndarray) -> object:
    """Return the distribution of middle + half·tanh(u), u normal, as torch has it."""
    d = torch.distributions
    normal = d.Normal(torch.tensor(mean), torch.tensor(np.exp(log_std)))
    box = d.AffineTransform(torch.tensor(middle), torch.tensor(half))
    return d.TransformedDistribution(normal, [d.TanhTransform(), box])


def assert_draws_have_the_density(policy: StochasticPolicy, distribution: object) -> None:
    """Two moments of 20,000 draws, each within five standard errors of those of torch's own draws."""
    drawn = policy.sample(STATES, np.random.default_rng(1), 20_000).astype(np.float64)
    torch.manual_seed(0)
    other = distribution.sample((20_000,)).numpy().swapaxes(0, 1)
    for moment in (1, 2):
        ours, theirs = drawn**moment, np.clip(other, LOW, HIGH) ** moment
        error = np.hypot(ours.std(axis=1), theirs.std(axis=1)) / np.sqrt(20_000)
        assert (np.abs(ours.mean(axis=1) - theirs.mean(axis=1)) < 5 * error + 1e-6).all()


def test_sac_has_the_density_of_a_squashed_normal(tmp_path: Path) -> None:
    policy = load_stochastic_policy(write_sb3(tmp_path / "sac.zip", SAC))
    x = np.maximum(applied(SAC, "actor.latent_pi.0", STATES.astype(np.float64)), 0.0)
    expected = squashed(applied(SAC, "actor.mu", x), applied(SAC, "actor.log_std", x), HALF, MIDDLE)
    actions = policy.sample(STATES, np.random.default_rng(0), 1)[:, 0]
    log_prob = expected.log_prob(torch.tensor(actions.astype(np.float64))).numpy().sum(axis=1)
    np.testing.assert_allclose(policy.log_prob(STATES, actions), log_prob, rtol=1e-3, atol=1e-3)
    assert_draws_have_the_density(policy, expected)


def test_ppo_has_the_density_of_a_normal_and_draws_within_the_box(tmp_path: Path) -> None:
    policy = load_stochastic_policy(write_sb3(tmp_path / "ppo.zip", PPO))
    x = np.tanh(applied(PPO, "mlp_extractor.policy_net.0", STATES.astype(np.float64)))
    mean, std = applied(PPO, "action_net", x), np.exp(PPO["log_std"].astype(np.float64))
    expected = torch.distributions.Normal(
        torch.tensor(mean), torch.tensor(np.broadcast_to(std, mean.shape).copy())
    )
    actions = mean + std * RNG.standard_normal(mean.shape)
    log_prob = expected.log_prob(torch.tensor(actions)).numpy().sum(axis=1)
    np.testing.assert_allclose(policy.log_prob(STATES, actions), log_prob, rtol=1e-4, atol=1e-4)
    assert_draws_have_the_density(policy, expected)


def test_a_d4rl_file_has_its_own_layer_for_the_standard_deviation(tmp_path: Path) -> None:
    shapes = {"fc0": (7, 3), "last_fc": (2, 7), "last_fc_log_std": (2, 7)}
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        for name, shape in shapes.items():
            file[f"metadata/policy/{name}/weight"] = (0.3 * RNG.standard_normal(shape)).astype(np.float32)
            file[f"metadata/policy/{name}/bias"] = (0.3 * RNG.standard_normal(shape[0])).astype(np.float32)
        file["metadata/policy/nonlinearity"] = "relu"
        file["metadata/policy/output_distribution"] = "tanh_gaussian"
        arrays = {
            f"{n}.{p}": file[f"metadata/policy/{n}/{p}"][()] for n in shapes for p in ("weight", "bias")
        }
    policy = load_stochastic_policy(tmp_path / "d.hdf5")
    x = np.maximum(applied(arrays, "fc0", STATES.astype(np.float64)), 0.0)
    mean, log_std = applied(arrays, "last_fc", x), applied(arrays, "last_fc_log_std", x)
    expected = squashed(mean, log_std, np.ones(2), np.zeros(2))
    actions = np.tanh(mean + 0.3)
    log_prob = expected.log_prob(torch.tensor(actions)).numpy().sum(axis=1)
    np.testing.assert_allclose(policy.log_prob(STATES, actions), log_prob, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("independent", [True, False])
def test_a_function_that_returns_a_torch_distribution_is_a_policy(independent: bool) -> None:
    def acts(states: torch.Tensor) -> object:
        normal = torch.distributions.Normal(states[:, :2], 0.5)
        return torch.distributions.Independent(normal, 1) if independent else normal

    policy = load_stochastic_policy(acts)
    again = [policy.sample(STATES, np.random.default_rng(3), 4) for _ in range(2)]
    assert again[0].shape == (5, 4, 2)
    np.testing.assert_array_equal(*again)
    z = (again[0][:, 0] - STATES[:, :2]) / 0.5
    log_normal = np.sum(-0.5 * z**2 - np.log(0.5) - 0.5 * np.log(2 * np.pi), axis=1)
    np.testing.assert_allclose(policy.log_prob(STATES, again[0][:, 0]), log_normal, rtol=1e-5)


def test_a_distribution_of_numbers_is_one_of_actions_with_one_dimension() -> None:
    policy = load_stochastic_policy(lambda states: torch.distributions.Normal(states[:, 0], 0.5))
    drawn = policy.sample(STATES, np.random.default_rng(3), 4)
    assert drawn.shape == (5, 4, 1)
    z = (drawn[:, 0, 0] - STATES[:, 0]) / 0.5
    expected = -0.5 * z**2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(policy.log_prob(STATES, drawn[:, 0]), expected, rtol=1e-5)


def test_what_a_policy_raises_is_said_of_the_policy() -> None:
    bounded = load_stochastic_policy(
        lambda states: torch.distributions.Uniform(0.0 * states[:, :1], 1.0 + 0.0 * states[:, :1])
    )
    with pytest.raises(InputError, match=r"its log_prob failed .*validate_args=False"):
        bounded.log_prob(STATES, np.full((5, 1), 2.0))

    class NeedsMore:
        def sample(self, states, rng, n, temperature):
            return states

        def log_prob(self, states, actions):
            return states[:, 0]

    with pytest.raises(InputError, match=r"its sample failed .*temperature.*expected an object with sample"):
        load_stochastic_policy(NeedsMore()).sample(STATES, np.random.default_rng(0), 1)


@pytest.mark.parametrize("arrays, why", [(TD3, "is deterministic"), (GSDE, "explores by gSDE")])
def test_agents_without_a_distribution_of_single_actions_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], why: str
) -> None:
    with pytest.raises(InputError, match=f"{why}.*--stochastic"):
        load_stochastic_policy(write_sb3(tmp_path / "agent.zip", arrays))


def test_what_returns_no_distribution_is_refused() -> None:
    policy = load_stochastic_policy(lambda states: states)
    with pytest.raises(InputError, match="returned a Tensor; expected an object with sample"):
        policy.sample(STATES, np.random.default_rng(0), 1)
