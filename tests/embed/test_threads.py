"""One Embedder serves the threads of a web server."""

import random
import threading

import numpy as np
import pytest

from keras_elmo import ElmoLayer, Embedder
from tests.conftest import BACKEND, make_arrays, make_config, write_preset


def sentences(generator, count):
    def word():
        return "".join(generator.choices("abcdefghijk", k=generator.randint(1, 9)))

    return [[word() for _ in range(generator.choice([3, 6]))] for _ in range(count)]


def run_all(work, parts):
    """Run the work on each part in a thread of its own, all at once; return the errors."""
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


def test_threads_while_the_weights_go_back_and_forth(tiny_preset, tmp_path):
    """A call that a change overlaps may mix; once the changes are over nothing old is left."""
    write_preset(tmp_path, make_config(), make_arrays(make_config(), seed=1))
    layer = ElmoLayer.from_preset(tiny_preset)
    shared = Embedder(layer, cache=30)
    calls = [sentences(random.Random(i), 2) for i in range(10)]

    def work(number):
        if number == 0:
            for _ in range(5):
                layer.load_preset(tmp_path)
                layer.load_preset(tiny_preset)
        else:
            for call in calls * 3:
                shared.embed(call, "top")

    assert not run_all(work, range(5))
    single = Embedder(tiny_preset)
    for call in calls:
        for array, other in zip(shared.embed(call), single.embed(call), strict=True):
            np.testing.assert_allclose(array, other, atol=1e-6)
