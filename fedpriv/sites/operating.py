"""Services of a running site: its log as JSON lines, and the metrics that its owner has enabled."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from fedpriv.sites.operator_log import write_log
from fedpriv.sites.prometheus import serve_metrics
from fedpriv.sites.site import Site

_LOG = logging.getLogger(__name__)


@contextmanager
def run_operator_services(site: Site) -> Generator[dict[str, str]]:
    """Writes the site's log and serves its metrics until the block ends, as set in `site.yaml`.

    Yields:
        Their locations, for the owner to read.

    Raises:
        FedprivError: If metrics cannot be served.
    """
    settings = site.settings
    with (
        write_log(site.path, settings.log) as log,
        serve_metrics(settings.metrics, settings.name, site.activity.totals, site.progress) as address,
    ):
        rows = {"log": str(log)}
        if address is not None:
            rows["metrics"] = address
        _LOG.info("started", extra={"facts": {"event": "started", "plans": len(site.plans)}})
        try:
            yield rows
        finally:
            _LOG.info("stopped", extra={"facts": {"event": "stopped"}})
