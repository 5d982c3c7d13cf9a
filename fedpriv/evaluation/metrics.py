"""Every metric, a row each: what computes it, how it is written, and which way is better.

All that shows metrics reads this table: `metrics.jsonl`, `metrics.csv`, the progress line, TensorBoard, the result,
`fedpriv show` and `compare`, and pictures. A new metric is a function and a row of the table for its kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedpriv.clients.client import Loss
from fedpriv.data.nested import Nested, first
from fedpriv.evaluation.tasks import Task
from fedpriv.models import predict
from fedpriv.network.rounds import TrainState

F = TypeVar("F", covariant=True)
OfTest = Callable[[Any, Any, Loss, Task], Tensor | None]
"""From a batch's outputs, its targets, the loss and the task to numerators and denominators `[2, groups]` in float64.

They are added up over batches; the metric is the mean of their ratios over the groups that have examples, such as the
classes of a balanced accuracy. None where the metric has no meaning.
"""


@dataclass(frozen=True)
class Metric(Generic[F]):
    """A row.

    Args:
        name: As files have it, e.g. `test_accuracy`.
        function: What computes it; None where a strategy, the network or a check at the end tells it.
        form: How it is written, as `format` takes it: `.2%`, `.4g`.
        better: Which way is better, None if that is not known; of two metrics the one of which more is better stands
            first.
        live: Its word on the progress line; empty: it is not there.
        words: What people read; by default the name.
        remark: What to say beside the value.
        together: Of a test metric: whether vmap can compute it of several models' outputs at once.
        whole: Of a test metric: whether it is computed of all examples at once, not batch by batch.
        root: Of a test metric: whether it is the square root of the mean.
    """

    name: str
    function: F
    form: str
    better: Literal["higher", "lower"] | None
    live: str = ""
    words: str = ""
    remark: str = ""
    together: bool = False
    whole: bool = False
    root: bool = False

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.words or self.name.replace("_", " ")

    @property
    def percent(self) -> bool:
        """Whether it is a fraction, shown out of a hundred."""
        return self.form.endswith("%")

    def text(self, value: float) -> str:
        """The value as it is written; one that would fill a line is rounded.

        >>> TESTED[0].text(0.25), TESTED[0].text(1e30)
        ('0.2500', '1e+30')
        """
        return format(value, ".3g" if self.form == ".4f" and abs(value) >= 1e5 else self.form)


def mean_loss(outputs: object, targets: Nested, loss: Loss, task: Task) -> Tensor | None:
    """Mean loss of an example."""
    count = len(first(targets))
    return _pair(loss(outputs, targets).detach().double() * count, count)


def accuracy(outputs: Any, targets: Any, loss: Loss, task: Task) -> Tensor | None:  # noqa: ANN401
    """Fraction of examples whose class is found; of labels that are, where an example has several."""
    if task.kind == "classes":
        return _pair((predict(outputs) == targets).sum().double(), len(targets))
    if task.kind in ("binary", "multilabel") and task.threshold is not None:
        right = (outputs.reshape(targets.shape) > task.threshold) == (targets > 0.5)
        return _pair(right.sum().double(), targets.numel())
    return None


def auroc(outputs: Any, targets: Any, loss: Loss, task: Task) -> Tensor | None:  # noqa: ANN401
    """Area under the curve of true against false positives, averaged over labels that have both."""
    from sklearn.metrics import roc_auc_score  # slow to import

    if task.kind not in ("binary", "multilabel"):
        return None
    scores = outputs.double().reshape(len(targets), -1).cpu().numpy()
    truth = targets.reshape(len(targets), -1).cpu().numpy() > 0.5
    areas = torch.zeros(2, scores.shape[1], dtype=torch.float64, device=outputs.device)
    for label in range(scores.shape[1]):
        if truth[:, label].all() or not truth[:, label].any():
            continue
        areas[1, label] = 1
        is_finite = bool(np.isfinite(scores[:, label]).all())
        if is_finite:
            areas[0, label] = float(roc_auc_score(truth[:, label], scores[:, label]))
        else:
            areas[0, label] = math.nan
    return areas


def squared_error(outputs: Any, targets: Any, loss: Loss, task: Task) -> Tensor | None:  # noqa: ANN401
    """Mean squared error of predicted numbers."""
    if task.kind != "numbers":
        return None
    error = outputs.double().reshape(targets.shape) - targets.double()
    return _pair(error.square().sum(), targets.numel())


def absolute_error(outputs: Any, targets: Any, loss: Loss, task: Task) -> Tensor | None:  # noqa: ANN401
    """Mean absolute error of predicted numbers."""
    if task.kind != "numbers":
        return None
    return _pair((outputs.double().reshape(targets.shape) - targets.double()).abs().sum(), targets.numel())


def consensus_distance(models: Tensor) -> float:
    """Root mean square distance of the clients' models `[n, dim]` from their mean."""
    return float((models - models.mean(0)).double().square().sum(1).mean().sqrt())


def bytes_sent(progress: TrainState) -> int:
    """What clients and server have sent so far."""
    return progress.numbers_sent * progress.received.element_size()


TESTED: tuple[Metric[OfTest], ...] = (
    Metric("test_loss", mean_loss, ".4f", "lower", live="loss", together=True),
    Metric("test_accuracy", accuracy, ".2%", "higher", live="accuracy", together=True),
    Metric("test_auroc", auroc, ".4f", "higher", live="AUROC", words="test AUROC", whole=True),
    Metric("test_rmse", squared_error, ".4g", "lower", live="RMSE", words="test RMSE", together=True, root=True),
    Metric("test_mae", absolute_error, ".4g", "lower", words="test MAE", together=True),
)
"""Of a model on public test data; of nodes' own models as `node_<name>`, the least, the mean and the largest."""

ERRORS = ("test_rmse", "test_mae")
"""Names that metrics of the user's own may have too, e.g. in the target's own units: theirs are shown then."""

OF_NODES: tuple[Metric[Callable[[Tensor], float]], ...] = (
    Metric("consensus_distance", consensus_distance, ".4g", "lower", live="apart"),
)
"""Of nodes' own models `[n, dim]`, where they have them."""

OF_RUN: tuple[Metric[Callable[[TrainState], float]], ...] = (Metric("bytes_sent", bytes_sent, ",.0f", "lower"),)
"""Of what a run has done so far."""

TOLD: tuple[Metric[None], ...] = (
    Metric("objective", None, ".6g", "lower", live="objective"),
    Metric("max_violation", None, ".2g", "lower", words="largest violation"),
    Metric("max_violation_estimate", None, ".2g", "lower", live="violation", words="largest violation, estimated"),
    Metric("max_multiplier", None, ".3g", None, live="multiplier", words="largest multiplier"),
    Metric("relative_difference", None, ".2g", "lower"),
    Metric("spectral_gap", None, ".4g", "higher"),
    Metric("suboptimality", None, ".4g", "lower", remark="exact, of the clients' data: not private"),
)
"""What strategies, the network and the checks at a run's end tell."""

PARTS = ("min", "mean", "max")
CLIENT_PARTS = ("min", "p10", "median", "p90", "max", "mean")
SPREADS = {"node": PARTS, "client": CLIENT_PARTS}
"""Of test metrics over nodes' models, and over clients' own test sets: `node_test_accuracy_min`."""

_OBJECTIVE = TOLD[0]


def rows() -> tuple[Metric[object], ...]:
    """All rows, those for people first to read first."""
    return *headlines(), *OF_NODES, *OF_RUN, *TOLD


def headlines() -> list[Metric[OfTest]]:
    """Test metrics as people read them: what should rise before what should fall."""
    return sorted(TESTED, key=lambda row: row.better != "higher")


def own(names: Iterable[str]) -> list[Metric[None]]:
    """Rows for those of these names that are metrics of the user's own, `test_<name>`."""
    known = {row.name for row in rows()}
    return [Metric(name, None, ".4g", None) for name in names if name.startswith("test_") and name not in known]


def direction(name: str) -> Literal["higher", "lower"] | None:
    """Which way a metric on test data is better, by its name in a round's file; None if that is not known."""
    spread = {f"client_{row.name}_{part}": row for row in TESTED for part in CLIENT_PARTS}
    row = {row.name: row for row in TESTED}.get(name) or spread.get(name)
    if row is None:
        return None
    return row.better


def numbers() -> list[str]:
    """Names under which a round's file may have a number."""
    spreads = [f"{of}_{row.name}_{part}" for of, parts in SPREADS.items() for row in TESTED for part in parts]
    return [row.name for row in rows()] + spreads


def facts() -> list[str]:
    """Names under which a result may have a number, or the least, the mean and the largest of several."""
    return [row.name for row in rows()] + [f"{of}_{row.name}" for of in SPREADS for row in TESTED]


def value_of(totals: Tensor, *, root: bool = False) -> float:
    """The metric of summed numerators and denominators `[2, groups]`; with `root` the square root of it."""
    mean = float((totals[0] / totals[1])[totals[1] > 0].mean())
    if root and math.isfinite(mean):
        return math.sqrt(mean)
    return mean


def shown(facts: Mapping[str, Any], of: Iterable[Metric[object]]) -> dict[str, str]:
    """What is known of these metrics, in words."""
    found: dict[str, str] = {}
    for row in of:
        if facts.get(row.name) is not None:
            found[row.title] = row.text(float(facts[row.name])) + (f" ({row.remark})" if row.remark else "")
        nodes: list[Any] = [(facts.get(f"node_{row.name}") or {}).get(part) for part in PARTS]
        if row.better == "higher" and None not in nodes:
            low, mean, high = (row.text(float(value)) for value in nodes)
            found[f"nodes' {row.title}"] = f"{low} to {high}, mean {mean}"
        clients: Mapping[str, Any] = facts.get(f"client_{row.name}") or {}
        if row.better == "higher" and None not in [clients.get(part) for part in CLIENT_PARTS]:
            told = {part: row.text(float(clients[part])) for part in CLIENT_PARTS}
            found[f"clients' {row.title}"] = (
                f"{told['min']} to {told['max']}, mean {told['mean']}; 10 % of clients below {told['p10']}, half below "
                f"{told['median']}"
            )
            if worst := worst_client(facts, row):
                found[f"clients' {row.title}"] += f"; {told['min']} is of {worst}"
    return found


def worst_client(facts: Mapping[str, Any], row: Metric[object]) -> str | None:
    """The name of the client with the worst test metric; None where clients have no names."""
    known = {name: of[row.name] for name, of in facts.get("client_tests", {}).items() if of.get(row.name) is not None}
    order = min if row.better == "higher" else max
    if known:
        return order(known, key=known.__getitem__)
    return None


def panel(known: Callable[[str], object]) -> list[Metric[object]]:
    """The metrics that a picture shows in one panel: the first that is known, and the others that share its scale."""
    first = next((row for row in (_OBJECTIVE, *headlines()) if known(row.name)), headlines()[-1])
    return [
        first,
        *(row for row in headlines() if row is not first and row.percent and first.percent and known(row.name)),
    ]


def _pair(numerator: Tensor, denominator: int) -> Tensor:
    return torch.stack([numerator, torch.full_like(numerator, denominator)]).reshape(2, 1)
