"""Markdown: what is written is parsed again and compared with the means."""

import json
import re
import shutil
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from clinit.analysis.report import ReportView
from clinit.analysis.report.measures import MEANS
from clinit.analysis.runs import Runs, runs_of
from clinit.words import escaped, visible
from tests.analysis.conftest import MakeRun, seeded
from tests.analysis.printed import shown

HOSTILE = 'a|b_c & $x^2$ 50%\\#{~}[red] "<i>" *x* `y` \x1b[31m\n\u202e λ -- \''
INITS = ("random", "class-mean", "least-square")


@pytest.fixture(name="seeded")
def _seeded(make_run: MakeRun) -> Runs:
    """Runs of three seeds, of which every second is hostile in a setting."""
    return seeded(make_run, notes=("plain", HOSTILE))


def markdown_cells(text: str) -> list[list[str]]:
    """The cells of the lines of a table, their escapes undone."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    parts = [re.split(r"(?<!\\)(?:\\\\)*\|", row)[1:-1] for row in rows]
    return [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells] for cells in parts]


def test_markdown_holds_the_means_and_deviations(seeded: Runs) -> None:
    head, rule, *lines = markdown_cells(seeded.as_text(ReportView(format="markdown")))
    assert head[:4] == ["init", "note", "seeds", "A_all (%) ↑"]
    assert head[4:8] == ["A_last (%) ↑", "A_inc (%) ↑", "forg. (%) ↓", "A_0 (%) ↑"]
    assert head[-2:] == ["L_new ↓", "gain (×) ↑"]
    assert rule == ["---"] * 2 + ["---:"] * 11
    assert len(lines) == 6
    assert {len(cells) for cells in (head, rule, *lines)} == {13}
    means = {(row["init"], visible(row["note"])): row for row in seeded.means().to_dicts()}
    for init, note, seeds, *numbers in lines:
        assert seeds == "3"
        for name, digits, cell in (("acc_all", 2, numbers[0]), ("loss_new", 3, numbers[8])):
            own = [means[init, note][each] for each in (name, f"{name}_deviation")]
            spread = [float(each.replace(",", "")) for each in re.findall(r"[-\d.,]+", cell)]
            assert spread == pytest.approx(own, abs=0.51 * 10**-digits)


def test_the_best_of_comparable_runs_is_bold(seeded: Runs) -> None:
    for line in markdown_cells(seeded.as_text(ReportView(format="markdown")))[2:]:
        assert [cell.startswith("**") for cell in line[3:6]] == [line[0] == "least-square"] * 3
        assert line[10].startswith("**"), "equal in all runs"


def test_partial_means_and_absent_values_are_set(make_run: MakeRun) -> None:
    slow = make_run("least-square", accuracy=lambda task, i: 0.9 * (task == 2))
    report = runs_of([make_run("random", accuracy=lambda task, i: i / 250), slow])
    assert r"\*" in report.as_text(ReportView(format="markdown"))
    assert "gain" not in runs_of([make_run("least-square")]).as_text(ReportView(format="markdown"))
    alone = runs_of([make_run("random"), make_run("least-square", lr=0.5)])
    lines = markdown_cells(alone.as_text(ReportView(format="markdown")))
    (line,) = [line for line in lines if line[0] == "least-square"]
    assert line[-1] == "-", "no gain without a random run of its own"


def latex_cells(text: str) -> list[list[str]]:
    """The cells of the lines of a table, as LaTeX prints them."""
    commands = {
        **{"textbackslash{}": "\\", "textasciicircum{}": "^", "textasciitilde{}": "~"},
        **{"textless{}": "<", "textgreater{}": ">", "textbar{}": "|"},
    }
    rows = re.findall(r"^(.*) \\\\$", text, re.M)
    cells = [re.split(r" (?<!\\)& ", row) for row in rows]

    def printed(cell: str) -> str:
        cell = re.sub(r"\\textbf\{(.*)\}", r"\1", cell).replace("-{}-", "--").replace("$-$", "-")
        for name, letter in (("pm", "±"), ("geq", "≥"), ("lambda", "λ"), ("times", "×")):
            cell = cell.replace(f"$\\{name}$", letter)
        cell = cell.replace(r"$\uparrow$", "↑").replace(r"$\downarrow$", "↓")
        return re.sub(r"\\(text\w+\{\}|.)", lambda found: commands.get(found[1], found[1]), cell)

    return [[printed(cell) for cell in line] for line in cells]


def test_latex_has_the_table_of_markdown(seeded: Runs) -> None:
    text = seeded.as_text(ReportView(format="latex"))
    head, _, *lines = markdown_cells(seeded.as_text(ReportView(format="markdown")))
    plain = [[cell.replace("**", "") for cell in line] for line in (head, *lines)]
    assert latex_cells(text) == plain
    body = re.sub(r"\\[\\{}$&#_%]", "", text)
    assert body.count("{") - body.count("}") == body.count("$") % 2 == 0
    rules = (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{llrrrrrrrrrrr}")
    assert all(text.count(rule) == 1 for rule in rules)
    assert "accuracy on test images of all classes seen" in text
    assert text.count("resizebox") == 1


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX is installed")
def test_latex_compiles_within_the_width_of_a_page(make_run: MakeRun, tmp_path: Path) -> None:
    odd = r"50 % of {A} & B_1 #2 $x$ \ ~^ <-- | |> λ"
    runs = [make_run(i, seed=s, lr=r) for i in INITS for s in (0, 1, 2) for r in (0.1, 0.2)]
    for run in runs:
        run.info["new"]["path"] = odd
    found = runs_of(runs)
    tables = [
        found.as_text(ReportView(format="latex", columns=c)) for c in ("", "acc_new", "gain,shift")
    ]
    tables.append(found.comparison("init", "random").table().latex())
    packages = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
    text = "\n".join([packages, *tables, r"\end{document}"])
    (tmp_path / "all.tex").write_text(text, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert not re.search(r"Overfull \\hbox \((\d{2,})", done.stdout)
    assert "Missing character" not in done.stdout


@given(st.text(max_size=40))
def test_any_name_is_escaped_so_that_it_reads_as_it_is(name: str) -> None:
    markdown = escaped(name)
    assert re.sub(r"\\(.)", r"\1", markdown) == visible(name)
    assert len(markdown_cells(f"| {markdown} | end |")[0]) == 2
    assert "\n" not in markdown


@pytest.fixture
def folder(make_run: MakeRun, write_runs: Callable[..., Path]) -> Path:
    return write_runs(*(make_run(init, seed=seed) for init in INITS for seed in (4, 7)))


def test_json_of_means_has_one_entry_per_group_and_that_of_runs_stays_a_list(folder: Path) -> None:
    rows = json.loads(shown(folder, "-f", "json"))
    assert len(rows) == 6
    groups = json.loads(shown(folder, "-f", "json", "--means"))
    assert [group["init"] for group in groups] == ["least-square", "class-mean", "random"]
    for group in groups:
        assert (group["seeds"], group["runs"]) == ([4, 7], 2)
        assert "seed" not in group["config"]
        assert {*group["values"]} == {*MEANS}
        own = [row for row in rows if row["init"] == group["init"]]
        for name, found in group["values"].items():
            values = [row[name] for row in own if row[name] is not None]
            if not values:
                assert found is None
                continue
            assert found["count"] == len(values)
            assert found["mean"] == pytest.approx(statistics.mean(values))
            assert found["deviation"] == pytest.approx(statistics.stdev(values), abs=1e-12)
