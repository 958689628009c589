"""Two commands on one --out: the second is refused before it reads anything."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from clinit.cli.main import app
from clinit.errors import ClinitError
from clinit.files.lock import claim_file, claim_folder

BOTH = ("--base", "hollow", "--new", "hollow")
INTO_FOLDER = {
    "train-head": ("train-head", *BOTH),
    "train-top": ("train-top", *BOTH),
    "sweep": ("sweep", *BOTH, "seed=0:2"),
    "search": ("sweep", *BOTH, "lr=1e-3..1e-2:log", "--search", "optuna"),
}
INTO_FILE = {"align": ("align", "hollow"), "export": ("export", "hollow")}


@pytest.fixture(autouse=True)
def _something_to_read(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make a cache and a run of empty files: that there is nothing at all is seen before."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "hollow" / "train").mkdir(parents=True)
    (folder / "hollow" / "train" / "plan.json").touch()
    (folder / "hollow" / "run.json").touch()
    monkeypatch.chdir(folder)


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refusal(result: Result) -> str:
    assert isinstance(result.exception, ClinitError), result.output
    return f"{result.exception}\n{result.exception.remedy}"


@pytest.mark.parametrize("name", INTO_FOLDER)
def test_a_folder_that_another_process_writes_is_refused_before_a_cache_is_read(
    tmp_path: Path, name: str
) -> None:
    words = (*INTO_FOLDER[name], "--out", tmp_path / "out")
    with claim_folder(tmp_path / "out"):
        assert refusal(run(*words)) == (
            f"another process is writing into {tmp_path}/out\n"
            "Wait until it has finished, or end it; then run this command again."
        )
    assert "hollow" in refusal(run(*words))


@pytest.mark.parametrize("name", INTO_FILE)
def test_a_file_that_another_process_writes_is_refused_before_anything_is_read(
    tmp_path: Path, name: str
) -> None:
    out = tmp_path / "head.safetensors"
    words = (*INTO_FILE[name], "--out", out)
    with claim_file(out):
        assert f"another process is writing {out}\n" in refusal(run(*words))
    assert "hollow" in refusal(run(*words))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [*INTO_FOLDER, *INTO_FILE])
def test_what_a_killed_command_was_writing_is_removed_by_the_next_one(
    tmp_path: Path, name: str
) -> None:
    out, words = tmp_path / "head.safetensors", {**INTO_FOLDER, **INTO_FILE}[name]
    draft = out / ".random.tmp-0123456789abcdef"
    if name in INTO_FILE:
        draft = tmp_path / ".head.safetensors.tmp-0123456789abcdef"
    draft.mkdir(parents=True)
    (draft / "steps.parquet").touch()
    assert "hollow" in refusal(run(*words, "--out", out))
    assert not draft.exists()


def test_storage_that_cannot_lock_serves_and_is_told_of(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", cannot)
    out = tmp_path / "model.safetensors"
    shown = run("export", tiny_run, "--out", out)
    assert shown.exit_code == 0, shown.output
    assert (
        f"Note: The storage of {out} cannot lock files (No locks available): do not run two"
        " commands on it at a time."
    ) in shown.output.splitlines()
    caches = tiny_run.parent / "caches"
    words = ["--base", caches / "base", "--new", caches / "new", "--tasks", 2, "--iterations", 2]
    words += ["--batch-size", 4, "--init", "random", "--device", "cpu"]
    shown = run("train-head", *words, "--out", tmp_path / "runs")
    assert shown.exit_code == 0, shown.output
    assert f"Note: The storage of {tmp_path}/runs cannot lock files" in shown.output
    grid = ["device=cpu", "tasks=2", "iterations=2", "batch_size=4", "init=random"]
    shown = run("sweep", *words[:4], "--out", tmp_path / "sweep", *grid)
    assert shown.exit_code == 0, shown.output
    assert f"Note: The storage of {tmp_path}/sweep cannot lock files" in shown.output


@pytest.mark.parametrize("command", ["train-head", "sweep"])
def test_a_folder_that_is_removed_meanwhile_is_told_and_written_anew(
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    remove_before_writing: Callable[[Path], None],
    command: str,
) -> None:
    out, caches = tmp_path / "runs", tiny_run.parent / "caches"
    words: list[object] = ["--base", caches / "base", "--new", caches / "new", "--out", out]
    if command == "train-head":
        words += ["--tasks", 2, "--iterations", 2, "--batch-size", 4, "--device", "cpu"]
    else:
        words += ["device=cpu", "tasks=2", "iterations=2", "batch_size=4", "seed=0:2"]
    with monkeypatch.context():
        remove_before_writing(out)
        assert refusal(run(command, *words)) == (
            f"{out} was removed or replaced while this command wrote into it\n"
            "Run the same command again; it does what is missing."
        )
    again = run(command, *words)
    assert again.exit_code == 0, again.output
    told = "2 recorded already" if command == "sweep" else f"{out}/random is there already"
    assert told in again.output


@pytest.fixture
def remove_before_writing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Remove a folder where the first record is about to be written into it."""
    import shutil

    from clinit.headtrain.record import format as record

    def arrange(folder: Path) -> None:
        write = record._write_files

        def remove_and_write(*arguments: object) -> None:
            monkeypatch.setattr(record, "_write_files", write)
            shutil.rmtree(folder)
            Path(str(arguments[1])).mkdir(parents=True)
            write(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(record, "_write_files", remove_and_write)

    return arrange
