"""The command line: it parses, calls the library and prints. Only commands that compute import torch."""

from __future__ import annotations

import errno
import logging
import os
import sys
import warnings

import typer

from evenhand.cli import train, audit, doctor, results, share, bench, data, evaluate, apply  # isort: skip  # the order of the help
from evenhand.cli.common import app, plain_warning, say, shortened

__all__ = [
    "app",
    "apply",
    "audit",
    "bench",
    "data",
    "doctor",
    "evaluate",
    "main",
    "results",
    "share",
    "train",
]


def _open_standard_streams() -> None:
    """Replace standard streams that the caller has closed (`>&-`) by the null device.

    Otherwise the next opened file would get the stream's number, and libraries would print into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def main() -> None:
    """Run the command line. Errors that users can fix are one sentence, with exit code 2."""
    _open_standard_streams()
    logger = logging.getLogger("evenhand")
    logger.handlers, logger.propagate = [logging.StreamHandler(sys.stderr)], False
    logger.setLevel(logging.INFO)
    warnings.formatwarning = plain_warning
    try:
        app()
    except (ValueError, OSError, ImportError) as error:
        rank = os.environ.get("RANK", "0")  # set by torchrun
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "; free some space, then repeat the command to resume" if full else ""
        say(f"evenhand{'' if rank == '0' else f' (rank {rank})'}: {shortened(error)}{advice}", err=True)
        sys.exit(2)
    except SystemExit as end:
        if end.code == 130:  # typer's exit code for Ctrl-C
            typer.echo("evenhand: interrupted; repeat the command to resume", err=True)
        raise
