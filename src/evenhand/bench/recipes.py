"""How two runs were trained alike or not: recipes without what the grids set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from evenhand.bench.grid import PAIR, Settings, named
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record

VERSIONS = ("version", "source")  # of a method: its number, or its text's checksum
# What a base recipe has besides fields of the recipe; that of an older record has "record" instead.
COMPUTED = ("device", "compute", "numerics", "model_source")


def base_recipe(record: Record) -> dict[str, Any]:
    """How a run was trained and computed, without what the grids set and what is the method's own."""
    full = {**({"record": "older"} if record.older else record.made_with), **_full(record)}
    if isinstance(full["weights"], str):  # the same file may lie elsewhere on another machine
        full["weights"] = PurePath(full["weights"]).name
    return {name: value for name, value in full.items() if name not in (*PAIR, *VERSIONS, "compile")}


def version_of(record: Record) -> dict[str, Any]:
    """Which version of its method made a run; nothing of older records, which do not say it."""
    return {name: value for name, value in record.made_with.items() if name in VERSIONS}


def why_left_out(recipe: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """Why runs of one base recipe do not count beside those of another.

    >>> why_left_out({"epochs": 5, "compute": "eager"}, {"epochs": 5, "compute": "compiled"})
    'with compute=eager'
    """
    apart = sorted(name for name in {*recipe, *chosen} if recipe.get(name) != chosen.get(name))
    if "record" in apart:
        return "of older records" if "record" in recipe else "of newer records"
    if "compute" in recipe and set(apart) <= {*COMPUTED, "precision"}:
        return f"with {named({name: recipe.get(name) for name in apart})}"
    return "of another recipe"


def differences(recipe: Mapping[str, Any], published: Recipe | None) -> dict[str, Any]:
    """Where a recipe is not the published one, its precision aside: field -> value."""
    if published is None:
        return {}
    return {
        name: value
        for name, value in recipe.items()
        if name != "precision" and value != getattr(published, name, value)
    }


def fits(recipe: Mapping[str, Any], published: Recipe | None, wanted: Mapping[str, Any]) -> bool:
    """Whether a recipe is the published one with these changes, as far as the published one is known."""
    if published is None:
        return all(recipe.get(key) == value for key, value in wanted.items())
    changed = {key: value for key, value in wanted.items() if value != getattr(published, key, None)}
    return differences(recipe, published) == {key: changed[key] for key in changed if key != "precision"}


def pair_of(record: Record) -> Settings:
    """The learning rate and weight decay of a run."""
    full = _full(record)
    return {name: full[name] for name in PAIR}


def _full(record: Record) -> dict[str, Any]:
    changed = record.config.get("recipe", {})
    given = record.config.get("full_recipe") or changed
    # A field of another version that was left at its default says nothing.
    return {
        **_DEFAULTS,
        **{name: value for name, value in given.items() if name in _DEFAULTS or name in changed},
    }


_DEFAULTS = dataclasses.asdict(Recipe())
