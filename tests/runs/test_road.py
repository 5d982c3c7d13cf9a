"""The road from `train` to the first gradient is short: the clients are handed on few times, and never back."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedpriv as fp

PACKAGE = Path(fp.__file__).parent
CALLABLES_OF_CLASSES = ("self", "cls")
TRIED_BEFORE_THE_RUN = {"validation", "backend_selection"}  # these ask a backend for gradients of made-up examples


class FirstGradient(Exception):
    """The first gradient of the run is asked for."""


class Road:
    """Where the clients go: a place is a function of fedpriv that gets them, or an object that stands for them.

    Attributes:
        places: File and name of each function, in the order of the first visit.
        climbs: Places in a file which the clients had left for that of the caller.
    """

    def __init__(self, first_client: fp.Client) -> None:
        self._first_client = first_client
        self.places: list[tuple[str, str]] = []
        self.climbs: list[tuple[str, str]] = []

    def follow(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        file = Path(code.co_filename)
        if event != "call" or PACKAGE not in file.parents:
            return
        if code.co_name == "clipped_sum" and not TRIED_BEFORE_THE_RUN & {caller.stem for caller in callers(frame)}:
            raise FirstGradient
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals.get(name) for name in names if name not in CALLABLES_OF_CLASSES]
        place = (file.relative_to(PACKAGE).as_posix(), code.co_qualname)
        if not any(map(self._is_clients, values)) or place in self.places:
            return
        visited = [visited_file for visited_file, _ in self.places]
        calling = [caller.relative_to(PACKAGE).as_posix() for caller in callers(frame) if PACKAGE in caller.parents]
        if calling and calling[0] in visited and place[0] in visited[: visited.index(calling[0])]:
            self.climbs.append(place)
        self.places.append(place)

    def _is_clients(self, value: object) -> bool:
        if isinstance(value, list | tuple):
            return len(value) > 0 and value[0] is self._first_client
        if not type(value).__module__.startswith("fedpriv.clients."):
            return False
        return any(map(self._is_clients, getattr(value, "__dict__", {}).values()))


def callers(frame: FrameType) -> list[Path]:
    files = list[Path]()
    caller = frame.f_back
    while caller is not None:
        files.append(Path(caller.f_code.co_filename))
        caller = caller.f_back
    return files


def followed(clients: list[fp.Client], start: Callable[[], object]) -> Road:
    road = Road(clients[0])
    sys.setprofile(road.follow)
    try:
        start()
    except FirstGradient:
        return road
    finally:
        sys.setprofile(None)
    raise AssertionError("the run asked for no gradient")


def test_clients_passed_through_few_functions():
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    targets = (inputs.sum(1) > 0).long()
    datasets = [TensorDataset(inputs[k::4], targets[k::4]) for k in range(4)]
    clients = list(fp.make_clients(nn.Linear(3, 2), nn.CrossEntropyLoss(), datasets))

    road = followed(clients, lambda: fp.train(clients, fp.fedavg(learning_rate=0.1), fp.Privacy(epsilon=3), rounds=3))

    assert ("oracle/data_query_engine.py", "data_oracle") in road.places, "the road does not end at the oracle"
    # two of them since 30: real examples for the test of a loss, and the test for state
    assert len(road.places) <= 32, road.places
    assert len(road.climbs) <= 8, road.climbs
