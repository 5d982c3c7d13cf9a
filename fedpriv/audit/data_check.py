"""Data check: no example is repeated, test data differ from training data, and nothing was fitted on private data."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients import check_ownership, collect_constants, count_duplicates, example_fingerprints
from fedpriv.errors import PrivacyError, format_count
from fedpriv.models import first_leaf, list_leaves

NAME = "data"
_SAME = 1e-4  # relative difference of a statistic and a number that was computed from it
_STANDARD_SHARE = 0.9  # of the features: if more of them appear standardised, they are


def check_data(subject: AuditTarget, data: Data) -> CheckResult:
    """Searches for examples that are repeated or used as test data, and for statistics of private data."""
    broken: list[str] = []
    try:
        check_ownership(subject.clients, subject.test, subject.privacy)
    except PrivacyError as error:
        broken.append(str(error))

    population = subject.population(data)
    duplicates = count_duplicates(population, subject.test, example_fingerprints(population))
    total = sum(len(first_leaf(inputs)) for inputs, _ in data)
    if duplicates.examples:
        broken.append(
            f"{duplicates.examples} of {total} training examples equal another training example ({duplicates.apart} of "
            "them one of another client): if both belong to one person, epsilon covers each copy alone"
        )
    if duplicates.tested:
        broken.append(
            f"{duplicates.tested} of {total} training examples equal a test example, so test metrics reveal them "
            "without noise: use other test data"
        )
    broken += _fitted_statistics(subject, data)

    examples = f"{format_count(total, 'example')} of {format_count(len(data), 'client')}"
    evidence = f"{examples} are all different, and none is a test example; no statistic of them was found in the model"
    power = "examples are compared by content: a slightly changed copy is not detected"
    return summarize(
        NAME,
        broken,
        evidence,
        power,
        repeated=duplicates.examples,
        shared=duplicates.apart,
        tested=duplicates.tested,
    )


def _fitted_statistics(subject: AuditTarget, data: Data) -> Iterator[str]:
    """Yields a text for inputs standardised by their own statistics, and for each buffer that equals one."""
    if not all(leaf.is_floating_point() for inputs, _ in data for leaf in list_leaves(inputs)):
        return
    rows = torch.cat([first_leaf(inputs).flatten(1).double() for inputs, _ in data])
    mean = rows.mean(0)
    deviation = rows.std(0, correction=0)
    varied = deviation > 0
    standard = (mean.abs() < _SAME) & ((deviation - 1).abs() < 10 * _SAME) & varied
    if int(standard.sum()) > _STANDARD_SHARE * int(varied.sum()) > 0:
        yield (
            "inputs have mean 0 and standard deviation 1 over all clients: they were standardized with statistics of "
            "private data"
        )
    statistics = {"mean": mean, "deviation": deviation, "variance": deviation**2, "largest value": rows.amax(0)}
    for name, value in collect_constants(subject.model).items():
        for title, statistic in statistics.items():
            if _equal(value.detach().cpu().double(), statistic):
                yield f"model.{name} is the {title} of the private inputs, and is released without noise"


def _equal(value: Tensor, statistic: Tensor) -> bool:
    """Returns True if a tensor is the statistic; False for constants, which equal one by chance."""
    if value.numel() != statistic.numel() or value.numel() < 2 or bool((value == value.flatten()[0]).all()):
        return False
    return torch.allclose(value.flatten(), statistic, rtol=_SAME, atol=_SAME * float(statistic.abs().max()))
