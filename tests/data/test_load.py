import pytest
import torch
from torch.utils.data import TensorDataset

from fedpriv.data import DATASETS, Split, labels_of, load
from fedpriv.errors import ConfigError


def test_digits_stratified_split_80_20():
    split = load("digits")
    x, y = split.train.tensors
    assert x.shape == (1437, 1, 8, 8) and x.dtype == torch.float32 and y.dtype == torch.int64
    assert x.min() == 0 and x.max() == 1
    assert len(split.test) == 360 and split.n_classes == 10 and split.writers is None
    total = y.bincount() + labels_of(split.test).bincount()
    assert total.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert ((y.bincount() / total - 0.8).abs() < 0.005).all()


def test_digits_split_depends_on_seed_only():
    first, again, other = load("digits"), load("digits", flat=True), load("digits", seed=1)
    assert torch.equal(first.train.tensors[0].flatten(1), again.train.tensors[0])
    assert not torch.equal(first.train.tensors[0], other.train.tensors[0])


def my_data(n: int = 4) -> Split:
    examples = TensorDataset(torch.zeros(n, 2), torch.zeros(n, dtype=torch.int64))
    return Split(examples, examples, 1, None, f"{n} zeros")


def not_a_split() -> int:
    return 3


@pytest.mark.usefixtures("allow_plugins")
def test_custom_loader_by_path():
    assert load(f"{__name__}:my_data", n=7).description == "7 zeros"
    with pytest.raises(ConfigError, match=r"has the return annotation int: declare it as .*-> Split"):
        load(f"{__name__}:not_a_split")


def test_unknown_data_name_suggests_nearest():
    with pytest.raises(ConfigError, match=r"data = 'mnits'.*did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(ConfigError, match=r"data\.flatt = True.*did you mean 'flat'"):
        load("digits", flatt=True)


def test_every_dataset_has_description():
    assert all(entry.description and "\n" not in entry.description for entry in DATASETS.values())
