"""Results and plans as text: a card for notebooks, columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["format_card"]


def format_card(title: str, rows: Mapping[str, str]) -> str:
    """Formats a table of two columns as HTML; its entries are escaped."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


def align_columns(cells: Sequence[Sequence[str]]) -> list[str]:
    """Formats rows of cells as lines of text with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
