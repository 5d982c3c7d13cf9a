"""Runs one small experiment of each strategy, trust, kind of noise and engine, and prints what must not change.

    python tests/golden/make_golden.py > tests/golden/golden.json

`test_golden.py` compares the file with the code of today: fingerprints and ledger records exactly; epsilon, models and
bounds that follow from models to rounding, since other processors round other last digits. `--exact` adds checksums of
released values and models: made on one machine before and after a change, the two files show whether a single bit has
changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx
import torch

import fedpriv as fp

N_CLIENTS = 4
SIZES = (9, 9, 9, 9)
UNEQUAL_SIZES = (5, 9, 13, 8)
ROUNDS = 3


def linear_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(5, 3)


def convolutional_model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Unflatten(1, (1, 5)), torch.nn.Conv1d(1, 2, 2), torch.nn.Tanh(), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(8, 3))


def clients(
    model: Callable[[], torch.nn.Module] = linear_model, sizes: Sequence[int] = SIZES, **options: Any
) -> list[fp.Client]:
    generator = torch.Generator().manual_seed(7)
    datasets = []
    for size in sizes:
        inputs = torch.randn(size, 5, generator=generator)
        labels = torch.randint(3, (size,), generator=generator)
        datasets.append(torch.utils.data.TensorDataset(inputs, labels))
    return fp.make_clients(model(), torch.nn.CrossEntropyLoss(), datasets, **options)


@dataclass(frozen=True)
class Case:
    """One run: its strategy, and what differs from a full-batch run of local trust on a star."""

    strategy: Callable[[], fp.Strategy]
    privacy: dict[str, Any] = field(default_factory=dict)
    network: Callable[[], Any] | None = None
    model: Callable[[], torch.nn.Module] = linear_model
    problem: fp.Problem | None = None
    compute: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[int, ...] = SIZES


def ring() -> fp.Graph:
    return fp.Graph(nx.cycle_graph(N_CLIENTS))


def sgd() -> fp.Strategy:
    return fp.gradient_descent(0.5)


def constrained() -> fp.Problem:
    return fp.Problem(constraints=(fp.ClassLossAtMost(1, 0.3, fraction=0.3),))


SECRET_COHORT: dict[str, Any] = {"unit": "client", "trust": fp.Central(cohort_rate=0.5)}


CASES: dict[str, Case] = {
    # strategies
    "inexact_admm_prox": Case(lambda: fp.inexact_admm(fp.Prox())),
    "inexact_admm_trust": Case(lambda: fp.inexact_admm(fp.Trust(fp.Decay(0.1, 0)))),
    "fedavg": Case(lambda: fp.fedavg(0.5, local_steps=2)),
    "fedprox": Case(lambda: fp.fedprox(0.5, proximal_mu=0.1, local_steps=2)),
    "fedopt": Case(lambda: fp.fedopt(0.5, server_optimizer="adam")),
    "scaffold": Case(lambda: fp.scaffold(0.5, local_steps=2)),
    "adaptive_clipping": Case(
        lambda: fp.adaptive_clipping(fp.fedavg(0.5)), {"noise_on": "message", "unit": "client", "trust": fp.Central()}
    ),
    "dual_averaging": Case(lambda: fp.dual_averaging(), network=ring),
    "gradient_tracking": Case(lambda: fp.gradient_tracking(fp.StepSize(0.1)), network=ring),
    "gradient_tracking_pair": Case(lambda: fp.gradient_tracking_pair(fp.StepSize(0.1)), network=ring),
    "decentralized_sgd": Case(lambda: fp.decentralized_sgd(fp.StepSize(0.1)), network=ring),
    "gradient_descent": Case(sgd),
    "svrg": Case(lambda: fp.svrg(1.0, 2, smoothness=0.25)),
    "accelerated_mirror_descent": Case(lambda: fp.accelerated_mirror_descent(fp.L1Ball(1.0), 0.25)),
    "private_augmented_lagrangian": Case(
        lambda: fp.private_al(beta=2.0),
        problem=constrained(),
    ),
    # answers without noise, or with a paper's
    "proximal_augmented_lagrangian": Case(
        fp.proximal_al, {"noise_on": "none", "epsilon": None}, problem=constrained(), sizes=UNEQUAL_SIZES
    ),
    "private_augmented_lagrangian_exact": Case(
        lambda: fp.private_al(beta=2.0), {"noise_on": "none", "epsilon": None}, problem=constrained()
    ),
    "published_gradients": Case(
        lambda: fp.inexact_admm(fp.Prox()), {"epsilon": None, "published": fp.Published(0.05)}, sizes=UNEQUAL_SIZES
    ),
    "published_messages": Case(
        lambda: fp.fedavg(0.5),
        {"epsilon": None, "noise_on": "message", "unit": "client", "published": fp.Published(0.05, scale=0.1)},
    ),
    # trust
    "secure_aggregation": Case(sgd, {"trust": fp.SecureAggregation(3)}),
    "central": Case(sgd, {"trust": fp.Central()}),
    "central_secret_cohort": Case(sgd, {"trust": fp.Central(cohort_rate=0.5), "unit": "client"}),
    "secret_cohort_of_unequal_clients": Case(
        lambda: fp.gradient_descent(0.5, optimizer=fp.Adam(noise_floor=1e-6)), SECRET_COHORT, sizes=UNEQUAL_SIZES
    ),
    "secret_cohort_messages": Case(
        lambda: fp.fedavg(0.5, local_steps=2), {**SECRET_COHORT, "noise_on": "message"}, sizes=UNEQUAL_SIZES
    ),
    "secret_cohort_adaptive_clipping": Case(
        lambda: fp.adaptive_clipping(fp.fedavg(0.5, local_steps=2)), {**SECRET_COHORT, "noise_on": "message"}
    ),
    "secret_cohort_replace_one": Case(sgd, {**SECRET_COHORT, "relation": "replace_one"}),
    "secret_epochs_of_messages": Case(
        lambda: fp.fedavg(0.5), {"unit": "client", "noise_on": "message", "trust": fp.Central(cohort_rounds=2)}
    ),
    "sum_of_unequal_clients": Case(
        sgd, {"trust": fp.SecureAggregation(3), "sampling": fp.Poisson(0.4)}, sizes=UNEQUAL_SIZES
    ),
    "pairwise": Case(sgd, {"trust": fp.Pairwise(colluders=1, ratio=4.0)}),
    "pairwise_graph": Case(
        lambda: fp.gradient_tracking(fp.StepSize(0.1)), {"trust": fp.Pairwise(colluders=1, ratio=4.0)}, ring
    ),
    "pairwise_of_unequal_clients": Case(
        lambda: fp.gradient_descent(0.5, optimizer=fp.Adam(noise_floor=1e-6)),
        {"trust": fp.Pairwise(colluders=1, ratio=4.0)},
        sizes=UNEQUAL_SIZES,
    ),
    "pairwise_several_answers": Case(
        lambda: fp.svrg(1.0, 2, smoothness=0.25),
        {"trust": fp.Pairwise(colluders=1, ratio=4.0), "sampling": fp.Poisson(0.4)},
        sizes=UNEQUAL_SIZES,
    ),
    "pairwise_constraints": Case(
        lambda: fp.private_al(beta=2.0), {"trust": fp.Pairwise(colluders=1, ratio=4.0)}, problem=constrained()
    ),
    "no_privacy": Case(lambda: fp.fedavg(0.5), {"noise_on": "none", "epsilon": None}),
    # noise, batches, units
    "message_client_level": Case(lambda: fp.fedavg(0.5, local_steps=2), {"noise_on": "message", "unit": "client"}),
    "laplace": Case(sgd, {"mechanism": fp.Laplace(), "clip": fp.Clip(1.0, "l1"), "delta": 0.0}),
    "poisson": Case(sgd, {"sampling": fp.Poisson(0.4)}),
    "poisson_add_remove": Case(sgd, {"sampling": fp.Poisson(0.4), "relation": "add_remove"}),
    "allocation": Case(sgd, {"sampling": fp.Allocation(3)}),
    "allocation_add_remove": Case(
        lambda: fp.fedavg(0.5, local_steps=2), {"sampling": fp.Allocation(4), "relation": "add_remove"}
    ),
    "allocation_of_clients": Case(sgd, {"unit": "client", "trust": fp.Central(cohort_rounds=3)}),
    "allocation_several_answers": Case(
        lambda: fp.fedavg(0.5, local_steps=3), {"sampling": fp.Allocation(2)}, sizes=UNEQUAL_SIZES
    ),
    "allocation_on_a_graph": Case(
        lambda: fp.gradient_tracking_pair(fp.StepSize(0.1)), {"sampling": fp.Allocation(2)}, network=ring
    ),
    "several_answers_of_a_cohort": Case(
        lambda: fp.fedavg(0.5, local_steps=3),
        {"sampling": fp.FixedSize(4), "schedule": fp.Geometric(0.9), "epsilon": None, "noise_multiplier": 2.0},
        network=lambda: fp.Star(N_CLIENTS, fp.FixedCohort(2)),
        sizes=UNEQUAL_SIZES,
    ),
    "fixed_size": Case(sgd, {"sampling": fp.FixedSize(4)}),
    "cyclic": Case(sgd, {"sampling": fp.Cyclic(3)}),
    "bsr": Case(sgd, {"noise": fp.BSR(2)}),
    "bsr_cyclic": Case(sgd, {"noise": fp.BSR(2), "sampling": fp.Cyclic(2)}),
    "bsr_clients_in_turns": Case(
        lambda: fp.fedavg(0.5),
        {"unit": "client", "noise_on": "message", "trust": fp.Central(), "noise": fp.BSR(2)},
        network=lambda: fp.Star(N_CLIENTS, fp.CyclicCohort(2)),
    ),
    "blt_pairwise": Case(sgd, {"noise": fp.BLT(2), "trust": fp.Pairwise(colluders=1, ratio=4.0)}),
    "geometric_schedule": Case(sgd, {"schedule": fp.Geometric(0.9)}),
    "fixed_cohort": Case(sgd, network=lambda: fp.Star(N_CLIENTS, fp.FixedCohort(2))),
    # backends and engines
    "ghost": Case(sgd, model=convolutional_model, compute={"backend": "ghost"}),
    "vmap": Case(sgd, model=convolutional_model, compute={"backend": "vmap"}),
    "loop": Case(sgd, model=convolutional_model, compute={"backend": "loop"}),
    "state_on_disk": Case(
        lambda: fp.inexact_admm(fp.Prox()),
        network=lambda: fp.Star(N_CLIENTS, fp.FixedCohort(2)),
        compute={"client_state": "disk"},
    ),
}


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def training(case: Case, folder: Path, *, resume: bool = False) -> fp.Training:
    settings = {"epsilon": 4.0, "delta": 1e-5, "clip": fp.Clip(1.0), **case.privacy}
    return fp.Training(
        clients(case.model, case.sizes, problem=case.problem),
        case.strategy(),
        fp.Privacy(**settings),
        rounds=ROUNDS,
        seed=1,
        secret_seed=2,
        network=None if case.network is None else case.network(),
        compute=fp.Compute(**case.compute),
        folder=folder,
        resume=resume,
        checkpoint_every=1,
    )


def golden(case: Case, *, exact: bool) -> dict[str, Any]:
    """What a run of the case releases, charges and ends with; it is stopped after a round and resumed."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name) / "run"
        stopped = training(case, folder)
        next(rounds := iter(stopped))
        rounds.close()
        stopped.folder.close()
        resumed = training(case, folder, resume=True)
        for _ in resumed:
            pass
        result = resumed.result()
        resumed.folder.close()
        lines = (folder / "ledger.jsonl").read_text().splitlines()
        checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    records = [json.loads(line) for line in lines]
    for record in records:
        record.pop("chain")
        record.pop("run", None)  # the random name of the run
        record.pop("config", None)  # a digest of names and texts; "settings" has one of the values
        if record.get("query") == "gradient_difference":
            # in proportion to the distance of two models, of which processors round other last digits
            record["bound"] = float(f"{record['bound']:.4g}")
    found = {
        "settings": checkpoint["settings"],
        "ledger": digest(json.dumps(records, sort_keys=True).encode()),
        "epsilon": result.spent.epsilon,
        "params": [round(float(value), 6) for value in result.params],
    }
    if exact:
        found |= {
            "params_bytes": digest(result.params.numpy().tobytes()),
            "node_params_bytes": digest(result.node_params.contiguous().numpy().tobytes()),
            "epsilon_hex": float(result.spent.epsilon).hex(),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exact", action="store_true", help="add checksums that hold on this machine only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: golden(case, exact=options.exact) for name, case in CASES.items()}
    json.dump(found, sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
