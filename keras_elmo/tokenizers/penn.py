"""Penn Treebank tokens by one list of regular expressions, for Python and for TensorFlow graphs.

The expressions use only what Python's ``re`` and TensorFlow's RE2 share, so the two give the
same tokens. They follow the conventions of the Penn Treebank, with plain quotes and brackets.
"""

import re

from keras_elmo.utils.typing import Tensor

_WORD = "0-9A-Za-z_ªµº\u00c0-\u1fff\u2c00-\u2fff\u3040-\ud7ff\uf900-\ufdff"  # letters and digits
BLANK = "[\t-\r\x1c-\x20\x85\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
# Periods after these words, and after a single capital letter, seldom end a sentence.
_ABBREVIATIONS = (
    "Mr Mrs Ms Dr Prof St Mt Ft Gen Rep Reps Sen Sens Gov Lt Col Sgt Capt Cmdr Maj Rev Hon Pres "
    "Jr Sr Inc Ltd Co Cos Corp Bros Assn Dept Univ No Nos Fig Figs Vol Art Sec Ch Op Ave Blvd Rd "
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec Mon Tue Tues Wed Thu Thurs Fri Sat Sun "
    "vs etc cf al ca eg ie viz approx est esp incl dept govt min max ed eds vol pp ff fig "
    "ft lb lbs oz sq hr hrs sec trans rev resp"
).replace(" ", "|")
_CLOSING = "[\"')\\]}>]*"
_OPENING = "[\"'(\\[{<]*"


def _any_case(pattern: str) -> str:
    """Return a pattern for both cases of its letters. ``(?i)`` of RE2 also reads ſ as s."""
    return re.sub("[a-z]", lambda letter: f"[{letter[0]}{letter[0].upper()}]", pattern)


def _compiled(*rules: tuple[str, str]) -> tuple[tuple[re.Pattern, str], ...]:
    return tuple((re.compile(pattern, re.ASCII), rewrite) for pattern, rewrite in rules)


SENTENCE_RULES = _compiled(
    (BLANK + "|[\x01\x02]", " "),
    # Mark the blank behind an abbreviation, so that no sentence ends there.
    (rf"\b({_ABBREVIATIONS}|[A-Za-z])\. ", "\\1.\x01"),
    (rf"([.!?]{_CLOSING}) ({_OPENING}[^a-z .,;:!?)\]}}>\"'-])", "\\1\n\\2"),
    # Reviews and chats often write sentences without capitals.
    (rf"([a-z][a-z]\.{_CLOSING}) ([a-z])", "\\1\n\\2"),
    (rf"([!?]{_CLOSING}) ([a-z])", "\\1\n\\2"),
    ("\x01", " "),
)
_START, _END = f"(^|[^{_WORD}])", f"([^{_WORD}]|$)"
_CONTRACTIONS = (
    *(
        (f"{_START}({_any_case(first)})({_any_case(second)}){end}", r"\1 \2 \3 \4")
        for first, second, end in (
            ("can", "not", _END),
            ("gim|lem", "me", _END),
            ("gon", "na", _END),
            ("wan", "na", "( )"),
            ("got", "ta", _END),
            ("d", "'ye", _END),
            ("more", "'n", _END),
        )
    ),
    (f" ('[tT])({_any_case('is|was')}){_END}", r" \1 \2 \3"),
)
_SUFFIX = _any_case("re|ve|ll") + "|[mMtTsSdDnN]"
# ``(?m)`` lets ^ and $ match at the ends of every sentence, which are line breaks by now.
TOKEN_RULES = _compiled(
    ("(«|`+)", r" \1 "),
    ('(?m)^"', "``"),
    ("``", " `` "),
    (r"""([ (\[{<])("|'')""", r"\1 `` "),
    # An apostrophe that opens a word is a token; one that begins a suffix stays with it.
    (f"{_START}'({_SUFFIX}){_END}", "\\1\x02\\2\\3"),
    (f"{_START}'({_SUFFIX}){_END}", "\\1\x02\\2\\3"),
    (rf"(^|[^{_WORD}])'([{_WORD}])", r"\1' \2"),
    ("\x02", "'"),
    # The period that ends the sentence, maybe before closing quotes and brackets.
    (r"""(?m)([^.])\.([\])}>"'» ]*)$""", r"\1 . \2 "),
    ("([:,])([^0-9])", r" \1 \2"),
    ("(?m)([:,])$", r" \1 "),
    (r"(\.\.+)", r" \1 "),
    ("([;@#$%&?!\u2012-\u2015])", r" \1 "),
    ("([^'])' ", r"\1 ' "),
    (r"([*\[\](){}<>])", r" \1 "),
    ("--", " -- "),
    ("(?m)$", " "),
    ("(»)", r" \1 "),
    ("''|\"|``", ' " '),
    (" +", " "),
    ("([^' \n])('[sSmMdD]|') ", r"\1 \2 "),
    ("([^' \n])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", r"\1 \2 "),
    *_CONTRACTIONS,
    *_CONTRACTIONS,  # twice, because a match takes the character that the next one begins with
)


def cut_sentences(text: str) -> list[str]:
    """Return the sentences of a text."""
    return _rewritten(text, SENTENCE_RULES).split("\n")


def penn_tokens(text: str, split_sentences: bool = True) -> list[str]:
    """Return the Penn Treebank tokens of a text."""
    return _rewritten(text, _rules(split_sentences)).split()


def _rules(split_sentences: bool) -> tuple:
    return (SENTENCE_RULES if split_sentences else SENTENCE_RULES[:1]) + TOKEN_RULES


def _rewritten(text: str, rules: tuple) -> str:
    for pattern, rewrite in rules:
        text = pattern.sub(rewrite, text)
    return text


def penn_tokens_in_graph(texts: Tensor, split_sentences: bool = True) -> Tensor:
    """Return the tokens of a ``tf.string`` tensor (batch,) as a ragged tensor, in any graph."""
    import tensorflow as tf

    for pattern, rewrite in _rules(split_sentences):
        texts = tf.strings.regex_replace(texts, pattern.pattern, rewrite)
    return tf.strings.split(texts)
