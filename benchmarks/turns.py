"""What benchmarks share that compare processes turn by turn, and the environment of a peer.

The processes are those of `answers.py`: they answer each line that they are told by one of JSON.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

from rich.console import Console

AVALANCHE = "avalanche-lib==0.6.0"
CONSOLE = Console(width=120)


class Process:
    """A script of this folder that waits for its turns."""

    def __init__(self, name: str, python: str, script: str, *arguments: str, threads: int) -> None:
        """Start it; its first answer comes when it is ready.

        Args:
            name: What it is called where it ends early.
            python: Its interpreter.
            script: Name of its file.
            arguments: Those of the script.
            threads: Threads of its products.
        """
        self._name = name
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "WANDB_MODE": "disabled"}
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(script)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"PYTHONWARNINGS": "ignore"},
        )

    def tell(self, line: str) -> dict[str, Any]:
        """Tell it a line, and return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Wait for its next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._name} has ended early: see its message above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        with self._process:  # closes its pipes and waits for it
            pass


def peer_python(folder: Path) -> str:
    """Return the interpreter of an environment that holds Avalanche; install it where needed."""
    python = folder / "bin" / "python"
    done = folder / AVALANCHE
    if not done.exists():
        CONSOLE.print(f"Installing {AVALANCHE} into {folder} …")
        venv.create(folder, with_pip=True, clear=True)
        ours = sysconfig.get_path("purelib")
        inside = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        theirs = subprocess.run(inside, capture_output=True, text=True, check=True).stdout.strip()
        # Behind its own packages it sees ours: PyTorch is there once.
        (Path(theirs) / "borrowed.pth").write_text(f"{ours}\n")
        subprocess.run([str(python), "-m", "pip", "install", "-q", AVALANCHE], check=True)
        done.touch()
    return str(python)


def processor() -> str:
    """Return the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def has_bf16() -> bool:
    """Return whether clinit trains in bfloat16 here."""
    from clinit.machine import cpu_has_bf16

    return cpu_has_bf16()
