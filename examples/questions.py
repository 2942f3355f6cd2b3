"""Answer questions on passages, in SQuAD's format, with BiDAF, with or without ELMo.

    python examples/questions.py --train train-v1.1.json --test dev-v1.1.json
    python examples/questions.py --train xquad.en.json --folds 5
    python examples/questions.py --train xquad.en.json --folds 5 --no-elmo

An answer is a span of the passage. --test scores a file, and every tenth article of --train chooses
the epoch. --folds K splits the articles of --train into K parts and trains K times: each time one
part is the test, the next part chooses the epoch, and the others train. The model is BiDAF (Seo et
al., 2017): words and characters, a highway network, a biLSTM, attention from the passage to the
question and back, two biLSTMs, and a biLSTM for the end of the answer. ELMo joins as [x_k; ELMo_k]
at the input of the first biLSTM and as [h_k; ELMo_k] at its output. The frozen biLM reads each
sentence once. The scores are SQuAD's F1 and exact match (EM), over all folds; --scores records the
layer weights of the last fold. Runs on every Keras backend.
"""

import collections
import functools
import json
import pathlib
import re
import string

import keras
import numpy as np
from cached_layers import open_elmo
from keras import layers, ops
from parts import JIT, TextLayers, layer_folder, make_parser, padded_batches, report, train
from word_vectors import PADDING, ids_of, tokens_and_spans, words_and_embedding

import keras_elmo

LETTERS = 20  # characters of a word that the character CNN reads
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


class AttentionFlow(layers.Layer):
    """Attend from each token of the passage to the question, and from the question to the passage.

    The similarity is ``s_ij = w [h_i; u_j; h_i * u_j]``. Each passage token gets
    ``[h; u~; h * u~; h * h~]``, where ``u~`` is the attended question and ``h~`` the passage,
    attended by ``max_j s_ij`` (Seo et al., 2017, section 2).
    """

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def build(self, context_shape, question_shape):
        self.kernels = [
            self.add_weight(shape=(context_shape[-1],), name=name) for name in ("h", "u", "both")
        ]

    def call(self, context, question, context_mask, question_mask):
        of_h, of_u, both = self.kernels
        similar = ops.einsum("bih,bjh->bij", context * both, question)
        similar += ops.sum(context * of_h, -1)[:, :, None] + ops.sum(question * of_u, -1)[:, None]
        similar += -1e4 * (1 - ops.cast(question_mask, similar.dtype))[:, None]
        to_question = ops.einsum("bij,bjh->bih", ops.softmax(similar), question)
        largest = ops.max(similar, axis=2) - 1e4 * (1 - ops.cast(context_mask, similar.dtype))
        to_context = ops.einsum("bi,bih->bh", ops.softmax(largest), context)[:, None]
        return ops.concatenate(
            [context, to_question, context * to_question, context * to_context], axis=-1
        )

    def compute_output_shape(self, context_shape, question_shape):
        return (*context_shape[:-1], 4 * context_shape[-1])


def build(embedding, elmo_shape, units, dropout):
    """Return BiDAF: a model of two texts; its outputs are the scores of the start and the end."""

    def birnn():
        return layers.Bidirectional(layers.LSTM(units, return_sequences=True))

    # Both texts share these layers and their weights.
    width = embedding.output_dim + units
    letters = layers.Embedding(262, 8), layers.Conv2D(units, (1, 5), padding="same")
    highways = [(layers.Dense(width, "relu"), layers.Dense(width, "sigmoid")) for _ in range(2)]
    drop, encoder = layers.Dropout(dropout), birnn()
    mixes = {}
    if elmo_shape:
        mixes = {x: keras_elmo.ScalarMix(l2=1e-3, name=f"at_{x}") for x in ("input", "output")}
    inputs, encoded = {}, []
    for text in ("context", "question"):
        words = inputs[text] = keras.Input((None,), dtype="int32", name=text)
        characters = keras.Input((None, LETTERS), dtype="int32", name=f"{text}_characters")
        inputs[f"{text}_characters"] = characters
        mask = ops.not_equal(words, PADDING)
        h = ops.max(letters[1](letters[0](characters)), axis=2)
        h = layers.Concatenate()([embedding(words), h])
        for transform, gate in highways:
            open_share = gate(h)
            h = open_share * transform(h) + (1 - open_share) * h
        if mixes:
            name = f"{text}_layers"
            given = inputs[name] = keras.Input((None, *elmo_shape), name=name)
            h = layers.Concatenate()([h, mixes["input"](given, mask=mask)])
        h = encoder(drop(h), mask=mask)
        if mixes:
            h = layers.Concatenate()([h, mixes["output"](given, mask=mask)])
        encoded.append((drop(h), mask))

    (context, mask), (question, question_mask) = encoded
    flow = AttentionFlow()(context, question, mask, question_mask)
    # A narrow layer keeps the next biLSTM small with ELMo, too.
    flow = layers.Dense(4 * units, activation="relu")(flow)
    m = birnn()(drop(birnn()(drop(flow), mask=mask)), mask=mask)
    outputs = {}
    for name, h in (("start", m), ("end", birnn()(m, mask=mask))):
        scores = layers.Dense(1)(drop(layers.Concatenate()([flow, h])))[..., 0]
        outputs[name] = scores - 1e4 * (1 - ops.cast(mask, scores.dtype))
    return keras.Model(inputs, outputs)


def splits(examples, tested, folds):
    """Yield the indices of the examples to train on, to choose the epoch with, and to test on."""
    for fold in range(folds or 1):
        parts = [], [], []
        for i, example in enumerate(examples):
            if folds:
                part = {fold: 2, (fold + 1) % folds: 1}.get(example["article"] % folds, 0)
            else:
                part = 2 if i >= tested else example["article"] % 10 == 0
            parts[part].append(i)
        if not all(parts):
            raise ValueError(
                "Expected articles to train on, to choose the epoch with, and to test on. "
                f"Received: {', '.join(str(len(part)) for part in parts)} questions. Give files "
                "with more articles, or use fewer folds"
            )
        yield parts


def score(model, examples, batches):
    """Return the mean F1 and the mean exact match of a model."""
    scores = []
    for i, found in zip(batches.chosen, batches.predict(model)):
        example = examples[i]
        span = best_span(found["start"], found["end"], len(example["context"]))
        first, last = (example["spans"][n] for n in span)
        scores.append(compare(example["text"][first[0] : last[1]], example["answers"]))
    return np.mean(scores, axis=0)


def main(arguments=None):
    parser = make_parser(__doc__, epochs=12, patience=3)
    parser.add_argument("--train", type=pathlib.Path, required=True, help="file in SQuAD's format")
    parser.add_argument("--test", type=pathlib.Path, help="file in SQuAD's format")
    parser.add_argument("--folds", type=int, help="cross-validate on --train, 3 folds or more")
    parser.add_argument("--units", type=int, default=100, help="units of the biLSTMs")
    parser.add_argument("--dropout", type=float, default=0.2)
    settings = parser.parse_args(arguments)
    if bool(settings.test) == bool(settings.folds) or settings.folds in (1, 2):
        parser.error("expected --test, or --folds of 3 or more")
    keras.utils.set_random_seed(settings.seed)

    examples = read_squad(settings.train)
    tested = len(examples)
    examples += read_squad(settings.test) if settings.test else []
    texts = {name: [x[name] for x in examples] for name in ("context", "question")}
    targets = {name: [x[name] for x in examples] for name in ("start", "end")}
    lengths = list(map(len, texts["context"]))
    all_parts = [*splits(examples, tested, settings.folds)]
    tokenizer = keras_elmo.CharacterTokenizer(LETTERS)
    with layer_folder(settings.cache) as folder:
        elmo = open_elmo(settings.preset)
        inputs, shape = {}, None
        for name, text in texts.items():
            inputs[f"{name}_characters"] = [np.asarray(tokenizer([x]))[0] for x in text]
            if elmo:
                inputs[f"{name}_layers"] = TextLayers(elmo, text, folder)
                shape = inputs[f"{name}_layers"].shape

        folds, sizes = [], []
        for parts in all_parts:
            known, *others = ([examples[i][x] for i in part for x in texts] for part in parts)
            vocabulary, embedding = words_and_embedding(settings.vectors, known, sum(others, []))
            inputs |= {name: ids_of(vocabulary, text) for name, text in texts.items()}
            batches = [
                padded_batches(inputs, targets, lengths, settings.batch_size, seed, part)
                for part, seed in zip(parts, (settings.seed, None, None))
            ]
            model = build(embedding, shape, settings.units, settings.dropout)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            optimizer = keras.optimizers.Adam(settings.learning_rate, global_clipnorm=5.0)
            model.compile(optimizer, {"start": loss, "end": loss}, jit_compile=JIT)

            on_dev = functools.partial(score, model, examples, batches[1])
            facts = train(model, batches[0], on_dev, settings)
            folds.append([score(model, examples, x) for x in batches[1:]])
            sizes.append([len(x) for x in parts[1:]])
            f1, exact = folds[-1][1]
            print(f"fold {len(folds)}: test F1 {f1:.4f}, EM {exact:.4f}", flush=True)
    dev, test = np.average(folds, axis=0, weights=np.stack([sizes, sizes], axis=2))
    facts |= {"exact": 100 * test[1], "folds_f1": [float(100 * x[1][0]) for x in folds]}
    print(f"test EM {test[1]:.4f}")
    report(settings, model, **{**facts, "dev": dev[0], "test": test[0]})


if __name__ == "__main__":
    main()
