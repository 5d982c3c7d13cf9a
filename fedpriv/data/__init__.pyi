from .base import DataFacts, DatasetEntry, Split, check_dataset, labels_of
from .covertype import covertype
from .csv_file import csv
from .digits import digits
from .extractor import Extractor, extract_features
from .femnist import femnist
from .heart import heart
from .hugging_face import hugging_face
from .image_folder import image_folder
from .libsvm import libsvm
from .mnist import mnist
from .parquet_file import parquet
from .partition import partition
from .registry import DATASETS, load, read_columns
from .row_dataset import RowDataset
from .sensors import sensors
from .shakespeare import shakespeare
from .sql_table import sql
from .table_encoder import TableEncoder
from .tables import adult, breast_cancer, monks
from .torchvision_sets import torchvision

__all__ = [
    "DATASETS",
    "DataFacts",
    "DatasetEntry",
    "Extractor",
    "RowDataset",
    "Split",
    "TableEncoder",
    "adult",
    "breast_cancer",
    "check_dataset",
    "covertype",
    "csv",
    "digits",
    "extract_features",
    "femnist",
    "heart",
    "hugging_face",
    "image_folder",
    "labels_of",
    "libsvm",
    "load",
    "mnist",
    "monks",
    "parquet",
    "partition",
    "read_columns",
    "sensors",
    "shakespeare",
    "sql",
    "torchvision",
]
