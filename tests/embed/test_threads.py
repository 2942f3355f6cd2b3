"""Use one Embedder from many threads, as a web server does."""

import random
import threading

import numpy as np
import pytest

from keras_elmo import Embedder
from tests.conftest import BACKEND


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


@pytest.mark.parametrize("cache", [5, 40])
def test_many_threads_with_new_words(tiny_preset, cache):
    generator = random.Random(cache)
    calls = [sentences(generator, 2) for _ in range(48)]
    single = Embedder(tiny_preset)
    expected = [single.embed(call, "top") for call in calls]
    shared = Embedder(tiny_preset, cache=cache)
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
    lstm, traces = embedder.elmo.bilm.lstms[0], []
    run = lstm.run
    lstm.run = lambda *args, **kwargs: traces.append(1) or run(*args, **kwargs)
    assert not run_all(lambda _: embedder.embed([["a", "b"]], "top"), range(8))
    assert len(embedder._engine._programs) == 2
    assert len(traces) == (8 if BACKEND == "torch" else 1)
