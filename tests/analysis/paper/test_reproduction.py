import io
import json
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
from rich.console import Console

from clinit.analysis.paper.output import FORMATS, terminal
from clinit.analysis.paper.reproduction import Reproduction, reproduction
from clinit.analysis.paper.tables import TABLES, table_named
from clinit.analysis.report.run import RunSummary
from clinit.cli.commands.reproduce import ReproductionPlan
from clinit.headtrain.protocol.study.rules import settings_of

Make = Callable[..., tuple[RunSummary, ...]]
LOSSES = ("ce", "sqen", "mse")
COLLAPSE = {
    loss: {"nc1": 0.1, "nc2": 0.2, "nc3": None, "nc4": 0.4, "d_ls": 5.0, "d_ls_relative": 0.5,
           "classes": 4, "dim": 8, "lambda": 0.05}
    for loss in ("ce", "mse")
}  # fmt: skip


def lines_of(found: Reproduction, **place: Any) -> dict[str, Any]:
    return {line["metric"]: line for line in found.lines.filter(**place).to_dicts()}


def text_of(found: Reproduction, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(terminal(found))
    return console.export_text()


def test_each_number_stands_in_its_place(runs: Make) -> None:
    made = runs(losses=LOSSES, budgets=((100, 40), (200, 80)))
    found = reproduction(table_named("last-layer"), made)
    for loss in LOSSES:
        for theirs, ours in ((600, 100), (1200, 200)):
            for init in ("random", "class-mean", "least-square"):
                lines = lines_of(found, loss=loss, iterations=theirs, init=init)
                members = [
                    run.row()
                    for run in made
                    if (run.config["loss"], run.config["iterations"], run.init)
                    == (loss, ours, init)
                ]
                for metric in ("acc_new", "acc_all", "acc_pre", "acc_pre_alone", "loss_new"):
                    values = [row[metric] for row in members]
                    assert lines[metric]["ours"] == pytest.approx(fmean(values))
                    assert lines[metric]["deviation"] == pytest.approx(stdev(values))
                gains = [row["gain_equal_level"] for row in members]
                known = [gain for gain in gains if gain is not None]
                assert lines["gain"]["ours"] == (pytest.approx(fmean(known)) if known else None)
    line = lines_of(found, loss="ce", iterations=600, init="random")["acc_new"]
    assert line["paper"] == 43.28
    assert (line["difference"], found.is_reduced) == (None, True)
    assert len(found.lines) == 18 * 7


def test_effects_are_differences_of_the_same_seed(runs: Make) -> None:
    made = runs(budgets=((100, 40), (200, 80)), seeds=tuple(range(8)))
    effects = [*reproduction(table_named("resnet18"), made).effects]
    assert len(effects) == 2 * 3 * 2
    first = next(e for e in effects if (e.better, e.other) == ("least-square", "random"))
    assert first.ours.number == 8
    assert first.ours.p_value < first.ours.adjusted < 0.05
    assert first.paper == pytest.approx(16.46 - 3.6)
    assert first.verdict == "holds"
    few = reproduction(table_named("resnet18"), [run for run in made if run.config["seed"] < 2])
    assert {each.verdict for each in few.effects if each.is_tested and each.ours.number} == {
        "too few seeds"
    }


def test_a_budget_that_the_paper_lacks_has_a_place_without_its_numbers(runs: Make) -> None:
    made = runs(budgets=((300, 9000),), seeds=(0, 1))
    found = reproduction(table_named("resnet18"), made)
    own = found.lines.filter(iterations=300)
    assert found.lines["ours"].count() == own["ours"].count() > 0
    assert {*own["init"]} == {"random", "class-mean", "least-square"}
    assert {*own.select("buffer", "paper", "difference").rows()} == {(9000, None, None)}
    random = [run.row()["acc_new"] for run in made if run.init == "random"]
    assert lines_of(found, iterations=300, init="random")["acc_new"]["ours"] == fmean(random)
    effects = [each for each in found.effects if each.place["iterations"] == 300]
    assert len(effects) == 3 * 2
    told = {(effect.paper, effect.verdict, effect.ours.number) for effect in effects}
    assert told == {(None, "-", 2)}
    assert all(effect.ours.half_width is not None for effect in effects)
    assert differing(found)["iterations"] == ("600 and 1,200", "300")
    for text in (text_of(found), FORMATS["md"](found)):
        title = "Cross entropy, 300 iterations, buffer 9,000 (the paper has no such budget)"
        lonely = text[text.index(title) : text.index("Cross entropy, 600 iterations")]
        assert lonely.count("least-square") == 1
        assert "paper" not in lonely.removeprefix(title)


def test_the_first_task_is_read_before_training(runs: Make) -> None:
    made = runs(losses=("ce", "mse"), seeds=(0, 1))
    found = reproduction(table_named("first-task"), made, COLLAPSE)
    lines = lines_of(found, loss="mse", init="class-mean")
    starts = [
        run.row()["tasks"][0]
        for run in made
        if (run.config["loss"], run.init) == ("mse", "class-mean")
    ]
    assert lines["acc_new"]["ours"] == pytest.approx(fmean(s["acc_new_start"] for s in starts))
    assert lines["acc_pre"]["ours"] == pytest.approx(
        fmean(s["acc_pre_alone_start"] for s in starts)
    )
    assert lines["acc_pre"]["paper"] == 77.72
    assert (lines["d_ls"]["ours"], lines["d_ls"]["paper"]) == (5.0, 377.18)


def test_collapse_is_that_of_the_heads(runs: Make) -> None:
    found = reproduction(table_named("neural-collapse"), (), COLLAPSE)
    assert lines_of(found, loss="ce")["nc1"]["paper"] == 0.32
    assert lines_of(found, loss="mse")["d_ls"]["paper"] == 377.18
    assert lines_of(found, loss="mse")["nc1"]["paper"] is None
    told = differing(found)
    assert told["base classes (ImageNet-1K)"] == ("1,000", "4")
    assert (told["features"], told["training images"]) == (("384", "8"), ("1,281,167", "0"))
    assert "lambda" not in told


def differing(found: Reproduction) -> dict[str, tuple[str, str]]:
    return {each.name: (each.paper, each.here) for each in found.settings if each.differs}


def test_what_differs_from_the_paper_is_told(runs: Make) -> None:
    found = reproduction(table_named("last-layer"), runs(seeds=(0,), lr=0.5, precision="bf16"))
    assert found.is_reduced
    told = differing(found)
    expected = {
        "backbone": ("convnextv2_femto.fcmae_ft_in1k", "-"),
        "base classes (ImageNet-1K)": ("1,000", "4"),
        "new classes (Places365)": ("365", "6"),
        "test images (ImageNet-1K)": ("50,000", "80"),
        "tasks": ("5", "2"),
        "iterations": ("600 and 1,200", "100"),
        "buffer": ("24,000 and 192,000", "40"),
        "lr": ("0.001", "0.5"),
    }
    assert expected.items() <= told.items()
    assert not {"eval-every", "batch-size", "lambda"} & told.keys()
    unknown = {each.name: each.here for each in found.settings if not each.paper}
    assert (unknown["scale"], unknown["precision"]) == ("norm", "bf16")


@pytest.mark.parametrize("name", [table.name for table in TABLES if table.runs and table.metrics])
def test_each_recipe_is_the_paper_to_the_letter(name: str, runs: Make) -> None:
    """Every setting that a recipe has and its runs read is listed; none excludes the paper's."""
    studies = ReproductionPlan((), None, scale_down=False).studies(table_named(name))
    (run,) = [run for run in runs(seeds=(0,)) if run.init == "random"]
    made = [
        replace(run, record=replace(run.record, info={**run.record.info, "config": s.settings()}))
        for s in studies
    ]
    found = reproduction(table_named(name), made).settings
    read = {
        name
        for study in studies
        for name, value in study.settings().items()
        if name not in study.idle() and value is not None
    }
    every = {**settings_of(), **settings_of(top=True)}
    options = {every[name].option.removeprefix("--") for name in read}
    of_data = {"backbone", "transform", "head for squared error"}
    assert {each.name for each in found if each.differs} <= of_data | {
        each.name for each in found if "(ImageNet-1K)" in each.name or "(Places365)" in each.name
    }
    unread = {"method", "init", "loss", "seed", "device", "class-order", "alpha"}
    unread |= {"batch-size", "eval-every", "mix"} if name == "first-task" else set()
    assert options - unread <= {each.name.split(" (")[0] for each in found}


def test_each_setting_of_ewc_and_der_is_next_to_the_papers_own(runs: Make) -> None:
    der, blocks = {"rank": 48, "alpha": 1.0}, {"top_blocks": 2, "seeds": (0,)}
    made = [
        *runs(method="derpp", full_rank=False, **der, **blocks),
        *runs(
            method="ewc", full_rank=True, ewc_lam=1e6, ewc_samples=40, init_rows="buffer", **blocks
        ),
    ]
    found = reproduction(table_named("cl-methods"), made)
    told = differing(found)
    assert told["alpha / rank"] == ("1", "0.0208333")
    assert told["batch-size (EWC)"] == ("128", "256")
    assert "batch-size (DER++)" not in told
    told_of_ewc = {each.name: each.here for each in found.settings if not each.paper}
    assert (told_of_ewc["ewc-samples"], told_of_ewc["buffer (EWC)"]) == ("40", "40")
    for text in (FORMATS["md"](found), text_of(found)):
        for words in ("snapshot", "mean", "clinit recipe show table4", "fewer than 3 seeds"):
            assert words in " ".join(text.split())


@pytest.fixture
def whole(runs: Make) -> Reproduction:
    made = runs(losses=LOSSES, budgets=((100, 40), (200, 80)), seeds=(0, 1))
    return reproduction(table_named("last-layer"), made)


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_shows_all_of_it_in_its_width(whole: Reproduction, width: int) -> None:
    shown = text_of(whole, width)
    assert max(map(len, shown.splitlines())) <= width
    for words in (
        "Table 2: The last layer learns",
        "A reduced setting",
        "(here 100 iterations, buffer 40)",
        "Do the paper's effects hold?",
        "Differences from the paper",
        "Contradicted in the paper",
        "Chosen by us",
    ):
        assert words in shown
    assert "…" not in shown
    assert "\ndifference" not in shown  # of another setting it would say nothing


def test_json_holds_every_number(whole: Reproduction) -> None:
    content = json.loads(FORMATS["json"](whole))
    assert content["reduced"] is True
    assert len(content["lines"]) == len(whole.lines)
    assert len(content["effects"]) == len(whole.effects)
    for line, found in zip(whole.lines.to_dicts(), content["lines"], strict=True):
        assert found["ours"] == pytest.approx(line["ours"])
        assert (found["paper"], found["metric"]) == (line["paper"], line["metric"])
        assert found["difference"] is None  # of another setting it would say nothing
        assert len(found["seeds"]) == found["num_seeds"]


def test_markdown_has_a_table_per_group(whole: Reproduction) -> None:
    text = FORMATS["md"](whole)
    assert text.startswith("## Table 2: The last layer learns")
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 6 + 1 + 3
    for table in tables:
        assert len({row.count("|") for row in table.splitlines()}) == 1
