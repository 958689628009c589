from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from clinit.analysis.figures.names import FigureName
from clinit.analysis.report.report import report_of
from clinit.cli.report import report
from clinit.errors import RecordError
from clinit.headtrain.record.format import RunRecord

app = typer.Typer()
app.command()(report)


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_and_the_curves_are_printed(three_inits: Path) -> None:
    text = run(three_inits)
    assert "A_new" in text
    assert "task switch" in text
    assert "task switch" not in run(three_inits, "--no-curves")
    assert "Task 3:" in run(three_inits, "--per-task", "--no-curves")


def test_json_is_alone_on_standard_output(three_inits: Path, tmp_path: Path) -> None:
    text = run(three_inits, "--format", "json", "--plot", tmp_path / "curves.png")
    assert [row["init"] for row in json.loads(text)] == ["random", "class-mean", "least-square"]
    assert (tmp_path / "curves.png").is_file()
    assert run(three_inits, "--json") == text


def test_the_page_goes_with_any_output(three_inits: Path, tmp_path: Path) -> None:
    page, curves = tmp_path / "out" / "page.html", tmp_path / "curves.svg"
    text = run(three_inits, "--html", page, "--plot", curves, "--format", "json", "--skip-start")
    assert len(json.loads(text)) == 3
    assert curves.is_file()
    assert "the one before the first step of a task does not count" in page.read_text("utf-8")


def test_the_page_has_the_reading_of_the_gain_that_is_asked_for(
    three_inits: Path, tmp_path: Path
) -> None:
    run(three_inits, "--html", tmp_path / "page.html", "--gain", "random-best", "--no-curves")
    assert "Random-best: iterations of random" in (tmp_path / "page.html").read_text("utf-8")


def test_a_page_of_another_ending_is_an_error_with_a_remedy(
    three_inits: Path, tmp_path: Path
) -> None:
    with pytest.raises(RecordError, match=r"cannot write a page to .*page\.txt") as caught:
        run(three_inits, "--html", tmp_path / "page.txt")
    assert caught.value.remedy == "Give a file name that ends in .html."


def test_csv_has_one_line_a_run_below_its_header(three_inits: Path) -> None:
    assert len(run(three_inits, "--format", "csv").splitlines()) == 1 + 3
    assert len(run(three_inits, "--format", "csv", "--per-task").splitlines()) == 1 + 9


def test_the_reading_of_the_gain_can_be_chosen(three_inits: Path) -> None:
    assert "gain: " not in run(three_inits, "--no-curves")
    assert "gain: random-best." in run(three_inits, "--no-curves", "--gain", "random-best")
    refused = CliRunner().invoke(app, [str(three_inits), "--gain", "peak"])
    assert refused.exit_code == 2
    assert "is not one of 'equal-level'" in " ".join(refused.output.split())


def test_the_start_can_be_left_out(three_inits: Path) -> None:
    words = " ".join(run(three_inits, "--no-curves", "--skip-start").split())
    assert "The points before the first step are left out." in words
    assert "before the first step are left out" not in " ".join(
        run(three_inits, "--no-curves").split()
    )


def test_what_the_start_is_worth_is_said_last_and_once(three_inits: Path) -> None:
    for words in (("--no-curves",), ("--metrics",), ("--per-task", "--matrix")):
        text = " ".join(run(three_inits, *words).split())
        assert text.count("Before the first step of a task, random rows recognise") == 1
        assert text.endswith("(mean over 3 tasks).")


def test_brackets_in_notes_stay(
    make_run: Callable[..., RunRecord], write_runs: Callable[..., Path]
) -> None:
    note = "a class of [bold]red[/bold] birds has one image"
    assert note in " ".join(
        run(write_runs(make_run("random", notes=[note])), "--no-curves").split()
    )


def test_brackets_in_paths_and_settings_stay(make_run: Callable[..., RunRecord]) -> None:
    record = make_run("random", note="[bold]x")
    record.info["base"]["path"] = "caches/base [old]"
    twice = [replace(record, path=Path(f"/runs [bold]/{number}")) for number in (1, 2)]
    console = Console(file=io.StringIO(), width=120)
    report = report_of(twice)
    console.print(report.table(width=120))
    assert isinstance(console.file, io.StringIO)
    assert "base [old] → places50" in console.file.getvalue()
    assert report.legend[0] == "run 1: /runs [bold]/1"


def test_a_report_of_hostile_names_prints_none_of_their_control_characters(
    make_run: Callable[..., RunRecord], write_runs: Callable[..., Path]
) -> None:
    hostile = "\x1b]0;EVIL\x07\x9b31m\u202e"
    records = [make_run("random"), make_run("least-square", notes=[hostile])]
    for record in records:
        record.info["config"]["loss"] = hostile
        record.info["base"]["path"] = f"caches/{hostile}"
        record.info["config"]["head_width"] = hostile + record.info["id"]
    runs = write_runs(*records)
    for words in ([], ["--per-task"], ["--by-seed"], ["--format", "json"]):
        printed = CliRunner().invoke(app, [str(runs), *words])
        assert printed.exit_code == 0
        assert r"\x1b]0;EVIL\x07\x9b31m\u202e" in printed.output or "\\u001b]0;" in printed.output
        assert not set("\x1b\x07\x9b\u202e") & set(printed.output)
    csv = CliRunner().invoke(app, [str(runs), "--format", "csv"])
    assert hostile in csv.output  # data, as it is, into a pipe


def test_several_figures_get_their_names_before_the_ending(
    three_inits: Path, tmp_path: Path
) -> None:
    out = tmp_path / "figures"
    out.mkdir()
    words = ["--figure", "cost", "--figure", "curves", "--plot", out / "a.svg"]
    result = CliRunner().invoke(app, list(map(str, [three_inits, "--format", "json", *words])))
    assert sorted(path.name for path in out.iterdir()) == ["a-cost.svg", "a-curves.svg"]
    assert len(json.loads(result.stdout)) == 3
    said = " ".join(result.stderr.split())
    assert "cost is drawn in" in said
    assert "the curves are drawn in" in said
    run(three_inits, "--no-curves", "--figure", "cost", "--plot", out / "b.svg")
    assert (out / "b.svg").is_file()


@pytest.mark.parametrize("words", [["cost"], ["curves", "-f", "csv"], ["curves", "--no-curves"]])
def test_a_figure_that_nothing_would_draw_is_refused(three_inits: Path, words: list[str]) -> None:
    refused = CliRunner().invoke(app, [str(three_inits), "--figure", *words])
    assert refused.exit_code == 2
    assert "add --plot FILE" in " ".join(refused.output.replace("│", " ").split())
    assert "task switch" in run(three_inits, "--figure", "curves")


def test_of_several_figures_those_without_facts_are_left_out_with_a_note(
    three_inits: Path, tmp_path: Path
) -> None:
    words = [f"--figure={name}" for name in FigureName]
    result = CliRunner().invoke(app, [str(three_inits), *words, f"--plot={tmp_path / 'a.svg'}"])
    assert result.exit_code == 0, result.output
    drawn = {path.stem.removeprefix("a-") for path in tmp_path.glob("*.svg")}
    assert {*FigureName} - drawn == {"collapse", "lambda-path"}
    said = " ".join(result.stderr.split())
    assert "collapse is not drawn" in said
    assert "--diagnose" in said


def test_the_help_lists_the_figures_and_another_name_is_refused(three_inits: Path) -> None:
    refused = CliRunner().invoke(app, [str(three_inits), "--figure", "pie"])
    assert refused.exit_code == 2
    said = " ".join(refused.output.replace("│", " ").split())
    assert ", ".join(f"'{name}'" for name in FigureName) in said


def test_a_figure_whose_facts_are_not_recorded_prints_nothing(
    three_inits: Path, tmp_path: Path
) -> None:
    words = ["--figure", "collapse", "--plot", str(tmp_path / "a.svg")]
    result = CliRunner().invoke(app, [str(three_inits), *words])
    assert isinstance(result.exception, RecordError)
    assert "--diagnose" in result.exception.remedy
    assert result.stdout == ""


def test_the_matrix_is_one_option_away(three_inits: Path) -> None:
    assert "after task" not in run(three_inits, "--no-curves")
    text = run(three_inits, "--no-curves", "--matrix")
    assert text.count("after task 3") == 3
    assert text.index("A_last") < text.index("on classes of")
