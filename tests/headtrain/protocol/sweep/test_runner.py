from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clinit.errors import RecordError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.files.lock import claim_folder
from clinit.headtrain.protocol.experiment import RunData
from clinit.headtrain.protocol.record.format import RunRecord, find_records, read_record
from clinit.headtrain.protocol.runs import train_banks
from clinit.headtrain.protocol.stream.source import Source
from clinit.headtrain.protocol.study.study import Study
from clinit.headtrain.protocol.sweep.plan import open_folder, plan_sweep, run_sweep
from clinit.observer import ignore

MakeRuns = Callable[..., list[Study]]


def sweep(runs: Sequence[Study], data: RunData, out: Path) -> None:
    with claim_folder(out):
        folder = open_folder(out, data, {run.training.loss for run in runs})
        plan = plan_sweep(runs, folder, data)
        run_sweep(plan, folder, train_banks(data, plan.banks, ignore), ignore)


def by_id(out: Path) -> dict[str, RunRecord]:
    return {record.info["id"]: record for record in map(read_record, find_records(out))}


def test_records_without_a_later_setting_are_named_apart_from_runs_that_give_it(
    data: RunData, make_runs: MakeRuns, tmp_path: Path
) -> None:
    one = "init=least-square"
    sweep(make_runs(one, "mix=text"), data, tmp_path)
    sweep(make_runs(one, "mix=text", "anchor=moments", "anchor_strength=0.1,1"), data, tmp_path)
    sweep(make_runs(one, "mix=uniform", "method=joint"), data, tmp_path)
    start = "least-square-calibrated"
    names = {f"{start}-anchor=moments-anchor-strength={each}" for each in ("0.1", "1.0")}
    assert by_id(tmp_path).keys() == {start, *names, f"joint-{start}-mix=uniform"}


def other_side(side: Source, **changes: Any) -> Source:
    fields = {**side.fingerprint.fields, **changes.pop("fields", {})}
    return replace(side, fingerprint=Fingerprint(fields), **changes)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"fields": {"weights": "2"}}, "new weights (1 there, 2 now)"),
        ({"fields": {"features": "other"}}, "new features_digest (nothing there, other now)"),
        ({"val_manifest": "other rows"}, "new val_manifest_digest (new val there, other rows now)"),
        ({"val_features": "other"}, "new val_features_digest (nothing there, other now)"),
    ],
)
def test_other_data_are_refused_and_nothing_is_lost(
    data: RunData, make_runs: MakeRuns, tmp_path: Path, changes: dict[str, Any], fact: str
) -> None:
    sweep(make_runs("seed=0", "init=random"), data, tmp_path)
    other = replace(data, new=other_side(data.new, **changes))
    with pytest.raises(RecordError, match="random was made with other data") as caught:
        sweep(make_runs("seed=0:2", "init=random"), other, tmp_path)
    assert fact in str(caught.value)
    assert "Existing records there are kept" in caught.value.remedy
    sweep(make_runs("seed=0:2", "init=random"), data, tmp_path)
    assert len(find_records(tmp_path)) == 2


def test_another_pretrained_head_is_refused_for_the_losses_that_had_one(
    data: RunData, make_runs: MakeRuns, tmp_path: Path
) -> None:
    sweep(make_runs("loss=ce"), data, tmp_path)
    aligned = replace(data.head, weight=2 * data.head.weight)
    sweep(make_runs("loss=ce,mse"), replace(data, heads={"mse": aligned}), tmp_path)
    with pytest.raises(RecordError, match="the head that mse starts from"):
        sweep(make_runs("loss=ce,mse"), data, tmp_path)
    with pytest.raises(RecordError, match="the head that ce starts from"):
        sweep(make_runs("loss=ce"), replace(data, head=aligned), tmp_path)


def test_each_loss_starts_from_its_own_head(
    data: RunData, make_runs: MakeRuns, tmp_path: Path
) -> None:
    nothing = replace(data.head, weight=0 * data.head.weight, bias=0 * data.head.bias)
    runs = make_runs("loss=ce,sqen", "init=zero", "scale=none")
    sweep(runs, replace(data, heads={"sqen": nothing}), tmp_path)
    right = {
        record.info["config"]["loss"]: record.evaluations["correct"][:8].sum()
        for record in by_id(tmp_path).values()
    }
    assert right["ce"] > 40 > right["sqen"]
