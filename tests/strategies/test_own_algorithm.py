"""An algorithm of one's own: it trains, and where it is faulty the answer says which line to write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from error_texts import clients, error_of
from torch import Tensor

import fedpriv


class Step:
    receives: ClassVar[tuple[str, ...]] = ("model",)
    sends: ClassVar[tuple[str, ...]] = ("gradient",)
    memory: ClassVar[str] = "private"
    linear: ClassVar[bool] = True

    def init(self, params: Tensor) -> object:
        return None

    def __call__(self, received: Tensor, state: object, oracle: Any) -> object:
        return oracle.gradient(received), state


@dataclass(frozen=True)
class Kept:
    model: Tensor


class Descend:
    receives: ClassVar[tuple[str, ...]] = ("gradient",)
    sends: ClassVar[tuple[str, ...]] = ("model",)
    is_sum: ClassVar[bool] = True

    def init(self, params: Tensor) -> object:
        return params, Kept(params)

    def __call__(self, message: Tensor, network: Any, state: Any) -> object:
        model = state.model - 0.1 * network.mean(message)
        return model, Kept(model)


def paired(step: object = None, aggregator: object = None) -> fedpriv.Strategy:
    return fedpriv.Strategy(step or Step(), aggregator or Descend())  # pyright: ignore


def changed(base: type, **members: Any) -> object:
    """An object of the class with these members, without those that are None."""
    held = {**{name: value for name, value in vars(base).items() if not name.startswith("__") or name == "__call__"}}
    held.update(members)
    return type("Own", (), {name: value for name, value in held.items() if value is not None})()


def test_custom_algorithm_trains():
    result = fedpriv.train(clients(), paired(), fedpriv.Privacy(epsilon=3.0), rounds=2)
    assert result.rounds == 2


OWN = {
    "no sends": (
        lambda: paired(changed(Step, sends=None)),
        'add to the class: sends: ClassVar[tuple[str, ...]] = ("gr',
    ),
    "no receives": (lambda: paired(changed(Step, receives=None)), "receives: ClassVar[tuple[str, ...]] = "),
    "no linear": (lambda: paired(changed(Step, linear=None)), "linear: ClassVar[bool] = False"),
    "no memory": (lambda: paired(changed(Step, memory=None)), 'memory: ClassVar[Memory] = "private"'),
    "no init": (
        lambda: paired(changed(Step, init=None)),
        "has no init: add to the class: def init(self, params: Tensor)",
    ),
    "no call": (lambda: paired(changed(Step, __call__=None)), "def __call__(self, received: Tensor, state: None"),
    "no is_sum": (lambda: paired(None, changed(Descend, is_sum=None)), "is_sum: ClassVar[bool] = False"),
    "no sends in the aggregator": (
        lambda: paired(None, changed(Descend, sends=None)),
        "has no sends: add to the class",
    ),
    "a class": (lambda: paired(Step), "is a class: pass an object, Step()"),
    "a function": (
        lambda: paired(lambda x: x),
        "is a function: a local step must be an object of a class with receives, sends",
    ),
    "text": (lambda: paired(changed(Step, sends="gradient")), "is text: write a tuple, ('gradient',)"),
    "is_sum as a word": (lambda: paired(None, changed(Descend, is_sum="yes")), "must be True or False"),
    "another word": (
        lambda: paired(changed(Step, sends=("update",))),
        "sends ('update',), but Descend receives ('gradient',)",
    ),
    "a call without oracle": (
        lambda: paired(changed(Step, __call__=lambda self, received, state: (received, state))),
        "cannot be called with 3 arguments: write def __call__(self, received: Tensor, state: None, oracle: Oracle)",
    ),
    "no state returned": (
        lambda: paired(changed(Step, __call__=lambda self, received, state, oracle: received)),
        "must return two values: return message, state",
    ),
    "no model returned": (
        lambda: paired(None, changed(Descend, init=lambda self, params: params)),
        "Own.init -> a Tensor': must return two values: return received, state",
    ),
    "one mean": (
        lambda: paired(None, changed(Descend, __call__=lambda self, message, network, state: (message.mean(0), state))),
        "one row per client; for [3, 2] it is [2]; a mean over clients is network.mean",
    ),
    "another shape next time": (
        lambda: paired(
            None,
            changed(
                Descend,
                init=lambda self, params: (torch.cat([params, params], 1), Kept(params)),
                __call__=lambda self, message, network, state: (network.mean(message)[:, :2], state),
            ),
        ),
        "has the shape [3, 2], but Own.init returns [3, 4]: return the same shape",
    ),
    "one row": (
        lambda: paired(None, changed(Descend, init=lambda self, params: (params[:1], Kept(params)))),
        "send one row to all clients with network.scatter(row), or row.expand_as(params)",
    ),
    "losses for messages": (
        lambda: paired(
            changed(Step, __call__=lambda self, received, state, oracle: (oracle.exact(received)[0], state))
        ),
        "the message must have the shape [n, dim], one row per client; for [3, 2] it is [3]",
    ),
    "a list for a message": (
        lambda: paired(changed(Step, __call__=lambda self, received, state, oracle: ([0.0], state))),
        "must be a tensor [n, dim], one row per client; it is a list",
    ),
    "a list for a state": (
        lambda: paired(changed(Step, init=lambda self, params: [params])),
        "its state has a list: must be None, or tensors and numbers in a dataclass, a tuple or a dict",
    ),
    "one state for all clients": (
        lambda: paired(changed(Step, init=lambda self, params: {"velocity": params[0]})),
        "velocity must have one row per client, [n, ...]; for 3 clients it is [2]",
    ),
    "growing state": (
        lambda: paired(
            changed(Step, __call__=lambda self, received, state, oracle: (oracle.gradient(received), {"t": 1}))
        ),
        "its state has the fields t, but Own.init creates none (None): keep the same fields",
    ),
    "unknown oracle query": (
        lambda: paired(changed(Step, __call__=lambda self, received, state, oracle: (oracle.grad(received), state))),
        "the oracle has no attribute of this name; did you mean 'gradient'",
    ),
    "unknown network exchange": (
        lambda: paired(
            None, changed(Descend, __call__=lambda self, message, network, state: (network.average(message), state))
        ),
        "the network has no attribute of this name",
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_faulty_custom_algorithm_raises_with_fix(name: str):
    made, message = OWN[name]
    assert message in error_of(made)


def test_custom_algorithm_with_wide_messages_trains():
    """Two vectors in a row, as in gradient tracking."""

    def two(self: object, received: Tensor, state: object, oracle: Any) -> object:
        gradient = oracle.gradient(received)
        return torch.cat([gradient, gradient], 1), state

    def mean(self: object, message: Tensor, network: Any, state: Any) -> object:
        model = state.model - 0.1 * network.mean(message)[:, : state.model.shape[1]]
        return model, Kept(model)

    strategy = paired(changed(Step, __call__=two), changed(Descend, __call__=mean))
    assert fedpriv.train(clients(), strategy, fedpriv.Privacy(epsilon=3.0), rounds=1).rounds == 1


def test_custom_algorithm_fixed_client_count_trains():
    """The internal check uses three made-up clients; that number is no reason to raise."""

    def weighted(self: object, message: Tensor, network: Any, state: Any) -> object:
        return network.mean(message * torch.tensor([[0.5], [1.5]])), state

    result = fedpriv.train(
        clients(), paired(None, changed(Descend, __call__=weighted)), fedpriv.Privacy(epsilon=3.0), rounds=1
    )
    assert result.rounds == 1


def sum_of_all(self: object, received: Tensor, state: Tensor, oracle: Any) -> object:
    """Sends the sum of all answers so far, and keeps it."""
    state = state + oracle.client_gradient(received)
    return state, state


def sum_of_all_in_secret(self: Any, received: Tensor, state: object, oracle: Any) -> object:
    """The same, in an attribute that no state shows."""
    self.total = getattr(self, "total", 0.0) + oracle.client_gradient(received)
    return self.total, state


@pytest.mark.parametrize("n_clients", [1, 3])
@pytest.mark.parametrize(
    "members",
    [
        {"__call__": sum_of_all, "init": lambda self, params: torch.zeros_like(params)},
        {"__call__": sum_of_all_in_secret},
    ],
    ids=["state", "attribute"],
)
def test_stateful_step_declared_stateless_raises(members: dict[str, Any], n_clients: int):
    """Only messages are noised: each query result would enter all later messages and be charged once."""
    privacy = fedpriv.Privacy(epsilon=1.0, delta=1e-2, unit="client", noise_on="message")
    strategy = paired(changed(Step, memory="none", **members))
    with pytest.raises(
        fedpriv.ConfigError, match=r"keeps state of its query results.*set privacy.noise_on to 'gradient'"
    ):
        fedpriv.plan([50] * n_clients, strategy, privacy, rounds=3)
    honest = paired(changed(Step, memory="none"))
    assert fedpriv.plan([50] * n_clients, honest, privacy, rounds=3).releases == 3
