"""Parts of a plan: all shards exactly once, and what the environment says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clinit.errors import ClinitError
from clinit.extract.work.part import Part, local_device, parse_part


@given(st.integers(1, 20), st.integers(0, 200))
def test_parts_hold_every_shard_once_and_differ_by_one_at_most(count: int, shards: int) -> None:
    parts = [Part(number, count).shards(shards) for number in range(1, count + 1)]
    assert sorted(shard for part in parts for shard in part) == list(range(shards))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_everything_is_one_part() -> None:
    assert Part().shards(5) == range(5)
    assert str(Part()) == "1/1"


def test_a_part_is_given_as_its_number_and_their_count() -> None:
    assert parse_part("3/4", {}) == Part(3, 4)


def test_torchrun_and_slurm_arrays_say_which_part_it_is() -> None:
    ranks = {"RANK": "1", "WORLD_SIZE": "4"}
    array = {
        "SLURM_ARRAY_TASK_ID": "14",
        "SLURM_ARRAY_TASK_COUNT": "3",
        "SLURM_ARRAY_TASK_MIN": "10",
        "SLURM_ARRAY_TASK_STEP": "2",
    }
    assert parse_part("auto", ranks) == Part(2, 4)
    assert parse_part("auto", array) == Part(3, 3)
    assert parse_part("auto", {**array, **ranks}) == Part(10, 12)


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "1/0", "-1/4", "1/4/2", "", "a/b", "1/4 "])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(ClinitError) as caught:
        parse_part(text, {})
    assert str(caught.value) == f"--part is {text!r}, expected i/n with i from 1 to n, or auto"
    assert "--part 1/4" in caught.value.remedy


def test_an_environment_that_says_nothing_is_refused() -> None:
    with pytest.raises(
        ClinitError, match=r"neither RANK and WORLD_SIZE \(torchrun\) nor SLURM_ARRAY"
    ) as caught:
        parse_part("auto", {"SLURM_JOB_ID": "7"})
    assert caught.value.remedy == "Give the part as i/n, such as --part 1/4."


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK is 4 and WORLD_SIZE is 4"),
        ({"RANK": "0"}, "RANK is 0 and WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2", "RANK": "one"}, "RANK is one and WORLD_SIZE is 2"),
        (
            {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "2"},
            "SLURM_ARRAY_TASK_ID is 3 and SLURM_ARRAY_TASK_COUNT is 2",
        ),
    ],
)
def test_an_environment_that_contradicts_itself_is_refused(
    environment: dict[str, str], said: str
) -> None:
    with pytest.raises(ClinitError) as caught:
        parse_part("auto", environment)
    assert f"--part auto: {said}, expected a position and a larger number" == str(caught.value)


def test_each_process_of_a_host_has_a_gpu_of_its_own() -> None:
    assert local_device("cuda", {"LOCAL_RANK": "3"}, 8) == "cuda:3"
    assert local_device("cuda", {"LOCAL_RANK": "3"}, 1) == "cuda", (
        "the scheduler shows only its own"
    )
    assert local_device("cuda:1", {"LOCAL_RANK": "3"}, 8) == "cuda:1"
    assert local_device("cpu", {"LOCAL_RANK": "3"}, 0) == "cpu"
    assert local_device("cuda", {}, 8) == "cuda"


def test_a_part_that_is_none_of_its_count_is_no_value() -> None:
    with pytest.raises(ValueError, match="part must be in 1/4"):
        Part(5, 4)
