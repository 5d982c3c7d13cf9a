"""Checks that a user's local step and aggregator are complete and fit together, when they become a `Strategy`.

Copies of both are called once with made-up parameters of three clients, `[3, 2]`, and an oracle and a network without
data. What comes back must have the promised types and shapes. An error that a part raises by itself is left to the
plan, which calls it with the right number of clients.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedpriv.errors import ConfigError
from fedpriv.settings.translations import nearest
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
    """Check both parts.

    Raises:
        ConfigError: a part lacks something (names the line to add), they speak of different things, or what they
            return has another type or shape.
    """
    _check_complete("strategy.local_step", step, _STEP_LINES, other="aggregator")
    _check_complete("strategy.aggregator", aggregator, _AGGREGATOR_LINES, other="local step")
    for speaker, listener in ((step, aggregator), (aggregator, step)):
        if speaker.sends != listener.receives:
            raise ConfigError(
                "strategy",
                f"{type(step).__name__} + {type(aggregator).__name__}",
                f"{type(speaker).__name__} sends {speaker.sends} but {type(listener).__name__} receives "
                f"{listener.receives}",
            )
    if all(type(part).__module__.startswith("fedpriv.") for part in (step, aggregator)):
        return
    try:
        copies = copy.deepcopy((step, aggregator))  # so that what they note of their calls stays true
    except Exception:  # whatever a user's part holds
        return
    _check_calls(*copies)


def _check_complete(field: str, part: Any, lines: dict[str, str], other: str) -> None:  # noqa: ANN401
    """Refuse a part without an attribute or method, or with one of another type."""
    if inspect.isclass(part):
        raise ConfigError(field, part.__name__, f"is a class: make an object of it, {part.__name__}()")
    name = type(part).__name__
    kind = field.partition(".")[2].replace("_", " ")
    if inspect.isfunction(part):
        fix = f"is a function: a {kind} is an object of a class with {', '.join(lines)}"
        raise ConfigError(field, part.__name__, fix)
    lacking = [known for known in lines if not (callable(part) if known == "__call__" else hasattr(part, known))]
    if len(lacking) == len(lines):
        raise ConfigError(field, part, f"is no {kind}: a class of yours needs {', '.join(lacking)}")
    if lacking:
        added = "; ".join(lines[known] for known in lacking)
        raise ConfigError(field, name, f"has no {' and no '.join(lacking)}: add to the class: {added}")
    for known in ("receives", "sends"):
        words = getattr(part, known)
        if isinstance(words, str):
            raise ConfigError(f"{field}.{known}", words, f"is text: write a tuple, ({words!r},), as the {other}'s")
        if not isinstance(words, tuple):
            raise ConfigError(f"{field}.{known}", words, f"must be a tuple of names: {lines[known]}")
    for known in ("linear", "is_sum"):
        if known in lines and not isinstance(getattr(part, known), bool):
            raise ConfigError(f"{field}.{known}", getattr(part, known), f"must be True or False: {lines[known]}")
    if "memory" in lines and part.memory not in ("none", "private"):
        raise ConfigError(f"{field}.memory", part.memory, "must be 'none' or 'private'")
    for method, count in (("init", 1), ("__call__", 3)):
        try:
            inspect.signature(getattr(part, method)).bind(*range(count))
        except TypeError:
            fix = f"cannot be called with {count} argument{'s' if count > 1 else ''}: write {lines[method]}"
            raise ConfigError(f"{field}.{method}", name, fix) from None


def _check_calls(step: Any, aggregator: Any) -> None:  # noqa: ANN401 - of a user
    """Call each method once, and look at what it returns."""
    params = torch.zeros(_CLIENTS, _DIM)
    step_name, aggregator_name = type(step).__name__, type(aggregator).__name__
    init, call = f"{step_name}.init", f"{step_name}.__call__"
    init_aggregator, call_aggregator = f"{aggregator_name}.init", f"{aggregator_name}.__call__"

    answer = _called(lambda: aggregator.init(params))
    if answer is _RAISED:
        return
    received, served = _pair_of(init_aggregator, answer, "received, state")
    _check_tensor(init_aggregator, "what clients receive", received)
    _check_state(init_aggregator, served)

    kept = _called(lambda: step.init(params))
    if kept is _RAISED:
        return
    _check_state(init, kept)
    _check_rows(init, kept)

    answer = _called(lambda: step(received, kept, _Oracle()))
    if answer is _RAISED:
        return
    message, kept_next = _pair_of(call, answer, "message, state")
    _check_tensor(call, "the message", message)
    _check_state(call, kept_next)
    _check_same(call, init, kept, kept_next)
    _check_rows(call, kept_next)

    answer = _called(lambda: aggregator(message, _Network(), served))
    if answer is _RAISED:
        return
    received_next, served_next = _pair_of(call_aggregator, answer, "received, state")
    _check_tensor(call_aggregator, "what clients receive", received_next)
    if received_next.shape != received.shape:
        fix = f"what clients receive has the shape {list(received_next.shape)}, and {init_aggregator} gives "
        raise ConfigError("strategy", call_aggregator, f"{fix}{list(received.shape)}: give the same one")
    _check_state(call_aggregator, served_next)
    _check_same(call_aggregator, init_aggregator, served, served_next)


_RAISED = object()


def _called(call: Callable[[], Any]) -> Any:  # noqa: ANN401 - what a user's part returns
    """What a call returns; `_RAISED` where it fails, for reasons that the plan tells with the true sizes.

    Raises:
        ConfigError: the oracle or the network has no such method.
    """
    try:
        return call()
    except ConfigError:
        raise
    except AttributeError as error:
        if isinstance(error.obj, _Oracle | _Network):
            names = [name for name in dir(error.obj) if not name.startswith("_")]
            what = type(error.obj).__name__.strip("_").lower()
            fix = f"the {what} has none of this name{nearest(str(error.name), names)} (there are: {', '.join(names)})"
            raise ConfigError("strategy", f"{what}.{error.name}", fix) from error
        return _RAISED
    except Exception:  # whatever a user's part raises
        return _RAISED


def _pair_of(where: str, answer: object, parts: str) -> tuple[Any, Any]:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ConfigError("strategy", f"{where} -> {_kind(answer)}", f"must return two things: return {parts}")
    return answer


def _check_tensor(where: str, what: str, given: object) -> None:
    """Refuse what is no row for each client; a row may be longer than the parameters, as that of two vectors."""
    if not isinstance(given, Tensor):
        fix = f"{what} must be a tensor [n, dim], a row for each client; it is {_kind(given)}"
        raise ConfigError("strategy", where, fix)
    if given.ndim == 2 and len(given) == _CLIENTS:
        return
    shape = [_CLIENTS, _DIM]
    fix = f"{what} must have the shape [n, dim], a row for each client; for {shape} it is {list(given.shape)}"
    if given.ndim == 1 and len(given) != _CLIENTS:
        fix += "; a mean over clients is network.mean(message), which has a row for each"
    if given.ndim == 2 and len(given) == 1:
        fix += "; send one row to all with network.scatter(row), or row.expand_as(params)"
    raise ConfigError("strategy", where, fix)


def _check_state(where: str, state: object) -> None:
    try:
        flatten_with_names(state)
    except ConfigError as error:
        fix = f"its state has a {error.value}: {error.fix}"
        raise ConfigError("strategy", where, fix) from error


def _check_rows(where: str, state: object) -> None:
    """A local step's tensors have a row for each client."""
    for name, leaf in flatten_with_names(state).items():
        if isinstance(leaf, Tensor) and leaf.ndim and len(leaf) != _CLIENTS:
            fix = (
                f"{name or 'its state'} must have a row for each client, [n, ...]; for {_CLIENTS} clients it is "
                f"{list(leaf.shape)}. What is one for all is a number, or a tensor of shape []"
            )
            raise ConfigError("strategy", where, fix)


def _check_same(where: str, init: str, before: object, after: object) -> None:
    """State has the same parts after a round, or a checkpoint could not be restored."""
    known, found = set(flatten_with_names(before)), set(flatten_with_names(after))
    if known != found:
        fix = f"its state has the parts {_listed(found)}, and {init} makes {_listed(known)}: keep the same ones"
        raise ConfigError("strategy", where, fix)


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(name or "(one value)" for name in names)) or "none (None)"


def _kind(given: object) -> str:
    if isinstance(given, tuple):
        return f"{len(given)} things"
    return f"a {type(given).__name__}"


class _Oracle:
    """Answers zeros, see `fedpriv.strategies.base.Oracle`."""

    n_clients = _CLIENTS
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

    def fill(self, rows: Tensor, others: Tensor) -> Tensor:
        return rows

    def gather(self, rows: Tensor) -> Tensor:
        return rows

    def total(self, rows: Tensor) -> Tensor:
        return rows.sum(0, keepdim=True)

    def largest(self, rows: Tensor) -> Tensor:
        return rows.amax(0, keepdim=True)

    def scatter(self, row: Tensor) -> Tensor:
        return row.expand(_CLIENTS, *row.shape[1:])
