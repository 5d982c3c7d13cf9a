"""The keys of a site: elsewhere from the start, moved, and destroyed at its end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from key_places import MemoryKeyring, age_place, env_place, memory_keyring, place  # noqa: F401 - fixtures
from peers_in_memory import TRACKING, peers
from sites_in_memory import NAMES, Party, party
from test_site_commands import fedpriv, refused

from fedpriv.errors import FedprivError
from fedpriv.sites import Site
from fedpriv.sites.sealing import move_secrets, seal_site
from fedpriv.sites.site_records import SessionState
from fedpriv.sites.statement import site_statement

PAIRS = "privacy.trust={pairwise: {colluders: 0, ratio: 3.0}}"
NORTH = 0


@pytest.fixture
def finished(tmp_path: Path) -> Party:
    """Sites that have answered every round of a plan; none of them is at work."""
    made = party(tmp_path, "strategy={name: fedavg, learning_rate: .5}", PAIRS)
    list(made.federation)
    for site in made.sites.values():
        site.close()
    return made


def folder_of(made: Party) -> Path:
    return made.folder / made.proposal.cards[NORTH].name


def secrets_of(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("private_key", "signing_key")]


def everything(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def stored(reply: bytes) -> bytes:
    """The bytes of a reply as pickles hold them."""
    return reply.decode("latin-1").encode()


def test_site_init_with_external_secrets(
    place: str,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("north.yaml").write_text("name: north\ndata: {name: digits, flat: true}\nbudget: {epsilon: 2}\n")
    fedpriv("site", "init", "north", "north.yaml", "--secrets", place)
    assert "encrypted" in fedpriv("secrets", "north")
    assert "folder, not encrypted" not in fedpriv("secrets", "north")
    site = Site("north")
    folder = site._folder
    for secret in (folder.private_key.hex(), folder.signing_key.hex()):
        assert secret.encode() not in everything(Path("north"))
    assert folder.public_keys["public_key"] == site.card.public_key
    site.close()
    assert "choose folder" in refused("site", "init", "south", "north.yaml", "--secrets", "vault")
    assert not Path("south").exists()


def test_moved_secrets_unchanged(place: str, finished: Party) -> None:  # noqa: F811
    folder = folder_of(finished)
    before = secrets_of(folder)
    move_secrets(folder, place)
    assert not set(before) & set(secrets_of(folder))
    site = Site(folder)
    site._plans.session(finished.proposal.hash)  # the digest of its data is still that of its key
    site.close()
    move_secrets(folder, "folder")
    assert secrets_of(folder) == before


def test_seal_with_unfinished_plan_raises(tmp_path: Path) -> None:
    made = party(tmp_path, "strategy={name: fedavg, learning_rate: .5}")
    next(iter(made.federation))
    for site in made.sites.values():
        site.close()
    folder = folder_of(made)
    before = everything(folder)
    with pytest.raises(FedprivError, match=r"has replied in 1 of the \d+ rounds of plan"):
        seal_site(folder)
    assert everything(folder) == before
    seal_site(folder, unfinished=True)


def test_sealed_site_keeps_statement_and_stops(finished: Party) -> None:
    folder = folder_of(finished)
    before = secrets_of(folder)
    spent = Site(folder)
    epsilon, state = spent.spent(), spent._folder.session_state(finished.proposal)
    spent.close()
    assert stored(state.reply) in everything(folder)
    page = fedpriv("statement", folder)
    assert "destroyed" in fedpriv("seal", folder)
    left = everything(folder)
    for secret in before:
        assert secret not in left
    assert stored(state.reply) not in left
    sealed_page = fedpriv("statement", folder)
    assert str(epsilon) in page
    assert str(epsilon) in sealed_page
    assert "keys were destroyed" in sealed_page
    with pytest.raises(FedprivError, match="is sealed: its keys were destroyed"):
        Site(folder)
    assert "is sealed already" in refused("seal", folder)


def test_interrupted_seal_completes_again(memory_keyring: MemoryKeyring, finished: Party) -> None:  # noqa: F811
    folder = folder_of(finished)
    move_secrets(folder, "keyring")
    copy = Path(shutil.copytree(folder, finished.folder / "copy"))
    seal_site(folder)
    assert not memory_keyring.entries
    # the copy is as if the machine had stopped after the plans were closed and the first key was gone
    reply = SessionState.read(copy / "runs" / finished.proposal.hash / "state.pt").reply
    assert stored(reply) in everything(copy)
    (copy / "runs" / finished.proposal.hash / "closed").touch()
    (copy / "private_key").write_text("destroyed")
    seal_site(copy)
    assert stored(reply) not in everything(copy)
    assert secrets_of(copy) == [b"destroyed"] * 2


def test_seal_erases_neighbour_rows(tmp_path: Path) -> None:
    """The node holds rows that neighbours sent to this site only; the spent budget stays."""
    made = peers(tmp_path, TRACKING, "rounds=3")
    made.run()
    nodes = [made.nodes[number] for number in range(4)]
    folder = tmp_path / NAMES[NORTH]
    up_link = nodes[NORTH]._folder.up_link(1)
    assert up_link is not None
    made.close()
    page = site_statement(folder)
    secrets = secrets_of(folder)
    plan_folder = folder / "runs" / made.proposal.hash
    rows = [up_link.theirs.numpy().tobytes(), up_link.ours.numpy().tobytes(), secrets[0]]
    stays = {name: (plan_folder / name).read_bytes() for name in ("plan.yaml", "ledger.jsonl", "counters.json")}
    before = everything(folder)
    assert all(row in before for row in rows)

    seal_site(folder)
    left = everything(folder)
    assert not any(row in left for row in rows)
    assert {name: (plan_folder / name).read_bytes() for name in stays} == stays
    assert not (plan_folder / "node.pt").exists()
    assert site_statement(folder).summary == page.summary
