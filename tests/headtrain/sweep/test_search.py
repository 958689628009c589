import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clinit.errors import ExperimentError, RecordError
from clinit.headtrain.record.format import find_records, read_info
from clinit.headtrain.runs import RunData
from clinit.headtrain.sweep.folder import open_folder
from clinit.headtrain.sweep.grid import Interval, parse_grid
from clinit.headtrain.sweep.plan import BankPlan, Trained, train_here
from clinit.headtrain.sweep.search import STUDY, Found, Space, hold_out, search
from clinit.headtrain.sweep.settings import SearchConfig

needs_optuna = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None, reason="Optuna is not installed"
)
SMALL = ("device=cpu", "tasks=1", "iterations=2", "eval_every=2", "batch_size=8", "buffer=10")
GRID = (*SMALL, "lr=1e-4..1e-1:log", "scale=norm,calibrated")


def distance(folder: Path) -> float:
    """A made objective: best at a learning rate of 0.01 and the scale norm."""
    config = read_info(folder)["config"]
    wrong = float(config["scale"] != "norm")
    return float(abs(np.log10(config["lr"]) + 2) + wrong + 0.1 * config["seed"])


def run(
    out: Path,
    data: RunData,
    *words: str,
    trials: int = 10,
    fail_after: int | None = None,
    measure: Callable[[Path], float | None] = distance,
) -> Found:
    space = Space.of(parse_grid([*GRID, *words]))
    config = SearchConfig(trials=trials, objective="loss_new")
    out.mkdir(exist_ok=True)
    folder = open_folder(out / "trials", data, {"ce"})
    here, calls = train_here(data, lambda _: None), 0

    def train(banks: Sequence[BankPlan]) -> Trained:
        nonlocal calls
        for bank, records in here(banks):
            calls += 1
            if fail_after is not None and calls > fail_after:
                raise KeyboardInterrupt
            yield bank, records

    return search(
        space,
        config,
        folder,
        data,
        train,
        measure,
        study_path=out / STUDY,
        bank_size=2,
        observer=lambda _: None,
    )


def trials(out: Path) -> list[Any]:
    import optuna

    return optuna.load_study(storage=f"sqlite:///{out / STUDY}", study_name="clinit").trials


def test_held_out_rows_come_from_the_training_rows_and_the_test_rows_are_gone(
    data: RunData,
) -> None:
    held = hold_out(data, 0.25, seed=0)
    for before, after in ((data.base, held.base), (data.new, held.new)):
        parts = np.concatenate([after.train.features[:], after.val.features[:]])
        assert len(after.val.labels) == len(before.train.labels) // 4
        np.testing.assert_array_equal(
            np.sort(parts, axis=0), np.sort(before.train.features, axis=0)
        )
        assert after.val_manifest == "held-out:0.25:0"
    again, other = hold_out(data, 0.25, seed=0), hold_out(data, 0.25, seed=1)
    np.testing.assert_array_equal(held.base.val.features[:], again.base.val.features[:])
    assert not np.array_equal(held.base.val.features[:], other.base.val.features[:])


def test_seeds_are_not_searched_and_single_values_are_kept() -> None:
    space = Space.of(parse_grid([*GRID, "seed=0:3"]))
    assert space.varied == {"lr": Interval(1e-4, 1e-1, True), "scale": ("norm", "calibrated")}
    assert space.fixed["buffer"] == 10
    runs = space.runs({"lr": 0.123456789, "scale": "norm"})
    assert [(each.stream.seed, each.training.lr) for each in runs] == [
        (seed, 0.123457) for seed in range(3)
    ]


@needs_optuna
@pytest.mark.slow
def test_a_search_finds_the_better_half_and_its_value_is_the_mean_over_seeds(
    data: RunData, tmp_path: Path
) -> None:
    found = run(tmp_path, data, "seed=0:2", trials=20)
    assert found.num_trials == 20
    assert found.params["scale"] == "norm"
    assert found.value < 0.5
    assert [each.stream.seed for each in found.runs] == [0, 1]
    assert found.value == pytest.approx(abs(np.log10(found.runs[0].training.rate) + 2) + 0.05)


@needs_optuna
def test_a_killed_search_finishes_what_it_had_asked_for_and_asks_for_other_trials(
    data: RunData, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, data, trials=5, fail_after=2)
    asked = [trial.params for trial in trials(tmp_path)]
    recorded = {path: (path / "run.json").read_bytes() for path in find_records(tmp_path)}
    assert 0 < len(recorded) < 5
    assert run(tmp_path, data, trials=5).num_trials == 5
    params = [trial.params for trial in trials(tmp_path)]
    assert params[: len(asked)] == asked
    assert len({str(each) for each in params}) == 5
    assert all((path / "run.json").read_bytes() == content for path, content in recorded.items())
    assert run(tmp_path, data, trials=6).num_trials == 6
    with pytest.raises(ExperimentError, match=r"begun with other settings \(fixed\)"):
        run(tmp_path, data, "weight_decay=0")


@needs_optuna
def test_a_damaged_study_and_other_held_out_rows_are_refused(data: RunData, tmp_path: Path) -> None:
    run(tmp_path, hold_out(data, 0.1, seed=0), trials=1)
    with pytest.raises(RecordError, match=r"held-out:0.1:0 there, held-out:0.2:0 now"):
        run(tmp_path, hold_out(data, 0.2, seed=0), trials=1)
    (tmp_path / STUDY).write_bytes(b"not a database" * 100)
    with pytest.raises(RecordError, match="cannot read or write the study") as caught:
        run(tmp_path, hold_out(data, 0.1, seed=0), trials=2)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_searched_is_refused(
    data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ExperimentError, match="there is nothing to search"):
        Space.of(parse_grid(["seed=0:3", "lr=1e-3"]))
    with pytest.raises(ExperimentError, match="one by one"):
        Space.of(parse_grid(["lr,scale=1,norm;2,none"]))
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ExperimentError, match="not installed") as caught:
        run(tmp_path, data)
    assert 'pip install "clinit[search]"' in caught.value.remedy
