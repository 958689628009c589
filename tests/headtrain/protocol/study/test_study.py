import itertools
import math
import re
from typing import Any, Literal

import pytest

from clinit.headtrain.heads.closed.settings import RanpacConfig
from clinit.headtrain.heads.start.settings import INITS, Start
from clinit.headtrain.protocol.study import parts, rules
from clinit.headtrain.protocol.study.study import Study, identity_of, names_of, study_of
from clinit.setting import fields_of


def study(top: bool = False, /, **settings: Any) -> Study:
    return Study.of(settings, top=top)


def test_every_setting_has_one_name_and_a_help_text_of_its_own() -> None:
    every = [each for owner in rules.PARTS.values() for each in fields_of(owner).values()]
    assert len({each.name for each in every}) == len(every)
    assert {each.name for each in every} == {*rules.settings_of(), *rules.settings_of(top=True)}
    assert len({each.option for each in every}) == len(every)
    assert len({each.help for each in every}) == len(every)
    assert all(each.help.endswith(".") for each in every)


def test_values_go_in_and_come_out_by_name() -> None:
    found = Study.of({"seed": 3, "init": "zero", "lr": 0.5, "rank": 7, "ewc_lam": 2.0}, top=True)
    assert found.stream.seed == 3
    assert found.top.ewc == parts.EwcConfig(lam=2.0)
    assert found == Study(
        stream=parts.Stream(seed=3),
        start=Start(init="zero"),
        training=parts.Training(lr=0.5),
        top=parts.Top(rank=7, ewc=parts.EwcConfig(lam=2.0)),
    )
    assert Study.of(found.values(), top=True) == found


def test_an_unknown_setting_is_named() -> None:
    for top, name in ((False, "rnak"), (False, "rank"), (True, "schedule")):
        with pytest.raises(ValueError, match=f"there is no setting '{name}'"):
            study(top, **{name: 3})


def test_heads_are_named_by_initialisation_and_scale() -> None:
    heads = [study(init="random"), study(), study(init="class-mean", scale="none")]
    found = names_of([each.resolved() for each in heads])
    assert found == ["random", "least-square-calibrated", "class-mean-none"]
    varied = [study(lr=lr, weight_decay=0.1).resolved() for lr in (1e-3, 1e-4)]
    start = "least-square-calibrated"
    assert names_of(varied) == [f"{start}-lr=0.001", f"{start}-lr=0.0001"]


WRONG = [
    ("tasks", 0, "5", 2.0, True),
    ("iterations", -1),
    ("buffer", -1, 10**30),
    ("batch_size", 1, 10**7),
    ("eval_every", 0, "often"),
    ("seed", -1, 2**32),
    ("lr", 0.0, math.nan, math.inf),
    ("init", "zeros", None),
    ("anchor_strength", "images", None),
    ("lam", "best", -1.0),
    ("slda_shrinkage", 1.5),
    ("class_order", "a", (), (1,)),
]
WRONG_TOP = [("rank", 0, 10**9), ("derpp_alpha", -1.0), ("full_rank", 1)]
CASES = [(top, name, values) for top in (False, True) for name, *values in (WRONG, WRONG_TOP)[top]]
EXCLUSIVE = [
    (False, {"method": "ewc"}, "method must be one of .*, got 'ewc'. .clinit train-top"),
    (True, {"method": "ncm"}, "method must be one of .*, got 'ncm'. .clinit train-head"),
    (False, {"stop_after": 6}, "at most the number of tasks, 5, got 6"),
    (True, {"precision": "tf32"}, "got 'tf32'"),
]


@pytest.mark.parametrize(("top", "name", "values"), CASES)
def test_a_wrong_value_is_refused_by_the_name_of_its_setting(
    top: bool, name: str, values: list[Any]
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^{name} takes .*, got {re.escape(repr(value))}"):
            study(top, **{name: value})


@pytest.mark.parametrize(("top", "settings", "message"), EXCLUSIVE)
def test_settings_that_exclude_each_other_are_refused(
    top: bool, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        study(top, **settings).resolved()


@pytest.mark.parametrize(
    ("iterations", "eval_every", "points"),
    [
        (100, 50, (0, 50, 100)),
        (120, 50, (0, 50, 100, 120)),
        (0, 50, (0,)),
        (20, 50, (0, 20)),
        (120, "auto", (0, 1, 2, 5, 10, 20, 50, 100, 120)),
        (7, "auto", (0, 1, 2, 5, 7)),
        (0, "auto", (0,)),
    ],
)
def test_evaluation_points_begin_before_the_first_step_and_end_after_the_last(
    iterations: int, eval_every: int | Literal["auto"], points: tuple[int, ...]
) -> None:
    assert parts.Stream(iterations=iterations, eval_every=eval_every).evaluation_points == points


@pytest.mark.parametrize(
    ("top", "method", "lr", "batch_size", "rows", "buffer"),
    [
        (False, "rehearsal", 1e-3, 256, "buffer", 24_000),
        (False, "naive", 1e-3, 256, "new", None),
        (False, "ridge", 1e-3, 256, "buffer", None),
        (True, "rehearsal", 1.5e-3, 256, "buffer", 24_000),
        (True, "ewc", 8e-4, 128, "buffer", 24_000),
        (True, "derpp", 1.5e-3, 256, "buffer", 24_000),
        (True, "joint", 1.5e-3, 256, "buffer", None),
    ],
)
def test_defaults_follow_the_method(
    top: bool, method: str, lr: float, batch_size: int, rows: str, buffer: int | None
) -> None:
    found = study(top, method=method).resolved()
    assert (found.training.rate, found.stream.rows_per_batch) == (lr, batch_size)
    assert (found.start.init_rows, found.stream.buffer) == (rows, buffer)
    assert found.resolved() == found


@pytest.mark.parametrize("top", [False, True])
def test_resolving_twice_changes_nothing_and_keeps_the_identity(top: bool) -> None:
    for method in parts.TOP_METHODS if top else parts.HEAD_METHODS:
        for init in ("random", "least-square", "lda"):
            asked = study(top, method=method, init=init, lam=0.3, weighting="sample", lr=0.1)
            assert asked.resolved().resolved() == asked.resolved()
            assert asked.reduced().reduced() == asked.reduced()
            assert asked.identity == asked.resolved().identity == asked.reduced().identity
            assert identity_of(asked.resolved().settings()) == asked.identity


def test_a_record_names_what_its_method_reads() -> None:
    every = rules.settings_of(top=True).keys() - {"probe"}
    low_rank, every = study(True).resolved().settings(), every - {*rules.EARLIER} | {"new_share"}
    assert low_rank.keys() == every - {*rules.EWC, *rules.DERPP}
    ewc = study(True, method="ewc").resolved().settings()
    assert ewc.keys() == every - {*rules.LOW_RANK, *rules.DERPP}
    full = study(True, full_rank=True, method="derpp").resolved().settings()
    assert full.keys() == every - {*rules.LOW_RANK, *rules.EWC}
    ridge = study(method="ridge").resolved().settings()
    absent = {*rules.PER_HEAD, *rules.CLOSED, *rules.EARLIER} - {"lam", "weighting", "loss"}
    assert rules.settings_of().keys() - ridge.keys() == absent
    ranpac = study(method="ranpac").resolved().settings()
    assert ranpac.keys() & {*rules.CLOSED} == {f"ranpac_{name}" for name in fields_of(RanpacConfig)}


def test_what_is_shared_leaves_out_only_what_heads_of_a_bank_may_differ_in() -> None:
    some = study(init="zero", lr=0.1, loss="mse", seed=2).resolved()
    assert some.shared == study(seed=2).resolved().shared
    assert some.shared != study(seed=3).resolved().shared


def test_later_settings_are_named_by_records_and_identities_that_give_them() -> None:
    before = {"new_share": "classes", "mix": "text"}
    plain = study(**before).resolved()
    assert not plain.settings().keys() & {*rules.EARLIER}
    assert not any(name in plain.identity for name in rules.EARLIER)
    anchored = {"anchor": "moments"}
    for given in ({"old_rows": "statistics"}, {**anchored, "anchor_strength": 0.1}, anchored):
        asked = study(**given, **before).resolved()
        assert asked.settings().keys() & {*rules.EARLIER} == given.keys()
        assert asked.identity != plain.identity
        assert identity_of(asked.settings()) == asked.identity
    held = study(**before, anchor="moments").resolved()
    other = study(mix="text", anchor="moments").resolved()
    assert names_of([held, other])[1].endswith("new-share=auto")
    assert names_of([plain, held])[1] == "least-square-calibrated-anchor=moments"
    assert names_of([held, plain])[0] == "least-square-calibrated-anchor=moments"
    # What holds nothing has no strength.
    assert study(iterations=0, anchor="moments").identity == study(iterations=0).identity


GIVEN = {"protocol": "keep", "mix": "text", "anchor": "none", "schedule": "constant"}
PROTOCOLS = [
    ({}, ("text", "none", "auto", "constant")),
    ({"protocol": "keep"}, ("uniform", "moments", "auto", "linear")),
    ({"protocol": "keep", "method": "joint"}, ("uniform", "moments", "auto", "linear")),
    ({"protocol": "keep", "method": "naive"}, ("text", "moments", "auto", "linear")),
    ({"protocol": "keep", "old_rows": "statistics"}, ("uniform", "moments", "auto", "linear")),
    (GIVEN, ("text", "none", "auto", "constant")),
    ({"protocol": "keep", "anchor_strength": 0.1}, ("uniform", "moments", 0.1, "linear")),
    ({"anchor": "moments"}, ("text", "moments", "auto", "constant")),
]
KEEPING = ("mix", "anchor", "anchor_strength", "schedule")


@pytest.mark.parametrize(("settings", "applied"), PROTOCOLS)
def test_a_protocol_is_recorded_as_what_is_applied_the_same_for_every_start(
    settings: dict[str, Any], applied: tuple[Any, ...]
) -> None:
    for init, loss in itertools.product(INITS, ("ce", "mse")):
        found = study(**settings, init=init, loss=loss).resolved()
        assert tuple(found.value(name) for name in KEEPING) == applied
        assert found.is_held == (applied[1] != "none")
        recorded = found.settings()
        assert "protocol" not in recorded
        said = {"method": "rehearsal", **settings, **dict(zip(KEEPING, applied, strict=True))}
        said = {name: value for name, value in said.items() if name != "protocol"}
        assert study(**said, init=init, loss=loss).identity == found.identity
        assert identity_of(recorded) == found.identity


def test_protocols_do_not_differ_in_what_trains_nothing() -> None:
    untrained = study(iterations=0)
    assert study(iterations=0, protocol="keep").identity == untrained.identity
    assert not study(iterations=0, protocol="keep").resolved().is_held
    assert study(mix="text", iterations=0).identity == untrained.identity


def test_names_tell_of_batches_and_anchors_that_differ() -> None:
    short = [study(init="random", iterations=each).resolved() for each in (0, 5)]
    assert names_of(short) == ["random-iterations=0", "random-iterations=5"]
    name = names_of([study().resolved(), study(protocol="keep").resolved()])[1]
    assert all(each in name for each in ("anchor=moments", "schedule=linear", "mix=uniform"))


REFUSED = [
    (False, {"method": "ncm", "protocol": "keep"}, "--protocol does not go with --method ncm"),
    (False, {"method": "ncm", "lr": 1e-2}, "--lr does not go with --method ncm"),
    (False, {"method": "lda", "lam": 0.1}, "--lambda does not go with --method lda"),
    (False, {"method": "ranpac", "lam": 0.1}, "its lambda is --ranpac-lambda"),
    (False, {"method": "ncm", "weighting": "sample"}, "--weighting does not go with --method ncm"),
    (False, {"method": "slda", "weighting": "sample"}, "--weighting does not go with --method sl"),
    (False, {"method": "slda", "buffer": 5}, "--buffer does not go with --method slda"),
    (False, {"method": "naive", "mix": "text"}, "--mix does not go with --method naive"),
    (False, {"method": "naive", "buffer": 5}, "--buffer does not go with --method naive"),
    (False, {"method": "joint", "buffer": 5}, "--buffer does not go with --method joint"),
    (False, {"mix": "text", "anchor_strength": 0.1}, "--anchor-strength does not go with --anchor"),
    (False, {"method": "slda", "anchor": "moments"}, "--anchor does not go with --method slda"),
    (False, {"method": "naive", "old_rows": "statistics"}, "--old-rows does not go with --method"),
    (False, {"old_rows": "statistics", "buffer": 5}, "--buffer does not go with --old-rows stat"),
    (False, {"method": "joint", "mix": "text"}, "--mix does not go with --method joint"),
    (False, {"ranpac_width": 4}, "--ranpac-width does not go with --method rehearsal"),
    (True, {"method": "ewc", "rank": 5}, "--rank does not go with --method ewc"),
    (True, {"full_rank": True, "alpha": 5.0}, "--alpha does not go with --full-rank"),
    (True, {"ewc_lam": 5.0}, "--ewc-lambda does not go with --method rehearsal"),
    (True, {"method": "joint", "derpp_beta": 0.5}, "--derpp-beta does not go with --method joint"),
]
IDLE_BY_START = [
    ({"init": "random"}, {"scale", "bias", "init_rows", "calibration", "lam", "weighting"}),
    ({"scale": "norm", "lam": 0.05}, {"calibration", "new_share"}),
    ({"init": "zero"}, {"calibration"}),
    ({"init": "fitted"}, {"scale"}),
    ({"scale": "norm"}, {"calibration"}),
    ({"init": "class-mean"}, {"lam", "weighting"}),
    ({"iterations": 0}, {"lr", "weight_decay", "precision", "anchor"}),
]


@pytest.mark.parametrize(("settings", "idle"), IDLE_BY_START)
def test_what_a_start_does_not_read_tells_no_runs_apart(
    settings: dict[str, Any], idle: set[str]
) -> None:
    assert idle <= study(**settings).idle("start").keys()
    assert not idle & study().idle("start").keys()


@pytest.mark.parametrize(("top", "settings", "message"), REFUSED)
def test_what_a_method_does_not_read_is_refused(
    top: bool, settings: dict[str, Any], message: str
) -> None:
    (found,) = rules.refusals(settings.keys(), [study(top, **settings)])
    assert message in found


def test_what_one_of_several_runs_reads_is_not_refused() -> None:
    both = [study(method="ncm", lr=1e-2), study(lr=1e-2)]
    assert rules.refusals(["lr"], both) == []
    assert rules.refusals(["lr"], both[:1]) != []
    assert rules.refusals(["buffer"], [study(method="naive", init_rows="buffer", buffer=5)]) == []


def test_runs_of_earlier_versions_are_those_of_what_their_settings_meant() -> None:
    then = {"init": "least-square", "scale": "calibrated", "lam": 0.05, "seed": 3}
    now = Study.of({**then, "calibration": "in-sample", **{"new_share": "classes"}})
    assert identity_of(then) == now.identity
    assert "new_share" not in now.identity + Study.of({"init": "random"}).identity
    assert identity_of(then) != Study.of(then).identity
    chosen = {**then, "lam": "auto"}
    with pytest.raises(ValueError, match="got 'held-out'"):  # how lambda was chosen then
        study_of(chosen)
    # A setting without an effect tells no runs apart.
    assert identity_of({**then, "scale": "norm"}) == Study.of({**then, "scale": "norm"}).identity
    solved = {"method": "ridge", "lam": "auto"}
    assert identity_of(solved) == Study.of(solved).identity
