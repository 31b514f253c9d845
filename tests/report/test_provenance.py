from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version

from kmifqe.report.result import provenance


def test_it_names_the_versions_the_device_and_the_time():
    made = provenance(["evaluate"], packages=("h5py", "no-such-package"))
    assert made.versions["h5py"] == version("h5py")
    assert made.versions["kmifqe"] == version("kmifqe")
    assert made.versions["python"] == platform.python_version()
    assert made.versions["no-such-package"] == "not installed"
    assert made.device
    assert made.command == ("evaluate",)
    age = datetime.now(UTC) - datetime.fromisoformat(made.created)
    assert 0 <= age.total_seconds() < 3600
