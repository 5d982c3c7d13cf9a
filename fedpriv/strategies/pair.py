"""Checks that a user's client update and aggregator are complete and fit together, when they become a `Strategy`.

Copies of both are called once with zeros as parameters of three clients, `[3, 2]`, and with an oracle and a network
without data. The results must have the required types and shapes. Errors that the user's code raises are ignored here,
because the plan calls the code again with the true number of clients.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.settings.translations import suggest_nearest
from fedpriv.strategies.state import flatten_with_names

_CLIENTS, _DIM = 3, 2

_STEP_LINES = {
    "receives": 'receives: ClassVar[tuple[str, ...]] = ("model",)',
    "sends": 'sends: ClassVar[tuple[str, ...]] = ("gradient",)',
    "memory": 'memory: ClassVar[Memory] = "private"',
    "linear": "linear: ClassVar[bool] = False",
    "init": "def init(self, params: Tensor) -> None: ...",
    "__call__": "def __call__(self, received: Tensor, state: None, oracle: Oracle) -> tuple[Tensor, None]: ...",
}
_AGGREGATOR_LINES = {
    "receives": 'receives: ClassVar[tuple[str, ...]] = ("gradient",)',
    "sends": 'sends: ClassVar[tuple[str, ...]] = ("model",)',
    "is_sum": "is_sum: ClassVar[bool] = False",
    "init": "def init(self, params: Tensor) -> tuple[Tensor, Tensor]: ...",
    "__call__": "def __call__(self, message: Tensor, network: Network, state: Tensor) -> tuple[Tensor, Tensor]: ...",
}


def check_pair(step: Any, aggregator: Any) -> None:  # noqa: ANN401 - whatever a user gives
    """Checks a client update and an aggregator.

    Raises:
        ConfigError: If one of them lacks an attribute (the message contains the line to add), if the two exchange
            different values, or if a return value has another type or shape.
    """
    _check_complete("strategy.local_step", step, _STEP_LINES, other="aggregator")
    _check_complete("strategy.aggregator", aggregator, _AGGREGATOR_LINES, other="local step")
    for sender, receiver in ((step, aggregator), (aggregator, step)):
        if sender.sends != receiver.receives:
            raise ConfigError(
                "strategy",
                f"{type(step).__name__} + {type(aggregator).__name__}",
                f"{type(sender).__name__} sends {sender.sends}, but {type(receiver).__name__} receives "
                f"{receiver.receives}: both must name the same values",
            )
    if all(type(value).__module__.startswith("fedpriv.") for value in (step, aggregator)):
        return
    try:
        # the user's objects may record their calls
        step, aggregator = copy.deepcopy((step, aggregator))
    except Exception:  # a user's object can hold anything
        return
    _check_calls(step, aggregator)


def _check_complete(field: str, value: Any, lines: dict[str, str], other: str) -> None:  # noqa: ANN401
    """Raises an error if a client update or aggregator lacks an attribute or method, or has one of another type."""
    if inspect.isclass(value):
        raise ConfigError(field, value.__name__, f"is a class: pass an object, {value.__name__}()")
    name = type(value).__name__
    kind = field.partition(".")[2].replace("_", " ")
    if inspect.isfunction(value):
        fix = f"is a function: a {kind} must be an object of a class with {', '.join(lines)}"
        raise ConfigError(field, value.__name__, fix)
    lacking = [
        attribute
        for attribute in lines
        if not (callable(value) if attribute == "__call__" else hasattr(value, attribute))
    ]
    if len(lacking) == len(lines):
        raise ConfigError(field, value, f"is not a {kind}: your class needs {', '.join(lacking)}")
    if lacking:
        added = "; ".join(lines[attribute] for attribute in lacking)
        raise ConfigError(field, name, f"has no {' and no '.join(lacking)}: add to the class: {added}")
    for attribute in ("receives", "sends"):
        words = getattr(value, attribute)
        if isinstance(words, str):
            raise ConfigError(
                f"{field}.{attribute}", words, f"is text: write a tuple, ({words!r},), like the {other}'s"
            )
        if not isinstance(words, tuple):
            raise ConfigError(f"{field}.{attribute}", words, f"must be a tuple of names: {lines[attribute]}")
    for attribute in ("linear", "is_sum"):
        if attribute in lines and not isinstance(getattr(value, attribute), bool):
            raise ConfigError(
                f"{field}.{attribute}", getattr(value, attribute), f"must be True or False: {lines[attribute]}"
            )
    if "memory" in lines and value.memory not in ("none", "private"):
        raise ConfigError(f"{field}.memory", value.memory, "must be 'none' or 'private'")
    for method, count in (("init", 1), ("__call__", 3)):
        try:
            inspect.signature(getattr(value, method)).bind(*range(count))
        except TypeError:
            fix = f"cannot be called with {count} argument{'s' if count > 1 else ''}: write {lines[method]}"
            raise ConfigError(f"{field}.{method}", name, fix) from None


def _check_calls(step: Any, aggregator: Any) -> None:  # noqa: ANN401 - of a user
    """Calls each method once, and checks the return value."""
    params = torch.zeros(_CLIENTS, _DIM)
    step_name = type(step).__name__
    aggregator_name = type(aggregator).__name__
    init = f"{step_name}.init"
    call = f"{step_name}.__call__"
    init_aggregator = f"{aggregator_name}.init"
    call_aggregator = f"{aggregator_name}.__call__"

    start = _call(lambda: aggregator.init(params))
    if start is _RAISED:
        return
    received, server_state = _unpack_pair(init_aggregator, start, "received, state")
    _check_tensor(init_aggregator, "what clients receive", received)
    _check_state(init_aggregator, server_state)

    local_state = _call(lambda: step.init(params))
    if local_state is _RAISED:
        return
    _check_state(init, local_state)
    _check_rows(init, local_state)

    client_result = _call(lambda: step(received, local_state, _Oracle()))
    if client_result is _RAISED:
        return
    message, next_local_state = _unpack_pair(call, client_result, "message, state")
    _check_tensor(call, "the message", message)
    _check_state(call, next_local_state)
    _check_same(call, init, local_state, next_local_state)
    _check_rows(call, next_local_state)

    server_result = _call(lambda: aggregator(message, _Network(), server_state))
    if server_result is _RAISED:
        return
    received_next, next_server_state = _unpack_pair(call_aggregator, server_result, "received, state")
    _check_tensor(call_aggregator, "what clients receive", received_next)
    if received_next.shape != received.shape:
        fix = f"what clients receive has the shape {list(received_next.shape)}, but {init_aggregator} returns "
        raise ConfigError("strategy", call_aggregator, f"{fix}{list(received.shape)}: return the same shape")
    _check_state(call_aggregator, next_server_state)
    _check_same(call_aggregator, init_aggregator, server_state, next_server_state)


_RAISED = object()


def _call(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what a user's part returns
    """Returns the result of a call, or `_RAISED` if the call fails. The plan reports such errors later, with the true
    sizes.

    Raises:
        ConfigError: If the oracle or the network has no such method.
    """
    try:
        return call()
    except ConfigError:
        raise
    except AttributeError as error:
        if isinstance(error.obj, _Oracle | _Network):
            names = [name for name in dir(error.obj) if not name.startswith("_")]
            kind = type(error.obj).__name__.strip("_").lower()
            close = suggest_nearest(str(error.name), names)
            if "did you mean" in close:
                close += f" (its attributes: {', '.join(names)})"
            fix = f"the {kind} has no attribute of this name{close}"
            raise ConfigError("strategy", f"{kind}.{error.name}", fix) from error
        return _RAISED
    except Exception:  # a user's code can raise anything
        return _RAISED


def _unpack_pair(where: str, result: object, names: str) -> tuple[Any, Any]:
    """Returns the two values of a result.

    Raises:
        ConfigError: If the result is not a pair; the message contains `names`, the names of the two values.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise ConfigError("strategy", f"{where} -> {_kind(result)}", f"must return two values: return {names}")
    return result


def _check_tensor(where: str, description: str, value: object) -> None:
    """Raises an error if a value has no row for each client; rows may be longer than the parameters, e.g. of two
    vectors.
    """
    if not isinstance(value, Tensor):
        fix = f"{description} must be a tensor [n, dim], one row per client; it is {_kind(value)}"
        raise ConfigError("strategy", where, fix)
    if value.ndim == 2 and len(value) == _CLIENTS:
        return
    shape = [_CLIENTS, _DIM]
    fix = f"{description} must have the shape [n, dim], one row per client; for {shape} it is {list(value.shape)}"
    if value.ndim == 1 and len(value) != _CLIENTS:
        fix += "; a mean over clients is network.mean(message), which has one row per client"
    if value.ndim == 2 and len(value) == 1:
        fix += "; send one row to all clients with network.scatter(row), or row.expand_as(params)"
    raise ConfigError("strategy", where, fix)


def _check_state(where: str, state: object) -> None:
    """Raises an error if a state has a value that cannot be stored."""
    try:
        flatten_with_names(state)
    except ConfigError as error:
        fix = f"its state has a {error.value}: {error.fix}"
        raise ConfigError("strategy", where, fix) from error


def _check_rows(where: str, state: object) -> None:
    """Raises an error if a client update's state has a tensor without a row for each client."""
    for name, leaf in flatten_with_names(state).items():
        if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) != _CLIENTS:
            fix = (
                f"{name or 'its state'} must have one row per client, [n, ...]; for {_CLIENTS} clients it is "
                f"{list(leaf.shape)}. A value for all clients must be a number, or a tensor of shape []"
            )
            raise ConfigError("strategy", where, fix)


def _check_same(where: str, init: str, before: object, after: object) -> None:
    """Raises an error if the names in a state change in a round, because a checkpoint could then not be restored."""
    expected = set(flatten_with_names(before))
    actual = set(flatten_with_names(after))
    if expected != actual:
        fix = f"its state has the fields {_join(actual)}, but {init} creates {_join(expected)}: keep the same fields"
        raise ConfigError("strategy", where, fix)


def _join(names: set[str]) -> str:
    return ", ".join(sorted(name or "(one value)" for name in names)) or "none (None)"


def _kind(value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} values"
    return f"a {type(value).__name__}"


class _Oracle:
    """Returns zeros for all queries; see `fedpriv.strategies.base.Oracle`."""

    n_clients = _CLIENTS
    numbers = torch.arange(_CLIENTS)
    weights = torch.ones(_CLIENTS)
    noise_variance = torch.zeros(_CLIENTS, 1)
    noise_in_mean = torch.zeros(_CLIENTS, 1)
    equality = torch.zeros(_CLIENTS, 1, dtype=torch.bool)

    def gradient(self, params: Tensor) -> Tensor:
        return torch.zeros_like(params)

    client_gradient = full_gradient = gradient

    def gradient_difference(self, params: Tensor, anchor: Tensor, bound: float | None = None) -> Tensor:
        return torch.zeros_like(params)

    def exact(self, params: Tensor) -> tuple[Tensor, Tensor]:
        zeros = 0 * params.sum(1)
        return zeros, zeros.unsqueeze(1)

    def statistic(self, params: Tensor, name: str) -> Tensor:
        return params.new_zeros(len(params), 1)

    def lagrangian_gradient(self, params: Tensor, multipliers: Tensor) -> Tensor:
        return torch.zeros_like(params)


class _Network:
    """A server and its clients, see `fedpriv.strategies.base.Network`."""

    n_clients = _CLIENTS

    def mean(self, rows: Tensor) -> Tensor:
        return rows.mean(0, keepdim=True).expand(_CLIENTS, *rows.shape[1:])

    mix = mean

    def replace_rows(self, rows: Tensor, others: Tensor) -> Tensor:
        return rows

    def gather(self, rows: Tensor) -> Tensor:
        return rows

    def total(self, rows: Tensor) -> Tensor:
        return rows.sum(0, keepdim=True)

    def largest(self, rows: Tensor) -> Tensor:
        return rows.amax(0, keepdim=True)

    def scatter(self, row: Tensor) -> Tensor:
        return row.expand(_CLIENTS, *row.shape[1:])
