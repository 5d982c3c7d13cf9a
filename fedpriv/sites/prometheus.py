"""Serves public counts of a running site to Prometheus: the extra `fedpriv[metrics]`, off unless the owner sets it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from fedpriv.config.base import Section
from fedpriv.errors import FedprivError
from fedpriv.sites.activity import Totals


class MetricsSettings(Section):
    """Where counts are served, without encryption and to whoever asks.

    Attributes:
        port: Port; 0 for a free one.
        host: Address of this machine; only this machine can ask 127.0.0.1.
    """

    port: Annotated[int, Field(ge=0, le=65535)]
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class PlanProgress:
    """Public facts of a plan that a site has accepted.

    Attributes:
        plan: Hash of the plan.
        answered_rounds: Number of the last round that the site has answered, counted from 1; 0 for none.
        rounds: Number of rounds of the plan.
    """

    plan: str
    answered_rounds: int
    rounds: int


class _Collector:
    """Makes the metrics at the moment at which they are asked for."""

    def __init__(self, site: str, totals: Callable[[], Totals], progress: Callable[[], list[PlanProgress]]) -> None:
        self._site = site
        self._totals = totals
        self._progress = progress

    def collect(self) -> Iterator[Any]:
        """Yields all metrics; see prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        totals = self._totals()
        answers = CounterMetricFamily("fedpriv_answers", "Questions answered since the start.", labels=["site", "plan"])
        for plan, count in totals.answered.items():
            answers.add_metric([self._site, plan[:32]], count)
        yield answers
        refusals = CounterMetricFamily(
            "fedpriv_refusals", "Questions rejected since the start.", labels=["site", "code"]
        )
        for code, count in totals.refused.items():
            refusals.add_metric([self._site, code], count)
        yield refusals
        last = GaugeMetricFamily(
            "fedpriv_last_answer_timestamp_seconds", "Time of the last answer; 0 for never.", labels=["site"]
        )
        last.add_metric([self._site], totals.last_answer)
        yield last
        rounds = GaugeMetricFamily(
            "fedpriv_answered_rounds", "Last answered round of each plan.", labels=["site", "plan"]
        )
        planned = GaugeMetricFamily("fedpriv_planned_rounds", "Rounds of each plan.", labels=["site", "plan"])
        for plan in self._progress():
            rounds.add_metric([self._site, plan.plan[:32]], plan.answered_rounds)
            planned.add_metric([self._site, plan.plan[:32]], plan.rounds)
        yield rounds
        yield planned


@contextmanager
def serving_metrics(
    settings: MetricsSettings | None,
    site: str,
    totals: Callable[[], Totals],
    progress: Callable[[], list[PlanProgress]],
) -> Generator[str | None]:
    """Serves counts until the block ends; yields the address, or None where the settings name none.

    What is served is what the server of a federation learns anyway. The budget, what is spent of it, and how long an
    answer took are not.

    Args:
        settings: Where.
        site: Name of the site.
        totals: Returns the counts since the start.
        progress: Returns the progress of each plan.

    Raises:
        FedprivError: the extra is not installed, or the address cannot be used.
    """
    if settings is None:
        yield None
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise FedprivError(
            "metrics in site.yaml need prometheus-client: pip install 'fedpriv[metrics]', or leave them out"
        ) from None
    registry = CollectorRegistry()
    registry.register(_Collector(site, totals, progress))
    try:
        server, thread = start_http_server(settings.port, settings.host, registry)
    except OSError as error:
        address = f"{settings.host}:{settings.port}"
        raise FedprivError(f"metrics cannot be served at {address} ({error.strerror}); use another port") from error
    try:
        yield f"http://{settings.host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
