from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from clinit.analysis.page.data import page_data
from clinit.analysis.report.report import Report, report_of
from clinit.analysis.report.settings import by_data, headings
from clinit.cli.report import report
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord
from clinit.headtrain.record.info import held_out_manifest, held_out_share

MakeRun = Callable[..., RunRecord]
WriteRuns = Callable[..., Path]
TRIAL = "on held-out training images (10 %)"
app = typer.Typer()
app.command()(report)


def printed(renderable: RenderableType, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def trial(record: RunRecord) -> RunRecord:
    for side in ("base", "new"):
        record.info[side]["val_manifest_digest"] = held_out_manifest(0.1, 0)
    return record


@pytest.fixture
def searched(make_run: MakeRun) -> list[RunRecord]:
    """Trials that look better than the tested run, as they do on images like those trained on."""
    trials = [make_run("least-square", lr=lr, accuracy=lambda t, i: 0.9) for lr in (0.1, 0.2)]
    return [*map(trial, trials), make_run("least-square", lr=0.1, accuracy=lambda t, i: 0.6)]


@pytest.mark.parametrize("share", [0.001, 0.1, 0.25, 0.9, 1e-5])
def test_the_share_that_was_held_out_is_read_back(share: float) -> None:
    assert held_out_share({"base": {"val_manifest_digest": held_out_manifest(share, 3)}}) == share


@pytest.mark.parametrize("digest", [None, "", "a" * 64, "held-out", "held-out:x:0", 3])
def test_any_other_digest_is_that_of_test_images(digest: object) -> None:
    assert held_out_share({"base": {"val_manifest_digest": digest}, "new": {}}) is None


def test_trials_are_not_ranked_with_the_tested_run(searched: list[RunRecord]) -> None:
    loaded = report_of(searched)
    for table in (loaded.ranking(), loaded.table(), loaded.metrics_table(), loaded.task_table()):
        tested, trials = printed(table).split("Data 2 of 2: ")
        assert tested.startswith("Data 1 of 2: imagenet_mini → places50, on test images")
        assert TRIAL in trials.splitlines()[0]
        assert TRIAL not in tested
    tested, trials = printed(loaded.ranking()).split("Data 2 of 2: ")
    assert [line.split()[0] for line in tested.splitlines() if "81." in line] == ["1"]
    assert "places50, on test images, loss ce" in tested
    assert f"places50, {TRIAL}, loss ce" in " ".join(trials.split())
    assert [line.split()[1] for line in trials.splitlines() if line[:2] in ("1 ", "2 ")] == [
        *("0.1", "0.2")
    ]


def test_a_search_is_ranked_though_it_has_one_seed(
    searched: list[RunRecord], write_runs: WriteRuns
) -> None:
    result = CliRunner().invoke(app, [str(write_runs(*searched)), "--no-curves"])
    assert result.stdout.count("Ranked by A_all") == 2


def test_files_say_what_each_line_was_measured_on(searched: list[RunRecord]) -> None:
    loaded = report_of(searched)
    words = [TRIAL.removeprefix("on ")] * 2 + ["test images"]
    assert sorted(row["measured_on"] for row in json.loads(loaded.json())) == words
    for text in (loaded.csv(), loaded.csv(per_task=True), loaded.means_csv()):
        lines = list(csv.DictReader(io.StringIO(text)))
        assert {line["measured_on"] for line in lines} == set(words)
        assert {(line["base"], line["new"]) for line in lines} == {("imagenet_mini", "places50")}
    means = json.loads(loaded.means_json())
    assert [group["measured_on"] for group in means] == ["test images", *words[:2]]


def test_texts_and_the_page_have_a_table_for_each(searched: list[RunRecord]) -> None:
    loaded = report_of(searched)
    assert loaded.latex().count(r"\begin{tabular}") == 2
    first, second = loaded.markdown().replace("\\", "").split("\n\n**")
    assert "on test images" in first
    assert TRIAL in second
    assert "Ranked by A_all, on held-out training images (10 %)" in second
    page = page_data(loaded.runs, loaded.notes)
    assert [table["title"] for table in page["tables"]] == [
        "Runs. Data 1 of 2: imagenet_mini → places50, on test images",
        f"Runs. Data 2 of 2: imagenet_mini → places50, {TRIAL}",
    ]
    places = [line["run"] for table in page["tables"] for line in table["lines"]]
    labels = [page["runs"][place]["label"] for place in places]
    assert "on test images" in labels[0]
    assert all(TRIAL in label for label in labels[1:])


def other_data(make_run: MakeRun) -> Report:
    records = [make_run(init, seed=seed) for init in ("random", "least-square") for seed in (0, 1)]
    for record in records[2:]:
        record.info["new"] |= {"path": "other/places50", "manifest_digest": "b" * 64}
        record.info["base"] |= {"manifest_digest": "c" * 64}
    return report_of(records)


def test_runs_on_other_classes_have_a_table_of_their_own(make_run: MakeRun) -> None:
    loaded = other_data(make_run)
    assert [len(part) for part in by_data(loaded.runs)] == [2, 2]
    first, second = printed(loaded.ranking()).split("Data 2 of 2")
    assert ("random" in first, "least-square" in first) == (True, False)
    assert ("random" in second, "least-square" in second) == (False, True)
    assert "caches/imagenet_mini → caches/places50" in first, "names alike: where they lie"
    assert "caches/imagenet_mini → other/places50" in second


def test_a_copy_of_a_cache_holds_the_same_data(make_run: MakeRun) -> None:
    copied = make_run("least-square")
    copied.info["new"]["path"] = "copies/places50"
    loaded = report_of([make_run("random"), copied])
    parts = by_data(loaded.runs)
    assert [len(part) for part in parts] == [2]
    assert headings(parts) == [""]
    assert "Data" not in printed(loaded.table())


def test_figures_are_drawn_for_each_data(make_run: MakeRun, tmp_path: Path) -> None:
    loaded = other_data(make_run)
    text = printed(loaded.matrix())
    assert text.index("Data 1 of 2") < text.index("random") < text.index("Data 2 of 2")
    assert [len(part.runs) for part in loaded.by_data()] == [2, 2]


def test_each_data_has_a_figure_file_of_its_own(
    searched: list[RunRecord], write_runs: WriteRuns, tmp_path: Path
) -> None:
    words = [str(write_runs(*searched)), "--no-curves", "--plot", str(tmp_path / "a.svg")]
    assert CliRunner().invoke(app, words).exit_code == 0
    drawn = [(tmp_path / f"a-data{number}.svg").read_text() for number in (1, 2)]
    assert not (tmp_path / "a.svg").exists()
    assert ["Held-out accuracy" in text for text in drawn] == [False, True]


@pytest.fixture
def one_without_random(make_run: MakeRun, write_runs: WriteRuns) -> Path:
    """Records of two data; in one of them nothing can be compared with random rows."""
    lonely = make_run("least-square")
    lonely.info["new"] |= {"path": "caches/birds", "manifest_digest": "b" * 64}
    return write_runs(make_run("random"), make_run("least-square"), lonely)


def test_data_without_a_figure_leave_those_of_the_others(
    one_without_random: Path, tmp_path: Path
) -> None:
    words = [str(one_without_random), "--figure", "efficiency", "--plot", str(tmp_path / "a.svg")]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0
    text = " ".join(found.output.split())
    assert "A_all" in text, "the tables are there"
    why = "no start can be compared with random rows: there is no random run"
    told = "efficiency is not drawn for Data 2 of 2: imagenet_mini → birds, on test images: "
    assert told + why in text
    assert [path.name for path in tmp_path.glob("*.svg")] == ["a-data1.svg"]


def test_a_figure_of_no_data_is_an_error(one_without_random: Path, tmp_path: Path) -> None:
    words = [str(one_without_random), "--figure", "collapse", f"--plot={tmp_path / 'a.svg'}"]
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, RecordError)
    assert "A_all" not in found.output
