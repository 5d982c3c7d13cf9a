"""Releases the statistics of several owners' tables, in one round that the plan, ledger and budget of training know.

The vectors of all statistics, each divided by half of its diameter and multiplied by the square root of its share of
the budget, are joined to one vector for each row. Two of them differ by at most 2. The mean of these vectors over all
rows is one clipped and noised query (`fedpriv.gradient_descent` with a model that is linear in them), so privacy unit,
neighbouring relation, trust, ledger and budget are those of a run with one round.

With unit `client`, the only vector of an owner is the mean of the vectors of its rows. It lies in the same convex set.
Answers are then means over owners, in which each owner counts once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedpriv.clients import make_clients
from fedpriv.errors import ConfigError, DataError, PrivacyError
from fedpriv.models import LinearRegression, Loss
from fedpriv.network import Everyone, Star
from fedpriv.planning import Compute, Plan, align_columns, make_plan
from fedpriv.privacy import BlockClip, Clip, ConvexHull, FullBatch, Gaussian, Local, Privacy, release_scheme
from fedpriv.privacy.accounting import PrivacySpent
from fedpriv.runs import Result, train
from fedpriv.settings import validate_arguments
from fedpriv.statistics.estimates import Answer
from fedpriv.statistics.query import Floats, Statistic, Table
from fedpriv.statistics.words import describe_statistic
from fedpriv.strategies import Strategy, gradient_descent

if TYPE_CHECKING:
    import pandas as pd

PURPOSE = "statistics, asked once"
"""How the name of a run that releases statistics begins."""
_WIDE = ("mean", "sd")  # answers that have both are lines of one table


@dataclass(frozen=True)
class Description:
    """Private statistics of tables, with what they cost.

    Attributes:
        answers: The answers, by name.
        spent: The privacy cost of all answers together.
        n_rows: Public number of rows of each owner; with unit `client` 1 for each, because that number is private.
        deviation: Standard deviation of the noise in each entry of the joined mean.
        result: The run that released them; None for a plan.
    """

    answers: Mapping[str, Answer]
    spent: PrivacySpent
    n_rows: tuple[int, ...]
    deviation: float
    result: Result | None = field(default=None, repr=False)

    def __getitem__(self, name: str) -> Answer:
        if name not in self.answers:
            raise KeyError(f"{name!r}; the answers are {', '.join(self.answers)}")
        return self.answers[name]

    def to_frame(self) -> pd.DataFrame:
        """Returns all estimates as a DataFrame with columns statistic, label, value, low and high (needs pandas)."""
        import pandas as pd

        rows = [
            {"statistic": answer.name, "label": label, "value": one.value, "low": one.low, "high": one.high}
            for answer in self.answers.values()
            for label, one in answer.values.items()
        ]
        return pd.DataFrame(rows)

    def to_json(self) -> dict[str, Any]:
        """Returns the answers and their cost as plain numbers and text."""

        def plain(number: float) -> float | None:
            return number if math.isfinite(number) else None

        answers = {
            name: {
                "values": {
                    label: {"value": plain(one.value), "low": plain(one.low), "high": plain(one.high)}
                    for label, one in answer.values.items()
                },
                "notes": list(answer.notes),
            }
            for name, answer in self.answers.items()
        }
        return {
            "answers": answers,
            "n_rows": list(self.n_rows),
            "epsilon": self.spent.epsilon,
            "privacy": str(self.spent),
        }

    def plot(self, path: str | Path) -> None:
        """Draws a picture of all answers: distribution functions as lines, everything else as points with intervals.

        Args:
            path: The file; its ending says the format.
        """
        from fedpriv.statistics.picture import draw

        draw(self.answers, Path(path))

    def __str__(self) -> str:
        wide = [answer for answer in self.answers.values() if set(_WIDE) <= set(answer.values)]
        labels = list(dict.fromkeys(label for answer in wide for label in answer.values))
        lines = list[str]()
        if wide:
            cells = [("", *labels)]
            cells += [
                (answer.name, *(str(answer.values[label]) if label in answer.values else "" for label in labels))
                for answer in wide
            ]
            lines += align_columns(cells)
        for answer in self.answers.values():
            if answer not in wide:
                lines += ["", answer.name]
                lines += [f"  {text}" for text in align_columns([(k, str(v)) for k, v in answer.values.items()])]
            lines += [f"  note: {note}" for note in answer.notes]
        rows = "these rows"
        if self.spent.unit == "client":
            rows = "means over owners, in which each owner counts once"
        lines += ["", f"[low, high] are 95 % intervals for {rows}; they account for the noise, not for sampling"]
        return "\n".join([*lines, f"privacy: {self.spent}"])


@validate_arguments("", values=False)
def describe(
    tables: Table | Sequence[Table],
    statistics: Sequence[Statistic],
    privacy: Privacy,
    *,
    folder: str | Path | None = None,
    secret_seed: int | None = None,
) -> Description:
    """Returns private statistics of one owner's table or of several owners' tables.

    Args:
        tables: A table for each owner: a DataFrame, or a dictionary of columns. The number of rows is public.
        statistics: The statistics; their weights divide the budget.
        privacy: The privacy settings, for example `fedpriv.Privacy(epsilon=0.2, delta=1e-5)`; with `budget`, the cost
            is charged there.
        folder: A new folder for the ledger, for `fedpriv account` and `fedpriv statement`.
        secret_seed: Seed of the noise, for tests; see `fedpriv.train`.

    Returns:
        The answers with 95 % intervals, and their privacy cost.

    Guarantee: all answers together have the differential privacy of `spent`. Public are the settings of the statistics
    and each owner's number of rows; with unit `client` only the number of owners. Values that do not fit (text in a
    numeric column, an unknown category) count as missing or other and never raise an error.

    Raises:
        ConfigError: If a setting cannot work.
        DataError: If a column is missing from a table, or the columns of a table differ in length.
        PrivacyError: If the privacy settings have no noise, or protect whole owners (unit `client`) and the noise would
            hide every answer, because there are too few owners.

    Examples:
        >>> import fedpriv
        >>> table = {"age": list(range(20, 80)) * 20, "smoker": ["no", "no", "yes"] * 400}
        >>> asked = [
        ...     fedpriv.statistics.Quantiles("age", bounds=(0, 120)),
        ...     fedpriv.statistics.Counts("smoker", categories=["no", "yes"]),
        ... ]
        >>> found = fedpriv.describe(table, asked, fedpriv.Privacy(epsilon=3, delta=1e-5))
        >>> 40 < found["age"]["50 %"].value < 60, found.spent.epsilon <= 3
        (True, True)
    """
    owners = list_tables(tables)
    joined = JoinedStatistics.of(statistics)
    checked = joined.check_privacy(privacy)
    sizes = [count_rows(table, joined.columns, number, checked.unit) for number, table in enumerate(owners)]
    deviation = joined.check_use(checked, sizes)
    result = train(
        make_clients(
            joined.make_model(), joined.make_loss(), [joined.examples(table, checked.unit) for table in owners]
        ),
        replace(_one_step(), name=joined.purpose),
        checked,
        rounds=1,
        folder=folder,
        secret_seed=secret_seed,
        progress=False,
        compute=Compute(backend="linear", device="cpu", dtype="float64"),
    )
    mean = -result.params.double().view(-1).numpy()
    return Description(joined.answers(mean, deviation, sum(sizes)), result.spent, tuple(sizes), deviation, result)


@validate_arguments("", values=False)
def plan_description(
    sizes: int | Sequence[int], statistics: Sequence[Statistic], privacy: Privacy
) -> dict[str, dict[str, float]]:
    """Returns about half of the width of each interval, by statistic and label, without any data and at no cost.

    Args:
        sizes: Public number of rows of each owner; with unit `client` only the number of owners matters.
        statistics: The statistics.
        privacy: The privacy settings.

    Raises:
        ConfigError: If a setting cannot work.
        PrivacyError: See `describe`.

    Examples:
        >>> import fedpriv
        >>> asked = [fedpriv.statistics.Mean("age", bounds=(0, 100))]
        >>> widths = fedpriv.statistics.plan_description(10_000, asked, fedpriv.Privacy(epsilon=1, delta=1e-5))
        >>> 0.05 < widths["age"]["mean"] < 0.1
        True
    """
    counts = [sizes] if isinstance(sizes, int) else list(sizes)
    joined = JoinedStatistics.of(statistics)
    checked = joined.check_privacy(privacy)
    if checked.unit == "client":
        counts = [1] * len(counts)
    return joined.half_widths(joined.check_use(checked, counts), sum(counts))


def list_tables(tables: Table | Sequence[Table]) -> list[Table]:
    """Returns one table for each owner.

    Raises:
        DataError: If there is none.
    """
    owners = list[Table]()
    if hasattr(tables, "keys"):  # a DataFrame has the method, too
        owners.append(cast(Table, tables))
    else:
        owners += cast(Sequence[Table], tables)
    if not owners:
        raise DataError("tables is empty; give one table (a DataFrame or a dictionary of columns) for each owner")
    return owners


def count_rows(table: Table, columns: Sequence[str], owner: int, unit: str) -> int:
    """Returns the number of vectors of a table: one for each row, or one for the whole owner.

    Raises:
        DataError: If a column is missing, columns differ in length, or there are no rows where their number is public.
    """
    missing = [column for column in columns if column not in table]
    if missing:
        raise DataError(
            f"the table of owner {owner} has no column {', '.join(missing)}; its columns are "
            f"{', '.join(map(str, table.keys()))}"
        )
    lengths = {len(table[column]) for column in columns}
    if len(lengths) > 1:
        raise DataError(f"the columns of the table of owner {owner} have different lengths: {sorted(lengths)}")
    (n,) = lengths
    if unit == "client":
        return 1
    if n == 0:
        raise DataError(f"the table of owner {owner} has no rows; leave this owner out")
    return n


def noise_deviation(privacy: Privacy, sizes: Sequence[int]) -> float:
    """Returns the standard deviation of the noise in each entry of the mean of all rows' joined vectors.

    Args:
        privacy: The privacy settings, checked.
        sizes: Public number of rows of each owner.
    """
    return planned_deviation(make_plan(_one_step(), privacy, sizes, Star(len(sizes), Everyone()), rounds=1), sizes)


def planned_deviation(plan: Plan, sizes: Sequence[int]) -> float:
    """Returns the same as `noise_deviation`, for a plan of one round with the noise of all owners."""
    release = plan.releases.find(0, "gradient", 0)
    assert release is not None
    # the mean over all rows is the mean over owners of their sums, each times the number of owners over that of rows
    factors = [len(sizes) / sum(sizes)] * len(sizes)
    _, shares = release_scheme(plan.privacy, sizes).noise_variances(release, factors, range(len(sizes)))
    return math.sqrt(sum(shares) / len(shares))


@dataclass(frozen=True)
class JoinedStatistics:
    """Several statistics as one vector for each row; a run of one round releases the mean of the vectors.

    Attributes:
        statistics: The statistics.
    """

    statistics: tuple[Statistic, ...]

    @classmethod
    def of(cls, statistics: Sequence[Statistic]) -> JoinedStatistics:
        """Joins statistics.

        Raises:
            ConfigError: If there are none, or two have the same name.
        """
        if isinstance(statistics, str) or not statistics:
            raise ConfigError(
                "statistics", statistics, "give at least one, e.g. [fedpriv.statistics.Mean('age', bounds=(0, 120))]"
            )
        names = [statistic.name for statistic in statistics]
        double = next((name for name in names if names.count(name) > 1), None)
        if double is not None:
            raise ConfigError(
                "statistics", double, "is asked for twice; leave one of the two out, since each costs noise"
            )
        return cls(tuple(statistics))

    @property
    def purpose(self) -> str:
        """What is released, in plain words, as in privacy statements."""
        return f"{PURPOSE}: {'; '.join(map(describe_statistic, self.statistics))}"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(dict.fromkeys(column for one in self.statistics for column in one.columns))

    @property
    def width(self) -> int:
        """Number of entries of a joined vector."""
        return sum(one.width for one in self.statistics)

    @cached_property
    def factors(self) -> list[float]:
        """By which the noise in a statistic's own vector is larger than in the joined one."""
        total = sum(one.weight for one in self.statistics)
        return [one.clip.diameter / 2 / math.sqrt(one.weight / total) for one in self.statistics]

    @cached_property
    def clip(self) -> BlockClip:
        """Bounds joined vectors, each statistic's part by its own clip."""
        return BlockClip(
            [(one.width, _scaled(one.clip, 1 / f)) for one, f in zip(self.statistics, self.factors, strict=True)]
        )

    def check_privacy(self, privacy: Privacy) -> Privacy:
        """Returns the settings with the clip of the joined vectors.

        Raises:
            ConfigError: If they have batches, a clip bound, or other noise than Gaussian noise.
            PrivacyError: If they have no noise.
        """
        if not privacy.private:
            raise PrivacyError(
                "statistics need noise: set privacy.epsilon, or compute exact ones with pandas if they may be exact"
            )
        if not isinstance(privacy.mechanism, Gaussian):
            raise ConfigError(
                "privacy.mechanism", privacy.mechanism.name, "statistics have Gaussian noise: leave it out"
            )
        if privacy.sampling != FullBatch():
            fix = "statistics use all rows, since their intervals do not account for a sample of them: leave it out"
            raise ConfigError("privacy.sampling", privacy.sampling, fix)
        if privacy.clip != Clip(1.0):
            raise ConfigError("privacy.clip", privacy.clip, "statistics bound their vectors themselves: leave it out")
        return replace(privacy, clip=self.clip)

    def make_model(self) -> LinearRegression:
        """Returns a new model that is linear in the joined vectors, at zero."""
        return LinearRegression(self.width)

    def make_loss(self) -> Loss:
        """Returns the loss that is the model's output, so that the gradient of a row is its vector."""
        return Loss(_outputs)

    def examples(self, table: Table, unit: str) -> TensorDataset:
        """Returns a table's examples, with targets that the loss does not use: the joined vectors of its rows, or with
        unit `client` their mean.
        """
        vectors = torch.from_numpy(self.vectors(table) if unit == "sample" else self.mean_vector(table))
        return TensorDataset(vectors, torch.zeros(len(vectors)))

    def vectors(self, table: Table) -> Floats:
        """Returns the joined vectors of a table's rows, `[n, width]`, to be clipped by `clip`."""
        parts = list[Floats]()
        for one, factor in zip(self.statistics, self.factors, strict=True):
            if isinstance(one.clip, ConvexHull):
                parts.append(one.vectors(table))  # the scale is in the vertices
            else:
                parts.append(one.vectors(table) / factor)
        return np.concatenate(parts, 1)

    def mean_vector(self, table: Table) -> Floats:
        """Returns the mean of the vectors of an owner's rows, `[1, width]`; without rows, the vector of a missing row.

        An error would disclose whether an owner has rows.
        """
        if not len(table[self.columns[0]]):
            table = {column: [None] for column in self.columns}
        return self.vectors(table).mean(0, keepdims=True)

    def half_widths(self, deviation: float, n: int) -> dict[str, dict[str, float]]:
        """Returns about half of the width of each interval, by statistic and label; see `answers`."""
        return {
            one.name: dict(one.half_widths(deviation * factor, n))
            for one, factor in zip(self.statistics, self.factors, strict=True)
        }

    def check_use(self, privacy: Privacy, sizes: Sequence[int]) -> float:
        """Returns the deviation of the noise (`noise_deviation`).

        Raises:
            PrivacyError: If whole owners are protected, and the noise hides every answer.
        """
        n = sum(sizes)
        deviation = noise_deviation(privacy, sizes)
        if privacy.unit == "sample":
            return deviation
        widths = self.half_widths(deviation, n)
        excess = min(
            widths[one.name][label] / half for one in self.statistics for label, half in one.half_ranges(n).items()
        )
        if excess < 1:
            return deviation
        if isinstance(privacy.trust, Local):
            excess **= 2  # the noise of the mean falls with the square root of n
        raise PrivacyError(
            f"privacy.unit 'client' protects whole owners, and there are {n}: at this epsilon the noise would hide "
            f"every answer. With about {math.ceil(n * excess)} owners or more the first answer would be visible; use "
            "unit 'sample', which protects single rows, a larger epsilon, or fewer statistics"
        )

    def answers(self, mean: Floats, deviation: float, n: int) -> dict[str, Answer]:
        """Returns the answers by name, from the noised mean of the joined vectors."""
        answers, start = dict[str, Answer](), 0
        for one, factor in zip(self.statistics, self.factors, strict=True):
            answers[one.name] = one.answer(mean[start : start + one.width] * factor, deviation * factor, n)
            start += one.width
        return answers


def _scaled(clip: Clip, factor: float) -> Clip:
    """Returns a clip for vectors that are multiplied by a factor."""
    if isinstance(clip, ConvexHull):
        return ConvexHull(clip.vertices * factor)
    return Clip(clip.bound * factor)


def _one_step() -> Strategy:
    return gradient_descent(1.0)


def _outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that is the output itself: its gradient is the row's vector."""
    return outputs[:, 0]
