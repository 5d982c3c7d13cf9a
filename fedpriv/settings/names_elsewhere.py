"""Names that users of configurations and other libraries look for in `fedpriv` or on a result, and what to write.

The other table, `translations`, is about words for arguments. This file imports nothing, since `import fedpriv` reads
it.
"""

from __future__ import annotations

_FIT = "fedpriv.fit(model, loader, loss, optimizer, epochs=3, epsilon=3.0, max_grad_norm=1.0)"
_TRAIN = "fedpriv.train(clients, strategy, privacy, rounds=20), which simulates all clients"
_CLIENT = "fedpriv.Client(model, loss, loader) for each data owner"
_SPENT = "no object to make: result.spent says what a run cost, fedpriv.plan(...) what it will cost"
_CLIENT_LEVEL = 'fedpriv.Privacy(epsilon=3.0, at="message", unit="client", trust=fedpriv.Central())'
_FEDAVG = "fedpriv.fedavg(learning_rate=0.1)"
_FEDOPT = "fedpriv.fedopt(learning_rate=0.1)"

_IN_YAML = "it in a configuration, as `fedpriv train` reads; it is a paper's own parameters for another strategy"

OF_FEDPRIV: dict[str, str] = {
    # configurations, whose strategies have the papers' names
    "iadmm_prox": "fedpriv.inexact_admm(fedpriv.Prox())",
    "iadmm_trust": "fedpriv.inexact_admm(fedpriv.Trust())",
    "iadmm_output": _IN_YAML,
    "dpop": _IN_YAML,
    "pp_doagt": _IN_YAML,
    "diff_tv_ab": _IN_YAML,
    "dp_gd": "fedpriv.gradient_descent(learning_rate=0.1)",
    "dp_svrg": "fedpriv.svrg(learning_rate=0.1, epoch_length=10)",
    "dp_svrg_plus_plus": "fedpriv.svrg(learning_rate=0.1, epoch_length=10, doubling=True)",
    "dp_accmd": "fedpriv.accelerated_mirror_descent(fedpriv.EuclideanBall(10.0), smoothness=1.0)",
    # Opacus
    "PrivacyEngine": _FIT,
    "make_private": _FIT,
    "make_private_with_epsilon": _FIT,
    "DPOptimizer": _FIT,
    "DPDataLoader": _FIT,
    "GradSampleModule": f"no wrapper: {_FIT}",
    "ModuleValidator": "fedpriv.models.fix_model(model)",
    "PRVAccountant": _SPENT,
    "RDPAccountant": _SPENT,
    "PrivacyAccountant": _SPENT,
    "get_noise_multiplier": "fedpriv.plan(clients, strategy, privacy, rounds=20)",
    "compute_epsilon": "fedpriv.plan(clients, strategy, privacy, rounds=20)",
    "opacus": "fedpriv.fit, fedpriv.from_opacus and fedpriv.to_opacus",
    # Flower
    "ClientApp": _CLIENT,
    "NumPyClient": _CLIENT,
    "ServerApp": _TRAIN,
    "run_simulation": _TRAIN,
    "start_simulation": _TRAIN,
    "start_server": "the command `fedpriv federate`, for organisations",
    "FedAvg": _FEDAVG,
    "FedProx": "fedpriv.fedprox(learning_rate=0.1, proximal=0.01)",
    "FedAdam": _FEDOPT,
    "FedOpt": _FEDOPT,
    "fedadam": _FEDOPT,
    "FedYogi": 'fedpriv.fedopt(learning_rate=0.1, server="yogi")',
    "FedAdagrad": 'fedpriv.fedopt(learning_rate=0.1, server="adagrad")',
    "Scaffold": "fedpriv.scaffold(learning_rate=0.1)",
    "SCAFFOLD": "fedpriv.scaffold(learning_rate=0.1)",
    "DifferentialPrivacyServerSideFixedClipping": _CLIENT_LEVEL,
    "DifferentialPrivacyClientSideFixedClipping": _CLIENT_LEVEL,
    "SecAgg": "fedpriv.Privacy(epsilon=3.0, trust=fedpriv.SecureAggregation(min_honest=5))",
    "SecAggPlusWorkflow": "fedpriv.Privacy(epsilon=3.0, trust=fedpriv.SecureAggregation(min_honest=5))",
    # pfl-research
    "FederatedAveraging": _FEDAVG,
    "CentrallyAppliedPrivacyMechanism": _CLIENT_LEVEL,
    "GaussianMechanism": "fedpriv.Gaussian()",
    "LaplaceMechanism": "fedpriv.Laplace()",
    "BandedMatrixFactorizationMechanism": "fedpriv.Privacy(epsilon=3.0, noise=fedpriv.Banded(band=8))",
    "PLDPrivacyAccountant": _SPENT,
    "PLDAccountant": _SPENT,
    "FederatedDataset": "fedpriv.lazy_clients(model, loss, load, sizes)",
    "SimulatedBackend": _TRAIN,
    # scikit-learn, diffprivlib and scripts
    "LogisticRegression": "fedpriv.PrivateLogisticRegression(epsilon=1.0)",
    "DPSGD": _FIT,
    "dpsgd": _FIT,
    "dp_sgd": _FIT,
    "DataLoader": "torch.utils.data.DataLoader",
    "SGD": "fedpriv.Sgd(), or torch.optim.SGD in fedpriv.fit",
    "load": 'fedpriv.data.load("digits")',
    "partition": 'fedpriv.data.partition("iid", labels, n_clients, generator)',
    "evaluate": "result.test_accuracy, of fedpriv.train(..., test=dataset)",
    "tune": "the command `fedpriv tune`",
}
"""What to write for a name that `fedpriv` does not have."""

_CHARGE = "result.spent, an upper bound with delta, unit and trust; the number alone is result.spent.epsilon"

OF_RESULT: dict[str, str] = {
    "epsilon": _CHARGE,
    "eps": _CHARGE,
    "delta": "result.spent.delta",
    "get_epsilon": _CHARGE,
    "privacy_spent": _CHARGE,
    "get_privacy_spent": _CHARGE,
    "accuracy": "result.test_accuracy, with test=dataset in the call",
    "loss": "result.test_loss, with test=dataset in the call",
    "losses": 'result.history["test_loss"], with test=dataset in the call',
    "metrics": "result.history, a row for each round, or result.measures",
    "metrics_centralized": "result.history, a row for each round",
    "parameters": "result.model.parameters(), or result.params, one vector",
    "state_dict": "result.model.state_dict()",
    "weights": "result.model.state_dict(), or result.params, one vector",
    "predict": "result.model(inputs)",
}
"""What to write for an attribute that a result does not have."""


def message(owner: str, name: str, known: dict[str, str]) -> str:
    """Returns the text of an AttributeError: what to write for a name, if a table knows it."""
    if name in known:
        return f"{owner} has no {name}: write {known[name]}"
    return f"{owner} has no {name}"
