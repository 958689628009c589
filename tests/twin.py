"""A CUDA device that is not there, and computes.

Its tensors say `cuda:0`, and their numbers lie on the host. It refuses what a CUDA device refuses
(operands of two devices; waiting, allocating new values or copying from the host while a graph is
captured), fills `empty` with NaN or the largest integer, records a captured graph without doing it,
and replays it on the same memory. A copy that need not wait is done late: to the device when its
stream goes on or is waited for, to the host when the host waits.

It knows no kernels: numbers are the CPU's, so a run on it must give the CPU's bits up to the order
of sums. Autograd's engine asks the driver for streams, so its nodes are run one after another here.
`resize_`, CuPy and TF32 are not modelled; kernels are never late, only copies are.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

CUDA = torch.device("cuda", 0)
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero", "equal"}
EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}


class Twin(torch.Tensor):
    """A tensor that is on the device; `data_` holds its numbers."""

    data_: torch.Tensor

    @staticmethod
    def __new__(cls, data: torch.Tensor) -> Twin:
        found = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            data.size(),
            strides=data.stride(),
            storage_offset=data.storage_offset(),
            dtype=data.dtype,
            device=CUDA,
        )
        found.data_ = data
        return found  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return Machine.now.call(func, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def is_pinned(self, *args: Any) -> bool:
        return False


def _bare(given: Any) -> Any:
    return tree_map_only(Twin, lambda each: each.data_, given)


class Machine(TorchDispatchMode):
    """Does the calls of a block on the device, and counts them."""

    now: Machine
    streams: list[Stream]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        Machine.now = self
        self.tape: list[Any] | None = None
        self.saved: dict[int, tuple[Any, Any]] = {}
        self.counts: Counter[str] = Counter()
        self.waits = 0
        self.streams, self.local, self.pinned = [], threading.local(), set[int]()
        self.default = Stream()

    @property
    def stream(self) -> Stream:
        """The current stream of the calling thread."""
        found: Stream = getattr(self.local, "stream", self.default)
        return found

    @property
    def idle(self) -> bool:
        return not any(each.queue for each in self.streams)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        name, given = func._schema.name.removeprefix("aten::"), tree_leaves((args, kwargs))
        twins = [each for each in given if isinstance(each, Twin)]
        asked = kwargs.get("device")
        to_device = asked is not None and torch.device(asked).type == "cuda"
        rest = {key: v for key, v in kwargs.items() if key not in ("pin_memory", "non_blocking")}
        if not twins and not to_device:
            return func(*args, **(kwargs if kwargs.get("pin_memory") is None else rest))
        if name == "_to_copy":
            return self._moved(func, args, rest, twins, kwargs.get("non_blocking"))
        if name == "copy_" and args[0].device.type != args[1].device.type:
            return self._copied(args[0], args[1], kwargs.get("non_blocking") or args[2:] == (True,))
        self._check(name, func, args, given)
        if to_device or asked is not None:
            rest["device"] = torch.device("cpu")
        self.stream.flush(to_host=False)
        if asked is not None and not to_device:
            return func(*_bare(args), **_bare(rest))
        return self._done(func, _bare(args), _bare(rest), twins, name in EMPTY)

    def _moved(self, func: Any, args: Any, rest: Any, twins: list[Twin], late: Any) -> Any:
        asked = rest.pop("device", None)
        source, target = args[0].device.type, torch.device(asked or args[0].device).type
        self.stream.flush(to_host=False)
        if source == target:
            return self._done(func, _bare(args), rest, twins, False)
        if not (late and args[0].untyped_storage().data_ptr() in self.pinned):
            self.wait(f"{source} to {target}")
        found = func(*_bare(args), **rest)
        return Twin(found) if target == "cuda" else found

    def _copied(self, target: Any, source: Any, late: bool) -> Any:
        way = "to host" if target.device.type == "cpu" else "to device"
        if not late:
            self.wait(f"copy {way}")
            self.stream.flush(to_host=True)
        self.counts[f"late copy {way}" if late else f"copy {way}"] += 1
        to, of = _bare(target), _bare(source)
        if late and way == "to host":
            self.stream.flush(to_host=False)
            of = of.clone()
        self.stream.queue.append((way == "to host", lambda: to.copy_(of)))
        if not late:
            self.stream.flush(to_host=True)
        return target

    def _check(self, name: str, func: Any, args: Any, given: list[Any]) -> None:
        if name in WAITS:
            self.wait(str(func))
        if name in {"index", "index_put_", "index_put", "_index_put_impl_"}:
            for each in args[1]:
                if each is not None and (not isinstance(each, Twin) or each.dtype == torch.bool):
                    self.wait(f"{func} by the host or by a mask")
        elif not name.endswith("_like"):
            for each in given:
                if isinstance(each, torch.Tensor) and not isinstance(each, Twin) and each.dim():
                    raise RuntimeError(f"two devices in {func}")

    def _done(self, func: Any, args: Any, kwargs: Any, twins: list[Twin], is_empty: bool) -> Any:
        self.counts["launch"] += 1
        if self.tape is not None and func._schema.is_mutable:
            for each in tree_leaves((args, kwargs)):
                if isinstance(each, torch.Tensor):
                    whole = each.untyped_storage()
                    self.saved.setdefault(whole.data_ptr(), (whole, whole.clone()))
        found = func(*args, **kwargs)
        if is_empty:
            with _disable_current_modes():
                kind = found.dtype
                if kind != torch.bool:
                    worst = float("nan") if kind.is_floating_point else torch.iinfo(kind).max
                    found.fill_(worst)
        if self.tape is not None:
            self.tape.append((func, args, kwargs, found))
        known = {id(each.data_): each for each in twins}
        return tree_map_only(
            torch.Tensor, lambda t: known[id(t)] if id(t) in known else Twin(t), found
        )

    def wait(self, what: str) -> None:
        """Count what waits for the device; a capture refuses it."""
        self.counts[what] += 1
        self.waits += 1
        if self.tape is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")


class Graph:
    """Recorded calls."""

    tape: list[Any]

    def replay(self) -> None:
        Machine.now.counts["replay"] += 1
        with _disable_current_modes(), torch.no_grad():
            for func, args, kwargs, found in self.tape:
                new = func(*args, **kwargs)
                for old, value in zip(tree_leaves(found), tree_leaves(new), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != value.data_ptr():
                        old.copy_(value)


@contextmanager
def captured(graph: Graph, **options: Any) -> Iterator[None]:
    machine = Machine.now
    machine.tape, machine.saved = [], {}
    machine.counts["capture"] += 1
    try:
        yield
        graph.tape = machine.tape
    finally:
        machine.tape = None
        for whole, before in machine.saved.values():
            whole.copy_(before)


class Stream:
    """A queue of copies that nobody has waited for."""

    device, cuda_stream = CUDA, 0

    def __init__(self, *args: Any, **options: Any) -> None:
        self.queue: deque[tuple[bool, Callable[[], object]]] = deque()
        Machine.now.streams.append(self)

    def flush(self, *, to_host: bool) -> None:
        """Do the copies to the device, and with `to_host` those to the host."""
        with _disable_current_modes():
            for _ in range(len(self.queue)):
                is_to_host, do = self.queue.popleft()
                if is_to_host and not to_host:
                    self.queue.append((is_to_host, do))
                else:
                    do()

    def synchronize(self) -> None:
        self.flush(to_host=True)

    def wait_stream(self, other: Stream) -> None:
        other.flush(to_host=False)

    def wait_event(self, event: Event) -> None:
        event.stream.flush(to_host=False)


class Event:
    """A point of a stream; waiting for it waits for all of the stream."""

    def __init__(self, **options: Any) -> None:
        self.stream = Stream()

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream or Machine.now.stream

    def synchronize(self) -> None:
        self.stream.synchronize()

    def elapsed_time(self, other: Event) -> float:
        return 1.0


@contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    machine = Machine.now
    before, machine.local.stream = machine.stream, stream
    try:
        yield
    finally:
        machine.local.stream = before


def backward(root: torch.Tensor) -> None:
    """Do what autograd does, one node after another: its engine needs the driver for streams."""
    assert root.grad_fn is not None
    waits: dict[Any, int] = {}
    todo, seen = [root.grad_fn], {root.grad_fn}
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None:
                waits[node] = waits.get(node, 0) + 1
                if node not in seen:
                    seen.add(node)
                    todo.append(node)
    arrived: dict[Any, dict[int, torch.Tensor]] = {root.grad_fn: {0: torch.ones_like(root)}}
    ready: list[Any] = [root.grad_fn]
    while ready:
        current = ready.pop()
        gradients = arrived.pop(current, {})
        if hasattr(current, "variable"):
            current.variable.grad = _sum(current.variable.grad, gradients[0])
            continue
        given = [gradients.get(place) for place in range(max(gradients, default=0) + 1)]
        for (node, place), value in _edges(current, given):
            if value is not None:
                wanted = node._input_metadata[place]
                assert value.device == wanted.device, f"{node} gets a gradient on {value.device}"
                there = arrived.setdefault(node, {})
                fitting = value.sum_to_size(wanted.shape).to(wanted.dtype)
                there[place] = _sum(there.get(place), fitting)
            waits[node] -= 1
            if not waits[node]:
                ready.append(node)


def _edges(
    node: Any, given: list[torch.Tensor | None]
) -> Iterator[tuple[Any, torch.Tensor | None]]:
    """Run one node; yield where each of its gradients goes."""
    edges = [edge for edge in node.next_functions if edge[0] is not None]
    written_in_python = hasattr(node, "needs_input_grad")
    values = node.apply(*given) if written_in_python else node(*given)
    values = values if isinstance(values, tuple) else (values,)
    # A function in Python has a gradient for each argument, tensor or not.
    wanted = node.needs_input_grad if written_in_python else [e[0] for e in node.next_functions]
    kept = [value for value, want in zip(values, wanted, strict=True) if want]
    return zip(edges, kept, strict=True)


def _sum(one: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    return other if one is None else one + other


def gradients(value: torch.Tensor, inputs: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    """Stand for `torch.autograd.grad`, with the nodes of `backward`."""
    inputs = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    kept = [each.grad for each in inputs]
    for each in inputs:
        each.grad = None
    backward(value)
    found = tuple(each.grad for each in inputs)
    for each, before in zip(inputs, kept, strict=True):
        each.grad = before
    return found


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Let PyTorch have one CUDA device; `with twin:` runs a block on it."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, for which CuPy and PyTorch's kernels ask the driver")
    torch._C._ensureCUDADeviceGuardSet()  # type: ignore[attr-defined]
    machine, made, generator = Machine(), torch.tensor, torch.Generator

    def tensor(data: Any, *args: Any, device: Any = None, **options: Any) -> Any:
        found = made(data, *args, **options)
        if device is None or torch.device(device).type != "cuda":
            return found
        machine.wait("torch.tensor")
        return Twin(found)

    def pin_memory(self: torch.Tensor) -> torch.Tensor:
        machine.pinned.add(self.untyped_storage().data_ptr())
        return self

    for name, value in {
        **{"_lazy_init": lambda: None, "is_available": lambda: True, "device_count": lambda: 1},
        **{"current_device": lambda: 0, "get_device_name": lambda device=None: "Twin"},
        **{"get_device_capability": lambda device=None: (9, 0), "get_arch_list": lambda: ["sm_90"]},
        **{"mem_get_info": lambda device=None: (60 << 30, 80 << 30), "empty_cache": lambda: None},
        **{"memory_reserved": lambda device=None: 0, "memory_allocated": lambda device=None: 0},
        **{"Stream": Stream, "Event": Event, "CUDAGraph": Graph, "graph": captured},
        **{"stream": on_stream, "current_stream": lambda device=None: machine.stream},
        **{"synchronize": lambda device=None: machine.stream.synchronize()},
        **{"is_current_stream_capturing": lambda: machine.tape is not None},
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch, "tensor", tensor)
    on_the_host = type("Generator", (), {"__new__": lambda cls, device="cpu": generator("cpu")})
    monkeypatch.setattr(torch, "Generator", on_the_host)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    monkeypatch.setattr(torch.autograd, "grad", gradients)
    # A tensor of inference cannot stand for another one.
    monkeypatch.setattr(torch.inference_mode, "__enter__", lambda self: None)
    monkeypatch.setattr(torch.inference_mode, "__exit__", lambda self, *error: None)
    # Else `Module.to` would put the numbers of a twin into a tensor of another type.
    monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    # Autocast asks the driver, and turns itself off with a warning where there is none.
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    return machine
