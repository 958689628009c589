"""One contender of `benchmarks/heads.py`, in its own process, which waits for its turns.

    python heads_contenders.py NAME FOLDER OPTIONS(JSON)

The process reads the workload from FOLDER. After the line {"ready": ...} it trains for a block of
steps for each input line, and answers {"task", "steps", "seconds"}; only the training loop is
timed. The last answer contains the accuracy on all test rows. The script imports only the packages
of its contender, because the contender with Avalanche runs in another environment.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from harness import clock, divert_prints, say, settle
from heads_workload import HeadsWorkload, sides


class Pace:
    """Waits for turns, and times blocks of steps.

    Work between two tasks belongs to the turn of the next block, but is not timed; work after the
    last step has its own turn.
    """

    def __init__(self, iterations: int, block: int) -> None:
        self.iterations, self.block = iterations, min(block, iterations)
        self.task = self._done = 0
        self._started = 0.0

    def wait(self) -> None:
        """Wait for the turn."""
        sys.stdin.readline()

    def begin_task(self) -> None:
        """Start the clock; in the first task, wait for the turn before."""
        if self.task == 0:
            self.wait()
        self.task += 1
        self._done = 0
        self._started = clock()

    def stepped(self, steps: int = 1) -> None:
        """Count steps; at the end of a block, answer and wait for the next turn."""
        self._done += steps
        if self._done % self.block and self._done < self.iterations:
            return
        self.finish_block(clock() - self._started)
        self._started = clock()

    def finish_block(self, seconds: float) -> None:
        """Answer with the seconds of a block, and wait for the next turn."""
        say(task=self.task, steps=self.block, seconds=seconds)
        self.wait()


def products(work: HeadsWorkload, pace: Pace, options: dict[str, Any]) -> dict[str, Any]:
    """Do only the two matrix products of a step, launched as in clinit: the limit."""
    from clinit.headtrain.protocol.train.heads import products_in
    from clinit.headtrain.protocol.train.loop import WARM_UP_STEPS, Replayed

    precision, device, heads = options["precision"], options["device"], options["heads"]
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    for _, stop in work.splits:
        features = torch.randn(work.batch, work.dim, device=device).to(kind)
        weight = torch.randn(heads * stop, work.dim, device=device).to(kind)
        gradient = torch.randn(work.batch, heads * stop, device=device).to(kind)
        logits, weight_gradient = torch.empty_like(gradient), torch.empty_like(weight)
        step = partial(_two_products, features, weight, gradient, logits, weight_gradient)
        with products_in(precision):
            run = partial(Replayed(), step) if device.startswith("cuda") else step
            for _ in range(WARM_UP_STEPS + 1):
                run()
            settle(device)
            pace.begin_task()
            for _ in range(pace.iterations):
                run()
                pace.stepped()
    return {}


def _two_products(
    features: torch.Tensor,
    weight: torch.Tensor,
    gradient: torch.Tensor,
    logits: torch.Tensor,
    weight_gradient: torch.Tensor,
) -> None:
    torch.mm(features, weight.t(), out=logits)
    torch.mm(gradient.t(), features, out=weight_gradient)


def _shared(work: HeadsWorkload, options: dict[str, Any]) -> dict[str, Any]:
    own = {"tasks": work.tasks, "buffer": work.buffer, "batch_size": work.batch}
    given = {"precision": options["precision"], "device": options["device"]}
    return {**own, **given, "weight_decay": work.decay}


def clinit(work: HeadsWorkload, pace: Pace, options: dict[str, Any]) -> dict[str, Any]:
    """Train a bank as `clinit train-head` does; its first head equals the other contenders'."""
    from clinit.headtrain.heads.linear import Rows
    from clinit.headtrain.protocol import events
    from clinit.headtrain.protocol.experiment import RunData, run_experiment
    from clinit.headtrain.protocol.study.study import Study
    from clinit.headtrain.protocol.train.evaluate import evaluate
    from clinit.headtrain.protocol.train.heads import Bank, LabelledRows
    from clinit.observer import Event

    def observe(event: Event) -> None:
        if isinstance(event, events.Evaluated) and event.iteration == 0:
            pace.begin_task()
        elif isinstance(event, events.Stepped):
            pace.stepped(event.steps)

    shared = {
        **_shared(work, options),
        "iterations": pace.iterations,
        "eval_every": max(1, pace.iterations),
        "seed": work.seed,
        "class_order": tuple(f"new{row}" for row in range(work.classes - work.base)),
        "init": "random",
    }
    studies = [
        Study.of({**shared, "lr": work.lr * 1.1**number}).resolved()
        for number in range(options["heads"])
    ]
    base, new, head = sides(work, test_rows=1)
    record = run_experiment(RunData(base, new, head), studies, observer=observe)[0]
    trained = record.head
    assert trained is not None
    device = torch.device(options["device"])
    bank = Bank(Rows.of_head(trained), [each.training for each in studies], device)
    test = LabelledRows.on(device, work.test_x, work.test_y)
    with torch.no_grad():
        evaluate(bank, test.first(2000))
        started = clock()
        right = int(evaluate(bank, test).correct[0].sum())
    return {"accuracy": 100 * right / len(test), "evaluate_s": clock() - started}


def protocol(work: HeadsWorkload, pace: Pace, options: dict[str, Any]) -> dict[str, Any]:
    """Run heads through the whole protocol, including evaluations on all test rows.

    `grid` has values of settings, each combination of which is a run; `seeds` is their number.
    """
    from clinit.headtrain.protocol.experiment import RunData, run_experiment
    from clinit.headtrain.protocol.study.study import Study

    settings = {
        **_shared(work, options),
        "iterations": options["full_iterations"],
        "eval_every": options["eval_every"],
        "init": options["init"],
        "lr": work.lr,
    }
    grid = options.get("grid", {})
    runs = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    data, timings = RunData(*sides(work)), Counter[str]()
    pace.wait()
    started = clock()
    for seed in range(work.seed, work.seed + options.get("seeds", 1)):
        studies = [Study.of({**settings, **own, "seed": seed}) for own in runs]
        timings.update(run_experiment(data, studies)[0].info["timings_s"])
    return {"protocol_s": clock() - started, "timings_s": dict(timings)}


def plain(work: HeadsWorkload, pace: Pace, options: dict[str, Any]) -> dict[str, Any]:
    """Train as a PyTorch user would: nn.Linear, cross_entropy, AdamW, autograd."""
    x, y, test_x, test_y = floats(work)
    linear = torch.nn.Linear(work.dim, work.base)
    old = (y < work.base).nonzero()[:, 0]
    linear.weight.data.copy_(torch.from_numpy(work.weight))
    linear.bias.data.copy_(torch.from_numpy(work.bias))
    for start, stop in work.splits:
        wider = torch.nn.Linear(work.dim, stop)
        wider.weight.data[:start], wider.bias.data[:start] = linear.weight.data, linear.bias.data
        linear = wider
        optimizer = torch.optim.AdamW(linear.parameters(), lr=work.lr, weight_decay=work.decay)
        old = balanced(old, y[old], work.buffer)
        new = ((y >= start) & (y < stop)).nonzero()[:, 0]
        draw = from_loaders if options["loader"] else from_tensors
        batches = draw(x, y, new, old, work.batch // 2)
        pace.begin_task()
        for _ in range(pace.iterations):
            features, labels = next(batches)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(linear(features), labels).backward()
            optimizer.step()
            pace.stepped()
        old = torch.cat((old, new))  # rows that the next buffer drops never return
    started = clock()
    right = 0
    with torch.no_grad():
        for first in range(0, len(test_y), 1024):
            part = slice(first, first + 1024)
            right += int((linear(test_x[part]).argmax(1) == test_y[part]).sum())
    return {"accuracy": 100 * right / len(test_y), "evaluate_s": clock() - started}


def floats(work: HeadsWorkload) -> tuple[torch.Tensor, ...]:
    """Return rows and labels of training and test in PyTorch's usual types."""
    arrays = (work.train_x, work.train_y, work.test_x, work.test_y)
    kinds = (torch.float32, torch.int64, torch.float32, torch.int64)
    return tuple(
        torch.from_numpy(array).to(kind) for array, kind in zip(arrays, kinds, strict=True)
    )


def balanced(rows: torch.Tensor, labels: torch.Tensor, size: int) -> torch.Tensor:
    """Choose `size` of `rows`, equally many of each class."""
    order = torch.randperm(len(rows))
    order = order[labels[order].argsort(stable=True)]
    counts = labels.bincount()
    rank = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[labels[order]]
    return rows[order][rank < size // len(counts)]


def from_tensors(
    x: torch.Tensor, y: torch.Tensor, new: torch.Tensor, old: torch.Tensor, half: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Index whole tensors with half a batch of new and half a batch of old rows."""

    def passes(rows: torch.Tensor) -> Iterator[torch.Tensor]:
        while True:
            order = rows[torch.randperm(len(rows))]
            yield from order[: len(order) // half * half].split(half)

    for one, other in zip(passes(new), passes(old), strict=True):
        rows = torch.cat((one, other))
        yield x[rows], y[rows]


def from_loaders(
    x: torch.Tensor, y: torch.Tensor, new: torch.Tensor, old: torch.Tensor, half: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Read one DataLoader over a TensorDataset for new rows and one for old rows."""
    from torch.utils.data import DataLoader, TensorDataset

    def passes(rows: torch.Tensor) -> Iterator[Any]:
        while True:
            data = TensorDataset(x[rows], y[rows])
            yield from DataLoader(data, batch_size=half, shuffle=True, drop_last=True)

    for (x_new, y_new), (x_old, y_old) in zip(passes(new), passes(old), strict=True):
        yield torch.cat((x_new, x_old)), torch.cat((y_new, y_old))


def avalanche(work: HeadsWorkload, pace: Pace, options: dict[str, Any]) -> dict[str, Any]:
    """Train with Naive, ReplayPlugin and ClassBalancedBuffer, by the public API."""
    warnings.simplefilter("ignore")
    from avalanche.benchmarks import class_incremental_benchmark
    from avalanche.evaluation.metrics import accuracy_metrics
    from avalanche.models import IncrementalClassifier
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin, SupervisedPlugin
    from avalanche.training.storage_policy import ClassBalancedBuffer
    from avalanche.training.supervised import Naive
    from torch.utils.data import TensorDataset

    warnings.simplefilter("ignore")  # it shows its own deprecation warnings always

    class Turns(SupervisedPlugin):  # type: ignore[misc]
        """Follow the pace; the base classes only fill the buffer."""

        left = 0

        def before_training_exp(self, strategy: Any, **_: Any) -> None:
            self.left = pace.iterations if strategy.experience.current_experience else 0

        def before_training_epoch(self, strategy: Any, **_: Any) -> None:
            if self.left == 0:
                strategy.stop_training()
            elif self.left == pace.iterations:
                pace.begin_task()

        def after_training_iteration(self, strategy: Any, **_: Any) -> None:
            self.left -= 1
            pace.stepped()
            if self.left == 0:
                strategy.stop_training()

    x, y, test_x, test_y = floats(work)
    stream = class_incremental_benchmark(
        {"train": TensorDataset(x, y), "test": TensorDataset(test_x, test_y)},
        class_order=list(range(work.classes)),
        num_classes_per_exp=[work.base, *(stop - start for start, stop in work.splits)],
    )
    model = IncrementalClassifier(work.dim, initial_out_features=work.base)
    model.classifier.weight.data.copy_(torch.from_numpy(work.weight))
    model.classifier.bias.data.copy_(torch.from_numpy(work.bias))
    replay = ReplayPlugin(
        mem_size=work.buffer,
        batch_size=work.batch // 2,
        batch_size_mem=work.batch // 2,
        storage_policy=ClassBalancedBuffer(work.buffer, adaptive_size=True),
    )
    strategy = Naive(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=work.lr, weight_decay=work.decay),
        criterion=torch.nn.CrossEntropyLoss(),
        train_mb_size=work.batch // 2,
        train_epochs=10**6,  # the plugin stops it
        eval_mb_size=1024,
        device="cpu",
        plugins=[replay, Turns()],
        evaluator=EvaluationPlugin(accuracy_metrics(stream=True), loggers=[]),
    )
    for experience in stream.train_stream:
        strategy.train(experience, reset_optimizer_state=True)
    started = clock()
    result = strategy.eval(stream.test_stream)
    accuracy = next(v for name, v in result.items() if name.startswith("Top1_Acc_Stream"))
    return {"accuracy": 100 * accuracy, "evaluate_s": clock() - started}


CONTENDERS = {
    "products": products,
    "clinit": clinit,
    "protocol": protocol,
    "plain": plain,
    "avalanche": avalanche,
}


def main() -> None:
    """Read the workload and take turns."""
    divert_prints()
    name, folder, text = sys.argv[1:]
    options = json.loads(text)
    torch.set_num_threads(options["threads"])
    torch.manual_seed(options["seed"])
    work = HeadsWorkload(Path(folder), options)
    pace = Pace(options["iterations"], options["block"])
    say(ready=name, torch=torch.__version__)
    say(**CONTENDERS[name](work, pace, options))


if __name__ == "__main__":
    main()
