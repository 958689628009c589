"""The notebooks of `examples` have their outputs, and their code runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SHELL_LINE = re.compile(r"^!((?:.*\\\n)*.*)$", re.MULTILINE)


def code_of(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_from_top_to_bottom_and_is_small(path: Path) -> None:
    cells = code_of(path)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    outputs = [each for cell in cells for each in cell["outputs"]]
    assert len(outputs) >= len(cells) - 2
    assert {each["output_type"] for each in outputs} <= {"stream", "execute_result", "display_data"}
    assert path.stat().st_size < 100_000


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_code_of_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    code = "\n".join("".join(cell["source"]) for cell in code_of(path))
    script = SHELL_LINE.sub(
        lambda line: f"__import__('subprocess').run({line[1]!r}, shell=True, check=True)", code
    )
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": places, "MPLBACKEND": "agg", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
