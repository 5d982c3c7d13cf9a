"""The policy of a site: the plans that its owner is willing to accept, and the hours in which the site replies."""

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
from fedpriv.sites.statistics_policy import StatisticsPolicy, check_allowed
from fedpriv.statistics.description import JoinedStatistics


def _check_window(text: str) -> str:
    start, _, end = text.partition("-")
    try:
        if time.fromisoformat(start) == time.fromisoformat(end):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time window with a start and another end: write, for example, '20:00-06:00' (hours in "
            "UTC)"
        ) from None
    return text


Window = Annotated[str, AfterValidator(_check_window)]


class SitePolicy(Section):
    """Limits on the plans and reply times of a site, beyond its budget. A field that is omitted allows everything.

    Attributes:
        algorithms: Names of the strategies that a plan may use.
        models: Names of the models that a plan may use.
        constraints: Names of the constraints that a plan may evaluate on the site's data.
        max_parameters: Largest number of parameters of a model, including frozen ones, and of values that a round sends
            to or from the site.
        max_rounds: Largest number of rounds.
        max_epsilon: Largest privacy cost of a plan.
        min_noise_multiplier: Smallest noise multiplier of a plan, as its settings state it.
        statistics: Limits on plans that release statistics, in addition to the others. None, if omitted.
        proposers: Certificate names (common names) of servers that may propose plans over the network. None, if
            omitted.
        pad_seconds: Seconds. A reply is sent a whole multiple of this time after its request arrived, so that its time
            does not reveal the size of a secret batch. Must be more than any reply takes, and less than the server
            waits.
        hours: Windows of time (UTC) in which the site replies to requests, such as `20:00-06:00`.
    """

    algorithms: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    constraints: tuple[str, ...] | None = None
    max_parameters: Count | None = None
    max_rounds: Count | None = None
    max_epsilon: Positive | None = None
    min_noise_multiplier: Positive | None = None
    statistics: StatisticsPolicy | None = None
    proposers: tuple[str, ...] = ()
    pad_seconds: Positive | None = None
    hours: tuple[Window, ...] | None = None

    def check_settings(self, config: Config, outline: PublicDataInfo) -> None:
        """Checks a plan's settings before any object is created from them; allocates no memory for the model.

        Args:
            config: The settings.
            outline: Public facts about the data of all sites.

        Raises:
            ConfigError: If the policy does not allow it; the error names the field of the policy.
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
                    fix = f"the site's owner allows only {', '.join(allowed)}"
                    if not allowed:
                        fix = "the site's owner allows none"
                    raise ConfigError(f"policy.{field}", value, fix)
        self._check_largest("max_rounds", config.rounds)
        if self.max_parameters is not None:
            why = "the site's owner allows at most"
            check_model_size(config, outline, self.max_parameters, "policy.max_parameters", why)

    def check_statistics(self, statistics: JoinedStatistics) -> None:
        """Checks a plan's statistics before its privacy cost is computed.

        Raises:
            ConfigError: If the policy does not allow them; the error names the field of the policy.
        """
        check_allowed(self.statistics, statistics)

    def check(self, resolved_plan: ResolvedPlan) -> None:
        """Checks a plan before it is accepted.

        Raises:
            ConfigError: If the policy does not allow it; the error names the field of the policy.
        """
        if resolved_plan.statistics is not None:
            check_allowed(self.statistics, resolved_plan.statistics).check_epsilon(resolved_plan.plan.spent().epsilon)
        self._check_largest("max_parameters", max(resolved_plan.widths))
        self._check_largest("max_epsilon", resolved_plan.plan.spent().epsilon)
        least = self.min_noise_multiplier
        noise = resolved_plan.plan.privacy.noise_multiplier
        if least is not None and (noise is None or noise < least):
            raise ConfigError("policy.min_noise_multiplier", noise, f"the site's owner requires at least {least:g}")

    def _check_largest(self, field: str, value: float) -> None:
        limit = getattr(self, field)
        if limit is not None and value > limit:
            raise ConfigError(f"policy.{field}", f"{value:g}", f"the site's owner allows at most {limit:g}")

    def is_open(self, now: datetime | None = None) -> bool:
        """Returns True if the site replies to requests now, or at another time with a time zone."""
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
