"""A plan with a too large model is refused before memory is allocated, by policy and by the machine's memory."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from sites_in_memory import Party, party
from torch import nn

from fedpriv.clients.public_info import PublicDataInfo
from fedpriv.config import load_config
from fedpriv.errors import ConfigError
from fedpriv.models import MODELS
from fedpriv.sites import FederationPlan
from fedpriv.sites.model_size import check_model_size, compute_largest_in_memory
from fedpriv.sites.resolved_plan import ResolvedPlan

FEDAVG = "strategy={name: fedavg, learning_rate: .5}"
HUGE = 10**12  # parameters, of which no machine here has the memory: four terabytes
RUN = Path(__file__).parents[1] / "run.yaml"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory):
    made = party(tmp_path_factory.mktemp("party"), FEDAVG, policy={"max_parameters": 100_000})
    yield made
    made.close()


def changed(found: Party, shape: tuple[int, ...], **model: Any) -> str:
    """The text of the plan with another model, and other examples."""
    document = yaml.safe_load(found.proposal.text)
    document["settings"]["model"] = {"fix": False, "weights": None, "lora": None, "train": None, **model}
    document["example"]["shape"] = list(shape)
    return yaml.safe_dump(document)


MODELS_TOO_LARGE: Mapping[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "one layer": ((HUGE // 10,), {"name": "softmax"}),
    "wide": ((1, 28, 28), {"name": "vit", "width": 1_000_000}),
    "deep": ((1, 28, 28), {"name": "vit", "depth": 10**12, "width": 4}),
    "channels": ((1, 28, 28), {"name": "mnist_cnn", "channels": [10**6, 10**6]}),
    "adapters": ((8,), {"name": "softmax", "lora": {"layers": ["linear"], "rank": HUGE // 10}}),
    "examples": ((1, 10**6, 10**6), {"name": "mnist_cnn"}),
}


@pytest.mark.parametrize("case", MODELS_TOO_LARGE)
def test_too_large_model_refused_before_creation(found: Party, case: str) -> None:
    shape, model = MODELS_TOO_LARGE[case]
    text = changed(found, shape, **model)
    # torch would say that it cannot allocate terabytes, or Python would take all memory
    with pytest.raises(ConfigError, match=r"policy.max_parameters.*the site's owner allows at most 100000"):
        found.sites[0].consider(text)
    # whoever has no limit of its own, such as the server, has its machine's memory
    with pytest.raises(ConfigError, match=r"plan.model.*this machine's memory allows at most"):
        ResolvedPlan.of(FederationPlan.read(text))


def test_parameter_limit_is_exact(found: Party) -> None:
    found.sites[0].consider(found.proposal.text)
    config, outline = found.proposal.config(), found.proposal.outline
    check_model_size(config, outline, 640, "plan.model", "at most")
    with pytest.raises(ConfigError, match=r"a larger model.*at most 639 parameters"):
        check_model_size(config, outline, 639, "plan.model", "at most")
    most = compute_largest_in_memory()
    assert most is None or 10**6 < most < HUGE


@pytest.mark.parametrize("name", MODELS)
def test_parameter_count_matches_model(name: str) -> None:
    shape: tuple[int, ...] = (1, 32, 32)
    n_classes = {"logistic_regression": 2, "linear_regression": None}.get(name, 10)
    config = load_config(RUN, [f"model={name}"])
    outline = PublicDataInfo((1,), shape, n_classes)
    options = {"input_shape": shape, "n_features": 1024, "n_classes": n_classes}
    builder = MODELS[name].build
    fitting = {key: value for key, value in options.items() if key in builder.__init__.__annotations__}
    n_parameters = sum(parameter.numel() for parameter in builder(**fitting).parameters())
    check_model_size(config, outline, n_parameters, "plan.model", "at most")
    with pytest.raises(ConfigError, match="at most"):
        check_model_size(config, outline, max(n_parameters - 1, 1023), "plan.model", "at most")


def test_parameter_count_ignores_other_threads(found: Party) -> None:
    others: list[nn.Module] = []
    resolve = MODELS["softmax"].build.__init__

    @functools.wraps(resolve)
    def with_another(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        thread = threading.Thread(target=lambda: others.append(nn.Linear(1000, 1000)))
        thread.start()
        thread.join()
        resolve(module, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODELS["softmax"].build, "__init__", with_another)
        check_model_size(found.proposal.config(), found.proposal.outline, 640, "plan.model", "at most")
    (other,) = others
    assert isinstance(other, nn.Linear)
    assert other.weight.device == torch.device("cpu")
    nn.Linear(1000, 1000)  # and nobody counts any more
