"""A page as a browser would see it: tags, attributes and text, without any of our own code."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "input", "br", "hr", "link"}
INLINE = {"a", "b", "bdi", "button", "code", "img", "kbd", "label", "option", "small", "span", "strong"}


class Page(HTMLParser):
    """Every tag with its attributes, the text, and the content of every script and style."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.lines = [""]  # the text, with a line for every block, however the source is broken into lines
        self.raw: list[tuple[str, dict[str, str], str]] = []  # (tag, attributes, content)
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append((tag, attributes))
        self._begin_line(tag)
        if tag in ("script", "style"):
            self.raw.append((tag, attributes, ""))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()
        self._begin_line(tag)

    def _begin_line(self, tag: str) -> None:
        if tag not in INLINE:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style"):
            tag, attributes, before = self.raw[-1]
            self.raw[-1] = (tag, attributes, before + data)
        else:
            self.text += data
            self.lines[-1] += data

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        """The attributes of every such tag."""
        return [
            found
            for name, found in self.tags
            if name == tag and all(found.get(key.rstrip("_")) == value for key, value in wanted.items())
        ]

    @property
    def words(self) -> str:
        """The text with single spaces."""
        return " ".join(self.text.split())
