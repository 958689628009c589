"""Run tasks on a Ray cluster. If a node fails, Ray repeats its task on another node."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from clinit.errors import ClinitError, ClusterError, MachineError

T = TypeVar("T")
LOOK_S = 2.0
"""Maximum number of seconds between two checks for finished tasks."""


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
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon and port.isdigit():  # fail early, because Ray itself would wait for two minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
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


def run_tasks(
    ray: Any,
    task: Callable[..., T],
    calls: Iterable[tuple[Any, ...]],
    *,
    on_look: Callable[[], None] = lambda: None,
    **resources: Any,
) -> Iterator[T]:
    """Call `task` once with each tuple of arguments; yield the results, in any order.

    Args:
        ray: The module, see `connected`.
        task: The task. If it raises a `MachineError`, such as for a node that lacks memory or
            permissions, Ray repeats it.
        calls: The arguments of each call.
        on_look: Called every few seconds.
        resources: Resources of each call: `num_cpus`, `num_gpus`.

    Raises:
        ClinitError: If a task raises a `ClinitError`.
        ClusterError: If a task was lost more often than Ray repeats it.
    """
    remote = ray.remote(**resources, retry_exceptions=[MachineError])(task)
    waiting = [remote.remote(*each) for each in calls]
    try:
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=LOOK_S)
            on_look()
            for reference in ready:
                yield ray.get(reference)
    except ray.exceptions.RayError as error:
        if isinstance(cause := getattr(error, "cause", None), ClinitError):
            raise cause from None
        raise ClusterError(
            f"Ray gave up a task: {(str(error).strip().splitlines() or ['lost'])[-1]}",
            remedy="Look at `ray status` and at the logs of the workers (`ray logs`); then run the"
            " same command again: it resumes.",
        ) from error
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)
