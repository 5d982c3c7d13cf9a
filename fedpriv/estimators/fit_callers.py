"""Finds the objects of scikit-learn that called `fit`: searches, which fit many times, and pipelines with other steps.

An estimator counts the epsilon of one fit on the rows that it receives. Its caller may read the rows in other ways and
fit again, so `fit` searches for its callers in the frames of the stack.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

from sklearn.pipeline import Pipeline

from fedpriv.estimators.private_step import PrivateStep
from fedpriv.estimators.public_encoder import learning_steps, private_steps

_SEVERAL_FITS = (
    "calibration",
    "ensemble",
    "feature_selection",
    "inspection",
    "model_selection",
    "multiclass",
    "multioutput",
    "semi_supervised",
)
"""Modules of scikit-learn that fit clones of an estimator, each on rows of the same data."""


@dataclass(frozen=True)
class FitCallers:
    """The callers of `fit`.

    Attributes:
        several: The object or function that makes several fits, e.g. `GridSearchCV`; None if there is none.
        learning: Steps of the pipelines around the estimator that learn from rows, e.g. `scaler (StandardScaler)`.
        pipelines: The pipelines around the estimator.
    """

    several: str | None
    learning: tuple[str, ...]
    pipelines: tuple[Pipeline, ...]

    def find_private_steps(self) -> list[PrivateStep]:
        """Returns the fitted steps before the last estimator that have a guarantee of their own, e.g. `PrivateScaler`.

        Raises:
            PrivacyError: If the cost of such a step is unknown.
        """
        steps = {id(step): step for pipeline in self.pipelines for step in private_steps(pipeline)}
        return list(steps.values())


def find_fit_callers() -> FitCallers:
    """Returns the objects of scikit-learn on the stack."""
    several: str | None = None
    learning = list[str]()
    pipelines = list[Pipeline]()
    frame = inspect.currentframe()
    while frame is not None:
        package, _, module = frame.f_globals.get("__name__", "").partition(".")
        if package == "sklearn":
            owner = frame.f_locals.get("self")
            if isinstance(owner, Pipeline):
                learning += [name for name in learning_steps(owner) if name not in learning]
                pipelines.append(owner)
            if module.partition(".")[0] in _SEVERAL_FITS:
                # the outermost one; a function such as cross_val_score has no self
                several = frame.f_code.co_name if owner is None else type(owner).__name__
        frame = frame.f_back
    return FitCallers(several, tuple(learning), tuple(pipelines))
