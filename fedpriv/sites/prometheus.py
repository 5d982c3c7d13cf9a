"""Serves public counts of a running site to Prometheus, if enabled, with the extra `fedpriv[metrics]`."""

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
    """Address at which counts are served, without encryption and to any client.

    Attributes:
        port: Port; 0 for a free one.
        host: Address of this machine; 127.0.0.1 is reachable from this machine only.
    """

    port: Annotated[int, Field(ge=0, le=65535)]
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class PlanProgress:
    """Public facts of a plan that a site has accepted.

    Attributes:
        plan: Hash of the plan.
        answered_rounds: Number of the last round with a reply of the site, counted from 1; 0 for none.
        rounds: Number of rounds of the plan.
    """

    plan: str
    answered_rounds: int
    rounds: int


class _Collector:
    """Computes the metrics at the time of each request."""

    def __init__(self, site: str, totals: Callable[[], Totals], progress: Callable[[], list[PlanProgress]]) -> None:
        self._site = site
        self._totals = totals
        self._progress = progress

    def collect(self) -> Iterator[Any]:
        """Yields all metrics; see prometheus_client."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        totals = self._totals()
        answers = CounterMetricFamily("fedpriv_answers", "Requests answered since the start.", labels=["site", "plan"])
        for plan, count in totals.answered.items():
            answers.add_metric([self._site, plan[:32]], count)
        yield answers
        refusals = CounterMetricFamily("fedpriv_refusals", "Requests refused since the start.", labels=["site", "code"])
        for code, count in totals.refused.items():
            refusals.add_metric([self._site, code], count)
        yield refusals
        last = GaugeMetricFamily(
            "fedpriv_last_answer_timestamp_seconds", "Time of the last reply; 0 if there was none.", labels=["site"]
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
def serve_metrics(
    settings: MetricsSettings | None,
    site: str,
    totals: Callable[[], Totals],
    progress: Callable[[], list[PlanProgress]],
) -> Generator[str | None]:
    """Serves counts until the block ends; yields the address, or None if the settings name none.

    The counts contain only facts that the server of a federation learns anyway. The budget, its spent part, and the
    time of a reply are not served.

    Args:
        settings: The address.
        site: Name of the site.
        totals: Returns the counts since the start.
        progress: Returns the progress of each plan.

    Raises:
        FedprivError: If the extra is not installed, or the address cannot be used.
    """
    if settings is None:
        yield None
        return
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise FedprivError(
            "the setting metrics in site.yaml needs prometheus-client: pip install 'fedpriv[metrics]', or remove the "
            "setting"
        ) from None
    registry = CollectorRegistry()
    registry.register(_Collector(site, totals, progress))
    try:
        server, thread = start_http_server(settings.port, settings.host, registry)
    except OSError as error:
        address = f"{settings.host}:{settings.port}"
        raise FedprivError(
            f"metrics cannot be served at {address} ({error.strerror}); set another host or port in site.yaml"
        ) from error
    try:
        yield f"http://{settings.host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
