import json
from pathlib import Path

from tests.analysis.conftest import MakeRun, WriteRuns
from tests.analysis.printed import call, shown


def test_tables_and_what_the_start_is_worth_are_printed(three_inits: Path) -> None:
    assert "task switches" in shown(three_inits, "--curves")
    asked = shown(three_inits, "--per-task", "--columns=last-accuracy,acc_in_task")
    places = [asked.index(each) for each in ("A_last", "Task 3:")]
    assert places == sorted(places)


def test_several_seeds_and_trials_of_a_search_are_ranked(
    make_run: MakeRun, write_runs: WriteRuns
) -> None:
    seeds = write_runs(*(make_run(seed=seed) for seed in (0, 1)))
    assert "time" not in shown(seeds)
    both = shown(seeds, "--by-seed")
    assert both.index("Ranked by A_all") < both.index("time")
    assert "Ranked by A_all" in shown(seeds / "random", "--means")


def test_json_and_csv_are_alone_on_standard_output(three_inits: Path, tmp_path: Path) -> None:
    page, plot = tmp_path / "out" / "page.html", tmp_path / "a.svg"
    text = shown(three_inits, "--format", "json", *("--html", page, "--plot", plot))
    assert [row["init"] for row in json.loads(text)] == ["random", "class-mean", "least-square"]
    assert shown(three_inits, "--json") == text
    assert plot.is_file()
    assert "the point before the first step of a task counts too" in page.read_text("utf-8")
    assert len(shown(three_inits, "--format", "csv").splitlines()) == 1 + 3


def test_several_figures_are_files_and_those_without_facts_are_left_out(
    make_run: MakeRun, write_runs: WriteRuns, tmp_path: Path
) -> None:
    words = [f"--figure={name}" for name in ("curves", "efficiency")]
    runs = write_runs(make_run("least-square"))
    result = call(runs, *words, f"--plot={tmp_path / 'a.svg'}", "--json")
    assert len(json.loads(result.stdout)) == 1
    assert [path.name for path in tmp_path.glob("*.svg")] == ["a-curves.svg"]
    said = " ".join(result.stderr.split())
    assert "the curves are drawn in" in said
    assert "efficiency is not drawn" in said
    assert "--init random" in said


def test_each_data_has_a_figure_file_of_its_own(
    make_run: MakeRun, write_runs: WriteRuns, tmp_path: Path
) -> None:
    """In one of two data nothing can be compared with random rows."""
    lonely = make_run("least-square")
    lonely.info["new"] |= {"path": "caches/birds", "manifest_digest": "b" * 64}
    runs = write_runs(make_run("random"), make_run("least-square"), lonely)
    found = call(runs, "--figure", "efficiency", "--plot", tmp_path / "a.svg")
    assert found.exit_code == 0
    text = " ".join(found.output.split())
    assert "A_all" in text
    assert "efficiency is not drawn for Data 2 of 2: imagenet_mini → birds, on test" in text
    assert [path.name for path in tmp_path.glob("*.svg")] == ["a-data1.svg"]
