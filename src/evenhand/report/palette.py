"""Palette: the colors of pages and figures. A method has the same color everywhere."""

from __future__ import annotations

import zlib
from typing import NamedTuple


class Look(NamedTuple):
    """How a method is drawn. Colors also differ in lightness, and figures add a marker."""

    light: str  # on white, in figures and on pages
    dark: str  # on pages with a dark background
    marker: str = "h"  # of matplotlib


BASELINE = "erm"  # with which other methods are compared
FEATURED = ("evenhand", "tab")  # methods whose minorities a page prefers to show
METHODS = {
    "erm": Look("#5b6770", "#a3aeb7", "o"),
    "evenhand": Look("#00665c", "#4cc2b1", "*"),
    "tab": Look("#7a4fa3", "#c09be4", "s"),
    "eta_tab": Look("#4c55b8", "#9aa4f5", "^"),
    "minibatch_tab": Look("#b05fb3", "#e3a6e5", "D"),
    "erm_randaug": Look("#87939c", "#77848e", "v"),
    "gdro": Look("#8a6a00", "#d9b84a", "P"),
    "lff": Look("#5d7a1f", "#a9c760", "X"),
    "jtt": Look("#a8326b", "#ef86b4", "<"),
    "masktune": Look("#2b7a9e", "#6fc0e6", ">"),
}
# Other methods get one of these, determined by their names.
OTHERS = (
    Look("#8d5a34", "#d3a27c"),
    Look("#9a4a4a", "#eb9a9a"),
    Look("#3d7d52", "#84cf9c"),
    Look("#6a5fa0", "#b3a9ec"),
    Look("#7d6b2a", "#cdb968"),
    Look("#7a4468", "#d694bf"),
)
THEMES: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#ffffff",
        "wash": "#f3f5f6",
        "ink": "#14191d",
        "soft": "#55606a",
        "rule": "#d8dde1",
        "accent": "#00665c",
        "majority": "#43688f",
        "minority": "#bf4310",
        "wrong": "#7a4fa3",
    },
    "dark": {
        "paper": "#101417",
        "wash": "#181d21",
        "ink": "#e6eaec",
        "soft": "#9ba7b0",
        "rule": "#2b3339",
        "accent": "#4cc2b1",
        "majority": "#86afdb",
        "minority": "#ff8a55",
        "wrong": "#c09be4",
    },
}


def look(method: str) -> Look:
    """Return how a method is drawn."""
    return METHODS.get(method) or OTHERS[_other(method)]


def variable(method: str) -> str:
    """Return the CSS variable of a method's color, without its dashes.

    >>> variable("tab"), variable("mine.method").startswith("other-")
    ('method-tab', True)
    """
    return f"method-{method}" if method in METHODS else f"other-{_other(method)}"


def css() -> str:
    """Return the colors of both themes as CSS variables. The system sets the theme until the reader does."""
    light, dark = (
        "".join(f"--{name}:{value};" for name, value in [*THEMES[theme].items(), *_methods(theme)])
        for theme in ("light", "dark")
    )
    return (
        f":root{{{light}}}\n"
        f'@media screen and (prefers-color-scheme:dark){{:root:not([data-theme="light"]){{{dark}}}}}\n'
        f'@media screen{{:root[data-theme="dark"]{{{dark}color-scheme:dark}}'
        ':root[data-theme="light"]{color-scheme:light}}\n'
        + "".join(f".{name}{{color:var(--{name})}}" for name, _ in _methods("light"))
        + "\n"
    )


def _methods(theme: str) -> list[tuple[str, str]]:
    found = [(f"method-{name}", look) for name, look in METHODS.items()]
    found += [(f"other-{number}", look) for number, look in enumerate(OTHERS)]
    return [(name, getattr(look, theme)) for name, look in found]


def _other(method: str) -> int:
    return zlib.crc32(method.encode()) % len(OTHERS)
