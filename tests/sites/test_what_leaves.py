"""All bytes that leave a site are functions of its recorded releases and public facts; secrets stay local."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from sites_in_memory import Party, party
from torch import Tensor

from fedpriv.errors import PrivacyError
from fedpriv.network.rounds import ClientInput, client_update
from fedpriv.oracle.oracle import Oracle, RoundContext
from fedpriv.oracle.query import Query, QueryBuilder
from fedpriv.oracle.synthetic import ZeroEngine
from fedpriv.privacy.ledger import Ledger, Release
from fedpriv.privacy.ledger_file import LedgerFile
from fedpriv.sites.messages import TrainRequest, TrainResponse, pack, unpack_request, unpack_response

PAIRS = "privacy.trust={pairwise: {colluders: 1, ratio: 3.0}}"


class ReplayEngine(ZeroEngine):
    """Returns the recorded releases of one site in order, without access to data."""

    def __init__(self, number: int, queries: QueryBuilder, released: list[Tensor]) -> None:
        super().__init__()
        self._number, self._queries, self._released = number, queries, released

    def begin_round(self, context: RoundContext) -> tuple[RoundContext, Tensor | None]:
        return replace(context, positions=torch.tensor([self._number])), None

    def gradients(self, query: Query, context: RoundContext, params: Tensor, anchor: Tensor | None) -> Tensor:
        if not self._queries.is_released(query):
            return torch.full_like(params, 7.0)
        return self._released.pop(0).to(params.dtype)

    def message(self, query: Query, context: RoundContext, message: Tensor) -> Tensor:
        return self._released.pop(0).to(message.dtype)


@pytest.mark.parametrize(
    "options",
    [
        ("strategy={name: fedavg, learning_rate: .5, local_steps: 2}",),
        ("strategy={name: iadmm_prox}", PAIRS),
        ("strategy={name: fedavg, learning_rate: .5}", "privacy.unit=client", "privacy.noise_on=message"),
    ],
    ids=["gradients", "pairs", "messages"],
)
def test_replies_computed_from_recorded_releases(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: dict[int, list[Tensor]] = {}
    whole = Ledger.open

    def watched(ledger: Ledger, release: Release) -> Tensor:
        value = whole(ledger, release)
        released.setdefault(id(ledger), []).append(value.clone())
        return value

    monkeypatch.setattr(Ledger, "open", watched)
    found = party(tmp_path, *options)
    list(found.federation)
    resolved_plan = found.federation.resolved_plan
    assert len(found.transport.sent) == 16
    for number, site in found.sites.items():
        member = site._plans.session(found.proposal.hash)
        values, file = released[id(member._ledger)], LedgerFile.read(member._ledger._path)
        assert len(values) == len(file.records)
        assert file.altered is None
        queries = QueryBuilder(resolved_plan.plan.privacy, resolved_plan.sizes)
        oracle = Oracle(queries, ReplayEngine(number, queries, values), torch.empty(0))
        local = resolved_plan.strategy.local_step.init(resolved_plan.start[None])
        for (_, question), (_, reply) in zip(
            [one for one in found.transport.received if one[0] == number],
            [one for one in found.transport.sent if one[0] == number],
            strict=True,
        ):
            asked = unpack_request(question)
            call = ClientInput(
                asked.round, resolved_plan.cohort(asked.round), asked.received[None], resolved_plan.common[asked.round]
            )
            message, local = client_update(resolved_plan.strategy, oracle, call, local)
            counter = unpack_response(reply, message.shape[1]).counter
            assert counter is not None
            assert counter.records == len(file.records) - len(values)  # of its ledger, so far
            assert pack(TrainResponse(found.proposal.hash, asked.round, message[0].float(), None, (), counter)) == reply
        assert not values
    found.close()


def everything(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_secrets_stay_in_site_folder(tmp_path: Path) -> None:
    found = party(tmp_path, "strategy={name: fedavg, learning_rate: .5}", PAIRS)
    list(found.federation)
    sent = b"\n".join(data for _, data in [*found.transport.sent, *found.transport.received])
    names = [card.name for card in found.proposal.cards]
    for number, site in found.sites.items():
        folder, member = site._folder, site._plans.session(found.proposal.hash)
        others = b"\n".join(everything(tmp_path / name) for name in [*names, "server"] if name != names[number])
        own = (
            (tmp_path / names[number] / "private_key").read_bytes(),
            (tmp_path / names[number] / "signing_key").read_bytes(),
        )
        secrets = [
            *own,
            folder.private_key,
            folder.signing_key,
            member._data_key(),
        ]
        secrets += [member._secrets().pair_secret(number, other, "noise") for other in range(4) if other != number]
        for secret in secrets:
            for text in (secret, secret.hex().encode()):
                assert text not in others
                assert text not in sent
        # nor can it compute the secret of a pair of others, with all that it has
        with pytest.raises(PrivacyError, match="has no secret of clients"):
            member._secrets().pair_secret((number + 1) % 4, (number + 2) % 4, "noise")
    found.close()


def test_message_has_row_and_five_fields(tmp_path: Path) -> None:
    reply = TrainResponse("ab" * 32, 7, torch.arange(4.0), None)
    (tmp_path / "reply").write_bytes(pack(reply))
    with safe_open(tmp_path / "reply", "pt") as file:
        assert [*file.keys()] == ["row"]
        assert {*json.loads(file.metadata()["fedpriv"])} == {"plan", "round", "code", "notices", "counter"}
        assert {*file.metadata()} == {"fedpriv"}
    assert unpack_response(pack(reply), 4).message.tolist() == [0, 1, 2, 3]
    refusal = TrainResponse("", 7, None, "over_budget")
    assert unpack_response(pack(refusal), 4) == refusal


def rows_of(found: Party, at: int) -> Tensor:
    """The messages of all sites in a round at one point."""
    asked = pack(TrainRequest(found.proposal.hash, at, torch.zeros(640)))
    return torch.stack([unpack_response(site.answer(asked), 640).message for site in found.sites.values()])


def test_pair_noise_in_rows_cancels_in_sum(tmp_path: Path) -> None:
    strategy = "strategy={name: dp_gd}"
    trust = "privacy.trust={pairwise: {colluders: 1, ratio: 30.0}}"
    found = party(tmp_path, strategy, trust, "privacy.epsilon=.5", "data.partition={kind: iid, n_clients: 4}")
    assert "X25519" in str(found.federation.spent()) or "X25519" in found.federation.resolved_plan.plan.privacy.trusted
    assert "simulated" not in found.federation.resolved_plan.plan.privacy.trusted
    rows = rows_of(found, 0)
    # three pairs of deviation 30 sigma, against sigma of four clients in the sum
    in_rows, in_sum = rows.std(), rows.sum(0).std()
    assert in_rows / in_sum == pytest.approx((1 + 3 * 30**2) ** 0.5 / 2, rel=0.1)
    # the pair noise of another round is another one
    assert abs(torch.corrcoef(torch.stack([rows[0], rows_of(found, 1)[0]]))[0, 1]) < 0.2
    found.close()
