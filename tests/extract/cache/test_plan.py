import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clinit.errors import CacheError
from clinit.extract.cache.fingerprint import Fingerprint
from clinit.extract.cache.plan import Plan, split_names
from clinit.files.documents import content_sha256

OF_LATER: dict[str, Any] = {"shape": (2, 2), "compiled": True}


@pytest.fixture
def plan() -> Plan:
    return Plan(
        dataset="folder",
        split="train",
        num_rows=10,
        dim=4,
        dtype="float16",
        shard_rows=4,
        batch_size=3,
        fingerprint=Fingerprint({"backbone": "x", "manifest": "1"}),
    )


@pytest.mark.parametrize("shard_rows", [1, 3, 4, 10, 99])
def test_the_shards_cover_every_row_once(plan: Plan, shard_rows: int) -> None:
    cut = replace(plan, shard_rows=shard_rows)
    assert [row for shard in range(cut.num_shards) for row in cut.rows(shard)] == list(range(10))


def test_a_plan_survives_the_disk(plan: Plan, tmp_path: Path) -> None:
    plan.settle(tmp_path)
    assert (Plan.read(tmp_path), Plan.read(tmp_path).identifier) == (plan, plan.identifier)
    plan.settle(tmp_path)


def test_what_earlier_versions_did_not_record_changes_the_identifier_only_if_it_is_set(
    plan: Plan,
) -> None:
    earlier = {name: value for name, value in plan.content().items() if name not in OF_LATER}
    assert plan.identifier == content_sha256(earlier)
    others = {replace(plan, **{name: value}).identifier for name, value in OF_LATER.items()}
    assert len(others - {plan.identifier}) == len(OF_LATER)


def test_a_fingerprint_that_is_none_is_refused(plan: Plan, tmp_path: Path) -> None:
    plan.settle(tmp_path)
    content = json.loads((tmp_path / "plan.json").read_text())
    del content["sha256"]
    content |= {"format": "clinit-cache/1", "fingerprint": [1]}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(
        CacheError, match=r"Expected `object`, got `array` - at `\$\.fingerprint\.fields`"
    ):
        Plan.read(tmp_path)


@pytest.mark.parametrize(
    "change", [{"num_rows": 0}, {"batch_size": 2**41}, {"dtype": "int8"}, {"split": "../train"}]
)
def test_impossible_plans_are_refused(
    plan: Plan, tmp_path: Path, change: dict[str, object]
) -> None:
    replace(plan, **change).settle(tmp_path)  # type: ignore[arg-type]
    with pytest.raises(CacheError, match=rf"at `\$\.{next(iter(change))}`"):
        Plan.read(tmp_path)


def remedy(path: Path) -> str:
    with pytest.raises(CacheError, match=f"^no feature cache at {path}$") as caught:
        split_names(path)
    return caught.value.remedy


def test_a_cache_of_nearly_that_name_is_asked_about(tmp_path: Path) -> None:
    for name in ("imagenet", "places"):
        (tmp_path / name / "train").mkdir(parents=True)
        (tmp_path / name / "train" / "plan.json").touch()
    (tmp_path / "imagent").mkdir()
    assert remedy(tmp_path / "imagnet") == f"Did you mean {tmp_path / 'imagenet'}?"
    assert remedy(tmp_path / "digits").startswith("Write one with `clinit extract --out`")
    # A folder that is there is not one that was misspelt.
    assert remedy(tmp_path / "imagent").startswith("Write one with `clinit extract --out`")
    assert remedy(tmp_path / "nowhere" / "imagnet").startswith("Write one with")
