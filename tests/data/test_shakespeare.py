"""Shakespeare by role: windows of characters that do not overlap, and what they are scored by."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import fedpriv
from torch import nn

from fedpriv import models
from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import Layout
from fedpriv.config import build, load_config
from fedpriv.data import load, partition
from fedpriv.errors import ConfigError, DataError
from fedpriv.evaluation import metrics
from fedpriv.evaluation.evaluator import Evaluator
from fedpriv.models.example_losses import example_losses
from fedpriv.oracle.backends import BACKENDS
from fedpriv.privacy.clipping import Clip

A = ord("A") - 30  # the token of A: 1 is newline, 2 a space


def write(folder: Path, text: str, zipped: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    if zipped:
        (folder / "input.txt.gz").write_bytes(gzip.compress(text.encode()))
    else:
        (folder / "input.txt").write_text(text)
    return folder


PLAY = "HAM:\nABAB\n\nOPH:\nA\n\n[Exit]\n\nHAM:\nAB\nAB\n"


def read(folder: Path, **options: Any):
    return load("shakespeare", **{"root": str(folder), "length": 2, "min_windows": 1, **options})


@pytest.mark.parametrize("zipped", [False, True])
def test_shakespeare_windows_match_hand_encoding(zipped: bool, tmp_path: Path):
    split = read(write(tmp_path, PLAY, zipped))
    # HAM says AB AB \nA B\n AB \n-, of which the last sixth // 5 = 1 is for testing; OPH A\n
    x, y = split.train.tensors
    assert y.tolist() == [[A, A + 1], [A, A + 1], [1, A], [A + 1, 1], [A, A + 1], [A, 1]]
    assert x.tolist() == [[0, A], [0, A], [0, 1], [0, A + 1], [0, A], [0, A]]
    assert split.test.tensors[1].tolist() == [[1, -100]]
    assert split.writers.tolist() == [0] * 5 + [1]
    assert split.writer_names == {0: "HAM", 1: "OPH"}
    assert read(tmp_path, max_roles=1).train.tensors[1].shape == (5, 2)


def test_character_change_affects_one_window(tmp_path: Path):
    before = read(write(tmp_path, PLAY)).train.tensors
    after = read(write(tmp_path, PLAY.replace("ABAB", "AB?B"))).train.tensors
    for a, b in zip(before, after, strict=True):
        assert (a != b).any(1).nonzero()[:, 0].tolist() == [1]


def test_unknown_characters_have_fixed_tokens(tmp_path: Path):
    split = read(write(tmp_path, PLAY.replace("B", "é").replace("A", "~")))
    assert split.n_classes == 97
    assert set(split.train.tensors[1].flatten().tolist()) == {0, 1, 96}


def leaf(folder: Path, text: str, width: int = 4) -> Path:
    for name in ("train", "test"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        x = [text[i : i + width] for i in range(len(text) - width)]
        user = {"x": x, "y": [text[i + width] for i in range(len(x))]}
        (folder / name / "all.json").write_text(json.dumps({"users": ["HAM"], "user_data": {"HAM": user}}))
    return folder


def test_leaf_examples_become_disjoint_windows(tmp_path: Path):
    split = read(leaf(tmp_path, "abcdefghijklmn"), length=3)
    texts = ["".join(chr(token + 30) for token in row) for row in split.train.tensors[1].tolist()]
    assert texts == ["cde", "fgh", "ijk", "lmn"]
    with pytest.raises(DataError, match="user HAM occurs twice, or has texts shorter than a window"):
        read(tmp_path, length=6)


def test_shakespeare_unusable_files_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(DataError, match=r"has neither input\.txt nor train/"):
        read(tmp_path / "absent")
    with pytest.raises(DataError, match=r"contains no speech: write speeches separated by blank lines"):
        read(write(tmp_path, "no role here"))
    with pytest.raises(DataError, match="has at least 9 training windows: lower min_windows"):
        read(write(tmp_path, PLAY), min_windows=9)
    with pytest.raises(DataError, match="has enough text for one test window: lower length"):
        read(tmp_path, length=80)
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="no json files"):
        read(tmp_path)
    (tmp_path / "train" / "a.json").write_text('{"users": ["HAM"]}')
    with pytest.raises(DataError, match="not a LEAF json file"):
        read(tmp_path)
    monkeypatch.delenv("FEDPRIV_DATA", raising=False)
    with pytest.raises(DataError, match="FEDPRIV_DATA is unset"):
        load("shakespeare")


def test_window_loss_is_mean_over_targets():
    """Equals torch's cross entropy of one window, which ignores -100; a window without targets has loss 0."""
    outputs = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    targets = torch.tensor([[0, 1, 2, 3], [4, -100, 0, -100], [-100] * 4])
    losses = example_losses(models.Loss(models.cross_entropy), outputs, targets)
    for i in (0, 1):
        torch.testing.assert_close(losses[i], nn.CrossEntropyLoss()(outputs[i : i + 1], targets[i : i + 1]))
    assert losses[2] == 0
    (gradient,) = torch.autograd.grad(losses.sum(), outputs)
    assert torch.equal(gradient[2], torch.zeros(5, 4)) and gradient.isfinite().all()
    assert not gradient[1][:, [1, 3]].any(), "padding moves nothing"


class Fixed(nn.Module):
    """Scores that say token 1 with probability 1/2 at each position, and the other two with 1/4."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.25, 0.5, 0.25]).log())

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.logits[None, :, None].expand(len(tokens), -1, tokens.shape[1])


def test_accuracy_and_perplexity_per_character():
    """Of five targets three are token 1: perplexity 2^((3 + 4) / 5), however windows are padded."""
    targets = torch.tensor([[1, 1, 1, -100], [0, 2, -100, -100]])
    test = torch.utils.data.TensorDataset(torch.zeros(2, 4, dtype=torch.int64), targets)
    model = Fixed()
    values = Evaluator(model, models.Loss(models.cross_entropy), test, batch_size=1)(model.logits.detach())
    assert values["test_accuracy"] == pytest.approx(0.6)
    assert values["test_perplexity"] == pytest.approx(2 ** (7 / 5))
    assert metrics.get_direction("test_perplexity") == "lower"


def test_windows_by_label_partition_raises():
    with pytest.raises(ConfigError, match="an example has a sequence of classes"):
        partition("by_label", torch.zeros(4, 3, dtype=torch.int64), 2, torch.Generator())


def run(folder: Path, *overrides: str):
    (folder / "run.yaml").write_text(f"""
data: {{name: shakespeare, root: {folder}, length: 6, min_windows: 2, partition: {{kind: by_writer}}}}
model: {{name: char_lstm, width: 3, hidden: 4}}
strategy: {{name: fedavg, learning_rate: 0.5}}
privacy: {{epsilon: 8, clip: {{norm: l2, bound: 1}}}}
rounds: 2
""")
    return build(load_config(folder / "run.yaml", list(overrides)))


def test_shakespeare_roles_train_lstm(tmp_path: Path):
    write(tmp_path, "\n\n".join(f"{name}:\n{'to be or not to be, ' * 6}" for name in ("HAM", "OPH")))
    training = run(tmp_path)
    reports = list(training)
    assert training.population.shard.sizes.tolist() == [17, 17]
    assert reports[-1].metrics["test_perplexity"] > 1
    assert 0 <= reports[-1].metrics["test_accuracy"] <= 1


def test_wrong_model_for_windows_raises(tmp_path: Path):
    write(tmp_path, "\n\n".join(f"{name}:\n{'to be or not to be, ' * 6}" for name in ("HAM", "OPH")))
    with pytest.raises(ConfigError):
        run(tmp_path, "model=mnist_cnn")
    with pytest.raises(DataError, match="the model and the loss cannot process a test example"):
        run(tmp_path, "loss=hinge")


MODELS = ["model={name: char_lstm, width: 3, hidden: 4}", "model={name: char_transformer, width: 8}"]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch, where vmap is tried first
@pytest.mark.parametrize("model", MODELS)
def test_window_ghost_clipping_matches_loop(model: str, tmp_path: Path):
    """A round's step of each model of text, against torch's own gradient of each window."""
    write(tmp_path, "\n\n".join(f"{name}:\n{'to be or not to be, ' * 3}" for name in ("HAM", "OPH")))
    other = run(tmp_path, model, "compute.backend=loop", "privacy={noise_on: none}", "rounds=1", "seed=3")
    one = run(tmp_path, model, "compute.backend=ghost", "privacy={noise_on: none}", "rounds=1", "seed=3")
    list(other)
    list(one)
    torch.testing.assert_close(one.result().params, other.result().params, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["char_lstm", "char_transformer"])
def test_padded_window_clipped_to_same_norm(name: str, tmp_path: Path):
    """The norms are those of a loop over windows, and a full window moves the sum as far as a short one."""
    split = read(write(tmp_path, "HAM:\n" + "to be or not " * 3 + "\n\nOPH:\nt"), length=7)
    x, y = split.train.tensors
    assert (y[-1] == -100).sum() == 5 and not (y[0] == -100).any()
    torch.manual_seed(0)
    model = models.resolve(name, input_shape=(7,), n_classes=97).double()
    params = Layout.of(model).row_of(model).unsqueeze(0)
    loss = models.Loss(models.cross_entropy)
    ghost, loop = (BACKENDS[backend](model, loss) for backend in ("ghost", "loop"))

    def batch(rows: slice) -> Batch:
        mask = torch.ones(1, len(x[rows]), dtype=torch.bool)
        return Batch(torch.zeros(1, dtype=torch.long), x[None, rows], y[None, rows], mask)

    clip = Clip(0.05)
    every = ghost.clipped_sum(params, batch(slice(None)), clip)[0]
    torch.testing.assert_close(every, loop.clipped_sum(params, batch(slice(None)), clip)[0], rtol=1e-9, atol=1e-12)
    for one in (slice(0, 1), slice(-1, None)):
        assert ghost.clipped_sum(params, batch(one), None)[0].norm() > 0.05
        assert float(ghost.clipped_sum(params, batch(one), clip)[0].norm()) == pytest.approx(0.05)


def test_input_after_last_target_ignored(tmp_path: Path):
    """No target depends on the inputs of padded positions, because the models are causal."""
    write(tmp_path, "HAM:\n" + "to be or not " * 3)
    _, y = read(tmp_path, length=7).test.tensors
    padded = y == -100
    assert padded.any()
    for name in ("char_lstm", "char_transformer"):
        model = models.resolve(name, input_shape=(7,), n_classes=97)
        x = read(tmp_path, length=7).test.tensors[0].clone()
        scores = model(x)
        x[padded] = 5
        kept = ~padded.unsqueeze(1).expand_as(scores)
        # the first padded input is the last character, which has no target behind it
        assert torch.equal(model(x)[kept], scores[kept])


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_window_counts_stated_public(unit: str, tmp_path: Path):
    """The number of windows of a role depends on the length of its text, so plan and statement list sizes as public."""
    write(tmp_path, "\n\n".join(f"{name}:\n{'to be or not to be, ' * 6}" for name in ("HAM", "OPH")))
    run(tmp_path)
    settings = [f"privacy.unit={unit}", "privacy.trust=central"]
    plan = fedpriv("plan", str(tmp_path / "run.yaml"), *settings)
    assert "2, with 17 examples each" in plan.stdout
    assert ("relation=replace_one(sizes public)" in plan.stdout) == (unit == "client")
    done = fedpriv("train", str(tmp_path / "run.yaml"), *settings, "--out", str(tmp_path / "out"))
    assert done.exit_code == 0, done.stderr
    page = fedpriv("statement", str(tmp_path / "out")).stdout
    assert "not protected: the number of data holders, how many records each has" in page
    assert ("| both have in common | sizes public |" in page) == (unit == "client")


@pytest.mark.data
def test_real_shakespeare_loads(shared_data: Path):
    split = load("shakespeare", root=str(shared_data / "shakespeare"))
    assert len(split.train) + len(split.test) > 1_000_000 // 80
    assert "ROMEO" in split.writer_names.values()
