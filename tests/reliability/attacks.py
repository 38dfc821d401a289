"""Strings that would do something if anything took them for more than text."""

import csv
import io

MARK = "evenhand_was_here"  # what an attack would set, print or make
SCRIPT = f"<script>window.{MARK}=1;alert('{MARK}')</script>"

ATTACKS = [
    SCRIPT,
    f"</script>{SCRIPT}",
    f'"><img src=x onerror="window.{MARK}=1">',
    f"'><svg onload='window.{MARK}=1'>",
    f"</style><style>body{{display:none}}</style>{MARK}",
    f"javascript:window.{MARK}=1",
    "{{7*7}}{% for x in ().__class__.__base__.__subclasses__() %}x{% endfor %}${7*7}",
    "<!--<script>",
    "]]><!--",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3+cmd",
    "@SUM(1+1)",
    "\t=1+1",
    "\r=1+1",
    "a,b\n=1+1\n",
    '"quoted","=1+1"',
    "\x1b[31mred\x1b[2J\x1b]0;title\x07",
    "\x9b31m\x08\x08\x7f",
    "\u202egpj.exe\u2066",
    "[bold red]markup[/bold red][link=file:///etc/passwd]x[/link][/]",
    ":bomb: [not closed",
    r"\input{/etc/passwd}\write18{touch x} 100% $x^2$ & # _ ~ {",
    "| a | b |\n| --- | --- |\n**bold** `code` [x](javascript:alert(1)) <b>",
    "%(asctime)s %s %n {0} {x!r}",
    "../../../etc/passwd",
    "a\x00b",
    "\ud800 alone",
    "\u2028\u2029\x0b\x0c\x1c\x85",
    "🙂 שלום мир ａ",
    " ",
    "x" * 500,
]


def steers(text: str) -> list[str]:
    """The characters of a text that a terminal would act on, besides line ends."""
    return [letter for letter in text if not (letter.isprintable() or letter == "\n")]


def formulas(table: str, delimiter: str = ",") -> list[str]:
    """The cells of a CSV that a spreadsheet would compute; numbers are none."""
    found = []
    for row in csv.reader(io.StringIO(table, newline=""), delimiter=delimiter):
        for cell in row:
            if cell.lstrip(" ")[:1] in tuple("=+-@\t\r\n"):
                try:
                    float(cell)
                except ValueError:
                    found.append(cell)
    return found
