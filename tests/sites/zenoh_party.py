"""Four sites and a server over Zenoh on this machine, with mutual TLS: one process, real sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from parties import free_port
from signed import Authority
from sites_in_memory import Party, config_of, public_info, sites_of

from fedpriv.config.building import load_data
from fedpriv.sites import Federation, FederationPlan, Site, propose
from fedpriv.sites.messages import TrainRequest, pack
from fedpriv.sites.over_zenoh.coordinator import OverZenoh
from fedpriv.sites.over_zenoh.link import Credentials, Link, open_link
from fedpriv.sites.over_zenoh.site_server import SiteServer
from fedpriv.sites.over_zenoh.star import question_key
from fedpriv.sites.resolved_plan import ResolvedPlan

NAMES = ("north", "east", "south", "west")
FEDAVG = "strategy={name: fedavg, learning_rate: .5}"


@dataclass
class Star:
    """Sites that accepted a plan with certificates, in folders under `folder`, without connections."""

    folder: Path
    authority: Authority
    proposal: FederationPlan
    sites: dict[int, Site]
    address: str = field(default_factory=lambda: f"tls/127.0.0.1:{free_port()}")

    def serve(self, number: int) -> SiteServer:
        return SiteServer(self.sites[number], [self.address], self.folder / NAMES[number] / "tls")

    def server(self, wait: float = 60, grace: float = 0, keys: Path | None = None) -> OverZenoh:
        return OverZenoh(self.proposal, [self.address], keys or self.folder / "keys", wait=wait, grace=grace)

    @contextmanager
    def running(self, wait: float = 60, grace: float = 0) -> Iterator[OverZenoh]:
        """All sites and the server, connected."""
        servers = [self.serve(number) for number in self.sites]
        try:
            with self.server(wait, grace) as transport:
                assert not transport.wait_for_all(60)
                yield transport
        finally:
            for server in servers:
                server.close()

    def question(self, round_index: int, value: float = 0.0) -> bytes:
        received = ResolvedPlan.of(self.proposal).begin().received[0].float() + value
        return pack(TrainRequest(self.proposal.hash, round_index, received))

    def key(self, number: int) -> str:
        return question_key(self.proposal.hash, NAMES[number])

    def close(self) -> None:
        for site in self.sites.values():
            site.close()


def star(folder: Path, *overrides: str) -> Star:
    config = config_of(*(overrides or (FEDAVG,)))
    authority = Authority(folder / "authority")
    sites = sites_of(folder, config)
    for number, site in sites.items():
        authority.site(site, folder / NAMES[number])
    coordinator = authority.server(folder / "keys")
    proposal = propose(config, [site.card for site in sites.values()], public_info(config), coordinator)
    for site in sites.values():
        site.join(proposal.text, proposal.fingerprint)
    return Star(folder, authority, proposal, sites)


def party_of(made: Star, transport: OverZenoh, *overrides: str) -> Party:
    """The `Party` that the checks of `sites_in_memory` accept."""
    config = config_of(*overrides)
    federation = Federation(made.proposal, transport, made.folder / "server", load_data(config).test)
    return Party(made.folder, config, made.proposal, made.sites, transport, federation)  # pyright: ignore


def credentials(folder: Path) -> Credentials:
    return Credentials(folder / "authority.pem", folder / "certificate.pem", folder / "key.pem")


@contextmanager
def stranger(
    keys: Path,
    *,
    connect: str | None = None,
    listen: str | None = None,
    asks: Mapping[str, list[str]] | None = None,
    answers: Mapping[str, Callable[[bytes], tuple[bytes, bytes]]] | None = None,
    requesters: Mapping[str, list[str]] | None = None,
) -> Iterator[object]:
    """A session with these keys, as somebody makes it who does not use our ends.

    Args:
        keys: Folder with its certificate.
        connect: Where it connects to.
        listen: Where it listens.
        asks: Key expressions that it asks, by the name of who answers.
        answers: Reply and signature to a question, by key expression.
        requesters: Key expressions that it answers, by the name of who asks.
    """
    import zenoh

    link = Link(
        credentials(keys),
        100_000_000,
        connect=[connect] if connect else (),
        listen=[listen] if listen else (),
        repliers=asks or {},
        requesters=requesters or {},
    )
    with open_link(link) as session:
        for key, answer in (answers or {}).items():

            def reply(query: zenoh.Query, answer=answer, key=key) -> None:
                with query:
                    data, signature = answer(query.payload.to_bytes())
                    query.reply(key, data, attachment=signature)

            session.declare_queryable(key, zenoh.handlers.Callback(reply))
        yield session
