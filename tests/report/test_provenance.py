from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version

from kmifqe.report.result import provenance


def test_it_names_the_versions_the_device_and_the_time():
    told = provenance("h5py", "no-such-package")
    assert told["versions"]["h5py"] == version("h5py")
    assert told["versions"]["kmifqe"] == version("kmifqe")
    assert told["versions"]["python"] == platform.python_version()
    assert told["versions"]["no-such-package"] == "not installed"
    assert told["device"]
    age = datetime.now(UTC) - datetime.fromisoformat(told["created"])
    assert 0 <= age.total_seconds() < 3600
