"""Checkpoints that are written beside the training."""

import threading
import time

import keras
import numpy as np
import pytest

from keras_elmo.pretraining import checkpoint
from keras_elmo.pretraining.checkpoint import CheckpointWriter, load_checkpoint
from tests.conftest import numpy, room_for

pytestmark = pytest.mark.backends


def load(path):
    into = keras.Variable(np.zeros(3), name="w")
    return load_checkpoint(path, {"model": [into]}), numpy(into.value).tolist()


@pytest.fixture
def may_write(monkeypatch):
    """An event that a slow disk waits for."""
    event, write = threading.Event(), checkpoint.write_arrays

    def slow_disk(*arguments):
        assert event.wait(60)
        write(*arguments)

    monkeypatch.setattr(checkpoint, "write_arrays", slow_disk)
    return event


def test_training_goes_on_while_it_writes(tmp_path, may_write):
    """The file contains the values from the time when the save began."""
    path, facts = tmp_path / "c.hdf5", {"step": 1}
    writer = CheckpointWriter(path)
    variable = keras.Variable(np.ones(3), name="w")
    writer.save({"model": [variable]}, facts)
    variable.assign(5 * np.ones(3))
    facts["step"] = 5
    assert not path.exists()
    may_write.set()
    writer.wait()
    assert load(path) == ({"step": 1}, [1, 1, 1])
    writer.save({"model": [variable]}, facts)
    writer.save({"model": [variable]}, {"step": 6})  # waits for the one before
    assert load(path)[1] == [5, 5, 5]
    writer.wait()
    assert load(path)[0] == {"step": 6}


def check_at_last(writer):
    for _ in range(6000):
        writer.check()
        time.sleep(0.01)


def test_who_is_interrupted_still_waits(tmp_path, may_write, monkeypatch):
    def interrupt(futures):
        raise KeyboardInterrupt

    writer = CheckpointWriter(tmp_path / "c.hdf5")
    writer.save({"model": [keras.Variable(np.ones(3), name="w")]}, {})
    writer.check()  # does not wait
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.concurrent.futures, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.wait()
    may_write.set()
    writer.wait()
    assert load(tmp_path / "c.hdf5")[1] == [1, 1, 1]


def test_a_checkpoint_that_cannot_be_written(tmp_path):
    """The error comes with the next one, or at the end, and once."""
    variables = {"model": [keras.Variable(np.ones(3), name="w")]}
    for then in (lambda writer: writer.save(variables, {}), CheckpointWriter.wait, check_at_last):
        writer = CheckpointWriter(tmp_path / "none" / "c.hdf5")
        writer.save(variables, {})
        with pytest.raises(OSError, match="There is no folder .*none for c.hdf5$"):
            then(writer)
        writer.wait()


def test_a_full_disk(tmp_path):
    """The checkpoint before it stays, and the error names the file."""
    path, variable = tmp_path / "c.hdf5", keras.Variable(np.ones(3), name="w")
    writer = CheckpointWriter(path)
    writer.save({"model": [variable]}, {"step": 1})
    writer.wait()
    with room_for(1000):
        writer.save({"model": [variable]}, {"step": 2})
        with pytest.raises(OSError, match="File too large: .*c.hdf5"):
            writer.wait()
    assert load(path)[0] == {"step": 1} and [*tmp_path.iterdir()] == [path]


def test_nothing_is_assigned_of_a_checkpoint_with_nan(tmp_path):
    writer = CheckpointWriter(tmp_path / "c.hdf5")
    values = np.ones(3), np.array([1, np.nan, 1])
    writer.save({"model": [keras.Variable(x, name="w") for x in values]}, {})
    writer.wait()
    into = [keras.Variable(np.zeros(3), name="w") for _ in values]
    with pytest.raises(ValueError, match="NaN or infinite"):
        load_checkpoint(tmp_path / "c.hdf5", {"model": into})
    assert not any(numpy(variable.value).any() for variable in into)
