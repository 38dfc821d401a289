"""`python -m evenhand.bench.worker`: a process that does one run after another, as standard input says.

Torch, CUDA and the tasks are loaded once for all its runs. It ends when its standard input does, which is
also what happens when the process that started it dies, however it dies; so nothing goes on unwatched.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from dataclasses import asdict


def main() -> None:
    """Read orders, one JSON object a line, and answer each with one line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started us
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed must not look like an answer
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    sys.path.append("")  # as the command line does: a user's own modules may lie in the current folder

    from evenhand.bench.work import from_json, work

    while True:
        outcome = work(*from_json(json.loads(orders.get())))
        answers.write(json.dumps(asdict(outcome), default=str) + "\n")


def _listen(orders: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        orders.put(line)
    os._exit(1)  # in the middle of a training: all that matters is on disk


if __name__ == "__main__":
    main()
