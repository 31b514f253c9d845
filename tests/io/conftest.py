"""Third-party policies, and a pickle that does harm when it is unpickled."""

import pickle
from pathlib import Path

import pytest

THIRD_PARTY = Path(__file__).parents[3] / "shared" / "policies"


@pytest.fixture(scope="session")
def third_party() -> Path:
    if not THIRD_PARTY.is_dir():
        pytest.skip("the third-party policies are not beside this checkout")
    return THIRD_PARTY


class Touch:
    """A pickle of this touches a file when it is really unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (open, (str(self.path), "w"))


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def hostile(canary: Path) -> bytes:
    """A pickle that does harm: proved by running it once, on another file."""
    proof = canary.with_name("proof")
    pickle.loads(pickle.dumps(Touch(proof))).close()
    assert proof.exists()
    return pickle.dumps(Touch(canary), protocol=2)
