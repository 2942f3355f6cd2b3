"""Two processes on the loopback against one with two devices; SEVERAL_PROCESSES=1 runs it."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_elmo.pretraining.train import read_run
from tests.conftest import BACKEND
from tests.pretraining.test_train import read_log, weights_of

pytestmark = [
    pytest.mark.backends,
    pytest.mark.extended,
    pytest.mark.skipif(
        BACKEND == "torch" or "SEVERAL_PROCESSES" not in os.environ,
        reason="takes minutes; set SEVERAL_PROCESSES to run it on JAX or TensorFlow",
    ),
]
ROOT = pathlib.Path(__file__).parents[2]

JOB = """
import os, signal, sys
import keras

folder, corpus, devices, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if keras.backend.backend() == "tensorflow" and devices > 1:
    import tensorflow as tf

    parts = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], parts)
from keras_elmo.pretraining.devices import sharing
from tests.pretraining.test_train import make_run

recipe = {"optimizer": "muon", "learning_rate": 0.01, "clip_norm": 0.05, "decay": 0.0}

def kill(batch, logs):
    if run.facts["step"] == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)

with sharing(2, resume=True):
    run = make_run(folder, corpus, 4, resume=True, save_every=2, devices=2, **recipe)
    run.run([keras.callbacks.LambdaCallback(on_train_batch_end=kill)], progress=False)
"""


def start(folder, corpus, devices=1, kill_at=-1, **variables):
    command = [sys.executable, "-W", "ignore", "-c", JOB, folder, corpus, devices, kill_at]
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = {**os.environ, "XLA_FLAGS": flags, **variables}
    return subprocess.Popen([str(word) for word in command], cwd=ROOT, env=environment)


def start_two(folder, corpus, kill_at=-1):
    """Start both processes; the second one kills itself at a step."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        addresses = ",".join(f"127.0.0.1:{s.getsockname()[1]}" for s in (one, two))
    names = ("KERAS_DISTRIBUTION_JOB_ADDRESSES", "KERAS_DISTRIBUTION_PROCESS_ID")
    return [
        start(folder, corpus, 1, kill_at if i else -1, **dict(zip(names, (addresses, str(i)))))
        for i in range(2)
    ]


def wait_for(path):
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    raise TimeoutError(path)


def test_two_processes_are_one_with_two_devices(corpus, tmp_path):
    assert start(tmp_path / "one", corpus, devices=2).wait() == 0
    assert [process.wait() for process in start_two(tmp_path / "two", corpus)] == [0, 0]
    first, second = start_two(tmp_path / "killed", corpus, kill_at=3)
    assert second.wait() == -signal.SIGKILL
    wait_for(tmp_path / "killed" / "checkpoint.hdf5")
    first.kill()  # as a launcher does
    first.wait()
    assert read_run(tmp_path / "killed")[2]["step"] == 2
    assert [process.wait() for process in start_two(tmp_path / "killed", corpus)] == [0, 0]
    one, _, facts = read_run(tmp_path / "one")
    for name in ("two", "killed"):
        other, _, others = read_run(tmp_path / name)
        assert others["step"] == 4 and others["tokens"] == facts["tokens"]
        found, right = weights_of(other), weights_of(one)
        assert found.keys() == right.keys()
        for path, array in right.items():  # sums may be made in another order
            np.testing.assert_allclose(found[path], array, rtol=1e-5, atol=1e-7, err_msg=path)
        logs = read_log(tmp_path / "one"), read_log(tmp_path / name)
        for row, found in zip(*logs, strict=True):
            for column in ("loss", "perplexity"):
                np.testing.assert_allclose(float(row[column]), float(found[column]), rtol=1e-5)
