"""Plug-ins are modules: a method or task is named by its file, and a dotted path loads a user's own."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from types import ModuleType, SimpleNamespace
from typing import Any

from evenhand.training.recipe import Recipe

RENAMED = {"even": "evenhand"}  # earlier names of methods, which old records still have


@dataclass(frozen=True)
class Declared:
    """The declarations in a plug-in's file, read without importing it, and so without torch."""

    summary: str  # the first line of its docstring
    constants: Any  # a namespace of its names in capitals: GRID, VERSION, RECIPE
    options: dict[str, Any]  # the keyword-only arguments of its function, with their defaults


def describe(package: str, function: str) -> dict[str, str]:
    """Return the plug-ins of a package and what each is."""
    return {name: each.summary for name, each in declared(package, function).items()}


def known(package: str, name: str, function: str) -> Declared | None:
    """Return what a plug-in of a record declares, or None if it is neither ours nor loaded.

    Records may be anybody's, so nothing is imported for one.
    """
    if "." not in name:
        return declared(package, function).get(name)
    module = sys.modules.get(name)
    if module is None or not callable(getattr(module, function, None)):
        return None
    return Declared((module.__doc__ or "").split("\n")[0], module, keywords(getattr(module, function)))


@functools.cache  # a bench asks for every one of its runs
def declared(package: str, function: str) -> dict[str, Declared]:
    """Return what every plug-in of a package declares."""
    found = {}
    for file in sorted(resources.files(package).iterdir(), key=lambda file: file.name):
        name = file.name.removesuffix(".py")
        if not file.name.endswith(".py") or name == "__init__":
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == function:
                scope = _Constants(package, tree)
                values = (scope.value(default) for default in node.args.kw_defaults)
                options = dict(zip((one.arg for one in node.args.kwonlyargs), values, strict=True))
                summary = (ast.get_docstring(tree) or "").split("\n")[0]
                found[name] = Declared(summary, SimpleNamespace(**scope), options)
    return found


class _Constants(dict[str, Any]):
    """The constants of a module of this package: literals, recipes, and constants of neighboring modules."""

    def __init__(self, package: str, tree: ast.Module) -> None:
        self._package = package
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name) and target.id.isupper():
                    self[target.id] = self.value(getattr(node, "value", None))

    def value(self, expression: ast.expr | None) -> Any:
        """Return the value of an expression of the module; None if only an import could tell."""
        if expression is None:
            return None
        try:
            return self._value(expression)
        except (KeyError, AttributeError):
            return None

    def _value(self, node: ast.expr) -> Any:
        """Evaluate literals, constants, their attributes and recipes; anything else raises KeyError."""
        if isinstance(node, ast.Name):
            return self[node.id]
        if isinstance(node, ast.Attribute):
            return getattr(self._value(node.value), node.attr)
        if isinstance(node, ast.List | ast.Tuple):
            values = [self._value(each) for each in node.elts]
            return values if isinstance(node, ast.List) else tuple(values)
        if isinstance(node, ast.Dict):
            made: dict[Any, Any] = {}
            for key, value in zip(node.keys, node.values, strict=True):
                made.update(self._value(value) if key is None else {self._value(key): self._value(value)})
            return made
        if isinstance(node, ast.Call) and (make := self._callable(node.func)) is not None:
            named = {str(each.arg): self._value(each.value) for each in node.keywords}
            return make(*[self._value(each) for each in node.args], **named)
        if isinstance(node, ast.Set):
            return {self._value(each) for each in node.elts}
        try:
            return ast.literal_eval(node)
        except ValueError as error:
            raise KeyError(ast.unparse(node)) from error

    def _callable(self, node: ast.expr) -> Callable[..., Any] | None:
        """What a plug-in's constants may be made with: Recipe, a recipe's `replace`, and frozenset."""
        if isinstance(node, ast.Name):
            return {"Recipe": Recipe, "frozenset": frozenset}.get(node.id)
        if isinstance(node, ast.Attribute) and node.attr == "replace":
            recipe = self._value(node.value)
            return recipe.replace if isinstance(recipe, Recipe) else None
        return None

    def __missing__(self, name: str) -> SimpleNamespace:
        file = resources.files(self._package) / f"{name}.py"
        if not file.is_file():
            raise KeyError(name)
        return SimpleNamespace(**_Constants(self._package, ast.parse(file.read_text(encoding="utf-8"))))


def load(package: str, name: str, function: str) -> ModuleType:
    """Return the plug-in of this name, or the user's own module when the name has a dot."""
    kind = package.rpartition(".")[2].rstrip("s")
    if "." not in name:
        known = describe(package, function)
        if kind == "method" and name in RENAMED:
            raise ValueError(f"the method {name!r} is now called {RENAMED[name]!r}; use that name")
        if name not in known:
            raise ValueError(
                f"unknown {kind} {name!r}; known {kind}s are {', '.join(known)}, "
                "or package.module for your own"
            )
        return importlib.import_module(f"{package}.{name}")
    try:
        found = import_own(name)
    except ModuleNotFoundError as error:
        if not (error.name and (name == error.name or name.startswith(error.name + "."))):
            raise ImportError(
                f"the {kind} {name!r} needs {error.name}, which is not installed: {error}", name=error.name
            ) from error
        raise ValueError(
            f"cannot import the {kind} {name!r}: {error}; is its folder on PYTHONPATH?"
        ) from None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"cannot import the {kind} {name!r}: {type(error).__name__}: {error} "
            f"({last.filename}, line {last.lineno})"
        ) from error
    if not callable(getattr(found, function, None)):
        raise ValueError(f"a {kind} module must have a function {function}(…); {name!r} has none")
    return found


def import_own(name: str) -> ModuleType:
    """Import a module that the user has named, also from the current folder, which never hides a library.

    Only such a name puts the current folder on the path, so no other command runs code from it.
    """
    if "" not in sys.path:
        sys.path.append("")
    return importlib.import_module(name)


def keywords(function: Any) -> dict[str, Any]:
    """Return a plug-in's options, which are its keyword-only arguments, with their defaults."""
    return {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def groups_needed(module: ModuleType | None) -> tuple[str, ...]:
    """Return the splits whose groups a method sees: what its NEEDS_GROUPS says, of "train" and "val".

    >>> groups_needed(None)
    ()
    """
    said = getattr(module, "NEEDS_GROUPS", False)
    both = ("train", "val")
    known = {"False": (), "train": both[:1], "val": both[1:], "both": both, "True": both}
    if str(said) not in known:
        raise ValueError(f"NEEDS_GROUPS of a method must be 'train', 'val' or 'both', got {said!r}")
    return known[str(said)]


def version(module: ModuleType | None) -> int | str:
    """Return what a module's results depend on: VERSION for ours, a checksum of the text for a user's.

    Renames and prose change no VERSION. It is raised when the module's numbers change. A module of ours
    without one belongs to the engine, whose version is NUMERICS. The text of a notebook is empty.
    """
    package = getattr(module, "__name__", "").partition(".")[0]
    if package == "evenhand":
        return int(getattr(module, "VERSION", 0))
    return 0 if package == "torch" else _text_digest(module)


def definition(thing: object) -> dict[str, int | str]:
    """Return the name of a function, or of an object's class, and the version of its module.

    In a notebook, its own text stands for its module's.

    >>> definition(definition)["name"]
    'evenhand.training.plugins.definition'
    """
    thing = thing.func if isinstance(thing, functools.partial) else thing
    named: Any = thing if hasattr(thing, "__qualname__") else type(thing)
    module = getattr(named, "__module__", None) or ""
    found = version(sys.modules.get(module))
    if found == _text_digest(None):
        found = _text_digest(named)
    return {"name": f"{module}.{named.__qualname__}", "version": found}


def _text_digest(source: Any) -> str:
    try:
        text = inspect.getsource(source) if source is not None else ""
    except (OSError, TypeError):
        text = ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_value(text: str) -> Any:
    """Parse a value from a command line: a number, true, false, none, or else text.

    >>> [parse_value(text) for text in ("3", "1e-3", "true", "none", "ratio")]
    [3, 0.001, True, None, 'ratio']
    """
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse_assignments(pairs: list[str]) -> dict[str, Any]:
    """Parse `["lr=1e-3", "threshold=2"]` as a dictionary."""
    result: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"expected name=value, got {pair!r}")
        if name in result:
            raise ValueError(f"{name} is given twice")
        result[name] = parse_value(value)
    return result
