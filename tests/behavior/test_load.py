import subprocess
import sys

import numpy as np
import pytest

from kmifqe.behavior import FitRequest, GaussianBehavior, Logged, TanhMixture, parse_behavior
from kmifqe.behavior.load import CheckedBehavior
from kmifqe.behavior.mixture import init_network
from kmifqe.behavior.support import make_support
from kmifqe.errors import InputError
from kmifqe.io.policies.actor import Actor

ACTOR = Actor(
    weights=(np.eye(2, dtype=np.float32),),
    biases=(np.zeros(2, np.float32),),
    hidden="tanh",
    output="clip",
    low=np.array([-2.0, -1.0], np.float32),
    high=np.array([2.0, 1.0], np.float32),
)
STATES = np.array([[0.5, -0.5], [1.0, 0.0]], np.float32)


class Boundless:
    """A policy that says nothing about its box."""

    def __call__(self, states):
        return np.asarray(states, np.float32)


boundless = Boundless()


@pytest.fixture
def actor_path(tmp_path):
    ACTOR.save(tmp_path / "actor.safetensors")
    return tmp_path / "actor.safetensors"


def test_gaussian_takes_policy_std_and_the_policys_bounds(actor_path):
    behavior = parse_behavior(f"gaussian:{actor_path}:0.3")
    assert isinstance(behavior, GaussianBehavior)
    np.testing.assert_allclose(behavior.scale, [0.6, 0.3])
    expected = GaussianBehavior(ACTOR, 0.3, ACTOR.low, ACTOR.high).log_prob(STATES, STATES)
    np.testing.assert_allclose(behavior.log_prob(STATES, STATES), expected)


def test_gaussian_with_a_uniform_share_per_dimension(actor_path):
    behavior = parse_behavior(f"gaussian:{actor_path}:0.5:0.2,1")
    np.testing.assert_array_equal(behavior.uniform_share, [0.2, 1.0])
    np.testing.assert_array_equal(behavior.std, [0.5, 0.5])


def test_a_policy_that_holds_a_colon_is_split_from_the_right(tmp_path):
    folder = tmp_path / "run:3"
    folder.mkdir()
    ACTOR.save(folder / "actor.safetensors")
    behavior = parse_behavior(f"gaussian:{folder / 'actor.safetensors'}:0.5:0.25")
    np.testing.assert_array_equal(behavior.uniform_share, [0.25, 0.25])


def test_given_bounds_rule_and_serve_a_policy_without_any():
    spec = f"gaussian:{__name__}:boundless:0.5"
    behavior = parse_behavior(spec, low=np.array([-1.0, -1.0]), high=np.array([1.0, 3.0]))
    np.testing.assert_allclose(behavior.scale, [0.5, 1.0])
    with pytest.raises(InputError, match="does not say its bounds"):
        parse_behavior(spec)


@pytest.mark.parametrize(("tail", "share"), [("0.5", 0.0), ("0.5:0.25", 0.25)])
def test_bounds_in_the_spec_serve_a_policy_without_any_and_rule(tail, share, actor_path):
    for policy in (f"{__name__}:boundless", actor_path):
        behavior = parse_behavior(
            f"gaussian:{policy}:{tail}:-1,-.5..1e0,2.5", low=-np.ones(2), high=np.ones(2)
        )
        np.testing.assert_array_equal((behavior.low, behavior.high), [[-1.0, -0.5], [1.0, 2.5]])
        np.testing.assert_allclose(behavior.scale, [0.5, 0.75])
        np.testing.assert_array_equal(behavior.uniform_share, [share, share])


def test_the_caller_may_load_the_policy(actor_path):
    asked = []

    def load(name):
        asked.append(name)
        return ACTOR

    parse_behavior("gaussian:elsewhere.zip:0.5", load=load)
    assert asked == ["elsewhere.zip"]


def test_words_stand_for_themselves():
    assert isinstance(parse_behavior("logged"), Logged)
    assert isinstance(parse_behavior(" fit "), FitRequest)


def test_module_and_function_is_a_plugin():
    behavior = parse_behavior(f"{__name__}:own_density")
    assert isinstance(behavior, CheckedBehavior)
    np.testing.assert_array_equal(behavior.log_prob(STATES, STATES), [-2.0, -2.0])


def own_density():
    class Own:
        def log_prob(self, states, actions):
            return np.full(len(states), -2.0)

    return Own()


def test_a_fitted_file_is_read_back(tmp_path):
    network = init_network(np.random.default_rng(0), 2, (8,), 3, 2)
    fitted = TanhMixture(network, make_support(STATES, ACTOR.low, ACTOR.high, 1e-3), np.zeros(2), np.ones(2))
    fitted.save(tmp_path / "fitted.safetensors")
    loaded = parse_behavior(str(tmp_path / "fitted.safetensors"))
    assert isinstance(loaded, TanhMixture)
    np.testing.assert_array_equal(loaded.log_prob(STATES, STATES), fitted.log_prob(STATES, STATES))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("gaussian", "POLICY or STD is missing"),
        ("gaussian:", "POLICY or STD is missing"),
        ("gaussian:0.3", "POLICY or STD is missing"),
        ("gaussian::0.3", "POLICY or STD is missing"),
        ("gaussian:actor.npz", "POLICY or STD is missing"),
        ("gaussian:actor.npz:wide", "STD is 'wide'"),
        ("gaussian:actor.npz:", "STD is ''"),
        ("gaussian:actor.npz:0.3:most", "UNIFORM_SHARE is 'most'"),
        ("gaussian:no-such-actor.npz:0.3", "no-such-actor.npz"),
        ("gaussian:../no-such-actor.npz:0.3", "no-such-actor.npz"),
        ("gaussian:-1..1", "POLICY or STD is missing"),
        ("gaussian:actor.npz:0.3:-1..wide", "'-1..wide'; expected .*LOW..HIGH"),
        (f"gaussian:{__name__}:boundless:0.3", f"for example gaussian:{__name__}:boundless:0.3:-1..1"),
        (f"gaussian:{__name__}:boundless:0.3:1..-1", "low below high"),
        (f"gaussian:{__name__}:boundless:0.3:-1,-1..1", "2 numbers in low and 1 in high"),
        ("fit:40", "takes nothing after a colon"),
        ("logged:yes", "takes nothing after a colon"),
        ("no-such-fit.safetensors", "no such file"),
        ("guess", "not understood; expected gaussian:POLICY:STD"),
        ("", "not understood"),
        ("no_such_module_here:density", "no_such_module_here"),
    ],
)
def test_a_malformed_spec_names_the_wrong_part(spec, named):
    with pytest.raises(InputError, match=named):
        parse_behavior(spec)


@pytest.mark.parametrize(
    ("tail", "named"), [("-0.3", "std is -0.3"), ("0.3:1.2", "uniform_share is 1.2"), ("0.1,0.2,0.3", "std")]
)
def test_a_number_out_of_range_is_named_with_the_spec(actor_path, tail, named):
    with pytest.raises(InputError, match=rf"gaussian:.*{named}"):
        parse_behavior(f"gaussian:{actor_path}:{tail}")


def test_a_policy_file_is_not_taken_for_a_density(actor_path):
    with pytest.raises(InputError, match="not a fitted behaviour"):
        parse_behavior(str(actor_path))


def test_importing_the_package_does_not_import_torch():
    code = "import sys, kmifqe.behavior; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
