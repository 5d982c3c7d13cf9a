"""Adapters beside frozen linear layers: they change nothing at first, and are all that is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_fine_tuning import command, parts_and_whole, trained
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import Layout
from fedpriv.config import Config, build, load_config
from fedpriv.data.torchvision_compat import import_torchvision
from fedpriv.errors import ConfigError
from fedpriv.models import VisionTransformer, add_lora
from fedpriv.oracle.backends import BACKENDS
from fedpriv.privacy.clipping import Clip

ROOT = Path(__file__).parents[2]
LAYERS = ["blocks.*.query", "blocks.*.value"]
TINY = {
    "tests/vit_lora.yaml": ["model.width=8", "model.heads=2", "model.patch=4"],
    "configs/digits_resnet_head.yaml": ["model.width=2"],
}


def transformer() -> VisionTransformer:
    torch.manual_seed(0)
    return VisionTransformer((1, 4, 4), 3, patch=2, width=8, heads=2)


def test_lora_starts_as_identity_and_trains_alone():
    x = torch.randn(5, 16)
    wanted = transformer()(x)
    model = add_lora(transformer(), LAYERS, rank=2, train=["head.*"])
    assert torch.equal(model(x), wanted)
    adapters = {f"blocks.{i}.attention.{j}.lora_{k}.weight" for i in (0, 1) for j in ("query", "value") for k in "AB"}
    assert trained(model) == {*adapters, "head.weight", "head.bias"}


def test_lora_layer_matches_formula():
    torch.manual_seed(1)
    layer = add_lora(nn.Sequential(nn.Linear(6, 5)), ["0"], rank=2, alpha=3.0)
    adapted = layer[0]
    nn.init.normal_(adapted.lora_B.weight)
    weight = adapted.base.weight + 3.0 / 2 * adapted.lora_B.weight @ adapted.lora_A.weight
    x = torch.randn(4, 6)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, weight, adapted.base.bias))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2)


@pytest.mark.parametrize(
    ("model", "layers", "message"),
    [
        (transformer(), ["blocks.*.qeury"], r"matches no name in the model"),
        (transformer(), ["norm"], r"'norm': is a LayerNorm"),
        (Encoder(), ["layer.linear1"], r"TransformerEncoderLayer, which reads the weights"),
        (Encoder(), ["layer.self_attn.out_proj"], r"NonDynamicallyQuantizableLinear"),
    ],
)
def test_lora_unsupported_layer_raises(model: nn.Module, layers: list[str], message: str):
    with pytest.raises(ConfigError, match=rf"^model\.lora\.layers = .*{message}"):
        add_lora(model, layers)


def test_lora_rank_and_alpha_not_positive_raise():
    for wrong in ({"rank": 0}, {"alpha": -1.0}):
        with pytest.raises(ConfigError, match=rf"^model\.lora\.{next(iter(wrong))}"):
            add_lora(transformer(), LAYERS, **wrong)


@pytest.mark.parametrize("clip", [Clip(0.3), None], ids=str)
def test_lora_backends_agree(clip: Clip | None):
    model, draw = add_lora(transformer(), LAYERS, rank=2, train=["head.*"]).double(), torch.Generator().manual_seed(4)
    x = torch.randn(2, 4, 16, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (2, 4), generator=draw)
    batch = Batch(torch.arange(2), x, y, torch.ones(2, 4, dtype=torch.bool))
    rows = torch.randn(2, Layout.of(model).dim, generator=draw, dtype=torch.float64)
    sums: list[Tensor] = []
    for name in ("loop", "vmap", "ghost"):
        sums.append(BACKENDS[name](model, nn.CrossEntropyLoss()).clipped_sum(rows, batch, clip)[0])
        torch.testing.assert_close(sums[-1], sums[0], rtol=1e-9, atol=1e-12)


# --- as the configurations of the project have it


def tiny(name: str, *more: str) -> Config:
    few = ["rounds=4", "secret_seed=3", "log.checkpoint_every=2", "log.tensorboard=false"]
    return load_config(ROOT / name, [*TINY[name], *few, *more])


@pytest.mark.parametrize("name", TINY)
def test_lora_config_resumed_run_equals_unbroken(name: str, tmp_path: Path):
    config = tiny(name)
    resumed, whole = parts_and_whole(tmp_path, config)
    start, found = build(config).population.model, resumed.model.state_dict()
    assert len(build(config).population) == 20
    assert torch.equal(resumed.params, whole.params)
    moved = trained(start)
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, found[key])
        assert torch.equal(value, start.state_dict()[key]) == (key not in moved)


@pytest.mark.parametrize("name", TINY)
def test_lora_config_trains_by_command(name: str, tmp_path: Path):
    words = [*TINY[name], "rounds=1", "log.tensorboard=false"]
    command("train", str(ROOT / name), "--out", str(tmp_path / "run"), *words)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["epsilon"] <= 3
    assert result["bytes_sent"] == 2 * 20 * 4 * result["parameters"]["trained"]


# --- peft


def test_peft_adapters_train_privately():
    """A small model from a configuration: nothing is downloaded."""
    import_torchvision("transforms")  # transformers imports it
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(**sizes, vocab_size=30, max_position_embeddings=8, num_labels=3)
    whole = transformers.BertForSequenceClassification(config)
    lora = peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = peft.get_peft_model(whole, lora)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.inner(input_ids=tokens).logits

    model, draw = Classifier(), torch.Generator().manual_seed(1)
    data = [
        TensorDataset(torch.randint(0, 30, (4, 5), generator=draw), torch.randint(0, 3, (4,), generator=draw))
        for _ in range(2)
    ]
    clients = fp.make_clients(model, nn.CrossEntropyLoss(), data)
    result = fp.train(clients, fp.fedavg(0.5), fp.Privacy(epsilon=5), rounds=2, seed=0, secret_seed=0)
    names = trained(model)
    assert {part for name in names for part in ("lora_A", "lora_B", "classifier") if part in name} == {
        "lora_A",
        "lora_B",
        "classifier",
    }
    assert all("lora_" in name or "classifier" in name for name in names)
    after = result.model.state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, after[name]) == (name not in names)
