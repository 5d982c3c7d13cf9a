"""Check 1: each example is there once, the test data are others, and nothing was fitted on private data."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients import ownership
from fedpriv.clients.layout import constants
from fedpriv.data.nested import first, leaves
from fedpriv.errors import PrivacyError, counted

NAME = "data"
_SAME = 1e-4  # relative difference of a statistic and a number that was taken from it
_MOST = 0.9  # share of the features that look standardised


def rows_of_data(subject: AuditTarget, data: Data) -> CheckResult:
    """Look for examples that are there twice or are tested on, and for statistics of private data."""
    broken = list[str]()
    try:
        ownership.check_clients(subject.clients, subject.test, subject.privacy)
    except PrivacyError as error:
        broken.append(str(error))
    population = subject.population(data)
    found = ownership.count_duplicates(population, subject.test, ownership.example_fingerprints(population))
    total = sum(len(first(inputs)) for inputs, _ in data)
    for count, what in (
        (found.examples, f"training examples equal another one ({found.apart} of them one of another client)"),
        (found.tested, "training examples equal a test example, whose metrics have no noise"),
    ):
        if count:
            broken.append(f"{count} of {total} {what}: if they are one person's, epsilon is for each occurrence alone")
    broken += _fitted(subject, data)
    examples = f"{counted(total, 'example')} of {counted(len(data), 'client')}"
    held = f"{examples} are all different, and none is tested on; no statistic of them found"
    power = "examples are compared by content: a copy that was changed a little is not seen"
    return summarize(NAME, broken, held, power, repeated=found.examples, shared=found.apart, tested=found.tested)


def _fitted(subject: AuditTarget, data: Data) -> Iterator[str]:
    """Inputs that were standardised by their own statistics, and buffers that are statistics of them."""
    if not all(one.is_floating_point() for inputs, _ in data for one in leaves(inputs)):
        return
    rows = torch.cat([first(inputs).flatten(1).double() for inputs, _ in data])
    mean, spread = rows.mean(0), rows.std(0, correction=0)
    varied = spread > 0
    standard = (mean.abs() < _SAME) & ((spread - 1).abs() < 10 * _SAME) & varied
    if int(standard.sum()) > _MOST * int(varied.sum()) > 0:
        yield "inputs have mean 0 and deviation 1 over all clients: standardised by statistics of private data"
    of_data = {"mean": mean, "deviation": spread, "variance": spread**2, "largest value": rows.amax(0)}
    for name, value in constants(subject.model).items():
        for what, statistic in of_data.items():
            if _equal(value.detach().cpu().double(), statistic):
                yield f"model.{name} is the {what} of the private inputs, and is released as it is"


def _equal(value: Tensor, statistic: Tensor) -> bool:
    """Whether numbers that are not all alike are the statistic."""
    if value.numel() != statistic.numel() or value.numel() < 2 or bool((value == value.flatten()[0]).all()):
        return False
    return torch.allclose(value.flatten(), statistic, rtol=_SAME, atol=_SAME * float(statistic.abs().max()))
