"""A reproduced table as files: JSON and CSV for programs, Markdown for people; and figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from clinit.analysis.paper.commands import Places
from clinit.analysis.paper.numbers import GROUP
from clinit.analysis.paper.reproduction import Effect, Reproduction, recorded_runs
from clinit.analysis.paper.tables import Table, table_named
from clinit.analysis.paper.text import as_markdown
from clinit.analysis.runs import runs_of
from clinit.files.commit import commit_file
from clinit.headtrain.protocol.record.format import finite
from clinit.headtrain.protocol.study.study import Study


def as_json(found: Reproduction) -> str:
    """Return the content of the JSON file; values that do not exist are None."""
    content = {
        "name": found.table.name,
        "table": found.table.number,
        "title": found.table.title,
        "reduced": found.is_reduced,
        "lines": [_line(line) for line in found.lines.to_dicts()],
        "effects": [_effect(each) for each in found.effects],
        "settings": [{**asdict(each), "why": each.why} for each in found.settings],
        "slips": list(found.table.slips),
        "runs": [str(run.path) for run in found.runs],
    }
    return json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(found: Reproduction) -> str:
    """Return one line per metric of each line of the table."""
    return found.lines.drop("seeds", "values").write_csv()


FORMATS: Mapping[str, Callable[[Reproduction], str]] = {
    "json": as_json,
    "csv": as_csv,
    "md": as_markdown,
}
"""Writers by the ending of the file."""
PICTURES = ("png", "pdf", "svg")
_OF_TABLES = (
    ("2", "last-layer", "mse"),
    ("3", "last-layer", "sqen"),
    ("4", "top-layers", "ce"),
    ("5", "top-layers", "sqen"),
    ("6", "top-layers", "mse"),
)
"""Number of each figure, and the table and loss from which it is drawn."""


def write_table(found: Reproduction, folder: Path) -> str:
    """Write a table below a folder; return the names of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    for ending, text in FORMATS.items():
        file = folder / f"{found.table.name}.{ending}"
        commit_file(file, partial(Path.write_text, data=text(found), encoding="utf-8"))
    return f"{folder / found.table.name}.{{{','.join(FORMATS)}}}"


def write_figures(where: Places, studies_of: Callable[[Table], Sequence[Study]]) -> Iterator[str]:
    """Write the figures, and yield their names and files.

    Figure 1 has its own runs; figures 2 to 6 are drawn from runs with the smaller budget.

    Args:
        where: Paths of the reproduction.
        studies_of: Returns the runs of a table.
    """
    table = table_named("figures")
    runs = recorded_runs(table, where, studies_of(table))
    alone = [run for run in runs if run.config.get("stop_after") == 1]
    longer = [run for run in runs if run not in alone]
    pictures = {"figure1ab": ("curves", longer), "figure1c": ("efficiency", alone)}
    for number, name, loss in _OF_TABLES:
        table = table_named(name)
        studies = [each for each in studies_of(table) if each.training.loss == loss]
        least = min((each.stream.iterations for each in studies), default=0)
        smaller = [each for each in studies if each.stream.iterations == least]
        if found := recorded_runs(table, where, smaller):
            pictures[f"figure{number}"] = ("curves", [*found])
        else:
            yield (
                f"figure {number} is drawn from the runs of table {table.number}: give {name} too,"
                f" `clinit reproduce {name} figures …`"
            )
    folder = where.out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for file, (name, members) in pictures.items():
        if members:
            report = runs_of([run.record for run in members])
            for ending in PICTURES:
                report.save_figure(folder / f"{file}.{ending}", name)
            yield f"{name}: {folder / file}.{{{','.join(PICTURES)}}}"


def _line(line: dict[str, Any]) -> dict[str, Any]:
    seeds, values = line.pop("seeds"), line.pop("values")
    return {**line, "seeds": dict(zip(seeds or (), values or (), strict=True))}


def _effect(effect: Effect) -> dict[str, Any]:
    ours = effect.ours
    return {
        **{name: effect.place[name] for name in GROUP},
        **{name: getattr(effect, name) for name in ("metric", "better", "other", "paper")},
        "paper_noise": effect.noise,
        "ours": ours.mean,
        "half_width": ours.half_width,
        "num_seeds": ours.number,
        "p_value": ours.p_value,
        "p_adjusted": ours.adjusted,
        "verdict": effect.verdict,
    }
