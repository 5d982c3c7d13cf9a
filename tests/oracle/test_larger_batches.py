"""Code of a user's own that mixes examples in larger batches only is found before a run begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.utils.data import TensorDataset
from trial_models import CLASSES, FEATURES, Mapped, around, clients, start

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.population import Population
from fedpriv.oracle.backend_selection import select_backend
from fedpriv.oracle.backends import BackendName, choose
from fedpriv.oracle.backends.ghost import GhostBackend
from fedpriv.oracle.backends.loop import LoopBackend
from fedpriv.oracle.batch_sizes import batch_sizes
from fedpriv.oracle.traced_model import TracedModel
from fedpriv.privacy.clipping import Clip

EXAMPLES = 64
X = torch.randn(EXAMPLES, FEATURES, generator=torch.Generator().manual_seed(7))
Y = torch.arange(EXAMPLES) % CLASSES
CLIP = Clip(1.0)


def mixed(x: Tensor) -> Tensor:
    return x - x.mean(0)


def many(model: nn.Module, loss: Callable[..., Tensor] | None = None) -> Population:
    """The clients of a run that have 64 examples together, at their initial parameters."""
    made = fp.make_clients(model, loss or nn.CrossEntropyLoss(), [TensorDataset(X[:32], Y[:32]), TensorDataset(X, Y)])
    population = Population(made)
    population.reset_models()
    return population


IN_SOME_BATCHES: dict[str, Callable[[int], bool]] = {
    "more than 16": lambda size: size > 16,
    "odd, more than 5": lambda size: size > 5 and size % 2 == 1,
    "all that there are": lambda size: size == 18,
    "an even number": lambda size: size in (2, 4),
}


@pytest.mark.parametrize("kind", IN_SOME_BATCHES)
def test_a_layer_that_mixes_examples_in_some_batches_is_refused_by_its_path(kind: str) -> None:
    is_one = IN_SOME_BATCHES[kind]
    layer = Mapped(lambda _, x: mixed(x) if is_one(len(x)) else x)
    with pytest.raises(fp.ConfigError, match=r"^model\.1\.1 = 'Mapped': .* batch of \d+ examples is not .*batch's"):
        start(around(layer))


def test_a_layer_of_code_without_a_name_is_tried_too() -> None:
    """Python calls classes of such code its own: `exec` without a `__name__`, as embedded consoles do."""
    names = {"nn": nn, "mixed": mixed}
    exec("class Named(nn.Module):\n def forward(self, x):\n  return mixed(x) if len(x) > 16 else x", names)
    layer: Any = names["Named"]
    assert layer.__module__ == "builtins"
    with pytest.raises(fp.ConfigError, match=r"^model\.1\.1 = 'Named': .* in a batch of 17 examples"):
        start(around(layer()))


def test_functions_of_code_without_a_name_can_be_used() -> None:
    names = {"nn": nn}
    exec("def loss(outputs, targets): return nn.functional.cross_entropy(outputs, targets)", names)
    loss: Any = names["loss"]
    assert loss.__module__ is None
    made = fp.make_clients(nn.Linear(FEATURES, CLASSES), loss, [TensorDataset(X, Y)])
    result = fp.train(made, fp.gradient_descent(0.1), fp.Privacy(epsilon=1, delta=1e-5), rounds=1)
    assert result.spent.epsilon <= 1


def test_a_hook_that_mixes_examples_in_larger_batches_is_refused() -> None:
    model = around(nn.Identity())
    model[1][1].register_forward_hook(lambda _, inputs, output: mixed(output) if len(output) > 16 else None)
    with pytest.raises(fp.ConfigError, match=r"^model\.1\.1 = 'Identity': .* in a batch of 17 examples"):
        start(model)


def test_rows_that_are_missing_in_a_larger_batch_are_refused() -> None:
    with pytest.raises(fp.ConfigError, match=r"^model = 'Sequential': gives \(16, 3\) for 17 examples"):
        start(nn.Sequential(nn.Linear(FEATURES, CLASSES), Mapped(lambda _, x: x[:16])))


def cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return losses * losses.mean() if len(losses) > 16 else losses


@pytest.mark.parametrize("model", [nn.Linear(FEATURES, CLASSES), around(nn.Identity())], ids=["linear", "ghost"])
def test_a_loss_of_examples_that_mixes_them_in_larger_batches_is_refused(model: nn.Module) -> None:
    with pytest.raises(fp.ConfigError, match=r"^loss = 'Loss': .* cross_entropies gives .* in a batch of 17 examples"):
        start(model, fp.models.Loss(cross_entropies))


def test_a_loss_is_tried_in_batches_beyond_those_of_models() -> None:
    """A linear model computes all examples of a round at once."""
    x, y = torch.randn(1200, FEATURES), torch.arange(1200) % CLASSES

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        values = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return values * values.mean() if len(values) > 1024 else values

    with pytest.raises(fp.ConfigError, match=r"^loss = 'Loss': .* in a batch of 1025 examples"):
        start(nn.Linear(FEATURES, CLASSES), fp.models.Loss(losses), x=x, y=y)


class MixingBackward(Function):
    """The identity, whose backward pass mixes the examples of larger batches."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return mixed(gradient) if len(gradient) > 16 else gradient


class MixingRule(MixingBackward):
    """The identity, whose rule for vmap mixes the examples of larger batches."""

    generate_vmap_rule = False

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def vmap(info, in_dims, x):
        if info.batch_size > 16:
            x = x - x.mean(in_dims[0], keepdim=True)
        return MixingRule.apply(x), in_dims[0]


def with_mixing_saved(layer: nn.Module, x: Tensor) -> Tensor:
    """Tanh, whose saved output is mixed in larger batches."""

    def unpacked(saved: Tensor) -> Tensor:
        return mixed(saved) if saved.dim() and len(saved) > 16 else saved

    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpacked):
        return torch.tanh(x)


def hooked() -> nn.Module:
    layer = nn.Identity()
    layer.register_full_backward_hook(lambda _, g, __: (mixed(g[0]),) if len(g[0]) > 16 else None)
    return layer


BEHIND = {
    "backward pass": lambda: Mapped(lambda _, x: MixingBackward.apply(x)),
    "rule for vmap": lambda: Mapped(lambda _, x: MixingRule.apply(x)),
    "saved tensors": lambda: Mapped(with_mixing_saved),
    "hook on gradients": hooked,
}


@pytest.mark.parametrize("kind", BEHIND)
def test_what_a_forward_pass_does_not_show_is_computed_one_example_at_a_time(kind: str) -> None:
    torch.manual_seed(0)
    population = many(around(BEHIND[kind]()))
    selection = select_backend("auto", population)
    assert selection.name == "loop"
    assert "in a batch of " in selection.why_not_faster
    assert "in a batch of " in selection.warnings[0]
    with pytest.raises(fp.ConfigError, match=r"^compute\.backend = 'ghost': .*in a batch of \d+ examples"):
        select_backend("ghost", population)


def test_what_is_found_would_break_the_bound() -> None:
    """Else the trial would be for nothing: with the backend that was chosen before, sums are others than the loop's."""
    torch.manual_seed(0)
    population = many(around(BEHIND["backward pass"]()))
    row = population.params[:1]
    batch = Batch(torch.arange(1), X.unsqueeze(0), Y.unsqueeze(0), torch.ones(1, EXAMPLES, dtype=torch.bool))
    alone = LoopBackend(population.model, population.loss).clipped_sum(row, batch, CLIP)[0]
    together = choose("ghost", population.model, population.loss).clipped_sum(row, batch, CLIP)[0]
    assert (alone - together).norm() > 0.1 * alone.norm()


def test_a_loss_with_a_backward_pass_of_its_own_is_tried_too() -> None:
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(MixingBackward.apply(outputs), targets, reduction="none")

    with pytest.raises(fp.ConfigError, match=r"^loss = 'Loss': .* in a batch of 17 examples"):
        start(nn.Linear(FEATURES, CLASSES), fp.models.Loss(losses))


HARMLESS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "code of a user's own": lambda _, x: x.tanh() + 0.1,
    "noise in training": lambda layer, x: x + torch.randn_like(x) if layer.training else x,
    "no batch of more than five": lambda _, x: x if len(x) <= 5 else x.reshape(5, -1),
}


@pytest.mark.parametrize("name", ["ghost", "vmap"])
@pytest.mark.parametrize("kind", HARMLESS)
def test_harmless_code_is_let_through(kind: str, name: BackendName) -> None:
    population = many(around(Mapped(HARMLESS[kind])))
    assert select_backend(name, population).name == name


def test_only_public_facts_decide_which_sizes_are_tried() -> None:
    model = nn.Linear(FEATURES, CLASSES)
    loss = nn.CrossEntropyLoss()
    data = TensorDataset(X, Y)
    known = Population([fp.Client(model, loss, torch.utils.data.DataLoader(data))])
    assert batch_sizes(known.most_examples, 512, 1) == [2, 17, 64]
    assert batch_sizes(known.most_examples, 40, 1) == [2, 17, 40]
    declared = Population([fp.Client(model, loss, torch.utils.data.DataLoader(data), public_size=10)])
    assert batch_sizes(declared.most_examples, 512, 1) == [2, 17, 65, 257, 512], (
        "there may be more examples than declared"
    )
    assert batch_sizes(declared.most_examples, 512, 1 << 20) == [2, 17, 32], "of a mebibyte each"
    assert batch_sizes(declared.most_examples, 512, 1 << 30) == [2]


def test_code_of_torch_and_fedpriv_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    outputs = TracedModel.outputs

    def watched(trial: TracedModel, x: Tensor) -> object:
        sizes.append(len(x))
        return outputs(trial, x)

    monkeypatch.setattr(TracedModel, "outputs", watched)
    start(nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES)))
    assert max(sizes) == 5
    start(around(Mapped(lambda _, x: x)))
    assert max(sizes) == 18


def test_a_trial_in_larger_batches_leaves_no_trace() -> None:
    def counting(layer: nn.Module, x: Tensor) -> Tensor:
        layer.kept = 1
        return x

    model = around(Mapped(counting))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    training = fp.Training(clients(model), fp.fedavg(0.1), fp.Privacy(epsilon=3), rounds=1)
    assert torch.equal(torch.rand(3), expected)
    assert training.population.model[1][1].kept is None


def with_hook(_: nn.Module, x: Tensor) -> Tensor:
    x = x.clone()
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient)
    return x


OWN_BACKWARD = {**BEHIND, "hook on a tensor": lambda: Mapped(with_hook)}
TORCHS = {
    "a function": lambda: Mapped(lambda _, x: x.tanh()),
    "a hook on a layer": lambda: nn.Identity(),
    "dropout": lambda: nn.Dropout(),
}


@pytest.mark.parametrize("kind", [*OWN_BACKWARD, *TORCHS])
def test_a_backward_pass_of_a_users_own_is_seen(kind: str) -> None:
    model = around({**OWN_BACKWARD, **TORCHS}[kind]())
    model[0].register_forward_hook(lambda *_: None)
    population = many(model)
    trial = TracedModel(population, population.params[0])
    assert trial.has_own_backward(*population.first_examples(3)) == (kind in OWN_BACKWARD)


def test_a_form_with_a_backward_pass_of_its_own_is_seen() -> None:
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(MixingBackward.apply(outputs), targets, reduction="none")

    population = many(around(nn.Identity()), fp.models.Loss(losses))
    trial = TracedModel(population, population.params[0])
    assert trial.has_own_backward(*population.first_examples(3))


@pytest.mark.parametrize(("layer", "largest"), [(nn.Identity, 17), (BEHIND["backward pass"], 96)])
def test_only_where_a_backward_pass_may_mix_examples_gradients_are_tried_in_all_sizes(
    monkeypatch: pytest.MonkeyPatch, layer: Callable[[], nn.Module], largest: int
) -> None:
    monkeypatch.setattr(MixingBackward, "backward", staticmethod(lambda ctx, gradient: gradient))
    sizes = list[int]()
    gradients = GhostBackend._gradients

    def watched(backend: GhostBackend, params: Tensor, x: Tensor, y: Tensor, views: int) -> object:
        sizes.append(x.shape[0] * x.shape[1])
        return gradients(backend, params, x, y, views)

    monkeypatch.setattr(GhostBackend, "_gradients", watched)
    assert select_backend("auto", many(around(nn.Sequential(layer(), Mapped(lambda _, x: x))))).name == "ghost"
    assert max(sizes) == largest
