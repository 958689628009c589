"""Comparison of starts of new rows: tables of the runs of the recipe `starts`.

    clinit sweep --config starts --base BASE --new NEW --out runs/starts
    python benchmarks/starts.py scenes runs/starts --out benchmarks

The first table has one line per buffer, number of images and length of the training. It contains
the average incremental accuracy: the mean over tasks of the accuracy on all classes seen at the end
of the task. Each start is compared with the default over the same seeds, with the same orders,
images and batches. A second table compares the default start before and after training.
"""

from __future__ import annotations

import argparse
import datetime
import os
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from harness import CONSOLE, markdown, processor, versions, write
from jaxtyping import Float
from scipy.stats import t as student

import clinit

DEFAULT = "default"
STARTS = {
    "random": ("random", None, None, None),
    "class-mean": ("class-mean", "calibrated", "leave-one-out", None),
    "norm, 0.05": ("least-square", "norm", None, "0.05"),
    "in-sample, 0.05": ("least-square", "calibrated", "in-sample", "0.05"),
    "leave-one-out, 0.05": ("least-square", "calibrated", "leave-one-out", "0.05"),
    DEFAULT: ("least-square", "calibrated", "leave-one-out", "auto"),
    "fitted": ("fitted", None, None, "auto"),
}
"""Initialisation, scale, calibration and lambda of each start, as far as they matter."""
CELL = ["buffer", "shots", "iterations"]


def read(folder: Path) -> pl.DataFrame:
    """Return one row per run: cell, seed, start, accuracy in percent, seconds of all starts."""
    rows = []
    for run in clinit.load_runs(folder):
        config, row = run.config, run.row()
        starts = [task["initialisation"] or {} for task in run.record.info["tasks"]]
        rows.append({
            **{name: config[name] for name in (*CELL, "seed")},
            "start": start_of(config),
            "mix": config["mix"],
            "accuracy": float(row["average_incremental_accuracy"]),
            "start_s": sum(float(start.get("seconds") or 0) for start in starts),
        })  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def start_of(config: dict[str, Any]) -> str:
    """Return the name of a start.

    Raises:
        KeyError: If the recipe does not contain it.
    """
    init = config["init"]
    scale = config["scale"] if init in ("class-mean", "least-square") else None
    calibration = config["calibration"] if scale == "calibrated" else None
    lam = str(config["lam"]) if init in ("least-square", "fitted") else None
    names = {settings: name for name, settings in STARTS.items()}
    return names[init, scale, calibration, lam]


def difference(values: Float[np.ndarray, " seeds"]) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return float(values.mean()), float(student.ppf(0.975, max(len(values) - 1, 1)) * error)


def gains(runs: pl.DataFrame) -> list[list[str]]:
    """Return a line per cell: the default start, and what training adds, for each kind of batch."""
    key, trained = ["buffer", "shots", "seed"], runs.filter(pl.col("iterations") > 0)
    untrained = runs.filter(pl.col("iterations") == 0).unique(key)
    both = trained.join(untrained.select(*key, before="accuracy"), on=key).sort(CELL)
    lines = []
    for cell, rows in both.group_by(CELL, maintain_order=True):
        if rows["mix"].n_unique() < 2:
            continue
        words = [f"{cell[0]:,}", str(cell[1]), str(cell[2]), f"{rows['before'].mean():.1f}"]
        for mix in ("text", "uniform"):
            of_mix = rows.filter(pl.col("mix") == mix)
            mean, half = difference((of_mix["accuracy"] - of_mix["before"]).to_numpy())
            words.append(f"{mean:+.1f} ± {half:.1f}")
        lines.append(words)
    return lines


def main() -> None:
    """Read the records, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", help="What the data are called in the table.")
    parser.add_argument("runs", type=Path, help="Folder of the sweep.")
    parser.add_argument("--out", type=Path, help="Folder of the dated file; default: none.")
    options = parser.parse_args()
    every = read(options.runs)
    runs = every.filter(pl.col("mix") == "text")
    others = [name for name in STARTS if name != DEFAULT]
    lines, best, ties = [], 0, 0
    better, worse = dict.fromkeys(others, 0), dict.fromkeys(others, 0)
    for cell, rows in runs.group_by(CELL, maintain_order=False):
        wide = rows.pivot("start", index="seed", values="accuracy").drop_nulls()
        if not {*STARTS} <= {*wide.columns}:
            continue
        reference = wide[DEFAULT].to_numpy()
        words = [f"{cell[0]:,}", str(cell[1]), str(cell[2]), f"{reference.mean():.1f}"]
        found = {name: difference(wide[name].to_numpy() - reference) for name in others}
        words += [f"{mean:+.1f} ± {half:.1f}" for mean, half in found.values()]
        seconds = rows.filter(pl.col("start") == DEFAULT)["start_s"].to_numpy()
        words.append(f"{seconds.mean():.2f}")
        lines.append((*cell, words))
        for name, (mean, half) in found.items():
            better[name] += mean > half
            worse[name] += mean < -half
        best += all(mean <= 0 for mean, _ in found.values())
        ties += all(mean <= half for mean, half in found.values())
    lines.sort(key=lambda line: (-line[0], *line[1:3]))
    headings = ["buffer", "images", "iterations", DEFAULT, *others, "seconds"]
    text = [
        f"# Starts of new rows on {options.name}, {datetime.date.today()}",
        "",
        f"{processor()}, {os.cpu_count()} cores. {versions('torch')}."
        f" {runs['seed'].n_unique()} seeds: orders, images and batches. Average incremental"
        " accuracy in %; of the others, the difference from the default with its 95 % interval"
        " over seeds. Seconds: all starts of a run of the default.",
        "",
        f"Of {len(lines)} lines the default is the best in {best}, and the best or within the"
        f" interval of the best in {ties}. Lines in which others are better, and worse, beyond the"
        " interval: " + ", ".join(f"{name} {better[name]}, {worse[name]}" for name in others) + ".",
        "",
        *markdown(
            headings,
            [words for *_, words in sorted(lines, key=lambda line: (-line[0], *line[1:3]))],
        ),
        "",
        "The start alone, and what training adds: half of each batch new, and the default batches",
        "and anchor.",
        "",
        *markdown(
            ["buffer", "images", "iterations", "start", "half new", "default"],
            gains(every.filter(pl.col("start") == DEFAULT)),
        ),
    ]
    CONSOLE.print("\n".join(text), soft_wrap=True)
    write(options.out, f"starts_{options.name}", text)


if __name__ == "__main__":
    main()
