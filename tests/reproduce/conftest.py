"""Makes the modules of `benchmarks/reproduce` importable, as for the scripts themselves."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "reproduce"))
