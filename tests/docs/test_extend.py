"""The examples of `docs/extend.md`, applied to a copy of the source and run there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clinit.headtrain.protocol.record.format import read_record
from tests.cli.calls import call
from tests.docs.pages import ROOT, Block, blocks_of

PAGE = list(blocks_of(ROOT / "docs" / "extend.md"))
START = """
import clinit
from tests.docs.prepare import prepare
from pathlib import Path
print(clinit.__file__)
prepare(Path())
"""
PARTS = ("analysis", "cli", "data_manifests", "extract", "headtrain")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source with all files and changes of the page."""
    root, ignore = tmp_path_factory.mktemp("source"), shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", root / "src", symlinks=True, ignore=ignore)
    for part in PARTS:
        shutil.copytree(ROOT / part, root / part, ignore=ignore)
    for block in PAGE:
        kind, _, name = block.mark.partition(": ")
        if kind == "file":
            assert not (root / name).exists(), name
            (root / name).write_text(block.text, encoding="utf-8")
        elif kind == "change":
            change(root / name, block)
    return root


def change(path: Path, block: Block) -> None:
    """Replace the lines of a `diff` block, which must be there once."""
    lines = block.text.splitlines()
    before = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
    after = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, f"{block.place}: {path.name} has no such lines, or several"
    path.write_text(text.replace(before, after), encoding="utf-8")


@pytest.mark.parametrize(
    ("function", "option", "run"),
    [
        ("my_starts:centred", "--init zero --init", "my_starts.centred-calibrated"),
        ("my_losses:smoothed", "--init zero --loss", "zero-calibrated"),
        ("my_methods:lwf", "--init zero --method naive --step", "naive-zero-calibrated"),
    ],
)
def test_a_function_of_the_page_is_trained_with_and_repeated_by_command(
    function: str,
    option: str,
    run: str,
    tiny_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = function.partition(":")[0]
    (block,) = (block for block in PAGE if block.mark == f"file: {module}.py")
    source = tmp_path / f"{module}.py"
    source.write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, module, raising=False)
    caches = tiny_run.parent / "caches"
    words = f"train-head --base {caches / 'base'} --new {caches / 'new'} --out runs --tasks 2"
    small = f"--iterations 3 --batch-size 6 --device cpu {option} {function}"
    again = words.replace("--out runs --tasks 2", f"--config runs/{run}/study.toml --out")
    for command in (f"{words} {small}", f"{again} again"):
        result = call(*command.split())
        assert result.exit_code == 0, (result.output, result.exception)
    (repeated,) = tmp_path.glob("again/*/run.json")
    one, other = (read_record(path) for path in (tmp_path / "runs" / run, repeated.parent))
    assert one.evaluations.equals(other.evaluations)
    with source.open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    result = call(*f"{again} other".split())
    assert "has changed" in str(result.exception)
    source.unlink()
    monkeypatch.delitem(sys.modules, module)
    result = call(*f"{again} other".split())
    assert f"No module named '{module}'" in str(result.exception)
    assert f"{function}@" in call("report", "runs", "--json").output


@pytest.mark.slow
def test_the_examples_run_in_the_changed_source(changed: Path, tmp_path: Path) -> None:
    code = "".join(block.text for block in PAGE if block.language == "python" and not block.mark)
    (tmp_path / "page.py").write_text(f"{START}\n{code}", encoding="utf-8")
    path = os.pathsep.join([str(changed / "src"), str(changed), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(changed))
    for name in ("centred", "smoothed", "dlda"):
        assert name in done.stdout


def test_the_examples_are_formatted_as_the_source_is(changed: Path) -> None:
    names = [block.mark.removeprefix("file: ") for block in PAGE if block.mark.startswith("file: ")]
    assert names
    ruff = Path(sys.executable).with_name("ruff")
    for arguments in (["format", "--check"], ["check"]):
        command = [str(ruff), *arguments, "--config", str(ROOT / "pyproject.toml"), *names]
        done = subprocess.run(command, cwd=changed, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
