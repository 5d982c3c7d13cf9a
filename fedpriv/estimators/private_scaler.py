"""Standardises columns by means and deviations that are learned with differential privacy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from fedpriv.data.table_encoder import check_columns
from fedpriv.errors import DataError, FedprivError
from fedpriv.estimators.fit_callers import find_fit_callers
from fedpriv.estimators.private_step import PrivateStep, derive_seed, is_guessable
from fedpriv.privacy import Local, Privacy, Trust
from fedpriv.privacy.accounting import PrivacySpent
from fedpriv.settings import validate_arguments
from fedpriv.statistics.numbers import Bounds
from fedpriv.statistics.query import Floats, numbers_of
from fedpriv.statistics.scales import Scale, release_scales, standardize
from fedpriv.storage import strict_json, write_whole

_FORMAT = 1


@validate_arguments("", values=False)
class PrivateScaler(PrivateStep, TransformerMixin, BaseEstimator):
    """Standardises columns by their means and deviations, which `fit` releases with noise.

    A value v becomes (v - mean) / deviation. Values outside the bounds count as the nearest end. Missing values, and
    text, become 0: they are replaced with the private mean.

    Guarantee: one fit is (epsilon, delta)-differentially private for neighbouring data sets that differ in one row. The
    numbers of rows and the bounds are public. `transform` uses released values only.

    Each fit spends epsilon. In a scikit-learn pipeline, the `spent_` of a `PrivateLogisticRegression` after this step
    includes its cost. Elsewhere add up the costs with `fedpriv.total([scaler.result_, result])`, or use one `budget`
    for all runs on the data.

    Args:
        bounds: The public range (low, high) of each column to standardise, by name; for arrays by number, from 0.
            `transform` returns these columns in this order.
        epsilon: Epsilon of one fit, 0.1 by default.
        delta: Failure probability, well below one over the number of rows; 1e-5 by default.
        trust: Trust assumption, if there are several owners; None (default) is `Local()`.
        budget: Path of the lifetime budget of the data, to which each fit is charged; None (default) uses none.
        random_state: None (default) draws a secret seed. An int makes the fit repeatable, but the noise can be
            removed with this int.

    Attributes:
        scales_: The centre and scale of each column, for `TableEncoder(scales=...)`.
        notes_: Columns whose mean or deviation is hidden by the noise, with what they are scaled by instead.
        spent_: The privacy cost of the last fit.
        result_: The run that released the means and deviations, for `fedpriv.total`; not in a loaded scaler.
        n_features_in_: Number of columns of the first table.

    Examples:
        >>> import fedpriv
        >>> table = {"age": [20.0, 40.0, None, 60.0] * 500}
        >>> scaler = fedpriv.PrivateScaler({"age": (0, 100)}, epsilon=1, random_state=0).fit(table)
        >>> scaler.transform({"age": [40.0, None]}).round().tolist(), scaler.spent_.epsilon <= 1
        ([[0.0], [0.0]], True)
    """

    scales_: dict[str, Scale]

    def __init__(
        self,
        bounds: Mapping[Any, Bounds],
        epsilon: float = 0.1,
        delta: float = 1e-5,
        *,
        trust: Trust | None = None,
        budget: str | Path | None = None,
        random_state: int | None = None,
    ) -> None:
        self.bounds = bounds
        self.epsilon = epsilon
        self.delta = delta
        self.trust = trust
        self.budget = budget
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        """Declares to scikit-learn that text and missing values are accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: object = None) -> PrivateScaler:  # noqa: ANN401 - tables of several kinds
        """Releases the means and deviations of the columns.

        Args:
            X: The rows: a DataFrame, a dictionary of columns or an array `[n, n_columns]`; or a list with one of them
                for each owner.
            y: Not used.

        Raises:
            ConfigError: If a setting is out of range, or a table lacks a column.
            DataError: If a table has no rows, or columns of different lengths.
            PrivacyError: If the budget is too small.
        """
        callers = find_fit_callers()
        bounds = self._bounds()
        tables = [_columns(table, list(bounds)) for table in _tables(X)]
        privacy = Privacy(epsilon=self.epsilon, delta=self.delta, trust=self.trust or Local(), budget=self.budget)
        values = (numbers_of(table, name) for table in tables for name in bounds)
        seed = derive_seed(self.random_state, self.get_params(), values)
        scales = release_scales(tables, bounds, privacy, secret_seed=seed)
        assert scales.description.result is not None
        self.scales_ = dict(scales.by_column)
        self.notes_ = scales.notes
        self.result_ = scales.description.result
        self.n_features_in_ = _count_columns(_tables(X)[0])
        facts = [f"what {step} learned from the rows" for step in callers.learning]
        if callers.several is not None:
            facts.append(f"the other fits of {callers.several}")
        if is_guessable(self.random_state):
            facts.append("anyone who guesses random_state")
        self.spent_ = replace(scales.description.spent, not_covered=tuple(facts))
        return self

    def transform(self, X: Any) -> Any:  # noqa: ANN401 - tables of several kinds
        """Returns standardised columns `[n, n_bounds]`; for a list of tables, a list of such arrays.

        Raises:
            ConfigError: If a table lacks a column.
        """
        check_is_fitted(self, "scales_")
        arrays = [self._standardized(table) for table in _tables(X)]
        return arrays if _is_list(X) else arrays[0]

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Returns the names of the columns."""
        return np.array(list(self._bounds()), dtype=object)

    def save(self, path: str | Path) -> None:
        """Writes the fitted scaler to a JSON file, without the data and without the run.

        Raises:
            NotFittedError: If the scaler is not fitted.
        """
        check_is_fitted(self, "scales_")
        spent = {**asdict(self.spent_), "epsilon": strict_json.encode_epsilon(self.spent_.epsilon)}
        spent["per_client"] = [strict_json.encode_epsilon(one) for one in self.spent_.per_client]
        content = {
            "fedpriv_scaler": _FORMAT,
            "bounds": {name: list(bounds) for name, bounds in self._bounds().items()},
            "scales": {name: list(scale) for name, scale in self.scales_.items()},
            "notes": list(self.notes_),
            "n_features": self.n_features_in_,
            "spent": spent,
        }
        write_whole(Path(path), (strict_json.dumps(content, indent=2) + "\n").encode())

    @staticmethod
    def load(path: str | Path) -> PrivateScaler:
        """Returns a scaler that `save` has written, which transforms rows as before.

        Raises:
            FedprivError: If the file is missing or is not a scaler.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["fedpriv_scaler"] != _FORMAT:
                raise ValueError(f"format {content['fedpriv_scaler']}")
            spent: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in content["spent"].items()
            }
            scaler = PrivateScaler({name: (low, high) for name, (low, high) in content["bounds"].items()})
            scaler.scales_ = {
                name: (float(centre), float(scale)) for name, (centre, scale) in content["scales"].items()
            }
            scaler.notes_ = tuple(content["notes"])
            scaler.n_features_in_ = content["n_features"]
            scaler.spent_ = PrivacySpent(**spent)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise FedprivError(
                f"{path} is not a file of PrivateScaler.save ({error}): save the scaler again"
            ) from error
        scaler.epsilon, scaler.delta = scaler.spent_.epsilon, scaler.spent_.delta
        return scaler

    def _bounds(self) -> dict[str, Bounds]:
        return {str(name): bounds for name, bounds in self.bounds.items()}

    def _standardized(self, table: object) -> Floats:
        bounds = self._bounds()
        columns = _columns(table, list(bounds))
        scaled = [standardize(numbers_of(columns, name), bounds[name], self.scales_[name]) for name in bounds]
        return np.stack(scaled, 1)


def _is_list(tables: object) -> bool:
    """Returns True for a list of tables, False for one table."""
    return not (hasattr(tables, "keys") or hasattr(tables, "ndim"))


def _tables(tables: Any) -> list[Any]:  # noqa: ANN401 - tables of several kinds
    """Returns one table for each owner.

    Raises:
        DataError: If there is none.
    """
    if not _is_list(tables):
        return [tables]
    owners = list(cast("Sequence[Any]", tables))
    if not owners:
        raise DataError("X is an empty list: pass a table, or one table for each owner")
    return owners


def _columns(table: Any, names: Sequence[str]) -> dict[str, Any]:  # noqa: ANN401 - tables of several kinds
    """Returns columns of a table by name.

    Raises:
        ConfigError: If the table lacks a column.
        DataError: If the object is no table.
    """
    if hasattr(table, "keys"):
        keys = list(table.keys())
        check_columns("X", names, [str(key) for key in keys])
        return {str(key): table[key] for key in keys if str(key) in names}
    if getattr(table, "ndim", 0) == 2:
        check_columns("X", names, [str(index) for index in range(table.shape[1])])
        return {name: np.asarray(table[:, int(name)]) for name in names}
    fix = "use a DataFrame, a dictionary of columns or an array [n, n_columns], or a list with one of them per owner"
    raise DataError(f"X is a {type(table).__name__}: {fix}")


def _count_columns(table: Any) -> int:  # noqa: ANN401 - tables of several kinds
    return len(list(table.keys())) if hasattr(table, "keys") else int(table.shape[1])
