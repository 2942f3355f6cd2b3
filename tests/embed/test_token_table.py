import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_elmo.embed.token_table import TokenTable, read_token_cache, write_token_cache
from keras_elmo.formats.hdf5 import write_arrays
from tests.embed.test_threads import run_all


def representation(token):
    return np.array([len(token), sum(token), 7], "float32")


def make(limit=100, fixed=None):
    computed = []

    def compute(tokens):
        assert len(set(tokens)) == len(tokens)
        computed.extend(tokens)
        return np.array([representation(t) for t in tokens])

    return TokenTable(compute, 3, limit, fixed), computed


tokens = st.binary(max_size=2)


@given(st.lists(st.lists(tokens, max_size=9, unique=True), max_size=9), st.integers(1, 8))
def test_the_limit_never_changes_a_result(batches, limit):
    table, _ = make(limit)
    for batch in batches:
        expected = np.reshape([representation(t) for t in batch], (-1, 3))
        np.testing.assert_array_equal(table.look_up(batch), expected)
        assert len(table) <= limit


def test_every_token_is_computed_once_until_the_limit():
    table, computed = make(limit=3)
    table.look_up([b"a", b"b"])
    table.look_up([b"b", b"c"])
    assert computed == [b"a", b"b", b"c"]
    table.look_up([b"d", b"a"])  # The table still knows a; adding d removes all others.
    table.look_up([b"d"])
    assert computed == [b"a", b"b", b"c", b"d"]
    table.look_up([b"c"])
    assert computed[4:] == [b"c"]


def test_look_up_returns_a_new_array():
    table, _ = make()
    table.look_up([b"a"])[:] = 5
    np.testing.assert_array_equal(table.look_up([b"a"]), [representation(b"a")])
    # A view would keep the rows of all tokens in memory.
    assert all(row.base is None for row in table._remembered.values())


def test_threads_get_the_right_rows_although_tokens_are_forgotten():
    """Other threads remember and forget tokens while one thread computes."""
    generator = np.random.default_rng(0)
    words = [str(i).encode() for i in range(400)]
    batches = [[words[i] for i in generator.permutation(400)[:30]] for _ in range(300)]
    pause = threading.Event()

    def compute(tokens):
        pause.wait(1e-4)
        return np.array([representation(t) for t in tokens])

    table = TokenTable(compute, 3, 50)
    wrong = []

    def work(mine):
        for batch in mine:
            expected = np.array([representation(t) for t in batch])
            if not np.array_equal(table.look_up(batch), expected):
                wrong.append(batch)

    assert not run_all(work, [batches[i::6] for i in range(6)])
    assert not wrong and len(table) <= 50


def test_a_slow_token_does_not_block_other_threads():
    may_go_on, is_computing = threading.Event(), threading.Event()

    def compute(tokens):
        if b"slow" in tokens:
            is_computing.set()
            assert may_go_on.wait(10)
        return np.array([representation(t) for t in tokens])

    table = TokenTable(compute, 3, 50)
    thread = threading.Thread(target=table.look_up, args=([b"slow"],))
    thread.start()
    assert is_computing.wait(10)
    np.testing.assert_array_equal(table.look_up([b"quick"]), [representation(b"quick")])
    may_go_on.set()
    thread.join()


def test_files(tmp_path):
    files = tmp_path / "vocab.txt", tmp_path / "tokens.hdf5"
    words = [b"<S>", "a\u2028b".encode(), "é".encode(), b"\r"]
    write_token_cache(make()[0], words, *files)
    fixed = read_token_cache(*files, 3)
    table, computed = make(1, fixed)
    for batch in (words, [b"new", "é".encode()], [b"other"], words):
        np.testing.assert_array_equal(table.look_up(batch), [representation(t) for t in batch])
    assert computed == [b"new", b"other"] and len(table) == 5
    other = read_token_cache(*files, 3)
    assert other.digest() == fixed.digest()
    other.rows[0] += 1
    assert other.digest() != fixed.digest()
    lines = files[0].read_bytes().split(b"\n")
    files[0].write_bytes(b"\n".join([lines[1], lines[0], *lines[2:]]))
    assert read_token_cache(*files, 3).digest() != fixed.digest()  # equal rows of other tokens
    write_token_cache(make()[0], [b"a\r", b"b"], *files)
    assert list(read_token_cache(*files, 3).places) == [b"a\r", b"b"]


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "a vocabulary of a token or more. Received: no token"),
        ([b"a", b""], "must not be empty or contain .* Received: ''"),
        ([b"a\nb"], "must not be empty or contain .* Received: 'a.nb'"),
        ([b"a", b"b", b"a"], "Vocabulary must contain every token once. Received: 'a' twice"),
        ([b"a", b"\xff"], "A vocabulary must be UTF-8 text. Received: token b'.xff'"),
        ([b"a", b"The\r", b"cat\r"], "than a carriage return, .* Received: 'a.nThe.r.ncat"),
        (["\ufeffThe".encode(), b"cat"], "begin with a byte-order mark, .* Received: '.ufeffThe"),
    ],
)
def test_bad_vocabularies(words, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        write_token_cache(make()[0], words, tmp_path / "v", tmp_path / "e")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arrays",
    [
        {"embedding": np.zeros((2, 4))},
        {"embedding": np.zeros((3, 3))},
        {"embedding": np.zeros((2, 3), int)},
        {"embeddings": np.zeros((2, 3))},
    ],
)
def test_bad_files(arrays, tmp_path):
    files = tmp_path / "v", tmp_path / "e"
    files[0].write_text("a\nb\n")
    write_arrays(files[1], arrays)
    with pytest.raises(ValueError, match=r"Token cache .*e does not fit .*v and .*'embedding' "):
        read_token_cache(*files, 3)
    files[0].write_text("a\na\n")
    write_arrays(files[1], {"embedding": np.zeros((2, 3))})
    with pytest.raises(ValueError, match="Vocabulary .* every token once. Received: 'a' twice"):
        read_token_cache(*files, 3)
    files[0].write_bytes(b"a\r\nb\r\n")
    assert list(read_token_cache(*files, 3).places) == [b"a", b"b"]
    files[0].write_bytes("a\né\n".encode("latin-1"))
    with pytest.raises(ValueError, match="Vocabulary .*v .*UTF-8"):
        read_token_cache(*files, 3)


@pytest.mark.parametrize(
    "value, message",
    [
        (np.nan, "'embedding' contains NaN or infinite values. Write it again"),
        (np.inf, "'embedding' contains NaN or infinite values. Write it again"),
        (1e300, "'embedding' contains values beyond float32. Write it again"),
    ],
)
def test_token_caches_are_finite(value, message, tmp_path):
    (tmp_path / "v").write_text("a\nb\n")
    write_arrays(tmp_path / "e", {"embedding": np.array([[0, 0, 0], [0, value, 0]])})
    with pytest.raises(ValueError, match=f"Token cache .*e .*{message}"):
        read_token_cache(tmp_path / "v", tmp_path / "e", 3)
