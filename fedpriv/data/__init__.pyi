from .base import DataFacts, DatasetEntry, Split, check_dataset, labels_of
from .extractor import Extractor, extract_features
from .partition import partition
from .registry import DATASETS, load
from .row_dataset import RowDataset
from .table_encoder import TableEncoder

__all__ = [
    "DATASETS",
    "DataFacts",
    "DatasetEntry",
    "Extractor",
    "RowDataset",
    "Split",
    "TableEncoder",
    "check_dataset",
    "extract_features",
    "labels_of",
    "load",
    "partition",
]
