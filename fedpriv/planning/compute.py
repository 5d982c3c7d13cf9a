"""Settings of computation, which affect speed but not privacy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch

from fedpriv.distributed.cores import usable_cores
from fedpriv.errors import ConfigError, summarize_error
from fedpriv.network.engines import ParallelismName, StateName
from fedpriv.oracle.backends import BackendName
from fedpriv.settings.checks import Bound, Count, Positive, validate_arguments

_EXAMPLES = 16384  # more at once are not faster on any device, and a sum of fewer batches is rounded worse
_COPIES = 4  # of an example's gradient: the gradient, two of a part while it is widened, and the size of activations
_OTHER_NAMES = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps", "processor": "cpu", "host": "cpu"}  # of devices
PrecisionName = Literal["full", "bfloat16"]
Threads = Annotated[int, Bound("must be a whole number from 1 to 1024", 1, 1024, "[]")]


@validate_arguments("compute")
@dataclass(frozen=True)
class Compute:
    """Settings of the computation: they affect speed, not privacy.

    Args:
        backend: Computation of per-example gradients: `"loop"`, `"vmap"`, `"ghost"` (does not materialise large
            gradients of linear, convolution and embedding layers), `"linear"` (closed form for one linear layer) or
            `"auto"` (default). `"auto"` is the first of linear, ghost, vmap and loop that computes the same sums as the
            loop on synthetic examples.
        device: A torch device; `"auto"` (default) uses a GPU if there is one.
        dtype: Type of parameters and examples, `"float32"` (default) or `"float64"`.
        precision: `"full"` (default), or `"bfloat16"`, which runs forward and backward passes under `torch.autocast`,
            for the unit sample and the relation replace_one, with any backend except linear. Clipping, sums, noise and
            epsilon are computed as with `"full"`; the trained model differs by rounding.
        max_physical_batch_size: Largest number of examples that are computed at once; larger batches are divided. The
            default on a CPU is 16384 (gradients are computed in smaller pieces that fit its cache), and on a GPU the
            number that fits into a quarter of its free memory. A resumed run keeps its first value, since another value
            would change the rounding of sums.
        threads: Number of CPU threads of torch. The default is torch's number, but at most the number of cores that
            this process may use, including a container's limit. Small rounds use one thread: for linear models, rounds
            of less than ten million multiplications; for other models, rounds with fewer clients than threads in which
            examples times parameters is less than twenty million. A very large number can crash the process. With
            several threads, several clients are computed at once; if there are at least as many clients as threads, all
            bits of the result stay the same.
        parallelism: How processes that torchrun starts (`fedpriv train CONFIG --processes 2`) divide the computation.
            `"none"` (default): there is one process. `"clients"`: each process computes some of the clients; the
            processes must trust each other. `"examples"`: all clients are in every process, and the processes share
            the examples of a batch, for few clients with large batches.
        timeout: Seconds after which a process that waits for another one raises; 600 by default.
        client_state: Storage of the clients' state between rounds: `"memory"` (default), or `"disk"`, with which a
            round reads and writes only the rows of its cohort. Both settings give the same results.
        pad_seconds: Time in seconds. Each round waits until a whole multiple of this time has passed since its start,
            so that its duration does not reveal the sizes of secret batches and cohorts. The time should exceed the
            duration of the longest round. With None (default), rounds do not wait.
        pad_batches: True pads every secret batch with examples of weight zero, up to the size that is exceeded with a
            probability of 1e-12, so that processor time and memory do not reveal the number of drawn examples. Sums are
            the same up to rounding. It cannot be used with secret cohorts or random views. False by default.

    Raises:
        ConfigError: If an argument is out of range.

    Examples:
        >>> import fedpriv
        >>> fedpriv.Compute(device="cpu", max_physical_batch_size=256).planned_device.type
        'cpu'
    """

    backend: BackendName = "auto"
    device: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    max_physical_batch_size: Count | None = None
    threads: Threads | None = None
    parallelism: ParallelismName = "none"
    timeout: Positive = 600.0
    client_state: StateName = "memory"
    precision: PrecisionName = "full"
    pad_seconds: Positive | None = None
    pad_batches: bool = False

    def __post_init__(self) -> None:
        kind, colon, index = self.device.lower().partition(":")
        if kind in _OTHER_NAMES:
            fix = f"write {_OTHER_NAMES[kind] + colon + index!r}, or 'auto' for a GPU if there is one"
            raise ConfigError("compute.device", self.device, fix)

    @property
    def numbers(self) -> str:
        """The types of numbers that a run computes with; a resumed run uses the same types."""
        if self.precision == "full":
            return self.dtype
        return f"{self.dtype} in {self.precision}"

    def check_resumable(self, begun_with: StateName) -> None:
        """Raises an error if a checkpoint stores client state in another place than `client_state`.

        Raises:
            ConfigError: If the two places differ.
        """
        if self.client_state != begun_with:
            fix = f"cannot change on resume; set compute.client_state={begun_with}"
            raise ConfigError("compute.client_state", self.client_state, fix)

    def start(self) -> torch.device:
        """Sets the number of threads and returns the device, see `torch_device`.

        Raises:
            ConfigError: If torch's default device for new tensors is not the CPU.
        """
        default = torch.get_default_device()
        if default.type != "cpu":  # indices, counts and keys are made on the CPU, and moved where they are needed
            fix = (
                "must be the CPU: leave out torch.set_default_device and `with torch.device(...)`, and choose the "
                f"device of the run with fedpriv.Compute(device={str(default)!r})"
            )
            raise ConfigError("torch.get_default_device()", str(default), fix)
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        elif torch.get_num_threads() > usable_cores():
            torch.set_num_threads(usable_cores())
        return self.torch_device()

    def examples_at_once(self, device: torch.device, dim: int, begun_with: int | None = None) -> int:
        """Returns the largest number of examples that are computed at once.

        This is `max_physical_batch_size` if it is set. Otherwise it is the value with which the run began or, for a new
        run, a value that suits the device.

        Args:
            device: Where gradients are computed.
            dim: Number of trainable parameters.
            begun_with: The value with which a resumed run began; None for a new run.
        """
        if self.max_physical_batch_size is not None:
            return self.max_physical_batch_size
        if begun_with is not None:
            return begun_with
        if device.type != "cuda":
            return _EXAMPLES
        free, _ = torch.cuda.mem_get_info(device)
        capacity = free // 4 // (_COPIES * dim * getattr(torch, self.dtype).itemsize)
        power = max(capacity.bit_length() - 1, 2)  # rounded, so that almost the same free memory gives the same number
        return min(2**power, _EXAMPLES)

    @property
    def planned_device(self) -> torch.device:
        """The device that a run with these settings will use, which need not be on this machine.

        Raises:
            ConfigError: If torch has no such device.
        """
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            return torch.device(self.device)
        except RuntimeError as error:
            fix = "is not a device of torch: write cpu, cuda, cuda:1 or auto"
            raise ConfigError("compute.device", self.device, fix) from error

    def torch_device(self) -> torch.device:
        """Returns the device as a `torch.device`, after a first computation on it.

        Raises:
            ConfigError: If the device cannot be used on this machine.
        """
        if self.device == "auto":
            return self.planned_device
        try:
            probe = torch.ones(1, device=self.device)
            probe.item()  # a device may take tensors and never give a number
        except Exception as error:  # each device raises its own
            fix = f"cannot be used here ({summarize_error(error).split('. ')[0]}); use auto or cpu"
            raise ConfigError("compute.device", self.device, fix) from error
        return probe.device
