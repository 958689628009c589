from dataclasses import replace
from pathlib import Path

import pytest

from clinit.headtrain.heads.temperature import Temperature
from clinit.headtrain.model.model import load_model
from tests.cli.calls import call, done, refused, sides

SMALL = {"ranpac": ["--ranpac-width", "40"], "slda": [], "simplecil": []}


@pytest.fixture(scope="module")
def runs(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each closed form on the caches of `tiny_run`, by the name of its method."""
    out = tmp_path_factory.mktemp("closed")
    for method, small in SMALL.items():
        words = ("--tasks=2", "--device=cpu", "--method", method, *small)
        assert method in done("train-head", *sides(tiny_run), "--out", out, *words)
    return out


@pytest.mark.parametrize("method", ["slda", "simplecil"])
def test_linear_heads_are_exported(method: str, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.safetensors"
    done("export", runs / method, "--out", out)
    facts = load_model(out, device="cpu").facts
    assert (facts.caution is not None) == (method == "simplecil")
    few = Temperature(value=1.1, fitted_rows=9, measured_rows=0)
    assert replace(facts, temperature=few).caution == facts.caution


def test_what_is_no_linear_head_is_not_diagnosed(runs: Path, tiny_run: Path) -> None:
    head = runs / "ranpac" / "head.safetensors"
    error = refused(call("diagnose", tiny_run.parent / "caches" / "base", "--head", head))
    assert "not the features of the backbone" in str(error)
