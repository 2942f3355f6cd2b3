"""Add ELMo at the input and at the output of your biRNN, in a tagger.

    python examples/input_and_output.py
    python examples/input_and_output.py --data train.conll --preset DIRECTORY

This is section 3.3 of the paper: the biRNN reads [x_k; ELMo_k], and the classifier reads
[h_k; ELMo_k]. One ElmoLayer feeds two ScalarMix layers, one for each place. --data reads a column
file: first the token, last its tag; an empty line ends a sentence. Runs on every Keras backend.
"""

import argparse
import pathlib
import re

import keras
import numpy as np
from keras import layers

import keras_elmo

BUILT_IN_DATA = """
Ada NAME
met O
Grace NAME
in O
Lisbon PLACE
. O

Grace NAME
left O
for O
Oslo PLACE
. O

In O
Oslo PLACE
it O
rained O
. O

Ada NAME
stayed O
in O
Lisbon PLACE
"""


def read_columns(text):
    """Read the sentences of a column file as lists of (token, tag)."""
    blocks = re.split(r"\n\s*\n", text.strip())
    blocks = [block.splitlines() for block in blocks if not block.startswith("-DOCSTART-")]
    return [[(line.split()[0], line.split()[-1]) for line in block] for block in blocks]


def numbered(lists, numbers):
    """Return an int array with the number of each item; 0 is padding, 1 an unknown item."""
    longest = max(map(len, lists))
    return np.array([[numbers.get(i, 1) for i in x] + [0] * (longest - len(x)) for x in lists])


def build(preset, n_words, n_tags):
    """Return the tagger and its two mixes."""
    words = keras.Input((None,), dtype="int32", name="words")
    characters = keras.Input((None, 50), dtype="int32", name="characters")
    # Without mask_zero=True, Concatenate loses the mask of ElmoLayer.
    x = layers.Embedding(n_words, 32, mask_zero=True)(words)
    representations = keras_elmo.ElmoLayer.from_preset(preset)(characters)
    at_input = keras_elmo.ScalarMix(dropout=0.5, l2=1e-3, name="at_input")
    at_output = keras_elmo.ScalarMix(dropout=0.5, l2=1e-3, name="at_output")

    h = layers.Concatenate()([x, at_input(representations)])
    h = layers.Bidirectional(layers.LSTM(32, return_sequences=True))(h)
    h = layers.Concatenate()([h, at_output(representations)])
    tags = layers.Dense(n_tags, activation="softmax")(h)
    return keras.Model([words, characters], tags), at_input, at_output


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, help="column file: token first, tag last")
    parser.add_argument("--limit", type=int, help="largest number of sentences to read")
    parser.add_argument("--preset", default="elmo_small_en", help="name, directory or .zip")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(arguments.seed)

    text = arguments.data.read_text("utf-8-sig") if arguments.data else BUILT_IN_DATA
    sentences = read_columns(text)[: arguments.limit]
    tokens = [[token for token, _ in sentence] for sentence in sentences]
    tags = [[tag for _, tag in sentence] for sentence in sentences]
    vocabulary = {word: n for n, word in enumerate(sorted({t for x in tokens for t in x}), start=2)}
    tag_set = {tag: n for n, tag in enumerate(sorted({t for x in tags for t in x}))}

    model, *mixes = build(arguments.preset, len(vocabulary) + 2, len(tag_set))
    model.compile(
        keras.optimizers.Adam(1e-2),
        "sparse_categorical_crossentropy",
        weighted_metrics=["accuracy"],
    )
    inputs = [
        numbered(tokens, vocabulary),
        keras.ops.convert_to_numpy(keras_elmo.CharacterTokenizer()(tokens)),
    ]
    # The mask excludes padding from the loss and the accuracy.
    history = model.fit(inputs, numbered(tags, tag_set), epochs=arguments.epochs, verbose=0)
    print(f"loss {history.history['loss'][0]:.3f} -> {history.history['loss'][-1]:.3f}")
    print(f"training accuracy {history.history['accuracy'][-1]:.3f}")
    for mix in mixes:
        print(f"layer weights {mix.name}: {np.round(mix.layer_weights, 3)}")
    best = model.predict(inputs, verbose=0)[0].argmax(-1)
    names = list(tag_set)
    print(" ".join(f"{t}/{names[n]}" for t, n in zip(tokens[0], best)))


if __name__ == "__main__":
    main()
