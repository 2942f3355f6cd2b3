"""Use one Embedder from many threads, as a web server does, and from forked processes."""

import io
import os
import pickle
import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from keras_elmo import Embedder
from keras_elmo.pretraining.language_model import BiLanguageModel
from tests.conftest import BACKEND, SENTENCES
from tests.forks import run_in_fork

pytestmark = pytest.mark.backends


def sentences(generator, count):
    def word():
        return "".join(generator.choices("abcdefghijk", k=generator.randint(1, 9)))

    return [[word() for _ in range(generator.choice([3, 6]))] for _ in range(count)]


def run_all(work, parts):
    """Run the work on every part at once, each in a new thread; return the errors."""
    errors, start = [], threading.Barrier(len(parts))

    def run(part):
        start.wait()
        try:
            work(part)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize("engine", ["keras", "onnxruntime"])
@pytest.mark.parametrize("cache", [5, 40])
def test_many_threads_with_new_words(tiny_preset, cache, engine):
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    generator = random.Random(cache)
    calls = [sentences(generator, 2) for _ in range(48)]
    single = Embedder(tiny_preset, engine=engine)
    expected = [single.embed(call, "top") for call in calls]
    shared = Embedder(tiny_preset, cache=cache, engine=engine)
    found = [None] * len(calls)

    def work(numbers):
        for i in numbers:
            found[i] = shared.embed(calls[i], "top")

    assert not run_all(work, [range(k, len(calls), 6) for k in range(6)])
    for arrays, others in zip(found, expected, strict=True):
        for array, other in zip(arrays, others, strict=True):
            np.testing.assert_allclose(array, other, atol=1e-6)


def test_programs_are_built_once(tiny_preset):
    embedder = Embedder(tiny_preset)
    bilm, traces = embedder.elmo.bilm, []
    run = bilm.contextualize
    bilm.contextualize = lambda *args, **kwargs: traces.append(1) or run(*args, **kwargs)
    assert not run_all(lambda _: embedder.embed([["a", "b"]], "top"), range(8))
    assert len(embedder._engine._programs) == 2
    assert len(traces) == (8 if BACKEND == "torch" else 1)


def in_fork(work):
    """Return the exit status of some work in a forked process, which may hang."""
    return run_in_fork(lambda: (signal.alarm(20), work())[1])


# What a forked process may not do with an Embedder and the folder of its pickle.
FORBIDDEN = {
    "embed": lambda embedder, _: embedder.embed(SENTENCES),
    "tokens": lambda embedder, _: embedder.embed_tokens(["new"]),
    "file": lambda embedder, folder: embedder.embed_file(io.StringIO("a b"), folder / "out.hdf5"),
    "new": lambda embedder, _: Embedder(embedder.elmo),
    "pickle": lambda embedder, _: pickle.dumps(embedder),
    "unpickle": lambda _, folder: pickle.loads((folder / "pickle").read_bytes()).embed(SENTENCES),
    "language model": lambda embedder, _: BiLanguageModel(embedder.config, 9),
    "layer": lambda embedder, _: embedder.elmo(np.zeros((1, 1, 13), "int32")),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forked_process_is_told_to_spawn(tiny_preset, tmp_path, name, monkeypatch):
    """It would wait forever for threads that only its parent has."""
    # PyTorch with one thread could compute in it.
    monkeypatch.setattr("keras_elmo.utils.forks._is_single_threaded", lambda: False)
    embedder = Embedder(tiny_preset)
    embedder.embed(SENTENCES)
    (tmp_path / "pickle").write_bytes(pickle.dumps(embedder))

    def child():
        with pytest.raises(RuntimeError, match="not forked from one that had computed.*spawn"):
            FORBIDDEN[name](embedder, tmp_path)

    assert in_fork(child) == 0
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_onnxruntime_computes_in_a_forked_process(tiny_preset):
    pytest.importorskip("onnxruntime")
    embedder = Embedder(tiny_preset, engine="onnxruntime")
    expected = embedder.embed(SENTENCES)

    def child():
        for ours in (embedder, Embedder(tiny_preset, engine="onnxruntime")):
            for array, other in zip(ours.embed(SENTENCES), expected, strict=True):
                np.testing.assert_allclose(array, other, atol=1e-6)

    assert in_fork(child) == 0


@pytest.mark.extended
def test_a_thread_may_embed_after_the_main_thread_has_ended(tiny_preset):
    pytest.importorskip("onnxruntime")
    code = f"""
import threading
from keras_elmo import Embedder

def work():
    threading.main_thread().join()
    for embedder in embedders:
        print(embedder.embed([["a", "b"]])[0].shape)

embedders = [Embedder({str(tiny_preset)!r}, engine=engine) for engine in ("keras", "onnxruntime")]
for embedder in embedders:
    embedder.embed([["a"]])
threading.Thread(target=work).start()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "(3, 2, 12)\n" * 2, run.stderr
