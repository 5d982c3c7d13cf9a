"""A client: a torch module with a model, a loss and a data loader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedpriv.clients.arguments import check_datasets, check_loader, check_loss, check_sampler
from fedpriv.clients.augmentation import Augmentation
from fedpriv.clients.layout import copy_model, copy_trainable
from fedpriv.clients.reading import Pair, count_examples_of, read_all
from fedpriv.clients.released_models import check_untrained
from fedpriv.errors import ConfigError, DataError
from fedpriv.models.nested import Nested, call_arguments
from fedpriv.models.problem import Problem
from fedpriv.settings.checks import validate_arguments

Loss = Callable[[Any, Any], Tensor]
"""Maps a model's outputs and the targets of a batch to a scalar."""


@validate_arguments("client")
class Client(nn.Module):
    """One data owner: a model, a loss and a data loader.

    Args:
        model: Maps a batch of inputs `[b, ...]` to outputs `[b, ...]`; the entries of a dict are passed by name,
            `model(**inputs)`, and those of a tuple by position. The output for an example must not depend on other
            examples.
        loss: Maps (outputs, targets) of a batch to a scalar; gradients are computed one example at a time. Outputs are
            the return value of the model, which may be a dict or an object with fields.
        loader: The client's training data, as (input, target) pairs of tensors, or of dicts and tuples of tensors. A
            data set is also accepted, if torch's default `collate_fn` can join its examples to a batch. Each example is
            read alone, through the loader's data set and `collate_fn`. If reading an example draws random numbers from
            torch, NumPy or Python (as random transforms do), the example is read each time that it is drawn for a
            batch; otherwise it is read once. fedpriv draws the batches itself, because epsilon depends on the sampling;
            a run warns that the loader's batch size, order and sampler are not used.
        public_size: Public number of examples, by which sums are divided; by default the true number. To keep the true
            number private (relation `add_remove`), give a number that does not depend on it.
        problem: Objective and constraints, for strategies that accept constraints; by default the mean loss.
        augmentation: Random views of the examples, the same for all clients of a run; none by default.

    Raises:
        ConfigError: If the loss or the loader cannot be used, or `public_size` is below 1.
        DataError: If the data set is empty, or streams (it has no length or cannot be indexed), or a sampler leaves
            examples out.

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> data = torch.utils.data.TensorDataset(torch.zeros(6, 3), torch.zeros(6, dtype=torch.long))
        >>> client = fedpriv.Client(nn.Linear(3, 2), nn.CrossEntropyLoss(), data)
        >>> len(client), client.public_size
        (6, 6)
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        loader: DataLoader[Any] | Dataset[Any],
        public_size: int | None = None,
        problem: Problem | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        super().__init__()
        check_loss("client.loss", loss)
        if isinstance(loader, Dataset):
            loader = DataLoader(loader)
        check_loader("client.loader", loader)
        check_sampler(loader, count_examples_of(loader.dataset))
        self.model = model
        self.loss = loss
        self.loader = loader
        self.problem = problem or Problem()
        self.augmentation = augmentation or Augmentation()
        # privacy spent on the parameters, once a run has written its result into them
        self.released_cost: str | None = None
        if public_size is not None and public_size < 1:
            raise ConfigError(
                "client.public_size", public_size, "must be at least 1, since it is the number of examples"
            )
        self.size_declared = public_size is not None
        if public_size is None:
            self.public_size = len(self)
        else:
            self.public_size = public_size
        if len(self) == 0 and self.problem.objective is None:
            raise DataError(
                "a client with constraints and no objective (a server) has no examples on which to evaluate the "
                "constraints: pass it examples, or remove it"
            )
        if len(self) == 0:
            raise DataError("a client has no examples: remove this client, or give it at least one example")

    def __len__(self) -> int:
        """The true number of examples, which is not public; only `public_size` is."""
        return count_examples_of(self.loader.dataset)

    def forward(self, inputs: Nested, targets: Nested) -> Tensor:
        """Returns the loss of a batch: `[b, ...], [b, ...] -> []`."""
        args, named = call_arguments(inputs)
        return self.loss(self.model(*args, **named), targets)

    def examples(self) -> Pair:
        """Reads all examples in order: inputs `[m, ...]` and targets `[m, ...]`.

        Raises:
            DataError: If an example is no (input, target) pair, is not finite, or cannot be read.
        """
        return read_all(self.loader, len(self)).pair


@validate_arguments("make_clients")
def make_clients(
    model: nn.Module,
    loss: Loss,
    datasets: Sequence[Dataset[Any] | DataLoader[Any]],
    problem: Problem | None = None,
    augmentation: Augmentation | None = None,
) -> list[Client]:
    """Creates a client for each data set or loader, with a copy of the model's trainable parameters.

    Frozen parameters and buffers are copied once and shared by all clients, because they are constant in a run.

    Args:
        model: Maps inputs `[b, ...]` to outputs `[b, ...]`, see `Client`.
        loss: Maps (outputs, targets) of a batch to a scalar.
        datasets: Map-style data sets of (input, target) pairs, or data loaders, as for `Client`.
        problem: Objective and constraints of every client; by default the mean loss.
        augmentation: Random views of the examples, redrawn in each query; none by default.

    Returns:
        The clients, in the order of `datasets`.

    Raises:
        ConfigError: If `datasets` is no sequence of data sets or loaders, or the model holds the result of a run.
        DataError: If a data set is empty or streams.

    Examples:
        >>> import fedpriv, torch
        >>> from torch import nn
        >>> data = torch.utils.data.TensorDataset(torch.zeros(6, 3), torch.zeros(6, dtype=torch.long))
        >>> clients = fedpriv.make_clients(nn.Linear(3, 2), nn.CrossEntropyLoss(), [data, data])
        >>> [client.public_size for client in clients]
        [6, 6]
    """
    check_loss("make_clients.loss", loss)
    check_datasets("make_clients.datasets", datasets)
    check_untrained("make_clients.model", model)
    template = copy_model(model)  # the user's model does not change
    clients = list[Client]()
    for index, source in enumerate(datasets):
        if isinstance(source, DataLoader):
            loader = source
        else:
            loader = DataLoader(source)
        try:
            clients.append(Client(copy_trainable(template), loss, loader, problem=problem, augmentation=augmentation))
        except DataError as error:
            raise DataError(f"datasets[{index}]: {error}") from error
    return clients
