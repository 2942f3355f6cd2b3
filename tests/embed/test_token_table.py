import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keras_elmo.embed.token_table import TokenTable


def representation(token):
    return np.array([len(token), sum(token), 7], "float32")


def make(limit=100):
    computed = []

    def compute(tokens):
        assert len(set(tokens)) == len(tokens)
        computed.extend(tokens)
        return np.array([representation(t) for t in tokens])

    table = TokenTable(3, limit)
    return lambda tokens: table.look_up(tokens, compute), computed, table


tokens = st.binary(max_size=2)


@given(st.lists(st.lists(tokens, max_size=9, unique=True), max_size=9), st.integers(1, 8))
def test_the_limit_never_changes_a_result(batches, limit):
    look_up, _, table = make(limit)
    for batch in batches:
        expected = np.reshape([representation(t) for t in batch], (-1, 3))
        np.testing.assert_array_equal(look_up(batch), expected)
        assert len(table) <= limit


def test_every_token_is_computed_once_until_the_limit():
    look_up, computed, table = make(limit=3)
    look_up([b"a", b"b"])
    look_up([b"b", b"c"])
    assert computed == [b"a", b"b", b"c"]
    look_up([b"d", b"a"])  # The table still knows a; adding d removes all others.
    look_up([b"d"])
    assert computed == [b"a", b"b", b"c", b"d"]
    look_up([b"c"])
    assert computed[4:] == [b"c"]
    look_up([b"c"])[:] = 5  # a new array; a view would keep the rows of all tokens in memory
    np.testing.assert_array_equal(look_up([b"c"]), [representation(b"c")])
    assert all(row.base is None for row in table._remembered.values())


def test_a_slow_token_does_not_block_other_threads():
    may_go_on, is_computing = threading.Event(), threading.Event()

    def compute(tokens):
        if b"slow" in tokens:
            is_computing.set()
            assert may_go_on.wait(10)
        return np.array([representation(t) for t in tokens])

    table = TokenTable(3, 50)
    thread = threading.Thread(target=table.look_up, args=([b"slow"], compute))
    thread.start()
    assert is_computing.wait(10)
    np.testing.assert_array_equal(table.look_up([b"quick"], compute), [representation(b"quick")])
    may_go_on.set()
    thread.join()
