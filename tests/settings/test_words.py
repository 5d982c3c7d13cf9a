"""What people type who know other libraries: each is answered with what to write here, and never in Python's words."""

from __future__ import annotations

import importlib
import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import networkx
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import fedpriv
from fedpriv import ConfigError, DataError
from fedpriv.cli import app
from fedpriv.config import load_config
from fedpriv.settings import translations
from fedpriv.settings.translations import TERMS

EXAMPLES = 200
RUN = Path(__file__).parents[1] / "run.yaml"


def dataset(n: int = EXAMPLES) -> TensorDataset:
    return TensorDataset(torch.randn(n, 4, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 2)


def clients() -> list[fedpriv.Client]:
    return fedpriv.make_clients(nn.Linear(4, 2), nn.CrossEntropyLoss(), [dataset(), dataset()])


def answer(typed: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        typed()
    return str(caught.value)


def run(**typed: Any) -> object:
    usual: dict[str, Any] = {
        "clients": clients(),
        "strategy": fedpriv.fedavg(0.1),
        "privacy": fedpriv.Privacy(epsilon=3.0),
        "rounds": 2,
        "compute": fedpriv.Compute(device="cpu"),
    }
    return fedpriv.train(**{**usual, **typed})


# --- another word for a setting ---------------------------------------------------------------------------------------

OF_PRIVACY = {
    "eps": (3.0, "write epsilon=3.0"),
    "target_epsilon": (3.0, "write epsilon=3.0"),
    "target_delta": (1e-6, "write delta=1e-06"),
    "sigma": (1.1, "write noise_multiplier=1.1"),
    "max_grad_norm": (1.5, "write clip=fedpriv.Clip(1.5)"),
    "clip_norm": (1.5, "write clip=fedpriv.Clip(1.5)"),
    "C": (1.5, "write clip=fedpriv.Clip(1.5)"),
    "sample_rate": (0.02, "write sampling=fedpriv.Poisson(rate=0.02)"),
    "batch_size": (64, "write sampling=fedpriv.Poisson(rate=64 / n) (n is the number of examples of a client"),
    "batches": (20, "write sampling=fedpriv.Poisson(rate=1 / 20)"),
    "poisson_sampling": (True, "write sampling=fedpriv.Poisson(rate=0.01)"),
    "noise_type": ("laplace", "write mechanism=fedpriv.Gaussian()"),
    "secure_aggregation": (True, "write trust=fedpriv.SecureAggregation(min_honest=5)"),
    "user_level": (True, 'write unit="client"'),
    "alphas": ([2, 3], "leave it out"),
    "epsilonn": (3.0, "did you mean 'epsilon'"),
    "lr": (0.1, "strategy=fedpriv.fedavg(learning_rate=0.1)"),
}


@pytest.mark.parametrize("word", OF_PRIVACY)
def test_privacy_in_the_words_of_opacus_and_others(word: str):
    value, write = OF_PRIVACY[word]
    said = answer(lambda: fedpriv.Privacy(**{word: value}))
    assert said.startswith(f"privacy.{word} = ")
    assert write in said


OF_A_RUN = {
    "epsilon": (3.0, "privacy=fedpriv.Privacy(epsilon=3.0)"),
    "target_epsilon": (3.0, "privacy=fedpriv.Privacy(epsilon=3.0)"),
    "max_grad_norm": (1.0, "privacy=fedpriv.Privacy(..., clip=fedpriv.Clip(1.0))"),
    "lr": (0.1, "strategy=fedpriv.fedavg(learning_rate=0.1)"),
    "num_rounds": (5, "write rounds=5"),
    "optimizer": ("adam", "fedpriv.fedavg(learning_rate=0.1, optimizer=fedpriv.Adam())"),
    "momentum": (0.9, "optimizer=fedpriv.Momentum(0.9)"),
    "weight_decay": (0.01, "optimizer=fedpriv.AdamW(weight_decay=0.01)"),
    "scheduler": ("cosine", "learning_rate=fedpriv.Cosine(0.1, rounds=100)"),
    "device": ("cuda", 'compute=fedpriv.Compute(device="cuda")'),
    "gpu": (True, 'compute=fedpriv.Compute(device="cuda")'),
    "fp16": (True, 'compute=fedpriv.Compute(precision="bfloat16")'),
    "tensorboard": (True, 'sinks=[fedpriv.sinks.TensorBoard("runs/a")]'),
    "log_dir": ("runs/a", 'sinks=[fedpriv.sinks.TensorBoard("runs/a")]'),
    "output_dir": ("runs/a", 'folder="runs/a"'),
    "verbose": (1, "progress=True"),
    "val_loader": (None, "test=dataset"),
    "criterion": (None, "fedpriv.make_clients(model, loss, datasets)"),
    "random_state": (0, "seed=0"),
    "eval_every": (5, "evaluate_every=5"),
    "early_stopping": (5, 'stop=fedpriv.Stop("accuracy", patience=5)'),
    "clients_per_round": (5, "network=fedpriv.Star(n_clients, cohort=fedpriv.FixedCohort(5))"),
    "fraction_fit": (0.5, "network=fedpriv.Star(n_clients, cohort=fedpriv.PoissonCohort(0.5))"),
    "topology": ("ring", "network=fedpriv.Graph("),
    "fairness": (True, "fedpriv.Problem(constraints="),
    "rouns": (5, "did you mean 'rounds'"),
}


@pytest.mark.parametrize("word", OF_A_RUN)
@pytest.mark.parametrize("call", [fedpriv.train, fedpriv.Training])
def test_a_run_in_the_words_of_others(call: Any, word: str):
    value, write = OF_A_RUN[word]
    if call is fedpriv.Training and word in ("tensorboard", "verbose"):
        write = f"fedpriv.train(..., {write})"  # it is iterated over, and tells nobody
    if call is fedpriv.Training and word == "log_dir":
        write = "folder='runs/a'"
    said = answer(lambda: call(clients(), fedpriv.fedavg(0.1), fedpriv.Privacy(epsilon=3.0), **{word: value}))
    assert said.startswith(f"{word} = ")
    assert write in said


OF_STRATEGIES = {
    "lr": (fedpriv.fedavg, 0.5, "write learning_rate=0.5"),
    "epochs": (fedpriv.fedavg, 5, "write local_steps=5"),
    "mu": (fedpriv.fedprox, 0.1, "write proximal=0.1"),
    "server_lr": (fedpriv.fedopt, 0.1, "write server_learning_rate=0.1"),
    "ema": (fedpriv.fedavg, 0.99, "write average=fedpriv.Ema(0.99)"),
    "step_size": (fedpriv.gradient_descent, 0.1, "write learning_rate=0.1"),
    "learning_rate": (fedpriv.decentralized_sgd, 0.1, "write step_size=0.1"),
    "momentum": (fedpriv.fedavg, 0.9, "write optimizer=fedpriv.Momentum(0.9)"),
    "weight_decay": (fedpriv.gradient_descent, 0.1, "write regularizer=fedpriv.strategies.proximal.L2(0.1)"),
    "betas": (fedpriv.Adam, (0.9, 0.99), "write beta1=0.9, beta2=0.999"),
    "max_lr": (fedpriv.Cosine, 0.1, "write peak=0.1"),
    "max_norm": (fedpriv.Clip, 2.0, "write bound=2.0"),
    "sample_rate": (fedpriv.Poisson, 0.1, "write rate=0.1"),
    "batch_size": (fedpriv.FixedSize, 64, "write size=64"),
    "log_dir": (fedpriv.sinks.TensorBoard, "a", "write folder='a'"),
}


@pytest.mark.parametrize("word", OF_STRATEGIES)
def test_algorithms_and_options_in_the_words_of_others(word: str):
    call, value, write = OF_STRATEGIES[word]
    assert write in answer(lambda: call(**{word: value}))


# --- with the number that it would be ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "steps", "rounds"),
    [
        (fedpriv.FullBatch(), 1, 3),
        (fedpriv.Poisson(0.02), 1, 150),
        (fedpriv.Poisson(0.02), 5, 30),
        (fedpriv.FixedSize(64), 1, 10),  # 200 examples a client: 9.4 batches are three epochs
        (fedpriv.Cyclic(4), 1, 12),
    ],
)
def test_epochs_are_answered_with_rounds(sampling: Any, steps: int, rounds: int):
    privacy = fedpriv.Privacy(epsilon=3.0, sampling=sampling)
    said = answer(lambda: fedpriv.train(clients(), fedpriv.fedavg(0.1, steps), privacy, epochs=3))
    assert f"write rounds={rounds}:" in said


def test_epochs_of_cohorts_take_more_rounds():
    strategy, network = fedpriv.fedavg(0.1), fedpriv.Star(2, fedpriv.PoissonCohort(0.5))
    privacy = fedpriv.Privacy(epsilon=3.0)
    assert "write rounds=6:" in answer(lambda: fedpriv.train(clients(), strategy, privacy, epochs=3, network=network))
    assert "rounds" in answer(lambda: fedpriv.train(clients(), epochs=3)), "without privacy settings it has no number"


def test_a_batch_size_is_answered_with_its_rate():
    assert "fedpriv.Poisson(rate=0.32)), for the 200 examples" in answer(lambda: run(batch_size=64))
    assert "fedpriv.Poisson(rate=1))" in answer(lambda: run(batch_size=1000))


# --- one thing where another is meant ---------------------------------------------------------------------------------

CNN = nn.Linear(4, 2)
SAID = {
    "fedavg": (lambda: run(strategy="fedavg"), "strategy = 'fedavg': make it with fedpriv.fedavg(learning_rate=0.1)"),
    "FedProx": (lambda: run(strategy="FedProx"), "make it with fedpriv.fedprox(learning_rate=0.1, proximal=0.1)"),
    "none": (lambda: run(privacy="none"), 'make it with fedpriv.Privacy(at="none")'),
    "a device for compute": (lambda: run(compute="cuda:0"), "make it with fedpriv.Compute()"),
    "cuda for compute": (lambda: run(compute="cuda"), 'make it with fedpriv.Compute(device="cuda")'),
    "a patience": (lambda: run(stop=5), 'make it with fedpriv.Stop("accuracy", patience=5)'),
    "a ring": (lambda: run(network="ring"), "make it with fedpriv.Graph(networkx.cycle_graph(10))"),
    "torch's scheduler": (
        lambda: fedpriv.fedavg(torch.optim.lr_scheduler.StepLR(torch.optim.SGD(CNN.parameters(), lr=0.1), 3)),
        "is torch's: write fedpriv.Cosine(peak=0.1, rounds=100), or a function of the round",
    ),
    "no such one": (lambda: run(strategy="zzz"), "make it with fedpriv.fedavg(learning_rate=0.1)"),
    "the function": (lambda: run(strategy=fedpriv.fedavg), "call it, e.g. fedpriv.fedavg(learning_rate=0.1)"),
    "torch SGD": (
        lambda: run(strategy=torch.optim.SGD(CNN.parameters(), lr=0.3, momentum=0.9)),
        "write fedpriv.fedavg(learning_rate=0.3, optimizer=fedpriv.Momentum(0.9))",
    ),
    "torch Adam": (
        lambda: fedpriv.fedavg(0.1, optimizer=torch.optim.Adam(CNN.parameters())),
        "strategy.optimizer = Adam",
    ),
    "a word for an optimizer": (
        lambda: fedpriv.fedavg(0.1, optimizer="adam"),
        "strategy.optimizer = 'adam': make it with fedpriv.Adam()",
    ),
    "a mechanism for privacy": (
        lambda: run(privacy="gaussian"),
        "make it with fedpriv.Privacy(epsilon=3.0, delta=1e-5, mechanism=fedpriv.Gaussian())",
    ),
    "a number for privacy": (lambda: run(privacy=2.0), "make it with fedpriv.Privacy(epsilon=2.0)"),
    "no privacy": (lambda: run(privacy=None), 'fedpriv.Privacy(at="none")'),
    "the class": (lambda: run(privacy=fedpriv.Privacy), "is a class: make one with fedpriv.Privacy("),
    "a number for a clip": (lambda: fedpriv.Privacy(epsilon=1.0, clip=2.0), "make it with fedpriv.Clip(bound=2.0)"),
    "a word for a mechanism": (
        lambda: fedpriv.Privacy(epsilon=1.0, mechanism="laplace"),
        "privacy.mechanism = 'laplace': make it with fedpriv.Laplace()",
    ),
    "a class for a mechanism": (
        lambda: fedpriv.Privacy(epsilon=1.0, mechanism=fedpriv.Laplace),
        "make it with fedpriv.Laplace()",
    ),
    "a word for trust": (lambda: fedpriv.Privacy(epsilon=1.0, trust="central"), "make it with fedpriv.Central()"),
    "a word for batches": (
        lambda: fedpriv.Privacy(epsilon=1.0, sampling="fixed_size"),
        "make it with fedpriv.FixedSize(size=10)",
    ),
    "a rate for batches": (lambda: fedpriv.Privacy(epsilon=1.0, sampling=0.1), "fedpriv.Poisson(rate=0.1)"),
    "a graph for a network": (
        lambda: run(network=networkx.cycle_graph(4)),
        "fedpriv.Graph(networkx.cycle_graph(10))",
    ),
    "gpu": (lambda: fedpriv.Compute(device="gpu"), "compute.device = 'gpu': write 'cuda'"),
    "gpu:1": (lambda: fedpriv.Compute(device="gpu:1"), "write 'cuda:1'"),
    "a torch device": (lambda: fedpriv.Compute(device=torch.device("cpu")), "write 'cpu'"),
    "a torch dtype": (lambda: fedpriv.Compute(dtype=torch.float64), "choose 'float32' or 'float64'"),
    "one client": (lambda: run(clients=clients()[0]), "clients = 'a Client': is one client: give a list of them"),
    "one model": (lambda: run(clients=CNN), "fedpriv.Client(model, loss, loader)"),
    "models": (lambda: run(clients=[CNN, CNN]), "clients[0] = 'a Linear': is no client"),
    "loaders": (
        lambda: run(clients=[clients()[0], DataLoader(dataset())]),
        "clients[1] = 'a DataLoader': is no client: write fedpriv.Client(model, loss, loader)",
    ),
    "data sets": (lambda: run(clients=[dataset()]), "write fedpriv.make_clients(model, loss, datasets)"),
    "a generator": (lambda: run(clients=(client for client in clients())), "list(clients)"),
    "a dict": (lambda: run(clients=dict(enumerate(clients()))), "list(clients.values())"),
    "no clients": (lambda: run(clients=[]), "at least one client"),
    "one data set": (
        lambda: fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), dataset()),
        "make_clients.datasets = 'a TensorDataset': is one data set: give a list",
    ),
    "loaders for data sets": (
        lambda: fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), [DataLoader(dataset())]),
        "make_clients.datasets[0] = 'a DataLoader': is a loader: give its data set, loader.dataset",
    ),
    "tensors for a data set": (
        lambda: fedpriv.make_clients(CNN, nn.CrossEntropyLoss(), [(torch.ones(2, 4), torch.ones(2))]),
        "TensorDataset(inputs, targets)",
    ),
    "a data set for a loader": (
        lambda: fedpriv.Client(CNN, nn.CrossEntropyLoss(), dataset()),
        "client.loader = 'a TensorDataset': is no loader: write torch.utils.data.DataLoader(dataset)",
    ),
    "a class for a loss": (
        lambda: fedpriv.make_clients(CNN, nn.CrossEntropyLoss, [dataset()]),
        "make the loss, CrossEntropyLoss()",
    ),
    "a name for a loss": (lambda: fedpriv.make_clients(CNN, "cross_entropy", [dataset()]), "resolve_loss"),
    "a class for a model": (lambda: fedpriv.make_clients(nn.Linear, nn.MSELoss(), [dataset()]), "is a class"),
    "a loader for test data": (lambda: run(test=DataLoader(dataset())), "loader.dataset"),
    "tensors for test data": (lambda: run(test=(torch.ones(2, 4), torch.ones(2))), "TensorDataset(inputs, targets)"),
    "a folder for sinks": (lambda: run(sinks="runs/a"), "sinks=[fedpriv.sinks.TensorBoard('runs/a')]"),
    "one sink": (lambda: run(sinks=Sink()), "sinks=[sink]"),
    "a class for a sink": (lambda: run(sinks=[fedpriv.sinks.TensorBoard]), "TensorBoard('runs/a')"),
    "a sink that never closes": (lambda: run(sinks=[HalfASink()]), "def close(self) -> None"),
    "a list of metrics": (lambda: run(metrics=["f1"]), "by name"),
}


class Sink:
    def write(self, report: object) -> None: ...
    def close(self) -> None: ...


class HalfASink:
    def write(self, report: object) -> None: ...


@pytest.mark.parametrize("name", SAID)
def test_one_thing_where_another_is_meant(name: str):
    typed, said = SAID[name]
    assert said in answer(typed)


def test_a_loader_without_labels():
    bare = DataLoader(TensorDataset(torch.ones(4, 4)))
    with pytest.raises(DataError, match=r"inputs without targets.*TensorDataset\(inputs, targets\)"):
        fedpriv.train(
            [fedpriv.Client(CNN, nn.CrossEntropyLoss(), bare)],
            fedpriv.fedavg(0.1),
            fedpriv.Privacy(epsilon=3.0),
            rounds=1,
        )


# --- too few, too many ------------------------------------------------------------------------------------------------


def test_what_is_missing_is_explained_with_a_good_value():
    assert answer(fedpriv.fedavg).startswith(
        "strategy.learning_rate = (not given): is needed: Step size of the clients"
    )
    assert answer(fedpriv.fedavg).endswith("e.g. fedpriv.fedavg(learning_rate=0.1)")
    assert "Each example joins the batch with probability `rate`" in answer(fedpriv.Poisson)
    assert "rounds = (not given): is needed: Number of rounds; e.g. fedpriv.train(" in answer(
        lambda: fedpriv.train(clients(), fedpriv.fedavg(0.1), fedpriv.Privacy(epsilon=3.0))
    )
    assert "target epsilon" in answer(fedpriv.Privacy)


def test_an_argument_by_its_place_that_goes_by_name():
    three = clients(), fedpriv.fedavg(0.1), fedpriv.Privacy(epsilon=3.0)
    assert "write its name, e.g. rounds=...; by their places go clients, strategy, privacy" in answer(
        lambda: fedpriv.train(*three, 10)
    )
    assert "is one too many: fedpriv.Poisson(rate=0.01) takes rate" in answer(lambda: fedpriv.Poisson(0.1, 10))
    assert "is given twice" in answer(lambda: fedpriv.fedavg(0.1, learning_rate=0.2))


# --- the same table in configurations and on the command line ---------------------------------------------------------

IN_YAML = {
    "epochs=5": "epochs = 5: unknown",
    "privacy.eps=3": "write privacy.epsilon: 3",
    "privacy.max_grad_norm=2": "write privacy.clip: {bound: 2}",
    "privacy.batch_size=64": "write privacy.sampling: {poisson: {rate: R}}, R being 64 over the number",
    "privacy.sample_rate=0.1": "write privacy.sampling: {poisson: {rate: 0.1}}",
    "lr=0.1": "write strategy.learning_rate: 0.1",
    "strategy.lr=0.1": "unknown",
    "log_dir=a": "write log.tensorboard: true",
    "compute.gpu=true": "write compute.device: cuda",
    "compute.device=gpu": "write 'cuda'",
    "epsilon=3": "write privacy.epsilon: 3",
}


@pytest.mark.parametrize("given", IN_YAML)
def test_a_configuration_in_the_words_of_others(given: str):
    said = answer(lambda: load_config(RUN, [given]))
    assert said.startswith(given.split("=")[0])
    assert IN_YAML[given] in said


@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ("--epochs", "rounds=VALUE"),
        ("--lr", "strategy.learning_rate=VALUE"),
        ("--epsilon", "privacy.epsilon=VALUE"),
        ("--max-grad-norm", "'privacy.clip={bound: VALUE}'"),
        ("--gpu", "compute.device=cuda"),
    ],
)
@pytest.mark.parametrize("command", ["train", "plan"])
def test_an_option_of_the_command_line_that_is_a_setting(command: str, option: str, setting: str):
    told = CliRunner().invoke(app, [command, "digits_iadmm", option, "3"])
    assert told.exit_code == 2
    assert f"write {setting}" in " ".join(told.stderr.replace("│", " ").split())


def test_an_option_that_means_nothing_here():
    told = CliRunner().invoke(app, ["train", "digits_iadmm", "--zzz"])
    assert told.exit_code == 2 and "No such option" in told.stderr and "settings stand" not in told.stderr


def test_a_strategy_of_a_configuration_in_the_words_of_others():
    said = answer(lambda: load_config(RUN, ["strategy={name: fedavg, lr: 0.1}"]))
    assert "strategy.lr = 0.1: unknown" in said and "write strategy.learning_rate: 0.1" in said
    said = answer(lambda: load_config(RUN, ["strategy={name: fedavg}"]))
    assert said == "strategy.learning_rate = None: is required, e.g. learning_rate: 0.1"


TRIED: tuple[Any, ...] = (10, 1, 0.5, 0.0, "a", True, "float64", "nonfinite", None, fedpriv.Uniform())


def alternatives(text: str, make: Callable[[str, object], object]) -> list[str]:
    """Why no value makes what a text says to write; empty if one does."""
    failed: list[str] = []
    for value in TRIED:
        try:
            make(text, value)
        except Exception as error:  # whatever is wrong with it
            failed.append(f"{value!r}: {error}")
        else:
            return []
    return failed


@pytest.mark.parametrize("term", TERMS, ids=lambda term: f"{term.name} {term.words.split(' ')[0]}")
def test_what_the_table_says_to_write_can_be_written(term: translations.Term):
    """Python's is evaluated; it once named parameters that nothing had."""

    def make(text: str, value: object) -> object:
        code = (
            text.split(", n the number")[0]
            .replace("{value}", repr(value))
            .replace("Privacy(..., ", "Privacy(epsilon=3.0, ")
        )
        names = {"fedpriv": fedpriv, "networkx": networkx, "torch": torch, "n": 100, "n_clients": 100}
        names |= {"load": lambda _: dataset(), "sizes": [200, 200]}
        names |= {"model": CNN, "loss": nn.CrossEntropyLoss(), "datasets": [dataset()], "dataset": dataset()}
        if code.startswith("fedpriv.train(..., "):
            known = inspect.signature(fedpriv.train).parameters
            words = re.findall(r"(\w+)=", re.sub(r"\(.*\)", "", code.removeprefix("fedpriv.train(..., ")))
            assert words and all(word in known for word in words), words
            return None
        return eval(code.partition("=")[2], names)

    if term.call != "leave it out":
        assert not alternatives(term.call.replace("{argument}", term.argument), make)


STRATEGIES = (
    "{name: fedavg, learning_rate: 0.1}",
    "{name: fedprox, learning_rate: 0.1, proximal: 0.1}",
    "{name: dp_gd, learning_rate: 0.1}",
)


@pytest.mark.parametrize("term", TERMS, ids=lambda term: f"{term.name} {term.words.split(' ')[0]}")
def test_what_the_table_says_to_write_can_be_written_in_yaml(term: translations.Term):
    def make(text: str, value: object) -> object:
        path, _, written = text.partition(", R being")[0].partition(": ")
        written = written.replace("{value}", str(value).lower()).replace("rate: R", "rate: 0.1")
        errors: list[ConfigError] = []
        for strategy in STRATEGIES:
            try:
                return load_config(RUN, [f"strategy={strategy}", f"{path}={written}"])
            except ConfigError as error:
                errors.append(error)
        raise errors[0]

    if not term.yaml.startswith("leave it out"):
        assert not alternatives(term.yaml, make)


@pytest.mark.parametrize("name", [term.name for term in TERMS if term.call.startswith(("privacy", "compute"))])
def test_every_option_has_a_home_in_the_table(name: str):
    homes = {"privacy": fedpriv.Privacy, "compute": fedpriv.Compute}
    term = next(term for term in TERMS if term.name == name)
    home = homes[term.call.split("=")[0]]
    assert name in inspect.signature(home).parameters


def test_options_of_privacy_compute_and_train_are_in_the_table():
    named = {term.name for term in TERMS}
    inside = {"clients", "privacy", "settings", "compute", "compare", "extend", "fresh_noise", "shared", "secure"}
    for call in (fedpriv.Privacy, fedpriv.Compute, fedpriv.train):
        assert not {*inspect.signature(call).parameters} - named - inside


# --- every public call ------------------------------------------------------------------------------------------------

MODULES = ("", ".sinks", ".data", ".models", ".audit", ".tuning", ".sites", ".config", ".strategies.proximal")
# functions of tensors, called in every step, and what users get but never make
NOT_OURS_TO_ASK = {
    *("cross_entropy", "hinge", "logistic", "squared_error", "predict"),
    *(
        "Audit",
        "CheckResult",
        "Config",
        "Forecast",
        "Recipe",
        "SiteDescriptor",
        "FederationPlan",
        "SiteRound",
        "Outcome",
        "Trial",
    ),
}


def public() -> dict[str, Callable[..., Any]]:
    """Every function and class that users call."""
    found: dict[str, Callable[..., Any]] = {}
    for place in MODULES:
        module = importlib.import_module(f"fedpriv{place}") if place != ".sinks" else fedpriv.sinks
        for name in getattr(module, "__all__", ["L1", "L2", "Ball", "Box", "ElasticNet", "Simplex", "Zero"]):
            thing = getattr(module, name)
            is_class = inspect.isclass(thing)
            if not is_class and not inspect.isfunction(thing):
                continue
            if name in NOT_OURS_TO_ASK or typing.get_origin(thing) is not None:
                continue
            if is_class and (issubclass(thing, BaseException) or getattr(thing, "_is_protocol", False)):
                continue
            found[f"fedpriv{place}.{name}"] = thing
    return found


PUBLIC = public()


def test_the_walk_finds_them_all():
    assert len(PUBLIC) > 120
    assert {"fedpriv.train", "fedpriv.Privacy", "fedpriv.sinks.TensorBoard", "fedpriv.sites.Site"} <= {*PUBLIC}


def takes_options_of_others(call: Callable[..., Any]) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(call).parameters.values())


@pytest.mark.parametrize("name", [name for name, call in PUBLIC.items() if not takes_options_of_others(call)])
def test_every_public_call_answers_an_unknown_word(name: str):
    call = PUBLIC[name]
    known = list(inspect.signature(call).parameters)
    with pytest.raises(ConfigError) as caught:
        call(no_such_word=1)
    assert caught.value.field.endswith("no_such_word")
    assert all(one in caught.value.fix for one in known) or "no options" in caught.value.fix
    if known:
        slip = f"{known[0]}x" if len(known[0]) > 3 else f"{known[0]}{known[0]}"
        with pytest.raises(ConfigError, match=known[0]):
            call(**{slip: 1})


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_call_says_what_is_missing_and_gives_a_call_that_works(name: str):
    """The call that it writes is made, where it needs nothing of the user's own."""
    call = PUBLIC[name]
    required = [
        one.name
        for one in inspect.signature(call).parameters.values()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if not required:
        return
    with pytest.raises(ConfigError) as caught:
        call()
    assert caught.value.field.split(".")[-1] == required[0]
    code = caught.value.fix.rpartition("e.g. ")[2]
    assert all(f"{one}=" in code for one in required)
    if name.count(".") == 1 and name.split(".")[1] not in OF_THE_USERS:
        eval(code, {"fedpriv": fedpriv, "networkx": networkx, "torch": torch})


# they need data, a model, or functions of the user's own
OF_THE_USERS = {
    *("Client", "make_clients", "lazy_clients", "count_examples", "train", "Training", "total", "Budget"),
    *("Result", "RoundReport", "Function", "Strategy", "Forecast", "plan"),
}


def test_signatures_are_seen_by_editors_and_help():
    for name, call in PUBLIC.items():
        kinds = {one.kind for one in inspect.signature(call).parameters.values()}
        own = inspect.unwrap(call.__init__ if inspect.isclass(call) else call)
        assert inspect.Parameter.VAR_POSITIONAL not in kinds, name
        assert call.__doc__ or own.__doc__, name
        assert own.__module__.startswith("fedpriv") and own.__qualname__.split(".")[-1] in (call.__name__, "__init__")


# --- an algorithm of one's own ----------------------------------------------------------------------------------------


class Step:
    receives: ClassVar[tuple[str, ...]] = ("model",)
    sends: ClassVar[tuple[str, ...]] = ("gradient",)
    memory: ClassVar[str] = "private"
    linear: ClassVar[bool] = True

    def init(self, params: Tensor) -> object:
        return None

    def __call__(self, received: Tensor, state: object, oracle: Any) -> object:
        return oracle.gradient(received), state


@dataclass(frozen=True)
class Kept:
    model: Tensor


class Descend:
    receives: ClassVar[tuple[str, ...]] = ("gradient",)
    sends: ClassVar[tuple[str, ...]] = ("model",)
    is_sum: ClassVar[bool] = True

    def init(self, params: Tensor) -> object:
        return params, Kept(params)

    def __call__(self, message: Tensor, network: Any, state: Any) -> object:
        model = state.model - 0.1 * network.mean(message)
        return model, Kept(model)


def paired(step: object = None, aggregator: object = None) -> fedpriv.Strategy:
    return fedpriv.Strategy(step or Step(), aggregator or Descend())  # pyright: ignore


def changed(base: type, **members: Any) -> object:
    """An object of the class with these members, without those that are None."""
    held = {**{name: value for name, value in vars(base).items() if not name.startswith("__") or name == "__call__"}}
    held.update(members)
    return type("Own", (), {name: value for name, value in held.items() if value is not None})()


def test_an_own_algorithm_trains():
    result = fedpriv.train(clients(), paired(), fedpriv.Privacy(epsilon=3.0), rounds=2)
    assert result.rounds == 2


OWN = {
    "no sends": (
        lambda: paired(changed(Step, sends=None)),
        'add to the class: sends: ClassVar[tuple[str, ...]] = ("gr',
    ),
    "no receives": (lambda: paired(changed(Step, receives=None)), "receives: ClassVar[tuple[str, ...]] = "),
    "no linear": (lambda: paired(changed(Step, linear=None)), "linear: ClassVar[bool] = False"),
    "no memory": (lambda: paired(changed(Step, memory=None)), 'memory: ClassVar[Memory] = "private"'),
    "no init": (lambda: paired(changed(Step, init=None)), "add def init(self, params: Tensor)"),
    "no call": (lambda: paired(changed(Step, __call__=None)), "def __call__(self, received: Tensor, state: None"),
    "no is_sum": (lambda: paired(None, changed(Descend, is_sum=None)), "is_sum: ClassVar[bool] = False"),
    "no says in the aggregator": (lambda: paired(None, changed(Descend, sends=None)), "has no sends: add to the class"),
    "a class": (lambda: paired(Step), "make it with Step()"),
    "a function": (lambda: paired(lambda x: x), "is no LocalStep"),
    "text": (lambda: paired(changed(Step, sends="gradient")), "is text: write a tuple, ('gradient',)"),
    "is_sum as a word": (lambda: paired(None, changed(Descend, is_sum="yes")), "must be True or False"),
    "another word": (
        lambda: paired(changed(Step, sends=("update",))),
        "sends ('update',) but Descend receives ('gradient',)",
    ),
    "a call without oracle": (
        lambda: paired(changed(Step, __call__=lambda self, received, state: (received, state))),
        "cannot be called with 3 arguments: write def __call__(self, received: Tensor, state: None, oracle: Oracle)",
    ),
    "no state returned": (
        lambda: paired(changed(Step, __call__=lambda self, received, state, oracle: received)),
        "must return two things: return message, state",
    ),
    "no model returned": (
        lambda: paired(None, changed(Descend, init=lambda self, params: params)),
        "Own.init -> a Tensor': must return two things: return received, state",
    ),
    "one mean": (
        lambda: paired(None, changed(Descend, __call__=lambda self, message, network, state: (message.mean(0), state))),
        "a row for each client; for [3, 2] it is [2]; a mean over clients is network.mean",
    ),
    "another shape next time": (
        lambda: paired(
            None,
            changed(
                Descend,
                init=lambda self, params: (torch.cat([params, params], 1), Kept(params)),
                __call__=lambda self, message, network, state: (network.mean(message)[:, :2], state),
            ),
        ),
        "has the shape [3, 2], and Own.init gives [3, 4]: give the same one",
    ),
    "one row": (
        lambda: paired(None, changed(Descend, init=lambda self, params: (params[:1], Kept(params)))),
        "send one row to all with network.scatter(row), or row.expand_as(params)",
    ),
    "losses for messages": (
        lambda: paired(
            changed(Step, __call__=lambda self, received, state, oracle: (oracle.exact(received)[0], state))
        ),
        "the message must have the shape [n, dim], a row for each client; for [3, 2] it is [3]",
    ),
    "a list for a message": (
        lambda: paired(changed(Step, __call__=lambda self, received, state, oracle: ([0.0], state))),
        "must be a tensor [n, dim], a row for each client; it is a list",
    ),
    "a list for a state": (
        lambda: paired(changed(Step, init=lambda self, params: [params])),
        "its state has a list: keep tensors and numbers, in a dataclass, a tuple or a dict, or None",
    ),
    "one state for all clients": (
        lambda: paired(changed(Step, init=lambda self, params: {"velocity": params[0]})),
        "velocity must have a row for each client, [n, ...]; for 3 clients it is [2]",
    ),
    "a state that grows": (
        lambda: paired(
            changed(Step, __call__=lambda self, received, state, oracle: (oracle.gradient(received), {"t": 1}))
        ),
        "its state has the parts t, and Own.init makes none (None): keep the same ones",
    ),
    "a question that no oracle knows": (
        lambda: paired(changed(Step, __call__=lambda self, received, state, oracle: (oracle.grad(received), state))),
        "the oracle has none of this name; did you mean 'gradient'",
    ),
    "an exchange that no network knows": (
        lambda: paired(
            None, changed(Descend, __call__=lambda self, message, network, state: (network.average(message), state))
        ),
        "the network has none of this name",
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_an_own_algorithm_is_told_the_line_to_add_when_the_pair_is_made(name: str):
    made, said = OWN[name]
    assert said in answer(made)


def test_an_own_algorithm_may_send_more_than_parameters():
    """Two vectors in a row, as in gradient tracking."""

    def two(self: object, received: Tensor, state: object, oracle: Any) -> object:
        gradient = oracle.gradient(received)
        return torch.cat([gradient, gradient], 1), state

    def mean(self: object, message: Tensor, network: Any, state: Any) -> object:
        model = state.model - 0.1 * network.mean(message)[:, : state.model.shape[1]]
        return model, Kept(model)

    strategy = paired(changed(Step, __call__=two), changed(Descend, __call__=mean))
    assert fedpriv.train(clients(), strategy, fedpriv.Privacy(epsilon=3.0), rounds=1).rounds == 1


def test_an_own_algorithm_for_a_fixed_number_of_clients_is_left_to_the_plan():
    """The made-up clients are three, which is no reason to refuse it."""

    def weighted(self: object, message: Tensor, network: Any, state: Any) -> object:
        return network.mean(message * torch.tensor([[0.5], [1.5]])), state

    result = fedpriv.train(
        clients(), paired(None, changed(Descend, __call__=weighted)), fedpriv.Privacy(epsilon=3.0), rounds=1
    )
    assert result.rounds == 1
