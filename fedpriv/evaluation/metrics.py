"""The table of metrics. A row contains the function that computes a metric, its format, and its better direction.

All code that writes or shows metrics reads this table: `metrics.jsonl`, `metrics.csv`, the progress line, TensorBoard,
the result, `fedpriv show` and `compare`, and pictures. To add a metric, write a function and add a row to the table for
its kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedpriv.clients.client import Loss
from fedpriv.evaluation.tasks import Task
from fedpriv.models import predict
from fedpriv.models.nested import Nested, first_leaf
from fedpriv.network.rounds import TrainState

__all__ = [
    "OF_NODES",
    "OF_RUN",
    "SPREADS",
    "TESTED",
    "Metric",
    "OfTest",
    "format_metrics",
    "get_direction",
    "list_headline_metrics",
    "list_metrics",
    "list_report_names",
    "make_custom_metrics",
]

F = TypeVar("F", covariant=True)
OfTest = Callable[[Any, Any, Loss, Task], Tensor | None]
"""From a batch's outputs, its targets, the loss and the task to numerators and denominators `[2, groups]` in float64.

Numerators and denominators are added up over batches. The metric is the mean of their ratios over the groups that have
examples; for a balanced accuracy, the groups are classes. The function returns None if the metric has no meaning for
the task.
"""


@dataclass(frozen=True)
class Metric(Generic[F]):
    """A metric: a row of the table.

    Args:
        name: Its name in files, e.g. `test_accuracy`.
        function: Computes the metric; None if a strategy, the network or a check at the end of a run reports it.
        form: The format specification of its values: `.2%`, `.4g`.
        better: Better direction, None if it is unknown; metrics where higher is better are listed before metrics where
                lower is better.
        live: Its name on the progress line; empty if it is not shown there.
        words: Displayed name; by default `name` with spaces.
        remark: A remark after the value.
        together: For a test metric: True if vmap can compute it for several models' outputs at once.
        whole: For a test metric: True if it is computed from all examples at once, not batch by batch.
        root: For a test metric: True if it is the square root of the mean.
        exponential: For a test metric: True if it is e to the power of the mean.
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
    exponential: bool = False

    @property
    def title(self) -> str:
        """The displayed name."""
        return self.words or self.name.replace("_", " ")

    @property
    def percent(self) -> bool:
        """True if the metric is a fraction that is shown in per cent."""
        return self.form.endswith("%")

    def text(self, value: float) -> str:
        """Formats a value; values that would fill a line are rounded.

        >>> TESTED[0].text(0.25), TESTED[0].text(1e30)
        ('0.2500', '1e+30')
        """
        if self.form == ".4f" and abs(value) >= 1e5:
            return format(value, ".3g")
        return format(value, self.form)


def mean_loss(outputs: object, targets: Nested, loss: Loss, task: Task) -> Tensor | None:
    """Computes the mean loss of an example."""
    count = len(first_leaf(targets))
    return _pair(loss(outputs, targets).detach().double() * count, count)


def accuracy(outputs: Any, targets: Any, loss: Loss, task: Task) -> Tensor | None:  # noqa: ANN401
    """Computes the fraction of examples with a correct class; if examples have several labels, of correct labels."""
    if task.kind == "classes" and task.ignored is None:
        return _pair((predict(outputs) == targets).sum().double(), len(targets))
    if task.kind in ("classes", "tokens") and task.ignored is not None:
        counts = targets != task.ignored
        right = (predict(outputs) == targets) & counts
        return torch.stack([right.sum().double(), counts.sum().double()]).reshape(2, 1)
    if task.kind in ("binary", "multilabel") and task.threshold is not None:
        right = (outputs.reshape(targets.shape) > task.threshold) == (targets > 0.5)
        return _pair(right.sum().double(), targets.numel())
    return None


def token_loss(outputs: Any, targets: Any, loss: Loss, task: Task) -> Tensor | None:  # noqa: ANN401
    """Computes the mean cross entropy of a token, for any loss; all tokens of the test data have equal weights."""
    if task.kind != "tokens" or task.ignored is None:
        return None
    total = functional.cross_entropy(outputs.double(), targets, ignore_index=task.ignored, reduction="sum")
    return torch.stack([total, (targets != task.ignored).sum().double()]).reshape(2, 1)


def auroc(outputs: Any, targets: Any, loss: Loss, task: Task) -> Tensor | None:  # noqa: ANN401
    """Computes the area under the curve of true against false positives, averaged over labels that have both."""
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
    """Computes the mean squared error of predicted numbers."""
    if task.kind != "numbers":
        return None
    error = outputs.double().reshape(targets.shape) - targets.double()
    return _pair(error.square().sum(), targets.numel())


def absolute_error(outputs: Any, targets: Any, loss: Loss, task: Task) -> Tensor | None:  # noqa: ANN401
    """Computes the mean absolute error of predicted numbers."""
    if task.kind != "numbers":
        return None
    return _pair((outputs.double().reshape(targets.shape) - targets.double()).abs().sum(), targets.numel())


def consensus_distance(models: Tensor) -> float:
    """Returns the root mean square distance of the clients' models `[n, dim]` from their mean."""
    return float((models - models.mean(0)).double().square().sum(1).mean().sqrt())


def bytes_sent(progress: TrainState) -> int:
    """Returns the number of bytes that clients and server have sent so far."""
    return progress.numbers_sent * progress.received.element_size()


TESTED: tuple[Metric[OfTest], ...] = (
    Metric("test_loss", mean_loss, ".4f", "lower", live="loss", together=True),
    Metric("test_accuracy", accuracy, ".2%", "higher", live="accuracy", together=True),
    Metric("test_perplexity", token_loss, ".4g", "lower", live="perplexity", together=True, exponential=True),
    Metric("test_auroc", auroc, ".4f", "higher", live="AUROC", words="test AUROC", whole=True),
    Metric("test_rmse", squared_error, ".4g", "lower", live="RMSE", words="test RMSE", together=True, root=True),
    Metric("test_mae", absolute_error, ".4g", "lower", words="test MAE", together=True),
)
"""Metrics of a model on public test data. For nodes' models, `node_<name>` contains the smallest value, the mean and
the largest value.
"""

ERRORS = ("test_rmse", "test_mae")
"""Names that custom metrics may also have, e.g. for an error in the target's units. The custom metric is then shown
instead.
"""

OF_NODES: tuple[Metric[Callable[[Tensor], float]], ...] = (
    Metric("consensus_distance", consensus_distance, ".4g", "lower", live="apart"),
)
"""Metrics of nodes' models `[n, dim]`, if they have different ones."""

OF_RUN: tuple[Metric[Callable[[TrainState], float]], ...] = (Metric("bytes_sent", bytes_sent, ",.0f", "lower"),)
"""Metrics of the run so far."""

REPORTED: tuple[Metric[None], ...] = (
    Metric("objective", None, ".6g", "lower", live="objective"),
    Metric("max_violation", None, ".2g", "lower", words="largest violation"),
    Metric("max_violation_estimate", None, ".2g", "lower", live="violation", words="largest violation, estimated"),
    Metric("max_multiplier", None, ".3g", None, live="multiplier", words="largest multiplier"),
    Metric("relative_difference", None, ".2g", "lower"),
    Metric("spectral_gap", None, ".4g", "higher"),
    Metric("suboptimality", None, ".4g", "lower", remark="exact, from the clients' data: not private"),
)
"""Metrics that strategies, the network and the checks at a run's end report."""

PARTS = ("min", "mean", "max")
CLIENT_PARTS = ("min", "p10", "median", "p90", "max", "mean")
SPREADS = {"node": PARTS, "client": CLIENT_PARTS}
"""Statistics of test metrics over nodes' models, and over clients' test sets: `node_test_accuracy_min`."""

_OBJECTIVE = REPORTED[0]


def list_metrics() -> tuple[Metric[object], ...]:
    """Returns all rows, in the order in which they are displayed."""
    return *list_headline_metrics(), *OF_NODES, *OF_RUN, *REPORTED


def list_headline_metrics() -> list[Metric[OfTest]]:
    """Returns the test metrics in the order in which they are displayed. Metrics where higher is better come first."""
    return sorted(TESTED, key=lambda row: row.better != "higher")


def make_custom_metrics(names: Iterable[str]) -> list[Metric[None]]:
    """Returns rows for the names of custom metrics, `test_<name>`."""
    table_names = {row.name for row in list_metrics()}
    return [Metric(name, None, ".4g", None) for name in names if name.startswith("test_") and name not in table_names]


def get_direction(name: str) -> Literal["higher", "lower"] | None:
    """Returns the better direction of a metric on test data, by its name in a round's file; None if it is unknown."""
    spread = {f"client_{row.name}_{statistic}": row for row in TESTED for statistic in CLIENT_PARTS}
    row = {row.name: row for row in TESTED}.get(name) or spread.get(name)
    if row is None:
        return None
    return row.better


def list_report_names() -> list[str]:
    """Returns the names under which a round's file may have a number."""
    names = [row.name for row in list_metrics()]
    for prefix, statistics in SPREADS.items():
        names += [f"{prefix}_{row.name}_{statistic}" for row in TESTED for statistic in statistics]
    return names


def list_result_names() -> list[str]:
    """Returns the names under which a result may contain a number, or the smallest value, the mean and the largest
    value of several numbers.
    """
    return [row.name for row in list_metrics()] + [f"{prefix}_{row.name}" for prefix in SPREADS for row in TESTED]


def compute_value(totals: Tensor, *, root: bool = False, exponential: bool = False) -> float:
    """Returns the metric of summed numerators and denominators `[2, groups]`.

    Args:
        totals: The sums.
        root: Return the square root of the mean.
        exponential: Return e to the power of the metric; infinity if the result overflows.
    """
    mean = float((totals[0] / totals[1])[totals[1] > 0].mean())
    if exponential:
        return float(torch.tensor(mean, dtype=torch.float64).exp())
    if root and math.isfinite(mean):
        return math.sqrt(mean)
    return mean


def format_metrics(facts: Mapping[str, Any], metrics_of_interest: Iterable[Metric[object]]) -> dict[str, str]:
    """Formats the known metrics of a result. For each title, the text contains the value and the values over nodes and
    clients.
    """
    texts: dict[str, str] = {}
    for row in metrics_of_interest:
        if facts.get(row.name) is not None:
            texts[row.title] = row.text(float(facts[row.name])) + (f" ({row.remark})" if row.remark else "")
        nodes: list[Any] = [(facts.get(f"node_{row.name}") or {}).get(statistic) for statistic in PARTS]
        if row.better == "higher" and None not in nodes:
            low, mean, high = (row.text(float(value)) for value in nodes)
            texts[f"nodes' {row.title}"] = f"{low} to {high}, mean {mean}"
        clients: Mapping[str, Any] = facts.get(f"client_{row.name}") or {}
        if row.better == "higher" and None not in [clients.get(statistic) for statistic in CLIENT_PARTS]:
            values = {statistic: row.text(float(clients[statistic])) for statistic in CLIENT_PARTS}
            texts[f"clients' {row.title}"] = (
                f"{values['min']} to {values['max']}, mean {values['mean']}; 10 % of clients below {values['p10']}, "
                f"half below {values['median']}"
            )
            worst = find_worst_client(facts, row)
            if worst is not None:
                texts[f"clients' {row.title}"] += f"; {values['min']} is of {worst}"
    return texts


def find_worst_client(facts: Mapping[str, Any], row: Metric[object]) -> str | None:
    """Returns the name of the client with the worst test metric; None where clients have no names."""
    values = {
        name: metrics_of_client[row.name]
        for name, metrics_of_client in facts.get("client_tests", {}).items()
        if metrics_of_client.get(row.name) is not None
    }
    if not values:
        return None
    if row.better == "higher":
        return min(values, key=values.__getitem__)
    return max(values, key=values.__getitem__)


def select_panel(is_known: Callable[[str], object]) -> list[Metric[object]]:
    """Returns the metrics that a picture shows in one panel: the first known one, and others that share its scale.

    Args:
        is_known: Returns True for the name of a metric that was measured.
    """
    first = next(
        (row for row in (_OBJECTIVE, *list_headline_metrics()) if is_known(row.name)), list_headline_metrics()[-1]
    )
    if not first.percent:
        return [first]
    others = [row for row in list_headline_metrics() if row is not first and row.percent and is_known(row.name)]
    return [first, *others]


def _pair(numerator: Tensor, denominator: int) -> Tensor:
    return torch.stack([numerator, torch.full_like(numerator, denominator)]).reshape(2, 1)
