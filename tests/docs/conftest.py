import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all pages were run, once for all tests."""
    folder = tmp_path_factory.mktemp("pages")
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), str(ROOT / "benchmarks")])
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "docs" / "run_pages.py", folder],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def results(pages: Path) -> dict[str, str | None]:
    """What became of each page: a traceback, or None."""
    found: dict[str, str | None] = json.loads((pages / "results.json").read_text())
    return found
