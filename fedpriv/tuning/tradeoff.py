"""The noise and, on public data, the accuracy for each target epsilon.

The private data are not used for training: noise follows from the plan, which uses their public sizes only. Accuracies
come from runs on other data, which the user names because they are public or synthetic.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpriv.config import Config, build, forecast, load_config
from fedpriv.config.schema import DataSection
from fedpriv.errors import ConfigError
from fedpriv.evaluation import metrics
from fedpriv.storage import BLUE, GREY, VERMILION, new_figure, strict_json
from fedpriv.tuning.membership import compute_detection_rate, compute_guess_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FALSE_ALARMS = 0.01
# options of data sets with the location of the rows; others select, divide or change these rows
_SOURCES = ("train", "root", "url", "path", "dataset", "file")


@dataclass(frozen=True)
class Target:
    """The consequences of one target epsilon.

    Attributes:
        epsilon: The target.
        spent: The epsilon of the planned run.
        delta: Its delta.
        noise_multiplier: Noise over sensitivity.
        right_guesses: Largest probability of a right guess by an attacker, from even odds.
        detection: Largest share of members that an attacker finds, at 1 % false alarms.
        scores: The test metric of each run on public data.
    """

    epsilon: float
    spent: float
    delta: float
    noise_multiplier: float
    right_guesses: float
    detection: float
    scores: tuple[float, ...] = ()

    @property
    def score(self) -> float | None:
        """Mean of the scores; None without scores, or if a run failed."""
        if not self.scores or not all(map(math.isfinite, self.scores)):
            return None
        return statistics.fmean(self.scores)

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the scores; 0 for fewer than two."""
        if len(self.scores) < 2 or self.score is None:
            return 0.0
        return statistics.stdev(self.scores)


@dataclass(frozen=True)
class Tradeoff:
    """Targets side by side.

    Attributes:
        targets: The targets, in the order of their epsilon.
        metric: Name of the test metric; empty without public data.
        reference: Its mean without noise, on the same public data; None without.
        notes: Notes for the reader.
    """

    targets: tuple[Target, ...]
    metric: str
    reference: float | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the table as values for JSON."""
        return strict_json.to_plain({**asdict(self), "metric": self.metric or None})

    def table(self) -> list[list[str]]:
        """Returns headings and a row for each target."""
        heading = ["epsilon", "noise multiplier", "attacker guesses right", "finds at 1 % false alarms"]
        if self.metric:
            heading.append(_metric(self.metric).title)
        rows = [heading]
        for target in self.targets:
            row = [
                f"{target.epsilon:g}",
                f"{target.noise_multiplier:.4g}",
                f"at most {_percent(target.right_guesses)}",
                f"at most {_percent(target.detection)}",
            ]
            if self.metric:
                row.append(self._score(target))
            rows.append(row)
        if self.reference is not None:
            rows.append(["no noise", "0", "always", "all", _metric(self.metric).text(self.reference)])
        return rows

    def _score(self, target: Target) -> str:
        row = _metric(self.metric)
        if target.score is None:
            return "not finite"
        text = row.text(target.score)
        if len(target.scores) > 1:
            text += f" +- {row.text(target.standard_deviation)}"
        return text

    def figure(self) -> Figure:
        """Draws the test metric, or the noise multiplier, and the bound on right guesses against epsilon."""
        figure = new_figure(7.2, 5.4)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        epsilons = [target.epsilon for target in self.targets]
        if self.metric:
            row = _metric(self.metric)
            factor = 100 if row.percent else 1
            scored = [target for target in self.targets if target.score is not None]
            means = [factor * (target.score or 0.0) for target in scored]
            spreads = [factor * target.standard_deviation for target in scored]
            top.errorbar([target.epsilon for target in scored], means, spreads, marker="o", color=BLUE, capsize=3)
            if self.reference is not None:
                top.axhline(factor * self.reference, color=GREY, linestyle="--", label="no noise")
                top.legend(frameon=False)
            top.set_ylabel(row.title + (", %" if row.percent else "") + "\non public data")
        else:
            top.plot(epsilons, [target.noise_multiplier for target in self.targets], "o-", color=BLUE)
            top.set_ylabel("noise multiplier")
        bottom.plot(epsilons, [100 * target.right_guesses for target in self.targets], "o-", color=VERMILION)
        bottom.axhline(50, color=GREY, linestyle=":", linewidth=1)
        bottom.set_ylabel("attacker guesses\nright, at most, %")
        bottom.set_xlabel("epsilon")
        bottom.set_xscale("log")
        bottom.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        bottom.minorticks_off()
        return figure


def tradeoff(
    path: Path,
    overrides: Sequence[str],
    epsilons: Sequence[float],
    *,
    public_data: Sequence[str] = (),
    seeds: int = 3,
    watch: Callable[[str], None] = lambda _: None,
) -> Tradeoff:
    """Plans a run at several targets and, if public data are named, trains on these.

    Args:
        path: The configuration.
        overrides: Settings to change.
        epsilons: The targets.
        public_data: Settings that replace the private data with public or synthetic ones, e.g. `data.train=public.csv`.
        seeds: Number of runs on public data at each target.
        watch: Called with a line about the current step.

    Raises:
        ConfigError: If a target cannot be reached, or the settings of public data name no other data.
    """
    if not epsilons or not all(0 < epsilon < math.inf for epsilon in epsilons):
        raise ConfigError("epsilon", list(epsilons), "must be positive, finite targets, e.g. epsilon=.5,1,2,4,8")
    private = load_config(path, overrides)
    targets = list[Target]()
    for epsilon in sorted(set(epsilons)):
        watch(f"planning epsilon={epsilon:g}")
        targets.append(_planned(load_config(path, [*overrides, f"privacy.epsilon={epsilon!r}"]), epsilon))
    unit = {"sample": "one example", "client": "the data of one client"}[private.privacy.unit]
    notes = [f"the attacker has all data except {unit}, sees all that is released, and starts from even odds"]
    if not public_data:
        notes.append(
            "nothing was trained, so there are no accuracies; to get them, name public data: --public-data "
            "data.train=public.csv"
        )
        return Tradeoff(tuple(targets), "", None, tuple(notes))

    elsewhere = [*overrides, *public_data, "privacy.budget=null"]  # the lifetime budget belongs to the private data
    if _source(load_config(path, elsewhere).data) == _source(private.data):
        fix = (
            "does not replace the private data, and one of the runs on public data has no noise: name other data, with "
            f"data.name or one of {', '.join(f'data.{option}' for option in _SOURCES)}"
        )
        raise ConfigError("--public-data", " ".join(public_data), fix)
    scored = list[Target]()
    metric = ""
    for target in targets:
        watch(f"training on public data at epsilon={target.epsilon:g}")
        metric, scores = _scores(path, [*elsewhere, f"privacy.epsilon={target.epsilon!r}"], seeds)
        scored.append(replace(target, scores=scores))
    watch("training on public data without noise")
    _, exact = _scores(path, [*elsewhere, "privacy={noise_on: none}"], 1)
    mine, other = (forecast(load_config(path, settings)).examples for settings in (overrides, elsewhere))
    notes.append(
        f"clients have {_sizes(mine)} examples here and {_sizes(other)} in the public data: the same noise "
        "multiplier has more effect on a mean of fewer examples"
    )
    return Tradeoff(tuple(scored), metric, exact[0], tuple(notes))


def _source(section: DataSection) -> tuple[str, dict[str, str]]:
    """Returns the source of a data set's rows: its name, and the options with their location."""
    places = dict[str, str]()
    for option in _SOURCES:
        value = section.options.get(option)
        if value is not None:
            places[option] = str(Path(str(value)).resolve())
    return section.name, places


def _planned(config: Config, epsilon: float) -> Target:
    """Returns a target without scores, from the plan of the run."""
    if config.privacy.noise_multiplier is not None:
        fix = "sets the noise, so target epsilons would have no effect: leave it out (privacy.noise_multiplier=null)"
        raise ConfigError("privacy.noise_multiplier", config.privacy.noise_multiplier, fix)
    plan = forecast(config)
    if plan.noise_multiplier is None:
        raise ConfigError("privacy.noise_on", config.privacy.noise_on, "the run has no noise, so there is no trade-off")
    spent = plan.spent
    return Target(
        epsilon,
        spent.epsilon,
        spent.delta,
        plan.noise_multiplier,
        compute_guess_rate(spent.epsilon, spent.delta),
        compute_detection_rate(FALSE_ALARMS, spent.epsilon, spent.delta),
    )


def _scores(path: Path, settings: Sequence[str], seeds: int) -> tuple[str, tuple[float, ...]]:
    """Trains on public data with fresh noise; returns the name of the metric and its values."""
    name = ""
    scores = list[float]()
    for _ in range(seeds):
        training = build(load_config(path, settings))
        for _ in training:
            pass
        result = training.result()
        facts: dict[str, Any] = {
            "test_accuracy": result.test_accuracy,
            "test_loss": result.test_loss,
            **result.measures,
        }
        name = next((row.name for row in metrics.list_headline_metrics() if facts.get(row.name) is not None), "")
        if not name:
            raise ConfigError(
                "log.test",
                False,
                "leaves no test metric on the public data, which a trade-off needs: leave log.test out",
            )
        scores.append(float(facts[name]))
    return name, tuple(scores)


def _metric(name: str) -> metrics.Metric[metrics.OfTest]:
    return next(row for row in metrics.list_headline_metrics() if row.name == name)


def _sizes(examples: tuple[int, int]) -> str:
    smallest, largest = examples
    if smallest == largest:
        return str(smallest)
    return f"{smallest} to {largest}"


def _percent(value: float) -> str:
    """Formats a bound, rounded up, as a percentage."""
    return f"{min(100.0, math.ceil(value * 1000 - 1e-9) / 10):g} %"
