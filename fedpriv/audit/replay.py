"""Check 4: nothing leaves the clients but functions of what the ledger has a line for.

A run is made twice with the same seeds: on the data, and on other data with the recorded answers of the first one in
the place of its own. Whatever differs did not come through the door: a strategy that looks at data, a rule that stops
by them, a metric on them.
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
from fedpriv.audit.probing import QUESTIONS
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients.client import Client, Pair
from fedpriv.data.nested import each
from fedpriv.oracle.data_answerer import DataAnswerer
from fedpriv.oracle.oracle import Oracle
from fedpriv.reports.sinks import Jsonl, TensorBoard
from fedpriv.strategies.state import flatten_with_names

NAME = "door"
_ROUNDS = 4
_SECRET = {"digest", "chain", "seal", "head"}  # checksums with a secret key: other answers, others
_SEED = 20_000


def door(subject: AuditTarget, data: Data) -> CheckResult:
    """Run twice, with other data behind the same recorded answers, and compare all that comes out."""
    short, other = subject.shortened(_ROUNDS), _swapped(subject, data)
    script = list[Tensor]()
    first = _seen(short, data, script, record=True)
    with _in_their_place(subject.clients, other):
        second = _seen(short, other, script, record=False)
    parts = [name for name in first if first[name] != second[name]]
    names = ", ".join(parts)
    if parts:
        broken = [f"with the same recorded answers on other data these are others: {names}"]
    else:
        broken = []
    if first["rounds"] != second["rounds"]:
        broken.append(f"the run ends after {second['rounds']} rounds instead of {first['rounds']}: data decide when")
    held = f"{', '.join(first)} of {first['rounds']} rounds are functions of {len(script)} recorded answers"
    power = "every client's examples were exchanged; what a strategy read before the audit began is not seen"
    return summarize(NAME, broken, held, power)


@dataclass
class _Held:
    """The real oracle, whose recorded answers are kept, or replaced by those of another run."""

    oracle: Oracle[DataAnswerer]
    script: list[Tensor]
    record: bool
    sent: list[Tensor] = field(default_factory=list[Tensor])
    asked: int = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever an oracle has
        found = getattr(self.oracle, name)
        if name in QUESTIONS:
            return self._holding(found)
        return found

    def release_message(self, message: Tensor) -> Tensor:
        self.sent.append(self._holding(self.oracle.release_message)(message))
        return self.sent[-1]

    def _holding(self, question: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def ask(*given: Any) -> Tensor:  # noqa: ANN401 - the arguments of any question
            before, answer = len(self.oracle.answerer.ledger.records), question(*given)
            if len(self.oracle.answerer.ledger.records) == before:
                return answer  # nothing was paid, so nothing of it may be seen
            if self.record:
                self.script.append(answer.clone())
            elif self.asked < len(self.script):
                answer = self.script[self.asked].clone()
            self.asked += 1
            return answer

        return ask


def _seen(subject: AuditTarget, data: Data, script: list[Tensor], *, record: bool) -> dict[str, Any]:
    """All that a run lets out."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        training = subject.training(data, folder=folder, seed=_SEED, secret_seed=_SEED, checkpoint_every=10**6)
        held: Any = _Held(training.oracle, script, record)
        training.oracle = held
        sinks = Jsonl(folder / "metrics.jsonl"), TensorBoard(folder / "tb")
        progress = list[Any]()
        for report in training:
            for sink in sinks:
                sink.write(report)
            made = training.progress
            server = {name: torch.as_tensor(part).tolist() for name, part in flatten_with_names(made.server).items()}
            progress.append((made.models.tolist(), made.received.tolist(), server, report.epsilon))
        for sink in sinks:
            sink.close()
        result = training.result()
        found = {
            "rounds": result.rounds,
            "messages": [rows.tolist() for rows in held.sent],
            "models": [*progress, result.params.tolist()],
            "metrics": _lines(folder / "metrics.jsonl"),
            "result.json": {name: value for name, value in result.to_json().items() if name != "seconds"},
            "ledger": _lines(folder / "ledger.jsonl"),
            "TensorBoard": _events(folder / "tb"),
        }
        if training.folder is not None:
            training.folder.close()
        return {name: part if isinstance(part, int) else repr(part) for name, part in found.items()}


def _lines(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if name not in _SECRET} for row in rows]


def _events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars by name, without their times."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    names = cast("list[str]", events.Tags()["scalars"])
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in sorted(names)}


def _swapped(subject: AuditTarget, data: Data) -> Data:
    """Other examples of the same shapes, with as many of each label at each client."""
    counted = any(client.problem.counts_are_public for client in subject.clients)
    return [(_other(inputs, 1, keep=counted), _other(targets, 2, keep=True)) for inputs, targets in data]


def _other(rows: Any, turn: int, *, keep: bool) -> Any:  # noqa: ANN401 - tensors, nested
    def turned(part: Tensor) -> Tensor:
        moved = part.roll(turn, 0)
        if keep or not part.is_floating_point():
            return moved
        return 0.25 - 1.5 * moved

    return each(turned, rows)


@contextmanager
def _in_their_place(clients: Sequence[Client], data: Data) -> Generator[None]:
    """The other examples where the true ones lie in memory, for those who kept a reference to these."""
    changed = [
        (tensor, index, tensor[index].clone(), new)
        for client, examples in zip(clients, data, strict=True)
        for tensor, index, new in _where(client.loader.dataset, examples)
    ]
    for tensor, index, _, new in changed:
        tensor[index] = new.to(tensor)
    try:
        yield
    finally:
        for tensor, index, before, _ in reversed(changed):
            tensor[index] = before


def _where(dataset: Dataset[Any], examples: Pair) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """The tensors that hold a data set's examples, which of their rows, and what to write there."""
    index: Tensor | None = None
    while isinstance(dataset, Subset):
        chosen = torch.as_tensor(dataset.indices)
        index, dataset = chosen if index is None else chosen[index], dataset.dataset
    if type(dataset) is TensorDataset and all(isinstance(part, Tensor) for part in examples):
        for tensor, new in zip(dataset.tensors, examples, strict=True):
            if isinstance(new, Tensor) and tensor.shape[1:] == new.shape[1:]:
                yield tensor, torch.arange(len(tensor)) if index is None else index, new
