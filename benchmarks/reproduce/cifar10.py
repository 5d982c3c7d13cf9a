"""CIFAR-10 from scratch on fixed features: behind sums, with nobody trusted, and without privacy, all of one model.

    python benchmarks/reproduce/cifar10.py --root FOLDER                 # torchvision's folder, cifar-10-batches-py/
    python benchmarks/reproduce/cifar10.py --jpeg FOLDER --out FOLDER    # a copy in JPEG: writes torchvision's layout

A copy in lossy JPEG (train.jpegs.xz, train.npz with sizes and labels, and the same for test) is another data set than
CIFAR-10: compare its private figures with its own without privacy alone.

Features are computed once for all runs, by the transforms of configs/cifar10_patches_sums.yaml; with `--config
cifar10_scattering_sums` those of that one.
"""

from __future__ import annotations

import argparse
import io
import lzma
import pickle
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

import fedpriv as fp
from fedpriv import data
from fedpriv.config import build, load_config
from fedpriv.data import Split
from fedpriv.errors import PromiseWarning

CONFIGS = Path(__file__).parents[2] / "configs"
SUMS = "privacy.trust={secure_aggregation: {min_honest: 10}}"
PAIRS = "privacy.trust={pairwise: {colluders: 3, ratio: 10}}"
# steps at epsilon 1, and without privacy (with its rounds)
STEPS = {"cifar10_patches_sums": (400, 200, 60), "cifar10_scattering_sums": (500, 60, 200)}


def runs(config: str) -> dict[str, list[str]]:
    """The overrides of each run."""
    small, exact, rounds = STEPS[config]
    low = ["privacy.epsilon=1", f"strategy.learning_rate={small}"]
    return {
        "no privacy": [
            "privacy={at: none}",
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


_LOADED: list[Split] = []


def features() -> Split:
    """The data set of all runs, loaded once."""
    return _LOADED[0]


def unpack(source: Path, folder: Path) -> None:
    """Decodes a copy in JPEG and writes it in torchvision's layout."""
    target = folder / "cifar-10-batches-py"
    target.mkdir(parents=True, exist_ok=True)
    for name, batches in (("train", [f"data_batch_{i}" for i in range(1, 6)]), ("test", ["test_batch"])):
        table = np.load(source / f"{name}.npz")
        content = io.BytesIO(lzma.decompress((source / f"{name}.jpegs.xz").read_bytes()))
        images = [np.asarray(Image.open(io.BytesIO(content.read(int(n)))).convert("RGB")) for n in table["sizes"]]
        order = np.random.default_rng(0).permutation(len(images))  # the copy is sorted by class, and CIFAR-10 is not
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
    cached = "data={name: 'cifar10:features', partition: {kind: iid, n_clients: 10}}"
    with fp.allow_plugins():
        for name, settings in runs(arguments.config).items():
            if arguments.only not in name:
                continue
            for seed in arguments.seeds:
                training = build(load_config(path, [cached, *settings, f"seed={seed}", f"secret_seed={seed}"]))
                reports = list(training)
                accuracy = reports[-1].metrics["test_accuracy"]
                print(f"{name}, seed {seed}: {accuracy:.2%}, epsilon {reports[-1].epsilon:.3g}", flush=True)


if __name__ == "__main__":
    import cifar10  # under the name by which the configuration imports it

    cifar10.main()
