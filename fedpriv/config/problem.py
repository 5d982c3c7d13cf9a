"""The problem section of a configuration: objective, constraints, and what the server's data must meet."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedpriv import plugins
from fedpriv.config.base import Plugin, Section
from fedpriv.problems.constraints import CONSTRAINTS, OBJECTIVES, Constraint
from fedpriv.problems.problem import Problem


class ObjectiveSection(Plugin):
    """What each client minimises."""

    field, registry = "problem.objective", OBJECTIVES


class ConstraintSection(Plugin):
    """What must hold."""

    field, registry = "problem.constraints", CONSTRAINTS

    def build(self) -> Constraint:
        """The constraint."""
        return plugins.build(self.name, CONSTRAINTS, self.options, field="problem.constraints")


class ServerSection(Section):
    """The server's own constraints on its own data, which are the test data: one more client without an objective."""

    constraints: list[ConstraintSection]
    data: Literal["test"] = "test"


class ProblemSection(Section):
    """Objective and constraints; `compare` also solves the problem with all data in one place (exact runs)."""

    objective: ObjectiveSection = ObjectiveSection(name="mean_loss")
    constraints: list[ConstraintSection] = Field(default_factory=list[ConstraintSection])
    server: ServerSection | None = None
    compare: bool = False

    def build(self) -> Problem:
        """Of a client."""
        made = plugins.build(self.objective.name, OBJECTIVES, self.objective.options, field="problem.objective")
        return Problem(made, tuple(constraint.build() for constraint in self.constraints))

    def of_server(self) -> Problem | None:
        """Of the server; None if it has no constraints."""
        if self.server is None:
            return None
        return Problem(None, tuple(constraint.build() for constraint in self.server.constraints))
