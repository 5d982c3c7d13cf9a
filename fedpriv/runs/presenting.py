"""A result in a notebook: a card."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape


def card(title: str, rows: Mapping[str, str]) -> str:
    """A table of two columns as HTML; its entries are escaped."""
    cells = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"
