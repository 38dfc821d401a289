"""The heap of trainings on the CPU: memory that is freed and needed again is not asked of the kernel again."""

import os
import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import torch
from evenhand.training.heap import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def step():
    tensors = [torch.ones(1 << 20) for _ in range(10)]
    return sum(float(tensor[0]) for tensor in tensors)
step(), step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(kind: str, **environment: str) -> int:
    command = [sys.executable, "-c", PROGRAM, kind]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's heap is set up")
def test_a_step_does_not_ask_for_memory_that_the_last_one_freed() -> None:
    assert faults("kept") < 200 < 10000 < faults("as it is")
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="131072") > 10000, "what the environment says is left alone"
