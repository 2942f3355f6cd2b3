"""Runs: checkpoints, resuming, being killed, several devices, fine-tuning."""

import csv
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys

import h5py
import keras
import numpy as np
import pytest

from keras_elmo.formats.vocabulary import read_vocabulary
from keras_elmo.presets import Preset
from keras_elmo.pretraining import checkpoint, train
from keras_elmo.pretraining.checkpoint import load_checkpoint
from keras_elmo.pretraining.devices import sharing
from keras_elmo.pretraining.export import export_run
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.language_model_files import read_language_model, write_language_model
from keras_elmo.pretraining.recipe import Recipe
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.train import Pretraining, read_run
from tests.conftest import BACKEND, make_config, numpy, room_for, slow
from tests.pretraining.conftest import write_corpus

# Few weights: what costs time is to trace or compile them.
CONFIG = make_config(n_layers=1, n_highway=0, filters=((2, 5), (3, 4)))
RECIPE = {
    "batch_tokens": 64,
    "optimizer": "adam",
    "learning_rate": 0.02,
    "warmup": 3,
    "negatives": 8,
    "dropout": 0.1,
    "max_tokens": 7,
}


def make_run(folder, corpus, steps, resume=False, save_every=4, config=CONFIG, **changes):
    recipe, names = {**RECIPE, "steps": steps}, ("init_from", "own_vocabulary", "devices")
    settings = {name: changes.pop(name) for name in names if name in changes}
    recipe = Recipe(**recipe | changes)
    return Pretraining(
        folder, corpus, config, recipe, save_every=save_every, resume=resume, **settings
    )


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


def stop_at(run, step):
    def on_epoch_end(epoch, logs):
        run.model.stop_training = run.facts["step"] >= step

    return keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)


@pytest.fixture(scope="session")
def a_run(corpus, tmp_path_factory):
    """The folder of a run that did its 8 steps."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "log.csv").touch()  # as of a run that was killed before its first line
    make_run(folder, corpus, 8).run(progress=False)
    return folder


@pytest.fixture
def finished(a_run, tmp_path):
    return shutil.copytree(a_run, tmp_path / "run")


@pytest.fixture(scope="session")
def small_preset(corpus, tmp_path_factory):
    """A preset that predicts the tokens of the corpus."""
    vocabulary = read_vocabulary(corpus / "vocab.txt")
    keras.utils.set_random_seed(8)
    model = BiLanguageModel(CONFIG, len(vocabulary), n_negatives=None)
    write_language_model(folder := tmp_path_factory.mktemp("preset"), model, vocabulary)
    return folder


def test_a_resumed_run_is_the_same_run(corpus, small_preset, tmp_path, monkeypatch):
    """With all that has a state: growth, Muon, dropout, negatives, a batch that is half read."""

    def gone(preset):
        raise ImportError("huggingface_hub")

    settings = {
        "config": make_config(
            n_layers=1, n_highway=0, filters=((2, 6), (3, 4)), lstm_dim=13, projection_dim=8
        ),
        "init_from": small_preset,
        "optimizer": "muon",
        "first_batch_tokens": 16,
        "ramp_steps": 9,
        "save_every": 3,
    }
    whole = make_run(tmp_path / "whole", corpus, 10, **settings)
    small, vocabulary = read_language_model(small_preset)
    before = Scorer(small, vocabulary).perplexity(whole._sample)["perplexity"]
    np.testing.assert_allclose(whole.heldout_perplexity(), before, rtol=0.01)
    whole.run(progress=False)
    part = make_run(tmp_path / "parts", corpus, 10, **settings)
    part.run([stop_at(part, 6)], progress=False)
    assert part.facts["step"] == 6
    epoch, place, done, some, count = part.facts["position"]
    assert (epoch, done, some, count) == (0, 1, 2, 4)
    settings |= {"init_from": None, "config": None}  # need not be given again
    monkeypatch.setattr("keras_elmo.pretraining.train.Preset", gone)
    resumed = make_run(tmp_path / "parts", corpus, 10, resume=True, **settings)
    assert resumed.facts == part.facts | {"position": list(part.facts["position"])}
    assert resumed.model.config.lstm_dim == 13
    resumed.run(progress=False)
    assert_same_weights(whole.model, resumed.model)
    for one, two in zip(whole.optimizer.variables, resumed.optimizer.variables, strict=True):
        np.testing.assert_array_equal(numpy(one), numpy(two), err_msg=one.path)
    assert resumed.facts["tokens"] == whole.facts["tokens"]
    assert resumed.facts["position"] == whole.facts["position"]
    logs = [read_log(tmp_path / name) for name in ("whole", "parts")]
    assert [row["step"] for row in logs[0]] == ["3", "6", "9", "10"]
    for one, two in zip(*logs, strict=True):
        del one["seconds"], two["seconds"]
        assert one == two
    assert float(logs[0][-1]["perplexity"]) < before


def test_one_run_in_a_folder(corpus, finished):
    run = make_run(finished, corpus, 8, resume=True)
    for begin in (lambda: make_run(finished, corpus, 8, resume=True), run.run):
        with run.folder.locked():
            with pytest.raises(OSError, match="trains .*run already. Received: its lock"):
                begin()
    run.run(progress=False)


def test_a_run_does_not_train_in_the_folder_of_a_later_one(corpus, tmp_path):
    run = make_run(tmp_path / "run", corpus, 2)
    later = make_run(tmp_path / "run", corpus, 2, seed=1)
    with pytest.raises(ValueError, match="to have the settings of this run. Received: the se"):
        run.run(progress=False)
    later.run(progress=False)
    assert read_run(tmp_path / "run")[2]["step"] == 2


def test_a_path_is_never_a_bundled_preset(corpus, small_preset, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_preset, "elmo_mini_en")
    settings = {"config": None, "negatives": None, "own_vocabulary": True}
    run = make_run("run", corpus, 2, init_from=pathlib.Path("elmo_mini_en"), **settings)
    assert run.model.config == Preset(small_preset).read_config()


def test_a_relative_path_of_a_preset_stays_the_same_preset(
    corpus, small_preset, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_preset, "preset")
    settings = {"config": None, "negatives": None, "own_vocabulary": True}
    begun = make_run(tmp_path / "run", corpus, 2, init_from="preset", **settings)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    settings = {"config": None, "negatives": None, "resume": True}
    assert_same_weights(make_run(tmp_path / "run", corpus, 2, **settings).model, begun.model)
    monkeypatch.chdir(tmp_path)
    origin = json.loads((tmp_path / "run" / "origin.json").read_text())
    for stored in (origin["init_from"], "preset"):  # an older run has the relative path
        (tmp_path / "run" / "origin.json").write_text(json.dumps({**origin, "init_from": stored}))
        for given in ("preset", "./preset", tmp_path / "preset"):
            settings |= {"own_vocabulary": True, "init_from": given}
            make_run(tmp_path / "run", corpus, 2, **settings)


def test_a_resumed_run_may_have_fewer_steps_or_more(corpus, finished):
    fewer = make_run(finished, corpus, 4, resume=True, save_every=5)
    fewer.run(progress=False)
    assert fewer.facts["step"] == 8
    more = make_run(finished, corpus, 11, resume=True, save_every=2)
    more.run(progress=False)
    assert more.facts["step"] == 11
    log = read_log(finished)
    assert [row["step"] for row in log] == ["4", "8", "10", "11"]
    assert [row["change"] for row in log] == ["", "", "steps 8 -> 11", ""]


def test_what_a_resumed_run_may_change_is_in_its_log(corpus, finished):
    changes = {"learning_rate": 0.001, "decay": 0.5, "decay_shape": "linear", "clip_norm": 0.5}
    make_run(finished, corpus, 20, resume=True, **changes)  # killed before its checkpoint
    changes["learning_rate"] = 0.002
    run = make_run(finished, corpus, 12, resume=True, **changes)
    assert json.loads((finished / "recipe.json").read_text())["learning_rate"] == 0.002
    before = weights_of(run.model)
    run.run(progress=False)
    [row] = read_log(finished)[2:]
    assert row["change"] == (
        "steps 8 -> 12; learning_rate 0.02 -> 0.002; decay 0.3 -> 0.5; "
        "decay_shape 1-sqrt -> linear; clip_norm 10.0 -> 0.5"
    )
    assert float(row["learning_rate"]) == pytest.approx(0.002 / 6)  # of the update before
    largest = max(np.abs(x - before[name]).max() for name, x in weights_of(run.model).items())
    assert 0 < largest < 4 * 0.002
    again = make_run(finished, corpus, 12, resume=True, **changes)
    assert again.changes() == ""
    epochs = make_run(finished, corpus, None, resume=True, **{**changes, "epochs": 2})
    assert epochs.changes() == "steps 12 -> None; epochs None -> 2"
    assert epochs.recipe.steps == 2 * epochs._corpus.steps(1)


def test_epochs_with_a_ramp(corpus, tmp_path):
    ramp = {"batch_tokens": 256, "first_batch_tokens": 64, "ramp_steps": 20}
    run = make_run(tmp_path / "run", corpus, None, epochs=1.5, **ramp)
    read = list(itertools.islice(run._corpus.batches(parts=run.recipe.parts), run.recipe.steps))
    tokens, position = sum(n for _, n, _ in read), read[-1][2]
    assert position[0] == 1 and position[3] == 0  # in the second epoch, no batch half read
    text = "".join(file.read_text() for file in corpus.glob("train-*"))
    assert 1.2 < tokens / len(text.split()) < 1.8
    kept = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (kept["steps"], kept["epochs"]) == (None, 1.5)


def test_a_run_whose_checkpoint_cannot_be_written(corpus, finished, monkeypatch):
    def full_disk(*arguments):
        raise OSError(28, "No space left on device")

    run = make_run(finished, corpus, 48, resume=True, save_every=20)
    monkeypatch.setattr(checkpoint, "write_arrays", full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        run.run(progress=False)
    assert run.facts["step"] == 38  # it goes on to no other checkpoint
    assert read_run(finished)[2]["step"] == 8
    assert make_run(finished, corpus, 48, resume=True).facts["step"] == 8
    assert [row["step"] for row in read_log(finished)] == ["4", "8"]


def test_a_resumed_run_begins_its_counts_anew(corpus, finished):
    """It removes what a killed run left, and numbers the epochs of callbacks further."""
    run = make_run(finished, corpus, 8, resume=True)
    run.optimizer.skipped_in_a_row.assign(3)
    run.folder.writer.save(run._variables(), run.facts)
    run.folder.writer.wait()
    left = finished / "checkpoint.hdf5.0123456789abcdef.tmp"
    left.touch()
    resumed = make_run(finished, corpus, 12, resume=True, save_every=5)
    assert resumed.skipped()[1] == 0 and not left.exists()
    epochs = []
    callback = keras.callbacks.LambdaCallback(on_epoch_begin=lambda n, logs: epochs.append(n))
    resumed.run([callback], progress=False)
    assert epochs == [2]


def test_the_sample_is_spread_over_all_files(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "_SAMPLE_TOKENS", 10)
    for name in "ab":
        text = "".join(f"{name} {i}\n" for i in range(10))
        (tmp_path / f"heldout-{name}.txt").write_text(text)
    assert train._sample(tmp_path) == [["a", "0"], ["a", "4"], ["a", "8"], ["b", "2"], ["b", "6"]]


def test_an_export_tells_of_its_checkpoint_alone(corpus, finished, tmp_path):
    """Not of what a resumed run has changed and logged since."""
    log = (finished / "log.csv").read_bytes()
    make_run(finished, corpus, 100, resume=True, learning_rate=0.002)
    assert json.loads((finished / "recipe.json").read_text())["steps"] == 100
    with open(finished / "log.csv", "ab") as file:
        file.write(b"12,99,9.0,0.002,1.0,9.0,0,\r\n16,99,9.")
    export_run(finished, tmp_path / "preset")
    card = (tmp_path / "preset" / "README.md").read_text("utf-8")
    recipe = json.loads(card.split("```json\n")[1].split("```")[0])
    assert (recipe["steps"], recipe["learning_rate"]) == (8, 0.02) and " in 8 steps" in card
    assert recipe == {**json.loads((finished / "recipe.json").read_text()), **RECIPE, "steps": 8}
    assert (tmp_path / "preset" / "log.csv").read_bytes() == log


def test_an_export_of_a_run_whose_log_was_removed(finished, tmp_path):
    (finished / "log.csv").unlink()
    export_run(finished, tmp_path / "preset")
    assert (tmp_path / "preset" / "log.csv").read_text() == "step,tokens,loss,perplexity\n"
    assert (tmp_path / "preset" / "curve.png").stat().st_size > 1000


def test_an_export_to_a_full_disk(finished, tmp_path):
    for room in (500, 40_000):  # for the curve, and for the weights behind it
        with room_for(room):
            with pytest.raises(OSError, match="File too large"):
                export_run(finished, tmp_path / "preset", bits=(23, 23))
    assert not (tmp_path / "preset").exists()


def test_two_heldout_texts_of_one_name(finished, tmp_path):
    files = [tmp_path / name / "dev.txt" for name in "ab"]
    for file, text in zip(files, ("a ff\n", "a ff kk\n")):
        file.parent.mkdir()
        file.write_text(text)
    scores = export_run(finished, tmp_path / "preset", heldout=files)
    assert {name: s["tokens"] for name, s in scores.items()} == {"dev.txt": 2, str(files[1]): 3}


def test_an_average_with_what_does_not_fit(finished, small_preset, tmp_path):
    def export(preset, share):
        export_run(finished, tmp_path / "out", average=(preset, share))

    for share in (0, 1, -0.5, np.nan):
        with pytest.raises(ValueError, match=f"between 0 and 1. Received: {share} of .*preset"):
            export(small_preset, share)
    vocabulary = read_vocabulary(small_preset / "vocab.txt")
    config = dataclasses.replace(CONFIG, n_highway=1)
    model = BiLanguageModel(config, len(vocabulary), n_negatives=None)
    write_language_model(tmp_path / "other", model, vocabulary)
    with pytest.raises(ValueError, match="options of the run. Received: .*other, with BiLMConf"):
        export(tmp_path / "other", 0.5)
    assert not (tmp_path / "out").exists()


def test_a_run_that_diverges_keeps_its_checkpoint(corpus, finished, a_run):
    run = make_run(finished, corpus, 48, resume=True, save_every=20)
    first = run.model.trainable_weights[0]

    def spoil(factor, at):
        def on_train_batch_end(batch, logs):
            if run.facts["step"] == at:
                if BACKEND == "jax":
                    run.model.jax_state_sync()
                first.assign(factor * numpy(first))
                if BACKEND == "jax":
                    run.model._jax_state_synced = True

        return keras.callbacks.LambdaCallback(on_train_batch_end=on_train_batch_end)

    for factor, at, message in (
        (np.nan, 9, "the gradients of the last 29 updates are not finite. Received at step 38."),
        # The update of the checkpoint was left out: it is not written.
        (np.nan, 27, "the gradients of the last 21 updates are not finite. Received at step 48."),
        (np.nan, 28, "a weight is not finite. Received at step 28."),
        (1e30, 28, "the held-out perplexity is (nan|inf). Received at step 28."),
    ):
        run.facts |= run.folder.load(run._variables(), {})
        message = f"{message} Resume the earlier checkpoint in .* with a lower learn"
        with pytest.raises(ValueError, match="Training diverged: " + message):
            run.run([spoil(factor, at)], progress=False)
        assert [row["step"] for row in read_log(finished)] == ["4", "8"]
    model, _, facts = read_run(finished)
    assert facts["step"] == 8
    assert_same_weights(model, read_run(a_run)[0])


def test_a_rate_that_is_absurd(corpus, tmp_path):
    run = make_run(tmp_path / "run", corpus, 60, learning_rate=1e30, save_every=30)
    with pytest.raises(ValueError, match="diverged: .* Begin anew with a lower learning_rate"):
        run.run(progress=False)
    assert not run.folder.has_checkpoint


def test_a_bad_update_is_left_out_and_counted(corpus, finished):
    run = make_run(finished, corpus, 12, resume=True)
    first = run.model.trainable_weights[0]
    good = numpy(first).copy()

    def on_train_batch_end(batch, logs):
        # Only the second update sees weights that are not finite.
        if batch in (0, 1):
            if BACKEND == "jax":
                run.model.jax_state_sync()
            first.assign(good * (np.nan if batch == 0 else 1))

    run.run([keras.callbacks.LambdaCallback(on_train_batch_end=on_train_batch_end)], progress=False)
    [row] = read_log(finished)[2:]
    assert (row["step"], row["skipped"]) == ("12", "1") and run.skipped() == (1, 0)
    assert make_run(finished, corpus, 12, resume=True).skipped() == (1, 0)


def test_read_run(corpus, finished):
    run = make_run(finished, corpus, 8, resume=True)
    model, vocabulary, facts = read_run(finished)
    assert vocabulary == run.vocabulary and facts["step"] == 8 and facts["tokens"] > 0
    assert facts["init_from"] is None
    assert_same_weights(model, run.model)
    run.run(progress=False)  # nothing is left to do
    assert run.facts["step"] == 8
    assert len(read_log(finished)) == 2
    with pytest.raises(
        FileNotFoundError, match="keras-elmo pretrain. Received: .*, without origin"
    ):
        read_run(corpus)
    (finished / "checkpoint.hdf5").unlink()
    with pytest.raises(FileNotFoundError, match="keras-elmo pretrain. Received: .*, without check"):
        read_run(finished)


def test_a_run_that_was_killed_before_its_first_checkpoint(corpus, small_preset, tmp_path):
    def begin(name, **changes):
        return make_run(tmp_path / name, corpus, 6, config=None, **changes)

    settings = {"init_from": small_preset, "own_vocabulary": True, "negatives": None}
    whole = begin("whole", **settings)
    whole.run(progress=False)
    begin("killed", **settings)
    with pytest.raises(ValueError, match="Received .*: another value of seed$"):
        begin("killed", resume=True, seed=3, negatives=None)
    resumed = begin("killed", resume=True, negatives=None)
    assert resumed.vocabulary == whole.vocabulary
    resumed.run(progress=False)
    assert_same_weights(resumed.model, whole.model)
    assert read_run(tmp_path / "killed")[2]["init_from"] == str(small_preset)
    # Without resume it is another run.
    begin("unfinished", **settings)
    (tmp_path / "unfinished" / "tokenizer.json").write_text('{"name": "penn"}')
    assert begin("unfinished", **settings, seed=3).settings == resumed.settings
    assert not (tmp_path / "unfinished" / "tokenizer.json").exists()


KILLED = """
import pathlib, signal, sys
from tests.forks import run_in_fork
from tests.pretraining.test_train import make_run

folder, corpus = sys.argv[1:]
log = pathlib.Path(folder) / "log.csv"
for kills in (True, True, True, False):
    before = log.stat().st_size if log.exists() else 0
    is_due = (lambda: log.exists() and log.stat().st_size > before) if kills else None
    run = lambda: make_run(folder, corpus, 120, resume=True).run(progress=False)
    status = run_in_fork(run, is_due, linger=0.1)
    if status not in ((0, -signal.SIGKILL) if kills else (0,)):
        sys.exit(f"status {status}")
"""


@slow
@pytest.mark.skipif(BACKEND != "tensorflow", reason="one backend is enough: processes start slowly")
def test_killed_at_any_moment(corpus, tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", KILLED, tmp_path / "killed", corpus]
    process = subprocess.Popen(command, cwd=os.getcwd())
    whole = make_run(tmp_path / "whole", corpus, 120)
    whole.run(progress=False)
    assert process.wait() == 0
    killed, _, facts = read_run(tmp_path / "killed")
    assert facts["step"] == 120 and facts["tokens"] == whole.facts["tokens"]
    assert_same_weights(killed, whole.model)
    steps = [row["step"] for row in read_log(tmp_path / "killed")]
    assert steps == [row["step"] for row in read_log(tmp_path / "whole")]
    assert not list((tmp_path / "killed").glob("*.tmp"))


DEVICES = """
import os, shutil, sys
if os.environ["KERAS_BACKEND"] == "jax":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
else:
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
from keras_elmo.pretraining.devices import sharing
from tests.pretraining.test_train import make_shared_run

folder, corpus = sys.argv[1:]
drawn = {"negatives": 8, "dropout": 0.1, "optimizer": "adam"}

def copy(epoch, logs):
    if epoch == 0:
        whole.folder.writer.wait()
        shutil.copytree(folder + "/whole", folder + "/parts")

with sharing(2):
    make_shared_run(folder + "/two", corpus).run(progress=False)
    whole = make_shared_run(folder + "/whole", corpus, **drawn)
    whole.run([keras.callbacks.LambdaCallback(on_epoch_end=copy)], progress=False)
    make_shared_run(folder + "/parts", corpus, **drawn).run(progress=False)
"""
CLIP_NORM = 0.05


def make_shared_run(folder, corpus, **changes):
    """A run whose batches have two parts, on as many devices as there are."""
    changes = {
        **{"negatives": None, "dropout": 0.0, "decay": 0.0, "clip_norm": CLIP_NORM},
        **{"optimizer": "muon", "learning_rate": 0.01},
        **changes,
    }
    return make_run(folder, corpus, 4, resume=True, save_every=2, devices=2, **changes)


def moments_of(folder):
    with h5py.File(folder / "checkpoint.hdf5") as file:
        return {n: x[()] for n, x in file["optimizer"].items() if n.endswith("momentum")}


@slow
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
    # The bound held for the gradient of both devices together: the moments are sums of those.
    ours, others = moments_of(tmp_path / "one"), moments_of(tmp_path / "two")
    assert ours.keys() == others.keys() and len(ours) > 10
    for name, array in ours.items():
        np.testing.assert_allclose(array, others[name], atol=1e-3 * CLIP_NORM, err_msg=name)
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


@slow
def test_fine_tuning_starts_from_the_preset(corpus, tmp_path):
    run = make_run(tmp_path / "run", corpus, 60, save_every=60, negatives=None)
    run.run(progress=False)
    write_language_model(tmp_path / "preset", run.model, run.vocabulary)
    other = write_corpus(tmp_path, seed=1)
    settings = {"config": None, "negatives": None, "init_from": tmp_path / "preset"}
    started = {}
    for own in (False, True):
        folder = tmp_path / f"tuned{own}"
        tuned = make_run(folder, other, 20, save_every=20, own_vocabulary=own, **settings)
        started[own] = tuned.heldout_perplexity()
        assert tuned.vocabulary == run.vocabulary or own
        assert set(tuned.vocabulary) == set(run.vocabulary)
        tuned.run(progress=False)
        assert read_run(folder)[2]["init_from"] == str(tmp_path / "preset")
        resumed = make_run(folder, other, 20, resume=True, config=None, negatives=None)
        assert resumed.vocabulary == tuned.vocabulary
        assert_same_weights(resumed.model, tuned.model)
        assert tuned.heldout_perplexity() < started[own]
    fresh = make_run(tmp_path / "fresh", other, 20, negatives=None)
    assert started[False] < 0.6 * fresh.heldout_perplexity()
    np.testing.assert_allclose(started[True], started[False], rtol=1e-4)


def test_a_frozen_bilm_gets_a_softmax(corpus, small_preset, tmp_path):
    """Of a preset without one, with a vocabulary; resumed it is the same run."""
    preset = shutil.copytree(small_preset, tmp_path / "preset")
    (preset / "softmax.hdf5").unlink()
    settings = {
        "config": None,
        "init_from": preset,
        "own_vocabulary": True,
        "frozen_bilm": True,
        "optimizer": "muon",  # which leaves the softmax to Adam
    }
    whole = make_run(tmp_path / "whole", corpus, 8, **settings)
    assert len(whole.model.trainable_variables) == 2
    before = whole.heldout_perplexity()

    def copy(epoch, logs):
        if epoch == 0:
            whole.folder.writer.wait()
            shutil.copytree(whole.folder.path, tmp_path / "parts")

    whole.run([keras.callbacks.LambdaCallback(on_epoch_end=copy)], progress=False)
    assert whole.heldout_perplexity() < before
    settings |= {"init_from": None, "own_vocabulary": False}
    resumed = make_run(tmp_path / "parts", corpus, 8, resume=True, **settings)
    resumed.run(progress=False)
    assert_same_weights(whole.model, resumed.model)
    bilm = weights_of(read_language_model(small_preset)[0].bilm)
    for name, array in weights_of(read_run(tmp_path / "whole")[0].bilm).items():
        np.testing.assert_array_equal(array, bilm[name], err_msg=name)
    export_run(tmp_path / "whole", tmp_path / "exported")
    card = (tmp_path / "exported" / "README.md").read_text("utf-8")
    assert "Fine-tuned from `preset`." in card and str(tmp_path) not in card


def test_a_run_of_before_a_setting_came(corpus, finished):
    recipe = json.loads((finished / "recipe.json").read_text())
    del recipe["frozen_bilm"]
    (finished / "recipe.json").write_text(json.dumps(recipe))
    assert make_run(finished, corpus, 8, resume=True).recipe.frozen_bilm is False
    del recipe["seed"]
    (finished / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(ValueError, match="the recipe of a run. Received: seed missing or un"):
        make_run(finished, corpus, 8, resume=True)


def test_a_corpus_that_cannot_be_read(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "corpus")
    run = make_run(tmp_path / "run", tmp_path / "corpus", 4)
    for content, message in (
        (b"\n \n", "Corpus expects sentences, one per line. Received: none in"),
        ("é".encode("latin-1"), "Expected UTF-8 text, .* Received: .*train-0000"),
    ):
        for file in (tmp_path / "corpus").glob("train-*"):
            file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            run.run(progress=False)
        with pytest.raises(ValueError, match=message):
            make_run(tmp_path / "new", tmp_path / "corpus", None, epochs=1)


def reverse(path):
    """Reverse the text of a file, but not its size, nor the first three lines of a vocabulary."""
    lines = path.read_text().splitlines()
    n = 3 * (path.name == "vocab.txt")
    path.write_text("\n".join([*lines[:n], *reversed(lines[n:])]) + "\n")


def test_a_run_is_not_resumed_on_something_else(corpus, finished, tmp_path):
    """Not even if all sizes are equal. A run of before this was checked begins to check."""
    checkpoint_file, other = finished / "checkpoint.hdf5", shutil.copytree(corpus, tmp_path / "c")
    for file in other.glob("train-*"):
        reverse(file)
    with pytest.raises(ValueError, match="checkpoint.hdf5 was trained with another corpus. Exp"):
        make_run(finished, other, 12, resume=True)
    reverse(finished / "vocab.txt")
    for read in (lambda: make_run(finished, corpus, 12, resume=True), lambda: read_run(finished)):
        with pytest.raises(ValueError, match="was trained with another vocabulary.*begin anew"):
            read()
    reverse(finished / "vocab.txt")
    with h5py.File(checkpoint_file, "r+") as file:
        facts = json.loads(file.attrs["facts"])
        del facts["digests"]
        file.attrs["facts"] = json.dumps(facts)
    make_run(finished, other, 12, resume=True).run(progress=False)
    make_run(finished, other, 12, resume=True)
    with pytest.raises(ValueError, match="was trained with another corpus"):
        make_run(finished, corpus, 12, resume=True)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"step,\xff\r\n", "Log .*log.csv must be text in UTF-8. Received: .* line 1"),
        (b"\r\n", "Log .*log.csv must start with a row of names, step first. Received"),
        (b"8,1.0\r\n", "Log .*log.csv must start with a row of names, step first. Received"),
        (b"step,tokens,loss,perplexity\r\n8,9,x,1.0\r\n", "Received: .*'loss': 'x'"),
        (b'step,loss\r\n"' + b"9" * 200_000, "Log .*log.csv is damaged .*field larger"),
    ],
)
def test_a_damaged_log(corpus, finished, tmp_path, content, message):
    (finished / "log.csv").write_bytes(content)
    for read in (
        lambda: make_run(finished, corpus, 12, resume=True),
        lambda: export_run(finished, tmp_path / "preset"),
    ):
        with pytest.raises(ValueError, match=message):
            read()


def test_errors(corpus, finished, tmp_path):
    with pytest.raises(ValueError, match="expects a folder of keras-elmo prepare. Received: .*"):
        make_run(tmp_path / "new", tmp_path, 4)
    with pytest.raises(ValueError, match="expects a folder without a run. .* Resume it, or"):
        make_run(finished, corpus, 4)
    for name in ("vocab.txt", "tokenizer.json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text('{"name": "penn"}')
        message = f"{name}, with {name}, which the run would replace. Choose"
        with pytest.raises(ValueError, match=message):
            make_run(tmp_path / name, corpus, 4, resume=True)
    with pytest.raises(ValueError, match="expects the config of a new run, .* config=None, init"):
        make_run(tmp_path / "new", corpus, 4, config=None)
    with pytest.raises(ValueError, match="a preset to start from with frozen_bilm, .*from=None"):
        make_run(tmp_path / "new", corpus, 4, frozen_bilm=True)
    changeable = "except steps, epochs, learning_rate, decay, decay_shape, clip_norm"
    for changes, words in (
        ({"seed": 2}, "seed"),
        ({"optimizer": "muon", "learning_rate": 0.5}, "optimizer"),
        ({"batch_tokens": 65, "negatives": 9}, "batch_tokens, negatives"),
        ({"first_batch_tokens": 8, "ramp_steps": 2}, "first_batch_tokens, ramp_steps"),
        ({"config": dataclasses.replace(CONFIG, lstm_dim=12)}, "lstm_dim"),
        ({"devices": 2}, "devices"),
        ({"frozen_bilm": True}, "frozen_bilm"),
        ({"init_from": "elmo_mini_en"}, "init_from"),
        ({"own_vocabulary": True, "init_from": "x"}, "init_from, own_vocabulary"),
    ):
        message = f"{changeable}. Received .*: another value of {words}$"
        with pytest.raises(ValueError, match=message):
            make_run(finished, corpus, 8, resume=True, **changes)
    with pytest.raises(ValueError, match=f"{changeable}. Received .*: another value of corpus$"):
        make_run(finished, write_corpus(tmp_path, seed=1), 8, resume=True)
    assert json.loads((finished / "recipe.json").read_text())["seed"] == 0
    for name in ("save_every", "devices"):
        with pytest.raises(
            ValueError, match=f"to be a whole number, 1 or more. Received: {name}=0"
        ):
            make_run(tmp_path / "new", corpus, 8, **{name: 0})
    with pytest.raises(ValueError, match="Expected 1 device or more. Received: devices=0"):
        with sharing(0):
            pass
    run = make_run(tmp_path / "other", corpus, 4)
    small = keras.Variable(np.zeros(2), name="small")
    with pytest.raises(ValueError, match="does not fit this model and optimizer, .* Received: "):
        load_checkpoint(finished / "checkpoint.hdf5", {"model": [small]})
    assert run.facts["step"] == 0
