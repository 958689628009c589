"""`clinit reproduce`: the plan, its refusals, and the whole on small data."""

from __future__ import annotations

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

from clinit.analysis.paper.tables import TABLES, table_named
from clinit.cli.main import app
from clinit.cli.reproduce_runs import overlay
from clinit.errors import ClinitError, ExperimentError
from clinit.extract.cache.head import read_head, write_head
from clinit.extract.cache.read import open_cache
from clinit.headtrain.record.format import find_records

SCALED = ["tasks=2", "batch_size=64", "eval_every=8"]


@pytest.fixture
def reproduce(tmp_path: Path) -> Callable[..., Result]:
    def call(*words: str) -> Result:
        places = ["--out", str(tmp_path / "out")]
        return CliRunner().invoke(app, ["reproduce", *words, *places], env={"COLUMNS": "100"})

    return call


@pytest.fixture
def caches(tiny_run: Path) -> list[str]:
    folder = tiny_run.parent / "caches"
    return ["--base", str(folder / "base"), "--new", str(folder / "new")]


def test_a_dry_run_tells_commands_time_and_disk(
    reproduce: Callable[..., Result], tmp_path: Path
) -> None:
    result = reproduce("last-layer", "neural-collapse", "--dry-run", "--imagenet", "/data/imagenet")
    assert result.exit_code == 0, result.output
    shown = result.output
    assert "last-layer: The last layer learns (Table 2)" in shown
    assert (
        "$ clinit extract --dataset imagenet1k --config table2-last-layer --root /data/im" in shown
    )
    assert "--root FOLDER_OF_PLACES365" in shown
    assert "65,389,517 images through the backbone, 50.2 GB" in shown
    assert "$ clinit align" in shown
    assert "90 runs, 0 recorded; with the paper's data about" in shown
    assert shown.count("--dataset imagenet1k") == 1  # what two tables share is told once
    assert "nothing beyond the commands above" in shown
    assert not (tmp_path / "out").exists()


def test_a_dry_run_counts_the_images_of_the_folders_and_caches(
    reproduce: Callable[..., Result], caches: list[str], tmp_path: Path
) -> None:
    for split in ("train", "val"):
        for name in ("n01440764", "n01443537"):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for number in range(3):
                (folder / f"{number}.jpg").touch()
    shown = reproduce("last-layer", "--dry-run", "--imagenet", str(tmp_path / "images")).output
    assert "312 images through the backbone, 0.0 GB" in shown  # 6 + 6, and 50 views of 6
    assert "1,839,960 images through the backbone" in shown
    shown = reproduce("top-layers", "--dry-run", *caches).output
    rows = [open_cache(Path(path)).splits for path in caches[1::2]]
    most = sum(split.num_rows for splits in rows for split in splits.values())
    (told,) = re.findall(r"before them, ([\d,]+) images through the frozen blocks", shown)
    assert int(told) <= 3 * most


def test_the_frozen_pass_of_the_top_tables_is_estimated_once(
    reproduce: Callable[..., Result],
) -> None:
    result = reproduce("top-layers", "cl-methods", "data-orders", "cost", "--dry-run")
    assert result.exit_code == 0, result.output
    told = [line for line in result.output.splitlines() if "frozen blocks" in line]
    # Test and training images, a buffer of each size; then four more seeds of the smaller one.
    images = 50_000 + 36_500 + 1_803_460 + 24_000 + 192_000
    seconds = images * (1 / 40 - 2 * 49 * 2 * 384 * 1536 * 2 / 80e9)
    assert told == [
        f"  before them, {images:,} images through the frozen blocks, once, 79.3 GB; about"
        f" {seconds / 3600:.0f} h on two CPU cores",
        "  before them, 96,000 images through the frozen blocks, once, 3.6 GB; about 35 min on two"
        " CPU cores",
    ]
    assert "frozen blocks" not in reproduce("last-layer", "--dry-run").output


def test_images_that_are_not_there_are_named_with_what_to_do(
    reproduce: Callable[..., Result], tmp_path: Path
) -> None:
    error = reproduce("resnet18").exception
    assert isinstance(error, ExperimentError)
    assert str(error) == (
        "there are no features of ImageNet-1K (ILSVRC2012: image-net.org, after registration) and"
        " Places365-Standard (places2.csail.mit.edu) below"
        f" {tmp_path / 'out' / 'caches'}, and no images to compute them from"
    )
    assert error.remedy == (
        "Give the images with `--imagenet FOLDER --places FOLDER`, or two caches with `--base CACHE"
        " --new CACHE`. `clinit reproduce --scale-down` shows the whole on handwritten digits."
    )
    error = reproduce("resnet18", "--imagenet", "/data/imagenet").exception
    assert isinstance(error, ExperimentError)
    assert str(error).startswith("there are no features of Places365-Standard")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table-2"], "there is no table 'table-2'; known are first-task, last-layer"),
        (["cost", "--base", "b"], "--base and --new go together"),
    ],
)
def test_a_wrong_call_is_refused(
    reproduce: Callable[..., Result], words: list[str], message: str
) -> None:
    result = reproduce(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("name", "settings", "seeds", "expected"),
    [
        (
            "last-layer",
            [],
            None,
            [*SCALED, "iterations,buffer=12,240;24,1920", "seed=0:2"],
        ),
        (
            "last-layer",
            ["buffer=9", "eval-every=2"],
            5,
            [*SCALED[:2], "iterations=12,24", "seed=0:5", "buffer=9", "eval_every=2"],
        ),
        ("first-task", ["iterations=5"], None, ["tasks=2", "buffer=240", "seed=0:2"]),
        (
            "figures",
            ["seed=3"],
            None,
            [*SCALED, "buffer=240", "iterations,stop_after=25,2;60,1", "seed=3"],
        ),
        ("neural-collapse", ["seed=3"], 2, []),
    ],
)
def test_a_reduced_setting_gives_way_to_what_is_set(
    name: str, settings: list[str], seeds: int | None, expected: list[str]
) -> None:
    assert overlay(table_named(name), settings, seeds, scale_down=True) == expected


def test_without_a_reduction_the_recipe_is_as_it_is() -> None:
    assert overlay(table_named("cost"), [], None, scale_down=False) == []


@pytest.mark.slow
def test_all_tables_and_figures_are_made_of_the_digits_in_a_reduced_setting(
    tmp_path: Path,
) -> None:
    """The whole command; a second call trains nothing."""
    out = tmp_path / "out"

    def reproduce(*names: str) -> str:
        # In a process of its own: without the checks of types that tests add, much faster.
        command = [sys.executable, "-m", "clinit", "reproduce", *names, "--scale-down"]
        command += ["--out", str(out)]
        wide = {**os.environ, "COLUMNS": "100"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=wide)
        return done.stdout

    whole = reproduce("all")
    tables = [table for table in TABLES if table.name != "figures"]
    parts = whole.split("\nA reduced setting, see below")
    for table, (before, shown) in zip(tables, pairwise(parts), strict=True):
        heading = f"Table {table.number}: {table.title}" if table.number else table.title
        assert before.endswith(f"\n{heading}")
        assert re.search(r"^(random|here) .*\d", shown, re.MULTILINE)  # a line of ours
        content = json.loads((out / "tables" / f"{table.name}.json").read_text())
        assert content["reduced"] is True
        assert any(line["ours"] is not None for line in content["lines"])
        for ending in ("csv", "md", "tex"):
            assert (out / "tables" / f"{table.name}.{ending}").stat().st_size > 0
    for figure in ("figure1ab", "figure1c", *(f"figure{number}" for number in range(2, 7))):
        for ending in ("png", "pdf", "svg"):
            assert (out / "figures" / f"{figure}.{ending}").stat().st_size > 0
    summary = whole[whole.index("Effects of the paper: which of two starts is") :]
    for name, kind in (("last-layer", "seeds"), ("top-layers", "images")):
        effects = json.loads((out / "tables" / f"{name}.json").read_text())["effects"]
        assert {each["over"] for each in effects} == {kind}
        verdicts = [each["verdict"] for each in effects]
        counts = [str(verdicts.count(verdict)) for verdict in ("holds", "open", "opposite")]
        assert re.search(rf"{name} +{' +'.join(counts)}\n", summary)
    written = {path: path.stat().st_mtime_ns for path in find_records(out)}
    assert len(find_records(out / "runs" / "top-layers")) == 18 + 3  # four tables share them
    again = reproduce("last-layer", "cost")
    assert "36 recorded already" in again
    assert "9 runs, 9 recorded already" in again
    assert {path: path.stat().st_mtime_ns for path in find_records(out)} == written


def test_records_and_heads_of_other_caches_are_refused(
    reproduce: Callable[..., Result], caches: list[str], tmp_path: Path, tiny_run: Path
) -> None:
    small = ["--scale-down", "--seeds", "1", "--set", "tasks=2", "--set", "batch_size=6"]
    assert reproduce("first-task", *small, *caches).exit_code == 0
    swapped = [caches[0], caches[1], caches[2], caches[1]]  # the base classes as new ones
    error = reproduce("first-task", *small, *swapped).exception
    assert isinstance(error, ClinitError)
    assert "holds the records of other data" in str(error) or "new" in str(error)
    head = next((tmp_path / "out" / "heads").iterdir())
    found = read_head(head)
    write_head(replace(found, alignment={**(found.alignment or {}), "started_from": "ab"}), head)
    error = reproduce("first-task", *small, *caches).exception
    assert isinstance(error, ExperimentError)
    assert str(error) == f"{head} was aligned from another head than that of {caches[1]}"
    assert error.remedy == "Choose another --out for these caches, or remove that file."


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["init=zero"], "resnet18 has no line for rehearsal, ce, zero"),
        (["loss=mse"], "resnet18 has no line for rehearsal, mse, random"),
        (["lambda=0.1,0.2"], "two runs of resnet18 have the same place: they differ in lam"),
    ],
)
def test_runs_without_a_place_of_their_own_are_refused(
    reproduce: Callable[..., Result], settings: list[str], message: str
) -> None:
    words = [word for each in settings for word in ("--set", each)]
    error = reproduce("resnet18", "--dry-run", *words).exception
    assert isinstance(error, ExperimentError)
    assert str(error) == message
