"""Two processes are given the same folder; one is held at one of its file operations.

What a process that ends well has made is there, whole, as when it runs alone. The other is refused
in a sentence, or finds everything there; both write the same bits.
"""

from collections.abc import Callable

import pytest
from same_bits import litter, results

from tests.faults.process import Fault, run, start
from tests.faults.workload import WRITERS, Scene

OTHER = {
    "align": ("--loss", "ce"),
    "train-head": ("--seed", "1"),
    "extract": ("--dtype", "float32"),
}
QUICK = [("extract", 0.5, False), ("train-head", 0.5, False), ("align", 0.0, True)]
SLOW = [
    pytest.param(command, share, other, marks=pytest.mark.slow)
    for command in WRITERS
    for share in (0.1, 0.8)
    for other in ((False, True) if command in OTHER else (False,))
]


@pytest.mark.parametrize(("command", "share", "other"), [*QUICK, *SLOW])
def test_two_processes_on_one_folder_write_what_one_writes(
    scene: Scene, another: Callable[[str], Scene], command: str, share: float, other: bool
) -> None:
    both = [WRITERS[command].split()] * 2
    both[1] = [*both[1], *(OTHER[command] if other else ())]
    wanted, operations = [], 0
    for number, words in enumerate(both[: 1 + other]):
        alone = another(f"alone{number}")
        done = run(words, alone.folder)
        wanted.append(results(alone.out, *alone.places))
        operations = operations or len(done.operations)
    at = 1 + round(share * (operations - 1))
    one = start(both[0], scene.folder, fault=Fault("pause", at), name="one")
    while not (scene.folder / "paused").exists() and not one.ended(0.01):
        pass
    two = start(both[1], scene.folder, name="two")
    # The first is held while the second does not end: it may be waiting for the first.
    two.ended(4.0)
    (scene.folder / "go").touch()
    ended = [one.wait(), two.wait()]
    assert [each.problems(ends=(0, 1)) for each in ended] == [[], []]
    assert 0 in [each.code for each in ended], ended
    there = results(scene.out, *scene.places)
    if other:
        winner = next(i for i, each in enumerate(ended) if each.code == 0)
        assert there.items() >= wanted[winner].items() or all(each.code == 0 for each in ended)
    else:
        assert there == wanted[0]
    assert litter(scene.out) == []
