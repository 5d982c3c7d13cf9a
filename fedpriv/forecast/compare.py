"""Compares strategies or settings on one task: several runs of each, one table, one picture, and the privacy cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedpriv.clients import Client
from fedpriv.errors import ConfigError, PrivacyError, format_count
from fedpriv.evaluation import metrics
from fedpriv.planning import align_columns
from fedpriv.privacy.accounting import PrivacySpent, round_up
from fedpriv.runs import Result, TrainOptions, curves, total, train
from fedpriv.settings import Count, suggest_nearest, validate_arguments
from fedpriv.storage import COLORS, strict_json
from fedpriv.strategies import Strategy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OPTIONS = {option.name for option in fields(TrainOptions)} - {"clients", "seed", "_", "__"}
_NOT_SHARED = ("folder", "resume", "extend", "secret_seed", "sinks")


@dataclass(frozen=True)
class Comparison:
    """Results of several settings, each trained several times.

    Attributes:
        results: By name, the result of each seed.
        spent: The privacy cost of all runs together, which also covers the choice of the best run; None if the runs
            have no guarantee in common.
    """

    results: Mapping[str, tuple[Result, ...]]
    spent: PrivacySpent | None = field(repr=False)

    def table(self) -> list[list[str]]:
        """Returns headings and a row for each setting: test metrics over seeds, and epsilon of one run."""
        measured = [
            row for row in metrics.list_headline_metrics() if any(_values(results, row.name) for results in self._all)
        ]
        rows = [["setting", *(f"{row.title}, mean +- sd" for row in measured), "epsilon of one run", "rounds"]]
        for name, results in self.results.items():
            texts = [_in_words(_values(results, row.name), row) for row in measured]
            rounds = sorted({result.rounds for result in results})
            worst = max(result.spent.epsilon for result in results)
            epsilon = "infinite"
            if math.isfinite(worst):
                epsilon = round_up(worst)
            rows.append([name, *texts, epsilon, "-".join(map(str, rounds))])
        return rows

    def to_json(self) -> dict[str, Any]:
        """Returns the metrics, rounds and epsilon of each run, and the cost of all, as values for JSON."""
        runs: dict[str, Any] = {}
        for name, results in self.results.items():
            measured = [row.name for row in metrics.list_headline_metrics() if _values(results, row.name)]
            runs[name] = {
                **{metric: _values(results, metric) for metric in measured},
                "epsilon": [strict_json.encode_epsilon(result.spent.epsilon) for result in results],
                "rounds": [result.rounds for result in results],
            }
        together = None
        if self.spent is not None:
            together = {"epsilon": strict_json.encode_epsilon(self.spent.epsilon), "delta": self.spent.delta}
        return {"settings": runs, "together": together}

    def plot(self, file: str | Path | None = None) -> Figure:
        """Draws the test metric against rounds and against epsilon: mean over seeds, and from worst to best.

        Args:
            file: Picture to write, e.g. `comparison.png`; its path is printed. A script shows no figure by itself.

        Returns:
            A figure of matplotlib's pyplot, which notebooks show.

        Raises:
            ConfigError: If there are no test data, or the file's extension is not a picture format.
            FedprivError: If the file cannot be written.
        """
        from matplotlib import pyplot

        figure = pyplot.figure(figsize=(9.0, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        shown = next(
            (row for row in metrics.list_headline_metrics() if any(_values(r, row.name) for r in self._all)), None
        )
        if shown is None:
            raise ConfigError(
                "common.test",
                None,
                "must be given to draw a comparison, since there are no test metrics: pass test data to compare",
            )
        factor = 100 if shown.percent else 1
        styles = zip(cycle(COLORS), cycle(("-", "--", "-.", ":")), strict=False)
        for (name, results), (color, dash) in zip(self.results.items(), styles, strict=False):
            rounds, epsilons, values = _columns(results, shown.name)
            scaled = [[factor * value for value in row] for row in values]
            means = [statistics.fmean(row) for row in scaled]
            for axes, positions in ((left, rounds), (right, epsilons)):
                axes.plot(positions, means, dash, color=color, label=name)
                low, high = [min(v) for v in scaled], [max(v) for v in scaled]
                axes.fill_between(positions, low, high, color=color, alpha=0.15, linewidth=0)
        left.set_xlabel("round")
        right.set_xlabel("epsilon spent")
        left.set_ylabel(shown.title + (", %" if shown.percent else ""))
        curves.draw_legend_below(figure, left)
        for axes in (left, right):
            curves.tidy_axes(axes)
        return curves.save_figure(figure, file)

    @property
    def _all(self) -> list[tuple[Result, ...]]:
        return list(self.results.values())

    def __str__(self) -> str:
        count = format_count(sum(map(len, self._all)), "run")
        cost = "these runs have no guarantee in common, so no joint privacy cost"
        if self.spent is not None:
            cost = f"all {count} together, and so the choice of the best: {self.spent}"
        return "\n".join([*align_columns(self.table()), cost])


def _explain(word: str, value: object, arguments: Mapping[str, object]) -> str | None:
    """Returns the correction for an argument of `train` that was passed to `compare` itself."""
    if word in _OPTIONS:
        fix = f'write common={{"{word}": ...}}, or add it to a setting in settings'
        return f"is an argument of train and not of compare: {fix}"
    return None


@validate_arguments("compare", _explain)
def compare(
    settings: Mapping[str, Mapping[str, Any] | Strategy],
    clients: Callable[[], Sequence[Client]],
    common: Mapping[str, Any],
    *,
    seeds: Count = 3,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Trains several strategies or settings on one task, each of them several times.

    Every run spends epsilon on the same data, even if only the best result is used. Therefore `spent` of the comparison
    is the cost of all runs together. On private data keep the number of runs small, or compare on public data.

    Args:
        settings: By name, the arguments of `train` that differ, e.g. `{"fedavg": {"strategy": fedpriv.fedavg(0.5)}}`;
            if only the strategy differs, it can be given directly: `{"fedavg": fedpriv.fedavg(0.5)}`.
        clients: Function that creates new clients for each run, because a run writes its result into their models.
        common: The arguments of `train` that all runs have, e.g. `{"privacy": ..., "rounds": 20, "test": ...}`.
        seeds: Number of runs of each setting, 3 by default, with public seeds 0, 1, ... and independent secret noise.
        progress: Called with a line of text before each run; None by default.

    Returns:
        The comparison. It prints as a table; `plot()` draws it.

    Raises:
        ConfigError: If `train` has no such argument, or an argument cannot be shared by several runs.

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> x, y = torch.linspace(-1, 1, 60)[:, None], torch.arange(60) // 30
        >>> data = [torch.utils.data.TensorDataset(x[i::3], y[i::3]) for i in range(3)]
        >>> comparison = fedpriv.compare(
        ...     {"slow": fedpriv.fedavg(0.1), "fast": fedpriv.fedavg(1.0)},
        ...     lambda: fedpriv.make_clients(nn.Linear(1, 2), nn.CrossEntropyLoss(), data[:2]),
        ...     {"privacy": fedpriv.Privacy(epsilon=2.0), "rounds": 3, "test": data[2]},
        ...     seeds=2,
        ... )
        >>> {name: len(results) for name, results in comparison.results.items()}
        {'slow': 2, 'fast': 2}
    """
    if not settings:
        raise ConfigError(
            "settings", {}, 'must contain at least one setting, e.g. {"fedavg": {"strategy": fedpriv.fedavg(0.5)}}'
        )
    if not callable(clients):
        fix = (
            "must be a function that creates new clients for each run, e.g. lambda: make_clients(...), since a run "
            "writes its result into the models of its clients"
        )
        raise ConfigError("clients", f"a {type(clients).__name__}", fix)
    differing = {name: _arguments(name, options) for name, options in settings.items()}
    for owner, arguments in {"common": common, **{f"settings.{name}": own for name, own in differing.items()}}.items():
        for word in arguments:
            if word in _NOT_SHARED:
                raise ConfigError(
                    f"{owner}.{word}",
                    arguments[word],
                    "cannot be set here, because several runs would share it: leave it out",
                )
            if word not in _OPTIONS:
                raise ConfigError(
                    f"{owner}.{word}", arguments[word], f"is not an argument of train{suggest_nearest(word, _OPTIONS)}"
                )
    results: dict[str, tuple[Result, ...]] = {}
    for name, own in differing.items():
        trained = list[Result]()
        for seed in range(seeds):
            if progress is not None:
                progress(f"{name}, seed {seed}")
            options: dict[str, Any] = {"progress": False, **common, **own}
            trained.append(train(clients(), seed=seed, **options))
        results[name] = tuple(trained)
    every = [result for of_setting in results.values() for result in of_setting]
    try:
        spent = total(every)
    except PrivacyError:
        spent = None
    return Comparison(results, spent)


def _arguments(name: str, options: Any) -> Mapping[str, Any]:  # noqa: ANN401 - whatever a user gives
    """Returns the arguments of `train` of one setting.

    Raises:
        ConfigError: If the setting is neither a strategy nor a dict of arguments.
    """
    if isinstance(options, Strategy):
        return {"strategy": options}
    if not isinstance(options, Mapping):
        fix = (
            'must be a strategy, or a dict of arguments of train, e.g. {"strategy": fedpriv.fedavg(0.5), "rounds": 20}'
        )
        raise ConfigError(f"settings.{name}", options, fix)
    return cast("Mapping[str, Any]", options)


def _values(results: Sequence[Result], name: str) -> list[float]:
    """Returns the metric of each result that has it."""
    facts: list[dict[str, Any]] = [
        {"test_accuracy": result.test_accuracy, "test_loss": result.test_loss, **result.measures} for result in results
    ]
    return [float(row[name]) for row in facts if row.get(name) is not None]


def _in_words(values: Sequence[float], row: metrics.Metric[metrics.OfTest]) -> str:
    if not values:
        return "-"
    text = row.text(statistics.fmean(values))
    if len(values) > 1:
        text += f" +- {row.text(statistics.stdev(values))}"
    return text


def _columns(results: Sequence[Result], name: str) -> tuple[list[int], list[float], list[list[float]]]:
    """Returns rounds in which every run was tested, the largest epsilon spent by then, and the values of each run."""
    by_run = [{row["round"]: row for row in result.reports if row.get(name) is not None} for result in results]
    rounds = sorted(set.intersection(*(set(rows) for rows in by_run)))
    epsilons = [max(float(rows[number]["epsilon"]) for rows in by_run) for number in rounds]
    return rounds, epsilons, [[float(rows[number][name]) for rows in by_run] for number in rounds]
