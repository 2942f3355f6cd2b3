import threading

import numpy as np

from keras_elmo.embed.token_table import TokenTable


def representation(token):
    return np.array([len(token), sum(token), 7], "float32")


def test_every_token_is_computed_once_until_the_limit():
    computed, table = [], TokenTable(3, 3)

    def compute(tokens):
        assert len(set(tokens)) == len(tokens)
        computed.extend(tokens)
        return np.array([representation(t) for t in tokens])

    def look_up(tokens):
        return table.look_up(tokens, compute)

    look_up([b"a", b"b"])
    look_up([b"b", b"c"])
    assert computed == [b"a", b"b", b"c"]
    look_up([b"d", b"a"])  # The table still knows a; adding d removes all others.
    assert len(table) <= 3
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
