from __future__ import annotations

import importlib.util
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clinit.errors import CacheError, ExperimentError, RecordError
from clinit.headtrain.record.format import find_records, read_info
from clinit.headtrain.runs import RunData
from clinit.headtrain.sweep.folder import hold_folder
from clinit.headtrain.sweep.grid import Interval, parse_grid
from clinit.headtrain.sweep.plan import BankPlan, Trained, train_here
from clinit.headtrain.sweep.search import STUDY, Found, SearchConfig, Space, hold_out, search

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
    bank_size: int = 2,
    measure: Callable[[Path], float | None] = distance,
) -> Found:
    space = Space.of(parse_grid([*GRID, *words]))
    config = SearchConfig(trials=trials, objective="distance", maximise=False)
    calls = 0

    def observer(event: object) -> None:
        return None

    with hold_folder(out / "trials", data, {"ce"}) as folder:
        here = train_here(data, observer)

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
            batch=config.batch(bank_size),
            bank_size=2,
            observer=observer,
        )


def whole_study(out: Path) -> Any:
    import optuna

    return optuna.load_study(storage=f"sqlite:///{out / STUDY}", study_name="clinit")


def params(out: Path) -> list[dict[str, object]]:
    return [trial.params for trial in whole_study(out).trials]


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


def test_a_fraction_outside_of_0_and_1_is_refused(data: RunData) -> None:
    with pytest.raises(ValueError, match="must lie between 0 and 1, got 1"):
        hold_out(data, 1.0, seed=0)


def test_seeds_are_not_searched_and_single_values_are_kept() -> None:
    space = Space.of(parse_grid([*GRID, "seed=0:3"]))
    assert space.varied == {"lr": Interval(1e-4, 1e-1, True), "scale": ("norm", "calibrated")}
    assert space.fixed["buffer"] == 10
    assert [r.stream.seed for r in space.runs({"lr": 0.123456789, "scale": "norm"})] == [
        0,
        1,
        2,
    ]
    assert {r.training.lr for r in space.runs({"lr": 0.123456789, "scale": "norm"})} == {0.123457}


def test_a_search_over_seeds_alone_is_refused() -> None:
    with pytest.raises(ExperimentError, match="there is nothing to search"):
        Space.of(parse_grid(["seed=0:3", "lr=1e-3"]))


@needs_optuna
@pytest.mark.slow
def test_a_search_finds_the_better_half_and_its_value_is_the_mean_over_seeds(
    data: RunData, tmp_path: Path
) -> None:
    found = run(tmp_path, data, "seed=0:2", trials=20)
    assert found.num_trials == 20
    assert found.params["scale"] == "norm"
    assert found.value < 0.5
    assert [r.stream.seed for r in found.runs] == [0, 1]
    lr = found.runs[0].training.rate
    assert found.value == pytest.approx(abs(np.log10(lr) + 2) + 0.05)


@needs_optuna
@pytest.mark.slow
def test_an_interrupted_search_goes_on_with_what_it_had_asked_for(
    data: RunData, tmp_path: Path
) -> None:
    whole = run(tmp_path / "whole", data)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", data, fail_after=3)
    recorded = len(find_records(tmp_path / "cut"))
    assert 0 < recorded < 10
    cut = run(tmp_path / "cut", data)
    assert params(tmp_path / "cut") == params(tmp_path / "whole")
    assert (cut.number, cut.value) == (whole.number, whole.value)


@needs_optuna
@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [1, 8])
def test_a_search_that_is_killed_while_it_asks_loses_no_trial_and_chooses_as_ever(
    data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: int
) -> None:
    whole = run(tmp_path / "whole", data, "bias=write,keep", trials=14)
    storage = type(whole_study(tmp_path / "whole")._storage)
    asked, set_param, create = [0], storage.set_trial_param, storage.create_new_trial

    def kill(*arguments: object, **named: object) -> None:
        asked[0] += 1
        if asked[0] == killed_at:
            raise KeyboardInterrupt
        set_param(*arguments, **named)

    # What a trial holds is either written parameter by parameter, or with the trial.
    monkeypatch.setattr(storage, "set_trial_param", kill)

    def kill_between(*arguments: object, **named: object) -> int:
        found: int = create(*arguments, **named)
        asked[0] += 1
        if asked[0] == killed_at:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(storage, "create_new_trial", kill_between)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", data, "bias=write,keep", trials=14)
    monkeypatch.undo()
    cut = run(tmp_path / "cut", data, "bias=write,keep", trials=14, bank_size=1)
    assert params(tmp_path / "cut") == params(tmp_path / "whole")
    assert (cut.number, cut.value, cut.num_trials) == (whole.number, whole.value, 14)


@needs_optuna
def test_half_a_study_is_told_in_one_sentence(data: RunData, tmp_path: Path) -> None:
    run(tmp_path, data, trials=2)
    path = tmp_path / STUDY
    written = path.read_bytes()
    for content in (written[: len(written) // 2], b"not a database" * 100, written[:100]):
        path.write_bytes(content)
        with pytest.raises(RecordError, match="cannot read or write the study") as caught:
            run(tmp_path, data, trials=2)
        assert "\n" not in str(caught.value)
        assert "remove the file if it is damaged" in caught.value.remedy


@needs_optuna
def test_a_study_that_is_a_link_is_refused_and_leads_nowhere(data: RunData, tmp_path: Path) -> None:
    (tmp_path / STUDY).symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(RecordError, match=rf"the study .*{STUDY} is a link, expected a file"):
        run(tmp_path, data, trials=2)
    assert not (tmp_path / "elsewhere.db").exists()


@needs_optuna
@pytest.mark.parametrize("error", [MemoryError(), ValueError("of the sampler")])
def test_an_error_of_the_sampler_is_no_fault_of_the_study(
    data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from optuna.samplers import TPESampler

    def fail(*arguments: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(TPESampler, "sample_relative", fail)
    with pytest.raises(type(error)) as caught:
        run(tmp_path, data, trials=2)
    assert caught.value is error


@needs_optuna
@pytest.mark.parametrize("method", ["create_new_study", "get_all_trials", "create_new_trial"])
def test_an_error_of_the_storage_alone_is_a_fault_of_the_study(
    data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage, _CachedStorage

    def fail(error: Exception) -> Callable[..., None]:
        def raised(*arguments: object, **named: object) -> None:
            raise error

        return raised

    for storage in (RDBStorage, _CachedStorage):
        monkeypatch.setattr(storage, method, fail(StorageInternalError("the disk is full")))
    with pytest.raises(RecordError) as caught:
        run(tmp_path, data, trials=2)
    expected = f"cannot read or write the study {tmp_path / STUDY}: the disk is full"
    assert str(caught.value) == expected
    for storage in (RDBStorage, _CachedStorage):
        monkeypatch.setattr(storage, method, fail(MemoryError()))
    with pytest.raises(MemoryError):
        run(tmp_path, data, trials=2)


def edit_study(out: Path, statement: str) -> None:
    connection = sqlite3.connect(out / STUDY)
    connection.execute(statement)
    connection.commit()
    connection.close()


@needs_optuna
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "UPDATE trial_values SET value = 0.0 WHERE trial_id = 2",
            "trial 1 has the value 0.0 (complete), its runs have ",
        ),
        ("UPDATE trials SET state = 'FAIL' WHERE trial_id = 2", "trial 1 has the value "),
        (
            "UPDATE trial_params SET param_value = 0.001 WHERE param_name = 'lr' AND trial_id = 1",
            "the settings of trial 0 have changed",
        ),
        ("UPDATE study_directions SET direction = 'MAXIMIZE'", "its direction is maximize"),
    ],
)
def test_a_study_that_has_changed_is_not_believed(
    data: RunData, tmp_path: Path, statement: str, message: str
) -> None:
    run(tmp_path, data, trials=3)
    edit_study(tmp_path, statement)
    with pytest.raises(RecordError) as caught:
        run(tmp_path, data, trials=3)
    assert f"study.db is damaged: {message}" in str(caught.value)


@needs_optuna
def test_a_study_of_an_earlier_version_goes_on(data: RunData, tmp_path: Path) -> None:
    run(tmp_path, data, trials=3)
    first = params(tmp_path)
    edit_study(tmp_path, "DELETE FROM trial_user_attributes")
    edit_study(tmp_path, "DELETE FROM study_user_attributes WHERE key = 'batch'")
    assert run(tmp_path, data, trials=4).num_trials == 4
    assert params(tmp_path)[:3] == first


@needs_optuna
@pytest.mark.slow
def test_a_longer_search_continues_and_another_space_is_refused(
    data: RunData, tmp_path: Path
) -> None:
    run(tmp_path, data, trials=3)
    first = params(tmp_path)
    assert run(tmp_path, data, trials=5).num_trials == 5
    assert params(tmp_path)[:3] == first
    with pytest.raises(ExperimentError, match=r"begun with other settings \(fixed\)") as caught:
        run(tmp_path, data, "weight_decay=0")
    assert "another --out" in caught.value.remedy


@needs_optuna
def test_other_held_out_rows_are_other_data(data: RunData, tmp_path: Path) -> None:
    run(tmp_path, hold_out(data, 0.1, seed=0), trials=1)
    with pytest.raises(CacheError, match=r"held-out:0.1:0 there, held-out:0.2:0 now"):
        run(tmp_path, hold_out(data, 0.2, seed=0), trials=1)


@needs_optuna
def test_a_search_without_a_single_value_says_so(data: RunData, tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="no trial of the search has a value"):
        run(tmp_path, data, trials=1, measure=lambda path: None)


def test_a_missing_optuna_is_reported_with_its_remedy(
    data: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ExperimentError, match="which is not installed") as caught:
        run(tmp_path, data)
    assert 'pip install "clinit[search]"' in caught.value.remedy
