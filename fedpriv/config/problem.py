"""The problem section of a configuration: objective, constraints, and constraints on the server's data."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from fedpriv.config.base import Plugin, Section, options_section
from fedpriv.models import CONSTRAINTS, OBJECTIVES, Problem
from fedpriv.runs import TrainingOptions


class ObjectiveSection(Plugin):
    """The objective that each client minimises."""

    field, registry = "problem.objective", OBJECTIVES


class ConstraintSection(Plugin):
    """A constraint on each client's data."""

    field, registry = "problem.constraints", CONSTRAINTS


class ServerSection(Section):
    """Constraints on the server's data (the test data); the server is one more client, without an objective."""

    constraints: list[ConstraintSection]
    data: Literal["test"] = "test"


_OPTIONS: Any = options_section(TrainingOptions, ("compare_centralized",))


class ProblemSection(_OPTIONS):
    """Objective and constraints; `compare_centralized` also solves it with all data in one place (not private)."""

    objective: ObjectiveSection = ObjectiveSection(name="mean_loss")
    constraints: list[ConstraintSection] = Field(default_factory=list[ConstraintSection])
    server: ServerSection | None = None

    def everyones(self) -> list[Problem]:
        """Returns the problem of each client, and the server's problem if it has constraints."""
        problems = [Problem(self.objective.build(), tuple(constraint.build() for constraint in self.constraints))]
        if self.server is not None:
            problems.append(Problem(None, tuple(constraint.build() for constraint in self.server.constraints)))
        return problems
