"""Low-rank adapters for linear layers.

Source: Hu et al. (2022), LoRA: Low-rank adaptation of large language models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from fedpriv.errors import ConfigError
from fedpriv.models.tuning import match_names, train_only
from fedpriv.settings.checks import Count, Positive, validate_arguments

_FIELD = "model.lora.layers"


@validate_arguments("model.lora")
@dataclass(frozen=True)
class Lora:
    """Settings of low-rank adapters: the layers that get an adapter, and the size of the adapters.

    Args:
        layers: Patterns of the names of linear layers, such as `blocks.*.query`.
        rank: Width between the two factors of an adapter.
        alpha: The adapter's output is multiplied by alpha / rank; None multiplies by 1.

    Raises:
        ConfigError: If rank or alpha is not positive.
    """

    layers: tuple[str, ...]
    rank: Count = 4
    alpha: Positive | None = None


class LoraLinear(nn.Module):
    """A frozen linear layer plus a trained product of two thin ones: `x -> W x + b + (alpha / rank) B A x`.

    B starts at zero, so that the layer's outputs do not change at first.

    Args:
        base: The layer.
        rank: Rows of A, columns of B.
        alpha: See `Lora`.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.scale = alpha / rank
        where = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, **where)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, **where)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the layer's output plus the adapter's: `[..., in_features] -> [..., out_features]`."""
        return self.base(x) + self.scale * self.lora_B(self.lora_A(x))


@validate_arguments("model.lora")
def add_lora(
    model: nn.Module,
    layers: Sequence[str],
    *,
    rank: Count = 4,
    alpha: Positive | None = None,
    train: Sequence[str] = (),
) -> nn.Module:
    """Adds adapters to linear layers and freezes all other parameters, in place.

    Args:
        model: Any module.
        layers: Patterns of the names of linear layers, see `Lora`.
        rank: See `Lora`.
        alpha: See `Lora`.
        train: Patterns of further parameters to train, such as `head.*`.

    Returns:
        The model.

    Raises:
        ConfigError: If a pattern matches no layer, or matches a layer that is no plain `torch.nn.Linear`.
    """
    settings = Lora(tuple(layers), rank, alpha)
    inner = dict(model.named_modules())
    chosen = {name for pattern in settings.layers for name in match_names(pattern, [*filter(None, inner)], _FIELD)}
    for name in chosen:
        _check_plain(name, inner)
    train_only(model, train)
    for name in sorted(chosen):
        owner, _, attribute = name.rpartition(".")
        layer = inner[name]
        assert isinstance(layer, nn.Linear)
        setattr(inner[owner], attribute, LoraLinear(layer, rank, alpha or rank))
    return model


def _check_plain(name: str, inner: dict[str, nn.Module]) -> None:
    """Raises for a layer to which no adapter can be added."""
    layer = inner[name]
    owner = inner[name.rpartition(".")[0]]
    if type(layer) is not nn.Linear:
        fix = "name only layers of type torch.nn.Linear, since only these can have an adapter"
        raise ConfigError(_FIELD, name, f"is a {type(layer).__name__}: {fix}")
    if isinstance(owner, (nn.MultiheadAttention, nn.TransformerEncoderLayer)):
        fix = (
            "which reads the weights of its linear layers directly, so an adapter would have no effect: leave this "
            "layer out, or use an attention module that calls its layers, as in the model vit"
        )
        raise ConfigError(_FIELD, name, f"is part of torch's {type(owner).__name__}, {fix}")
