"""Your model: any module that treats each example on its own (GroupNorm, not BatchNorm)."""

from torch import Tensor, nn


class Net(nn.Module):
    """Two layers. fedpriv gives it the data's `n_features` and `n_classes`; `width` is an option of config.yaml."""

    def __init__(self, *, n_features: int, n_classes: int, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_features, width), nn.Tanh(), nn.Linear(width, n_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Scores of the classes: `[b, n_features] -> [b, n_classes]`."""
        return self.layers(inputs)
