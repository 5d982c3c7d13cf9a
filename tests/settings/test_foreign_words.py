"""Words of other libraries in Python: each is answered with what to write here, and the number that it would be."""

from __future__ import annotations

from typing import Any

import pytest
from error_texts import clients, error_of, run

import fedpriv
from fedpriv.settings.translations import read_entries

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
    "batches": (20, "write sampling=fedpriv.Allocation(batches=20)"),
    "poisson_sampling": (True, "write sampling=fedpriv.Poisson(rate=0.01)"),
    "noise_type": ("laplace", "write mechanism=fedpriv.Gaussian()"),
    "secure_aggregation": (True, "write trust=fedpriv.SecureAggregation(min_honest=5)"),
    "user_level": (True, 'write unit="client"'),
    "alphas": ([2, 3], "leave it out"),
    "epsilonn": (3.0, "did you mean 'epsilon'"),
    "lr": (0.1, "strategy=fedpriv.fedavg(learning_rate=0.1)"),
}


@pytest.mark.parametrize("word", OF_PRIVACY)
def test_foreign_privacy_word_translated(word: str):
    value, write = OF_PRIVACY[word]
    message = error_of(lambda: fedpriv.Privacy(**{word: value}))
    assert message.startswith(f"privacy.{word} = ")
    assert write in message


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
    # of Flower
    "num_server_rounds": (5, "write rounds=5"),
    "client_app": (None, "clients=fedpriv.make_clients(model, loss, datasets"),
    "num_supernodes": (10, "there are as many clients as data sets"),
    "fraction_train": (0.5, "network=fedpriv.Star(n_clients, cohort=fedpriv.PoissonCohort(0.5))"),
    "min_train_nodes": (2, "leave it out (all clients are simulated, so there is no waiting"),
    "min_fit_clients": (2, "leave it out (all clients are simulated"),
    "client_num_per_round": (5, "network=fedpriv.Star(n_clients, cohort=fedpriv.FixedCohort(5))"),
    "sample_ratio": (0.5, "network=fedpriv.Star(n_clients, cohort=fedpriv.PoissonCohort(0.5))"),
    "initial_parameters": (None, "each client has its own copy of your model"),
    "client_resources": (None, "one process simulates all clients"),
    # of pfl-research
    "central_num_iterations": (100, "write rounds=100"),
    "cohort_size": (20, "cohort=fedpriv.FixedCohort(20)"),
    "local_learning_rate": (0.1, "strategy=fedpriv.fedavg(learning_rate=0.1)"),
    "central_privacy": (None, "trust=fedpriv.Central()"),
    "evaluation_frequency": (5, "evaluate_every=5"),
    # of scikit-learn and TensorFlow Privacy
    "n_clients": (10, "there are as many clients as data sets"),
    "max_iter": (10, "write rounds=10"),
    "class_weight": (None, "class weights are part of the loss"),
    "l2_norm_clip": (1.0, "clip=fedpriv.Clip(1.0)"),
    "num_microbatches": (4, "compute=fedpriv.Compute(max_physical_batch_size=4)"),
}


@pytest.mark.parametrize("word", OF_A_RUN)
@pytest.mark.parametrize("call", [fedpriv.train, fedpriv.Training])
def test_foreign_run_argument_translated(call: Any, word: str):
    value, write = OF_A_RUN[word]
    if call is fedpriv.Training and word in ("tensorboard", "verbose"):
        write = f"fedpriv.train(..., {write})"  # it is iterated over, and tells nobody
    if call is fedpriv.Training and word == "log_dir":
        write = "folder='runs/a'"
    message = error_of(lambda: call(clients(), fedpriv.fedavg(0.1), fedpriv.Privacy(epsilon=3.0), **{word: value}))
    assert message.startswith(f"{word} = ")
    assert write in message


OF_STRATEGIES = {
    "lr": (fedpriv.fedavg, 0.5, "write learning_rate=0.5"),
    "epochs": (fedpriv.fedavg, 5, "write local_steps=5"),
    "mu": (fedpriv.fedprox, 0.1, "write proximal_mu=0.1"),
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
    "lot_size": (fedpriv.Allocation, 64, "write batches=round(n / 64) (n is the number of examples of a client"),
    "bs": (fedpriv.Cyclic, 64, "write blocks=round(n / 64)"),
    "minibatch_size": (fedpriv.Poisson, 64, "write rate=64 / n (n is"),
    "log_dir": (fedpriv.sinks.TensorBoard, "a", "write folder='a'"),
}


@pytest.mark.parametrize("word", OF_STRATEGIES)
def test_foreign_strategy_option_translated(word: str):
    call, value, write = OF_STRATEGIES[word]
    assert write in error_of(lambda: call(**{word: value}))


@pytest.mark.parametrize("call", [fedpriv.fit, fedpriv.PrivateLogisticRegression])
def test_function_specific_advice_shown(call: Any):
    advice = read_entries("functions", call.__name__)
    assert advice
    for word, text in advice.items():
        assert error_of(lambda word=word: call(**{word: 0.5})) == f"{word} = 0.5: {text.replace('{value}', '0.5')}"


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
def test_epochs_suggest_rounds(sampling: Any, steps: int, rounds: int):
    privacy = fedpriv.Privacy(epsilon=3.0, sampling=sampling)
    message = error_of(lambda: fedpriv.train(clients(), fedpriv.fedavg(0.1, steps), privacy, epochs=3))
    assert f"write rounds={rounds}," in message


def test_epochs_with_cohorts_suggest_more_rounds():
    strategy, network = fedpriv.fedavg(0.1), fedpriv.Star(2, fedpriv.PoissonCohort(0.5))
    privacy = fedpriv.Privacy(epsilon=3.0)
    assert "write rounds=6," in error_of(lambda: fedpriv.train(clients(), strategy, privacy, epochs=3, network=network))
    assert "rounds" in error_of(lambda: fedpriv.train(clients(), epochs=3)), "without privacy settings it has no number"


def test_batch_size_suggests_poisson_rate():
    assert "fedpriv.Poisson(rate=0.32)), for the 200 examples" in error_of(lambda: run(batch_size=64))
    assert "fedpriv.Poisson(rate=1))" in error_of(lambda: run(batch_size=1000))


@pytest.mark.parametrize(
    ("sampling", "write"),
    [
        (
            fedpriv.Allocation(10),
            "fedpriv.Allocation(batches=3)), for the 200 examples of a client; each example is in",
        ),
        (fedpriv.Cyclic(10), "fedpriv.Cyclic(blocks=3)), for the 200 examples of a client; each example is in"),
        (fedpriv.FixedSize(10), "fedpriv.FixedSize(size=64)), for the 200 examples of a client; every batch has"),
        (fedpriv.FullBatch(), "fedpriv.Poisson(rate=0.32)), for the 200 examples of a client; each example joins"),
    ],
)
def test_batch_size_suggests_chosen_sampling(sampling: fedpriv.privacy.settings.Sampling, write: str):
    privacy = fedpriv.Privacy(epsilon=3.0, sampling=sampling)
    message = error_of(lambda: fedpriv.train(clients(), fedpriv.fedavg(0.1), privacy, batch_size=64))
    assert write in message
    one_batch = error_of(lambda: fedpriv.train(clients(), fedpriv.fedavg(0.1), privacy, batch_size=1000))
    if isinstance(sampling, fedpriv.Allocation):
        assert "Allocation(batches=2)" in one_batch, "an epoch of random allocation has two batches at least"
