"""Train a sentence classifier with ElmoLayer, ScalarMix and a biLSTM; save, reload, predict.

    python examples/quickstart.py
    python examples/quickstart.py --data train.txt --limit 1000 --preset DIRECTORY

--data reads Penn Treebank trees, one per line. The label of the root is the class (0 to 4), as
in the Stanford Sentiment Treebank. Without --data the script uses ten built-in sentences.
--preset takes the name of a bundled biLM, or a directory or .zip with options.json and
weights.hdf5. Runs on every Keras backend.
"""

import argparse
import pathlib
import tempfile

import keras
import nltk
import numpy as np
from keras import layers

import keras_elmo

BUILT_IN_TREES = """
(4 (2 An) (4 absolute) (2 delight) (2 .))
(4 (2 The) (2 cast) (4 shines) (2 from) (2 start) (2 to) (2 finish) (2 .))
(3 (2 Funny) (2 and) (3 warm) (2 .))
(3 (2 A) (3 pleasant) (2 evening) (2 out) (2 .))
(2 (2 The) (2 film) (2 lasts) (2 two) (2 hours) (2 .))
(2 (2 It) (2 is) (2 set) (2 in) (2 Lisbon) (2 .))
(1 (2 Rather) (1 dull) (2 in) (2 the) (2 middle) (2 .))
(1 (2 The) (2 jokes) (1 fall) (1 flat) (2 .))
(0 (2 A) (0 complete) (0 waste) (2 of) (2 an) (2 evening) (2 .))
(0 (2 Painfully) (0 bad) (2 ,) (2 and) (0 long) (2 .))
"""


# Treebanks escape brackets and quotes; the biLM was trained on plain ones.
PLAIN = {"-LRB-": "(", "-RRB-": ")", "``": '"', "''": '"'}


def read_trees(text, limit):
    """Return the tokens and the root labels of Penn Treebank trees."""
    lines = [line for line in text.splitlines() if line.strip()]
    trees = [nltk.Tree.fromstring(line) for line in lines[:limit]]
    sentences = [[PLAIN.get(token, token) for token in tree.leaves()] for tree in trees]
    return sentences, np.array([int(tree.label()) for tree in trees])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, help="file of Penn Treebank trees")
    parser.add_argument("--limit", type=int, help="largest number of trees to read")
    parser.add_argument("--preset", default="elmo_small_en", help="name, directory or .zip")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(arguments.seed)

    text = arguments.data.read_text("utf-8-sig") if arguments.data else BUILT_IN_TREES
    sentences, labels = read_trees(text, arguments.limit)
    tokenizer = keras_elmo.CharacterTokenizer()
    ids = tokenizer(sentences)

    elmo = keras_elmo.ElmoLayer.from_preset(arguments.preset)
    mix = keras_elmo.ScalarMix(dropout=0.5, l2=1e-3)
    model = keras.Sequential(
        [
            keras.Input((None, 50), dtype="int32"),
            elmo,
            mix,
            layers.Bidirectional(layers.LSTM(64)),
            layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile(
        keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    model.summary()
    history = model.fit(ids, labels, epochs=arguments.epochs, batch_size=32, verbose=2)
    print(f"training accuracy {history.history['accuracy'][-1]:.3f} on {len(labels)} sentences")
    print("layer weights", np.round(mix.layer_weights, 3), "gamma", f"{float(mix.gamma):.3f}")

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "classifier.keras"
        model.save(path)
        print(f"saved {path.stat().st_size / 1e6:.1f} MB, biLM included")
        reloaded = keras.saving.load_model(path)
    new = tokenizer([["What", "a", "waste", "."], ["An", "absolute", "delight", "!"]])
    predicted = reloaded.predict(new, verbose=0)
    assert np.allclose(predicted, model.predict(new, verbose=0), atol=1e-6)
    print("classes of two new sentences", predicted.argmax(-1))


if __name__ == "__main__":
    main()
