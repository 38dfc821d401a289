"""What every self-contained page shares: templates that escape, a policy that lets nothing foreign run."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

import jinja2

from evenhand.report.words import count, percent


@cache
def environment() -> jinja2.Environment:
    """The templates of the report; whatever names from data hold stays text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("evenhand.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = count
    environment.filters["percent"] = percent
    return environment


def resource(name: str) -> str:
    """A file that lies beside the templates."""
    return (resources.files("evenhand.report") / "templates" / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """A content policy under which nothing is fetched, and only our own script and style count."""
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (style, script)]
    return (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'"
    )
