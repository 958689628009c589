"""Connect to a Ray cluster, and carry known errors back from it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import clinit.errors
from clinit.errors import ClinitError, ClusterError


@dataclass(frozen=True, slots=True)
class Refusal:
    """A known error of a task, since exceptions with keyword arguments cannot be pickled."""

    kind: str
    message: str
    remedy: str

    @classmethod
    def of(cls, error: ClinitError) -> Refusal:
        """Return what is carried of an error."""
        return cls(type(error).__name__, str(error), error.remedy)

    def raise_again(self) -> None:
        """Raise the error in this process."""
        kind: type[ClinitError] = getattr(clinit.errors, self.kind, ClinitError)
        raise kind(self.message, remedy=self.remedy)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect to the cluster at `address`; yield the module `ray`.

    Raises:
        ClusterError: If Ray is not installed or there is no cluster at `address`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise ClusterError(
            "--ray needs Ray, which is not installed",
            remedy='Install it, on every node: pip install "clinit[ray]".',
        ) from error
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise ClusterError(
            f"cannot connect to a Ray cluster at {address}: {error}",
            remedy="Start one with `ray start --head` and give HOST:6379, or `auto` on a node.",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Open a connection to HOST:PORT and close it: Ray itself would wait for two minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
