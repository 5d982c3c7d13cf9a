"""Small changes to a source file, each of which a test should notice."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
MIRRORED = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
NAMES = {
    "min": "max",
    "any": "all",
    "ceil": "floor",
    "clamp_min": "clamp_max",
    "minimum": "maximum",
    "log1p": "log",
    "expm1": "exp",
    "zeros": "ones",
    "zeros_like": "ones_like",
}
NAMES |= {new: old for old, new in NAMES.items()}
SYMMETRIC = ("min", "max", "minimum", "maximum", "logaddexp")  # in their first two arguments
COMPOUND = (ast.If, ast.While, ast.For, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        path: The file, from the project's root.
        old: The statement, or the head of a compound one, as it stands.
        new: What it becomes.
        start: Where it stands in the file, in bytes.
        line: The line that it begins in.
        lines: The lines whose execution means that it matters.
        at_import: Whether it is in code that runs when the file is imported, rather than in a function's body.
        nth: Which of the file's like changes it is.
    """

    path: str
    old: str
    new: str
    start: int
    line: int
    lines: tuple[int, ...]
    at_import: bool
    nth: int = 0

    @cached_property
    def key(self) -> str:
        """Names the change; it stays the same while other lines of the file change."""
        return f"{self.path}: {_flat(self.old)} -> {_flat(self.new)} #{self.nth}"

    def rank(self, seed: int) -> bytes:
        """A sample is what comes first in this order, so that an edit of one file leaves the rest of it alone."""
        return hashlib.blake2b(f"{seed}/{self.key}".encode()).digest()

    def applied(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.new.encode() + source[self.start + len(self.old.encode()) :]


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """All changes of a file, in the order of its lines."""
    file, seen = _File(path, source), dict[tuple[str, str], int]()
    found: list[Mutant] = []
    for one in file.statements(ast.parse(source).body, ()):
        pair = (one.old, one.new)
        seen[pair] = nth = seen.get(pair, -1) + 1
        found.append(replace(one, nth=nth))
    return found


Outer = tuple[int, ...] | None
"""Of code that runs at import, the lines that use what it makes (none: who knows); None in a function's body."""


class _File:
    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._source = path, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def statements(self, body: list[ast.stmt], outer: Outer) -> Iterator[Mutant]:
        """Changes of statements; see `Outer`."""
        for statement in body:
            if _says_nothing(statement):
                continue
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                inside = tuple(range(statement.body[0].lineno, (statement.end_lineno or 0) + 1))
                used_by = None if outer is None else inside
                if isinstance(statement, ast.FunctionDef):
                    for default in [*statement.args.defaults, *statement.args.kw_defaults]:
                        yield from self._expression(default, default, used_by)
                yield from self.statements(statement.body, used_by if isinstance(statement, ast.ClassDef) else None)
            elif isinstance(statement, COMPOUND):
                for head in _heads(statement):
                    yield from self._expression(head, head, outer)
                    if isinstance(statement, ast.If):
                        yield self._changed(head, ast.UnaryOp(ast.Not(), ast.Tuple([head], ast.Load())), outer)
                for name in ("body", "orelse", "finalbody"):
                    yield from self.statements(getattr(statement, name, []), outer)
                for handler in getattr(statement, "handlers", []):
                    yield from self.statements(handler.body, outer)
            else:
                yield from self._simple(statement, outer)

    def _simple(self, statement: ast.stmt, outer: Outer) -> Iterator[Mutant]:
        if _removable(statement):
            yield self._changed(statement, ast.Pass(), outer)
        if isinstance(statement, ast.Return) and statement.value and not _is_falsy(statement.value):
            yield self._changed(statement, ast.Return(ast.Constant(None)), outer)
        if isinstance(statement, ast.Continue | ast.Break):
            yield self._changed(
                statement, ast.Break() if isinstance(statement, ast.Continue) else ast.Continue(), outer
            )
        if isinstance(statement, ast.AugAssign) and type(statement.op) in SWAPS:
            changed = copy.copy(statement)
            changed.op = SWAPS[type(statement.op)]()  # pyright: ignore
            yield self._changed(statement, changed, outer)
        if not isinstance(statement, ast.Raise | ast.Assert):  # what a message says is not tested word by word
            value = getattr(statement, "value", None)
            if isinstance(value, ast.expr):
                yield from self._expression(statement, value, outer)

    def _expression(self, whole: ast.AST | None, part: ast.AST | None, outer: Outer) -> Iterator[Mutant]:
        """Changes of one node each, somewhere in an expression of the statement `whole`."""
        if whole is None or part is None:
            return
        for node in _inside(part):
            for changed in _changes(node):
                yield self._changed(whole, _with(whole, node, changed), outer)

    def _changed(self, old: ast.AST, new: ast.AST, outer: Outer) -> Mutant:
        first, last = old.lineno, old.end_lineno  # pyright: ignore
        start = self._starts[first - 1] + old.col_offset  # pyright: ignore
        end = self._starts[last - 1] + old.end_col_offset  # pyright: ignore
        text = ast.unparse(ast.fix_missing_locations(new))
        if isinstance(new, ast.UnaryOp) and isinstance(new.operand, ast.Tuple):  # `not (whole condition)`
            text = f"not ({ast.unparse(new.operand.elts[0])})"
        elif isinstance(old, ast.expr):
            text = f"({text})"
        lines = outer or tuple(range(first, last + 1))
        return Mutant(self._path, self._source[start:end].decode(), text, start, first, lines, outer is not None)


def _says_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return True
    if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
        return True
    if isinstance(statement, ast.ClassDef):
        return any("Protocol" in ast.unparse(base) for base in statement.bases)
    text = ast.unparse(getattr(statement, "value", None) or ast.Pass())
    return isinstance(statement, ast.Import | ast.ImportFrom) or "Literal[" in text or text.startswith("_logger")


def _heads(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.If | ast.While):
        return [statement.test]
    if isinstance(statement, ast.For):
        return [statement.iter]
    return [item.context_expr for item in statement.items] if isinstance(statement, ast.With) else []


def _removable(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return not any(isinstance(node, ast.Name | ast.Tuple) for node in statement.targets)
    return isinstance(statement, ast.Expr | ast.AugAssign | ast.Raise | ast.Delete)


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, but for texts that only people read."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and "Error" in ast.unparse(node.func)):
        return
    if isinstance(node, ast.keyword) and node.arg in ("strict", "stacklevel"):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _inside(child)


def _with(whole: ast.AST, node: ast.AST, changed: ast.AST) -> ast.AST:
    """A copy of `whole` with `changed` in the place of `node`."""

    class Replace(ast.NodeTransformer):
        def visit(self, one: ast.AST) -> ast.AST:
            return changed if one is node else ast.NodeTransformer.generic_visit(self, _shallow(one))

    return Replace().visit(whole)


def _shallow(node: ast.AST) -> ast.AST:
    new = copy.copy(node)
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            setattr(new, name, list(value))
    return new


def _is_falsy(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left, [operator], [right]):
            for table in (SWAPS, MIRRORED):
                if type(operator) in table:
                    yield ast.Compare(left, [table[type(operator)]()], [right])  # pyright: ignore
        case ast.Compare(left, operators, others):
            for index, operator in enumerate(operators):
                if type(operator) in SWAPS:
                    swapped = [*operators[:index], SWAPS[type(operator)](), *operators[index + 1 :]]
                    yield ast.Compare(left, swapped, others)  # pyright: ignore
        case ast.BinOp(left, operator, right) if type(operator) in SWAPS:
            yield ast.BinOp(left, SWAPS[type(operator)](), right)  # pyright: ignore
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(SWAPS[type(operator)](), values)  # pyright: ignore
            for index in range(len(values)):
                rest = values[:index] + values[index + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1 if isinstance(value, int) else value * 2 or 1.0)
        case ast.Call(function, arguments, keywords):
            name = getattr(function, "attr", getattr(function, "id", ""))
            same = len(arguments) < 2 or ast.dump(arguments[0]) == ast.dump(arguments[1])
            if not same and name not in SYMMETRIC:
                yield ast.Call(function, [arguments[1], arguments[0], *arguments[2:]], keywords)
            for index, keyword in enumerate(keywords):
                if keyword.arg not in (None, "strict", "stacklevel"):  # strict= is an assertion, stacklevel= a courtesy
                    yield ast.Call(function, arguments, keywords[:index] + keywords[index + 1 :])
            if isinstance(function, ast.Attribute) and function.attr in NAMES:
                yield ast.Call(ast.Attribute(function.value, NAMES[function.attr]), arguments, keywords)
            if isinstance(function, ast.Name) and function.id in NAMES:
                yield ast.Call(ast.Name(NAMES[function.id]), arguments, keywords)


def _flat(text: str) -> str:
    return " ".join(text.split())
