from .arguments import check_clients
from .augmentation import AUGMENTATIONS, Augmentation
from .client import Client, Loss, Pair, make_clients
from .client_set import as_client_set, public_sizes
from .data_fingerprints import digest_of, examples_of
from .datasets import ExactOnly, size
from .index_batches import IndexBatches
from .layout import Layout, changed_constants, constant_totals, constants, copy_trainable, fingerprint, frozen
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
    "changed_constants",
    "check_clients",
    "check_datasets",
    "check_ownership",
    "constant_totals",
    "constants",
    "copy_trainable",
    "count_duplicates",
    "digest_of",
    "example_fingerprints",
    "examples_of",
    "fingerprint",
    "frozen",
    "make_clients",
    "public_sizes",
    "size",
]
