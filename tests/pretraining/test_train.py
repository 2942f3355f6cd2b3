"""Runs: checkpoints, resuming, being killed, several devices, fine-tuning."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

from keras_elmo.pretraining.preset import write_language_model
from keras_elmo.pretraining.run.checkpoint import load_checkpoint
from keras_elmo.pretraining.run.devices import sharing
from keras_elmo.pretraining.run.recipe import Recipe, Schedule
from keras_elmo.pretraining.train import Pretraining, read_run
from tests.conftest import BACKEND, make_config, numpy
from tests.pretraining.conftest import write_corpus

RECIPE = {
    "batch_tokens": 64,
    "learning_rate": 0.02,
    "warmup": 3,
    "negatives": 8,
    "dropout": 0.1,
    "max_tokens": 7,
}


def make_run(folder, corpus, steps, resume=False, save_every=4, **changes):
    recipe = Recipe(**{**RECIPE, "steps": steps, **changes})
    return Pretraining(folder, corpus, make_config(), recipe, save_every=save_every, resume=resume)


def read_log(folder):
    with open(folder / "log.csv", newline="") as file:
        return list(csv.DictReader(file))


def weights_of(model):
    return {w.path: numpy(w.value) for w in model.weights}


def assert_same_weights(one, two):
    one, two = weights_of(one), weights_of(two)
    assert one.keys() == two.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)


def test_a_resumed_run_is_the_same_run(corpus, tmp_path):
    whole = make_run(tmp_path / "whole", corpus, 18)
    whole.run(progress=False)
    part = make_run(tmp_path / "parts", corpus, 18)
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(part.model, "stop_training", epoch == 1)
    )
    part.run([stop], progress=False)
    assert part.facts["step"] == 8
    resumed = make_run(tmp_path / "parts", corpus, 18, resume=True)
    assert resumed.facts == part.facts | {"position": list(part.facts["position"])}
    resumed.run(progress=False)
    assert_same_weights(whole.model, resumed.model)
    assert resumed.facts["tokens"] == whole.facts["tokens"]
    assert resumed.facts["position"] == whole.facts["position"]
    logs = [read_log(tmp_path / name) for name in ("whole", "parts")]
    assert [row["step"] for row in logs[0]] == ["4", "8", "12", "16", "18"]
    for one, two in zip(*logs, strict=True):
        del one["seconds"], two["seconds"]
        assert one == two
    assert float(logs[0][-1]["perplexity"]) < float(logs[0][0]["perplexity"])


def test_a_resumed_run_may_have_fewer_steps_or_more(corpus, tmp_path):
    make_run(tmp_path / "run", corpus, 8).run(progress=False)
    fewer = make_run(tmp_path / "run", corpus, 4, resume=True, save_every=5)
    fewer.run(progress=False)
    assert fewer.facts["step"] == 8
    more = make_run(tmp_path / "run", corpus, 11, resume=True, save_every=2)
    more.run(progress=False)
    assert more.facts["step"] == 11
    assert [row["step"] for row in read_log(tmp_path / "run")] == ["4", "8", "10", "11"]


def test_a_run_that_diverges_keeps_its_checkpoint(corpus, tmp_path):
    run = make_run(tmp_path / "run", corpus, 4)
    run.run(progress=False)
    again = make_run(tmp_path / "run", corpus, 8, resume=True)
    again.model.trainable_weights[0].assign(np.nan * numpy(again.model.trainable_weights[0]))
    with pytest.raises(ValueError, match="loss is nan at step 8, .*: training diverged, and the"):
        again.run(progress=False)
    last = make_run(tmp_path / "run", corpus, 8, resume=True)  # the last update goes wrong
    spoil = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: (
            last.model.trainable_weights[0].assign(np.nan * numpy(last.model.trainable_weights[0]))
            if batch == 3
            else None
        )
    )
    with pytest.raises(ValueError, match="or a weight is not finite: training diverged"):
        last.run([spoil], progress=False)
    model, _, facts = read_run(tmp_path / "run")
    assert facts["step"] == 4
    assert_same_weights(model, run.model)


def test_a_log_without_a_line_is_no_obstacle(corpus, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.csv").touch()
    make_run(tmp_path / "run", corpus, 4).run(progress=False)
    assert len(read_log(tmp_path / "run")) == 1


def test_read_run(corpus, tmp_path):
    run = make_run(tmp_path / "run", corpus, 5, save_every=5)
    run.run(progress=False)
    model, vocabulary, facts = read_run(tmp_path / "run")
    assert vocabulary == run.vocabulary and facts["step"] == 5 and facts["tokens"] > 0
    assert facts["init_from"] is None
    assert_same_weights(model, run.model)
    run.run(progress=False)  # nothing is left to do
    assert run.facts["step"] == 5
    with pytest.raises(FileNotFoundError, match="holds no checkpoint of keras-elmo pretrain"):
        read_run(tmp_path)


KILLED = """
import sys
from tests.pretraining.test_train import make_run
make_run(sys.argv[1], sys.argv[2], 40, resume=True, save_every=4).run(progress=False)
"""


@pytest.mark.skipif(BACKEND != "tensorflow", reason="one backend is enough: processes start slowly")
def test_killed_at_any_moment(corpus, tmp_path):
    whole = make_run(tmp_path / "whole", corpus, 40)
    whole.run(progress=False)
    rng = np.random.default_rng()
    log = tmp_path / "killed" / "log.csv"
    for kill in (True, True, False):
        before = log.stat().st_size if log.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", KILLED, tmp_path / "killed", corpus],
            cwd=os.getcwd(),
        )
        if kill:
            while process.poll() is None and not (log.exists() and log.stat().st_size > before):
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
        assert process.wait() in ((0, -signal.SIGKILL) if kill else (0,))
    killed, _, facts = read_run(tmp_path / "killed")
    assert facts["step"] == 40 and facts["tokens"] == whole.facts["tokens"]
    assert_same_weights(killed, whole.model)
    steps = [row["step"] for row in read_log(tmp_path / "killed")]
    assert steps == [row["step"] for row in read_log(tmp_path / "whole")]
    assert not list((tmp_path / "killed").glob("*.tmp"))


DEVICES = """
import os, sys
if os.environ["KERAS_BACKEND"] == "jax":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
else:
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from keras_elmo.pretraining.run.devices import sharing
from tests.pretraining.test_train import make_shared_run

folder, corpus = sys.argv[1:]
drawn = {"negatives": 8, "dropout": 0.1}
with sharing(2):
    make_shared_run(folder + "/two", corpus).run(progress=False)
    make_shared_run(folder + "/whole", corpus, **drawn).run(progress=False)
    make_shared_run(folder + "/parts", corpus, steps=3, **drawn).run(progress=False)
    make_shared_run(folder + "/parts", corpus, **drawn).run(progress=False)
"""


def make_shared_run(folder, corpus, **changes):
    """A run whose batches have two parts, on as many devices as there are."""
    recipe = {"steps": 6, "negatives": None, "dropout": 0.0, "decay": 0.0}
    recipe = Recipe(**RECIPE | recipe | changes)
    return Pretraining(folder, corpus, make_config(), recipe, save_every=3, devices=2, resume=True)


@pytest.mark.skipif(BACKEND == "torch", reason="JAX and TensorFlow share batches among devices")
def test_two_devices_give_the_loss_of_one(corpus, tmp_path):
    environment = {**os.environ, "KERAS_BACKEND": BACKEND}
    command = [sys.executable, "-W", "ignore", "-c", DEVICES, tmp_path, corpus]
    subprocess.run(command, env=environment, check=True)
    one = make_shared_run(tmp_path / "one", corpus)
    one.run(progress=False)
    logs = [read_log(tmp_path / name) for name in ("one", "two")]
    for row, other in zip(*logs, strict=True):
        assert row["tokens"] == other["tokens"]
        for name in ("loss", "perplexity"):
            np.testing.assert_allclose(float(row[name]), float(other[name]), rtol=1e-4)
    two, _, _ = read_run(tmp_path / "two")
    for name, array in weights_of(two).items():
        np.testing.assert_allclose(array, weights_of(one.model)[name], atol=1e-3, err_msg=name)
    whole, parts = (read_run(tmp_path / name)[0] for name in ("whole", "parts"))
    assert_same_weights(whole, parts)


def test_sharing_among_too_many_devices():
    if BACKEND == "torch":
        with pytest.raises(ValueError, match="Several devices need the backend JAX or TensorFlow"):
            with sharing(2):
                pass
    else:
        with pytest.raises(ValueError, match="Expected 99 devices. Received: 1"):
            with sharing(99):
                pass
    with sharing(1):
        pass


def test_fine_tuning_starts_from_the_preset(corpus, tmp_path):
    run = make_run(tmp_path / "run", corpus, 60, save_every=60, negatives=None)
    run.run(progress=False)
    write_language_model(tmp_path / "preset", run.model, run.vocabulary)
    other = write_corpus(tmp_path, seed=1)
    recipe = Recipe(**{**RECIPE, "steps": 20, "negatives": None})
    started = {}
    for own in (False, True):
        tuned = Pretraining(
            tmp_path / f"tuned{own}",
            other,
            None,
            recipe,
            save_every=20,
            init_from=tmp_path / "preset",
            own_vocabulary=own,
        )
        started[own] = tuned.heldout_perplexity()
        assert tuned.vocabulary == run.vocabulary or own
        assert set(tuned.vocabulary) == set(run.vocabulary)
        tuned.run(progress=False)
        assert read_run(tmp_path / f"tuned{own}")[2]["init_from"] == str(tmp_path / "preset")
        resumed = Pretraining(tmp_path / f"tuned{own}", other, None, recipe, resume=True)
        assert resumed.vocabulary == tuned.vocabulary
        assert_same_weights(resumed.model, tuned.model)
        assert tuned.heldout_perplexity() < started[own]
    fresh = make_run(tmp_path / "fresh", other, 20, negatives=None)
    assert started[False] < 0.6 * fresh.heldout_perplexity()
    np.testing.assert_allclose(started[True], started[False], rtol=1e-4)


def test_schedule():
    recipe = Recipe(steps=100, warmup=10, decay=0.5, learning_rate=1.0)
    rates = [float(numpy(Schedule(recipe)(step))) for step in range(101)]
    np.testing.assert_allclose(rates[:10], np.arange(1, 11) / 10, rtol=1e-6)
    np.testing.assert_allclose(rates[10:51], 1.0)
    np.testing.assert_allclose(rates[50:], np.linspace(1, 0, 51), atol=1e-6)
    again = Schedule.from_config(json.loads(json.dumps(Schedule(recipe).get_config())))
    assert again.recipe == recipe
    constant = Schedule(Recipe(warmup=0, decay=0.0, learning_rate=0.5, steps=9))
    assert [float(numpy(constant(step))) for step in (0, 8)] == [0.5, 0.5]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"steps": 0}, "Recipe expects steps to be whole, 1 or more. Received: steps=0"),
        ({"warmup": -1}, "warmup to be whole, 0 or more. Received: warmup=-1"),
        ({"learning_rate": 0}, "learning_rate to be more than 0. Received: learning_rate=0"),
        ({"decay": 1.5}, "decay to be from 0 to 1. Received: decay=1.5"),
        ({"dropout": 1}, "dropout to be from 0 up to, not including, 1. Received: dropout=1"),
        ({"negatives": 0}, "negatives to be whole, 1 or more, or None. Received: negatives=0"),
        ({"decay": "0.3"}, "Recipe expects decay to be a number. Received: decay='0.3'"),
        ({"seed": None}, "Recipe expects seed to be a whole number. Received: seed=None"),
        ({"products": "float16"}, "products to be float32 or bfloat16. Received: .*'float16'"),
    ],
)
def test_recipe_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**changes)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"\n \n", "Corpus expects sentences, one a line. Received: none in"),
        ("é".encode("latin-1"), "Expected UTF-8 text, .* Received: .*train-0000"),
    ],
)
def test_a_corpus_that_cannot_be_read(corpus, tmp_path, content, message):
    shutil.copytree(corpus, tmp_path / "corpus")
    for file in (tmp_path / "corpus").glob("train-*"):
        file.write_bytes(content)
    run = make_run(tmp_path / "run", tmp_path / "corpus", 4)
    with pytest.raises(ValueError, match=message):
        run.run(progress=False)


def test_errors(corpus, tmp_path):
    with pytest.raises(ValueError, match="expects a folder of keras-elmo prepare. Received: .*"):
        make_run(tmp_path / "run", tmp_path, 4)
    make_run(tmp_path / "run", corpus, 4).run(progress=False)
    with pytest.raises(ValueError, match="expects a folder without a run. .* Resume it, or"):
        make_run(tmp_path / "run", corpus, 4)
    for changes, words in (({"learning_rate": 0.5}, "learning_rate"), ({"seed": 2}, "seed")):
        with pytest.raises(ValueError, match=f"settings it began with.*: another {words}$"):
            make_run(tmp_path / "run", corpus, 8, resume=True, **changes)
    recipe = Recipe(**RECIPE, steps=8)
    with pytest.raises(ValueError, match="but for steps. Received: another options of the biLM"):
        Pretraining(tmp_path / "run", corpus, make_config(lstm_dim=12), recipe, resume=True)
    with pytest.raises(ValueError, match="but for steps. Received: another corpus"):
        other = write_corpus(tmp_path, seed=1)
        Pretraining(tmp_path / "run", other, None, recipe, resume=True)
    with pytest.raises(ValueError, match="but for steps. Received: another devices"):
        Pretraining(tmp_path / "run", corpus, None, recipe, resume=True, devices=2)
    with pytest.raises(ValueError, match="but for steps. Received: another init_from"):
        Pretraining(tmp_path / "run", corpus, None, recipe, resume=True, init_from="elmo_mini_en")
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["seed"] == 0
    for name in ("interval", "devices"):
        with pytest.raises(ValueError, match=f"expects {name} to be 1 or more. Received: {name}=0"):
            Pretraining(tmp_path / "new", corpus, make_config(), recipe, **{name: 0})
    with pytest.raises(ValueError, match="Expected 1 device or more. Received: devices=0"):
        with sharing(0):
            pass
    run = make_run(tmp_path / "other", corpus, 4)
    small = keras.Variable(np.zeros(2), name="small")
    with pytest.raises(ValueError, match="does not fit this model and optimizer, .* Received: "):
        load_checkpoint(tmp_path / "run" / "checkpoint.hdf5", {"model": [small]})
    assert run.facts["step"] == 0
