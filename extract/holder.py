"""Who holds a claim: a process of some host, which others may see to have ended."""

from __future__ import annotations

import os
import re
import secrets
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HIDDEN = ""
"""When a process began that runs, but of which no more can be seen."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a claim."""

    host: str
    processes: str
    """What its process identifiers belong to: a start of a host, and a container on it."""
    pid: int
    begun: str
    """When the process began, in the units of the system: identifiers are used again."""
    token: str

    def is_gone(self) -> bool:
        """Return whether the process has ended; False where it cannot be seen from here."""
        if self.processes != _processes():
            return False
        begun = _begun(self.pid)
        return begun is None or (begun != HIDDEN and begun != self.begun)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def myself() -> Holder:
    """Return this process, as the holder of one claim."""
    pid, token = os.getpid(), secrets.token_hex(8)
    begun = _begun(pid)
    # A process that does not see itself is not to be looked for by others.
    processes = _processes() if begun is not None else f"hidden {token}"
    return Holder(socket.gethostname(), processes, pid, begun or "", token)


@cache
def _processes() -> str:
    """Return what the process identifiers of this process belong to."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{start} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no Linux: no containers with identifiers of their own
        return socket.gethostname()


_FIELDS = re.compile(r".*\) (?P<state>\S)(?: \S+){18} (?P<begun>\d+)", re.DOTALL)


def _begun(pid: int) -> str | None:
    """Return when a process of this host began, `HIDDEN` where only that it runs, or None."""
    try:
        found = _FIELDS.match(Path(f"/proc/{pid}/stat").read_text())
        if found is not None:
            return None if found["state"] in "ZX" else found["begun"]
    except OSError:
        pass  # it has ended, or is another user's (`hidepid`), or this is no Linux
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except (OSError, OverflowError):  # another user's
        pass
    return HIDDEN
