"""`settings.json`: the settings of a run from a Python program, in the sections of a configuration.

A configuration can be run again from its text. The objects of a program cannot, so a class is represented by its name
and fields, and a function or a module by its name. The file is for readers and for `fedpriv show`, `report` and
`statement`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
from torch import nn
from torch.utils.data import Subset

from fedpriv.network.graph import Graph
from fedpriv.network.local import Star
from fedpriv.runs.settings_text import format_setting

if TYPE_CHECKING:
    from fedpriv.network.rounds import RoundNetwork
    from fedpriv.runs.options import TrainingOptions
    from fedpriv.runs.stages import Experiment

_LISTED = 10  # values of a list that are written out
_DRAWN = 1000  # links of a graph that are written out, enough to draw it


def describe_settings(experiment: Experiment, options: TrainingOptions) -> dict[str, Any]:
    """Returns the settings of a run as values for JSON. All of them are public; they describe the data only by class
    names and sizes.

    Args:
        experiment: The resolved settings.
        options: The arguments of the run.
    """
    client = experiment.clients[0]
    return {
        "data": _data(experiment),
        "model": {"name": type(client.model).__name__, "parameters": _n_trained(client.model)},
        "loss": {"name": format_setting(client.loss)},
        "strategy": {"variant": "sound", **_fields_of(experiment.strategy)},
        "privacy": _fields_of(experiment.privacy),
        "network": _network(experiment.network),
        "compute": _fields_of(experiment.compute),
        "rounds": experiment.rounds,
        "seed": options.seed,
        "log": {
            name: describe_setting(getattr(options, name))
            for name in ("evaluate_every", "checkpoint_every", "stop_on", "stop", "keep", "optimum")
        },
    }


def find_linked_graph(network: Mapping[str, Any]) -> Graph | None:
    """Returns the graph of the section `network` of these settings; None for a star, or for a graph with many links.

    Raises:
        ConfigError: If the links do not form a connected graph.
    """
    links = network["topology"].get("links")
    if not links:
        return None
    return Graph(nx.Graph(links))


def describe_setting(value: object) -> Any:  # noqa: ANN401 - any JSON value
    """Returns a setting as a value for JSON: plain values and containers as they are, objects by name and fields."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        if math.isfinite(number):
            return number
        return str(number)
    if isinstance(value, (str, Path)):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _fields_of(value)
    if isinstance(value, Mapping):
        return {str(name): describe_setting(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)) and len(value) <= _LISTED:
        return [describe_setting(item) for item in value]
    return format_setting(value)


def _fields_of(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Returns the fields of a dataclass, and the name of its class as `name` unless it has a field `name`."""
    return {
        "name": type(value).__name__,
        **{field.name: describe_setting(getattr(value, field.name)) for field in fields(value)},
    }


def _data(experiment: Experiment) -> dict[str, Any]:
    data = experiment.clients[0].loader.dataset
    while isinstance(data, Subset):
        data = data.dataset
    kind = type(data).__name__
    if kind.startswith("_"):  # a class of fedpriv: data that are loaded when needed
        name = "data from Python"
    else:
        name = f"data from Python ({kind})"
    return {"name": name, "clients": len(experiment.clients), "examples": _sizes(experiment.sizes)}


def _sizes(sizes: Sequence[int]) -> list[int] | str:
    """Returns the public number of examples of each client, or a text if there are many clients."""
    if len(sizes) <= _LISTED:
        return [int(size) for size in sizes]
    return f"{min(sizes)} to {max(sizes)} for each client, {sum(sizes)} in all"


def _n_trained(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _network(network: RoundNetwork) -> dict[str, Any]:
    if isinstance(network, Star):
        return {
            "topology": {"name": "star"},
            "n_clients": network.n_clients,
            "cohort": describe_setting(network.cohort),
        }
    if isinstance(network, Graph):
        links = [[int(node), int(other)] for node, other in network.graph.edges()]
        topology: dict[str, Any] = {"name": "graph", "nodes": network.n_clients, "n_links": len(links)}
        if len(links) <= _DRAWN:
            topology["links"] = links
        activity = describe_setting(network.activity)
        return {"topology": topology, "activity": activity, "mixing_steps": network.mixing_steps}
    return {"topology": {"name": type(network).__name__}}
