import subprocess
import sys

import pytest

from fedpriv.data.torchvision_compat import import_torchvision
from fedpriv.errors import DataError


@pytest.mark.parametrize("earlier", ["", "try:\n    import torchvision\nexcept RuntimeError:\n    pass\n"])
def test_datasets_can_be_imported_in_a_fresh_process(earlier):
    """Also after the user's own import of torchvision has failed half-way."""
    code = (
        f"{earlier}from fedpriv.data.torchvision_compat import import_torchvision\n"
        "datasets = import_torchvision('datasets')\n"
        "import torchvision.datasets\n"
        "assert datasets is torchvision.datasets and datasets.MNIST\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_loading_data_imports_torchvision_only_to_download():
    code = "import sys, fedpriv.data; sys.exit('torchvision' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_cannot_be_imported_is_explained():
    with pytest.raises(DataError, match=r"found torch \d.* and torchvision \d.*pip install"):
        import_torchvision("no_such_part")
