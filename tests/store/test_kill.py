"""SIGKILL at 30 random moments: every run that is taken up again ends with the bits of an undisturbed one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KILLS = 30


def test_killed_runs_end_with_the_same_bits(tmp_path: Path) -> None:
    driver = Path(__file__).with_name("kill_driver.py")
    done = subprocess.run(
        [sys.executable, driver, str(KILLS), tmp_path], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "failed" not in told, told
    assert told["kills"] == KILLS
    assert told["finished"] >= 1
    assert told["arrays"] == 4  # V̂, its trajectory, the recorded steps, the loss
    assert len(set(told["saved_steps"])) > 1, "the kills hit too few different moments to mean anything"
