import pytest

from clinit.extract.byte_size import byte_count, size_text


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("12", 12), ("12 B", 12), ("1.5kB", 1500), ("2M", 2 * 10**6), ("3tb", 3 * 10**12)],
)
def test_a_size_is_a_number_with_or_without_a_unit(text: str, size: int) -> None:
    assert byte_count(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1GB", "GB", "1 XB", "1e9", "1GiB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"takes a size such as 20GB, got '{text}'"):
        byte_count(text)


@pytest.mark.parametrize("text", ["9" * 19, "9" * 309, "9" * 5000 + "TB"])
def test_a_size_that_nothing_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"takes a size of at most 9 EB, got '9{19,40}'$"):
        byte_count(text)


def test_the_largest_size_and_decimals_lose_no_byte() -> None:
    assert byte_count(f"{9 * 10**18}") == 9 * 10**18
    assert byte_count("1.001001001GB") == 1_001_001_001


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (2_345_000, "2.35 MB"),
        (10**12, "1,000.00 GB"),
    ],
)
def test_a_size_is_written_in_the_largest_unit_of_which_it_has_one(size: int, text: str) -> None:
    assert size_text(size) == text
