"""A recurrent model of text, small enough to train privately."""

from __future__ import annotations

from torch import Tensor, nn

from fedpriv.settings.checks import Count, validate_arguments


@validate_arguments("model")
class CharLSTM(nn.Module):
    """Predicts each next token from those before it: `[n, length]` token numbers to scores `[n, n_classes, length]`.

    It consists of an embedding, LSTM layers and a linear layer. The dimension of classes comes before the positions, as
    torch's cross entropy requires.

    Args:
        n_classes: Number of tokens.
        width: Size of a token's embedding.
        hidden: Size of the LSTM's state.
        depth: Number of LSTM layers.

    Source: Hochreiter and Schmidhuber (1997); McMahan and others (2017) train one on Shakespeare by role.
    """

    def __init__(self, n_classes: int, width: Count = 8, hidden: Count = 128, depth: Count = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(n_classes, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=depth, batch_first=True)
        self.head = nn.Linear(hidden, n_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns scores of the next token at each position."""
        states, _ = self.lstm(self.embed(tokens))
        return self.head(states).mT  # [n, length, n_classes] -> [n, n_classes, length]
