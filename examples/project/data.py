"""Your data: a table whose rows belong to several owners. config.yaml and train.py take them from here.

For your own table change TRAIN and TEST, and describe its columns from public knowledge: a range or a list of values
that was measured on the rows would tell something of them. For images in folders replace the call of `load` by

    load("image_folder", root="images", classes=["cat", "dog"], size=[32, 32])
"""

from pathlib import Path

from fedpriv.data import Split, load

TRAIN = "data/train.csv"
TEST = "data/test.csv"

LABEL, CLASSES = "outcome", ["well", "ill"]
NUMBERS = {"age": (0, 120), "blood_pressure": (60, 240), "cholesterol": (2, 12)}
CATEGORIES = {"smoker": ["yes", "no"], "sex": ["f", "m"]}


def patients(*, train: str = TRAIN, test: str = TEST) -> Split:
    """Reads the table; the arguments are options of `data` in config.yaml."""
    folder = Path(__file__).parent
    return load(
        "csv",
        train=str(folder / train),
        test=str(folder / test),
        label=LABEL,
        classes=CLASSES,
        numbers=NUMBERS,
        categories=CATEGORIES,
    )
