"""Only trainable parameters are rows: frozen ones are neither sent nor noised nor moved, bit for bit."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv.clients.batch import Batch
from fedpriv.clients.layout import Layout, changed_constants, constant_totals, constants
from fedpriv.models import fix_model, validate_model
from fedpriv.oracle.backends import BACKENDS, choose
from fedpriv.privacy.clipping import Clip

CLASSES = 3


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(2, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


class ResNet(nn.Module):
    """A body that is frozen, with a buffer, and a head that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.5))
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), Residual(4), Residual(4), nn.Dropout(0.3))
        self.head = nn.Linear(4, CLASSES)
        self.body.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.scale * x).mean((2, 3)))


def resnet() -> ResNet:
    torch.manual_seed(0)
    return ResNet()


HEAD = 4 * CLASSES + CLASSES


def data(n_clients: int = 3) -> list[TensorDataset]:
    draw = torch.Generator().manual_seed(1)
    return [
        TensorDataset(torch.randn(6 + i, 1, 5, 5, generator=draw), torch.randint(0, CLASSES, (6 + i,), generator=draw))
        for i in range(n_clients)
    ]


def clients(model: nn.Module | None = None) -> list[fp.Client]:
    return fp.make_clients(model or resnet(), nn.CrossEntropyLoss(), data())


def assert_frozen_as(model: nn.Module, start: nn.Module) -> None:
    wanted, found = constants(start), constants(model)
    assert list(found) == list(wanted)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


STRATEGIES = {
    "fedavg": lambda: fp.fedavg(0.5),
    "iadmm": fp.inexact_admm,
    "scaffold": lambda: fp.scaffold(0.5),
    "tracking": lambda: fp.gradient_tracking(fp.StepSize(0.5)),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_head_is_trained_and_its_body_stays(name: str) -> None:
    made = clients()
    network = fp.Star(3) if name != "tracking" else fp.Graph(nx.complete_graph(3))
    training = fp.Training(
        made,
        STRATEGIES[name](),
        fp.Privacy(epsilon=20),
        rounds=3,
        network=network,
        test=data()[0],
        seed=1,
        secret_seed=1,
    )
    assert training.population.dim == HEAD
    list(training)
    result = training.result()
    assert result.params.shape == (HEAD,)
    assert result.node_params.shape == (3, HEAD)
    start = resnet()
    for model in (result.model, *(client.model for client in made)):
        assert_frozen_as(model, start)
        assert not torch.equal(model.head.weight, start.head.weight)
        assert {n for n, p in model.named_parameters() if p.requires_grad} == {"head.weight", "head.bias"}


def test_only_the_head_is_sent_and_counted() -> None:
    training = fp.Training(clients(), fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=1)
    (report,) = training
    assert report.metrics["bytes_sent"] == 4 * HEAD * 2 * 3  # up and down, for each of three clients


def small() -> nn.Module:
    """Every second parameter frozen; no dropout, so that backends can be compared."""
    torch.manual_seed(2)
    layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 5), nn.Linear(5, CLASSES)]
    model = nn.Sequential(*layers)
    for index, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(index % 2 == 0)
    return model.double()


def one_layer(weight: bool, bias: bool) -> nn.Module:
    torch.manual_seed(2)
    layer = nn.Linear(25, CLASSES)
    layer.weight.requires_grad_(weight)
    layer.bias.requires_grad_(bias)
    return nn.Sequential(nn.Flatten(), layer).double()


MODELS = {"conv net": small(), "bias": one_layer(False, True), "weight": one_layer(True, False)}
MODELS["all of one layer"] = one_layer(True, True)


def by_autograd(model: nn.Module, row: Tensor, x: Tensor, y: Tensor, clip: Clip | None) -> Tensor:
    """The clipped sum with plain torch on the module itself, one example after another."""
    model, total = copy.deepcopy(model), torch.zeros_like(row)
    trained = [p for p in model.parameters() if p.requires_grad]
    torch.nn.utils.vector_to_parameters(row, trained)
    for i in range(len(x)):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, trained)])
        total += gradient if clip is None else gradient * min(1.0, clip.bound / float(gradient.norm()))
    return total


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("clip", [Clip(0.3), None], ids=str)
@pytest.mark.parametrize("alike", [True, False])
def test_backends_agree_on_frozen_parts_with_plain_torch(kind: str, clip: Clip | None, alike: bool) -> None:
    model, draw = MODELS[kind], torch.Generator().manual_seed(4)
    start = copy.deepcopy(model)
    x = torch.randn(2, 4, 1, 5, 5, generator=draw, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (2, 4), generator=draw)
    batch = Batch(torch.arange(2), x, y, torch.ones(2, 4, dtype=torch.bool))
    dim = sum(p.numel() for p in model.parameters() if p.requires_grad)
    rows = torch.randn(1 if alike else 2, dim, generator=draw, dtype=torch.float64).expand(2, -1)
    wanted = torch.stack([by_autograd(model, rows[i], x[i], y[i], clip) for i in range(2)])
    serving = ["loop", "vmap", "ghost", *(["linear"] if kind == "all of one layer" else [])]
    for name in serving:
        found, _ = BACKENDS[name](model, nn.CrossEntropyLoss()).clipped_sum(rows, batch, clip)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    assert_frozen_as(model, start)


@pytest.mark.parametrize("kind", ["bias", "weight"])
def test_the_closed_form_is_for_layers_that_are_trained_whole(kind: str) -> None:
    loss = nn.CrossEntropyLoss()
    assert type(choose("auto", MODELS[kind], loss)) is BACKENDS["ghost"]
    with pytest.raises(fp.ConfigError, match="nothing frozen"):
        choose("linear", MODELS[kind], loss)


@pytest.mark.parametrize("kind", MODELS)
def test_a_run_is_the_same_with_every_backend(kind: str) -> None:
    def run(backend: str) -> Tensor:
        made, compute = clients(MODELS[kind]), fp.Compute(backend, dtype="float64")
        return fp.train(
            made, fp.fedavg(0.5), fp.Privacy(epsilon=5), rounds=2, seed=3, secret_seed=3, compute=compute
        ).params

    for backend in ("vmap", "auto"):
        torch.testing.assert_close(run(backend), run("loop"), rtol=1e-9, atol=1e-12)


def test_constraints_see_frozen_parts() -> None:
    """An exact answer at a row is that of the module with this row in it."""
    model = small().float()
    problem = fp.Problem(constraints=(fp.LossAtMost(0.5),))
    made = fp.make_clients(model, nn.CrossEntropyLoss(), data(), problem)
    training = fp.Training(made, fp.proximal_al(), fp.Privacy(at="none"), rounds=2)
    objective, values = training.oracle.answerer.problem(training.population.params)
    for i, client in enumerate(made):
        x, y = client.examples()
        loss = nn.functional.cross_entropy(model(x), y)
        torch.testing.assert_close(objective[i] * 3, loss.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(values[i, 0], loss.detach() - 0.5, rtol=1e-5, atol=1e-6)
    list(training)
    assert_frozen_as(training.result().model, model)


def test_a_model_without_anything_to_train_is_refused() -> None:
    for model in (nn.Linear(4, 2).requires_grad_(False), nn.Flatten()):
        with pytest.raises(fp.ConfigError, match=rf"^model = '{type(model).__name__}': has no parameter to train"):
            validate_model(model)
    with pytest.raises(fp.ConfigError, match="has no parameter to train"):
        fp.train(clients(resnet().requires_grad_(False)), fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=1)


def changed(name: str) -> list[fp.Client]:
    made = [fp.Client(resnet(), client.loss, client.loader) for client in clients()]
    model = made[2].model
    with torch.no_grad():
        constants(model)[name].mul_(1 + 1e-6)
    return made


@pytest.mark.parametrize("name", ["body.1.conv.weight", "scale"])
def test_clients_whose_frozen_parts_differ_are_refused_by_the_tensors_name(name: str) -> None:
    with pytest.raises(fp.ConfigError, match=rf"^clients\[2\]\.model = '{name}': .*client 0"):
        fp.Training(changed(name), fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=1)


def test_clients_that_freeze_other_parts_are_refused() -> None:
    made = clients()
    made[1].model.body.requires_grad_(True)
    with pytest.raises(fp.ConfigError, match=r"^clients\[1\]\.model = 'ResNet': .*frozen"):
        fp.Training(made, fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=1)


def test_clients_share_what_is_frozen_and_have_the_rest_for_themselves() -> None:
    """Also clients that came with copies of their own, whose memory is freed; the user's model is left alone."""
    model = resnet()
    separate = [fp.Client(resnet(), client.loss, client.loader) for client in clients()]
    for made in (clients(model), separate):
        fp.Training(made, fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=1)
        fixed = [constants(client.model) for client in made]
        assert all(tensor.data_ptr() == fixed[0][name].data_ptr() for one in fixed for name, tensor in one.items())
        assert len({client.model.head.weight.data_ptr() for client in made}) == len(made)
        mine = {tensor.data_ptr() for tensor in constants(model).values()}
        assert not mine & {tensor.data_ptr() for tensor in fixed[0].values()}


def test_what_was_shared_is_each_clients_own_once_it_is_trained() -> None:
    made = clients()
    for client in made:
        client.model.body.requires_grad_(True)
    graph = fp.Graph(nx.path_graph(3))
    result = fp.train(made, fp.decentralized_sgd(fp.StepSize(0.5)), fp.Privacy(epsilon=5), rounds=2, network=graph)
    for client, row in zip(made, result.node_params, strict=True):
        assert torch.equal(Layout.of(client.model).row_of(client.model), row)
    assert len({float(row.sum()) for row in result.node_params}) == 3


PEAK = """
import sys, torch
sys.path.insert(0, "benchmarks/speed")
import fedpriv as fp
from fedpriv.models import ResNet18, train_only
from memory import peak_megabytes
from torch.utils.data import TensorDataset
n = int(sys.argv[1])
torch.set_num_threads(1)
data = [TensorDataset(torch.rand(1, 3, 8, 8), torch.zeros(1, dtype=torch.long)) for _ in range(n)]
model = train_only(ResNet18((3, 8, 8), stem="cifar"), ["fc.*"])
before = peak_megabytes()
clients = fp.make_clients(model, torch.nn.CrossEntropyLoss(), data)
compute = fp.Compute(chunk=2)
training = fp.Training(clients, fp.scaffold(.5), fp.Privacy(epsilon=3), rounds=1, compute=compute, folder=sys.argv[2])
(report,) = training
training.result()
print(training.population.dim, report.metrics["bytes_sent"], before, peak_megabytes())
"""


@pytest.mark.slow
def test_a_hundred_clients_fit_beside_one_body_of_eleven_million(tmp_path: Path) -> None:
    """A hundred bodies are 4.5 GB. Messages and checkpoints hold heads."""
    n, root = 100, Path(__file__).parents[2]
    words = [sys.executable, "-c", PEAK, str(n), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=root, check=True)
    dim, sent, before, after = (float(word) for word in done.stdout.split())
    assert dim == 5130
    assert sent == 2 * 2 * n * 5130 * 4  # a model and a control variate, up and down
    assert (tmp_path / "checkpoint.pt").stat().st_size < 4.1 * n * 5130 * 4
    # the clients' body, two that are tried out in double precision, of twice the size, and one of the result; the rest
    # is for code, heads and images
    assert after - before < 10 * 45


def test_parameters_in_another_order_are_another_layout() -> None:
    """Rows know no names: the same names and shapes in another order would be swapped in silence."""

    def pair(first: str, second: str) -> nn.Module:
        return nn.ModuleDict({first: nn.Linear(2, 2), second: nn.Linear(2, 2)})

    assert Layout.of(pair("a", "b")) == Layout.of(pair("a", "b"))
    assert Layout.of(pair("a", "b")) != Layout.of(pair("b", "a"))


# --- files


def test_saved_models_hold_frozen_parts_and_their_own_rows(tmp_path: Path) -> None:
    made = clients()
    graph = fp.Graph(nx.cycle_graph(3))
    result = fp.train(made, fp.decentralized_sgd(fp.StepSize(0.5)), fp.Privacy(epsilon=5), rounds=2, network=graph)
    result.save(tmp_path, nodes=True)
    one, start = resnet(), resnet()
    one.load_state_dict(torch.load(tmp_path / "model.pt"))
    torch.testing.assert_close(Layout.of(one).row_of(one), result.params)
    assert_frozen_as(one, start)
    for state, row in zip(torch.load(tmp_path / "node_models.pt"), result.node_params, strict=True):
        one.load_state_dict(state)
        assert torch.equal(Layout.of(one).row_of(one), row)
        assert_frozen_as(one, start)


def run_in(folder: Path, model: nn.Module, *, rounds: int, resume: bool) -> fp.Training:
    """Train until `rounds` of six are done."""
    training = fp.Training(
        clients(model),
        fp.scaffold(0.5),
        fp.Privacy(epsilon=5),
        rounds=6,
        seed=7,
        secret_seed=7,
        folder=folder,
        checkpoint_every=2,
        resume=resume,
    )
    for report in training:
        if report.round == rounds:
            break
    return training


def test_resume_with_frozen_parts_is_the_unbroken_run(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = run_in(tmp_path / "whole", resnet(), rounds=6, resume=False).result()
    run_in(tmp_path / "parts", resnet(), rounds=3, resume=False)
    resumed = run_in(tmp_path / "parts", resnet(), rounds=6, resume=True).result()
    assert torch.equal(resumed.params, whole.params)
    assert_frozen_as(resumed.model, resnet())


def test_resume_with_another_body_is_refused(tmp_path: Path) -> None:
    run_in(tmp_path, resnet(), rounds=3, resume=False)
    torch.manual_seed(1)
    with pytest.raises(fp.FedprivError, match="other frozen values"):
        run_in(tmp_path, ResNet(), rounds=6, resume=True)


# --- repaired models


@pytest.mark.filterwarnings("ignore:model.* is a new GroupNorm")
def test_what_is_frozen_stays_frozen_when_a_model_is_repaired() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False))
    model[0].weight.requires_grad_(False)
    model[1].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    fixed = fix_model(model)
    assert not [n for n, p in fixed.named_parameters() if p.requires_grad and n not in ("0.bias", "2.weight")]
    assert {n for n, p in fixed.named_parameters() if p.requires_grad} == {"0.bias", "2.weight"}


# --- eval mode


def test_a_trained_model_answers_alike_twice_and_as_it_was_tested() -> None:
    test = data()[2]
    result = fp.train(clients(), fp.fedavg(0.5), fp.Privacy(epsilon=20), rounds=2, test=test)
    assert not any(module.training for module in result.model.modules())
    x, y = test.tensors
    with torch.no_grad():
        first, second = result.model(x), result.model(x)
    assert torch.equal(first, second)
    assert float((first.argmax(1) == y).double().mean()) == result.test_accuracy


def test_an_evaluation_leaves_the_modes_of_layers_as_they_were() -> None:
    """A part that a user has put in eval mode must not wake up after the first test."""
    model = resnet()
    model.body.eval()
    made = clients(model)
    training = fp.Training(made, fp.fedavg(0.5), fp.Privacy(epsilon=3), rounds=2, test=data()[0])
    list(training)
    assert training.population.model.training
    assert not training.population.model.body[3].training


class Keeps(nn.Module):
    """A module that leaves what it saw in itself, as models do whose attention is drawn later."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(3, CLASSES), []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return self.layer(x)


class WidestSeen(nn.Module):
    """A frozen number that grows with the data, past the version that torch keeps of it; made-up examples are small."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.widest = nn.Linear(3, CLASSES), nn.Parameter(torch.tensor(5.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.widest.data.copy_(torch.maximum(self.widest.data, x.detach().abs().max()))
        return self.layer(x)


def wide_clients(model: nn.Module) -> list[fp.Client]:
    draw = torch.Generator().manual_seed(1)
    x = 100 * torch.randn(3, 4, 3, generator=draw)
    return fp.make_clients(model, nn.CrossEntropyLoss(), [TensorDataset(own, torch.arange(4) % 2) for own in x])


WHOLE = [fp.Privacy(epsilon=3), fp.Privacy(epsilon=3, unit="client", at="message")]


@pytest.mark.parametrize("backend", ["auto", "loop"])
@pytest.mark.parametrize("privacy", WHOLE, ids=["sample", "client"])
def test_what_a_forward_pass_keeps_of_examples_is_in_no_model_that_is_handed_out(privacy: fp.Privacy, backend: str):
    made = wide_clients(Keeps())
    result = fp.train(made, fp.fedavg(0.5), privacy, rounds=2, compute=fp.Compute(backend=backend))
    assert result.model.seen == []
    assert all(client.model.seen == [] for client in made)


@pytest.mark.parametrize("privacy", WHOLE, ids=["sample", "client"])
def test_a_frozen_value_that_private_data_change_is_not_released(privacy: fp.Privacy) -> None:
    training = fp.Training(wide_clients(WidestSeen()), fp.fedavg(0.5), privacy, rounds=2)
    with pytest.raises(fp.PrivacyError, match=r"^model\.widest is frozen.* private data"):
        list(training)
    with pytest.raises(fp.PrivacyError, match=r"^model\.widest"):
        training.result()


@pytest.mark.parametrize(
    "value", [torch.zeros(2, 3), torch.zeros(3, dtype=torch.half), torch.zeros(1, dtype=torch.bool)]
)
def test_a_change_of_a_constant_is_noticed_whatever_its_type(value: Tensor) -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("kept", torch.zeros(5)[1:3])
    model.register_buffer("own", value)
    before = constant_totals(model)
    assert changed_constants(model, before) == []
    model.own.view(-1)[0] = 1
    assert changed_constants(model, before) == ["own"]
    model.register_buffer("more", torch.zeros(1))
    assert "more" in changed_constants(model, before)
