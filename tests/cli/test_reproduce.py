"""`clinit reproduce`: the plan, its refusals, and the whole on small data."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.analysis.paper.commands import overlay
from clinit.analysis.paper.tables import TABLES, table_named
from clinit.cli.main import app
from clinit.extract.cache.head import read_head, write_head
from tests.cli.calls import refused, sides

SCALED = ["tasks=2", "batch_size=64", "eval_every=8"]


@pytest.fixture
def reproduce(tmp_path: Path) -> Callable[..., Result]:
    def call(*words: str) -> Result:
        places = ["--out", str(tmp_path / "out")]
        return CliRunner().invoke(app, ["reproduce", *words, *places], env={"COLUMNS": "100"})

    return call


def test_images_that_are_not_there_are_named_with_what_to_do(
    reproduce: Callable[..., Result], tmp_path: Path
) -> None:
    error = refused(reproduce("resnet18"))
    assert "ImageNet-1K (ILSVRC2012: image-net.org" in str(error)
    assert str(tmp_path / "out" / "caches") in str(error)
    assert "`--imagenet FOLDER --places FOLDER`" in error.remedy
    error = refused(reproduce("resnet18", "--imagenet", "/data/imagenet"))
    assert str(error).startswith("there are no features of Places365-Standard")


@pytest.mark.parametrize(
    ("name", "settings", "seeds", "expected"),
    [
        ("last-layer", [], None, [*SCALED, "iterations,buffer=12,240;24,1920", "seed=0:2"]),
        (
            "last-layer",
            ["buffer=9", "eval-every=2"],
            5,
            [*SCALED[:2], "iterations=12,24", "seed=0:5", "buffer=9", "eval_every=2"],
        ),
        ("neural-collapse", ["seed=3"], 2, []),
    ],
)
def test_a_reduced_setting_gives_way_to_what_is_set(
    name: str, settings: list[str], seeds: int | None, expected: list[str]
) -> None:
    assert overlay(table_named(name), settings, seeds, scale_down=True) == expected


@pytest.mark.slow
def test_all_tables_and_figures_are_made_of_the_digits_in_a_reduced_setting(tmp_path: Path) -> None:
    """The whole command; a second call trains nothing."""
    out = tmp_path / "out"

    def reproduce(*names: str) -> str:
        # In a process of its own: without the checks of types that tests add, much faster.
        command = [sys.executable, "-m", "clinit", "reproduce", *names, "--scale-down"]
        command += ["--out", str(out)]
        wide = {**os.environ, "COLUMNS": "100"}
        return subprocess.run(command, check=True, capture_output=True, text=True, env=wide).stdout

    whole, tables = reproduce("all"), [table for table in TABLES if table.name != "figures"]
    parts = whole.split("\nA reduced setting: ")
    for table, (before, shown) in zip(tables, pairwise(parts), strict=True):
        heading = f"Table {table.number}: {table.title}" if table.number else table.title
        assert before.endswith(f"\n{heading}")
        assert re.search(r"^(random|here) .*\d", shown, re.MULTILINE)  # a line of ours
        content = json.loads((out / "tables" / f"{table.name}.json").read_text())
        assert content["reduced"] is True
        assert any(line["ours"] is not None for line in content["lines"])
        assert (out / "tables" / f"{table.name}.md").stat().st_size > 0
    for figure in ("figure1ab", "figure1c", *(f"figure{number}" for number in range(2, 7))):
        for ending in ("png", "pdf", "svg"):
            assert (out / "figures" / f"{figure}.{ending}").stat().st_size > 0
    effects = json.loads((out / "tables" / "top-layers.json").read_text())["effects"]
    assert {each["num_seeds"] for each in effects} == {2}
    assert {each["verdict"] for each in effects} <= {"too few seeds", "within noise"}


def test_records_and_heads_of_other_caches_are_refused(
    reproduce: Callable[..., Result], tmp_path: Path, tiny_run: Path
) -> None:
    base, caches = tiny_run.parent / "caches" / "base", sides(tiny_run)
    small = ["--scale-down", "--seeds", "1", "--set", "tasks=2", "--set", "batch_size=6"]
    assert reproduce("first-task", *small, *caches).exit_code == 0
    swapped = [caches[0], f"--new={base}"]  # the base classes as new ones
    error = refused(reproduce("first-task", *small, *swapped))
    assert "train images are in more than one of the caches" in str(error)
    head = min((tmp_path / "out" / "heads").iterdir())
    found = read_head(head)
    write_head(replace(found, alignment={**(found.alignment or {}), "started_from": "ab"}), head)
    error = refused(reproduce("first-task", *small, *caches))
    assert str(error) == f"{head} was aligned from another head than the one in {base}"
    assert error.remedy == "Choose another --out for these caches, or remove that file."
