"""A site's keys are renewed for plans to come; open plans keep theirs, and what no plan needs is destroyed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from key_places import MemoryKeyring, age_place, env_place, memory_keyring, place  # noqa: F401 - fixtures
from sites_in_memory import Party, party, public_info
from test_site_commands import fedpriv, refused
from test_site_sealing import NORTH, PAIRS, everything, folder_of, secrets_of

from fedpriv.errors import ConfigError
from fedpriv.sites import Site, propose
from fedpriv.sites.budget_picture import draw_site
from fedpriv.sites.descriptor import CertificatePin
from fedpriv.sites.messages import TrainRequest, pack, unpack_response
from fedpriv.sites.reply_counter import ReplyCounter
from fedpriv.sites.sealing import move_secrets, renew_keys, seal_site
from fedpriv.sites.site_keys import list_earlier_files
from fedpriv.sites.site_records import RolledBack
from fedpriv.sites.statement import site_statement
from fedpriv.storage import files

EAST = 1
DIM = 640


@pytest.fixture
def begun(tmp_path: Path) -> Party:
    """Sites in the middle of a plan with noise of pairs; the first one is not at work."""
    made = party(tmp_path, "strategy={name: fedavg, learning_rate: .5}", PAIRS)
    next(iter(made.federation))
    made.sites[NORTH].close()
    return made


def secret_with_east(site: Site, made: Party) -> bytes:
    return site._plans.session(made.proposal.hash).agreed_secrets().pair_secret(NORTH, EAST, "noise")


def reopened(made: Party) -> Site:
    site = Site(folder_of(made))
    made.sites[NORTH] = made.transport.sites[NORTH] = site
    return site


def test_statement_unchanged_after_key_renewal(begun: Party) -> None:
    folder = folder_of(begun)
    before = site_statement(folder)
    renew_keys(folder)
    assert site_statement(folder).summary == before.summary
    reopened(begun).set_certificate(CertificatePin(common_name="north", public_key=f"sha256:{'0' * 64}"))
    assert site_statement(folder).summary == before.summary
    draw_site(folder, folder / "spent.png")
    begun.sites[NORTH].close()


def test_renewed_keys_used_by_new_plans_only(begun: Party) -> None:
    folder = folder_of(begun)
    old_keys = secrets_of(folder)
    card = renew_keys(folder)
    assert not {*secrets_of(folder)} & {*old_keys}
    site = reopened(begun)
    assert site.card == card != begun.proposal.cards[NORTH]
    assert {card.public_key, card.signing_key} == {*site._folder.public_keys.values()}

    # the pair's secret is the one that the other end has, and all rounds are answered
    east = begun.sites[EAST]._plans.session(begun.proposal.hash).agreed_secrets()
    assert secret_with_east(site, begun) == east.pair_secret(NORTH, EAST, "noise")
    assert len([*begun.federation]) == 3
    assert site.spent().epsilon > 0

    # a plan to come has the new card; one with the old card, and one that names both, are refused
    cards = [each.card for each in begun.sites.values()]
    later = propose(begun.config, cards, public_info(begun.config))
    assert later.cards[NORTH] == card
    site.join(later.text, later.fingerprint)
    with_old_card = [begun.proposal.cards[NORTH], *cards[1:]]
    old = propose(begun.config, with_old_card, public_info(begun.config))
    with pytest.raises(ConfigError, match=r"plan\.sites"):
        site.join(old.text, old.fingerprint)
    assert secret_with_east(site, begun) != site._plans.session(later.hash).agreed_secrets().pair_secret(0, 1, "noise")
    begun.close()


def test_old_keys_destroyed_with_last_plan(begun: Party) -> None:
    folder = folder_of(begun)
    first_keys = secrets_of(folder)
    renew_keys(folder)
    second_keys = secrets_of(folder)
    assert all(key in everything(folder) for key in first_keys)
    renew_keys(folder)  # no plan has the second ones
    assert all(key in everything(folder) for key in first_keys)
    assert not any(key in everything(folder) for key in second_keys)
    assert len(list_earlier_files(folder)) == 2
    before = site_statement(folder)
    seal_site(folder, unfinished=True)
    assert not any(key in everything(folder) for key in first_keys)
    assert not list_earlier_files(folder)
    assert site_statement(folder).summary == before.summary  # what the closed plan cost is still known


@pytest.mark.parametrize("step", range(4))
def test_interrupted_key_renewal_repeats(step: int, begun: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, count = folder_of(begun), [0]
    site = reopened(begun)
    before = secret_with_east(site, begun)
    site.close()
    erase, write_whole = files.erase, files.write_whole

    def cut_off(original: Any) -> Any:
        def operation(*given: Any) -> None:
            count[0] += 1
            if count[0] == 2 * step + 1:
                raise OSError("no power")
            original(*given)

        return operation

    with monkeypatch.context() as patch:
        patch.setattr(files, "erase", cut_off(erase))
        patch.setattr(files, "write_whole", cut_off(write_whole))
        with pytest.raises(OSError, match="no power"):
            renew_keys(folder)
    site = reopened(begun)
    assert secret_with_east(site, begun) == before
    site.close()
    card = renew_keys(folder)
    site = reopened(begun)
    assert secret_with_east(site, begun) == before
    assert {card.public_key, card.signing_key} == {*site._folder.public_keys.values()}
    assert len(list_earlier_files(folder)) == 2
    site.close()


def test_old_keys_move_and_are_destroyed(place: str, begun: Party) -> None:  # noqa: F811
    folder = folder_of(begun)
    old_keys = secrets_of(folder)
    renew_keys(folder)
    move_secrets(folder, place)
    assert not any(key in everything(folder) for key in old_keys)
    site = reopened(begun)
    east = begun.sites[EAST]._plans.session(begun.proposal.hash).agreed_secrets()
    assert secret_with_east(site, begun) == east.pair_secret(NORTH, EAST, "noise")
    site.close()
    renew_keys(folder)  # where they are now
    assert "folder, not encrypted" not in fedpriv("secrets", folder)
    seal_site(folder, unfinished=True)
    assert not list_earlier_files(folder)
    assert secrets_of(folder) == [b"destroyed"] * 2


def test_keyring_entry_per_remaining_secret(
    memory_keyring: MemoryKeyring,  # noqa: F811
    begun: Party,
) -> None:
    folder = folder_of(begun)
    move_secrets(folder, "keyring")
    renew_keys(folder)
    assert len(memory_keyring.entries) == 4  # two keys, two earlier ones
    seal_site(folder, unfinished=True)
    assert not memory_keyring.entries


def test_counter_with_old_key_detects_rollback(begun: Party) -> None:
    folder = folder_of(begun)
    _, old_key = secrets_of(folder)
    renew_keys(folder)
    forgotten = "0" * 64  # a plan that the folder does not have
    counter = ReplyCounter.signed(bytes.fromhex(old_key.decode()), forgotten, NORTH, records=1, notices=0)
    site = reopened(begun)
    question = TrainRequest(forgotten, 0, torch.zeros(DIM), counter=counter)
    assert unpack_response(site.answer(pack(question)), DIM).code == "rolled_back"
    site.close()
    with pytest.raises(RolledBack):
        Site(folder)


def test_renew_keys_prints_fingerprint_for_sites_only(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"name": "north", "data": {"name": "digits", "flat": True}, "budget": {"epsilon": 2}}
    Path("north.yaml").write_text(yaml.safe_dump(settings))
    fedpriv("site", "init", "north", "north.yaml")
    printed = fedpriv("secrets", "north", "--renew-keys")
    site = Site("north")
    assert site.card.fingerprint in printed
    site.close()
    assert not list_earlier_files(Path("north"))  # no plan had them
    Path("run").mkdir()
    assert "is not the folder of a site" in refused("secrets", "run", "--renew-keys")
