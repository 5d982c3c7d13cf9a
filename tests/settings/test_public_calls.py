"""Every public call answers an unknown word and a missing one, and keeps its signature."""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import Callable
from typing import Any

import networkx
import pytest
import torch

import fedpriv
from fedpriv import ConfigError

MODULES = ("", ".sinks", ".data", ".models", ".audit", ".tuning", ".sites", ".config", ".strategies.proximal")


# functions of tensors, called in every step, and what users get but never make
NOT_OURS_TO_ASK = {
    *("cross_entropy", "hinge", "logistic", "squared_error", "predict"),
    *("Rows", "map_tree", "first_leaf", "list_leaves"),
    *(
        "Audit",
        "CheckResult",
        "Comparison",
        "Config",
        "Description",
        "Forecast",
        "Recipe",
        "SiteDescriptor",
        "FederationPlan",
        "SiteRound",
        "Outcome",
        "Trial",
    ),
}


def public() -> dict[str, Callable[..., Any]]:
    """Every function and class that users call."""
    found: dict[str, Callable[..., Any]] = {}
    for place in MODULES:
        module = importlib.import_module(f"fedpriv{place}") if place != ".sinks" else fedpriv.sinks
        for name in getattr(module, "__all__", ["L1", "L2", "Ball", "Box", "ElasticNet", "Simplex", "Zero"]):
            thing = getattr(module, name)
            is_class = inspect.isclass(thing)
            if not is_class and not inspect.isfunction(thing):
                continue
            if name in NOT_OURS_TO_ASK or typing.get_origin(thing) is not None:
                continue
            if is_class and (issubclass(thing, BaseException) or getattr(thing, "_is_protocol", False)):
                continue
            found[f"fedpriv{place}.{name}"] = thing
    return found


PUBLIC = public()


def test_public_call_list_complete():
    assert len(PUBLIC) > 120
    assert {"fedpriv.train", "fedpriv.Privacy", "fedpriv.sinks.TensorBoard", "fedpriv.sites.Site"} <= {*PUBLIC}


def takes_options_of_others(call: Callable[..., Any]) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(call).parameters.values())


@pytest.mark.parametrize("name", [name for name, call in PUBLIC.items() if not takes_options_of_others(call)])
def test_public_call_unknown_argument_suggests_known(name: str):
    call = PUBLIC[name]
    known = list(inspect.signature(call).parameters)
    with pytest.raises(ConfigError) as caught:
        call(no_such_word=1)
    assert caught.value.field.endswith("no_such_word")
    assert all(one in caught.value.fix for one in known) or "no options" in caught.value.fix
    if known:
        slip = f"{known[0]}x" if len(known[0]) > 3 else f"{known[0]}{known[0]}"
        with pytest.raises(ConfigError, match=known[0]):
            call(**{slip: 1})


@pytest.mark.parametrize("name", PUBLIC)
def test_public_call_missing_argument_shows_example(name: str):
    """The example call in the error is executed if it needs no object of the user."""
    call = PUBLIC[name]
    required = [
        one.name
        for one in inspect.signature(call).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if not required:
        return
    with pytest.raises(ConfigError) as caught:
        call()
    assert caught.value.field.split(".")[-1] == required[0]
    code = caught.value.fix.rpartition("e.g. ")[2]
    assert all(f"{one}=" in code for one in required)
    if name.count(".") == 1 and name.split(".")[1] not in OF_THE_USERS:
        eval(code, {"fedpriv": fedpriv, "networkx": networkx, "torch": torch})


# they need data, a model, or functions of the user's own
OF_THE_USERS = {
    *("describe", "plan_description", "make_coupled_clients"),
    *("Client", "make_clients", "lazy_clients", "count_examples", "train", "Training", "total", "Budget"),
    *(
        "Result",
        "RoundReport",
        "Function",
        "Strategy",
        "Forecast",
        "plan",
        "fit",
        "to_opacus",
        "compare",
        "check_pipeline",
    ),
}


def test_public_calls_have_signature_and_docstring():
    for name, call in PUBLIC.items():
        kinds = {one.kind for one in inspect.signature(call).parameters.values()}
        own = inspect.unwrap(call.__init__ if inspect.isclass(call) else call)
        assert inspect.Parameter.VAR_POSITIONAL not in kinds, name
        assert call.__doc__ or own.__doc__, name
        assert own.__module__.startswith("fedpriv") and own.__qualname__.split(".")[-1] in (call.__name__, "__init__")
