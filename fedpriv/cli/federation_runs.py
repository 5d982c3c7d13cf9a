"""`fedpriv site run` and `fedpriv federate run`: over Zenoh, or over Flower where its SuperLink is named."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fedpriv.cli.federating import TLS, SiteFolder
from fedpriv.cli.options import AllowPlugins
from fedpriv.errors import ConfigError

if TYPE_CHECKING:
    from fedpriv.sites.site import Site

site = typer.Typer()
federate = typer.Typer()

Certificates = Annotated[
    Path | None,
    typer.Option("--root-certificates", metavar="PEM", help="What the SuperLink's certificate is checked with."),
]
_LOCAL_ADDRESS = "tcp/127.0.0.1:7447"  # for trials on one machine
_STATUS_INTERVAL = 60.0  # seconds between status queries to the SuperLink, each of which starts a program


@site.command("run")
def site_run(
    folder: SiteFolder,
    connect: Annotated[
        list[str] | None,
        typer.Option("--connect", metavar="ADDRESS", help="Of the server: tls/HOST:PORT. May be given several times."),
    ] = None,
    superlink: Annotated[
        str | None, typer.Option("--superlink", metavar="HOST:PORT", help="Flower's SuperLink, instead of --connect.")
    ] = None,
    certificates: Certificates = None,
    port: Annotated[int, typer.Option("--port", help="On this machine, for Flower's own programs.")] = 9094,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Answer the questions of accepted plans, until it is stopped."""
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.over_zenoh.site_server import SiteServer
    from fedpriv.sites.site import Site

    running = Site(folder)
    running.prepare()
    # so that what is open is closed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if superlink is not None:
        print_rows(_site_rows(running) | {"log of the SuperNode": str(folder / "supernode.log")})
        _serve_over_flower(running, folder, superlink, certificates, port)
    addresses = connect or [_LOCAL_ADDRESS]
    with SiteServer(running, addresses, _keys_for(addresses, folder / TLS)):
        print_rows(_site_rows(running) | {"server": _shown(addresses)})
        threading.Event().wait()


def _site_rows(running: Site) -> dict[str, str]:
    """Returns what `site run` prints: budget, what is spent, and each plan with the site's absences."""
    budget = running.budget
    rows = {"site": f"{running.card.name} answers"}
    rows["budget"] = f"epsilon={budget.epsilon:g} (delta={budget.delta:g}), over all plans"
    rows["spent so far"] = f"{running.spent()}, over all plans"
    for number, (plan, proposal) in enumerate(running.plans.items(), start=1):
        absent = [
            f"absent in rounds {notice.first + 1} to {notice.last + 1} ({notice.why})"
            for notice in running.notices(plan)
        ]
        rows[f"plan {number}"] = "; ".join([proposal.fingerprint, *absent])
    return rows


def _serve_over_flower(running: Site, folder: Path, superlink: str, certificates: Path | None, port: int) -> NoReturn:
    """Serves a site through its SuperNode, which this starts."""
    from fedpriv.errors import FedprivError
    from fedpriv.sites.over_flower.starting import supernode
    from fedpriv.sites.socket_server import serve, wake_after

    node = supernode(folder, superlink, certificates, folder / "supernode.log", port)
    wake_after(folder, node.wait)
    try:
        serve(folder, running.answer, lambda: node.poll() is None)
    finally:
        node.terminate()
        node.wait()
    raise FedprivError(f"the SuperNode ended ({node.returncode}); see {folder / 'supernode.log'}, and start again")


def _keys_for(addresses: Sequence[str], folder: Path | None) -> Path | None:
    """Returns the folder with the keys for these addresses; None for plain TCP, which stays on this machine."""
    if any(address.startswith("tls/") for address in addresses):
        if folder is None:
            raise ConfigError("--keys", None, "tls/ needs the folder that `fedpriv federate keys` made")
        return folder
    return None


def _shown(addresses: Sequence[str]) -> str:
    """Returns the addresses as text, which says what plain TCP means."""
    text = ", ".join(addresses)
    if any(address.startswith("tcp/") for address in addresses):
        return f"{text}: not encrypted, anybody on this machine may ask and answer; for trials only"
    return f"{text}, mutual TLS"


@federate.command("run")
def federate_run(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the federation.")],
    listen: Annotated[
        list[str] | None,
        typer.Option("--listen", metavar="ADDRESS", help="For sites: tls/0.0.0.0:7447. May be given several times."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="DIR", help="Folder with the server's certificate, for tls/.")
    ] = None,
    wait: Annotated[float, typer.Option("--wait", help="Seconds for a round's replies.", min=1)] = 120.0,
    grace: Annotated[
        float, typer.Option("--grace", help="Seconds to wait for a site that was disconnected, once each time.", min=0)
    ] = 30.0,
    interval: Annotated[
        float, typer.Option("--interval", help="Seconds from one round to the next, at least.", min=0)
    ] = 0.0,
    superlink: Annotated[
        str | None, typer.Option("--superlink", metavar="HOST:PORT", help="Flower's SuperLink, instead of --listen.")
    ] = None,
    certificates: Certificates = None,
    allow_plugins: AllowPlugins = False,
) -> None:
    """Train, or go on, until the plan or the sites' budgets end."""
    from fedpriv.cli.printing import print_rows
    from fedpriv.sites.recording import MODEL, RESULT

    if superlink is not None:
        _run_over_flower(folder, superlink, certificates, wait)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        addresses = listen or [_LOCAL_ADDRESS]
        _run_over_zenoh(folder, addresses, _keys_for(addresses, keys), wait=wait, grace=grace, interval=interval)
    result = json.loads((folder / RESULT).read_text())
    print_rows({name: str(value) for name, value in result.items()} | {"model": str(folder / MODEL)})


def _run_over_zenoh(
    folder: Path, addresses: Sequence[str], keys: Path | None, *, wait: float, grace: float, interval: float
) -> None:
    """Trains in this process; prints each round."""
    from fedpriv.cli.printing import out, print_rows, print_warning
    from fedpriv.config import load_config
    from fedpriv.config.building import load_data
    from fedpriv.sites.federation import Federation
    from fedpriv.sites.federation_plan import FederationPlan
    from fedpriv.sites.over_zenoh.coordinator import OverZenoh
    from fedpriv.sites.recording import CONFIG, PLAN, follow
    from fedpriv.storage import strict_json

    proposal = FederationPlan.read((folder / PLAN).read_text(encoding="utf-8"))
    test = load_data(load_config(folder / CONFIG)).test
    with OverZenoh(proposal, addresses, keys, wait=wait, grace=grace) as transport:
        federation = Federation(proposal, transport, folder, test)
        print_rows({"server": _shown(addresses), "plan": proposal.fingerprint})
        missing = transport.wait_for_all(wait)
        if missing:
            print_warning(f"not connected after {wait:g} s: {', '.join(missing)}; rounds go on without them")
        try:
            for report in follow(federation, folder):
                out.print(strict_json.dumps(asdict(report)), markup=False)
                time.sleep(interval)
        finally:
            federation.close()


def _run_over_flower(folder: Path, superlink: str, certificates: Path | None, wait: float) -> None:
    """Has the SuperLink on this machine start the server, and prints the rounds from its files."""
    from fedpriv.cli.printing import out
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
            out.print(line)
        n_printed = len(lines)
        if ended:
            break
        if time.monotonic() - last_check > _STATUS_INTERVAL:  # Flower alone knows of a server that broke
            last_check = time.monotonic()
            state = run_status(run, superlink, certificates)
            if state.startswith("finished") and not (folder / RESULT).exists():
                raise FedprivError(f"the server ended ({state}); see: flwr log {run}")
        time.sleep(0.5)
