"""Chooses the next settings with the samplers of optuna, from the scores so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpriv.errors import ConfigError
from fedpriv.tuning.settings import SearchSettings
from fedpriv.tuning.space import Space, Value

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

Past = Sequence[tuple[dict[str, Value], float | None]]


def choose_settings(space: Space, settings: SearchSettings, past: Past, seed: int) -> dict[str, Value]:
    """Chooses the settings of the next trial.

    They are a function of the trials so far and of a seed, so that a resumed search chooses the same settings.

    Args:
        space: The fields and their values.
        settings: The settings of the search.
        past: The chosen settings and the score of each earlier trial; None for a score that is not finite.
        seed: The seed of this choice.

    Raises:
        ConfigError: If optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            "search", "optuna", "is required by searches and is not installed: pip install 'fedpriv[tune]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler: BaseSampler = optuna.samplers.RandomSampler(seed)
    if settings.sampler == "tpe":
        sampler = optuna.samplers.TPESampler(seed=seed)
    if settings.maximizes:
        direction = "maximize"
    else:
        direction = "minimize"
    study = optuna.create_study(sampler=sampler, direction=direction)
    distributions = space.distributions
    for chosen, score in past:
        if score is None:
            state = optuna.trial.TrialState.FAIL
        else:
            state = optuna.trial.TrialState.COMPLETE
        study.add_trial(optuna.trial.create_trial(state=state, params=chosen, distributions=distributions, value=score))
    return dict(study.ask(fixed_distributions=distributions).params)
