"""A model starts from weights in a file, which must be just its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedpriv.config import Config, build, fingerprint, forecast, load_config
from fedpriv.data.torchvision_compat import import_torchvision
from fedpriv.errors import ConfigError, FedprivError
from fedpriv.models import MnistCNN, ResNet18, load_weights
from fedpriv.storage.folder import RunFolder

RUN = Path(__file__).parents[1] / "run.yaml"


def net(seed: int = 0, n_classes: int = 10) -> MnistCNN:
    torch.manual_seed(seed)
    return MnistCNN((1, 8, 8), n_classes, (2, 4))


def saved(path: Path, **changes: Tensor | None) -> Path:
    """The weights of `net(1)`, as they are or with some changed; None leaves one out."""
    state = {**net(1).state_dict(), **changes}
    state = {name: value.contiguous() for name, value in state.items() if value is not None}
    save_file(state, path) if path.suffix == ".safetensors" else torch.save(state, path)
    return path


@pytest.mark.parametrize("name", ["net.safetensors", "net.pt"])
def test_load_weights_copies_file_values(tmp_path: Path, name: str):
    found = load_weights(net(), saved(tmp_path / name))
    for given, wanted in zip(found.state_dict().values(), net(1).state_dict().values(), strict=True):
        assert torch.equal(given, wanted)


def test_load_weights_without_keeps_new_head(tmp_path: Path):
    found = load_weights(net(n_classes=3), saved(tmp_path / "net.safetensors"), exclude=["layers.9.*"]).state_dict()
    for name, value in found.items():
        other = net(n_classes=3) if name.startswith("layers.9") else net(1)
        assert torch.equal(value, other.state_dict()[name])


WRONG = {
    "lacks one": ({"layers.0.bias": None}, r"lacks layers\.0\.bias: use weights of this model"),
    "lacks many": (dict.fromkeys(list(net().state_dict())[:5]), r"lacks layers\.0\.weight, .* and 2 more"),
    "has one more": ({"fc.bias": torch.zeros(3)}, r"contains names that the model does not have, fc\.bias"),
    "of another shape": (
        {"layers.9.bias": torch.zeros(3)},
        r"other shapes for layers\.9\.bias \[3\] instead of \[10\]",
    ),
    "not finite": ({"layers.0.bias": torch.full((2,), torch.nan)}, r"not finite in layers\.0\.bias"),
    "all at once": (
        {"layers.0.bias": None, "fc.bias": torch.zeros(3)},
        r"lacks layers\.0\.bias; contains names .*fc\.bias",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_load_weights_mismatch_raises_and_changes_nothing(tmp_path: Path, kind: str):
    changes, message = WRONG[kind]
    model = net()
    with pytest.raises(ConfigError, match=rf"(?s)^model\.weights = '.*net\.pt': .*{message}"):
        load_weights(model, saved(tmp_path / "net.pt", **changes))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), net().parameters(), strict=True))


def test_load_weights_invalid_file_raises(tmp_path: Path):
    class Code:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (Path(tmp_path / "ran"),))  # type: ignore[return-value]

    contents = {"a.safetensors": b"PK", "b.pt": b"\x80\x02.", "c.pt": b"", "d": b"text"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    torch.save(Code(), tmp_path / "e.pt")
    torch.save([1, 2], tmp_path / "f.pt")
    for name in (*contents, "e.pt", "f.pt", "missing.pt", "missing.safetensors"):
        with pytest.raises(ConfigError, match=r"^model\.weights = "):
            load_weights(net(), tmp_path / name)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ConfigError, match=r"^model\.weights\.exclude = 'head\.\*': matches no name"):
        load_weights(net(), saved(tmp_path / "net.pt"), exclude=["head.*"])


def test_load_weights_tied_stored_once(tmp_path: Path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Embedding(3, 2), nn.Linear(2, 3, bias=False)
            self.last.weight = self.first.weight

    save_file({"first.weight": torch.ones(3, 2)}, tmp_path / "tied.safetensors")
    assert load_weights(Tied(), tmp_path / "tied.safetensors").last.weight.eq(1).all()


def config(path: Path, *more: str) -> Config:
    model = f"model={{name: mnist_cnn, channels: [2, 4], weights: '{path}', train: [layers.9.*]}}"
    return load_config(RUN, [model, "strategy={name: fedavg, learning_rate: .5}", "rounds=3", *more])


def test_resume_with_other_weights_file_raises(tmp_path: Path):
    path = saved(tmp_path / "net.safetensors")
    made = config(path, "log.checkpoint_every=1")
    with RunFolder.new(tmp_path / "run") as folder:
        training = build(made, folder)
        start = net(1)
        assert all(map(torch.equal, training.population.model.parameters(), start.parameters()))
        next(iter(training))
    assert any("model.weights" in warning for warning in forecast(made).warnings)
    moved = path.rename(tmp_path / "moved.safetensors")
    assert fingerprint(config(moved)) == fingerprint(config(saved(path)))
    saved(path, **{"layers.9.bias": torch.ones(10)})  # a trained one, which no frozen value would betray
    assert fingerprint(config(moved)) != fingerprint(config(path))
    with RunFolder(tmp_path / "run") as folder, pytest.raises(FedprivError, match="other settings"):
        build(made, folder, resume=True)


# --- ResNet-18


def test_resnet18_matches_torchvision_group_norm():
    torch.manual_seed(0)
    of_torchvision = import_torchvision("models").resnet18
    ours, theirs = ResNet18((3, 40, 40)), of_torchvision(num_classes=10, norm_layer=partial(nn.GroupNorm, 32))
    assert sum(p.numel() for p in ours.parameters()) == 11_181_642
    assert sum(p.numel() for p in ours.fc.parameters()) == 5_130
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 40, 40)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


def test_resnet18_small_image_works_flat_input_raises():
    assert ResNet18((1, 8, 8), 3, width=8, stem="cifar")(torch.randn(2, 64)).shape == (2, 3)
    with pytest.raises(ConfigError, match=r"^model\.input_shape"):
        ResNet18((64,))
