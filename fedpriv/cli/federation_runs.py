"""`fedpriv site run` and `fedpriv federate run`: over Zenoh, or over Flower if its SuperLink is given."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fedpriv.cli.federating import TLS, SiteFolder
from fedpriv.cli.options import AllowPlugins
from fedpriv.errors import ConfigError, format_count

if TYPE_CHECKING:
    from fedpriv.sites.site import Site

site = typer.Typer()
federate = typer.Typer()

Certificates = Annotated[
    Path | None,
    typer.Option("--root-certificates", metavar="PEM", help="Root certificate that verifies the SuperLink."),
]
_LOCAL_ADDRESS = "tcp/127.0.0.1:7447"  # for tests on one machine
_STATUS_INTERVAL = 60.0  # seconds between status queries to the SuperLink; each query starts a program


@site.command("run")
def site_run(
    folder: SiteFolder,
    connect: Annotated[
        list[str] | None,
        typer.Option("--connect", metavar="ADDRESS", help="Address of the server: tls/HOST:PORT. May be repeated."),
    ] = None,
    superlink: Annotated[
        str | None,
        typer.Option("--superlink", metavar="HOST:PORT", help="Address of Flower's SuperLink, instead of --connect."),
    ] = None,
    certificates: Certificates = None,
    port: Annotated[int, typer.Option("--port", help="Local port for Flower's own programs.")] = 9094,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Reply to the requests of accepted plans until stopped. Prints if the server is connected, or why not.

    `fedpriv site log SITE` shows the log; `fedpriv site status SITE` shows budget, connections and plans.
    """
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.connection_file import ConnectionFile
    from fedpriv.sites.operating import run_operator_services
    from fedpriv.sites.operator_log import print_log
    from fedpriv.sites.over_zenoh.site_server import SiteServer
    from fedpriv.sites.site import Site

    running = Site(folder)
    running.prepare()
    # so that open resources are closed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with print_log(sys.stderr), run_operator_services(running) as places:
        rows = _site_rows(running) | places
        if superlink is not None:
            print_rows(rows | {"log of the SuperNode": str(folder / "supernode.log")})
            _serve_over_flower(running, folder, superlink, certificates, port)
        addresses = connect or [_LOCAL_ADDRESS]
        keys = _keys_for(addresses, folder / TLS)
        print_rows(rows | {"server": _format_addresses(addresses)})
        with ConnectionFile(folder) as connections, SiteServer(running, addresses, keys, connections.publish):
            threading.Event().wait()


def _site_rows(running: Site) -> dict[str, str]:
    """Returns the output of `site run`: budget, spending, and each plan with the site's absences."""
    budget = running.budget
    rows = {"site": f"{running.card.name}, {format_count(len(running.open_plans), 'open plan')}"}
    rows["budget"] = f"epsilon={budget.epsilon:g} (delta={budget.delta:g}), over all plans"
    rows["spent so far"] = f"{running.spent()}, over all plans"
    for number, (plan, proposal) in enumerate(running.plans.items(), start=1):
        absent = [
            f"absent in rounds {notice.first + 1} to {notice.last + 1} ({notice.reason})"
            for notice in running.notices(plan)
        ]
        rows[f"plan {number}"] = "; ".join([proposal.fingerprint, *absent])
    return rows


def _serve_over_flower(running: Site, folder: Path, superlink: str, certificates: Path | None, port: int) -> NoReturn:
    """Serves a site through its SuperNode, which this function starts."""
    from fedpriv.errors import FedprivError
    from fedpriv.sites.over_flower.starting import start_supernode
    from fedpriv.sites.socket_server import serve, wake_after

    node = start_supernode(folder, superlink, certificates, folder / "supernode.log", port)
    wake_after(folder, node.wait)
    try:
        serve(folder, running.answer, lambda: node.poll() is None)
    finally:
        node.terminate()
        node.wait()
    raise FedprivError(
        f"the SuperNode exited with code {node.returncode}; see {folder / 'supernode.log'}, and start this command "
        "again"
    )


def _keys_for(addresses: Sequence[str], folder: Path | None) -> Path | None:
    """Returns the folder with the keys for these addresses; None for plain TCP, which is local to this machine."""
    if any(address.startswith("tls/") for address in addresses):
        if folder is None:
            raise ConfigError(
                "--keys", None, "is required for tls/ addresses: name the folder created by `fedpriv federate keys`"
            )
        return folder
    return None


def _format_addresses(addresses: Sequence[str]) -> str:
    """Returns the addresses as text, with a note about plain TCP."""
    text = ", ".join(addresses)
    if any(address.startswith("tcp/") for address in addresses):
        return f"{text}, not encrypted: any user of this machine can send and receive, so use it only for trials"
    return f"{text}, mutual TLS"


@federate.command("run")
def federate_run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the federation.")],
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", metavar="ADDRESS", help="Address for sites: tls/0.0.0.0:7447. May be repeated."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="DIR", help="Folder with the server's certificate, for tls/.")
    ] = None,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for a round's replies.", min=1)] = 120.0,
    grace: Annotated[
        float, typer.Option("--grace", help="Seconds to wait for a disconnected site, once per disconnection.", min=0)
    ] = 30.0,
    interval: Annotated[
        float, typer.Option("--interval", help="Minimum seconds between the starts of two rounds.", min=0)
    ] = 0.0,
    superlink: Annotated[
        str | None,
        typer.Option("--superlink", metavar="HOST:PORT", help="Address of Flower's SuperLink, instead of --listen."),
    ] = None,
    certificates: Certificates = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print rounds and result as JSON lines.")] = False,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Train, or resume, until the plan or the sites' budgets end."""
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.federation_plan import FederationPlan
    from fedpriv.sites.recording import MODEL, PLAN, RESULT, STATISTICS
    from fedpriv.storage import strict_json

    if superlink is not None:
        _run_over_flower(folder, superlink, certificates, wait, as_json=as_json)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        addresses = listen or [_LOCAL_ADDRESS]
        keys = _keys_for(addresses, keys)
        _run_over_zenoh(folder, addresses, keys, wait=wait, grace=grace, interval=interval, as_json=as_json)
    result = json.loads((folder / RESULT).read_text())
    proposal = FederationPlan.read((folder / PLAN).read_text(encoding="utf-8"))
    statistics = folder / STATISTICS
    if as_json:
        if statistics.exists():
            result["statistics"] = json.loads(statistics.read_text())
        typer.echo(strict_json.dumps(result))
        return
    rows = {name: str(value) for name, value in result.items()}
    if proposal.statistics is None:
        rows["model"] = str(folder / MODEL)
    elif statistics.exists():
        rows["statistics"] = str(statistics)
    else:
        rows["next"] = (
            "run this command again once every site is connected: sites that have replied repeat their reply, at no "
            "privacy cost"
        )
    print_rows(rows)


def _run_over_zenoh(
    folder: Path,
    addresses: Sequence[str],
    keys: Path | None,
    *,
    wait: float,
    grace: float,
    interval: float,
    as_json: bool,
) -> None:
    """Trains in this process; prints each round."""
    from fedpriv.cli.printing import out, print_rows, print_warning
    from fedpriv.sites.federation import Federation
    from fedpriv.sites.federation_plan import FederationPlan
    from fedpriv.sites.operator_log import print_log
    from fedpriv.sites.over_zenoh.coordinator import OverZenoh
    from fedpriv.sites.over_zenoh.refusals import log_refused_connections
    from fedpriv.sites.recording import PLAN, load_test_data, record_federation

    proposal = FederationPlan.read((folder / PLAN).read_text(encoding="utf-8"))
    test = load_test_data(proposal, folder)
    with (
        print_log(sys.stderr),
        log_refused_connections(),
        OverZenoh(proposal, addresses, keys, wait=wait, grace=grace) as transport,
    ):
        federation = Federation(proposal, transport, folder, test)
        if not as_json:
            print_rows({"server": _format_addresses(addresses), "plan": proposal.fingerprint})
        missing = transport.wait_for_all(wait)
        if missing and not as_json:
            print_warning(
                f"these sites are not connected after {wait:g} s: {', '.join(missing)}; rounds continue without them"
            )
        try:
            for report in record_federation(federation, folder):
                _print_round(asdict(report), as_json=as_json)
                time.sleep(interval)
            description = federation.describe()
            if description is not None and not as_json:
                out.print(str(description), markup=False, highlight=False)
        finally:
            federation.close()


def _print_round(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Prints a round of `rounds.jsonl`, as one line for people or as JSON."""
    from fedpriv.cli.printing import out
    from fedpriv.storage import strict_json

    if as_json:
        typer.echo(strict_json.dumps(report))
        return
    words = [f"round {report['round']}/{report['rounds']}", f"replies of {', '.join(report['answered'])}"]
    words += [f"no reply of {name} ({reason})" for name, reason in report["absent"].items()]
    words += [f"{name} {value:.4f}" for name, value in report["metrics"].items()]
    out.print("; ".join(words), markup=False)


def _run_over_flower(folder: Path, superlink: str, certificates: Path | None, wait: float, *, as_json: bool) -> None:
    """Starts the server at the SuperLink on this machine, and prints the rounds from its files."""
    from fedpriv.errors import FedprivError
    from fedpriv.sites.over_flower.starting import run_status, start_run
    from fedpriv.sites.recording import RESULT, ROUNDS

    run = start_run(folder, superlink, certificates, wait)
    n_printed = 0
    last_check = time.monotonic()
    while True:
        ended = (folder / RESULT).exists()
        if (folder / ROUNDS).exists():
            lines = (folder / ROUNDS).read_text().splitlines()
        else:
            lines = []
        for line in lines[n_printed:]:
            _print_round(json.loads(line), as_json=as_json)
        n_printed = len(lines)
        if ended:
            break
        if time.monotonic() - last_check > _STATUS_INTERVAL:  # only Flower reports a server that failed
            last_check = time.monotonic()
            state = run_status(run, superlink, certificates)
            if state.startswith("finished") and not (folder / RESULT).exists():
                raise FedprivError(f"the server stopped ({state}); see: flwr log {run}")
        time.sleep(0.5)
