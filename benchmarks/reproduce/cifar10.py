"""CIFAR-10 from scratch on fixed features, with one model: trusted sums, local trust, and no privacy.

    python benchmarks/reproduce/cifar10.py --root FOLDER                 # torchvision's folder, cifar-10-batches-py/
    python benchmarks/reproduce/cifar10.py --jpeg FOLDER --out FOLDER    # a copy in JPEG: writes torchvision's layout

A copy in lossy JPEG (train.jpegs.xz, train.npz with sizes and labels, and the same for test) is a different data set
than CIFAR-10: compare its private results with its own results without privacy only.

Features are computed once for all runs, by the transforms of configs/cifar10_patches_sums.yaml or, with `--config
cifar10_scattering_sums`, by the transforms of that configuration.

Each private run, except for local trust, has a second variant with the same total epsilon: its first release is the
mean of the features, with noise multiplier 30, and its second release is the model on the features minus that mean
(docs/howto/own_data.md).
"""

from __future__ import annotations

import argparse
import io
import lzma
import pickle
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import TensorDataset

import fedpriv as fp
from fedpriv import data
from fedpriv.config import Config, build, load_config
from fedpriv.config.building import divide
from fedpriv.data import Split
from fedpriv.errors import PromiseWarning

CONFIGS = Path(__file__).parents[2] / "configs"
SUMS = "privacy.trust={secure_aggregation: {min_honest: 10}}"
PAIRS = "privacy.trust={pairwise: {colluders: 3, ratio: 10}}"
# steps at epsilon 1, and without privacy (with the number of rounds)
STEPS = {"cifar10_patches_sums": (500, 200, 60), "cifar10_scattering_sums": (500, 60, 200)}
MEAN_NOISE = 30.0  # multiplier of the noise of the features' mean


def runs(config: str) -> dict[str, list[str]]:
    """The overrides of each run."""
    small, exact, rounds = STEPS[config]
    low = ["privacy.epsilon=1", f"strategy.learning_rate={small}"]
    return {
        "no privacy": [
            "privacy={noise_on: none}",
            f"rounds={rounds}",
            f"strategy.learning_rate={exact}",
            "strategy.optimizer.momentum.beta=0.9",
        ],
        "secure aggregation, epsilon 3": [SUMS],
        "secure aggregation, epsilon 1": [SUMS, *low],
        "pairwise, 3 of 10 collude, epsilon 3": [PAIRS],
        "pairwise, 3 of 10 collude, epsilon 1": [PAIRS, *low],
        "local, epsilon 3": ["privacy.trust=local", "strategy.learning_rate=500"],
    }


class Mean(nn.Module):
    """A point from which examples are measured: the gradient of half the squared distance is the point minus the mean.

    Args:
        size: Number of entries of an example.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.point - x


def half_square(distances: Tensor, targets: Tensor) -> Tensor:
    """Returns half the squared distance of each example, `[b]`; targets are not used."""
    return distances.square().sum(1) / 2


_LOADED: list[Split] = []


def features() -> Split:
    """Returns the data set of the runs, which was loaded before."""
    return _LOADED[-1]


def tensors(dataset: object) -> TensorDataset:
    """Returns the features `[n, d]` and labels `[n]` of a data set in memory."""
    assert isinstance(dataset, TensorDataset)
    return dataset


def centred(config: Config, split: Split, budget: fp.Budget, seed: int) -> Split:
    """Returns the features minus their private mean, scaled to norm 1; the mean's cost is charged to the budget."""
    size = tensors(split.train).tensors[0].shape[1]
    clients = fp.make_clients(Mean(size), fp.models.Loss(half_square), divide(config, split))
    privacy = fp.Privacy(noise_multiplier=MEAN_NOISE, clip=fp.Clip(1.0), trust=config.privacy.trust, budget=budget.path)
    step = fp.gradient_descent(learning_rate=1)  # from 0, so the point is then the mean
    result = fp.train(clients, step, privacy, rounds=1, seed=seed, secret_seed=seed)

    def moved(dataset: object) -> TensorDataset:
        x, y = tensors(dataset).tensors
        return TensorDataset(normalize(x - result.params), y)

    return replace(split, train=moved(split.train), test=moved(split.test))


def run(path: Path, settings: list[str], seed: int) -> str:
    """Trains once, and returns the accuracy and epsilon as text."""
    cached = "data={name: 'cifar10:features', partition: {kind: iid, n_clients: 10}}"
    training = build(load_config(path, [cached, *settings, f"seed={seed}", f"secret_seed={seed}"]))
    reports = list(training)
    return f"{reports[-1].metrics['test_accuracy']:.2%}, epsilon {reports[-1].epsilon:.3g}"


def run_centred(path: Path, settings: list[str], seed: int) -> str:
    """Does the same with two releases, the mean and the model, with one total epsilon."""
    config = load_config(path, settings)
    assert config.privacy.epsilon is not None
    with tempfile.TemporaryDirectory() as folder:
        budget = fp.Budget.create(
            Path(folder) / "budget.jsonl", epsilon=config.privacy.epsilon, delta=config.privacy.delta
        )
        _LOADED.append(centred(config, features(), budget, seed))
        left = [f"privacy.epsilon={budget.balance().left}", f"privacy.budget={budget.path}"]
        told = run(path, [*settings, *left], seed)
        _LOADED.pop()
        return f"{told}, {budget.balance().spent.epsilon:.3g} with that of the mean"


def unpack(source: Path, folder: Path) -> None:
    """Decodes a copy in JPEG and writes it in torchvision's layout."""
    target = folder / "cifar-10-batches-py"
    target.mkdir(parents=True, exist_ok=True)
    for name, batches in (("train", [f"data_batch_{i}" for i in range(1, 6)]), ("test", ["test_batch"])):
        table = np.load(source / f"{name}.npz")
        content = io.BytesIO(lzma.decompress((source / f"{name}.jpegs.xz").read_bytes()))
        images = [np.asarray(Image.open(io.BytesIO(content.read(int(n)))).convert("RGB")) for n in table["sizes"]]
        order = np.random.default_rng(0).permutation(len(images))  # the copy is sorted by class, but CIFAR-10 is not
        rows = np.stack(images)[order].transpose(0, 3, 1, 2).reshape(len(images), -1)
        shares = zip(batches, np.split(rows, len(batches)), np.split(table["labels"][order], len(batches)), strict=True)
        for batch, pixels, labels in shares:
            content_of_batch = {"data": np.ascontiguousarray(pixels), "labels": labels.tolist()}
            (target / batch).write_bytes(pickle.dumps(content_of_batch, protocol=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--jpeg", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="runs whose name has this text")
    parser.add_argument("--config", choices=sorted(STEPS), default="cifar10_patches_sums")
    parser.add_argument("--transforms", help="in place of the configuration's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    root = arguments.root
    if arguments.jpeg is not None:
        unpack(arguments.jpeg, arguments.out)
        root = arguments.out
    warnings.simplefilter("ignore", PromiseWarning)
    path = CONFIGS / f"{arguments.config}.yaml"
    overrides = [f"data.root={root}"]
    if arguments.transforms:
        overrides.append(f"data.transforms={arguments.transforms}")
    config = load_config(path, overrides)
    _LOADED.append(data.load(config.data.name, **config.data.options))
    with fp.allow_plugins():
        for name, settings in runs(arguments.config).items():
            if arguments.only not in name:
                continue
            for seed in arguments.seeds:
                print(f"{name}, seed {seed}: {run(path, settings, seed)}", flush=True)
                if "epsilon" in name and not name.startswith("local"):  # one client's mean is too noisy
                    print(f"{name}, centred, seed {seed}: {run_centred(path, settings, seed)}", flush=True)


if __name__ == "__main__":
    import cifar10  # under the name by which the configuration imports it

    cifar10.main()
