"""What mixes examples is refused by the layer's name, with a fix that is tried here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_batches import clients
from model_kinds import (
    WORDS,
    E,
    Kind,
    Mapped,
    Residual,
    T,
    attended,
    attention,
    encoded,
    encoder,
    inputs,
    means,
    of_words,
)
from torch import Tensor, nn

import fedpriv as fp
from fedpriv.models import fix_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:There is a performance drop", "ignore:enable_nested_tensor", "ignore:.*norm_first"
)


def norm(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Residual(make)


def shifted(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return layers[0](x.mean(1)).roll(1, 0)


def branching(layers: nn.ModuleList, x: Tensor) -> Tensor:
    values = layers[0](x.mean(1))
    return values if float(x.detach().sum()) > 0 else values.tanh()


def examples_first(model: nn.Module) -> nn.Module:
    for layer in model.modules():
        if isinstance(layer, nn.MultiheadAttention | nn.LSTM):
            layer.batch_first = True
    return model


def changed(model: nn.Module, **settings: Any) -> nn.Module:
    vars(model.layers[0]).update(settings)
    return model


def by_parametrization(model: nn.Module) -> nn.Module:
    before, x = model.layers[0].weight.detach().clone(), nn.utils.remove_weight_norm(model.layers[0])
    nn.utils.parametrizations.weight_norm(x)
    torch.testing.assert_close(x.weight.detach(), before)
    return model


def called_once(model: nn.Module) -> nn.Module:
    model(torch.zeros(1, T, E))
    return model


def in_eval_mode(model: nn.Module) -> nn.Module:
    model.norm.eval()
    return model


def compares_with_first(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Its first layer gives one row for all examples, its last the first example what it gives it alone."""
    h = x + layers[0](torch.zeros(1, T, E))
    return layers[1](h - h[:1]).mean(1)


REFUSED: dict[str, tuple[Kind, str, list[Callable[[nn.Module], nn.Module]]]] = {
    "batch norm": (
        Kind(norm(lambda: nn.BatchNorm2d(4)), inputs="image"),
        r"model\.norm = 'BatchNorm2d'.*call \.eval\(\) on it.*replace it by a GroupNorm, which changes the model",
        [in_eval_mode, fix_model],
    ),
    "instance norm with statistics": (
        Kind(norm(lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True)), inputs="image"),
        r"model\.norm = 'InstanceNorm2d'.*set track_running_stats=False",
        [fix_model],
    ),
    "attention over examples": (
        Kind(lambda: Mapped(attended, attention(batch_first=False)())),
        r"model\.layers\.0 = 'MultiheadAttention'.*set batch_first=True, which was tested and keeps examples apart",
        [examples_first],
    ),
    "encoder over examples": (
        Kind(lambda: Mapped(encoded, encoder(batch_first=False)())),
        r"self_attn = 'MultiheadAttention'.*set batch_first=True",
        [examples_first],
    ),
    "lstm over examples": (
        Kind(lambda: Mapped(lambda m, x: m[0](x)[0][:, -1], nn.LSTM(E, E))),
        r"model\.layers\.0 = 'LSTM'.*set batch_first=True",
        [examples_first],
    ),
    "compared with the first": (
        Kind(lambda: Mapped(compares_with_first, nn.Linear(E, E), nn.Linear(E, E))),
        r"model = 'Mapped': its output for an example alone differs from that in a batch",
        [],
    ),
    "sparse embedding": (
        Kind(lambda: Mapped(of_words, nn.Embedding(WORDS, E, sparse=True)), inputs="words"),
        r"model\.layers\.0 = 'Embedding'.*set sparse=False",
        [lambda model: changed(model, sparse=False)],
    ),
    "embedding scaled by frequency": (
        Kind(lambda: Mapped(of_words, nn.Embedding(WORDS, E, scale_grad_by_freq=True)), inputs="words"),
        r"model\.layers\.0 = 'Embedding'.*set scale_grad_by_freq=False",
        [lambda model: changed(model, scale_grad_by_freq=False)],
    ),
    "layers without shapes": (
        Kind(lambda: Mapped(means, nn.LazyLinear(E))),
        r"model\.layers\.0\.weight = 'UninitializedParameter': is a lazy parameter, which has no shape yet",
        [called_once],
    ),
    "embedding with max_norm": (
        Kind(lambda: Mapped(of_words, nn.Embedding(WORDS, E, max_norm=1.0).requires_grad_(False)), inputs="words"),
        r"model\.layers\.0 = 'Embedding'.*reveals what the data contain; set max_norm=None",
        [lambda model: changed(model, max_norm=None)],
    ),
    "a branch on the whole batch": (Kind(lambda: Mapped(branching, nn.Linear(E, E))), r"model = 'Mapped'", []),
    "another example's outputs": (Kind(lambda: Mapped(shifted, nn.Linear(E, E))), r"model = 'Mapped'", []),
}


@pytest.mark.filterwarnings("ignore:model.* was replaced by a new GroupNorm")
@pytest.mark.parametrize("name", REFUSED)
def test_mixing_layer_raises_and_fix_works(name: str) -> None:
    torch.manual_seed(3)
    kind, message, fixes = REFUSED[name]

    def run(model: nn.Module) -> fp.Training:
        return fp.Training(clients(kind, model), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)

    with pytest.raises(fp.ConfigError, match=message):
        run(kind.make())
    for fix in fixes:
        assert len(list(run(fix(kind.make())))) == 1


@pytest.mark.parametrize("through_data", [False, True])
def test_model_writing_frozen_values_raises(through_data: bool) -> None:
    """Frozen values are released without noise, so marks of embedding lookups would be released as well."""

    class Marking(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:
            with torch.no_grad():
                weight = self.weight.data if through_data else self.weight
                weight[input.flatten(), 0] += 1e-6
            return super().forward(input)

    def make() -> nn.Module:
        return Mapped(of_words, Marking(WORDS, E).requires_grad_(False))

    kind = Kind(make, inputs="words")
    with pytest.raises(
        fp.ConfigError, match=r"model\.layers\.0\.weight = 'frozen': a forward pass changes this tensor"
    ):
        fp.Training(clients(kind, make()), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)


def test_weight_keeping_fixes_keep_outputs() -> None:
    torch.manual_seed(4)
    x = inputs("image", 4)
    model = Residual(lambda: nn.BatchNorm2d(4))
    model(x)
    tested = copy.deepcopy(model).eval()(x)
    torch.testing.assert_close(in_eval_mode(model)(x), tested)
    model = Residual(lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True))
    torch.testing.assert_close(fix_model(model)(x), model(x))
