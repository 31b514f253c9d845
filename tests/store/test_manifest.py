"""run.json comes back as it was, or is refused with a sentence."""

from __future__ import annotations

import json
import os

import pytest

from kmifqe.errors import InputError
from kmifqe.store.manifest import Manifest, read_manifest, write_manifest


def test_options_come_back(tmp_path):
    assert read_manifest(tmp_path) is None
    manifest = Manifest.of_run({"data": "log.npz", "setting": ["hidden=8"], "gamma": 0.95, "steps": None})
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert manifest.directory == os.getcwd()


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "cannot be read as JSON"),
        ("{", "cannot be read as JSON"),
        ("{}", "schema is None"),
        ("[]", "expected object"),
        ('{"schema": "kmifqe.run/7"}', "schema is 'kmifqe.run/7', this version"),
        ('{"schema": "kmifqe.run/2", "directory": "", "options": {}}', "missing required field"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path, text, words):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=words) as refused:
        read_manifest(tmp_path)
    assert str(tmp_path / "run.json") in str(refused.value)


def test_a_manifest_without_options_is_refused(tmp_path):
    write_manifest(tmp_path, Manifest.of_run({}))
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(record | {"options": 3}))
    with pytest.raises(InputError, match=r"run.json"):
        read_manifest(tmp_path)
