"""Replay check: everything that leaves the clients is a function of recorded query results.

The check trains twice with the same seeds: first on the data, then on other data with the recorded query results of the
first run. If any output differs, data have left the clients in another way, for example through a strategy that reads
data, or through a stopping rule or a metric that uses training data.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.probing import QUERIES
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients import Client, Pair
from fedpriv.models import map_tree
from fedpriv.oracle import DataQueryEngine, Oracle
from fedpriv.reports.sinks import TensorBoard
from fedpriv.strategies import flatten_with_names

NAME = "replay"
_ROUNDS = 4
_OF_ONE_RUN = {"run", "chain", "head"}  # the run's random name, and hashes of it
_SEED = 20_000


def check_by_replay(subject: AuditTarget, data: Data) -> CheckResult:
    """Trains twice, the second time on other data with the recorded query results, and compares all outputs."""
    short = subject.shortened(_ROUNDS)
    other_data = _other_examples(subject, data)
    recorded: list[Tensor] = []
    first = _run_outputs(short, data, recorded, record=True)
    with _swapped_in_memory(subject.clients, other_data):
        second = _run_outputs(short, other_data, recorded, record=False)

    differing = [name for name in first if first[name] != second[name]]
    broken: list[str] = []
    if differing:
        broken.append(f"with the same recorded query results and other data, these differ: {', '.join(differing)}")
    if first["rounds"] != second["rounds"]:
        broken.append(
            f"the run ends after {second['rounds']} rounds instead of {first['rounds']}: the data decide when it ends"
        )
    evidence = f"{', '.join(first)} of {first['rounds']} rounds are functions of {len(recorded)} recorded query results"
    power = "every client's examples were exchanged; data that a strategy read before the audit began are not covered"
    return summarize(NAME, broken, evidence, power)


@dataclass
class _ReplayingOracle:
    """Wraps the real oracle, and stores its recorded results or replaces them with another run's.

    Attributes:
        oracle: The real oracle.
        recorded: The recorded results, in order.
        record: True to append results to `recorded`, False to return the results in it.
        sent: The messages that were released.
        n_results: Number of query results so far.
    """

    oracle: Oracle[DataQueryEngine]
    recorded: list[Tensor]
    record: bool
    sent: list[Tensor] = field(default_factory=list[Tensor])
    n_results: int = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever an oracle has
        attribute = getattr(self.oracle, name)
        if name in QUERIES:
            return self._replayed(attribute)
        return attribute

    def release_message(self, message: Tensor) -> Tensor:
        self.sent.append(self._replayed(self.oracle.release_message)(message))
        return self.sent[-1]

    def _replayed(self, query: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def replay(*arguments: Any) -> Tensor:  # noqa: ANN401 - the arguments of any query
            n_records = len(self.oracle.engine.ledger.records)
            result = query(*arguments)
            if len(self.oracle.engine.ledger.records) == n_records:
                return result  # it has no record, so no output may depend on it
            if self.record:
                self.recorded.append(result.clone())
            elif self.n_results < len(self.recorded):
                result = self.recorded[self.n_results].clone()
            self.n_results += 1
            return result

        return replay


def _run_outputs(subject: AuditTarget, data: Data, recorded: list[Tensor], *, record: bool) -> dict[str, Any]:
    """Trains, and returns all outputs of the run by name."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        training = subject.training(data, folder=folder, seed=_SEED, secret_seed=_SEED, checkpoint_every=10**6)
        oracle: Any = _ReplayingOracle(training.oracle, recorded, record)
        training.oracle = oracle
        board = TensorBoard(folder / "tb")
        progress: list[Any] = []
        for report in training:
            board.write(report)
            state = training.progress
            server = {name: torch.as_tensor(leaf).tolist() for name, leaf in flatten_with_names(state.server).items()}
            progress.append((state.models.tolist(), state.received.tolist(), server, report.epsilon))
        board.close()
        result = training.result()
        outputs = {
            "rounds": result.rounds,
            "messages": [rows.tolist() for rows in oracle.sent],
            "models": [*progress, result.params.tolist()],
            "metrics": _lines(folder / "metrics.jsonl"),
            "result.json": {name: value for name, value in result.to_json().items() if name != "seconds"},
            "ledger": _lines(folder / "ledger.jsonl"),
            "TensorBoard": _events(folder / "tb"),
        }
        if training.folder is not None:
            training.folder.close()
        # as text, so that NaN values equal themselves
        return {name: value if isinstance(value, int) else repr(value) for name, value in outputs.items()}


def _lines(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a JSONL file, without fields that identify the run."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in _OF_ONE_RUN} for row in rows]


def _events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns the scalars of TensorBoard files by name, without their times."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    names = cast("list[str]", events.Tags()["scalars"])
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in sorted(names)}


def _other_examples(subject: AuditTarget, data: Data) -> Data:
    """Returns other examples of the same shapes, with the same number of examples per label and client."""
    counts_public = any(client.problem.counts_are_public for client in subject.clients)
    return [
        (_changed_rows(inputs, 1, keep=counts_public), _changed_rows(targets, 2, keep=True)) for inputs, targets in data
    ]


def _changed_rows(rows: Any, shift: int, *, keep: bool) -> Any:  # noqa: ANN401 - tensors, nested
    """Returns rows rolled by `shift`; numbers are changed as well unless `keep`."""

    def change(tensor: Tensor) -> Tensor:
        rolled = tensor.roll(shift, 0)
        if keep or not tensor.is_floating_point():
            return rolled
        return 0.25 - 1.5 * rolled

    return map_tree(change, rows)


@contextmanager
def _swapped_in_memory(clients: Sequence[Client], data: Data) -> Generator[None]:
    """Overwrites the true examples in memory with the other ones, for code that has a reference to them."""
    changes = [
        (tensor, index, tensor[index].clone(), new)
        for client, examples in zip(clients, data, strict=True)
        for tensor, index, new in _locate(client.loader.dataset, examples)
    ]
    for tensor, index, _, new in changes:
        tensor[index] = new.to(tensor)
    try:
        yield
    finally:
        for tensor, index, original, _ in reversed(changes):
            tensor[index] = original


def _locate(dataset: Dataset[Any], examples: Pair) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yields each tensor that holds a data set's examples, the indices of their rows, and the new rows."""
    index: Tensor | None = None
    while isinstance(dataset, Subset):
        chosen = torch.as_tensor(dataset.indices)
        if index is None:
            index = chosen
        else:
            index = chosen[index]
        dataset = dataset.dataset
    if type(dataset) is TensorDataset and all(isinstance(rows, Tensor) for rows in examples):
        for tensor, new in zip(dataset.tensors, examples, strict=True):
            if isinstance(new, Tensor) and tensor.shape[1:] == new.shape[1:]:
                if index is None:
                    yield tensor, torch.arange(len(tensor)), new
                else:
                    yield tensor, index, new
