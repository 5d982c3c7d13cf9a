"""The same from Python, without a configuration: `python train.py`."""

import torch
from own import Net, heavy_ball, spirals
from torch.utils.data import Subset

import fedpriv
from fedpriv import data


def main() -> None:
    """Divide the data, train, report, save."""
    split = spirals()
    parts = data.partition("iid", data.labels_of(split.train), 5, torch.Generator().manual_seed(0))
    owners = [Subset(split.train, part.tolist()) for part in parts]
    clients = fedpriv.make_clients(Net(), torch.nn.functional.cross_entropy, owners)
    privacy = fedpriv.Privacy(epsilon=8, delta=1e-5)
    result = fedpriv.train(clients, heavy_ball(), privacy, rounds=40, test=split.test)
    print(result)
    torch.save(result.model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
