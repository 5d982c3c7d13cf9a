"""Implements `--processes N`: the same command in several processes of this machine, started as by torchrun."""

from __future__ import annotations

import logging
import os
import sys
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from fedpriv.distributed import usable_cores

if TYPE_CHECKING:
    from fedpriv.config import Config
    from fedpriv.errors import FedprivError

Number = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        min=1,
        help="Divide the clients among N processes of this machine, like torchrun --nproc_per_node N.",
    ),
]
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def is_launched() -> bool:
    """Returns True if torchrun, or `launch`, started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_main_process() -> bool:
    """Returns True if this process writes the run's folder and to the terminal: rank 0, or a single process."""
    return not is_launched() or os.environ.get("RANK") == "0"


def with_launched_engine(config: Config) -> Config:
    """Returns the configuration with the `parallelism` that fits the way this process was started."""
    if not is_launched() or config.compute.parallelism != "none":
        return config
    return config.model_copy(update={"compute": replace(config.compute, parallelism="clients")})


def should_report_errors(error: FedprivError) -> bool:
    """Returns True if this process prints an error that several processes may have raised together."""
    if not is_launched():
        return True
    from fedpriv.distributed import is_first_to_report

    return not error.reported_elsewhere and is_first_to_report(default=is_main_process())


def launch(size: int, arguments: Sequence[str]) -> NoReturn:
    """Runs fedpriv with these arguments in `size` processes of this machine, and exits with their exit code.

    Raises:
        typer.Exit: Always.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the error is printed once, below
    os.environ.setdefault("OMP_NUM_THREADS", str(max(usable_cores() // size, 1)))
    if sys.platform in _LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])  # no other machine needs to reach them
    config = LaunchConfig(1, 1, size, run_id=str(uuid.uuid4()), rdzv_backend="c10d", rdzv_endpoint="localhost:0")
    config.max_restarts = 0
    try:
        elastic_launch(config, sys.executable)("-m", "fedpriv", *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            from fedpriv.cli.printing import print_error

            print_error(f"process {rank} was killed (signal {-failure.exitcode}), so the run stops")
        raise typer.Exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode) from None
    except SignalException as error:
        raise typer.Exit(128 + error.sigval) from None
    raise typer.Exit
