"""A statement as Markdown, as HTML and as PDF: the same parts in the same order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from fedpriv.reports.statement import Section, Statement

if TYPE_CHECKING:
    from reportlab.platypus import Flowable


def render_markdown(page: Statement) -> bytes:
    """Formats the page as Markdown, with tables."""
    return render_template("statement.md.jinja", page=page)


def render_html(page: Statement) -> bytes:
    """Formats the page as HTML in one file, without scripts."""
    return render_template("report.html.jinja", title=page.title, statement=page, table=[], parts=[])


def render_pdf(page: Statement) -> bytes:
    """Formats the page as PDF on A4, with text that can be searched."""
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
    flowables: list[Flowable] = [Paragraph(escape(page.title), title), Paragraph(escape(page.summary), summary)]
    for number, section in enumerate(page.sections, start=1):
        flowables += _flowables(number, section, styles, A4[0] - 28 * mm)
    file = BytesIO()
    edge = 14 * mm
    document = SimpleDocTemplate(
        file,
        pagesize=A4,
        title=page.title,
        author="fedpriv",
        leftMargin=edge,
        rightMargin=edge,
        topMargin=edge,
        bottomMargin=edge,
    )
    document.build(flowables)
    return file.getvalue()


WRITERS: Mapping[str, Callable[[Statement], bytes]] = {".md": render_markdown, ".html": render_html, ".pdf": render_pdf}
"""The function that writes a page, by the suffix of the file's name."""


def _fonts(page: Statement) -> tuple[str, str]:
    """Returns the names of a regular and a bold font that contain all letters of the page.

    Every PDF reader has Helvetica, with Latin letters only; matplotlib ships a font with more letters.
    """
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


def _flowables(number: int, section: Section, styles: Mapping[str, Any], width: float) -> list[Flowable]:
    """Returns the elements of a section in a PDF of this width."""
    from reportlab.platypus import Paragraph

    flowables: list[Flowable] = [Paragraph(f"{number}. {escape(section.title)}", styles["heading"])]
    flowables += [Paragraph(escape(sentence), styles["plain"]) for sentence in section.text]
    if section.rows:
        cells = [[Paragraph(escape(a), styles["bold"]), Paragraph(escape(b), styles["plain"])] for a, b in section.rows]
        flowables.append(_table(cells, [0.2 * width, 0.8 * width]))
    if section.table:
        first, *others = section.table
        cells = [[Paragraph(escape(name), styles["bold"]) for name in first]]
        cells += [[Paragraph(escape(value), styles["plain"]) for value in row] for row in others]
        lengths = [max(14, min(45, max(len(row[i]) for row in section.table))) for i in range(len(first))]
        flowables.append(_table(cells, [width * length / sum(lengths) for length in lengths]))
    flowables += [Paragraph(escape(note), styles["plain"]) for note in section.notes]
    return flowables


def _table(cells: list[list[Any]], widths: list[float]) -> Flowable:
    from reportlab.platypus import Table, TableStyle

    tight = [(f"{side}PADDING", (0, 0), (-1, -1), 1) for side in ("TOP", "BOTTOM")]
    lines = [("VALIGN", (0, 0), (-1, -1), "TOP"), ("LINEBELOW", (0, 0), (-1, -1), 0.3, "#d5dce3")]
    return Table(cells, colWidths=widths, style=TableStyle([*tight, *lines]))


def render_template(template: str, **values: object) -> bytes:
    """Fills a template of this folder; in HTML all values are escaped."""
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    is_html = template.endswith(".html.jinja")
    environment = jinja2.Environment(autoescape=is_html, undefined=jinja2.StrictUndefined, loader=loader)
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    return environment.get_template(template).render(values).encode()
