"""`fedpriv site peer`: a site's own node in a plan on a graph, without a server."""

from __future__ import annotations

import math
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from fedpriv.cli.federating import TLS, SiteFolder
from fedpriv.cli.options import AllowPlugins
from fedpriv.errors import ConfigError

if TYPE_CHECKING:
    from fedpriv.sites.federation_plan import FederationPlan
    from fedpriv.sites.over_zenoh.peers import PeersOverZenoh
    from fedpriv.sites.peers.neighbours import Patience
    from fedpriv.sites.peers.node_report import NeighbourReport, NodeRound
    from fedpriv.sites.site import Site

site = typer.Typer()

_ANSWER = 5.0  # seconds at most for a neighbour's reply, which it computes from data that it already has


@site.command("peer")
def site_peer(
    folder: SiteFolder,
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", metavar="ADDRESS", help="Address for neighbours: tls/0.0.0.0:7447. May be repeated."),
    ] = None,
    connect: Annotated[
        list[str] | None,
        typer.Option("--connect", metavar="ADDRESS", help="Address of a neighbour: tls/HOST:PORT. May be repeated."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="FINGERPRINT", help="Fingerprint of the plan, if the site has several."),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", help="Seconds without progress of a neighbour, after which rounds continue without it.", min=0.1
        ),
    ] = 30.0,
    first_wait: Annotated[
        float, typer.Option("--first-wait", help="Same as --wait, for a neighbour that has not connected yet.", min=0.1)
    ] = 600.0,
    interval: Annotated[
        float, typer.Option("--interval", help="Minimum seconds between the starts of two rounds.", min=0)
    ] = 0.0,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Train, or resume, with the neighbours on a graph, without a server. One of each two neighbours connects."""
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.connection_file import ConnectionFile
    from fedpriv.sites.operating import run_operator_services
    from fedpriv.sites.operator_log import print_log
    from fedpriv.sites.over_zenoh.peers import PeersOverZenoh
    from fedpriv.sites.over_zenoh.refusals import log_refused_connections
    from fedpriv.sites.peers.neighbours import Patience
    from fedpriv.sites.site import Site

    # so that open resources are closed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    addresses = [*(listen or ()), *(connect or ())]
    if not addresses:
        fix = (
            "at least one is required: use --listen tls/0.0.0.0:7447, --connect tls/HOST:PORT, or both "
            "(tcp/127.0.0.1:PORT for trials on one machine)"
        )
        raise ConfigError("addresses", None, fix)
    running = Site(folder)
    running.prepare()
    proposal = _chosen_plan(running, plan)
    session = running.node_session(proposal.hash)
    keys = None
    if any(address.startswith("tls/") for address in addresses):
        keys = folder / TLS
    connections = ConnectionFile(folder)
    with print_log(sys.stderr), run_operator_services(running) as places, log_refused_connections(), connections:
        print_rows(places)
        transport = PeersOverZenoh(
            proposal,
            session.resolved_plan,
            session.number,
            listen=listen or (),
            connect=connect or (),
            keys=keys,
            wait=min(_ANSWER, wait),
            publish=connections.publish,
        )
        with transport:
            patience = Patience(first=first_wait, later=wait)
            if proposal.statistics is not None:
                patience = Patience(first=math.inf, later=math.inf)  # without a site's row there are no answers
            _run(running, proposal, transport, patience, interval)


def _run(
    running: Site, proposal: FederationPlan, transport: PeersOverZenoh, patience: Patience, interval: float
) -> None:
    """Runs the node of a site, and prints its rounds and its end."""
    from fedpriv.cli.printing import out, print_rows
    from fedpriv.sites.peers.node import Node
    from fedpriv.sites.peers.running import run_node
    from fedpriv.sites.recording import MODEL, RESULT, STATISTICS

    node = Node(running, proposal.hash, transport, patience=patience, test=running.test_data)
    print_rows(
        {
            "node": f"{running.card.name}, round {node.round + 1} of {node.resolved_plan.rounds}",
            "neighbours": ", ".join(node.neighbours),
            "plan": proposal.fingerprint,
            "spent so far": f"{running.spent()}, over all plans",
        }
    )
    transport.serve(node.answer, node.is_signed)

    def print_end() -> None:
        rows = {"ended": f"{node.ended}, after {node.round} rounds"}
        for name, neighbour in node.neighbours.items():
            rows[name] = _format_state(neighbour)
        rows |= {"spent": f"{running.spent()}, over all plans"}
        description = node.describe()
        if description is not None:
            out.print(str(description), markup=False, highlight=False)
            rows["statistics"] = str(node.folder / STATISTICS)
        elif proposal.statistics is None:
            rows["model"] = str(node.folder / MODEL)
        else:
            rows["statistics"] = "none, because the row of a site is missing; its cost stays charged"
        rows["result"] = str(node.folder / RESULT)
        print_rows(rows)

    run_node(node, running.spent, interval, _print_round, print_end)


def _chosen_plan(running: Site, plan: str | None) -> FederationPlan:
    """Returns the site's plan on a graph with this fingerprint, or the only one that is open.

    Raises:
        ConfigError: If there is none, or no name was given and there are several.
    """
    from fedpriv.sites.federation_plan import find_plan

    graphs = [proposal for proposal in running.open_plans.values() if proposal.is_graph]
    if plan is not None:
        named = find_plan(plan, [proposal.hash for proposal in graphs])
        graphs = [proposal for proposal in graphs if proposal.hash in named]
    if len(graphs) != 1:
        fix = (
            "must be the fingerprint of one open plan on a graph that this site has accepted, but "
            f"{len(graphs)} plans match; print the site's plans with: fedpriv site status SITE"
        )
        raise ConfigError("--plan", plan, fix)
    return graphs[0]


def _print_round(report: NodeRound) -> None:
    """Prints a line for a round: the neighbours that were mixed in, and the other links with reasons."""
    from fedpriv.cli.printing import out

    words = [f"round {report.round}/{report.rounds}"]
    if report.status == "released":
        words.append(f"mixed with {', '.join(report.up) or 'no neighbour'}")
    else:
        words.append(report.status)
    words += [f"without {name} ({why})" for name, why in report.down.items()]
    words += [f"corrected a past round with {name}" for name in report.corrected]
    words += [f"{name} {value:.4f}" for name, value in report.metrics.items()]
    out.print("; ".join(words), markup=False, highlight=False)


def _format_state(neighbour: NeighbourReport) -> str:
    """Returns the state of a neighbour as text."""
    words = [f"last mixed in round {neighbour.last_up}"]
    if not neighbour.last_up:
        words = ["never mixed"]
    if neighbour.away and neighbour.away != "finished":
        words.append(f"no longer takes part ({neighbour.away})")
    if neighbour.is_missing:
        words.append("is missing: contact its owner")
    if neighbour.is_unsettled:
        words.append("one round is unresolved: only one end has counted the other")
    return "; ".join(words)
