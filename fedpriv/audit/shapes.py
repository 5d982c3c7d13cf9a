"""Interaction check: model and loss compute an example the same alone and among others, and store no state from it."""

from __future__ import annotations

from fedpriv.audit.check_result import CheckResult, summarize
from fedpriv.audit.target import AuditTarget, Data
from fedpriv.clients import fingerprint
from fedpriv.errors import ConfigError
from fedpriv.models import validate_model
from fedpriv.oracle import validate_per_example

NAME = "interaction"


def check_interaction(subject: AuditTarget, data: Data) -> CheckResult:
    """Tests model and loss on single examples and on batches, and searches for stored state."""
    broken = list[str]()
    try:
        validate_model(subject.model)
        population = subject.population(data)
        before = fingerprint(population.model)
        validate_per_example(population)
        if fingerprint(population.model) != before:
            broken.append("a forward pass changed buffers or frozen parameters of the model")
    except ConfigError as error:
        broken.append(str(error))
    evidence = "an example has the same outputs, losses and gradients alone, in a batch, and after other batches"
    return summarize(
        NAME, broken, evidence, "tested on five made-up examples: a difference on other examples only is not found"
    )
