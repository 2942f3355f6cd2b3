import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_elmo.checkpoints.files import write_hdf5
from keras_elmo.token_table import TokenTable


def representation(token):
    return np.array([len(token), sum(token.encode()), 7], "float32")


def make(limit=100):
    computed = []

    def compute(tokens):
        assert len(set(tokens)) == len(tokens)
        computed.extend(tokens)
        return np.array([representation(t) for t in tokens])

    return TokenTable(compute, 3, limit), computed


@given(st.lists(st.lists(st.text("abc", max_size=2), max_size=9), max_size=9), st.integers(1, 8))
def test_the_limit_never_changes_a_result(batches, limit):
    table, _ = make(limit)
    for batch in batches:
        places, rows = table.look_up(batch)
        expected = np.reshape([representation(t) for t in batch], (-1, 3))
        np.testing.assert_array_equal(rows[places], expected)
        assert len(table) <= max(limit, len(set(batch)))


def test_every_token_is_computed_once():
    table, computed = make()
    table.look_up(["a", "b", "a"])
    table.look_up(["b", "c"])
    assert computed == ["a", "b", "c"]
    table.forget()
    table.look_up(["c"])
    assert computed == ["a", "b", "c", "c"]


def test_files(tmp_path):
    tokens = ["<S>", "a\u2028b", "é", "\r"]
    files = tmp_path / "vocab.txt", tmp_path / "tokens.hdf5"
    make()[0].write(tokens, *files)
    table, computed = make(limit=1)
    table.load(*files)
    for batch in (tokens, ["new", "é"], ["other"], tokens):
        places, rows = table.look_up(batch)
        np.testing.assert_array_equal(rows[places], [representation(t) for t in batch])
    assert computed == ["new", "other"]


@pytest.mark.parametrize(
    "tokens, message",
    [
        (["a", ""], "one token a line. Received: ''"),
        (["a\nb"], "one token a line. Received: 'a.nb'"),
        (["a", "b", "a"], "Vocabulary must hold every token once. Received: 'a' twice"),
    ],
)
def test_bad_vocabularies(tokens, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make()[0].write(tokens, tmp_path / "v", tmp_path / "e")
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
    (tmp_path / "v").write_text("a\nb\n")
    write_hdf5(tmp_path / "e", arrays)
    with pytest.raises(ValueError, match="Token cache .*e does not fit its vocabulary .* 'embeddi"):
        make()[0].load(tmp_path / "v", tmp_path / "e")
    (tmp_path / "v").write_text("a\na\n")
    write_hdf5(tmp_path / "e", {"embedding": np.zeros((2, 3))})
    with pytest.raises(ValueError, match="Vocabulary .* every token once. Received: 'a' twice"):
        make()[0].load(tmp_path / "v", tmp_path / "e")
