"""Connections over Zenoh that are lost all at once, as after a server's machine slept: the server waits for them."""

from __future__ import annotations

import threading
from pathlib import Path

from zenoh_party import FEDAVG, NAMES, party_of, star


def test_run_continues_after_all_sites_reconnect(tmp_path: Path) -> None:
    made = star(tmp_path, FEDAVG)
    servers = [made.serve(number) for number in made.sites]
    again = threading.Timer(1.0, lambda: servers.extend(made.serve(number) for number in made.sites))
    with made.server(grace=0) as transport:
        assert not transport.wait_for_all(60)
        federation = party_of(made, transport, FEDAVG).federation
        rounds = iter(federation)
        next(rounds)
        while servers:
            servers.pop().close()
        again.start()
        reports = [*rounds]
        federation.close()
    again.join()
    for server in servers:
        server.close()
    made.close()
    assert (federation.ended, reports[-1].round, reports[-1].answered) == ("rounds", 4, NAMES)
