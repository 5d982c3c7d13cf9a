"""A statement as Markdown, as HTML and as PDF: the same parts in the same order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from fedpriv.reports.statement import Statement, StatementSection

if TYPE_CHECKING:
    from reportlab.platypus import Flowable


def markdown(page: Statement) -> bytes:
    """The page as Markdown, with tables."""
    return _filled("statement.md.jinja", page, autoescape=False)


def html(page: Statement) -> bytes:
    """The page as HTML in one file, without scripts."""
    return _filled("statement.html.jinja", page, autoescape=True)


def pdf(page: Statement) -> bytes:
    """The page as PDF on A4, with text that can be searched."""
    from reportlab.lib.colors import HexColor
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.lib.units import mm
    from reportlab.platypus import Paragraph, SimpleDocTemplate

    regular, strong = _fonts(page)
    plain = ParagraphStyle("plain", fontName=regular, fontSize=7, leading=8.4, spaceAfter=1)
    bold = ParagraphStyle("bold", plain, fontName=strong)
    heading = ParagraphStyle("heading", bold, fontSize=8.5, leading=10, spaceBefore=4, textColor=HexColor("#14406b"))
    title = ParagraphStyle("title", bold, fontSize=13, leading=16, spaceAfter=3)
    summary = ParagraphStyle(
        "summary", bold, fontSize=8, leading=10, backColor=HexColor("#eef3f8"), borderPadding=3, spaceAfter=5
    )
    styles = {"plain": plain, "bold": bold, "heading": heading}
    parts: list[Flowable] = [Paragraph(escape(page.title), title), Paragraph(escape(page.summary), summary)]
    for number, part in enumerate(page.sections, start=1):
        parts += _flowables(number, part, styles, A4[0] - 28 * mm)
    file, edge = BytesIO(), 14 * mm
    margins = {"leftMargin": edge, "rightMargin": edge, "topMargin": edge, "bottomMargin": edge}
    SimpleDocTemplate(file, pagesize=A4, title=page.title, author="fedpriv", **margins).build(parts)
    return file.getvalue()


WRITERS: Mapping[str, Callable[[Statement], bytes]] = {".md": markdown, ".html": html, ".pdf": pdf}
"""By the end of a file's name."""


def _fonts(page: Statement) -> tuple[str, str]:
    """Every reader of PDF has Helvetica, which knows Latin letters alone; matplotlib brings a font that knows more."""
    try:
        str(page).encode("latin-1")
    except UnicodeEncodeError:
        import matplotlib
        from reportlab.pdfbase import pdfmetrics
        from reportlab.pdfbase.ttfonts import TTFont

        names = "DejaVuSans", "DejaVuSans-Bold"
        for name in names:
            pdfmetrics.registerFont(TTFont(name, Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"))
        return names
    return "Helvetica", "Helvetica-Bold"


def _flowables(number: int, part: StatementSection, styles: Mapping[str, Any], width: float) -> list[Flowable]:
    from reportlab.platypus import Paragraph

    found: list[Flowable] = [Paragraph(f"{number}. {escape(part.title)}", styles["heading"])]
    found += [Paragraph(escape(said), styles["plain"]) for said in part.text]
    if part.rows:
        cells = [[Paragraph(escape(a), styles["bold"]), Paragraph(escape(b), styles["plain"])] for a, b in part.rows]
        found.append(_table(cells, [0.2 * width, 0.8 * width]))
    if part.table:
        first, *rest = part.table
        cells = [[Paragraph(escape(name), styles["bold"]) for name in first]]
        cells += [[Paragraph(escape(value), styles["plain"]) for value in row] for row in rest]
        lengths = [max(14, min(45, max(len(row[i]) for row in part.table))) for i in range(len(first))]
        found.append(_table(cells, [width * length / sum(lengths) for length in lengths]))
    return [*found, *(Paragraph(escape(note), styles["plain"]) for note in part.notes)]


def _table(cells: list[list[Any]], widths: list[float]) -> Flowable:
    from reportlab.platypus import Table, TableStyle

    tight = [(f"{side}PADDING", (0, 0), (-1, -1), 1) for side in ("TOP", "BOTTOM")]
    lines = [("VALIGN", (0, 0), (-1, -1), "TOP"), ("LINEBELOW", (0, 0), (-1, -1), 0.3, "#d5dce3")]
    return Table(cells, colWidths=widths, style=TableStyle([*tight, *lines]))


def _filled(template: str, page: Statement, *, autoescape: bool) -> bytes:
    import jinja2

    here = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(autoescape=autoescape, undefined=jinja2.StrictUndefined, loader=here)
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return environment.get_template(template).render(page=page).encode()
