import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from clinit.cli import main as command_line
from clinit.errors import ClinitError
from clinit.extract.head import Head, write_head


def walk(command: Any, path: str = "clinit") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, f"{path} {name}")


COMMANDS = dict(walk(typer.main.get_command(command_line.app)))


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["clinit", *arguments])
    with pytest.raises(SystemExit) as caught:
        command_line.main()
    return int(caught.value.code or 0)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_every_option_has_help(path: str) -> None:
    command = COMMANDS[path]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None) or parameter.name in ("help",), parameter.name


def told(command: str) -> str:
    """Return what the help says of the settings of a command, and of their defaults."""
    return "\n".join(
        f"{parameter.opts[0]} {parameter.help} {getattr(parameter, 'show_default', '')}"
        for parameter in COMMANDS[f"clinit {command}"].params
        if parameter.name != "help"
    )


def test_the_help_of_a_command_tells_its_own_settings_and_defaults_alone() -> None:
    heads, tops = told("train-head"), told("train-top")
    assert re.findall(r"\bewc|der\+\+|derpp|top block|1\.5e-3|8e-4|128", heads, re.I) == []
    assert re.findall(r"heads? alone|ncm|ridge, |\btf32|--lr .* 1e-3", tops, re.I) == []
    assert "--batch-size Rows per batch. 256\n" in heads
    assert "--batch-size Rows per batch. 256; ewc: 128\n" in tops
    assert "--lr Learning rate of AdamW; it is constant. 1e-3\n" in heads
    assert "at the peak of one cycle per task. 1.5e-3; ewc: 8e-4\n" in tops


@pytest.mark.parametrize("name", command_line.Commands.table)
def test_the_list_says_of_each_command_what_its_own_help_begins_with(name: str) -> None:
    line = command_line.Commands.table[name].help
    assert " ".join(COMMANDS[f"clinit {name}"].help.split()).startswith(line)
    assert line.endswith(".")


def test_the_list_names_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(monkeypatch, "--help") == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, lazy in command_line.Commands.table.items():
        assert f" {name} {lazy.help}" in shown


def test_an_unknown_command_is_refused_with_a_near_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "trainhead") == 2
    assert "There is no command trainhead. Did you mean train-head?" in capsys.readouterr().err


def test_help_builds_no_command() -> None:
    code = (
        "import sys; from clinit.cli.main import app; app(['--help'], standalone_mode=False);"
        "print([name for name in ('train_head', 'sweep') if f'clinit.cli.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_the_commands_are_those_of_the_documentation() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    leaves = [path for path, command in COMMANDS.items() if not hasattr(command, "commands")]
    assert [path for path in leaves if path not in readme] == []


def test_the_version_is_that_of_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from clinit import __version__

    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"clinit {__version__}\n"


def test_help_loads_none_of_the_heavy_packages() -> None:
    code = (
        "import sys; from clinit.cli.main import app; app(['--help'], standalone_mode=False);"
        "heavy = {'torch', 'timm', 'h5py', 'polars', 'scipy', 'sklearn', 'matplotlib', 'numpy'};"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded: []\n")


@pytest.mark.parametrize(
    "module",
    [
        "clinit.analysis.report",
        "clinit.extract.cache",
        "clinit.extract.arrays.import_features",
        "clinit.extract.verify",
        "clinit.headtrain.record.format",
    ],
)
def test_what_only_reads_and_writes_files_does_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_head_is_read_without_torch(tmp_path: Path) -> None:
    write_head(Head(np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.float32)), tmp_path / "h")
    code = (
        "import sys; from pathlib import Path; from clinit.extract.head import read_head;"
        f"read_head(Path({str(tmp_path / 'h')!r})); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_python_m_clinit_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clinit", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("clinit ")


def test_shells_can_complete_the_command() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "clinit"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "_CLINIT_COMPLETE": "source_bash"},
    )
    assert "COMP_WORDS" in done.stdout


def test_a_known_error_is_one_message_with_its_remedy_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "cache", "show", "caches[bold]/absent") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Error: no feature cache at caches[bold]/absent\n")
    assert "`clinit extract --out`" in shown.err
    assert "Traceback" not in shown.err


def test_a_path_that_is_too_long_is_an_error_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "cache", "show", "x" * 5000) == 1
    assert "File name too long" in capsys.readouterr().err


def test_the_errors_form_the_tree_that_is_drawn() -> None:
    import clinit.errors

    leaves = {error.__name__ for error in ClinitError.__subclasses__()}
    assert all(name in (clinit.errors.__doc__ or "") for name in leaves)
