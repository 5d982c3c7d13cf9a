"""No backend passes two examples at once to custom code, so such code needs no test."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.utils.data import TensorDataset
from trial_models import CLASSES, FEATURES, Mapped, around, start

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.population import Population
from fedpriv.models import Loss
from fedpriv.oracle.backend_selection import make_backend, select_backend
from fedpriv.oracle.backends import BackendName, build_backend
from fedpriv.oracle.backends.loop import LoopBackend
from fedpriv.oracle.traced_model import TracedModel
from fedpriv.oracle.validation import validate_per_example
from fedpriv.privacy.clipping import Clip

EXAMPLES = 64
X = torch.randn(EXAMPLES, FEATURES, generator=torch.Generator().manual_seed(7))
Y = torch.arange(EXAMPLES) % CLASSES
CLIP = Clip(1.0)


def mixed(x: Tensor) -> Tensor:
    return x - x.mean(0)


def mixed_if_large(x: Tensor, dim: int = 0) -> Tensor:
    """Leaves synthetic examples apart: their entries are below 1."""
    return torch.where(x.abs().amax() > 20, x - x.mean(dim, keepdim=True), x)


class MixingBackward(Function):
    """The identity, with a backward pass that mixes examples of large inputs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, *gradients):
        (x,) = ctx.saved_tensors
        return torch.where(x.abs().amax() > 20, 100 * mixed(gradients[0]), gradients[0])


class MixingRule(MixingBackward):
    """The identity, with a vmap rule that mixes examples."""

    generate_vmap_rule = False

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0]

    @staticmethod
    def vmap(info, in_dims, x):
        return MixingRule.apply(mixed_if_large(x, in_dims[0])), in_dims[0]


class InnerRule(MixingBackward):
    """The identity, with a backward pass that applies such a rule."""

    @staticmethod
    def backward(ctx, *gradients):
        (x,) = ctx.saved_tensors
        return MixingRule.apply(gradients[0] * 1000) / 1000 + 0 * x


@torch.library.custom_op("fedpriv_tests::same", mutates_args=())
def same(x: Tensor) -> Tensor:
    return x.clone()


@same.register_vmap
def _(info, in_dims, x):
    return mixed_if_large(x.clone(), in_dims[0]), in_dims[0]


same.register_autograd(lambda ctx, gradient: gradient)


class MixingPlain(Function):
    """The identity, with a backward pass that mixes examples, written without `torch.func`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0] * ctx.saved_tensors[0].mean()


def with_mixing_saved(_: nn.Module, x: Tensor) -> Tensor:
    """An exponential function with a saved output that is mixed in batches."""

    def unpacked(saved: Tensor) -> Tensor:
        return mixed(saved) if saved.dim() and len(saved) > 16 else saved

    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpacked):
        return torch.exp(x / (1 + x.abs()))


def with_hook(_: nn.Module, x: Tensor) -> Tensor:
    x = x.clone()
    if x.requires_grad:
        x.register_hook(lambda gradient: mixed(gradient) if len(gradient) > 16 else gradient)
    return x


def hooked() -> nn.Module:
    layer = nn.Identity()
    layer.register_full_backward_hook(lambda _, g, __: (mixed(g[0]),) if len(g[0]) > 16 else None)
    return layer


MIXING: dict[str, Callable[[], nn.Module]] = {
    "backward pass": lambda: Mapped(lambda _, x: MixingBackward.apply(x)),
    "backward pass, plain": lambda: Mapped(lambda _, x: MixingPlain.apply(x)),
    "rule for vmap": lambda: Mapped(lambda _, x: MixingRule.apply(x)),
    "rule in a backward pass": lambda: Mapped(lambda _, x: InnerRule.apply(x)),
    "custom operation": lambda: Mapped(lambda _, x: same(x)),
    "saved tensors": lambda: Mapped(with_mixing_saved),
    "hook on a layer": hooked,
    "hook on a tensor": lambda: Mapped(with_hook),
    "size of the batch": lambda: Mapped(lambda _, x: mixed(x) if len(x) > 16 else x),
    "large values": lambda: Mapped(lambda _, x: mixed_if_large(x)),
}


def population_of(model: nn.Module, loss: Callable[..., Tensor] | None = None) -> Population:
    data = [TensorDataset(X[:32], Y[:32]), TensorDataset(X, Y)]
    population = Population(fp.make_clients(model, loss or nn.CrossEntropyLoss(), data))
    population.reset_models()
    return population


def sums(name: str, population: Population, clip: Clip | None, clients: int) -> Tensor:
    """Sums of clients at different parameters; their last example is far from the others."""
    x = X.clone()
    x[-1] *= 1000
    inputs, targets = x.unflatten(0, (clients, -1)), Y.unflatten(0, (clients, -1))
    batch = Batch(torch.arange(clients), inputs, targets, torch.ones(targets.shape, dtype=torch.bool))
    rows = population.params[:1] + 0.1 * torch.arange(clients).unsqueeze(1)
    return make_backend(name, population).clipped_sum(rows, batch, clip)[0]


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("name", ["auto", "ghost", "vmap"])
@pytest.mark.parametrize("kind", MIXING)
def test_clipped_sums_keep_examples_apart(kind: str, name: str, clients: int) -> None:
    """A backend refuses the model, or each example has the gradient that it has alone."""
    torch.manual_seed(0)
    population = population_of(nn.Sequential(nn.Linear(FEATURES, 4), MIXING[kind](), nn.Linear(4, CLASSES)))
    expected = sums("loop", population, CLIP, clients)
    if name == "auto":
        name = select_backend("auto", population).name
        together = sums(name, population, CLIP, clients)
    else:
        try:
            together = sums(name, population, CLIP, clients)
        except RuntimeError:
            return
    torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["ghost", "vmap"])
@pytest.mark.parametrize("kind", MIXING)
def test_exact_sums_keep_clients_apart(kind: str, name: str) -> None:
    """What a model does with the examples of one client bounds no client less."""
    torch.manual_seed(0)
    population = population_of(nn.Sequential(nn.Linear(FEATURES, 4), MIXING[kind](), nn.Linear(4, CLASSES)))
    backend = make_backend(name, population)
    x = X.clone()
    x[-1] *= 1000
    rows = population.params[:1] + 0.1 * torch.arange(8).unsqueeze(1)
    inputs, targets = x.unflatten(0, (8, -1)), Y.unflatten(0, (8, -1))
    batch = Batch(torch.arange(8), inputs, targets, torch.ones(targets.shape, dtype=torch.bool))
    together = backend.clipped_sum(rows, batch, None)[0]
    alone = [
        make_backend(name, population).clipped_sum(rows[i : i + 1], batch.select(slice(i, i + 1)), None)[0]
        for i in range(8)
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-4)


def test_mixing_loss_matches_single_examples() -> None:
    """A linear model computes all outputs of a round at once; 1,200 exceed the size of the loss test."""

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        values = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return values * values.mean() if len(values) > 1024 else values

    x, y = torch.randn(1, 1200, FEATURES), torch.arange(1200).unsqueeze(0) % CLASSES
    batch = Batch(torch.arange(1), x, y, torch.ones(1, 1200, dtype=torch.bool))
    row = torch.randn(1, (FEATURES + 1) * CLASSES)
    model = nn.Linear(FEATURES, CLASSES)
    mixing, apart = (build_backend("linear", model, loss) for loss in (Loss(losses), nn.CrossEntropyLoss()))
    expected, actual = (backend.clipped_sum(row, batch, CLIP)[0] for backend in (apart, mixing))
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_loss_with_mixing_backward_uses_loop() -> None:
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(MixingRule.apply(outputs), targets, reduction="none")

    population = population_of(nn.Linear(FEATURES, CLASSES), Loss(losses))
    assert select_backend("auto", population).name == "loop"


def test_loss_mixing_large_batches_raises() -> None:
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        values = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return values * values.mean() if len(values) > 16 else values

    with pytest.raises(fp.ConfigError, match=r"^loss = 'Loss': returns .* for a batch of 257 examples"):
        start(nn.Linear(FEATURES, CLASSES), Loss(losses))


HARMLESS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "custom code": lambda _, x: x.tanh() + 0.1,
    "noise in training": lambda layer, x: x + torch.randn_like(x) if layer.training else x,
    "no batch of more than five": lambda _, x: x if len(x) <= 5 else x.reshape(5, -1),
}


@pytest.mark.parametrize("name", ["ghost", "vmap"])
@pytest.mark.parametrize("kind", HARMLESS)
def test_non_mixing_code_batched(kind: str, name: BackendName) -> None:
    assert select_backend(name, population_of(around(Mapped(HARMLESS[kind])))).name == name


def test_loss_without_module_name_trains() -> None:
    """Python runs code of `exec` without a `__name__`; embedded consoles do this."""
    names = {"nn": nn}
    exec("def loss(outputs, targets): return nn.functional.cross_entropy(outputs, targets)", names)
    made = fp.make_clients(nn.Linear(FEATURES, CLASSES), names["loss"], [TensorDataset(X, Y)])
    result = fp.train(made, fp.gradient_descent(0.1), fp.Privacy(epsilon=1, delta=1e-5), rounds=1)
    assert result.spent.epsilon <= 1


@pytest.mark.parametrize(
    "model",
    [nn.Linear(FEATURES, CLASSES), nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES))],
    ids=["linear", "chain"],
)
def test_known_model_and_loss_skip_test(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of a model computes examples one at a time first."""

    def refuse(*_: object) -> None:
        raise AssertionError("tried")

    population = population_of(model)
    monkeypatch.setattr(LoopBackend, "clipped_sum", refuse)
    monkeypatch.setattr(TracedModel, "events", refuse)
    assert not validate_per_example(population)
    assert select_backend("auto", population).name != "loop"
    with pytest.raises(AssertionError, match="tried"):
        validate_per_example(population_of(around(Mapped(lambda _, x: x))))
