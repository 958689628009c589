"""A terminal for tests: what remains on it when a command has ended."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence

_CODE = re.compile(r"\x1b\[(\??)([0-9;]*)([A-Za-z])|\x1b\][^\x07]*\x07")


class Screen:
    """Lines of letters, and what a terminal does with CR, LF, cursor moves and erasures."""

    def __init__(self, columns: int, rows: int = 40) -> None:
        self._columns, self._rows = columns, rows
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self.shows_cursor = True

    @property
    def lines(self) -> list[str]:
        """What is to be read, lines that have scrolled out of the window first."""
        return ["".join(line).rstrip() for line in self._lines]

    @property
    def text(self) -> str:
        """The same as one text."""
        return "\n".join(self.lines)

    def feed(self, text: str) -> None:
        """Show what is written to the terminal."""
        start = 0
        for found in _CODE.finditer(text):
            self._write(text[start : found.start()])
            self._obey(found)
            start = found.end()
        self._write(text[start:])
        assert "\x1b" not in text[start:], "a code that is not understood"

    def _write(self, text: str) -> None:
        for letter in text:
            if letter == "\r":
                self._column = 0
            elif letter == "\n":
                self._down()
            else:
                if self._column == self._columns:
                    self._column = 0
                    self._down()
                line = self._lines[self._row]
                line.extend(" " * (self._column + 1 - len(line)))
                line[self._column] = letter
                self._column += 1

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])

    def _obey(self, code: re.Match[str]) -> None:
        private, numbers, what = code[1], code[2] or "", code[3]
        if what in (None, "m"):  # a title, a colour
            return
        if private:
            assert (numbers, what) in (("25", "l"), ("25", "h")), code[0]
            self.shows_cursor = what == "h"
        elif what == "A":  # the top of the window is as far as it goes
            self._row = max(0, len(self._lines) - self._rows, self._row - int(numbers or 1))
        else:
            assert (numbers, what) == ("2", "K"), f"{code[0]!r} is not understood"
            self._lines[self._row] = []


def on_terminal(
    command: Sequence[object], *, columns: int, environment: Mapping[str, str] | None = None
) -> tuple[int, Screen]:
    """Run a command with a terminal as its input and outputs; return its exit code too."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    told = {**os.environ, "TERM": "xterm-256color", **(environment or {})}
    process = subprocess.Popen(
        list(map(str, command)), stdin=slave, stdout=slave, stderr=slave, env=told
    )
    os.close(slave)
    written = b""
    try:
        while part := os.read(master, 65536):
            written += part
    except OSError:  # the last one has closed the terminal
        pass
    os.close(master)
    screen = Screen(columns)
    screen.feed(written.decode("utf-8", "replace"))
    return process.wait(timeout=600), screen
