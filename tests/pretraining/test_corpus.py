"""Sentences to batches: what both directions read and predict, and the order."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_elmo import BiLMConfig
from keras_elmo.alphabets import ByteAlphabet
from keras_elmo.pretraining.corpus import Batcher, Corpus
from keras_elmo.pretraining.distribution import batches_of_replicas

VOCABULARY = ["<S>", "</S>", "<UNK>", "a", "b", "c", "long"]
CONFIG = BiLMConfig()
NARROW = BiLMConfig(filters=((1, 2), (3, 4)))
TOKENS = st.sampled_from(["a", "b", "c", "longer", "x", "Ünïcödé", "a" * 70])


def rows_of(tokens, width=50):
    return ByteAlphabet(50).rows([t.encode() for t in tokens])[:, :width]


@settings(max_examples=50)
@given(
    st.lists(st.lists(TOKENS, min_size=1, max_size=9), min_size=1, max_size=20),
    st.integers(1, 3),
    st.integers(8, 40),
    st.booleans(),
)
def test_batches_contain_every_sentence_once_in_both_directions(
    sentences, devices, batch_tokens, fixed_shapes
):
    batcher = Batcher(NARROW, VOCABULARY, batch_tokens, devices, fixed_shapes)
    encoded = batcher.encode(sentences)
    seen = []
    for rows in batcher.arrange(encoded.lengths, np.random.default_rng(0)):
        batch = batcher.batch(encoded, rows)
        seen += list(rows)
        words, targets, weights = batch["words"], batch["targets"], batch["weights"]
        size, _, tokens = words.shape
        assert targets.shape == weights.shape == words.shape
        assert size % devices == 0 and len(batch["characters"]) % devices == 0
        assert (size - devices + 1) * tokens <= max(batch_tokens, tokens)
        np.testing.assert_allclose(weights.sum(axis=(0, 2)), 1, rtol=1e-5)
        assert (weights > 0).sum() == 2 * sum(len(sentences[row]) + 1 for row in rows)
        assert not targets[len(rows) :].any() and not weights[len(rows) :].any()
        width = batch["characters"].shape[1]
        for k, row in enumerate(rows):
            sentence, n = sentences[row], len(sentences[row]) + 1
            assert (weights[k, :, :n] > 0).all() and not targets[k, :, n:].any()
            ids = [VOCABULARY.index(t) if t in VOCABULARY else 2 for t in sentence]
            forward = ["<S>", *sentence], [*ids, 1]
            backward = ["</S>", *sentence[::-1]], [*ids[::-1], 0]
            for d, (read, predicted) in enumerate((forward, backward)):
                characters = batch["characters"][words[k, d, :n]]
                np.testing.assert_array_equal(characters, rows_of(read, width))
                np.testing.assert_array_equal(targets[k, d, :n], predicted)
            assert width >= min(50, max(len(t.encode()) + 2 for t in sentence) + 3)
    assert sorted(seen) == list(range(len(sentences)))


def test_replicas_share_a_batch():
    """Each has its own distinct tokens; the mean of their losses is the loss of the batch."""
    batcher = Batcher(CONFIG, VOCABULARY, devices=2)
    encoded = batcher.encode([["a", "b"], ["a", "c", "long"], ["b"]])
    batch = batcher.batch(encoded, np.arange(3))
    parts = batches_of_replicas(batch, 2)
    for k, part in enumerate(parts):
        read = part["characters"][part["words"]]
        np.testing.assert_array_equal(read, batch["characters"][batch["words"]][k::2])
        np.testing.assert_array_equal(part["targets"], batch["targets"][k::2])
        np.testing.assert_array_equal(part["weights"], 2 * batch["weights"][k::2])
        assert len(part["characters"]) == 5 < len(batch["characters"]) == 6


def test_fixed_shapes_are_few():
    rng = np.random.default_rng(0)
    tokens = ["x" * n for n in rng.integers(1, 20, 3000)]
    tokens = [f"{token}{i}" for i, token in enumerate(tokens)]
    sentences = [rng.choice(tokens, n).tolist() for n in rng.integers(1, 40, 400)]
    shapes = {}
    for fixed in (False, True):
        batcher = Batcher(CONFIG, VOCABULARY, batch_tokens=512, fixed_shapes=fixed)
        encoded = batcher.encode(sentences)
        batches = [batcher.batch(encoded, rows) for rows in batcher.arrange(encoded.lengths)]
        shapes[fixed] = {tuple(x.shape for x in batch.values()) for batch in batches}
    assert len(shapes[True]) <= 6 < 15 < len(shapes[False])


def write_files(folder):
    for i in range(3):
        lines = [" ".join(["a"] * (1 + k % 5) + [f"{i}-{k}"]) for k in range(20)]
        (folder / f"{i}.txt").write_text("\n".join(lines) + "\n\n")
    return sorted(folder.glob("*.txt"))


def take(corpus, n, position=(0, 0, 0)):
    return list(itertools.islice(corpus.batches(position), n))


def test_any_position_can_be_entered(tmp_path):
    files = write_files(tmp_path)
    vocabulary = [*VOCABULARY, *(f"{i}-{k}" for i in range(3) for k in range(20))]
    batcher = Batcher(CONFIG, vocabulary, batch_tokens=30)
    corpus = Corpus(files, batcher, seed=5)
    batches = take(corpus, 60)
    for start in range(59):
        [again] = take(corpus, 1, batches[start][2])
        batch, *rest = batches[start + 1]
        assert list(again[1:]) == rest
        for name in batch:
            np.testing.assert_array_equal(again[0][name], batch[name])
    epochs = [position[0] for _, _, position in batches]
    n = epochs.count(0)
    assert 10 < n < 40 and corpus.steps(1) == n and corpus.steps(0.5) == round(n / 2)
    # Every sentence is read once in every epoch.
    ids = [batch["targets"][:, 0][batch["targets"][:, 0] > 6] for batch, _, _ in batches]
    for epoch in (ids[:n], ids[n : 2 * n]):
        assert sorted(np.concatenate(epoch)) == list(range(7, 67))
    assert sum(tokens for _, tokens, _ in batches[:n]) == 3 * 4 * (2 + 3 + 4 + 5 + 6)
    # Another epoch has another order, and another seed too.
    sets = list(map(set, ids))
    assert sets[:n] != sets[n : 2 * n]
    other = take(Corpus(files, batcher, seed=6), n)
    assert [set(b["targets"][b["targets"] > 6]) for b, _, _ in other] != sets[:n]


def predictions(batch):
    """Return, for each direction, all predictions as texts: "tokens read > token to predict"."""
    found = []
    for d in range(2):
        texts = []
        for row in range(len(batch["words"])):
            characters = batch["characters"][batch["words"][row, d]]
            # Boundary tokens have no bytes.
            read = ["".join(chr(c - 1) for c in row[1:] if c < 256) or "|" for row in characters]
            for step in np.flatnonzero(batch["weights"][row, d]):
                target = VOCABULARY[batch["targets"][row, d, step]]
                texts.append(f"{' '.join(read[: step + 1])} > {target}")
        found.append(sorted(texts))
    return found


def test_a_long_sentence_is_read_in_pieces_without_false_boundaries(tmp_path):
    """The boundary tokens are read at every cut, but nothing is predicted across it."""
    (tmp_path / "a.txt").write_text("a b c a b c c\nb a\n")
    corpus = Corpus([tmp_path / "a.txt"], Batcher(CONFIG, VOCABULARY), max_tokens=3)
    [(batch, tokens, _)] = take(corpus, 1)
    assert tokens == 9
    forward, backward = predictions(batch)
    # The pieces are "a b", "c a" and "b c c".
    expected = ["| > a", "| a > b", "| c > a", "| b > c", "| b c > c", "| b c c > </S>"]
    assert forward == sorted([*expected, "| > b", "| b > a", "| b a > </S>"])
    expected = ["| b > a", "| b a > <S>", "| a > c", "| > c", "| c > c", "| c c > b"]
    assert backward == sorted([*expected, "| > a", "| a > b", "| a b > <S>"])
    np.testing.assert_allclose(batch["weights"].sum(axis=(0, 2)), 1, rtol=1e-6)
    np.testing.assert_allclose(batch["weights"][batch["weights"] > 0], 1 / 9, rtol=1e-6)


def test_files_without_sentences(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n")
    (tmp_path / "b.txt").write_text("a b\n")
    both = Corpus([tmp_path / "a.txt", tmp_path / "b.txt"], Batcher(CONFIG, VOCABULARY))
    epochs = [position[0] for _, _, position in take(both, 3)]
    assert epochs == [0, 1, 2]
    assert both.steps(3) == 3
    empty = Corpus([tmp_path / "a.txt"], Batcher(CONFIG, VOCABULARY))
    with pytest.raises(ValueError, match="Corpus expects sentences. Received: none in"):
        take(empty, 1)


def test_long_and_short_batches_come_in_any_order():
    lengths = np.repeat(np.arange(1, 21), 8)
    batcher = Batcher(CONFIG, VOCABULARY, batch_tokens=40)

    def longest(*rng):
        return [lengths[rows].max() for rows in batcher.arrange(lengths, *rng)]

    shuffled = longest(np.random.default_rng(0))
    assert len(shuffled) > 20 and longest() == sorted(longest(), reverse=True)
    assert shuffled not in (sorted(shuffled), sorted(shuffled, reverse=True))


def test_lone_surrogates_are_left_out():
    encoded = Batcher(CONFIG, VOCABULARY).encode([["\ud800x", "a"]])
    np.testing.assert_array_equal(encoded.characters[2:], rows_of(["x", "a"]))
