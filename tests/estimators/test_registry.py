"""One entry says all of an estimator, wherever it comes from."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

import kmifqe
from kmifqe.errors import InputError
from kmifqe.estimators import Estimator, EstimatorEntry, entries, entry_named, make_estimator, register
from kmifqe.estimators.registry import GROUP, PRESETS, _entries, find_entry


@dataclass(frozen=True)
class ToyConfig:
    rate: float = 0.5
    learning_rate: float = 0.25
    target_period: int = 3
    batch: int = 8


def make_toy(config: ToyConfig) -> Estimator:
    return Estimator(
        "toy", config, lambda k, p: 0.0, lambda k, t, s, p: (s, {}), lambda s, p: s, default_steps=7
    )


TOY = EstimatorEntry(
    name="toy",
    label="Toy",
    color="#112233",
    dark_color="#aabbcc",
    config=ToyConfig(),
    make=make_toy,
    needs_density=False,
    summary="says what it began with",
    page="docs/toy.md",
)


DICE = ("best-dice", "dual-dice", "gen-dice", "gradient-dice")


@pytest.fixture(autouse=True)
def known_anew() -> Iterator[None]:
    """Forget what a test registered."""
    yield
    _entries.cache_clear()


def test_every_entry_says_what_a_person_reads() -> None:
    for entry in entries():
        assert entry.label
        assert "\n" not in entry.summary
        assert re.fullmatch(r"#[0-9a-f]{6}", entry.color)
        assert re.fullmatch(r"#[0-9a-f]{6}", entry.dark_color)
        assert (Path(__file__).parents[2] / entry.page).is_file()
    assert len({entry.color for entry in entries()}) == len(entries())
    without = {entry.name for entry in entries() if not entry.needs_density}
    assert without == {"fqe", "fqe-paper", "sr-dice", "mdr", *DICE}


def test_an_entry_makes_an_estimator_of_its_name() -> None:
    for entry in entries():
        assert make_estimator(entry.name, "fast").name == entry.name
        assert entry_named(entry.name) is find_entry(entry.name)
    assert find_entry("dice") is None


@pytest.mark.parametrize("preset", PRESETS)
def test_a_new_estimator_inherits_no_settings_of_another(preset: str) -> None:
    register(TOY)
    made = make_estimator("toy", preset)
    assert (made.config, made.default_steps) == (ToyConfig(), 7)
    assert make_estimator("toy", preset, ["rate=2"], steps=5).config == ToyConfig(rate=2.0)


def test_a_name_that_exists_is_refused() -> None:
    register(TOY)
    with pytest.raises(InputError, match="an estimator 'toy' exists already"):
        register(TOY)
    with pytest.raises(InputError, match="an estimator 'fqe' exists already"):
        register(replace(TOY, name="fqe"))


def use_entry_point(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = metadata.EntryPoint("outside", value, GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: metadata.EntryPoints([point]))
    _entries.cache_clear()


def test_an_installed_package_brings_an_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    use_entry_point(monkeypatch, f"{__name__}:TOY")
    assert entry_named("toy").label == "Toy"


@pytest.mark.parametrize(
    "value, message",
    [
        ("no_such_module:ENTRY", "'outside'.* does not load: No module named"),
        (f"{__name__}:NOTHING", "'outside'.* does not load"),
        (f"{__name__}:make_toy", "'outside'.* is a function; expected an EstimatorEntry"),
    ],
)
def test_a_broken_entry_point_is_named(monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    use_entry_point(monkeypatch, value)
    with pytest.raises(InputError, match=message):
        entries()


def test_modules_are_modules_and_the_public_factories_functions() -> None:
    for name in ("kmifqe", "fqe", "sr_dice"):
        assert isinstance(importlib.import_module(f"kmifqe.estimators.{name}"), ModuleType)
        assert isinstance(getattr(kmifqe.estimators, name), ModuleType)
        assert isinstance(getattr(kmifqe, name)(), Estimator)
