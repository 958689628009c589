"""What is said of a cache that is not there."""

from pathlib import Path

import pytest

from clinit.errors import CacheError
from clinit.extract.cache.folder import split_names


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
