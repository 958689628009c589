"""Compiled forward passes: the network as one *program* for batches of one shape.

torch.compile joins the layers of a frozen network and folds its weights, which makes convolutional
networks two to four times as fast. Vision transformers gain less, because most of their work is
matrix products already. Features of compiled and plain networks differ by rounding, so all features
of a cache are computed in one way, which its plan records. Smaller batches are padded to the size
of the program, so that the features of a row do not depend on the size of the last batch. PyTorch
caches compiled programs, so the next process starts in a fraction of the time. It runs whatever it
finds in the cache, so the cache must not be a folder that another user may have made
(`keep_programs_private`).

If PyTorch may choose (`auto`), it tries: for `MOST_SHARE` of the time that the images would take,
measured on a whole batch. A trial that takes longer is ended. The result is remembered for this
network and machine, so that later runs compile only if that saves more than it took.

A program belongs to a number of threads of PyTorch, and on CUDA to the thread that compiled it.
Elsewhere PyTorch would silently compile another one, without folded weights, so a second
compilation is refused. On a CPU the program is compiled, measured and called in threads set to one
thread each; several of them call it side by side (`work.pipeline`). On CUDA the calling thread does
all three.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import math
import os
import platform
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from threading import Lock
from typing import Any, Literal, Protocol, TypeVar, cast, runtime_checkable

import msgspec
import torch
import torch._inductor.config
from jaxtyping import Float
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from torch.nn.functional import pad

from clinit.errors import ClinitError
from clinit.extract.network.checkpoint import failure
from clinit.extract.network.transform import Transform
from clinit.files.commit import commit_file
from clinit.files.paths import own_folder
from clinit.machine import device_name

Compile = Literal["auto", "on", "off"]
Forward = Callable[[Float[Tensor, "batch 3 height width"]], Float[Tensor, "batch ..."]]
"""Computes stored values from normalised images."""
LEAST_S = 100.0
"""Least work in seconds for which `auto` tries; compiling takes 4 to 200 seconds."""
MOST_SHARE = 0.1
"""Largest share of the work that a first trial may take: it pays if a program is 1.11 times as
fast."""
LEAST_GAIN = 1.05
"""How many times faster a program must be for `auto` to keep it."""


@runtime_checkable
class ForwardNetwork(Protocol):
    """A backbone, or its first blocks: a dataclass with the field `program`."""

    @property
    def config(self) -> Any:
        """Which network, and how it computes (`BackboneConfig`)."""
        ...

    @property
    def program(self) -> Forward | None:
        """The compiled `forward`, if any."""
        ...

    def forward(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch ..."]:
        """Compute layer by layer."""
        ...

    def features(self, batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch ..."]:
        """Return the values to store for normalised images, in float32."""
        ...


class _SpentError(BaseException):
    """The time of a trial is over; no `Exception`, which compilers catch."""


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """Result of a trial."""

    gain: float
    """How many times as fast the program was; 0 if it was not finished."""
    seconds: float
    """What compiling took."""

    def budget(self, work_s: float) -> float:
        """Return how long compiling may take for work of some seconds; 0 if it does not pay."""
        if not self.gain:  # try again with twice the time
            return MOST_SHARE * work_s if MOST_SHARE * work_s > 2 * self.seconds else 0.0
        saved_s = work_s * (1 - 1 / self.gain) if self.gain >= LEAST_GAIN else 0.0
        return saved_s if saved_s > self.seconds else 0.0

    @classmethod
    def read(cls, file: Path) -> TrialVerdict:
        """Return the verdict in a file; an unfinished trial of no time if there is none."""
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError):
            return cls(0.0, 0.0)

    def write(self, file: Path) -> None:
        """Remember the verdict."""
        content = msgspec.json.encode(self)
        with suppress(ClinitError):  # a full disk must not stop the work
            commit_file(file, lambda draft: draft.write_bytes(content))


N = TypeVar("N", bound=ForwardNetwork)
T = TypeVar("T")
_PROGRAMS = "TORCHINDUCTOR_CACHE_DIR"


def keep_programs_private() -> str:
    """Let PyTorch and Triton cache programs in a folder of this user; return the folder.

    PyTorch's default has a predictable name in a folder that all users may write to, and PyTorch
    itself puts it into the environment. A folder that the user has set is kept. A program is for
    the instructions of a CPU, or for those that `ATEN_CPU_CAPABILITY` allows.
    """
    if os.environ.get(_PROGRAMS) in (None, "", default_cache_dir()):
        kind = torch.backends.cpu.get_cpu_capability().replace(" ", "-")
        os.environ[_PROGRAMS] = str(own_folder(f"programs-{kind}"))
    return os.environ[_PROGRAMS]


def compiled(forward: Forward, batch: Float[Tensor, "batch 3 _ _"]) -> Callable[[Tensor], Tensor]:
    """Return `forward` as a program for batches of the size of `batch`, compiled with `batch`.

    On a CPU, any number of threads may call the program. PyTorch must be set to one thread in each
    of them, and in the calling thread. On CUDA, only the calling thread may call it.
    """
    keep_programs_private()
    size, device, made = len(batch), batch.device, list[Tensor]()
    options = {"triton.cudagraphs": True} if device.type == "cuda" else {"cpp.threads": 1}

    def compile_once(graph: Any, inputs: Any) -> Any:
        from torch._inductor import compile_fx

        if made:
            raise RuntimeError("the program was called in another thread than it was compiled for")
        return compile_fx.compile_fx(graph, inputs, config_patches=options)

    program = torch.compile(forward, dynamic=False, backend=compile_once)

    @torch.no_grad()
    def call(batch: Tensor) -> Tensor:
        found = program(_filled(batch, size).contiguous(memory_format=torch.channels_last))
        # The next call overwrites the memory of a CUDA graph.
        found = found.clone() if device.type == "cuda" else found
        return found[: len(batch)]

    # On a CPU this module warns that it finds no CUDA.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    # Freezing folds weights. It is set only here, because weights in training must not be folded.
    # PyTorch keeps precompiled headers in its own folder in /tmp, whatever `_PROGRAMS` is.
    private = {"freezing": True, "cpp_cache_precompile_headers": False}
    with torch._inductor.config.patch(private), warnings.catch_warnings():
        # The precision is chosen; deprecated or empty settings are PyTorch's own.
        for known in ("TensorFloat32 tensor", ".*torch.jit.script_method", "The CUDA Graph is emp"):
            warnings.filterwarnings("ignore", known)
        made.append(call(batch))
    return call


def _deferred(forward: Forward, size: int) -> Forward:
    lock, made = Lock(), list[Forward]()

    def call(batch: Tensor) -> Tensor:
        with lock:
            if not made:
                made.append(compiled(forward, _filled(batch, size)))
        return made[0](batch)

    return call


def _filled(batch: Tensor, size: int) -> Tensor:
    if (missing := size - len(batch)) < 0:
        raise ValueError(f"the program is for batches of {size} images, got {len(batch)}")
    return pad(batch, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else batch


def on_its_way(
    network: N,
    transform: Transform,
    wanted: Compile,
    *,
    batch_size: int,
    images: int,
    on_note: Callable[[str], object] = lambda note: None,
) -> N:
    """Return the network as it will compute the images: plain, or with a program.

    Args:
        network: A network; if it has a program already, it is returned unchanged.
        transform: The transform of its images.
        wanted: `auto` tries if the plain network would take `LEAST_S` and no earlier trial shows
            that it does not pay, and keeps the program if it is `LEAST_GAIN` times as fast.
        batch_size: Images per batch.
        images: Number of remaining images.
        on_note: Called before a trial with its time limit, and with the time that compiling took or
            the reason for not compiling.

    Raises:
        BackboneError: If `wanted` is `on` and the network cannot be compiled.
    """
    if network.program is not None:
        return network
    changed, device = cast(Any, network), torch.device(network.config.device)
    if wanted == "on" and not images:  # needed only if a shard turns out to be damaged
        return replace(changed, program=_deferred(network.forward, batch_size))  # type: ignore[no-any-return]
    side_by_side = torch.get_num_threads() if device.type == "cpu" else 1
    few = 3 * batch_size * side_by_side > MOST_SHARE * images  # a trial measures three batches
    if wanted == "off" or not images or (wanted == "auto" and few):
        return network
    pixels = torch.zeros((batch_size, 3, *transform.crop), dtype=torch.uint8, device=device)
    batch, plain_s = transform.normalise(pixels), 0.0
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as alone:

        def done(work: Callable[..., T], *given: Any) -> T:
            """Work in the thread that calls the program, or on a CPU in one like it."""
            if device.type == "cpu":
                return alone.submit(work, *given).result()
            with network.config.float32():
                return work(*given)

        budget_s, file = math.inf, _verdict_file(network, batch)
        if wanted == "auto":
            each_s = done(seconds_of, network.forward, batch[:2], 1) / 2
            known = TrialVerdict.read(file)
            if not _worth(known, images * each_s / side_by_side):
                return network
            plain_s = done(seconds_of, network.forward, batch, 1)
            work_s = images * plain_s / batch_size / side_by_side
            if not (budget_s := _worth(known, work_s)):
                return network
            limit = f"the network is compiled, for at most {budget_s:.0f} s: without that, "
            on_note(f"{limit}{images:,} images take {work_s:.0f} s")
        began = time.perf_counter()
        try:
            program = done(_within, budget_s, lambda: compiled(network.forward, batch))
        except _SpentError:
            TrialVerdict(0.0, budget_s).write(file)
            on_note(f"the network is not compiled: that takes more than {budget_s:.0f} s")
            return network
        except Exception as error:  # a missing compiler, or any of its passes
            why = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            if wanted == "on":
                remedy = "Leave out `--compile on`."
                if which(compiler := os.environ.get("CXX", "g++")) is None:
                    remedy = f"Install a C++ compiler ({compiler}), or leave out `--compile on`."
                raise failure(error, "the network cannot be compiled", remedy) from error
            TrialVerdict(0.0, time.perf_counter() - began).write(file)
            on_note(f"the network is not compiled, because compiling failed: {why}")
            return network
        spent_s = time.perf_counter() - began
        gain = plain_s / done(seconds_of, program, batch, 0)
    if wanted == "auto":
        TrialVerdict(gain, spent_s).write(file)
    if wanted == "auto" and gain < LEAST_GAIN:
        on_note(f"the network is not compiled: its program is only {gain:.2f} times as fast")
        return network
    faster = f", {gain:.1f} times as fast" if wanted == "auto" else ""
    on_note(f"the network is compiled (in {spent_s:.0f} s{faster})")
    return replace(changed, program=program)  # type: ignore[no-any-return]


def _worth(known: TrialVerdict, work_s: float) -> float:
    return known.budget(work_s) if work_s >= LEAST_S else 0.0


def _verdict_file(network: ForwardNetwork, batch: Tensor) -> Path:
    """Return where the verdict for this network, machine and version of PyTorch is remembered."""
    config = network.config
    made_of = (
        *(config.name, config.model_args, config.output, config.autocast, tuple(batch.shape)),
        *(device_name(batch.device), platform.node(), torch.get_num_threads(), torch.__version__),
    )
    digest = hashlib.sha256(repr(made_of).encode()).hexdigest()
    return own_folder("compiled") / f"{digest[:32]}.json"


def _within(seconds: float, work: Callable[[], T]) -> T:
    """Return what `work` returns.

    Raises:
        _SpentError: If it takes longer, after the next step of Python; a compiler that Python has
            started is waited for.
    """
    if seconds == math.inf:
        return work()
    thread, throw = threading.get_ident(), ctypes.pythonapi.PyThreadState_SetAsyncExc
    number = ctypes.c_ulong(thread)
    timer = threading.Timer(seconds, throw, [number, ctypes.py_object(_SpentError)])
    timer.daemon = True
    timer.start()
    try:
        return work()
    finally:
        timer.cancel()
        timer.join()
        throw(number, None)  # if it came too late


@torch.no_grad()
def seconds_of(forward: Forward, batch: Float[Tensor, "batch 3 _ _"], calls: int = 3) -> float:
    """Return the shortest time of some calls, after one call to warm up; of that, if it is all."""
    times = []
    for _ in range(1 + calls):
        began = time.perf_counter()
        forward(batch)
        if batch.device.type == "cuda":
            torch.cuda.synchronize(batch.device)
        times.append(time.perf_counter() - began)
    return min(times[1:] or times)
