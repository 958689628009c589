"""Contenders of `benchmarks/top_blocks.py`, in a process that waits for turns.

    python top_blocks_contenders.py FOLDER CONTENDERS(JSON)

The process reads the workload from FOLDER. For each input line `train 2`, contender 2 trains for a
block of steps; for each line `evaluate 2`, it counts correct labels on the test images. The answer
is the seconds. The contenders of clinit and PyTorch share a process and its images. Avalanche has
its own environment, and its training loop calls the code of this script.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import Taker, clock, divert_prints, say, settle
from top_blocks_workload import TopBlocksWorkload
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

EVAL_ROWS = 64
"""Images per forward pass of an evaluation, for PyTorch and Avalanche."""


def serve(takers: list[Taker], steps: int) -> None:
    """Do the turns on standard input, and print their seconds."""
    say(ready=[taker.facts for taker in takers])
    for line in sys.stdin:
        turn, index = line.split()
        taker, started = takers[int(index)], clock()
        if turn == "train":
            own = taker.train()
            say(seconds=own or (clock() - started) / steps)
        else:
            taker.evaluate()
            say(seconds=clock() - started)


def learning_blocks(network: nn.Module, blocks: list[str]) -> list[nn.Parameter]:
    """Make whole blocks and the head trainable; return their parameters."""
    learning = [*map(network.get_submodule, blocks), network.get_classifier()]  # type: ignore[operator]
    parameters = [parameter for module in learning for parameter in module.parameters()]
    for parameter in parameters:
        parameter.requires_grad_(True)
    return parameters


def learning_updates(network: nn.Module, blocks: list[str], options: dict[str, Any]) -> None:
    """Make low-rank updates of blocks and the head trainable, as in clinit."""
    from clinit.headtrain.protocol.study.parts import Top
    from clinit.headtrain.top.network import add_lora, layers, make_plastic

    generator = torch.Generator().manual_seed(options["seed"])
    add_lora(network, layers(network, blocks), Top(rank=options["rank"]), generator)
    make_plastic(network, blocks, full_rank=False)


def limits(work: TopBlocksWorkload) -> Taker:
    """Measure the parts of a step on one batch in memory, and a matrix product alone.

    The given precision applies to the top; the frozen part and the product are in float32.
    """
    from clinit.headtrain.top.network import cut_network

    options, blocks, device = work.options, work.facts["blocks"], work.options["device"]
    low_precision = options["precision"] == "bf16"
    low, full = work.network(), work.network()
    learning_updates(low, blocks, options)
    learning_blocks(full, blocks)
    halves = cut_network(full, len(blocks))
    images = torch.randn(work.batch, 3, *work.facts["size"], device=device)
    labels = torch.arange(work.batch, device=device) % work.classes
    activations = halves.trunk(images)
    matrix = full.get_submodule(work.facts["layer"]).weight.detach().flatten(1)
    shape = (activations.numel() // matrix.shape[1], matrix.shape[1])
    rows = torch.randn(shape, device=device)
    product = torch.empty(len(rows), len(matrix), device=device)

    def step(network: Any) -> Callable[[], Any]:
        top = cut_network(network, len(blocks)).top

        def run() -> None:
            network.zero_grad()
            with torch.autocast(activations.device.type, torch.bfloat16, enabled=low_precision):
                loss = cross_entropy(network.get_classifier()(top(activations)), labels)
            loss.backward()

        return run

    @torch.no_grad()
    def forward() -> Tensor:
        with torch.autocast(activations.device.type, torch.bfloat16, enabled=low_precision):
            logits: Tensor = full.get_classifier()(halves.top(activations))
        return logits

    parts: dict[str, Callable[[], Any]] = {
        "trunk": lambda: halves.trunk(images),
        "top": forward,
        "low rank": step(low),
        "full rank": step(full),
        "product": lambda: torch.mm(rows, matrix.t(), out=product),
    }

    def measure() -> dict[str, float]:
        seconds = {}
        for name, run in parts.items():
            times = work.steps * (10 if name == "product" else 1)
            started = clock()
            for _ in range(times):
                run()
            settle(device)
            seconds[name] = (clock() - started) / times
        return seconds

    flop = {name: flop_of(run) for name, run in parts.items()}
    return Taker(measure, lambda: None, {"flop": flop})


def flop_of(run: Callable[[], Any]) -> int:
    """Count the floating-point operations of the products and convolutions of a call."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def plain(work: TopBlocksWorkload) -> Taker:
    """Train as a PyTorch user would: the network on whole images, autograd, AdamW."""
    (x, y), (test_x, test_y) = work.images("train"), work.images("val")
    network = work.network()
    learning_updates(network, work.facts["blocks"], work.options)
    learning = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=work.options["lr"], weight_decay=0.05)
    is_new = y >= work.base
    half = work.batch // 2

    def train() -> None:
        for _ in range(work.steps):
            drawn = [
                rows[torch.randperm(len(rows))[:half]]
                for rows in (is_new.nonzero()[:, 0], (~is_new).nonzero()[:, 0])
            ]
            rows = torch.cat(drawn)
            optimizer.zero_grad()
            cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()

    @torch.no_grad()
    def evaluate() -> None:
        for part in torch.arange(len(test_y)).split(EVAL_ROWS):
            (network(test_x[part]).argmax(1) == test_y[part]).sum().item()

    return Taker(train, evaluate)


def avalanche(work: TopBlocksWorkload) -> None:
    """Train with Avalanche's EWC or DER, by its public API."""
    warnings.simplefilter("ignore")
    from avalanche.benchmarks import class_incremental_benchmark
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.training.plugins import EvaluationPlugin, SupervisedPlugin
    from avalanche.training.supervised import DER, EWC
    from torch.utils.data import TensorDataset

    warnings.simplefilter("ignore")  # it shows its own deprecation warnings always

    class Turns(SupervisedPlugin):  # type: ignore[misc]
        """Waits for turns; the base task is only measured or stored."""

        left, started = 0, 0.0

        def before_training_epoch(self, strategy: Any, **_: Any) -> None:
            if strategy.experience.current_experience == 0:
                strategy.stop_training()
            elif self.left == 0:
                say(ready=[{}])
                self.wait(strategy)

        def after_training_iteration(self, strategy: Any, **_: Any) -> None:
            self.left -= 1
            if self.left == 0:
                say(seconds=(clock() - self.started) / work.steps)
                self.wait(strategy)

        def wait(self, strategy: Any) -> None:
            """Evaluate for each line `evaluate`; return to training at a line `train`."""
            for line in sys.stdin:
                self.started = clock()
                if line.split()[0] == "train":
                    self.left = work.steps
                    return
                strategy.eval(stream.test_stream)
                say(seconds=clock() - self.started)
            strategy.stop_training()

    stream = class_incremental_benchmark(
        {"train": TensorDataset(*work.images("train")), "test": TensorDataset(*work.images("val"))},
        class_order=list(range(work.classes)),
        num_classes_per_exp=[work.base, work.classes - work.base],
    )
    network = work.network()
    learning = learning_blocks(network, work.facts["blocks"])
    derpp = work.options["method"] == "derpp"
    own = {"alpha": 0.1, "beta": 0.9, "mem_size": work.options["buffer"]} if derpp else {}
    strategy = (DER if derpp else EWC)(
        model=network,
        optimizer=torch.optim.AdamW(learning, lr=work.options["lr"], weight_decay=0.05),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=work.batch // 2 if derpp else work.batch,
        train_epochs=10**6,  # the plugin stops it
        eval_mb_size=EVAL_ROWS,
        device="cpu",
        plugins=[Turns()],
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
        **(own if derpp else {"ewc_lambda": 1e6}),
    )
    for experience in stream.train_stream:
        strategy.train(experience)


def main() -> None:
    """Read the workload and take turns."""
    divert_prints()
    folder, listed = Path(sys.argv[1]), json.loads(sys.argv[2])
    options = listed[0]
    torch.set_num_threads(options["threads"])
    torch.manual_seed(options["seed"])
    if options["kind"] == "avalanche":
        avalanche(TopBlocksWorkload(folder, options))
        return
    from top_blocks_clinit import clinit

    kinds = {"clinit": clinit, "limits": limits, "plain": plain}
    takers = [kinds[each["kind"]](TopBlocksWorkload(folder, each)) for each in listed]
    serve(takers, options["steps"])


if __name__ == "__main__":
    main()
