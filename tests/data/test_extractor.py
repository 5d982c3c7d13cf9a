"""Frozen extractors: features once, of one example at a time, and said to be public."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from fedpriv.cli import app
from fedpriv.config import build, fingerprint, forecast, load_config
from fedpriv.data import Extractor, extract_features
from fedpriv.data.extractor import load_onnx
from fedpriv.errors import ConfigError, DataError
from fedpriv.models import MnistCNN

MODEL = {"input_shape": (1, 8, 8), "n_classes": 10, "channels": (2, 4)}


def cli(*words: str) -> None:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.stderr


def net() -> MnistCNN:
    torch.manual_seed(1)
    return MnistCNN(**MODEL).eval()


def images(n: int = 5) -> TensorDataset:
    return TensorDataset(torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 10)


def onnx_file(path: Path, weights: np.ndarray) -> Path:
    """A network of one linear layer: flatten, then a product."""
    value = numpy_helper.from_array(weights.astype(np.float32), "w")
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", weights.shape[1]])
    graph = helper.make_graph(nodes, "net", [x], [y], [value])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def test_extracted_features_are_normalized_outputs():
    network, dataset = net(), images()
    x, y = extract_features(network, dataset, layer="layers.8", batch_size=2).tensors
    expected = network.layers[:9](dataset.tensors[0])
    torch.testing.assert_close(x, expected / expected.norm(dim=1, keepdim=True))
    assert torch.equal(y, dataset.tensors[1])
    plain = extract_features(network, dataset, normalize=False).tensors[0]
    torch.testing.assert_close(plain, network(dataset.tensors[0]).detach())
    assert not plain.requires_grad


def test_extracted_features_independent_of_others():
    dataset = images()
    before = extract_features(net(), dataset, batch_size=3).tensors[0]
    dataset.tensors[0][0] = 1 - dataset.tensors[0][0]
    after = extract_features(net(), dataset, batch_size=3).tensors[0]
    torch.testing.assert_close(before[1:], after[1:])
    assert not torch.allclose(before[0], after[0])


class Mixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) - x.flatten(1).mean(0)


def test_extractor_mixing_examples_raises():
    with pytest.raises(ConfigError, match="computes features of an example that depend on the other examples"):
        extract_features(Mixing(), images())
    # BatchNorm in eval mode does not mix
    extract_features(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()), images())


def test_incompatible_extractor_raises():
    with pytest.raises(ConfigError, match=r"no such layer.*layers\.8"):
        extract_features(net(), images(), layer="layer.8")
    with pytest.raises(DataError, match=r"cannot process inputs of shape \(1, 8, 8\)"):
        extract_features(nn.Linear(3, 2), images())
    with pytest.raises(DataError, match="not finite"):
        extract_features(lambda x: x.flatten(1) / 0, images())
    blank = TensorDataset(torch.zeros(2, 1, 8, 8), torch.zeros(2, dtype=torch.int64))
    assert not extract_features(nn.Flatten(), blank).tensors[0].any(), "norm 0 stays"


def test_onnx_extractor_matches_matrix_product(tmp_path: Path):
    weights = np.random.default_rng(0).standard_normal((64, 7))
    network = load_onnx(onnx_file(tmp_path / "net.onnx", weights))
    x = images().tensors[0]
    actual = extract_features(network, images(), normalize=False, batch_size=2).tensors[0]
    torch.testing.assert_close(actual, x.flatten(1) @ torch.tensor(weights).float(), rtol=1e-4, atol=1e-4)
    (tmp_path / "broken.onnx").write_bytes(b"no network")
    with pytest.raises(ConfigError, match="cannot be read as an ONNX file"):
        load_onnx(tmp_path / "broken.onnx")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"file": "a.onnx", "model": "mnist_cnn"}, "is an ONNX file, which contains its own layers"),
        ({"file": "a.pt"}, r"data\.extractor\.model = '': is required for a file of weights"),
    ],
)
def test_contradictory_extractor_settings_raise(options: dict[str, str], message: str):
    with pytest.raises(ConfigError, match=message):
        Extractor(**options)


def config(folder: Path, extractor: str, *overrides: str):
    (folder / "run.yaml").write_text(f"""
data:
  name: digits
  extractor: {extractor}
  partition: {{kind: iid, n_clients: 4}}
model: softmax
strategy: {{name: fedavg, learning_rate: 1}}
privacy: {{epsilon: 8}}
rounds: 1
""")
    return load_config(folder / "run.yaml", list(overrides))


def test_config_with_saved_extractor_trains(tmp_path: Path):
    save_file(net().state_dict(), tmp_path / "net.safetensors")
    features = f"{{file: {tmp_path}/net.safetensors, model: mnist_cnn, options: {{channels: [2, 4]}}, layer: layers.8}}"
    settings = config(tmp_path, features)
    training = build(settings)
    assert training.population.examples.inputs.shape[-1] == 16
    assert len(list(training)) == 1
    assert any("data.extractor.file" in warning for warning in forecast(settings).warnings)
    torch.save(net().state_dict(), tmp_path / "net.pt")
    again = build(config(tmp_path, features.replace("safetensors", "pt")))
    assert torch.equal(again.population.examples.inputs, training.population.examples.inputs)


def test_onnx_extractor_fingerprint_uses_contents(tmp_path: Path):
    path = onnx_file(tmp_path / "net.onnx", np.eye(64)[:, :5])
    settings = config(tmp_path, f"{{file: {path}}}")
    assert build(settings).population.examples.inputs.shape[-1] == 5
    before = fingerprint(settings)
    moved = tmp_path / "moved.onnx"
    path.rename(moved)
    assert fingerprint(config(tmp_path, f"{{file: {moved}}}")) == before, "contents count, not the path"
    onnx_file(moved, np.eye(64)[:, 1:6])
    assert fingerprint(config(tmp_path, f"{{file: {moved}}}")) != before


def test_wrong_extractor_file_raises(tmp_path: Path):
    path = onnx_file(tmp_path / "net.onnx", np.eye(64)[:, :5])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    build(config(tmp_path, f"{{file: {path}, sha256: {digest}}}"))
    with pytest.raises(ConfigError, match=r"data\.extractor\.sha256 .*use the intended file"):
        build(config(tmp_path, f"{{file: {path}, sha256: {'ab' * 32}}}"))
    with pytest.raises(ConfigError, match=r"data\.extractor\.file = 'absent\.pt': cannot be read"):
        build(config(tmp_path, "{file: absent.pt, model: mnist_cnn}"))
    with pytest.raises(ConfigError, match="random views are drawn anew for each query"):
        build(config(tmp_path, f"{{file: {path}}}", "data.augment=[flip]"))


def test_statement_names_extractor(tmp_path: Path):
    path = onnx_file(tmp_path / "net.onnx", np.eye(64)[:, :5])
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    config(tmp_path, f"{{file: {path}, sha256: {digest}}}")
    cli("train", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "run"), "log.tensorboard=false")
    cli("statement", str(tmp_path / "run"), "--out", str(tmp_path / "page.md"))
    text = (tmp_path / "page.md").read_text()
    assert (
        f"the network in {path} (SHA-256 {digest}) computed from single examples. The network is treated as public"
        in text
    )
