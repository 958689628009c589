from dataclasses import replace

import pytest

from clinit.headtrain.protocol.experiment import RunData
from clinit.headtrain.protocol.study.study import Study, identity_of
from clinit.headtrain.protocol.sweep import plan as plan_module
from clinit.headtrain.protocol.sweep.grid import distinct, parse_grid, runs_of
from clinit.headtrain.protocol.sweep.plan import bank_limit, compile_banks, run_names


def runs(*words: str) -> list[Study]:
    return distinct(runs_of(parse_grid(["device=cpu", *words])))


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (("init=random", "scale=norm,calibrated"), 1),
        (("init=random,least-square", "scale=norm,calibrated", "lam=0.05,1"), 1 + 4),
        (("init=class-mean,lda", "lam=0.05,1"), 1 + 1),
        (("init=class-mean,least-square", "class-mean=raw,unit"), 2 + 1),
        (("init=random,zero", "bias=write,keep"), 1 + 2),
        (("init=least-square", "iterations=0,5", "lr=1e-3,1e-2"), 1 + 2),
        (("init=least-square", "iterations=0,5", "precision=float32,bf16"), 1 + 2),
        (("method=ncm", "precision=float32,bf16"), 1),
        (("init=least-square", "device=cpu"), 1),
        (("method=ncm,ridge", "init=random,lda", "lam=0.05,1", "lr=1e-3,1e-2"), 1 + 2),
        (("method=naive,joint", "buffer=10,20"), 2),
    ],
)
def test_settings_without_an_effect_do_not_make_another_run(
    words: tuple[str, ...], count: int
) -> None:
    found = distinct(runs_of(parse_grid(list(words))))
    assert (len(found), len({run.identity for run in found})) == (count, count)


def test_a_run_is_the_same_on_another_device_and_where_the_record_lacks_a_newer_field() -> None:
    (run,) = runs("init=lda", "seed=3")
    config = {**run.values(), "device": "cuda"}
    del config["weight_decay"]
    del config["precision"]
    assert identity_of(config) == run.identity
    assert identity_of({**config, "seed": 4}) != run.identity


def test_names_hold_what_varies_and_nothing_else() -> None:
    names = run_names(runs("init=random,least-square", "seed=0:2", "lr=1e-3,1e-2", "scale=norm"))
    assert names[0] in ("random-seed=0-lr=0.001", "random-lr=0.001-seed=0")
    assert len(set(names)) == len(names)
    assert run_names(runs("init=random,lda")) == ["random", "lda-calibrated"]
    solved = run_names(runs("method=rehearsal,ncm,ridge", "init=lda"))
    assert [name.split("-")[0] for name in solved] == ["lda", "ncm", "ridge"]


def test_a_name_in_the_folder_never_means_two_runs() -> None:
    before, after = runs("init=lda", "lr=1e-3"), runs("init=lda", "lr=1e-2")
    assert run_names(before) == run_names(after) == ["lda-calibrated"]
    assert run_names(after, [before[0].values()]) == ["lda-calibrated-lr=0.01"]


def test_a_bank_holds_runs_of_one_stream_only_and_every_run_once(data: RunData) -> None:
    chosen = runs("init=random,lda", "loss=ce,mse", "seed=0:3", "buffer=10,20", "lr=1e-3,1e-2")
    compiled = compile_banks(chosen, data, asked=3)
    for bank in compiled:
        assert {run.shared for run in bank} == {bank[0].shared}
        assert len(bank) <= 3
        losses = [run.training.loss for run in bank]
        assert losses == sorted(losses)
    held = [run.identity for bank in compiled for run in bank]
    assert sorted(held) == sorted(run.identity for run in chosen)
    assert len(compiled) == 6 * 3  # eight heads a stream


def test_runs_of_another_pretrained_head_have_a_bank_of_their_own(data: RunData) -> None:
    compiled = compile_banks(runs("loss=ce,mse,sqen"), replace(data, heads={"mse": data.head}))
    assert [[run.training.loss for run in bank] for bank in compiled] == [["ce", "sqen"], ["mse"]]


def test_a_bank_is_no_larger_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    each = 4 * (4 * 1365 * 385 + 5 * 256 * 1365)
    monkeypatch.setattr(plan_module, "free_memory", lambda device: 2 * 5 * each)
    config = Study.of({"device": "cpu"}).resolved()
    assert bank_limit(config, num_classes=1365, dim=384) == 5
    assert bank_limit(config, num_classes=1365, dim=384, asked=3) == 3
    assert bank_limit(config, num_classes=1365, dim=384, asked=30) == 5
    monkeypatch.setattr(plan_module, "free_memory", lambda device: 0)
    assert bank_limit(config, num_classes=1365, dim=384) == 1
