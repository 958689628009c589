"""A worker's share of the shards: shards i, i + n, i + 2n, … of a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from clinit.errors import ClinitError

_PART = re.compile(r"(?P<number>\d{1,9})/(?P<count>\d{1,9})")
_VARIABLES = "RANK and WORLD_SIZE (torchrun) nor SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT"


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number` of `count`, counted from 1; 1 of 1 is everything."""

    number: int = 1
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.count:
            raise ValueError(f"part must be in 1/{self.count} … {self.count}/{self.count}")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def shards(self, num_shards: int) -> range:
        """Return the shards of this part; interleaved, so that all parts end at about one time."""
        return range(self.number - 1, num_shards, self.count)


WHOLE = Part()
"""Everything."""


def parse_part(text: str, environment: Mapping[str, str]) -> Part:
    """Return the part that a user asks for.

    Args:
        text: `i/n`, or `auto` for what torchrun or a Slurm array says: element a of A, rank r of
            R in it is part a R + r + 1 of A R.
        environment: Environment variables, for `auto`.

    Raises:
        ClinitError: If it is no part.
    """
    if text == "auto":
        return _of_environment(environment)
    found = _PART.fullmatch(text)
    if found is None or not 1 <= int(found["number"]) <= int(found["count"]):
        raise ClinitError(
            f"--part is {text!r}, expected i/n with i from 1 to n, or auto",
            remedy="Give --part 1/4 to --part 4/4 to four workers, or leave it out: workers on one"
            " folder then share the shards as they go.",
        )
    return Part(int(found["number"]), int(found["count"]))


def local_device(device: str, environment: Mapping[str, str], count: int) -> str:
    """Return the device of this process: torchrun gives each process of a host a GPU of its own.

    Args:
        device: What was chosen; `cuda` alone is the first of several.
        environment: Environment variables.
        count: Number of CUDA devices that this process sees.
    """
    rank = _number(environment, "LOCAL_RANK")
    return f"cuda:{rank % count}" if device == "cuda" and rank is not None and count > 1 else device


def _of_environment(environment: Mapping[str, str]) -> Part:
    rank = _pair(environment, "RANK", "WORLD_SIZE", 0)
    first = _number(environment, "SLURM_ARRAY_TASK_MIN") or 0
    step = _number(environment, "SLURM_ARRAY_TASK_STEP") or 1
    element = _pair(environment, "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", first, step)
    if rank is None and element is None:
        raise ClinitError(
            f"--part auto: the environment has neither {_VARIABLES}",
            remedy="Give the part as i/n, such as --part 1/4.",
        )
    (index, ranks), (outer, elements) = rank or (0, 1), element or (0, 1)
    return Part(outer * ranks + index + 1, ranks * elements)


def _pair(
    environment: Mapping[str, str], index: str, count: str, first: int, step: int = 1
) -> tuple[int, int] | None:
    """Return a position, counted from 0, and of how many it is; None where neither is set."""
    if index not in environment and count not in environment:
        return None
    found, most = _number(environment, index), _number(environment, count)
    place = None if found is None else (found - first) / step
    if place is None or most is None or not (0 <= place < most and place == int(place)):
        raise ClinitError(
            f"--part auto: {index} is {environment.get(index, 'not set')} and {count} is"
            f" {environment.get(count, 'not set')}, expected a position and a larger number",
            remedy="Give the part as i/n, such as --part 1/4.",
        )
    return int(place), most


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
