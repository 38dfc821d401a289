"""Audit your own data: `evenhand.audit(…)` in Python, `evenhand audit` in a terminal.

The package itself is callable, so that `evenhand.audit` is the function and the package at once.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *given: Any, **options: Any) -> Any:
        from evenhand.audit.result import audit

        return audit(*given, **options)


sys.modules[__name__].__class__ = _Callable
