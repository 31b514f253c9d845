import numpy as np
import pytest

from kmifqe.behavior import Behavior, FactorizedBehavior
from kmifqe.behavior.load import checked, load_plugin
from kmifqe.errors import InputError

STATES, ACTIONS = np.zeros((4, 2)), np.ones((4, 3))

MODULE = """
import numpy as np

class Flat:
    def log_prob(self, states, actions):
        return np.full(len(states), -1.5)

class Product(Flat):
    def log_prob_per_dimension(self, states, actions):
        return np.full(actions.shape, -0.5)

density = Flat()
def make():
    return Product()
def needs(x):
    return Flat()
def wrong():
    return 3
number = 3
"""


class Answers:
    def __init__(self, answer):
        self.answer = answer

    def log_prob(self, states, actions):
        return self.answer


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    name = f"density_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize(
    ("attribute", "factorized"), [("density", False), ("make", True), ("Flat", False), ("Product", True)]
)
def test_objects_functions_and_classes_become_densities(module, attribute, factorized):
    behavior = load_plugin(f"{module}:{attribute}")
    assert isinstance(behavior, Behavior)
    assert isinstance(behavior, FactorizedBehavior) is factorized
    np.testing.assert_array_equal(behavior.log_prob(STATES, ACTIONS), [-1.5] * 4)
    if factorized:
        assert behavior.log_prob_per_dimension(STATES, ACTIONS).shape == (4, 3)


@pytest.mark.parametrize(
    ("attribute", "named"),
    [
        ("needs", "cannot be called without arguments"),
        ("wrong", "int has no log_prob"),
        ("number", "int has no log_prob"),
        ("absent", "has no absent"),
    ],
)
def test_what_is_no_density_is_named(module, attribute, named):
    with pytest.raises(InputError, match=named):
        load_plugin(f"{module}:{attribute}")


def test_a_missing_module_is_named():
    with pytest.raises(InputError, match="no_such_module_here"):
        load_plugin("no_such_module_here:density")


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (np.zeros((4, 1)), "gave shape"),
        (np.zeros(3), "gave shape"),
        (np.array([0.0, np.nan, 0.0, 0.0]), "row 1"),
        (np.array([0.0, 0.0, np.inf, 0.0]), "row 2"),
        (["a", "b", "c", "d"], "expected numbers"),
    ],
)
def test_a_wrong_answer_is_named(answer, named):
    with pytest.raises(InputError, match=named):
        checked(Answers(answer), "mine").log_prob(STATES, ACTIONS)


def test_zero_density_is_a_right_answer():
    values = checked(Answers(np.array([0.0, -np.inf, -1.0, 2.0])), "mine").log_prob(STATES, ACTIONS)
    np.testing.assert_array_equal(values, [0.0, -np.inf, -1.0, 2.0])
