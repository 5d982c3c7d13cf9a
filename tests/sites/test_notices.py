"""Signed absence notices: other sites leave out the pairs, and no site is protected less than it is charged."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sites_in_memory import Party, config_of, party, public_info
from torch import Tensor

from fedpriv.errors import ConfigError, PrivacyError
from fedpriv.privacy.accounting.pairwise import compute_client_exposures, compute_complete_exposure, make_covariance
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.pairwise import Pairs, Pairwise
from fedpriv.privacy.release import Answer, release_scheme
from fedpriv.privacy.settings import Privacy
from fedpriv.sites import Federation, Site, propose
from fedpriv.sites.absence_notice import AbsenceNotice, new_key
from fedpriv.sites.messages import TrainRequest, pack, unpack_response

DIM = 640
RATIO = 30.0
PAIRS = f"privacy.trust={{pairwise: {{colluders: 1, ratio: {RATIO}}}}}"
SPARSE = "privacy.trust={pairwise: {colluders: 0, ratio: 2.0, secrets: {random_regular: {degree: 2}}}}"
GD = ("strategy={name: dp_gd}", "privacy.epsilon=.5", "data.partition={kind: iid, n_clients: 4}", "rounds=6")
NORTH, EAST, SOUTH, WEST = range(4)


@pytest.fixture
def found(tmp_path: Path):
    made = party(tmp_path, *GD, PAIRS)
    yield made
    made.close()


def ask(found: Party, site: int, at: int, *notices: AbsenceNotice) -> tuple[Tensor | None, str | None]:
    question = pack(TrainRequest(found.proposal.hash, at, torch.zeros(DIM), notices))
    reply = unpack_response(found.sites[site].answer(question), DIM)
    return reply.message, reply.code


def absent(found: Party, site: int, first: int, last: int) -> AbsenceNotice:
    return found.sites[site].declare_absence(found.proposal.hash, first, last)


def records(found: Party, name: str):
    return LedgerFile.read(found.folder / name / "runs" / found.proposal.hash / "ledger.jsonl").records


def test_absence_notice_excludes_pairs_and_cost(found: Party) -> None:
    notice = absent(found, WEST, 3, 5)
    # three rounds of each, so that a deviation is known to 2 %
    without, notified = ((range(3), ()), (range(3, 6), (notice,)))
    rows = [
        torch.cat([torch.stack([ask(found, site, at, *given)[0] for site in range(3)]) for at in rounds], dim=1)
        for rounds, given in (without, notified)
    ]
    unnoticed, noticed = (of_rounds.sum(0).std() for of_rounds in rows)
    # without a notice the sum has the noise of three pairs with the absent one; with it only three sites' own
    own = (compute_complete_exposure(3, RATIO, 1) / compute_complete_exposure(4, RATIO, 1)) ** 0.5
    assert unnoticed / noticed == pytest.approx(((3 + 3 * RATIO**2) / 3) ** 0.5 / own, rel=0.1)
    # a row has two pairs instead of three, each with more noise
    assert rows[1].std() / rows[0].std() == pytest.approx(own * (2 / 3) ** 0.5, rel=0.1)
    before, _, _, after, *_ = records(found, "north")
    assert (before.clients, after.clients) == (None, (0, 1, 2))
    assert after.noise_multiplier / before.noise_multiplier == pytest.approx(own)
    twice = found.sites[NORTH].spent().epsilon
    assert twice == pytest.approx(found.sites[EAST].spent().epsilon)


def test_site_with_notice_answers_no_excluded_round(found: Party) -> None:
    notice = absent(found, WEST, 2, 3)
    west = found.folder / "west" / "runs" / found.proposal.hash / "notices.json"
    assert west.stat().st_mode & 0o077 == 0
    assert ask(found, WEST, 1)[1] is None
    assert ask(found, WEST, 2) == (None, "said_absent")
    found.sites[WEST].close()
    found.sites[WEST] = Site(found.folder / "west")
    assert ask(found, WEST, 2) == (None, "said_absent")
    # even a site that was brought back from an older copy refuses, if it is shown its own words
    found.sites[WEST].close()
    west.unlink()
    found.sites[WEST] = Site(found.folder / "west")
    assert ask(found, WEST, 3, notice) == (None, "said_absent")
    assert ask(found, WEST, 4)[1] is None
    assert [record.round for record in records(found, "west")] == [1, 4]


def test_absence_notice_past_round_raises(found: Party) -> None:
    assert ask(found, WEST, 2)[1] is None
    for first, last in ((2, 3), (0, 1), (1, 5), (3, 6), (5, 4)):
        with pytest.raises(ConfigError, match="must be rounds that are not over, from 4 to 6"):
            absent(found, WEST, first, last)
    absent(found, WEST, 3, 3)
    for _ in range(3):
        absent(found, WEST, 5, 5)
    with pytest.raises(ConfigError, match="at most 4"):
        absent(found, WEST, 4, 4)
    with pytest.raises(ConfigError, match="no plan with this hash"):
        found.sites[WEST].declare_absence("0" * 64, 4, 4)


def test_invalid_absence_notice_refused_uncharged(found: Party, tmp_path: Path) -> None:
    config = config_of(*GD, PAIRS)
    other = propose(config, found.proposal.cards, public_info(config))
    for site in found.sites.values():
        site.join(other.text, other.fingerprint)
    good, of_other_run = absent(found, WEST, 1, 3), found.sites[WEST].declare_absence(other.hash, 1, 3)
    assert of_other_run != good
    bad = {
        "of another run": (of_other_run,),
        "of another run, under this one's name": (of_other_run.model_copy(update={"plan": good.plan}),),
        "for other rounds": (good.model_copy(update={"last": 5}),),
        "of another site": (good.model_copy(update={"site": SOUTH}),),
        "of an unknown site": (good.model_copy(update={"site": 17}),),
        "for another reason": (good.model_copy(update={"reason": "over_budget"}),),
        "signed by another": (
            AbsenceNotice.signed(found.sites[SOUTH]._folder.signing_key, good.plan, WEST, 1, 3, "away"),
        ),
        "signed by a stranger": (AbsenceNotice.signed(new_key(), good.plan, WEST, 1, 3, "away"),),
        "twice": (good, good),
        "of rounds that are no rounds of the plan": (
            AbsenceNotice.signed(found.sites[WEST]._folder.signing_key, good.plan, WEST, 1, 6, "away"),
        ),
        "backwards": (AbsenceNotice.signed(found.sites[WEST]._folder.signing_key, good.plan, WEST, 3, 1, "away"),),
    }
    for reason, notices in bad.items():
        assert ask(found, NORTH, 1, *notices) == (None, "bad_notice"), reason
    assert ask(found, NORTH, 4, good) == (None, "bad_notice")  # it names rounds 1 to 3
    assert not (found.folder / "north" / "runs" / good.plan / "ledger.jsonl").read_text().count('"round"')
    assert ask(found, NORTH, 1, good)[1] is None
    # neither the same round without it, nor one that is over with another one
    assert ask(found, NORTH, 1) == (None, "other_point")
    assert ask(found, NORTH, 0, good)[1] in ("bad_notice", "other_round")
    assert len(records(found, "north")) == 1


def test_absence_notice_without_all_pairs_raises(tmp_path: Path) -> None:
    for number, options in enumerate(((SPARSE,), ("privacy.trust=local",))):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        found = party(folder, *GD, *options)
        with pytest.raises(ConfigError, match="this plan uses no notices of absence"):
            absent(found, WEST, 1, 1)
        notice = AbsenceNotice.signed(found.sites[WEST]._folder.signing_key, found.proposal.hash, WEST, 1, 1, "away")
        assert ask(found, NORTH, 1, notice) == (None, "bad_notice")
        found.close()
    privacy = Privacy(epsilon=1.0, noise_multiplier=1.0, trust=Pairwise(0, 2.0, found_links()))
    with pytest.raises(PrivacyError, match="every two clients"):
        answer = Answer(0, 0, "gradient", range(4), privacy.clip, excluded=frozenset({3}))
        release_scheme(privacy, [9] * 4).price(answer, [1.0] * 4)


def found_links():
    from fedpriv.privacy.pairwise import Links

    return Links(((0, 1), (1, 2), (2, 3)))


def test_server_forwards_notice_after_restart(found: Party) -> None:
    notice = absent(found, EAST, 1, 2)
    rounds = iter(found.federation)
    assert next(rounds).answered == ("north", "east", "south", "west")
    second = next(rounds)
    assert (second.absent, second.noticed) == ({"east": "away"}, ("east",))
    found.federation.close()
    again = Federation(found.proposal, found.transport, found.folder / "server")
    reports = [(one.round, dict(one.absent), one.noticed) for one in again]
    assert reports == [(3, {"east": "away"}, ("east",)), (4, {}, ()), (5, {}, ()), (6, {}, ())]
    assert not [
        question for site, question in found.transport.received if site == EAST and notice.signature in str(question)
    ]
    assert [record.clients for record in records(found, "north")] == [None, (0, 2, 3), (0, 2, 3), None, None, None]
    found.federation = again


def test_site_announces_end_of_budget(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = party(tmp_path, *GD, PAIRS, epsilon=(50.0, 50.0, 50.0, 0.4))
    reports = list(found.federation)
    ends = next(at for at, report in enumerate(reports) if report.absent)
    assert 0 < ends < 6
    assert all((dict(one.absent), one.noticed) == ({"west": "over_budget"}, ("west",)) for one in reports[ends:])
    assert {record.clients for record in records(found, "north")[ends:]} == {(0, 1, 2)}
    assert found.sites[WEST].spent().epsilon <= 0.4
    assert f"only the first {ends} of 6 rounds" in caplog.text
    assert "epsilon=0.4 at delta=1e-05" in caplog.text
    sent = b"".join(reply for _, reply in found.transport.sent)
    assert b"0.4" not in sent  # one word leaves, and rounds
    found.close()


def test_notice_signed_by_other_site_refused(found: Party) -> None:
    own = found.sites[WEST]._folder.signing_key
    forged = AbsenceNotice.signed(own, found.proposal.hash, EAST, 2, 5, "away")

    def spoil(site: int, reply: bytes) -> bytes:
        read = unpack_response(reply, DIM)
        return reply if site != WEST else pack(type(read)(read.plan, read.round, read.message, read.code, (forged,)))

    found.transport.spoil = spoil
    assert {tuple(report.absent.items()) for report in found.federation} == {(("west", "malformed"),)}


def test_unreadable_notice_file_stops_site(found: Party) -> None:
    absent(found, WEST, 2, 3)
    found.sites[WEST].close()
    (found.folder / "west" / "runs" / found.proposal.hash / "notices.json").write_text(json.dumps([{"first": 2}]))
    found.sites[WEST] = Site(found.folder / "west")
    assert ask(found, WEST, 2) == (None, "failed")


# What sites that are shown different notices are hidden in


def true_exposure(present: Sequence[int], kept: Sequence[Sequence[int]], at: int, ratio: float) -> float:
    """`[Sigma^-1]_ii` of a site in the rows of the honest who answer, each with noise of pairs that it alone kept.

    Rows are divided by the deviation of their own noise, which is public and may differ.
    """
    shared = ~np.eye(len(present), dtype=bool)
    matrix = make_covariance(shared, ratio) + ratio**2 * np.diag([float(len(one)) for one in kept])
    return float(np.linalg.inv(matrix)[at, at])


@given(data=st.data(), n=st.integers(2, 7), colluders=st.integers(0, 3), ratio=st.floats(0.01, 30))
@settings(max_examples=200, deadline=None)
def test_exposure_bounded_by_charge_any_notices(data: st.DataObject, n: int, colluders: int, ratio: float) -> None:
    bad = data.draw(st.sets(st.integers(0, n - 1), max_size=min(colluders, n - 1)))
    honest = [site for site in range(n) if site not in bad]
    signed = data.draw(st.sets(st.sampled_from(honest), max_size=len(honest) - 1))
    present = [site for site in honest if site not in signed]
    # each honest one is shown any part of what was signed, and colluders sign what they like, to whom they like
    shown = [data.draw(st.sets(st.sampled_from([*signed, *bad]))) if signed | bad else set() for _ in present]
    kept = [[site for site in signed if site not in notified] for notified in shown]
    for at, notified in enumerate(shown):
        paid = compute_complete_exposure(n - len(notified), ratio, colluders)
        assert true_exposure(present, kept, at, ratio) <= paid * (1 + 1e-6)


def test_notice_on_chain_graph_exceeds_charge() -> None:
    # north - east - south; south has signed it, only east was notified: north pays for three, and is hidden among two
    """North pays for three sites but is hidden among two: so absence notices need secrets of all pairs."""
    ratio, chain = 2.0, Pairs(2.0, 0, "chain", ((0, 1), (1, 2)))
    shared = np.zeros((3, 3), dtype=bool)
    for a, b in chain.edges or ():
        shared[a, b] = shared[b, a] = True
    paid = compute_client_exposures(shared, ratio, 0)[0]
    among_two = np.linalg.inv(make_covariance(shared[:2, :2], ratio))[0, 0]
    assert among_two > paid * 1.01
    both = np.linalg.inv(make_covariance(shared, ratio)[:2, :2])[0, 0]
    assert both <= paid * (1 + 1e-9)  # were south's pair kept by all, as without a notice


def test_notice_for_one_site_noise_matches_charge(found: Party, tmp_path: Path) -> None:
    notice = absent(found, WEST, 0, 5)
    notified = torch.cat([ask(found, NORTH, at, notice)[0] for at in range(6)])
    not_notified = torch.cat([ask(found, EAST, at)[0] for at in range(6)])
    mine, theirs = records(found, "north")[0], records(found, "east")[0]
    assert (mine.clients, theirs.clients) == ((0, 1, 2), None)
    own = mine.noise_multiplier / theirs.noise_multiplier
    assert own == pytest.approx(
        (compute_complete_exposure(3, RATIO, 1) / compute_complete_exposure(4, RATIO, 1)) ** 0.5
    )
    # the pair of both is in both, with each one's own deviation; east carries its pair with west besides
    assert notified.std() / not_notified.std() == pytest.approx(own * (2 / 3) ** 0.5, rel=0.1)
    assert float(torch.corrcoef(torch.stack([notified, not_notified]))[0, 1]) == pytest.approx(
        -1 / (2 * 3) ** 0.5, abs=0.1
    )


def test_copied_folder_keeps_absence_notice(found: Party, tmp_path: Path) -> None:
    absent(found, WEST, 1, 1)
    found.sites[WEST].close()
    shutil.copytree(found.folder / "west", tmp_path / "copy")
    copy = Site(tmp_path / "copy")
    question = pack(TrainRequest(found.proposal.hash, 1, torch.zeros(DIM)))
    assert unpack_response(copy.answer(question), DIM).code == "said_absent"
    copy.close()


def test_absence_notice_signature_covers_each_field() -> None:
    key = new_key()
    one = AbsenceNotice.signed(key, "a" * 64, 1, 2, 3, "away")
    others = [
        AbsenceNotice.signed(key, "b" * 64, 1, 2, 3, "away"),
        AbsenceNotice.signed(key, "a" * 64, 0, 2, 3, "away"),
        AbsenceNotice.signed(key, "a" * 64, 1, 1, 3, "away"),
        AbsenceNotice.signed(key, "a" * 64, 1, 2, 4, "away"),
        AbsenceNotice.signed(key, "a" * 64, 1, 2, 3, "over_budget"),
    ]
    assert len({each.signed_content for each in [one, *others]}) == 6
    assert all(a.signature != b.signature for a, b in itertools.combinations([one, *others], 2))
