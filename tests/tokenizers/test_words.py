"""WordTokenizer: sentences to tokens."""

import pickle
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_elmo.tokenizers.words import TOKENIZERS, WordTokenizer


def make(name):
    pytest.importorskip("kiwipiepy" if name == "kiwi" else "nltk")
    return WordTokenizer(name)


@pytest.fixture(scope="module")
def kiwi():
    return make("kiwi")


def test_korean_morphemes(kiwi):
    assert kiwi("배가 고프다.") == ["배", "가", "고프", "다", "."]
    # Endings are plain letters, not combining letters, which keyboards do not write.
    assert kiwi("“잘한다”") == ['"', "잘", "하", "ㄴ다", '"']
    assert kiwi("ㅋㅋㅋ") == ["ㅋㅋㅋ"] and kiwi("<S>") == ["<", "S", ">"]
    assert kiwi("") == kiwi(" \n") == []


def test_korean_in_pieces_or_broken(kiwi):
    text = "학교에서 배를 먹었다"
    assert kiwi(unicodedata.normalize("NFD", text)) == kiwi(text)
    assert kiwi("배\ud800를") == kiwi("배를") == ["배", "를"]


@given(st.text())
def test_korean_tokens_stand_between_spaces(kiwi, text):
    assert all(token.split() == [token] for token in kiwi(text))


def test_each_keeps_to_its_own():
    assert make("penn")("She can't (“no”).") == ["She", "ca", "n't", "(", '"', "no", '"', ")", "."]
    assert make("toktok")("Das ist’s & a|b.") == ["Das", "ist", "'", "s", "&", "a", "|", "b", "."]
    assert make("toktok")("R& D\tcosts") == ["R&", "D", "costs"]
    assert WordTokenizer("whitespace")("a\u00a0b  c\t“d.”\n") == ["a\u00a0b", "c", "“d.”"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_they_pickle_and_serve_threads(name):
    tokenizer = make(name)
    again = pickle.loads(pickle.dumps(tokenizer))
    texts = [f"배가 고프다 ({i}). Isn't it?" for i in range(40)]
    expected = [tokenizer(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(again, texts)) == expected


@pytest.mark.parametrize(
    "name, missing, error, message",
    [
        (
            "mecab",
            None,
            ValueError,
            "one of penn, toktok, kiwi, whitespace. Received: name='mecab'",
        ),
        ("kiwi", "kiwipiepy", ImportError, r"need Kiwi: pip install 'keras-elmo\[korean\]'"),
        ("toktok", "nltk.tokenize.toktok", ImportError, r"pip install 'keras-elmo\[pretrain\]'"),
    ],
)
def test_errors(name, missing, error, message, monkeypatch):
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(error, match=message):
        WordTokenizer(name)
