"""Runs: checkpoints, resuming an interrupted run, several devices, fine-tuning."""

import csv
import dataclasses
import json
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_elmo.pretraining import (
    Pretraining,
    Recipe,
    Scorer,
    export_run,
    read_language_model,
    read_run,
)
from tests.conftest import BACKEND, make_config, numpy
from tests.pretraining.conftest import CONFIG, make_run


def read_log(folder):
    with open(folder / "log.csv", newline="") as file:
        return [{n: x for n, x in row.items() if n != "seconds"} for row in csv.DictReader(file)]


def weights_of(model):
    return {w.path: numpy(w.value) for w in model.weights}


def assert_same_run(folder, other):
    """Compare all variables of two runs, and what their checkpoints contain besides."""
    one, two = (np.load(each / "checkpoint.npz") for each in (folder, other))
    with one, two:
        assert one.files == two.files
        for name in set(one.files) - {"facts"}:
            np.testing.assert_array_equal(one[name], two[name], err_msg=name)
        facts = [json.loads(str(each["facts"])) for each in (one, two)]
    assert [f.pop("seconds") and f.pop("log") for f in facts] and facts[0] == facts[1]


@pytest.mark.backends("torch")
def test_a_resumed_run_is_the_same_run(a_run, corpus, tmp_path):
    """With everything that has a state: moments, dropout, negatives, a shard that is half read."""

    def interrupt(batch, logs):
        if run.facts["step"] == 5:
            raise KeyboardInterrupt

    run = make_run(tmp_path, corpus, 8, save_every=3)
    with pytest.raises(KeyboardInterrupt):
        run.run([keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)], progress=False)
    resumed = Pretraining(tmp_path, corpus, save_every=4, resume=True)
    resumed.run(progress=False)
    assert [row["step"] for row in read_log(a_run)] == ["4", "8"]
    assert [row["step"] for row in read_log(tmp_path)] == ["3", "7", "8"]
    assert resumed.facts["perplexity"] == float(read_log(tmp_path)[-1]["perplexity"])
    assert_same_run(tmp_path, a_run)


def test_one_run_in_a_folder(corpus, finished, tiny_preset):
    run = make_run(finished, corpus, 12, resume=True)
    with run.folder.locked():
        with pytest.raises(OSError, match="trains .*run already. Received: its lock"):
            run.run(progress=False)
    for folder in (finished, corpus, tiny_preset):
        with pytest.raises(
            ValueError, match="without a run, a corpus .*(vocab|options).* Resume a"
        ):
            make_run(folder, corpus, 8)


def test_a_resumed_run_may_change_some_settings_only(corpus, finished):
    other = dataclasses.replace(CONFIG, lstm_dim=11)
    message = "except steps, epochs, .* another value of lstm_dim, seed$"
    with pytest.raises(ValueError, match=message):
        make_run(finished, corpus, 12, resume=True, seed=3, config=other)
    run = make_run(finished, corpus, 11, resume=True, save_every=2, learning_rate=0.5)
    run.run(progress=False)
    log = read_log(finished)
    assert [row["step"] for row in log] == ["4", "8", "10", "11"]
    assert float(log[2]["learning_rate"]) > 0.1
    # A run that diverges stops and keeps its checkpoint.
    run.model.softmax_kernel.assign(numpy(run.model.softmax_kernel) * np.nan)
    run.steps, run.save_every = 40, 20
    message = "diverged: expected a finite loss. Received: nan at step 21. Resume the run in"
    with pytest.raises(ValueError, match=message):
        run.run(progress=False)
    model, _, facts = read_run(finished)
    assert facts["step"] == 11 and np.isfinite(numpy(model.softmax_kernel)).all()


def test_a_run_is_not_resumed_on_another_corpus(corpus, finished, tmp_path):
    other = shutil.copytree(corpus, tmp_path / "other")
    first = sorted(other.glob("train-*"))[0]
    first.write_text("\n".join(reversed(first.read_text().splitlines())) + "\n")
    with pytest.raises(ValueError, match="another value of corpus"):
        make_run(finished, other, 12, resume=True)


def test_a_run_that_was_killed_before_its_first_checkpoint(corpus, finished, a_run):
    (finished / "checkpoint.npz").unlink()
    with pytest.raises(ValueError, match="another value of seed$"):
        make_run(finished, corpus, 8, resume=True, seed=3)
    make_run(finished, corpus, 8, resume=True).run(progress=False)
    assert_same_run(finished, a_run)


def test_read_run(a_run, corpus):
    model, vocabulary, facts = read_run(a_run)
    assert facts["step"] == 8 and facts["tokens"] > 0
    scores = Scorer(model, vocabulary).perplexity([["a", "b"]])
    assert 1 < scores["perplexity"] < 1000
    with pytest.raises(FileNotFoundError, match="Run of keras-elmo pretrain .*run.json does not"):
        read_run(corpus)


def test_a_damaged_checkpoint(finished):
    path = finished / "checkpoint.npz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(OSError, match="a complete checkpoint of a run: .*npz .*. Begin anew"):
        read_run(finished)
    path.unlink()
    with pytest.raises(OSError, match="No such file"):
        read_run(finished)


def test_epochs_are_passes_over_the_corpus(corpus, tmp_path):
    one, half = (make_run(tmp_path / "run", corpus, None, epochs=n).steps for n in (1, 0.5))
    assert one > 20 and half == round(one / 2)


def test_a_frozen_bilm_gets_a_softmax(corpus, small_preset, tmp_path):
    """For a preset without a softmax."""
    preset = shutil.copytree(small_preset, tmp_path / "preset")
    (preset / "softmax.hdf5").unlink()
    settings = {"config": None, "init_from": preset, "optimizer": "muon", "save_every": 8}
    with pytest.raises(FileNotFoundError, match="cannot predict tokens.*--own-vocabulary"):
        make_run(tmp_path / "run", corpus, 8, **settings)
    settings |= {"own_vocabulary": True, "frozen_bilm": True}
    run = make_run(tmp_path / "run", corpus, 8, **settings)
    before = run.heldout_perplexity()
    run.run(progress=False)
    assert len(run.model.trainable_variables) == 2 and run.facts["perplexity"] < before
    bilm = weights_of(read_language_model(small_preset)[0].bilm)
    for name, array in weights_of(read_run(tmp_path / "run")[0].bilm).items():
        np.testing.assert_array_equal(array, bilm[name], err_msg=name)
    export_run(tmp_path / "run", tmp_path / "exported", license="mit")
    card = (tmp_path / "exported" / "README.md").read_text("utf-8")
    assert "Fine-tuned from `preset`." in card and str(tmp_path) not in card


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"corpus": "none"}, "folder of keras-elmo prepare. Received: none, without train"),
        ({"save_every": 0}, "save_every to be a whole number, 1 or more"),
        ({"recipe": Recipe(frozen_bilm=True)}, "with frozen_bilm. Received: init_from=None"),
        ({"config": make_config(), "init_from": "preset"}, "a preset of the same sizes.*grow.py"),
    ],
)
def test_errors(settings, message, corpus, small_preset, tmp_path):
    if "init_from" in settings:
        settings = {**settings, "init_from": small_preset}
    settings = {"corpus": corpus, "recipe": Recipe(steps=4), **settings}
    with pytest.raises(ValueError, match=message):
        Pretraining(tmp_path / "run", **settings)


DEVICES = """
import contextlib, os, sys

scope = contextlib.nullcontext()
if os.environ["KERAS_BACKEND"] == "jax":
    import keras
    keras.distribution.set_distribution(keras.distribution.DataParallel())
else:
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    scope = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope()
from tests.pretraining.conftest import make_run

with scope:
    for step in (2, 4):
        run = make_run(*sys.argv[1:], step, resume=True, save_every=2, negatives=None, dropout=0.0)
        assert run.devices == 2
        run.run(progress=False)
"""


@pytest.mark.extended
@pytest.mark.backends
@pytest.mark.skipif(BACKEND == "torch", reason="JAX and TensorFlow share batches among devices")
def test_two_devices_train_as_one_does(corpus, tmp_path):
    environment = {**os.environ, "KERAS_BACKEND": BACKEND}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    command = [sys.executable, "-W", "ignore", "-c", DEVICES, tmp_path / "two", corpus]
    subprocess.run(command, env=environment, check=True)
    one = make_run(tmp_path / "one", corpus, 4, save_every=2, negatives=None, dropout=0.0)
    one.run(progress=False)
    for row, other in zip(*(read_log(tmp_path / n) for n in ("one", "two")), strict=True):
        assert row["tokens"] == other["tokens"]
        for name in ("loss", "perplexity"):
            np.testing.assert_allclose(float(row[name]), float(other[name]), rtol=1e-4)
