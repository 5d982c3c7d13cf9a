import subprocess
import sys

import pytest

from fedpriv.data.torchvision_compat import import_torchvision
from fedpriv.errors import DataError

FRESH = """
import sys
import fedpriv.data
assert "torchvision" not in sys.modules, "it is slow, and needed only to download"
"""
AFTER_A_FAILURE = """
try:
    import torchvision
except RuntimeError:
    pass
"""
IMPORT = """
from fedpriv.data.torchvision_compat import import_torchvision
datasets = import_torchvision("datasets")
import torchvision.datasets
assert datasets is torchvision.datasets and datasets.MNIST
"""


@pytest.mark.parametrize("before", [FRESH, AFTER_A_FAILURE], ids=["fresh", "after a failed import"])
def test_torchvision_datasets_import_in_fresh_process(before):
    subprocess.run([sys.executable, "-c", before + IMPORT], check=True)


def test_torchvision_missing_part_raises():
    with pytest.raises(DataError, match=r"found torch \d.* and torchvision \d.*pip install"):
        import_torchvision("no_such_part")
