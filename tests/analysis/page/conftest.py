"""Records with noisy losses and with hostile names, for the page."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from clinit.headtrain.protocol.record.format import RunRecord

HOSTILE = (
    "<script>document.title = 'seized'</script>",
    "</script><img src=x onerror=\"document.title = 'seized'\"><!--",
    "[red]$x_1$ 'one' \"two\" & {{data}} `id` \\u003c",
    "line\nbreak\u2028\u202etxt.exe\x1b[31m\x07\x00 עברית 中文 \ud800\ufffe",
    "long " * 2_000,
)


@pytest.fixture
def noisy() -> Callable[..., RunRecord]:
    """Give a record losses of steps that spike at the task switches."""

    def change(record: RunRecord, *, seed: int = 0, peak: float = 9.0) -> RunRecord:
        iteration = record.steps["iteration"].to_numpy()
        noise = np.abs(np.random.default_rng(seed).normal(size=len(iteration)))
        losses = 0.3 + peak * np.exp(-iteration / 5) + 0.2 * noise
        column = pl.Series(losses, dtype=pl.Float32)
        return replace(record, steps=record.steps.with_columns(loss=column))

    return change


@pytest.fixture
def hostile_runs(make_run: Callable[..., RunRecord]) -> list[RunRecord]:
    """Runs whose names, notes, settings and paths hold what a page could obey."""
    records = []
    for number, text in enumerate(HOSTILE):
        record = make_run("random", notes=[text], mix=text, seed=number)
        record.info["config"]["init"] = text
        record.info["id"] = text
        record.info["base"]["path"] = record.info["new"]["path"] = f"caches/{text}"
        record.info["command"] = ["clinit", "train-head", "--base", text]
        record.info["versions"] = {text: text}
        record.info["device"] = text
        names = record.classes["name"].str.replace(
            "class", text.replace("\ud800", ""), literal=True
        )
        classes = record.classes.with_columns(name=names)
        records.append(replace(record, path=Path(f"/runs/{number}/{text}"), classes=classes))
    return records
