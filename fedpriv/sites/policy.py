"""The policy of a site: which plans its owner is willing to accept at all, and at which hours the site answers."""

from __future__ import annotations

from datetime import UTC, datetime, time
from typing import Annotated

from pydantic import AfterValidator

from fedpriv.clients import PublicDataInfo
from fedpriv.config import Config
from fedpriv.config.base import Section
from fedpriv.errors import ConfigError
from fedpriv.settings import Count, Positive
from fedpriv.sites.model_size import check_model_size
from fedpriv.sites.resolved_plan import ResolvedPlan


def _check_window(text: str) -> str:
    start, _, end = text.partition("-")
    try:
        if time.fromisoformat(start) == time.fromisoformat(end):
            raise ValueError
    except ValueError:
        raise ValueError(f"{text!r} is not a time window: write '20:00-06:00'; hours are UTC") from None
    return text


Window = Annotated[str, AfterValidator(_check_window)]


class SitePolicy(Section):
    """What a site accepts and when it answers, beyond its budget. A field that is left out allows everything.

    Attributes:
        algorithms: Names of the strategies that a plan may have.
        models: Names of the models that a plan may have.
        constraints: Names of the constraints, whose values on the site's data a plan may ask for.
        max_parameters: Largest number of parameters of a model, frozen ones included, and of values that a round sends
            to or from the site.
        max_rounds: Largest number of rounds.
        max_epsilon: The most that a plan may cost.
        min_noise_multiplier: The least noise that a plan may have, as its settings state it.
        proposers: Certificate names (common names) of servers whose proposals are taken over the wire. Nobody's, if it
            is left out.
        pace: Seconds. A reply leaves a whole multiple of them after its question came, so that its time does not tell
            how large a secret batch was. More than any reply takes, and less than the server waits.
        hours: Windows of time (UTC) in which questions are answered, such as `20:00-06:00`.
    """

    algorithms: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    constraints: tuple[str, ...] | None = None
    max_parameters: Count | None = None
    max_rounds: Count | None = None
    max_epsilon: Positive | None = None
    min_noise_multiplier: Positive | None = None
    proposers: tuple[str, ...] = ()
    pace: Positive | None = None
    hours: tuple[Window, ...] | None = None

    def check_settings(self, config: Config, outline: PublicDataInfo) -> None:
        """Checks what a plan's settings say, before anything is made of them; takes no memory for the model.

        Args:
            config: The settings.
            outline: Public facts about the data of all sites.

        Raises:
            ConfigError: the policy does not allow it; the error names the field of the policy.
        """
        names = {
            "algorithms": [config.strategy.name],
            "models": [config.model.name],
            "constraints": [constraint.name for constraint in config.problem.constraints],
        }
        for field, values in names.items():
            allowed = getattr(self, field)
            for value in values:
                if allowed is not None and value not in allowed:
                    raise ConfigError(f"policy.{field}", value, f"the owner allows only {', '.join(allowed) or 'none'}")
        self._check_largest("max_rounds", config.rounds)
        if self.max_parameters is not None:
            why = "the owner allows at most"
            check_model_size(config, outline, self.max_parameters, "policy.max_parameters", why)

    def check(self, terms: ResolvedPlan) -> None:
        """Checks a plan before it is accepted.

        Raises:
            ConfigError: the policy does not allow it; the error names the field of the policy.
        """
        self._check_largest("max_parameters", max(terms.widths))
        self._check_largest("max_epsilon", terms.plan.spent().epsilon)
        least = self.min_noise_multiplier
        noise = terms.plan.privacy.noise_multiplier
        if least is not None and (noise is None or noise < least):
            raise ConfigError("policy.min_noise_multiplier", noise, f"the owner requires at least {least:g}")

    def _check_largest(self, field: str, value: float) -> None:
        limit = getattr(self, field)
        if limit is not None and value > limit:
            raise ConfigError(f"policy.{field}", f"{value:g}", f"the owner allows at most {limit:g}")

    def is_open(self, now: datetime | None = None) -> bool:
        """Returns whether questions are answered now, or at another moment with a time zone."""
        if self.hours is None:
            return True
        moment = (now or datetime.now(UTC)).astimezone(UTC).time()
        for window in self.hours:
            start, _, end = window.partition("-")
            opens = time.fromisoformat(start)
            closes = time.fromisoformat(end)
            if opens < closes:
                is_inside = opens <= moment < closes
            else:  # over midnight
                is_inside = moment >= opens or moment < closes
            if is_inside:
                return True
        return False
