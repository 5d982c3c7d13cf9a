"""Commands for the operator of a site: `fedpriv site status`, `log`, `approve` and `refuse`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

site = typer.Typer()
federate = typer.Typer()

SiteFolder = Annotated[Path, typer.Argument(metavar="SITE", help="Folder of the site.")]
Fingerprint = Annotated[
    str, typer.Argument(metavar="FINGERPRINT", help="Fingerprint of the plan, as compared among the owners.")
]


@site.command("status")
def site_status(
    folder: SiteFolder,
    watch: Annotated[bool, typer.Option("--watch", help="Update the output every few seconds, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", help="Seconds between updates, with --watch.", min=0.1)
    ] = 2.0,
) -> None:
    """Show budget, plans, proposals and the last refusals of a site, also while it is running."""
    from fedpriv.cli.printing import out, print_tables
    from fedpriv.sites import site_status as status

    while True:
        tables = status.site_status(folder)
        if watch:
            out.clear()
        print_tables({heading: dict(rows) for heading, rows in tables.items()})
        if not watch:
            return
        time.sleep(interval)


@site.command("log")
def site_log(
    folder: SiteFolder,
    lines: Annotated[int, typer.Option("--lines", help="Number of last lines to print.", min=1)] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON lines of the file.")] = False,
) -> None:
    """Show the log of a site, `log.jsonl` in its folder, as lines for people. Times are UTC."""
    from fedpriv.sites.operator_log import format_record, read_lines
    from fedpriv.sites.site_settings import require_site

    require_site(folder)
    for line in read_lines(folder, lines):
        if as_json:
            typer.echo(json.dumps(line))
        else:
            typer.echo(format_record(line))


@site.command("approve")
def site_approve(folder: SiteFolder, fingerprint: Fingerprint) -> None:
    """Accept a plan that arrived over the network. A running site accepts it when it receives its next message.

    Proposals cannot contain a plan that names user code: join such a plan with `fedpriv site join --allow-plugins`.
    """
    from fedpriv.cli.printing import print_rows
    from fedpriv.errors import format_count
    from fedpriv.sites.federation_plan import FederationPlan
    from fedpriv.sites.proposals import ProposalBox
    from fedpriv.sites.resolved_plan import ResolvedPlan
    from fedpriv.sites.site_settings import SETTINGS, SiteSettings, require_site

    require_site(folder)
    box = ProposalBox(folder)
    text = box.named(fingerprint).text
    plan = FederationPlan.read(text)
    resolved_plan = ResolvedPlan.of(plan)
    SiteSettings.read(folder / SETTINGS).policy.check(resolved_plan)
    box.decide(fingerprint, "approved")
    print_rows(
        {
            "approved": plan.fingerprint,
            "asks": f"{resolved_plan.strategy.name}, {format_count(resolved_plan.rounds, 'round')}",
            "costs": str(resolved_plan.plan.spent()),
            "sites": ", ".join(card.name for card in plan.cards),
            "next": f"start fedpriv site run {folder} if it is not running; then: fedpriv site status {folder}",
        }
    )


@site.command("refuse")
def site_refuse(
    folder: SiteFolder,
    fingerprint: Fingerprint,
    reason: Annotated[str, typer.Option("--reason", help="Reason, for your own records; it stays at the site.")] = "",
) -> None:
    """Refuse a plan that arrived over the network; its sender receives the refusal without a reason."""
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.proposals import ProposalBox
    from fedpriv.sites.site_settings import require_site

    require_site(folder)
    proposal = ProposalBox(folder).decide(fingerprint, "refused", reason)
    print_rows({"refused": proposal.fingerprint})


@federate.command("propose")
def federate_propose(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the federation.")],
    listen: Annotated[
        list[str],
        typer.Option("--listen", metavar="ADDRESS", help="Address for sites: tls/0.0.0.0:7447, as for `run`."),
    ],
    keys: Annotated[Path, typer.Option("--keys", metavar="DIR", help="Folder with the server's certificate.")],
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for sites to connect.", min=1)] = 30.0,
) -> None:
    """Send a plan to its sites, where it waits for their owners; shows the response of each site."""
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.federation_plan import FederationPlan
    from fedpriv.sites.operator_log import print_log
    from fedpriv.sites.over_zenoh.proposing import offer_over_zenoh
    from fedpriv.sites.over_zenoh.refusals import log_refused_connections
    from fedpriv.sites.recording import PLAN

    plan = FederationPlan.read((folder / PLAN).read_text(encoding="utf-8"))
    with print_log(sys.stderr), log_refused_connections():
        words = offer_over_zenoh(plan, listen, keys, wait)
    print_rows({"fingerprint": plan.fingerprint} | dict(words))
