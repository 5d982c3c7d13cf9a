"""What sites are charged for pair noise, against matrices: also if some are absent whose noise stays in the others.

An observer sees the rows of those that are present. With colluders it knows the noise of their pairs. What is left on
honest rows is Gaussian: individual noise of variance 1, and r^2 for each pair of honest sites, absent ones included,
since those that are present have added it. A site's row is then protected as by independent noise of variance
1 / [inverse covariance]_ii, here by brute force.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from sites_in_memory import Party, party
from test_sites_same_run import FAIR

from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.privacy.record import Record
from fedpriv.sites.absence_notice import AbsenceNotice
from fedpriv.sites.messages import TrainRequest, pack, unpack_response
from fedpriv.sites.plan_filter import single_site_record

N = 4
CONSTRAINTS = "statistic:constraints"
TRUSTS = {
    "all pairs": ("{colluders: 1, ratio: 3.0}", list(combinations(range(N), 2)), 1),
    "a ring of pairs": ("{colluders: 0, ratio: 3.0, secrets: {random_regular: {degree: 2}}}", None, 0),
}


def effective_variance(
    pairs: list[tuple[int, int]], ratio: float, site: int, absent: set[int], colluders: set[int]
) -> float:
    """Variance of equally protective independent noise, divided by that of the site's individual noise."""
    honest = [other for other in range(N) if other not in colluders]
    noise = [np.eye(len(honest))]  # rows of sites, columns of independent unit normals
    for a, b in pairs:
        if a in honest and b in honest:
            column = np.zeros((len(honest), 1))
            column[honest.index(a)], column[honest.index(b)] = ratio, -ratio
            noise.append(column)
    seen = [row for row, other in enumerate(honest) if other not in absent]
    mixed = np.hstack(noise)[seen]
    return 1 / np.linalg.inv(mixed @ mixed.T)[seen.index(honest.index(site)), seen.index(honest.index(site))]


def charged(found: Party, number: int, record: Record) -> float:
    """The noise multiplier that a site's accountant counts for a record."""
    value = single_site_record(record, number, N).noise_multiplier
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize("trust", TRUSTS)
def test_site_charge_covers_effective_noise(trust: str, tmp_path: Path) -> None:
    """The charged noise multiplier is at most that of the noise that protects the site, whichever sites are absent."""
    spelled, pairs, q = TRUSTS[trust]
    found = party(tmp_path, *FAIR, f"privacy.trust={{pairwise: {spelled}}}", "privacy.statistics.ratio=2")
    resolved_plan = found.federation.resolved_plan
    queries = set()
    for record in resolved_plan.plan.records:
        assert record.pairs is not None
        if pairs is None:
            pairs = [*record.pairs.edges]
        ratio = {CONSTRAINTS: 2.0}.get(record.query, 3.0)
        assert record.pairs.ratio == ratio
        queries.add(record.query)
        for site in range(N):
            individual = record.noise_multiplier
            if isinstance(individual, tuple):
                individual = individual[site]
            others = set(range(N)) - {site}
            worst = np.inf
            for count in range(N):
                for absent in map(set, combinations(others, count)):
                    for size in range(q + 1):
                        for colluders in map(set, combinations(others, size)):
                            variance = effective_variance(pairs, ratio, site, absent - colluders, colluders)
                            assert charged(found, site, record) <= individual * variance**0.5 * (1 + 1e-9)
                            if not absent:
                                worst = min(worst, variance)
            # exact where nobody is absent, of all pairs; of a graph it is the worst site's
            if trust == "all pairs":
                assert charged(found, site, record) == pytest.approx(individual * worst**0.5, rel=1e-9)
    assert CONSTRAINTS in queries
    assert len(queries) > 1
    found.close()


def test_absent_site_with_constraints_ends_run(tmp_path: Path) -> None:
    found = party(tmp_path, *FAIR, "privacy.trust={pairwise: {colluders: 1, ratio: 3.0}}", "privacy.statistics.ratio=2")
    resolved_plan, site = found.federation.resolved_plan, found.sites[0]
    assert resolved_plan.needs_everyone
    assert not resolved_plan.leaves_out
    notice = AbsenceNotice.signed(found.sites[1]._folder.signing_key, resolved_plan.hash, 1, 0, 0, "away")
    point = resolved_plan.begin().received[0].float()
    asked = pack(TrainRequest(resolved_plan.hash, 0, point, (notice,)))
    assert unpack_response(site.answer(asked), resolved_plan.widths[1]).code == "bad_notice"
    # whoever is absent, each of the others answers with the noise of all its pairs, at the plan's price
    del found.transport.sites[3]
    assert not list(found.federation)
    assert found.federation.ended == "absent: west (no_reply)"
    planned = [record for record in resolved_plan.plan.records if record.round == 0]
    for number in range(3):
        path = tmp_path / found.sites[number].card.name / "runs" / resolved_plan.hash / "ledger.jsonl"
        records = LedgerFile.read(path).records
        assert [record.clients for record in records] == [record.clients for record in planned]
        assert [charged(found, number, record) for record in records] == [
            charged(found, number, record) for record in planned
        ]
    # and the same question again is the same bytes, so that whoever returns makes the sum whole
    asked = pack(TrainRequest(resolved_plan.hash, 0, point))
    assert torch.equal(
        unpack_response(site.answer(asked), resolved_plan.widths[1]).message,
        unpack_response(found.transport.sent[0][1], resolved_plan.widths[1]).message,
    )
    found.close()


@pytest.mark.parametrize("options", [FAIR, ("strategy={name: fedavg, learning_rate: 0.5}",)])
def test_server_spent_includes_unused_round(options: tuple[str, ...], tmp_path: Path) -> None:
    """Constraints need every site: one is missing in the first round, and the others have answered."""
    found = party(tmp_path, *options)
    found.transport.sites = {} if options != FAIR else {number: found.sites[number] for number in range(3)}
    assert not list(found.federation)
    assert found.federation.ended is not None and found.federation.ended.startswith("absent")
    largest = max(site.spent().epsilon for site in found.sites.values())
    assert (largest > 0) == (options == FAIR)
    assert found.federation.spent().epsilon >= largest
    assert found.federation.spent() == found.federation.resolved_plan.plan.spent()
    found.close()


def test_server_spent_includes_round_in_progress(tmp_path: Path) -> None:
    found = party(tmp_path, "strategy={name: fedavg, learning_rate: 0.5}")
    seen = list[float]()

    def look(site: int, reply: bytes) -> bytes:
        seen.append(found.federation.spent().epsilon - found.sites[site].spent().epsilon)
        return reply

    found.transport.spoil = look
    list(found.federation)
    assert len(seen) == 16 and min(seen) > -1e-9
    found.close()
