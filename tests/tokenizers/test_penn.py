"""Penn Treebank tokens: by hand, against NLTK, and Python against TensorFlow graphs."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_elmo.tokenizers.penn import penn_tokens, penn_tokens_in_graph
from tests.conftest import only_tensorflow

# What the rules ask about: letters, digits, quotes, brackets, periods, blanks, suffixes.
PIECES = st.sampled_from(
    list("aZ90 .,:;'\"`-!?()[]{}<>*&$%#@\n\té—–«»…")
    + [" Mr. ", "U.S. ", "n't ", "'s ", "'ll", " '", "cannot ", "gonna", "'tis ", "..", "film. "]
)
TEXTS = st.lists(PIECES, max_size=25).map("".join)
# Letters with an unusual other case, and the characters that the rules use as marks.
UNUSUAL = ["\u017f", " '\u017f ", "\u212a", "\u0130", "\u0131", "\u212b", "\x01", "\x02"]


@pytest.mark.parametrize(
    "text, tokens",
    [
        ("", ""),
        ("A fine film. Too long! \"No,\" he said.", 'A fine film . Too long ! " No , " he said .'),
        ("good story. bad acting.", "good story . bad acting ."),
        ("Mr. Smith of Acme Inc. left the U.S. in Jan. 2005.",
         "Mr. Smith of Acme Inc. left the U.S. in Jan. 2005 ."),
        ("It cost $3.88 (3,36 euros), didn't it?", "It cost $ 3.88 ( 3,36 euros ) , did n't it ?"),
        ("They'll say 'I cannot' and we've gone.", "They 'll say ' I can not ' and we 've gone ."),
        ("Well ... the years 1939–1945 -- so what...",
         "Well ... the years 1939 – 1945 -- so what ..."),
        ("gimme what you wanna have, 'tis yours", "gim me what you wan na have , ' tis yours"),
        ("He left. (She did not.) \"Why?\" I asked.",
         'He left . ( She did not . ) " Why ? " I asked .'),
        ("a\x02b\x01c", "a b c"),
    ],
)  # fmt: skip
def test_by_hand(text, tokens):
    assert penn_tokens(text) == tokens.split()


@only_tensorflow
@settings(max_examples=300)
@given(
    st.lists(
        TEXTS | st.lists(PIECES | st.sampled_from(UNUSUAL), max_size=9).map("".join),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
@example(["the '\u017f cannot", "\u212acannot 'd"], True)
def test_graph_gives_the_tokens_of_python(texts, split_sentences):
    import tensorflow as tf

    rows = penn_tokens_in_graph(tf.constant(texts), split_sentences).to_list()
    found = [[token.decode() for token in row] for row in rows]
    assert found == [penn_tokens(text, split_sentences) for text in texts]


@settings(max_examples=500)
@given(TEXTS)
def test_a_sentence_gives_the_tokens_of_nltk(text):
    tokenize = pytest.importorskip("nltk").tokenize.NLTKWordTokenizer().tokenize
    text = " ".join(text.split())
    expected = ['"' if token in ("``", "''") else token for token in tokenize(text)]
    assert penn_tokens(text, split_sentences=False) == expected
