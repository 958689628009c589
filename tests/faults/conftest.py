"""The workload, and a folder with it for each trial."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Once
from tests.faults.workload import Scene, make_work


@pytest.fixture(scope="session")
def work(once: Once) -> Path:
    """What there is to read; not to be changed."""
    return once("faults", make_work) / "work"


@pytest.fixture
def scene(tmp_path: Path, work: Path) -> Scene:
    return Scene(tmp_path / "scene", work)


@pytest.fixture
def another(tmp_path: Path, work: Path) -> Callable[[str], Scene]:
    """Make a further scene, by its name."""
    return lambda name: Scene(tmp_path / name, work)
