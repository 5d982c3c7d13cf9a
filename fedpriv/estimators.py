"""Private learning with scikit-learn's interface: `PrivateLogisticRegression(epsilon=1.0).fit(X, y)`."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from numbers import Integral
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn
from torch.utils.data import TensorDataset

from fedpriv.client import make_clients
from fedpriv.compute import Compute
from fedpriv.errors import ConfigError
from fedpriv.models import SoftmaxRegression
from fedpriv.privacy.clipping import Clip
from fedpriv.privacy.settings import Privacy
from fedpriv.strategies.erm import gradient_descent
from fedpriv.strategies.proximal import L2
from fedpriv.training import train

_GUESSABLE = 2**64


class PrivateLogisticRegression(ClassifierMixin, BaseEstimator):
    """Multinomial logistic regression by private gradient descent with momentum (DP-GD; Wang, Ye, Xu, 2017).

    Guarantee: the fitted coefficients are (epsilon, delta)-differentially private, unit sample, relation replace-one,
    with the number of rows, the number of columns and the set of classes public. It does not cover what you do with the
    data elsewhere: choose parameters on other data, scale columns by public constants instead of their own means and
    deviations, and give an encoder of text columns the categories (scikit-learn's `OneHotEncoder(categories=...)`).

    Args:
        epsilon: Privacy of the whole fit.
        delta: Failure probability; well below one over the number of rows.
        data_norm: A public bound on the l2 norm of rows: rows are divided by it, and longer ones scaled down to norm 1.
            None is the square root of the number of columns, for columns in [-1, 1]. A bound closer to the rows
            learns more: one-hot columns of one variable count as one column.
        clip_norm: Bound on the l2 norm of one row's gradient. It is at most 2, so 2 clips nothing; 1 halves the noise.
        lam: Weight of the l2 regulariser `lam/2 ||w||^2`, on rows of norm at most 1; bias included. 0 is none.
        max_iter: Number of gradient steps; each costs privacy, so more is not better.
        classes: The labels, sorted; None takes those in `y`, which reveals which labels there are: `spent_` says so.
        random_state: An int repeats the fit (whoever knows it can remove the noise, and `spent_` says so of one below
            2^64, which can be guessed); None draws a secret seed.

    Attributes:
        classes_: Labels, `[n_classes]`.
        coef_: `[n_classes, n_features]`, for rows as given (of norm at most `data_norm`).
        intercept_: `[n_classes]`.
        n_features_in_: Number of columns.
        n_iter_: Steps made.
        spent_: What the fit spent: epsilon with its delta, unit, relation and accountant.

    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(2000, centers=[[-2, 0], [2, 0]], random_state=0)
    >>> model = PrivateLogisticRegression(epsilon=1.0, data_norm=5.0, random_state=0).fit(X, y)
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
        clip_norm: float = 1.0,
        lam: float = 1e-3,
        max_iter: int = 50,
        classes: ArrayLike | None = None,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.data_norm = data_norm
        self.clip_norm = clip_norm
        self.lam = lam
        self.max_iter = max_iter
        self.classes = classes
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> PrivateLogisticRegression:
        """Fit to rows `[n, n_features]` and labels `[n]`.

        Raises:
            ValueError: parameters or data that cannot be used.
        """
        checked: Any = validate_data(self, cast(Any, X), cast(Any, y), dtype=np.float64)
        rows, labels = checked
        check_classification_targets(labels)
        self._check_settings()
        bound = self._bound()
        self.classes_ = np.unique(labels) if self.classes is None else np.unique(np.asarray(self.classes))
        if len(self.classes_) < 2:
            raise ValueError("y holds one class only; give at least two classes, or name them with classes=")
        codes = np.searchsorted(self.classes_, labels).clip(max=len(self.classes_) - 1)
        if (self.classes_[codes] != labels).any():
            raise ConfigError("classes", self.classes, "y holds a label that is not among them")
        data = TensorDataset(torch.from_numpy(self._scaled(rows)), torch.from_numpy(codes))
        model = SoftmaxRegression(rows.shape[1] + 1, len(self.classes_))
        # a row and its constant have norm at most sqrt(2), and softmax is 1/2-smooth in its scores: smoothness 1
        strategy = gradient_descent(1.0, L2(self.lam) if self.lam else None, momentum=0.9, average=4.0)
        found = train(
            make_clients(model, nn.CrossEntropyLoss(), [data]),
            strategy,
            Privacy(epsilon=self.epsilon, delta=self.delta, clip=Clip(self.clip_norm)),
            rounds=self.max_iter,
            secret_seed=self._seed(rows, codes),
            compute=Compute(backend="linear", device="cpu", dtype="float64"),
        )
        weights = found.params.view(len(self.classes_), -1).numpy()
        self.coef_, self.intercept_ = weights[:, :-1] / bound, weights[:, -1].copy()
        self.n_iter_, self.spent_ = found.rounds, replace(found.spent, not_covered=self._not_covered())
        return self

    def _not_covered(self) -> tuple[str, ...]:
        """What else the fit tells of the data, and against whom its noise does not help."""
        labels = () if self.classes is not None else ("the set of labels, read from y",)
        guessable = self.random_state is not None and abs(self.random_state) < _GUESSABLE
        return (*labels, *(("whoever guesses random_state",) if guessable else ()))

    def _check_settings(self) -> None:
        """What the parts that are built from these settings would refuse under another name, or not at all."""
        if not self.lam >= 0:
            raise ConfigError("lam", self.lam, "must not be negative; 0 is no regulariser")
        if not (isinstance(self.max_iter, Integral) and self.max_iter >= 1):
            raise ConfigError("max_iter", self.max_iter, "a whole number of steps, at least 1")
        if not (self.random_state is None or isinstance(self.random_state, Integral)):
            raise ConfigError("random_state", self.random_state, "an int, or None for a secret seed")

    def _seed(self, rows: NDArray[np.float64], codes: NDArray[np.int64]) -> int | None:
        """A seed of the parameters and the data: two fits that differ in either would share their noise.

        The difference of two such answers has no noise at all, and cross-validation or a grid search asks for just
        that.
        """
        if self.random_state is None:
            return None
        found = hashlib.blake2b(repr(sorted(self.get_params().items())).encode(), digest_size=16)
        for values in (rows, codes):
            found.update(np.ascontiguousarray(values).tobytes())
        return int.from_bytes(found.digest(), "little")

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Scores `[n, n_classes]`, or `[n]` for the second of two classes. Long rows are scaled down as in `fit`."""
        check_is_fitted(self)
        rows: Any = validate_data(self, cast(Any, X), dtype=np.float64, reset=False)
        scores = self._scaled(rows)[:, :-1] @ self.coef_.T * self._bound() + self.intercept_
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels `[n]`."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities `[n, n_classes]`."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.stack([np.zeros_like(scores), scores], 1)
        scores = np.exp(scores - scores.max(1, keepdims=True))
        return scores / scores.sum(1, keepdims=True)

    def _bound(self) -> float:
        """`data_norm`, of settings and the number of columns alone."""
        if self.data_norm is None:
            return math.sqrt(self.n_features_in_)
        if not (np.isfinite(self.data_norm) and self.data_norm > 0):
            fix = "give a positive bound on the l2 norm of rows that does not come from the data, e.g. sqrt(n_columns)"
            raise ConfigError("data_norm", self.data_norm, f"{fix} for columns in [-1, 1]")
        return self.data_norm

    def _scaled(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows in the unit ball with a constant beside them, `[n, n_features + 1]`."""
        # the largest entry first, so that squares of very long rows do not overflow
        largest = np.abs(rows).max(1, keepdims=True).clip(min=np.finfo(float).tiny)
        norms = largest * np.linalg.norm(rows / largest, axis=1, keepdims=True)
        return np.hstack([rows / np.maximum(norms, self._bound()), np.ones((len(rows), 1))])
