"""Every writing command is killed, or fails, at one of its file operations, and run again.

After the second run all that counts is there, to the bit as from a run that nobody disturbed, and
no draft is left. A second run that is refused is right only where the first had finished. A command
whose operation fails ends with an error of one sentence, and removes its drafts.
"""

import json
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from same_bits import litter, results

from tests.conftest import Once
from tests.faults.process import Done, Fault, Limits, run, told
from tests.faults.workload import WRITERS, Scene

QUICK = [
    ("extract", "SIGKILL", 0.42),
    ("extract", "full", 0.6),
    ("extract --views", "SIGTERM", 0.5),
    ("cache import", "SIGKILL", 0.7),
    ("manifest build", "EACCES", 0.0),
    ("align", "EIO", 0.9),
    ("train-head", "SIGKILL", 0.5),
    ("train-top", "SIGKILL", 0.3),
    ("sweep", "SIGKILL", 0.4),
    ("export, folder", "SIGKILL", 0.6),
    ("add --more", "SIGKILL", 0.6),
    ("model merge", "SIGKILL", 0.8),
]
MODES = ("SIGKILL", "SIGTERM", "SIGINT", "EIO", "EACCES", "full")
SHARES = (0.03, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0)
SLOW = [
    pytest.param(command, mode, SHARES[(i + 3 * j) % len(SHARES)], marks=pytest.mark.slow)
    for (i, command), (j, mode) in product(enumerate(WRITERS), enumerate(("SIGKILL",) * 3 + MODES))
]


@pytest.fixture
def undisturbed(once: Once, another: Callable[[str], Scene]) -> Callable[[str], Path]:
    """Return the operations and results of a command to which nothing happens, as a file."""

    def whole(command: str) -> Path:
        def make(folder: Path) -> None:
            scene = another("undisturbed")
            done = run(WRITERS[command].split(), scene.folder)
            assert done.code == 0, done.err
            sizes = [path.stat().st_size for path in scene.out.rglob("*") if path.is_file()]
            found = {
                "results": results(scene.out, *scene.places),
                "size": max(sizes),
                "said": len(done.out),
            }
            (folder / "whole.json").write_text(
                json.dumps({"operations": len(done.operations), **found})
            )

        return once(f"undisturbed-{command.replace(' ', '-')}", make) / "whole.json"

    return whole


def first_run(scene: Scene, words: list[str], mode: str, share: float, whole: Path) -> Done:
    facts = told(whole)
    if mode == "full":
        # The limit holds for what it prints too, which goes into a file here.
        size = max(1000 + facts["said"], int(share * facts["size"]))
        return run(words, scene.folder, limits=Limits(file_size=size))
    return run(words, scene.folder, fault=Fault(mode, 1 + round(share * (facts["operations"] - 1))))


@pytest.mark.parametrize(("command", "mode", "share"), [*QUICK, *SLOW])
def test_after_a_kill_or_a_failure_the_same_command_ends_as_if_nothing_had_happened(
    scene: Scene, undisturbed: Callable[[str], Path], command: str, mode: str, share: float
) -> None:
    whole, words = undisturbed(command), WRITERS[command].split()
    wanted, first = told(whole)["results"], first_run(scene, words, mode, share, whole)
    if mode != "SIGKILL":
        signals = {"SIGTERM": 128 + signal.SIGTERM, "SIGINT": 128 + signal.SIGINT}
        assert first.problems(ends=(0, signals.get(mode, 1))) == []
        assert litter(scene.out) == []
    if first.code == 0:
        assert results(scene.out, *scene.places) == wanted
    again = run(words, scene.folder)
    assert again.problems(ends=(0, 1)) == []
    assert results(scene.out, *scene.places) == wanted, again.err
    assert litter(scene.out) == []
