"""Files in SQuAD's format and their scores, for questions.py."""

import collections
import json
import re
import string

import numpy as np
from words import tokens_and_spans

LONGEST = 15  # tokens of the longest answer, as in DrQA (Chen et al., 2017)


def read_squad(path):
    """Read a file in SQuAD's format.

    Returns:
        List of dicts, one per question: ``article``, its number; ``context`` and ``question``,
        tokens; ``text`` and ``spans``, the text of the passage and the characters of its tokens;
        ``answers``, texts; ``start`` and ``end``, tokens of the first answer.
    """
    examples = []
    for number, article in enumerate(json.loads(path.read_text("utf-8"))["data"]):
        for paragraph in article["paragraphs"]:
            context, spans = tokens_and_spans(paragraph["context"])
            for question in paragraph["qas"]:
                if not question["answers"]:
                    raise ValueError(
                        "Expected an answer to every question, as in SQuAD 1.1. Received: "
                        f"question {question['id']} of {path}, without one"
                    )
                answer = question["answers"][0]
                first = answer["answer_start"]
                last = first + len(answer["text"])
                inside = [n for n, (a, b) in enumerate(spans) if a < last and b > first]
                if not inside:
                    raise ValueError(
                        "Expected an answer inside the passage. "
                        f"Received: question {question['id']} of {path}"
                    )
                examples.append(
                    {
                        "article": number,
                        "context": context,
                        "question": tokens_and_spans(question["question"])[0],
                        "text": paragraph["context"],
                        "spans": spans,
                        "answers": [answer["text"] for answer in question["answers"]],
                        "start": inside[0],
                        "end": inside[-1],
                    }
                )
    return examples


def normalize(text):
    """Return the words of an answer as SQuAD compares them: no case, punctuation or articles."""
    text = "".join(x for x in text.lower() if x not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def compare(found, answers):
    """Return SQuAD's F1 and exact match of an answer: the best over the answers of people."""
    scores = []
    for answer in answers:
        one, two = normalize(found), normalize(answer)
        common = sum((collections.Counter(one) & collections.Counter(two)).values())
        f1 = 2 * common / (len(one) + len(two)) if one and two else float(one == two)
        scores.append((f1, float(one == two)))
    return np.max(scores, axis=0)


def best_span(start, end, length):
    """Return the tokens of the span with the highest probability, of at most LONGEST tokens."""
    scores = np.add.outer(start[:length], end[:length])
    allowed = np.tril(np.triu(np.ones((length, length))), LONGEST - 1)
    return np.unravel_index(np.where(allowed, scores, -np.inf).argmax(), scores.shape)
