"""Who chooses the next settings: optuna's samplers, told of the scores so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedpriv.errors import ConfigError
from fedpriv.tuning.settings import SearchSettings
from fedpriv.tuning.space import Space, Value

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

Past = Sequence[tuple[dict[str, Value], float | None]]


def choose(space: Space, settings: SearchSettings, past: Past, seed: int) -> dict[str, Value]:
    """The next trial's settings: a function of the trials so far and of a seed, so that a killed search repeats it.

    Args:
        space: What may be chosen.
        settings: Of the search.
        past: What was chosen before, and the scores.
        seed: Of this choice.

    Raises:
        ConfigError: optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError("search", "optuna", "is not installed: pip install 'fedpriv[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler: BaseSampler = optuna.samplers.RandomSampler(seed)
    if settings.sampler == "tpe":
        sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(sampler=sampler, direction="maximize" if settings.maximizes else "minimize")
    known = space.distributions
    for chosen, score in past:
        if score is None:
            state = optuna.trial.TrialState.FAIL
        else:
            state = optuna.trial.TrialState.COMPLETE
        study.add_trial(optuna.trial.create_trial(state=state, params=chosen, distributions=known, value=score))
    return dict(study.ask(fixed_distributions=known).params)
