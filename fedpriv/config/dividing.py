"""Divides the train examples of a data section among owners."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Subset

from fedpriv import data
from fedpriv.config.schema import DataSection
from fedpriv.data import Split, labels_of
from fedpriv.errors import ConfigError


def divide_examples(section: DataSection, split: Split) -> list[Subset[Any]]:
    """Divides the train examples among owners according to the data section."""
    partition = section.partition
    labels = labels_of(split.train)
    generator = torch.Generator().manual_seed(partition.seed)
    try:
        shares = data.partition(
            partition.kind, labels, partition.n_clients, generator, writers=split.writers, **partition.options
        )
    except ConfigError as error:
        raise ConfigError(f"data.{error.field}", error.value, error.fix) from None
    return [Subset(split.train, share.tolist()) for share in shares]
