import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from fedpriv.data import Split, check_dataset, labels_of
from fedpriv.data.base import as_inputs
from fedpriv.errors import ConfigError, DataError


class Squares(Dataset):
    """A user's own data set, with labels that are plain integers."""

    def __init__(self, n, label=lambda index: index % 2, example=lambda index: torch.full((3,), float(index))):
        self.n, self.label, self.example = n, label, example

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.example(index), self.label(index)


def tensors(x, y):
    return TensorDataset(torch.tensor(x), torch.tensor(y))


def test_check_dataset_accepts_valid_examples():
    check_dataset(tensors([[0.0], [1.0]], [0, 1]), 2)
    check_dataset(Squares(4), 2)
    assert labels_of(Squares(4)).tolist() == [0, 1, 0, 1]
    assert labels_of(tensors([[0.0]], [5])).tolist() == [5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_nonfinite_input_raises_with_index(bad):
    with pytest.raises(DataError, match=r"train\[1\].*NaN or infinite"):
        check_dataset(tensors([[0.0, 0.0], [0.0, bad], [bad, 0.0]], [0, 0, 0]), 1, name="train")
    with pytest.raises(DataError, match=r"train\[2\].*NaN or infinite"):
        check_dataset(Squares(3, example=lambda i: torch.tensor([bad if i == 2 else 0.0])), 2, name="train")


@pytest.mark.parametrize("label", [-1, 3, 62])
def test_invalid_label_raises_with_index(label):
    with pytest.raises(DataError, match=rf"test\[1\] has label {label}, but labels must be from 0 to 2"):
        check_dataset(tensors([[0.0], [0.0]], [0, label]), 3, name="test")
    with pytest.raises(DataError, match=rf"dataset\[2\] has label {label}"):
        check_dataset(Squares(3, label=lambda i: label if i == 2 else 0), 3)


def test_unusable_dataset_raises():
    with pytest.raises(DataError, match="train is empty"):
        check_dataset(tensors([], []), 2, name="train")
    with pytest.raises(DataError, match="int64"):
        check_dataset(tensors([[0.0]], [0.5]), 2)
    with pytest.raises(DataError, match="must be a pair"):
        check_dataset(Squares(2, example=lambda i: "an image"), 2)
    with pytest.raises(DataError, match="must be a pair"):
        check_dataset(TensorDataset(torch.zeros(2, 1)), 2)
    with pytest.raises(DataError, match="no length"):
        check_dataset(Dataset(), 2)


def test_invalid_split_raises():
    good = tensors([[0.0], [1.0]], [0, 1])
    Split(good, good, 2, torch.tensor([7, 7]), "two points")
    with pytest.raises(DataError, match=r"test\[1\] has label 1"):
        Split(tensors([[0.0]], [0]), good, 1, None, "")
    with pytest.raises(DataError, match="writers has 3 entries for 2"):
        Split(good, good, 2, torch.tensor([7, 7, 8]), "")


def test_as_inputs_flat_and_unit_norm():
    images = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    images[3] = 0
    x = as_inputs(images, flat=True, transforms=["unit"])
    assert x.shape == (5, 16)
    torch.testing.assert_close(x.norm(dim=1), torch.tensor([1.0, 1, 1, 0, 1]))
    assert as_inputs(images, flat=False, transforms=[]) is images
    with pytest.raises(ConfigError, match="transforms = 'l1'"):
        as_inputs(images, flat=True, transforms=["l1"])
