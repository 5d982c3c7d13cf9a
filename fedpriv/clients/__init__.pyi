from .arguments import check_clients
from .augmentation import AUGMENTATIONS, Augmentation
from .client import Client, Loss, Pair, make_clients
from .client_set import as_client_set, public_sizes
from .data_fingerprints import digest_examples, read_fixed_examples
from .datasets import ExactOnly, size
from .index_batches import IndexBatches
from .layout import (
    Layout,
    checksum_constants,
    collect_constants,
    copy_trainable,
    count_frozen_parameters,
    find_changed_constants,
    fingerprint,
)
from .ownership import check_datasets, check_ownership, count_duplicates, example_fingerprints
from .population import Population
from .public_info import PublicDataInfo
from .shard import ClientShard

__all__ = [
    "AUGMENTATIONS",
    "Augmentation",
    "Client",
    "ClientShard",
    "ExactOnly",
    "IndexBatches",
    "Layout",
    "Loss",
    "Pair",
    "Population",
    "PublicDataInfo",
    "as_client_set",
    "check_clients",
    "check_datasets",
    "check_ownership",
    "checksum_constants",
    "collect_constants",
    "copy_trainable",
    "count_duplicates",
    "count_frozen_parameters",
    "digest_examples",
    "example_fingerprints",
    "find_changed_constants",
    "fingerprint",
    "make_clients",
    "public_sizes",
    "read_fixed_examples",
    "size",
]
