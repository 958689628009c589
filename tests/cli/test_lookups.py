"""Commands that look something up, or sum and copy features: what they print and write."""

from pathlib import Path

from clinit.headtrain.protocol.stream.summed import read_summed
from tests.cli.calls import call, checked


def test_a_known_data_set_is_shown_with_its_sizes_classes_and_layouts() -> None:
    names = checked(call("manifest", "show", "places365", "--classes")).split()
    assert len(names) == 365
    shown = checked(call("manifest", "show", "places365"))
    assert all(fact in shown for fact in (names[0], names[-1], "1,803,460", "Layouts"))


def test_statistics_are_told_of_by_the_count_of_their_numbers(
    tiny_run: Path, tmp_path: Path
) -> None:
    cache, whole = tiny_run.parent / "caches" / "base", tmp_path / "whole.safetensors"
    told = checked(call("head", "statistics", cache, "--out", whole))
    sums = read_summed(whole).statistics
    assert f"{(sums.num_classes + sums.dim) * sums.dim:,} numbers" in told
