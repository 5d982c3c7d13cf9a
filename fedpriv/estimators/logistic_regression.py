"""Private learning with scikit-learn's interface: `PrivateLogisticRegression(epsilon=1.0).fit(X, y)`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import diags_array, hstack, issparse, sparray, spmatrix
from scipy.special import expit, ndtri, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression as PublicRegression
from sklearn.utils import Tags, check_array
from sklearn.utils.extmath import row_norms
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedpriv.clients import make_clients
from fedpriv.errors import ConfigError, DataError, PromiseWarning
from fedpriv.estimators import logistic_intervals
from fedpriv.estimators.fit_callers import FitCallers, find_fit_callers
from fedpriv.estimators.private_step import derive_seed, is_guessable
from fedpriv.models import LogisticRegression, Loss, PerExampleLoss, SoftmaxRegression, cross_entropy, logistic
from fedpriv.planning import Compute
from fedpriv.privacy import Clip, Privacy
from fedpriv.privacy.accounting import PrivacySpent, gaussian, round_up
from fedpriv.runs import Result, total, train
from fedpriv.settings import validate_arguments
from fedpriv.strategies import L2, Zero, gradient_descent

Rows = ArrayLike | spmatrix | sparray
_CONSTANT = 0.25  # for rows of norm at most 1: a larger constant slows the other columns down and needs more noise
_INPUT_NORM = math.sqrt(1 + _CONSTANT**2)  # largest norm of a row with the constant
_CLIP = 0.4
_MOST_STEPS = 500
_COUNT_SHARE = 0.002  # of the squared sensitivity / noise, for the count of long rows
_ALL_LONG = 0.99  # mean squared norm of scaled rows, at most 1, above which most rows were longer than the bound


@validate_arguments("", values=False)
class PrivateLogisticRegression(ClassifierMixin, BaseEstimator):
    """Logistic regression, fitted by private gradient descent with momentum (DP-GD; Wang, Ye, Xu, 2017).

    Guarantee: the fitted coefficients are (epsilon, delta)-differentially private for neighbouring data sets that
    differ in one row with its label and weight; the numbers of rows and columns and the set of classes are public.

    This does not cover other uses of the data. Choose parameters on other data, scale columns by public constants or by
    a `PrivateScaler`, and give encoders public categories (`OneHotEncoder(categories=...)`).

    Args:
        epsilon: Epsilon of the whole fit, 1 by default. `math.inf` fits without noise; the fit is then not private, and
            `spent_` records this.
        delta: Failure probability, well below one over the number of rows; 1e-5 by default.
        data_norm: Public bound on the l2 norm of rows: rows are divided by it, and longer ones are scaled down to
            norm 1. None (default) is the square root of the number of columns, which fits columns in [-1, 1]; then
            1/500 of the budget is used for a private count of longer rows, and `fit` warns if most rows are longer. A
            tighter bound gives a better fit; to compute one, count the one-hot columns of one variable as one column.
        clip_norm: Bound on the l2 norm of one row's gradient, including its weight. Without clipping the norm is at
            most 1.03 (1.46 for 3 classes or more); a smaller bound needs less noise and reduces the influence of badly
            predicted rows. None (default) is 0.4. With `intervals` nothing is clipped, because clipping would bias the
            coefficients.
        lam: Weight of the l2 regulariser `lam/2 ||w||^2`, where rows have norm at most 1 and the constant feature is
            1/4; 0 (default) for none.
        max_iter: Number of gradient steps; momentum is `1 - 6 / max_iter`. With more steps, each needs more noise. None
            (default) is `sqrt(12 mu n)` for n rows, from 10 to 500, where mu is the ratio of sensitivity to noise of
            one Gaussian mechanism that is (epsilon, delta)-private.
        classes: The labels. None (default) uses the labels in `y`; this reveals the set of labels, and `spent_` records
            it. `classes_` is sorted, as everywhere in scikit-learn; the order given here only selects the class of
            `coefficients()`.
        class_weight: Public positive weight of each label; 1 for labels that are left out. Only the ratios of weights
            matter, since all weights are divided by the largest. "balanced" raises, because it would count private
            labels.
        intervals: True also estimates the error of the coefficients, from sampling and noise together, with a part of
            the budget (`fedpriv.estimators.logistic_intervals`). It needs two classes and no weights. The results are
            in `coefficients()` and `covariance_`. `max_iter` is then 60 by default; too few steps give wide intervals.
            `plan_intervals` forecasts their widths without private rows. False by default.
        random_state: None (default) draws a secret seed. An int makes the fit repeatable, but the noise can be
            removed with this int (`spent_` records this for ints below 2^64, which can be guessed).

    Attributes:
        classes_: Labels, `[n_classes]`.
        coef_: Coefficients, `[n_classes, n_features]`, or `[1, n_features]` for the second of two classes. They apply
            to rows as given (of norm at most `data_norm`).
        intercept_: Constant terms, `[n_classes]`, or `[1]` for two classes.
        covariance_: With `intervals`, the covariance of the coefficients and, at the end, the intercept,
            `[n_features + 1, n_features + 1]`; infinite where noise hides it.
        n_features_in_: Number of columns.
        n_iter_: Number of gradient steps.
        spent_: The privacy cost of the fit: epsilon with its delta, unit, relation and accountant. In a pipeline it
            includes the cost of each `PrivateScaler` before the regression.

    Examples:
        >>> import fedpriv
        >>> from sklearn.datasets import make_blobs
        >>> X, y = make_blobs(2000, centers=[[-2, 0], [2, 0]], random_state=0)
        >>> model = fedpriv.PrivateLogisticRegression(epsilon=1.0, data_norm=5.0, random_state=0).fit(X, y)
        >>> bool(model.score(X, y) > 0.9)
        True
    """

    n_features_in_: int

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        data_norm: float | None = None,
        clip_norm: float | None = None,
        lam: float = 0.0,
        max_iter: int | None = None,
        classes: ArrayLike | None = None,
        class_weight: Mapping[Any, float] | None = None,
        intervals: bool = False,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.data_norm = data_norm
        self.clip_norm = clip_norm
        self.lam = lam
        self.max_iter = max_iter
        self.classes = classes
        self.class_weight = class_weight
        self.intervals = intervals
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        """Declares to scikit-learn that sparse rows are accepted."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Rows, y: ArrayLike, sample_weight: ArrayLike | None = None) -> PrivateLogisticRegression:
        """Fits to rows `[n, n_features]` and labels `[n]`.

        Each fit spends epsilon. Within a search or a cross-validation of scikit-learn, and behind pipeline steps that
        learn from rows, fit warns, and `spent_` lists the uses of data that epsilon does not cover.

        Args:
            X: Dense array or scipy sparse matrix, which becomes dense here: about 16 bytes times n times n_features.
            y: Labels.
            sample_weight: Factors in [0, 1] of the rows' losses, `[n]`; private, like the rows. The mean loss is the
                sum divided by n. Gradients are clipped with the weight included.

        Raises:
            ValueError: If parameters or data cannot be used.
        """
        _check_numbers(X)
        callers = find_fit_callers()
        callers.find_private_steps()  # raises before anything is released
        with _explain_nan():
            validated: Any = validate_data(self, cast(Any, X), cast(Any, y), accept_sparse="csr", dtype=np.float64)
        rows, labels = validated
        check_classification_targets(labels)
        self._check_settings()
        codes = self._codes(labels)
        weights = self._class_weights()[codes] * _row_weights(sample_weight, len(codes))
        inputs = _with_constant(rows, self._bound())
        if self.intervals:
            return self._fit_with_intervals(inputs, codes, weights, callers)
        targets = np.stack([codes, weights], 1, dtype=np.float64)
        model, loss, smoothness = self._model(inputs.shape[1])
        steps = self._steps(len(codes))
        privacy = self._privacy(steps)
        regularizer = L2(self.lam) if self.lam else Zero()
        # all rows belong to one client
        result = train(
            make_clients(model, loss, [TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))]),
            gradient_descent(1 / smoothness, regularizer, momentum=max(0.0, 1 - 6 / steps), average=4.0),
            privacy,
            rounds=steps,
            secret_seed=self._seed(inputs, targets),
            compute=Compute(backend="linear", device="cpu", dtype="float64"),
            progress=False,
        )
        params = result.params.view(-1, inputs.shape[1]).numpy()
        # undo the scaling of rows and of the constant feature
        self.coef_ = params[:, :-1] / self._bound()
        self.intercept_ = params[:, -1] * _CONSTANT
        self.n_iter_ = result.rounds
        results = [result]
        if self._counts_long_rows:
            results.append(self._count_long_rows(rows, targets))
        self._set_spent(results, callers)
        return self

    def coefficients(self, level: float = 0.95, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Returns a row for each coefficient and for the intercept, in a form that `pandas.DataFrame` accepts.

        Each row contains the name, the class that the odds refer to (`outcome`), the coefficient, its standard error,
        the ends of its confidence interval, and the odds ratio with the ends of its interval: the factor by which the
        odds of that class grow with one unit of the column. The class is the last of `classes` in the given order;
        without `classes` it is the second, as in `coef_`. For the other class the coefficients have the opposite sign.

        Intervals include sampling error and privacy noise. They assume that the logistic model is correct, that no row
        is longer than `data_norm`, and that there are many rows. Each interval holds for its coefficient alone, not
        for all coefficients at once.

        Args:
            level: Probability with which an interval covers the coefficient.
            names: Names of the columns; by default the names in the DataFrame. After a `PublicEncoder` use
                `encoder.get_feature_names_out()`.

        Raises:
            ConfigError: If the model was fitted without `intervals`, the level is not between 0 and 1, or there is not
                one name for each column.
        """
        check_is_fitted(self)
        if not self.intervals:
            raise ConfigError(
                "intervals",
                False,
                "must be True for this method: fit again with intervals=True, which spends part of epsilon on the "
                "intervals",
            )
        quantile = _quantile(level)
        names = _column_names(names, getattr(self, "feature_names_in_", None), self.n_features_in_)
        outcome = self.classes_[1]
        if self.classes is not None:
            outcome = np.asarray(self.classes)[-1]
        if outcome == self.classes_[1]:
            sign = 1.0
        else:
            sign = -1.0
        values = [*(sign * self.coef_[0]).tolist(), sign * float(self.intercept_[0])]
        errors = np.sqrt(np.diag(self.covariance_)).tolist()
        rows = list[dict[str, Any]]()
        for name, value, error in zip([*names, "intercept"], values, errors, strict=True):
            rows.append({"name": str(name), "outcome": outcome, **coefficient_row(value, error, quantile)})
        return rows

    def summary(self, level: float = 0.95, names: Sequence[str] | None = None) -> str:
        """Returns the coefficients as a table of text, with their epsilon.

        Args:
            level: Probability with which an interval covers the coefficient.
            names: Names of the columns, as in `coefficients`.

        Raises:
            ConfigError: As for `coefficients`.
        """
        rows = self.coefficients(level, names)
        ends = f"{100 * level:g} % interval"
        odds = f"odds ratio, {ends}"
        table = [["", "coefficient", "standard error", ends, odds]]
        for row in rows:
            interval = f"{row['low']:.3f} to {row['high']:.3f}"
            ratio = f"{row['odds_ratio']:.3g}, {row['odds_low']:.3g} to {row['odds_high']:.3g}"
            table.append([row["name"], f"{row['coefficient']:.3f}", f"{row['standard_error']:.3f}", interval, ratio])
        widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
        lines = [f"Odds of {rows[0]['outcome']}; intervals include sampling and privacy noise"]
        for first, *others in table:
            cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *cells]))
        return "\n".join([*lines, str(self.spent_)])

    def plan_intervals(
        self,
        X: Rows,
        y: ArrayLike | None = None,
        *,
        n: int | None = None,
        level: float = 0.95,
        names: Sequence[str] | None = None,
    ) -> list[dict[str, Any]]:
        """Forecasts the intervals of `fit` with `intervals` from public or synthetic rows. Spends no epsilon.

        Args:
            X: Public or synthetic rows that are distributed like the private ones, `[m, n_features]`.
            y: The labels of these rows, of two classes. Without labels all probabilities count as 1/2, which gives the
                narrowest intervals.
            n: Number of private rows; by default the number of rows in X.
            level: Probability with which an interval covers the coefficient.
            names: Names of the columns, as in `coefficients`.

        Returns:
            A row for each coefficient and for the intercept: its name, the expected standard error, and the width of
            the interval; both are infinite if noise hides the coefficients.

        Raises:
            ConfigError: If a setting or an argument is out of range, or y does not have two classes.
        """
        quantile = _quantile(level)
        if n is None:
            n = len(cast(Any, y)) if y is not None else cast(Any, X).shape[0]
        if not (isinstance(n, Integral) and n >= 1):
            raise ConfigError("n", n, "must be the number of private rows, a whole number of at least 1")
        self._check_settings()
        # not validate_data: it would store the number of columns like a fit
        check: Any = check_array
        rows = check(X, accept_sparse="csr", dtype=np.float64)
        bound = _bound_on_rows(self.data_norm, rows.shape[1])
        inputs = _with_constant(rows, bound)
        params = np.zeros(inputs.shape[1])
        if y is not None:
            labels = np.unique(np.asarray(y))
            if len(labels) != 2:
                raise ConfigError("y", labels.tolist(), "must contain labels of exactly two classes, or be None")
            inverse_weight = math.inf
            if self.lam > 0:
                inverse_weight = 1 / (self.lam * len(inputs))
            plain = PublicRegression(C=inverse_weight, fit_intercept=False, max_iter=1000)
            params = plain.fit(inputs, np.asarray(y) == labels[1]).coef_[0]
        covariance = logistic_intervals.forecast(
            inputs,
            params,
            int(n),
            norm=_INPUT_NORM,
            epsilon=self.epsilon,
            delta=self.delta,
            lam=self.lam,
        )
        errors = np.sqrt(np.diag(covariance)) * _units(bound, rows.shape[1])
        known = getattr(X, "columns", None)
        forecasts = list[dict[str, Any]]()
        for name, error in zip(
            [*_column_names(names, known, rows.shape[1]), "intercept"], errors.tolist(), strict=True
        ):
            forecasts.append({"name": name, "standard_error": error, "width": 2 * quantile * error})
        return forecasts

    def decision_function(self, X: Rows) -> NDArray[np.float64]:
        """Returns scores `[n, n_classes]`, or `[n]` for the second of two classes. Rows are scaled as in `fit`."""
        check_is_fitted(self)
        with _explain_nan():
            rows: Any = validate_data(self, cast(Any, X), accept_sparse="csr", dtype=np.float64, reset=False)
        scores = _clip_rows(rows, self._bound()) @ self.coef_.T + self.intercept_
        if len(self.classes_) == 2:
            return scores[:, 0]
        return scores

    def predict(self, X: Rows) -> NDArray[Any]:
        """Returns labels `[n]`."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return self.classes_[(scores > 0).astype(int)]
        return self.classes_[scores.argmax(1)]

    def predict_proba(self, X: Rows) -> NDArray[np.float64]:
        """Returns probabilities `[n, n_classes]`."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.stack([expit(-scores), expit(scores)], 1)
        return softmax(scores, axis=1)

    def _fit_with_intervals(
        self,
        inputs: NDArray[np.float64],
        codes: NDArray[np.int64],
        weights: NDArray[np.float64],
        callers: FitCallers,
    ) -> PrivateLogisticRegression:
        """Fits coefficients with their covariance; see `logistic_intervals.estimate`."""
        if len(self.classes_) != 2:
            raise ConfigError(
                "intervals", True, f"needs exactly two classes, but there are {len(self.classes_)}: use intervals=False"
            )
        if self.class_weight is not None or (weights != 1).any():
            raise ConfigError(
                "intervals",
                True,
                "needs rows of equal weight: leave class_weight and sample_weight out, or use intervals=False",
            )
        if self.clip_norm is not None:
            raise ConfigError(
                "clip_norm",
                self.clip_norm,
                "cannot be combined with intervals, because clipping biases the coefficients: leave it out",
            )
        self._check_possible(*inputs.shape)
        result = logistic_intervals.estimate(
            inputs,
            codes,
            norm=_INPUT_NORM,
            epsilon=self.epsilon,
            delta=self.delta,
            lam=self.lam,
            steps=self.max_iter,
            seed=self._seed(inputs, codes.astype(np.float64)),
        )
        # undo the scaling of rows and of the constant feature
        units = _units(self._bound(), self.n_features_in_)
        params = result.params * units
        self.coef_ = params[None, :-1]
        self.intercept_ = params[-1:]
        with np.errstate(invalid="ignore"):
            self.covariance_ = np.outer(units, units) * result.covariance
        self.n_iter_ = result.steps
        self._set_spent(result.runs, callers)
        if self.data_norm is None and result.squared_norm - _CONSTANT**2 > _ALL_LONG:
            _warn_of_long_rows(self._bound(), stacklevel=4)
        if not np.isfinite(np.diag(self.covariance_)).all():
            warnings.warn(
                "the noise hides the coefficients, so the intervals are infinite. Use a larger epsilon, fewer "
                "columns, a smaller data_norm that still bounds the rows, or more rows; plan_intervals forecasts the "
                "widths without spending privacy budget",
                PromiseWarning,
                stacklevel=3,
            )
        return self

    def _check_possible(self, n: int, d: int) -> None:
        """Raises if n rows with d coefficients have infinite intervals for any data.

        Raises:
            ConfigError: If n is too small; the message contains the smallest sufficient number of rows.
        """
        budget = logistic_intervals.Budget.of(self.epsilon, self.delta, n, _INPUT_NORM)
        # the information of the intercept is at most this; the columns together have at most 1/4
        largest = min(_CONSTANT**2 / 4, 1 / (4 * (d - 1)))
        ratio = logistic_intervals.reliable_ratio(budget, d, largest)
        if ratio < 1:
            raise ConfigError(
                "epsilon",
                self.epsilon,
                f"is too small for intervals of {d} coefficients from {n} rows: they would be infinite for any "
                f"data. With this epsilon, at least {math.ceil(n / ratio)} rows are needed, and usually far more "
                "(plan_intervals forecasts the widths). Use a larger epsilon, fewer columns, or intervals=False",
            )

    def _set_spent(self, results: Sequence[Result], callers: FitCallers) -> None:
        """Sets `spent_`: the cost of this fit, and of the private steps before it in the same pipeline."""
        steps = callers.find_private_steps()
        runs = [*(step.result_ for step in steps), *results]
        spent = total(runs) if len(runs) > 1 else runs[0].spent
        facts = [*self._not_covered(callers, spent), *(fact for step in steps for fact in step.spent_.not_covered)]
        self.spent_ = replace(spent, not_covered=tuple(dict.fromkeys(facts)))

    def _not_covered(self, callers: FitCallers, spent: PrivacySpent) -> tuple[str, ...]:
        """Returns information that epsilon does not cover, and observers that can remove the noise."""
        reveals = list[str]()
        if callers.several is not None and self.epsilon != math.inf:
            reveals.append(f"the other fits of {callers.several}")
            warnings.warn(
                f"{callers.several} fits several times, and each fit spends epsilon={round_up(spent.epsilon)} on its "
                "rows, but spent_ covers only one fit. Choose settings on public or made-up rows, or with the command "
                "fedpriv tune, which counts the privacy cost of every trial",
                PromiseWarning,
                stacklevel=4,
            )
        if callers.learning:
            steps = ", ".join(callers.learning)
            reveals.append(f"what {steps} learned from the rows")
            warnings.warn(
                f"{steps} learns from private rows, which epsilon does not cover: use fedpriv.PublicEncoder, "
                "which takes ranges, replacements for missing values and categories from public knowledge",
                PromiseWarning,
                stacklevel=4,
            )
        if self.classes is None:
            reveals.append("the set of labels, read from y")
        if is_guessable(self.random_state):
            reveals.append("anyone who guesses random_state")
        return tuple(reveals)

    def _check_settings(self) -> None:
        """Raises an error for settings that training would reject later, under another name, or not at all."""
        if self.epsilon != math.inf:
            Privacy(epsilon=self.epsilon, delta=self.delta)
        if not (self.lam >= 0 and math.isfinite(self.lam)):
            raise ConfigError("lam", self.lam, "must be finite and not negative; 0 means no regularizer")
        if self.max_iter is not None and not (isinstance(self.max_iter, Integral) and self.max_iter >= 1):
            raise ConfigError("max_iter", self.max_iter, "must be a whole number of steps, at least 1, or None")
        if not (self.random_state is None or isinstance(self.random_state, Integral)):
            raise ConfigError("random_state", self.random_state, "must be an int, or None for a secret seed")

    @property
    def _counts_long_rows(self) -> bool:
        """True if a part of the budget is used to count the rows that are longer than the default `data_norm`."""
        return self.data_norm is None and self.epsilon != math.inf

    def _count_long_rows(self, rows: Rows, targets: NDArray[np.float64]) -> Result:
        """Warns if most rows are longer than `data_norm`, by a private count; returns the run that counted."""
        ratio = gaussian.compute_ratio(self.epsilon, self.delta) * math.sqrt(_COUNT_SHARE)
        # 1/2 for a long row, else -1/2
        signs = (row_norms(cast(Any, rows)) > self._bound() * (1 + 1e-9)) - 0.5
        privacy = Privacy(noise_multiplier=1 / ratio, delta=self.delta, clip=Clip(0.5))
        mean, result = logistic_intervals.private_mean(signs[:, None], privacy, self._seed(signs, targets))
        deviation = 1 / (ratio * len(signs))
        if float(mean[0]) > 3 * deviation:
            _warn_of_long_rows(self._bound(), stacklevel=4)
        return result

    def _privacy(self, steps: int) -> Privacy:
        """Returns the privacy settings for this number of gradient steps."""
        if self.epsilon == math.inf:
            return Privacy(noise_on="none", delta=self.delta)
        bound = self.clip_norm
        if bound is None:
            bound = _CLIP
        privacy = Privacy(epsilon=self.epsilon, delta=self.delta, clip=Clip(bound))
        if not self._counts_long_rows:
            return privacy
        ratio = gaussian.compute_ratio(self.epsilon, self.delta) * math.sqrt(1 - _COUNT_SHARE)
        return Privacy(noise_multiplier=math.sqrt(steps) / ratio, delta=self.delta, clip=Clip(bound))

    def _steps(self, n: int) -> int:
        """Returns the number of gradient steps for n rows; more where there is less noise."""
        if self.max_iter is not None:
            return int(self.max_iter)
        # T steps with momentum move by T^2 / 6 gradients, noise included: with mu n both errors have equal size
        if self.epsilon == math.inf:
            ratio = math.inf
        else:
            ratio = gaussian.compute_ratio(self.epsilon, self.delta)
        return round(min(max(math.sqrt(12 * ratio * n), 10), _MOST_STEPS))

    def _codes(self, labels: NDArray[Any]) -> NDArray[np.int64]:
        """Sets `classes_` and returns the index of each label in it, `[n]`."""
        if self.classes is None:
            self.classes_ = np.unique(labels)
        else:
            self.classes_ = np.unique(np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise ValueError(
                "y contains only one class; pass labels of at least two classes, or name all classes with classes="
            )
        codes = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        if (self.classes_[codes] != labels).any():
            raise ConfigError(
                "classes",
                self.classes,
                "must contain every label in y, but y has another label: add it to classes, or leave out rows with "
                "that label",
            )
        return codes

    def _class_weights(self) -> NDArray[np.float64]:
        """Returns the weight of each class, at most 1."""
        factors: Any = {} if self.class_weight is None else self.class_weight
        if not isinstance(factors, Mapping):
            fix = (
                "must be a mapping of labels to public weights, e.g. {0: 0.1, 1: 1}, since counts of labels are private"
            )
            raise ConfigError("class_weight", factors, fix)
        unknown = set(factors) - set(self.classes_.tolist())
        if unknown:
            raise ConfigError(
                "class_weight",
                factors,
                f"has weights for {unknown}, but the labels are {self.classes_.tolist()}: correct the labels",
            )
        weights = np.array([float(factors.get(label, 1)) for label in self.classes_.tolist()])
        if not (np.isfinite(weights).all() and (weights > 0).all()):
            raise ConfigError(
                "class_weight",
                factors,
                "must contain positive finite numbers: instead of weight 0 for a class, remove its rows from the data",
            )
        return weights / weights.max()

    def _model(self, n_inputs: int) -> tuple[nn.Module, Loss, float]:
        """Returns a linear model, the weighted loss of one row, and the largest smoothness of that loss."""
        # the largest squared norm of a row with the constant feature
        squared = _INPUT_NORM**2
        if len(self.classes_) == 2:
            return LogisticRegression(n_inputs), _weighted(logistic), squared / 4
        return SoftmaxRegression(n_inputs, len(self.classes_)), _weighted(cross_entropy), squared / 2

    def _seed(self, *data: NDArray[np.float64]) -> int | None:
        """Returns the secret seed of a fit; see `derive_seed`."""
        return derive_seed(self.random_state, self.get_params(), data)

    def _bound(self) -> float:
        """Returns `data_norm`; its default depends on the number of columns alone."""
        return _bound_on_rows(self.data_norm, self.n_features_in_)


def _check_numbers(rows: Any) -> None:  # noqa: ANN401 - whatever a user gives
    """Raises if a DataFrame has columns that are not numbers.

    Raises:
        DataError: If there is such a column; the message names the first one and an encoder for it.
    """
    if not hasattr(rows, "iloc") or not hasattr(rows, "dtypes") or not hasattr(rows, "columns"):
        return
    for column, dtype in zip(rows.columns, rows.dtypes, strict=True):
        if getattr(dtype, "kind", "O") not in "biufc":
            raise DataError(
                f"X: column {column} has type {dtype}, but columns must be numbers: encode its public categories with "
                "fedpriv.PublicEncoder(numbers={...}, categories={...}) as an earlier step of the pipeline"
            )


def coefficient_row(value: float, error: float, quantile: float) -> dict[str, float]:
    """Returns a coefficient with its interval, `quantile` standard errors to each side, and its odds ratio."""
    low = value - quantile * error
    high = value + quantile * error
    with np.errstate(over="ignore"):
        odds, odds_low, odds_high = (float(number) for number in np.exp([value, low, high]))
    return {
        "coefficient": value,
        "standard_error": error,
        "low": low,
        "high": high,
        "odds_ratio": odds,
        "odds_low": odds_low,
        "odds_high": odds_high,
    }


def _warn_of_long_rows(bound: float, stacklevel: int) -> None:
    """Warns that the columns were not scaled."""
    warnings.warn(
        f"most rows have an l2 norm above {bound:.3g}, the default data_norm for columns in [-1, 1], and were scaled "
        "down to that norm: divide the columns by public bounds, for example with fedpriv.PublicEncoder, or set "
        "data_norm. (This warning rests on a private query result, which epsilon covers)",
        PromiseWarning,
        stacklevel=stacklevel,
    )


def _quantile(level: float) -> float:
    """Returns half the width of an interval of this level in standard errors."""
    if not 0 < level < 1:
        raise ConfigError("level", level, "must be a probability between 0 and 1, e.g. 0.95")
    return float(ndtri((1 + level) / 2))


def _bound_on_rows(data_norm: float | None, n_columns: int) -> float:
    """Returns `data_norm`; its default depends on the number of columns alone."""
    if data_norm is None:
        return math.sqrt(n_columns)
    if not (np.isfinite(data_norm) and data_norm > 0):
        fix = "must be a positive bound on the l2 norm of rows, from public knowledge, e.g. sqrt(n_columns)"
        raise ConfigError("data_norm", data_norm, f"{fix} for columns in [-1, 1]")
    return data_norm


def _with_constant(rows: Rows, bound: float) -> NDArray[np.float64]:
    """Returns the rows scaled into the unit ball, with the constant feature, `[n, n_features + 1]`, dense."""
    short = _clip_rows(rows, bound) / bound
    columns: Any = [short, np.full((short.shape[0], 1), _CONSTANT)]
    if issparse(rows):
        return hstack(columns).toarray()
    return np.hstack(columns)


def _units(bound: float, n_columns: int) -> NDArray[np.float64]:
    """Returns factors that undo the scaling of rows and of the constant feature, `[n_columns + 1]`."""
    return np.append(np.full(n_columns, 1 / bound), _CONSTANT)


def _column_names(names: Sequence[str] | None, known: Iterable[str] | None, n_columns: int) -> list[str]:
    """Returns the names of the columns: the given names, the names in the DataFrame, or x0, x1, ..."""
    if names is None:
        if known is None:
            known = [f"x{index}" for index in range(n_columns)]
        return [str(name) for name in known]
    if len(names) != n_columns:
        raise ConfigError("names", list(names), f"must have one name for each of the {n_columns} columns")
    return [str(name) for name in names]


def _clip_rows(rows: Any, bound: float) -> Any:  # noqa: ANN401 - dense or sparse, as given
    """Returns rows, dense or sparse, of norm at most `bound`: longer ones are scaled down."""
    factors = bound / np.maximum(row_norms(rows), bound)
    if issparse(rows):
        return diags_array(factors) @ rows
    return rows * factors[:, None]


def _row_weights(sample_weight: ArrayLike | None, n: int) -> NDArray[np.float64]:
    """Validates the weights of n rows, by default 1; returns `[n]`."""
    if sample_weight is None:
        weights = np.ones(n)
    else:
        weights = column_or_1d(sample_weight, dtype=np.float64)
    if len(weights) != n:
        raise DataError(f"sample_weight has {len(weights)} numbers for {n} rows: pass one number per row")
    if not ((weights >= 0) & (weights <= 1)).all():
        raise DataError(
            "sample_weight has numbers outside [0, 1], so one row could have more influence than epsilon "
            "covers: divide all weights by a public bound on the largest weight"
        )
    return weights


def _weighted(per_example: PerExampleLoss) -> Loss:
    """Returns each row's loss times its weight; targets `[n, 2]` are a class number and a weight."""

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return targets[:, 1] * per_example(outputs, targets[:, 0].long())

    return Loss(losses)


@contextmanager
def _explain_nan() -> Generator[None]:
    """Replaces scikit-learn's advice on missing values, because an imputer would compute its values without noise.

    Raises:
        DataError: If a value is NaN or infinite.
    """
    try:
        yield
    except ValueError as error:
        what = str(error).splitlines()[0].rstrip(".:")
        if "NaN" not in what and "infinity" not in what:
            raise
        fix = "replace such values by public ones, e.g. with fedpriv.PublicEncoder; epsilon does not cover an imputer"
        raise DataError(f"{what}: {fix}") from None
