"""Damaged and hostile files load correctly or are refused by name, in limited memory and time."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.hostile import KINDS

ROOT = pathlib.Path(__file__).parents[2]
SEED, COUNT = 0, 12


@pytest.mark.extended
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the memory limit needs Linux")
def test_every_mutant_loads_or_is_refused_by_name():
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile", str(SEED), str(COUNT)],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
    )
    *progress, last = done.stdout.splitlines()
    assert done.returncode == 0, f"ended with {done.returncode} at {last}"
    assert len(progress) == COUNT * len(KINDS)
    assert json.loads(last) == {}
