"""A Table as Markdown, CSV, LaTeX, JSON, or for a terminal."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from evenhand.report.table import Cell, Column, Row, Section, Table

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$",
    "–": "--", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "λ": r"$\lambda$",
}  # fmt: skip


def markdown(table: Table) -> str:
    """Tables under headings, the best bold, notes below."""
    kept = table.filled()
    lines = [f"# {_md(table.title)}", ""]
    for section in table.sections:
        if section.name:
            lines += [f"## {_md(section.name)}", ""]
        columns = [table.columns[i] for i in kept]
        lines.append(_line(_md(column.name) for column in columns))
        lines.append(_line(":--" if column.text else "--:" for column in columns))
        for row in section.rows:
            cells = (row[i] for i in kept)
            lines.append(_line(f"**{_md(cell.text)}**" if cell.best else _md(cell.text) for cell in cells))
        lines += ["", *(f"- {_md(note)}" for note in section.notes), *([""] if section.notes else [])]
    lines += [_md(note) for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def comma_separated(table: Table) -> str:
    """One header and plain numbers: a mean and its deviation, or the ends of an interval, in two columns."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    parts = [_parts(table, i) for i in range(len(table.columns))]
    header = [column.name + end for column, ends in zip(table.columns, parts, strict=True) for end, _ in ends]
    writer.writerow(["section", *header])
    for section in table.sections:
        for row in section.rows:
            values = [take(cell.value) for cell, ends in zip(row, parts, strict=True) for _, take in ends]
            writer.writerow([_safe(section.name), *(_safe(value) for value in values)])
    return buffer.getvalue()


def latex(table: Table) -> str:
    """One tabular (booktabs) for each section, the best in bold, notes as comments."""
    kept = table.filled()
    columns = [table.columns[i] for i in kept]
    lines = [f"% {_comment(table.title)}; needs \\usepackage{{booktabs}}"]
    for section in table.sections:
        lines.append(f"% {_comment(section.name)}" if section.name else "%")
        lines.append(rf"\begin{{tabular}}{{{''.join('l' if each.text else 'r' for each in columns)}}}")
        lines += [r"\toprule", " & ".join(_tex(each.name) for each in columns) + r" \\", r"\midrule"]
        for row in section.rows:
            cells = (row[i] for i in kept)
            texts = [rf"\textbf{{{_tex(cell.text)}}}" if cell.best else _tex(cell.text) for cell in cells]
            lines.append(" & ".join(texts) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", *(f"% {_comment(note)}" for note in section.notes)]
    lines += [f"% {_comment(note)}" for note in table.notes]
    return "\n".join(lines) + "\n"


def as_json(table: Table) -> str:
    """Everything: fractions between 0 and 1, every seed's value, which cell is the best, the notes."""
    content = {
        "table": table.name,
        "title": table.title,
        "sections": [
            {
                "name": section.name,
                "rows": [_object(table.columns, row) for row in section.rows],
                "notes": section.notes,
            }
            for section in table.sections
        ],
        "notes": table.notes,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def terminal(table: Table) -> Iterator[Any]:
    """What rich prints: a column that belongs below another stands under it in the same cell."""
    from rich.table import Table as Grid
    from rich.text import Text

    stacks = table.stacks()
    for section in table.sections:
        title = " · ".join(part for part in (table.title, section.name) if part)
        grid = Grid(title=title, title_justify="left")
        for i, under in stacks:
            head = table.columns[i]
            header = Text(head.name)
            for j in under:  # "WGA, paper" stands under "WGA", so "paper" says it
                header.append("\n" + table.columns[j].name.removeprefix(f"{head.name}, "), style="dim")
            grid.add_column(header, justify="left" if head.text else "right", overflow="fold")
        for row in section.rows:
            grid.add_row(*(_stacked([row[i], *(row[j] for j in under)]) for i, under in stacks))
        yield grid
        yield from (Text(f"  {note}", style="dim") for note in section.notes)
    yield from (Text(note, style="dim") for note in table.notes)


FORMATS: dict[str, Callable[[Table], str]] = {
    "md": markdown,
    "csv": comma_separated,
    "latex": latex,
    "json": as_json,
}


def write(table: Table, form: str) -> str:
    """The table as text in one of FORMATS."""
    if form not in FORMATS:
        raise ValueError(f"a table is written as one of {', '.join(FORMATS)}, got {form!r}")
    return FORMATS[form](table)


def _object(columns: tuple[Column, ...], row: Row) -> dict[str, Any]:
    best = [column.name for column, cell in zip(columns, row, strict=True) if cell.best]
    return {**{column.name: cell.value for column, cell in zip(columns, row, strict=True)}, "best": best}


def _stacked(cells: list[Cell]) -> Any:
    from rich.text import Text

    text = Text(cells[0].text, style="bold" if cells[0].best else "")
    for cell in cells[1:]:
        text.append("\n" + cell.text, style="dim")
    return text


Part = tuple[str, Callable[[Any], Any]]


def _parts(table: Table, position: int) -> list[Part]:
    """How a column's values become plain ones: (what its name ends with, the value's part)."""
    values = [row[position].value for section in table.sections for row in section.rows]
    if any(isinstance(value, dict) for value in values):
        return [("", _key("mean")), (" deviation", _key("deviation"))]
    if any(isinstance(value, list) for value in values):
        return [(" low", _item(0)), (" high", _item(1))]
    return [("", lambda value: value)]


def _key(name: str) -> Callable[[Any], Any]:
    return lambda value: value[name] if isinstance(value, dict) else value


def _item(position: int) -> Callable[[Any], Any]:
    return lambda value: value[position] if isinstance(value, list) else value


def _safe(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is quoted."""
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value[:1] in tuple("=+-@\t\r") else value


def _line(cells: Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _md(text: str) -> str:
    return re.sub(r"([|*`\[\]\\])", r"\\\1", text.replace("<", "&lt;"))


def _tex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def _comment(text: str) -> str:
    return " ".join(text.split())


__all__ = ["FORMATS", "Cell", "Section", "terminal", "write"]
