"""The command line: parses, calls the library, prints. Torch is loaded only by commands that compute."""

from __future__ import annotations

import errno
import logging
import os
import sys
import warnings

import typer

from evenhand.cli import train, audit, bench, results, data, apply, doctor  # isort: skip  # each adds its commands
from evenhand.cli.common import app, plain_warning, say

__all__ = ["app", "apply", "audit", "bench", "data", "doctor", "main", "results", "train"]


def main() -> None:
    """Run the command line; what a user can mend is said in one line, with exit code 2."""
    # A method, task or model of the user's own may lie in the current folder; it never hides a library.
    sys.path.append("")
    logger = logging.getLogger("evenhand")
    logger.handlers, logger.propagate = [logging.StreamHandler(sys.stderr)], False
    logger.setLevel(logging.INFO)
    warnings.formatwarning = plain_warning
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        rank = os.environ.get("RANK", "0")  # of the processes that torchrun has started
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "; make room, and the same command continues from here" if full else ""
        say(f"evenhand{'' if rank == '0' else f' (rank {rank})'}: {error}{advice}", err=True)
        sys.exit(2)
    except SystemExit as end:
        if end.code == 130:  # what typer makes of Ctrl-C
            typer.echo("evenhand: interrupted; the same command continues from here", err=True)
        raise
