"""Use one Embedder from many threads, as a web server does, and from forked processes."""

import io
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_elmo import Embedder
from keras_elmo.embed.token_table import TokenTable
from keras_elmo.pretraining.language_model import BiLanguageModel
from tests.conftest import BACKEND, SENTENCES
from tests.embed.conftest import assert_close
from tests.forks import run_in_fork

pytestmark = pytest.mark.backends


def sentences(generator, count):
    def word():
        return "".join(generator.choices("abcdefghijk", k=generator.randint(1, 9)))

    return [[word() for _ in range(generator.choice([3, 6]))] for _ in range(count)]


def run_all(work, parts):
    """Run the work on every part at once, each in a new thread; return the results."""
    start = threading.Barrier(len(parts))

    def run(part):
        start.wait()
        return work(part)

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(run, parts))


@pytest.mark.parametrize("engine", ["keras", "onnxruntime"])
@pytest.mark.parametrize("cache", [5, 40])
def test_many_threads_with_new_words(tiny_preset, cache, engine):
    if engine == "onnxruntime":
        pytest.importorskip("onnxruntime")
    generator = random.Random(cache)
    parts = [[sentences(generator, 2) for _ in range(8)] for _ in range(6)]
    shared = Embedder(tiny_preset, cache=cache, engine=engine)
    found = run_all(lambda part: [shared.embed(call, "top") for call in part], parts)
    single = Embedder(tiny_preset, engine=engine)
    for part, answers in zip(parts, found, strict=True):
        for call, answer in zip(part, answers, strict=True):
            assert_close(answer, single.embed(call, "top"), atol=1e-6)


def test_a_slow_token_does_not_block_other_threads():
    may_continue, is_computing = threading.Event(), threading.Event()

    def compute(tokens):
        if b"slow" in tokens:
            is_computing.set()
            assert may_continue.wait(10)
        return np.ones((len(tokens), 3), "float32")

    table = TokenTable(3, 50)
    thread = threading.Thread(target=table.look_up, args=([b"slow"], compute))
    thread.start()
    assert is_computing.wait(10)
    assert table.look_up([b"quick"], compute).shape == (1, 3)
    may_continue.set()
    thread.join()


def test_programs_are_built_once(tiny_preset):
    embedder = Embedder(tiny_preset)
    bilm, traces = embedder.elmo.bilm, []
    run = bilm.contextualize
    bilm.contextualize = lambda *args, **kwargs: traces.append(1) or run(*args, **kwargs)
    run_all(lambda _: embedder.embed([["a", "b"]], "top"), range(8))
    assert len(embedder._engine._programs) == 2
    assert len(traces) == (8 if BACKEND == "torch" else 1)


# What a forked process may not do with an Embedder and the folder of its pickle.
FORBIDDEN = {
    "embed": lambda embedder, _: embedder.embed(SENTENCES),
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
        signal.alarm(20)  # it may hang
        with pytest.raises(RuntimeError, match="not forked from one that had computed.*spawn"):
            FORBIDDEN[name](embedder, tmp_path)

    assert run_in_fork(child) == 0
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_onnxruntime_computes_in_a_forked_process(tiny_preset):
    pytest.importorskip("onnxruntime")
    embedder = Embedder(tiny_preset, engine="onnxruntime")
    expected = embedder.embed(SENTENCES)

    def child():
        signal.alarm(20)
        for ours in (embedder, Embedder(tiny_preset, engine="onnxruntime")):
            assert_close(ours.embed(SENTENCES), expected, atol=1e-6)

    assert run_in_fork(child) == 0


@pytest.mark.extended
def test_a_thread_may_embed_after_the_main_thread_has_ended(tiny_preset):
    pytest.importorskip("onnxruntime")
    code = f"""
import threading
from keras_elmo import Embedder

embedder = Embedder({str(tiny_preset)!r}, engine="onnxruntime")

def work():
    threading.main_thread().join()
    print(embedder.embed([["a", "b"]])[0].shape)

threading.Thread(target=work).start()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "(3, 2, 12)\n", run.stderr
