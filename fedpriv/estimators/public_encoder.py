"""A scikit-learn transformer with public settings, and a check for pipelines that learn from data.

`StandardScaler`, `SimpleImputer` and `OneHotEncoder` compute means, medians and categories from private rows, which the
epsilon of a later estimator does not cover. `PublicEncoder` has ranges, fill values and categories as settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder
from sklearn.utils import Tags, get_tags

from fedpriv.data.table_encoder import TableEncoder, check_columns, read_data_frame
from fedpriv.errors import DataError, PrivacyError
from fedpriv.estimators.private_step import PrivateStep
from fedpriv.settings import validate_arguments

_INSTEAD = (
    "use fedpriv.PublicEncoder, which takes ranges, replacements for missing values and categories from public "
    "knowledge, or fedpriv.PrivateScaler, which learns means and deviations with noise"
)


@validate_arguments("", values=False)
class PublicEncoder(TransformerMixin, BaseEstimator):
    """Encodes the columns of a DataFrame by public ranges and categories; `fit` uses no values.

    Guarantee: the encoding of a row depends on these settings and on no other row, so it costs no epsilon.

    Args:
        numbers: For each numeric column its range `[low, high]`, which is mapped to [-1, 1]; a value outside the range
            is replaced with the nearest end of the range.
        categories: For each categorical column its values, which become one 0/1 feature each.
        missing: For a column, the public value that replaces missing values.
        indicators: Columns with an additional 0/1 feature: 1 where the value is missing.
        drop_first: True leaves out the feature of each column's first category, so that coefficients measure the
            difference from that category; False by default.

    Attributes:
        data_norm_: Public bound on the norm of an encoded row, for `PrivateLogisticRegression(data_norm=...)`.
        n_features_in_: Number of columns of the frame.

    Examples:
        >>> import fedpriv, pandas
        >>> frame = pandas.DataFrame({"age": [20, 60], "smoker": ["no", "yes"]})
        >>> encoder = fedpriv.PublicEncoder(numbers={"age": (0, 80)}, categories={"smoker": ["no", "yes"]})
        >>> encoder.fit_transform(frame).tolist()
        [[-0.5, 1.0, 0.0], [0.5, 0.0, 1.0]]
    """

    def __init__(
        self,
        numbers: Mapping[str, tuple[float, float]] | None = None,
        categories: Mapping[str, Sequence[str | int]] | None = None,
        missing: Mapping[str, float | int | str] | None = None,
        indicators: Sequence[str] = (),
        *,
        drop_first: bool = False,
    ) -> None:
        self.numbers = numbers
        self.categories = categories
        self.missing = missing
        self.indicators = indicators
        self.drop_first = drop_first

    def __sklearn_tags__(self) -> Tags:
        """Declares to scikit-learn that no fit is needed, and that text is accepted."""
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: object = None) -> PublicEncoder:  # noqa: ANN401 - a frame
        """Checks the settings and the names of the columns. Uses no values."""
        check_columns("X", self._encoder().feature_columns, _names(X))
        self.n_features_in_ = len(_names(X))
        return self

    def transform(self, X: Any) -> NDArray[np.float64]:  # noqa: ANN401 - a frame
        """Returns features `[n, n_features]`.

        Raises:
            ConfigError: If the frame lacks a column, or a setting is wrong.
            DataError: If a value is missing and has no replacement, is no number, or is no listed category; the message
                names the row.
        """
        encoder = self._encoder()
        check_columns("X", encoder.feature_columns, _names(X))
        features = encoder.inputs(read_data_frame(X, encoder.feature_columns, "X")).double().numpy()
        return features[:, self._kept(encoder)]

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Returns the name of each feature, e.g. `age` and `smoker=yes`."""
        encoder = self._encoder()
        return np.array([encoder.feature_names[index] for index in self._kept(encoder)], dtype=object)

    @property
    def data_norm_(self) -> float:
        """The square root of the number of columns and indicators: each adds at most 1 to a row's squared norm."""
        return math.sqrt(len(self.numbers or {}) + len(self.categories or {}) + len(self.indicators))

    def _encoder(self) -> TableEncoder:
        # the label has a name that no column has
        return TableEncoder(
            label="",
            classes=[0],
            numbers=self.numbers or {},
            categories=self.categories or {},
            missing=self.missing or {},
            indicators=self.indicators,
            bias=False,
        )

    def _kept(self, encoder: TableEncoder) -> list[int]:
        """Returns the indices of the features that are kept."""
        if not self.drop_first:
            return list(range(len(encoder.feature_names)))
        firsts = {f"{column}={values[0]}" for column, values in (self.categories or {}).items()}
        return [index for index, name in enumerate(encoder.feature_names) if name not in firsts]


@validate_arguments("check_pipeline")
def check_pipeline(pipeline: Any) -> None:  # noqa: ANN401 - an estimator of scikit-learn
    """Raises if steps of a pipeline learn from private rows before its private estimator.

    Steps that do not learn from data pass: `PublicEncoder`, `FunctionTransformer`, `Normalizer` and the like, and
    encoders with given categories. So does `PrivateScaler`, which learns with noise; the `spent_` of a
    `PrivateLogisticRegression` later in the pipeline includes its cost.

    Args:
        pipeline: A `Pipeline`, `ColumnTransformer` or transformer. The last step of a pipeline is the estimator, which
            has its own guarantee.

    Raises:
        PrivacyError: If a step learns from data; the message names each such step, and an alternative.

    Examples:
        >>> import fedpriv
        >>> from sklearn.pipeline import make_pipeline
        >>> from sklearn.preprocessing import StandardScaler
        >>> try:
        ...     fedpriv.check_pipeline(make_pipeline(StandardScaler(), fedpriv.PrivateLogisticRegression()))
        ... except fedpriv.PrivacyError as error:
        ...     print("StandardScaler" in str(error))
        True
    """
    if isinstance(pipeline, Pipeline):
        names = learning_steps(pipeline)
    else:
        names = list(_learning(pipeline, type(pipeline).__name__))
    if names:
        raise PrivacyError(
            f"the pipeline steps {', '.join(names)} would learn from private rows, which epsilon does not cover: "
            f"{_INSTEAD}"
        )


def learning_steps(pipeline: Pipeline) -> list[str]:
    """Returns the names of the steps before the last that learn from data, e.g. `scaler (StandardScaler)`."""
    return [name for step, transformer in pipeline.steps[:-1] for name in _learning(transformer, step)]


def private_steps(pipeline: Pipeline) -> list[PrivateStep]:
    """Returns the steps before the last that learned with a guarantee of their own.

    Raises:
        PrivacyError: If such a step is not fitted, so that its cost is unknown.
    """
    steps = list[PrivateStep]()
    for name, transformer in pipeline.steps[:-1]:
        for path, part in _parts(transformer, name, fitted=True):
            if not isinstance(part, PrivateStep):
                continue
            if not hasattr(part, "result_"):
                fix = "fit it in this pipeline, or leave it out"
                raise PrivacyError(f"the cost of the pipeline step {path} is unknown, because it is not fitted: {fix}")
            steps.append(part)
    return steps


def _learning(transformer: Any, name: str) -> list[str]:  # noqa: ANN401 - a transformer of scikit-learn
    """Returns the names of the parts of a transformer that learn from data without a guarantee of their own."""
    return [
        f"{path} ({type(part).__name__})" for path, part in _parts(transformer, name, fitted=False) if _learns(part)
    ]


def _parts(transformer: Any, name: str, *, fitted: bool) -> list[tuple[str, Any]]:  # noqa: ANN401 - of scikit-learn
    """Returns the transformers that a transformer is composed of, with their names.

    Args:
        transformer: A transformer of scikit-learn.
        name: Its name.
        fitted: Return the fitted clones in a `ColumnTransformer`, rather than those that the next fit will clone.
    """
    if transformer is None or isinstance(transformer, str):  # "passthrough", "drop"
        return []
    if isinstance(transformer, Pipeline):
        inner = transformer.steps
    elif isinstance(transformer, ColumnTransformer) and fitted:
        inner = [(step, part) for step, part, _ in transformer.transformers_]
    elif isinstance(transformer, ColumnTransformer):
        inner = [(step, part) for step, part, _ in transformer.transformers]
        inner.append(("remainder", transformer.remainder))
    elif isinstance(transformer, FeatureUnion):
        inner = transformer.transformer_list
    else:
        return [(name, transformer)]
    return [leaf for step, part in inner for leaf in _parts(part, f"{name}.{step}", fitted=fitted)]


def _learns(transformer: Any) -> bool:  # noqa: ANN401 - a transformer of scikit-learn
    """Returns True for a transformer that learns from data without a guarantee of its own."""
    if isinstance(transformer, PrivateStep):
        return False
    encodes: Literal["auto"] | Any = getattr(transformer, "categories", "auto")
    if isinstance(transformer, OneHotEncoder | OrdinalEncoder) and not isinstance(encodes, str):
        return False
    return get_tags(transformer).requires_fit


def _names(frame: Any) -> list[str]:  # noqa: ANN401 - whatever a user gives
    """Returns the names of a frame's columns.

    Raises:
        DataError: If the object is no DataFrame.
    """
    if not hasattr(frame, "iloc") or not hasattr(frame, "columns"):  # pandas is no dependency
        raise DataError(f"X is a {type(frame).__name__}: use a pandas DataFrame, which has column names")
    return [str(column) for column in frame.columns]
