"""The benchmarks run, at their smallest sizes, and their tables say what was measured."""

import re
import subprocess
import sys
from pathlib import Path

import artifact
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


def test_every_claim_has_its_line_and_held_when_it_was_last_run() -> None:
    page = (FOLDER.parent / "docs" / "artifact.md").read_text(encoding="utf-8")
    (last,) = FOLDER.glob("artifact_*.md")
    assert last.name in page
    text = last.read_text(encoding="utf-8")
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    found = {line[0]: line for line in cells if len(line) == 6}
    for claim in artifact.CLAIMS:
        told = f"`{claim.command}`" if claim.words else "as above"
        wanted = f"{claim.low:g} to {claim.high:g} {claim.unit}"
        assert f"| {claim.name} | {wanted} |" in page
        assert f"| {claim.name} | {told} |" in text
        *_, value, expected, holds = found[claim.name]
        assert (expected, holds) == (wanted, "yes")
        assert claim.low <= float(value) <= claim.high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "headings"),
    [
        (
            "extract.py decode --images=4 --rounds=1 --first=1 --contenders clinit",
            {"contender", "clinit"},
        ),
        (
            "heads.py --iterations=2 --block=2 --banks 1 --per-class=4 --no-avalanche"
            " --no-protocol --threads=1",
            {"contender", "clinit, one head, float32", "PyTorch, DataLoader"},
        ),
        ("gpu.py --device cpu --scale tiny --seconds 3600", {"one head", "base rows (numpy)"}),
    ],
)
def test_a_benchmark_writes_a_dated_result(words: str, headings: set[str], tmp_path: Path) -> None:
    name, *arguments = words.split()
    command = [sys.executable, str(FOLDER / name), *arguments, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.iterdir()
    assert re.search(r"_\d{4}-\d\d-\d\d\.md$", path.name)
    text = path.read_text(encoding="utf-8")
    assert "**" not in text  # says which part is not whole
    first = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")}
    assert headings <= first
