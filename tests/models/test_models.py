import math
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from fedpriv.errors import ConfigError
from fedpriv.models import (
    LOSSES,
    MODELS,
    FemnistCNN,
    LinearSVM,
    MnistCNN,
    SoftmaxRegression,
    fix_model,
    predict,
    resolve,
    resolve_loss,
    validate_model,
)

LABELS = torch.tensor([0, 1, 1, 0])


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def n_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


def per_example_gradients(model, loss, x, y):
    def one(params, x, y):
        return loss(functional_call(model, params, (x[None],)), y[None])

    return vmap(grad(one), in_dims=(None, 0, 0))(dict(model.named_parameters()), x, y)


# --- models


def test_softmax_regression_linear_from_zero():
    model = SoftmaxRegression(784, 10)
    assert n_parameters(model) == 7840 and not any(p.any() for p in model.parameters())
    assert n_parameters(SoftmaxRegression(784, 10, bias=True)) == 7850
    torch.nn.init.normal_(model.linear.weight)
    images = drawn(3, 1, 28, 28)
    torch.testing.assert_close(model(images), images.reshape(3, 784) @ model.linear.weight.T)


def test_two_class_svm_has_one_score():
    assert LinearSVM(5)(drawn(4, 5)).shape == (4, 1)
    assert LinearSVM(5, 3)(drawn(4, 5)).shape == (4, 3)
    assert predict(torch.tensor([[-1.0], [2.0]])).tolist() == [0, 1]
    assert predict(torch.tensor([[0.0, 1.0, 0.5], [3.0, 1.0, 0.0]])).tolist() == [1, 0]


def test_model_sizes_match_docstrings():
    assert n_parameters(MnistCNN()) == 29034
    assert n_parameters(FemnistCNN()) == 59294


OF_TEXT = {"char_lstm": {"hidden": 7}, "char_transformer": {"width": 8}}


@pytest.mark.parametrize("name", OF_TEXT)
def test_text_models_per_example_and_causal(name):
    """Their per-example gradients are tested in tests/data/test_shakespeare.py, because vmap does not batch an LSTM."""
    model = resolve(name, input_shape=(6,), n_classes=5, **OF_TEXT[name])
    validate_model(model)
    tokens = torch.tensor([[0, 1, 2, 3, 4, 1], [0, 4, 4, 2, 1, 3]])
    scores = model(tokens)
    assert scores.shape == (2, 5, 6)
    torch.testing.assert_close(scores[:1], model(tokens[:1]))
    changed = tokens.clone()
    changed[:, 4] = 0
    torch.testing.assert_close(model(changed)[..., :4], scores[..., :4])
    assert not torch.allclose(model(changed)[..., 4:], scores[..., 4:])
    torch.testing.assert_close(model(tokens[:, :3]), scores[..., :3])  # a shorter window


def test_text_transformer_attention_biases():
    """Without queries and keys, attention is a softmax of minus slope times distance over earlier tokens."""
    attention = resolve("char_transformer", input_shape=(6,), n_classes=5, width=8).blocks[0].attention
    bias = attention._bias(drawn(1, 3, 8))
    assert bias.shape == (4, 3, 3) and bool(bias[:, 0, 1:].isinf().all())
    assert bias[:, 2, 1].tolist() == [-2.0, -0.5, -0.125, -0.03125]
    assert bias[:, 2, 0].tolist() == [-4.0, -1.0, -0.25, -0.0625]
    assert not bias[:, [0, 1, 2], [0, 1, 2]].any()


def test_transformer_heads_not_dividing_width_raise():
    for name in ("vit", "char_transformer"):
        with pytest.raises(ConfigError, match=r"model\.heads = 3: must be a divisor of the width, 8"):
            resolve(name, input_shape=(1, 8, 8), n_classes=5, width=8, heads=3)


@pytest.mark.parametrize("name", [name for name in MODELS if name not in OF_TEXT])
def test_every_model_has_per_example_gradients(name):
    n_classes = 2 if name == "logistic_regression" else 10
    model = resolve(name, input_shape=(1, 28, 28), n_classes=n_classes)
    validate_model(model)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    x, y = drawn(4, 1, 28, 28), LABELS
    torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(x), model(x.flatten(1)))
    loss = resolve_loss("logistic" if name == "logistic_regression" else "hinge")
    by_example = per_example_gradients(model, loss, x, y)
    loss(model(x), y).backward()
    for path, parameter in model.named_parameters():
        torch.testing.assert_close(by_example[path].mean(0), parameter.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("allow_plugins")
def test_models_resolved_by_name():
    assert n_parameters(resolve("softmax", input_shape=(2, 3), n_classes=4, bias=True)) == 28
    assert resolve("mnist_cnn", input_shape=(3, 32, 32), n_classes=7, channels=(4, 8, 8))(
        drawn(2, 3, 32, 32)
    ).shape == (2, 7)
    own = resolve("torch.nn:Linear", input_shape=(5,), n_classes=3, in_features=5, out_features=3)
    assert isinstance(own, nn.Linear)


@pytest.mark.usefixtures("allow_plugins")
def test_invalid_model_raises():
    with pytest.raises(ConfigError, match="did you mean 'softmax'"):
        resolve("sofmax", input_shape=(4,), n_classes=2)
    with pytest.raises(ConfigError, match=r"model\.chanels = 3.*did you mean 'channels'"):
        resolve("mnist_cnn", input_shape=(1, 28, 28), n_classes=2, chanels=3)
    with pytest.raises(ConfigError, match=r"input_shape = \(784,\)"):
        resolve("mnist_cnn", input_shape=(784,), n_classes=10)
    with pytest.raises(ConfigError, match="at least 8 pixels"):
        resolve("femnist_cnn", input_shape=(1, 4, 4), n_classes=10)
    with pytest.raises(ConfigError, match=r"channels = \(0, 4\)"):
        resolve("mnist_cnn", input_shape=(1, 28, 28), n_classes=10, channels=(0, 4))
    with pytest.raises(ConfigError, match="use softmax"):
        resolve("logistic_regression", input_shape=(4,), n_classes=3)
    with pytest.raises(ConfigError, match="is a class, but not a Module"):
        resolve("builtins:dict", input_shape=(4,), n_classes=3)


# --- losses


def test_losses_match_torch():
    outputs, labels = drawn(6, 5), torch.tensor([0, 4, 2, 2, 1, 3])
    peers = {"cross_entropy": nn.CrossEntropyLoss, "hinge": nn.MultiMarginLoss}
    for name, peer in peers.items():
        for reduction in ("mean", "sum", "none"):
            ours = resolve_loss(name, reduction=reduction)(outputs, labels)
            torch.testing.assert_close(ours, peer(reduction=reduction)(outputs, labels))
    one_hot = nn.functional.one_hot(labels, 5).float()
    torch.testing.assert_close(resolve_loss("mse")(outputs, labels), nn.MSELoss()(outputs, one_hot))
    torch.testing.assert_close(resolve_loss("mse")(outputs, one_hot), nn.MSELoss()(outputs, one_hot))
    scores, targets = drawn(4, 1), LABELS.float()
    torch.testing.assert_close(resolve_loss("mse")(scores, targets), nn.MSELoss()(scores[:, 0], targets))
    torch.testing.assert_close(resolve_loss("logistic")(scores, LABELS), nn.BCEWithLogitsLoss()(scores[:, 0], targets))


def test_binary_losses_match_hand_computation():
    scores = torch.tensor([[0.5], [0.5], [-2.0], [-2.0]])
    assert resolve_loss("hinge", reduction="none")(scores, LABELS).tolist() == [1.5, 0.5, 3.0, 0.0]
    huge = torch.tensor([[1e4]])
    assert resolve_loss("logistic")(huge, torch.tensor([0])).item() == 1e4, "stable"
    zero = resolve_loss("logistic")(torch.zeros(1, 1), torch.tensor([1])).item()
    assert zero == pytest.approx(math.log(2))


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_vmaps_without_warning(name):
    model = SoftmaxRegression(5, 1 if name.endswith("logistic") else 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients = per_example_gradients(model, resolve_loss(name), drawn(4, 5), LABELS)
    assert gradients["linear.weight"].shape[0] == 4


@pytest.mark.usefixtures("allow_plugins")
def test_invalid_loss_raises():
    with pytest.raises(ConfigError, match="one score"):
        resolve_loss("logistic")(torch.zeros(2, 2), torch.tensor([0, 1]))
    with pytest.raises(ConfigError, match=r"loss\.reduction = 'max'"):
        resolve_loss("hinge", reduction="max")
    with pytest.raises(ConfigError, match="did you mean 'cross_entropy'"):
        resolve_loss("crossentropy")
    assert isinstance(resolve_loss("torch.nn:HuberLoss", delta=2.0), nn.HuberLoss)


# --- layers that mix examples


def inside(layer):
    return nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), layer), nn.Flatten())


UNFIT = {
    "BatchNorm2d": nn.BatchNorm2d(8),
    "BatchNorm2d without parameters": nn.BatchNorm2d(8, affine=False),
    "SyncBatchNorm": nn.SyncBatchNorm(8),
    "InstanceNorm2d": nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
    "InstanceNorm2d without parameters": nn.InstanceNorm2d(8, track_running_stats=True),
}
pytestmark = pytest.mark.filterwarnings("ignore:model.* was replaced by a new GroupNorm")


@pytest.mark.parametrize("kind", UNFIT)
def test_batch_normalization_raises_and_is_fixed(kind):
    model = inside(UNFIT[kind])
    with pytest.raises(ConfigError, match=rf"model\.0\.1 = '{kind.split()[0]}'.*--fix-model"):
        validate_model(model)
    fixed = fix_model(model)
    validate_model(fixed)
    assert type(model[0][1]) is type(UNFIT[kind]), "the model given is left alone"
    assert torch.equal(fixed[0][0].weight, model[0][0].weight)
    x = drawn(4, 3, 6, 6)
    torch.testing.assert_close(fixed(x)[:1], fixed(x[:1]))
    before = {name: buffer.clone() for name, buffer in fixed.named_buffers()}
    fixed(x + 5)
    assert all(torch.equal(buffer, before[name]) for name, buffer in fixed.named_buffers())


def test_fixed_instance_norm_keeps_training_outputs() -> None:
    """The replacement by Opacus still updates its running statistics, which are released without noise."""
    from opacus.validators import ModuleValidator

    layer, x = nn.InstanceNorm2d(8, affine=True, track_running_stats=True), drawn(2, 8, 4, 4)
    nn.init.normal_(layer.weight)
    assert torch.equal(fix_model(layer)(x), layer(x))
    theirs = ModuleValidator.fix(layer)
    before = theirs.running_mean.clone()
    theirs(x + 5)
    assert not torch.equal(before, theirs.running_mean)
    with pytest.raises(ConfigError, match="running statistics"):
        validate_model(theirs)


def test_fix_model_changing_outputs_warns() -> None:
    with pytest.warns(
        UserWarning, match=r"model\.0\.1, a .*, was replaced by a new GroupNorm.*the outputs of the model change"
    ):
        fix_model(inside(nn.BatchNorm2d(8)))


def test_batch_norm_in_eval_mode_accepted() -> None:
    model = inside(nn.BatchNorm2d(8))
    model[0][1].running_mean.uniform_()
    validate_model(model.eval())
    x = drawn(4, 3, 6, 6)
    torch.testing.assert_close(model(x)[:1], model(x[:1]))
    with pytest.raises(
        ConfigError, match=r"If its running statistics are public, call \.eval\(\) on it, which keeps them"
    ):
        validate_model(model.train())
    with pytest.raises(ConfigError, match="normalises over the batch"):
        validate_model(inside(nn.BatchNorm2d(8, track_running_stats=False)).eval())


def test_complex_parameters_raise() -> None:
    model = nn.Linear(2, 2, dtype=torch.complex64)
    with pytest.raises(
        ConfigError, match=r"model\.weight = 'torch.complex64': must be real, but is complex.*view_as_real"
    ):
        validate_model(model)


def test_fixed_batch_norm_1d_output_not_zero():
    fixed = fix_model(nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32)))
    assert fixed(drawn(1, 4)).abs().sum() > 0, "one group per feature would be all zero"


def test_single_layer_model_validated_and_fixed():
    with pytest.raises(ConfigError, match=r"^model = 'BatchNorm2d'"):
        validate_model(nn.BatchNorm2d(8))
    assert isinstance(fix_model(nn.BatchNorm2d(8)), nn.GroupNorm)


def test_fix_model_keeps_per_example_layers() -> None:
    """The Opacus replacement of this attention layer gives other outputs at the same weights."""
    from opacus.validators import ModuleValidator

    model, x = (
        nn.ModuleDict({"mha": nn.MultiheadAttention(4, 2, batch_first=True), "rnn": nn.LSTM(4, 4)}),
        drawn(5, 3, 4),
    )
    validate_model(model)
    fixed = fix_model(model)
    assert torch.equal(fixed["mha"](x, x, x)[0], model["mha"](x, x, x)[0])
    assert torch.equal(fixed["rnn"](x)[0], model["rnn"](x)[0])
    theirs = ModuleValidator.fix(model)["mha"]
    assert float((theirs(x, x, x)[0] - model["mha"](x, x, x)[0]).detach().abs().max()) > 0.1


def test_validate_model_accepts_per_example_layers():
    validate_model(
        nn.Sequential(nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm2d(4), nn.Dropout(), nn.Embedding(3, 4))
    )
    validate_model(inside(nn.GroupNorm(2, 8)).eval())


def test_fix_model_unknown_norm_raises():
    class OwnNorm(nn.BatchNorm2d):
        pass

    with pytest.raises(
        ConfigError, match=r"model\.0\.1 = 'OwnNorm'.*has no known replacement: replace this layer yourself"
    ):
        fix_model(inside(OwnNorm(8)))


def test_shifted_logistic_equals_paper():
    """Wang, Ye, Xu (2017) print log(1 + exp(1 + y w'x)); their y is +1 for our label 0."""
    scores, labels = torch.tensor([[0.3], [-2.0], [5.0]], dtype=torch.float64), torch.tensor([1, 0, 0])
    expected = [math.log1p(math.exp(1 + y * score)) for y, score in zip((-1, 1, 1), (0.3, -2.0, 5.0), strict=True)]
    losses = resolve_loss("shifted_logistic", reduction="none")(scores, labels)
    assert losses.tolist() == pytest.approx(expected)
    with pytest.raises(ConfigError, match="shifted_logistic"):
        resolve_loss("shifted_logistic")(torch.zeros(2, 3), labels[:2])
