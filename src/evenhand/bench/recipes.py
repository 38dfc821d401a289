"""How two runs were trained alike or not: recipes without what the grids set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from evenhand.bench.grids import PAIR, Settings
from evenhand.training.recipe import Recipe
from evenhand.training.record import Record


def base_recipe(record: Record) -> dict[str, Any]:
    """A run's recipe without what the grids set and what never changes a result."""
    full = _full(record)
    if isinstance(full["weights"], str):  # the same file may lie elsewhere on another machine
        full["weights"] = PurePath(full["weights"]).name
    return {name: value for name, value in full.items() if name not in (*PAIR, "compile")}


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
