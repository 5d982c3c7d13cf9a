"""Between the halves of a round there is data alone: every client a site of its own, bytes in between."""

from __future__ import annotations

import io
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from sharded import Quadratics, trajectory
from test_sharded_strategies import DIFFERENT, DIM, ROUNDS, N, network_of, networks_for, strategy_of
from torch import Tensor

import fedpriv as fp
from fedpriv.network.rounds import ClientInput, client_update, initial_state, server_update
from fedpriv.randomness.streams import Randomness
from fedpriv.strategies.base import Strategy
from fedpriv.strategies.state import Leaf, flatten_with_names, shared_leaves, unflatten_like


def sent(content: Any) -> Any:
    """What arrives: tensors and numbers, nothing that code could hide in."""
    written = io.BytesIO()
    torch.save(content, written)
    return torch.load(io.BytesIO(written.getvalue()), weights_only=True)


@dataclass
class Site:
    """One client: its oracle, and its state as it would lie on its disk."""

    strategy: Strategy
    client: int
    start: Tensor

    def __post_init__(self) -> None:
        self.oracle = Quadratics(torch.tensor([self.client]), N, DIM, 0.1)
        self.disk = sent(flatten_with_names(self.strategy.local_step.init(self.start)))

    def answer(self, call: dict[str, Any]) -> tuple[Tensor, dict[str, Leaf]]:
        local = unflatten_like(self.strategy.local_step.init(self.start), self.disk)
        message, local = client_update(self.strategy, self.oracle, ClientInput(**call), local)
        self.disk = sent(flatten_with_names(local))
        return sent(message), shared_leaves(local)


@pytest.mark.parametrize("options", DIFFERENT)
def test_round_over_sites_matches_one_process(options: str) -> None:
    strategy, network_name = strategy_of(options), networks_for(options)[-1]
    whole = trajectory(strategy, network_of(network_name), torch.arange(N), DIM, 0.1, ROUNDS)
    start = torch.randn(1, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sites = [Site(strategy, client, start) for client in range(N)]
    first = initial_state(strategy, start.repeat(N, 1))
    network, reply, common = network_of(network_name), first.reply, shared_leaves(first.local)
    for index, (models, received, _, _) in enumerate(whole):
        cohort = network.participants(index, Randomness(5, 6))
        messages, before = list[Tensor](), common
        for client in cohort.tolist():
            heard_here = reply.received[client : client + 1].clone()
            call = {"round": index, "cohort": cohort, "received": heard_here, "common": before}
            message, common = sites[client].answer(sent(call))
            messages.append(message)
        reply = server_update(strategy, network, torch.cat(messages), reply)
        for found, wanted in ((reply.models, models), (reply.received, received)):
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_round_messages_are_tensors_and_numbers() -> None:
    assert [field.name for field in fields(ClientInput)] == ["round", "cohort", "received", "common"]
    start = initial_state(fp.fedavg(0.5, server_momentum=0.5), torch.rand(3, 4))
    assert sent({**flatten_with_names(start.reply.server), "models": start.reply.models}).keys() == {
        "model",
        "optimizer",
        "models",
    }
