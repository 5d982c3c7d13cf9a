"""The same from Python, without a configuration: `python train.py`."""

import torch
from algorithm import heavy_ball
from data import patients
from model import Net
from torch.utils.data import Subset

import fedpriv
from fedpriv.data import labels_of, partition


def main() -> None:
    """Divide the data, train, report, save."""
    split = patients()
    parts = partition("iid", labels_of(split.train), 3, torch.Generator().manual_seed(0))
    owners = [Subset(split.train, part.tolist()) for part in parts]
    model = Net(n_features=split.train[0][0].numel(), n_classes=2)
    clients = fedpriv.make_clients(model, torch.nn.functional.cross_entropy, owners)
    privacy = fedpriv.Privacy(epsilon=3, delta=1e-5)
    result = fedpriv.train(clients, heavy_ball(), privacy, rounds=40, test=split.test, progress=True)
    print(result)
    torch.save(result.model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
