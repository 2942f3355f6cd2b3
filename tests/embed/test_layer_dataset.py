import json
import os
import pathlib
import pickle
import subprocess
import sys

import h5py
import keras
import numpy as np
import pytest

from keras_elmo import ElmoLayer, Embedder, LayerDataset, ScalarMix
from tests.conftest import BACKEND, numpy, tokenize
from tests.embed.conftest import STORED


def test_training_on_a_layer_file(embedder, layers, tmp_path):
    """A ScalarMix over stored layers equals one over the biLM in the model."""
    path, sentences = layers, STORED
    tags = [[len(token) % 3 for token in sentence] for sentence in sentences]
    data = LayerDataset(path, tags, batch_size=4)
    assert len(data) == 3
    inputs, targets = data[1]
    assert inputs["layers"].shape == (4, *targets.shape[1:], 3, 12)
    np.testing.assert_array_equal(inputs["mask"].sum(1), [len(s) for s in sentences[4:8]])

    layers = keras.Input((None, 3, 12), name="layers")
    mask = keras.Input((None,), dtype="bool", name="mask")
    mixed = ScalarMix(layer_norm=True)(layers, mask=mask)
    tagged = keras.layers.Dense(3, activation="softmax")(mixed)
    model = keras.Model({"layers": layers, "mask": mask}, tagged)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(data, epochs=2, verbose=0)

    ids = tokenize(sentences[4:8], 13)
    inside = ElmoLayer.from_hdf5(*embedder_files(embedder, tmp_path))(ids)
    mix = next(layer for layer in model.layers if isinstance(layer, ScalarMix))
    found = numpy(model.layers[-1](mix(inside)))
    expected = numpy(model(inputs))
    real = inputs["mask"]
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)


def embedder_files(embedder, folder):
    embedder.elmo.save_hdf5(folder / "preset")
    return folder / "preset" / "options.json", folder / "preset" / "weights.hdf5"


def test_orders_and_labels(layers):
    count = len(STORED)
    shuffled = LayerDataset(layers, list(range(count)), batch_size=count, shuffle=True, seed=1)
    first = shuffled[0][1]
    assert shuffled[0][1].tolist() == first.tolist()
    shuffled.on_epoch_end()
    second = shuffled[0][1]
    assert first.tolist() != second.tolist() and sorted(first) == sorted(second)
    assert set(LayerDataset(layers)[0]) == {"layers", "mask"}
    assert LayerDataset(layers).sentences == STORED
    with pytest.raises(IndexError, match="LayerDataset has batches 0 to 0. Received: 3"):
        shuffled[3]
    for name in ("labels", "sample_weight"):
        labels = [0] * count if name == "sample_weight" else None
        for wrong, message in (
            ([0], f"{name} for each of the {count} sentences of the file. Received: 1 {name}"),
            ({"label": [0] * count}, f"{name} to be a list, .*of a table. Received: dict"),
            (3, f"{name} to be a list, .* Received: int"),
            (b"0" * count, f"{name} to be a list, .* Received: bytes"),
            (["a"] * count, f"{name} to be numbers, or all of them lists of numbers. Received:"),
            ([1, None] * (count // 2), "or all of them lists of numbers. Received:"),
            ([0, [0]] * (count // 2), "or all of them lists of numbers. Received:"),
            ([[[0, 1], [1]]] * count, "or all of them lists of numbers. Received:"),
        ):
            with pytest.raises(ValueError, match=message):
                LayerDataset(layers, **{"labels": labels, name: wrong})
    with pytest.raises(ValueError, match="sample_weight with labels. Received: no labels"):
        LayerDataset(layers, sample_weight=[1] * count)
    with pytest.raises(ValueError, match="one number as the label of sentence 0, or a list of 5"):
        LayerDataset(layers, [[0]] * count)[0]
    with pytest.raises(ValueError, match="batch_size to be a whole number, 1 or more. Rec.*=0"):
        LayerDataset(layers, batch_size=0)


def test_one_hot_labels_and_weights(layers):
    count = len(STORED)
    weights = list(np.linspace(0, 1, count))
    classes = np.eye(5)[np.arange(count) % 5]
    _, labels, found = LayerDataset(layers, classes, batch_size=count, sample_weight=weights)[0]
    np.testing.assert_array_equal(labels, classes)
    np.testing.assert_array_equal(found, weights)
    tags = [[[1, 0] if len(token) % 2 else [0, 1] for token in sentence] for sentence in STORED]
    ones = [[1.0] * len(sentence) for sentence in STORED]
    data = LayerDataset(layers, tags, batch_size=count, sample_weight=ones)
    inputs, labels, found = data[0]
    assert labels.shape == (*inputs["mask"].shape, 2)
    np.testing.assert_array_equal(labels.sum(-1), inputs["mask"])
    np.testing.assert_array_equal(found, inputs["mask"])
    assert labels[0, :5].tolist() == tags[0]


@pytest.mark.parametrize("chosen", [1, "top", "average", [0.2, 0.5, 0.3]], ids=str)
def test_chosen_layers(embedder, layers, text, tmp_path, chosen):
    count = len(STORED)
    found = LayerDataset(layers, batch_size=count, layers=chosen)[0]["layers"]
    embedder.embed_file(text, tmp_path / "one.hdf5", chosen, progress=False)
    expected = LayerDataset(tmp_path / "one.hdf5", batch_size=count)[0]["layers"]
    assert found.shape[2:] == (1, 12)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    with pytest.raises(ValueError, match="a number from -1 to 0, .* Received: layers=1"):
        LayerDataset(tmp_path / "one.hdf5", layers=1)


def token_model(shape):
    inputs = {
        "layers": keras.Input((None, *shape), name="layers"),
        "mask": keras.Input((None,), dtype="bool", name="mask"),
    }
    mixed = ScalarMix()(inputs["layers"], mask=inputs["mask"])
    return keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(mixed))


@pytest.mark.backends("torch")
def test_predictions_of_tokens(layers):
    """Batches of one length can be joined on every backend."""
    model = token_model((3, 12))
    data = LayerDataset(layers, batch_size=4, length=40)
    found = model.predict(data, verbose=0)
    assert found.shape == (len(STORED), 40, 2)
    for row, i in zip(found, range(len(STORED)), strict=True):
        expected = numpy(model(LayerDataset(layers).gather([i])))[0]
        np.testing.assert_allclose(row[: len(expected)], expected, atol=1e-5)
    with pytest.raises(ValueError, match="at most length=10 tokens. Received: 27 in sentence 6"):
        LayerDataset(layers, batch_size=len(STORED), length=10)[0]


@pytest.mark.backends("torch")
@pytest.mark.parametrize("how", [{}, {"workers": 3}], ids=str)
def test_steps_that_are_not_a_pass(embedder, tmp_path, how):
    """Labels stay with their layers, and without workers every pass is complete."""
    count = 40
    sentences = [["a"] * (1 + i) for i in range(count)]
    arguments = embedder, sentences, list(range(1, count + 1))
    data = LayerDataset.from_sentences(
        *arguments, file=tmp_path / "l.hdf5", progress=False, batch_size=2, shuffle=True, **how
    )
    seen = []

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs):
            return self.dense(keras.ops.sum(inputs["layers"], axis=(1, 2)))

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            lengths = keras.ops.sum(keras.ops.cast(x["mask"], "int32"), axis=1)
            seen.extend(zip(numpy(lengths).tolist(), numpy(y).tolist(), strict=True))
            return keras.ops.mean(y_pred)

    model = Model()
    model.compile("sgd", run_eagerly=True)
    model.fit(data, epochs=16, steps_per_epoch=5, verbose=0)
    assert len(seen) == 16 * 5 * 2 and all(length == label for length, label in seen)
    orders = [[label for _, label in seen[i : i + count]] for i in range(0, len(seen), count)]
    if not how:  # Keras begins each epoch with batch 0 for workers
        assert all(sorted(order) == list(range(1, count + 1)) for order in orders)
        assert len(set(map(tuple, orders))) == 4


def test_labels_in_columns_of_tables(embedder, tmp_path):
    """The index of a shuffled table is in another order than its rows."""
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    table = pandas.DataFrame({"tokens": [["a"], ["b", "c"], ["d"]], "label": [0, 1, 2]})
    table = table.iloc[[1, 2, 0]]
    arguments = embedder, table["tokens"], table["label"]
    data = LayerDataset.from_sentences(*arguments, file=tmp_path / "layers.hdf5")
    assert data.sentences == [["b", "c"], ["d"], ["a"]] and data[0][1].tolist() == [1, 2, 0]
    for labels in ([0.5, 1, 2], [[1, 2], [3], [4]]):
        found = LayerDataset(tmp_path / "layers.hdf5", pyarrow.array(labels))[0][1]
        np.testing.assert_array_equal(found, LayerDataset(tmp_path / "layers.hdf5", labels)[0][1])
    for labels in (table[["label"]], pyarrow.Table.from_pandas(table[["label"]])):
        with pytest.raises(ValueError, match="one column of a table. Received: (DataFrame|Table)"):
            LayerDataset(tmp_path / "layers.hdf5", labels)


@pytest.mark.backends("torch")
def test_first_batches_of_one_width(embedder, tmp_path):
    """Keras on TensorFlow would assume this width for all batches."""
    sentences = [["a"] * length for length in (1, 3, 3, 2, 5)]
    tags = [[1] * len(sentence) for sentence in sentences]
    arguments = embedder, sentences, tags
    file = tmp_path / "layers.hdf5"
    data = LayerDataset.from_sentences(*arguments, file=file, progress=False, batch_size=2)
    second = 4 if BACKEND == "tensorflow" else 3
    assert [batch[1].shape[1] for batch in data] == [3, second, 5]
    assert data[1][0]["mask"].sum(axis=1).tolist() == [3, 2] and not data[1][1][:, 3:].any()
    assert data.gather([2, 3])[1].shape[1] == 3
    model = token_model((3, 12))
    model.compile("sgd", "sparse_categorical_crossentropy")
    assert np.isfinite(model.fit(data, verbose=0).history["loss"][0])
    half = LayerDataset(file, [[0] * len(x) for x in sentences[:-1]] + [[0.5] * 5], batch_size=5)
    assert half[0][1].max() == 0.5


def test_gathering_chosen_sentences(embedder, text, tmp_path):
    path = tmp_path / "layers.hdf5"
    embedder.embed_file(text, path, progress=False)
    sentences = STORED
    count = len(sentences)
    data = LayerDataset(path, list(range(count)))
    inputs, labels = data.gather([2, 0, 2])
    assert labels.tolist() == [2, 0, 2]
    for row, i in enumerate([2, 0, 2]):
        expected = np.moveaxis(embedder.embed([sentences[i]])[0], 0, 1)
        length = len(sentences[i])
        assert inputs["mask"][row].sum() == length
        np.testing.assert_allclose(inputs["layers"][row, :length], expected, atol=1e-5)
        assert not inputs["layers"][row, length:].any()
    mask = np.arange(count) < 2
    for wrong in ([], [count], [-1], mask, [1.0], [[0], [1]], 0):
        with pytest.raises(ValueError, match=f"gather expects indices of 0 to {count - 1}, one"):
            data.gather(wrong)


# Sentences, and the names that other programs give their arrays.
TOKENS = [["What", "is", "1/2", "."], ["7"], ["Café", "a"], ["no", "file", "."], ["/", "or"], ["7"]]


def allennlp_name(tokens):
    return " ".join(tokens)


def many_langs_name(tokens):
    return "\t".join(tokens).replace(".", "$period$").replace("/", "$backslash$")


def write_layers(path, names, sentences, n_layers=3):
    """Write random arrays by name. Return them by name."""
    rng, shape = np.random.default_rng(0), (n_layers,) if n_layers else ()
    arrays = {
        name: rng.normal(size=(*shape, len(tokens), 4)).astype("float32")
        for name, tokens in zip(names, sentences, strict=True)
    }
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file.create_dataset(name, data=array)
    return arrays


def test_sentences_are_in_the_order_of_their_names(tmp_path):
    """hdf5 makes groups at slashes."""
    sentences = [["a/b", "c"], ["aa"], ["c"], ["d/c", "d", "e"]]
    write_layers(tmp_path / "layers.hdf5", map(" ".join, sentences), sentences)
    with LayerDataset(tmp_path / "layers.hdf5") as data:
        assert data.sentences == sentences
        assert data[0]["mask"].sum(axis=1).tolist() == [2, 1, 1, 3]


@pytest.mark.parametrize("n_layers", [3, 0], ids=["all", "top"])
@pytest.mark.parametrize("name_of", [allennlp_name, many_langs_name])
def test_files_whose_names_are_sentences(tmp_path, name_of, n_layers):
    sentences = [["1"], ["0"], *TOKENS[:4]]
    names = list(map(name_of, sentences))
    arrays = write_layers(tmp_path / "layers.hdf5", names, sentences, n_layers)
    with LayerDataset(tmp_path / "layers.hdf5", batch_size=9) as data:
        assert sorted(data.sentences) == sorted(sentences)
        [inputs] = data
        for row, tokens in enumerate(data.sentences):
            expected = arrays[name_of(tokens)].reshape(n_layers or 1, -1, 4)
            found = inputs["layers"][row, inputs["mask"][row]]
            np.testing.assert_array_equal(found, np.moveaxis(expected, 0, 1))


@pytest.mark.parametrize("n_layers", [3, 0], ids=["all", "average"])
def test_files_of_allennlp_with_the_sentences(tmp_path, n_layers):
    path, names = tmp_path / "layers.hdf5", [str(i) for i in range(len(TOKENS))]
    arrays = write_layers(path, names, TOKENS, n_layers)
    index = {allennlp_name(tokens): name for name, tokens in zip(names, TOKENS)}
    with h5py.File(path, "a") as file:
        stored = file.create_dataset("sentence_to_index", (1,), h5py.string_dtype())
        stored[0] = json.dumps(index)
    data = LayerDataset(path, range(len(TOKENS)), batch_size=9)
    [(inputs, labels)] = data
    assert inputs["layers"].shape == (6, 4, n_layers or 1, 4)
    np.testing.assert_array_equal(inputs["layers"][3, :3, -1], arrays["3"].reshape(-1, 3, 4)[-1])
    # AllenNLP stores the last one of equal sentences.
    assert data.sentences == [TOKENS[0], None, *TOKENS[2:]]
    data.close()
    write_layers(path, names, TOKENS)
    assert LayerDataset(path).sentences is None


def test_a_sentence_that_begins_with_a_slash(tmp_path):
    sentences = [["/", "or"], *TOKENS[2:4], ["one"]]
    write_layers(tmp_path / "layers.hdf5", map(allennlp_name, sentences), sentences)
    assert len(LayerDataset(tmp_path / "layers.hdf5", [0, 1, 2, 3])[0][1]) == 4


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({}, r"with 0 names, such as \[\]"),
        ({"embedding": (5, 4)}, "with 1 names, such as .'embedding'"),
        ({"softmax/W": (7, 4), "softmax/b": (7,)}, "with . names, such as .'softmax'"),
        ({"0": (2, 3, 4, 5)}, "with . names, such as .'0'"),
        ({"1": (3, 2, 4), "2": (3, 2, 4)}, "with . names, such as .'1', '2'"),
        ({"doc/0": (3, 2, 4), "doc/1": (3, 2, 4)}, "with . names, such as .'doc'"),
    ],
)
def test_hdf5_files_with_something_else(tmp_path, shapes, message):
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        for name, shape in shapes.items():
            file.create_dataset(name, data=np.zeros(shape, "float32"))
    with pytest.raises(ValueError, match=f"by their sentences. Received: .*other.hdf5 {message}"):
        LayerDataset(tmp_path / "other.hdf5")


@pytest.mark.parametrize("dtype", ["float16", ">f4"])
def test_reading_a_line_again(tmp_path, dtype):
    normal = np.random.default_rng(0).normal
    arrays = [normal(size=(3, tokens, 4)).astype(dtype) for tokens in (2, 0, 5)]
    with h5py.File(tmp_path / "layers.hdf5", "w") as file:
        for i, array in enumerate(arrays):
            file.create_dataset(str(i), data=array, compression="gzip" if array.size else None)
    with LayerDataset(tmp_path / "layers.hdf5") as data:
        for _ in range(2):
            inputs = data.gather([2, 1, 0])
            assert inputs["mask"].sum(axis=1).tolist() == [5, 0, 2]
            for row, array in zip(inputs["layers"], arrays[::-1], strict=True):
                np.testing.assert_array_equal(row[: array.shape[1]], np.moveaxis(array, 0, 1))


def test_pickling_and_closing(embedder, text, tmp_path):
    path = tmp_path / "layers.hdf5"
    embedder.embed_file(text, path, progress=False)
    data = LayerDataset(path, batch_size=4)
    first = data[0]["layers"]
    again = pickle.loads(pickle.dumps(data))
    np.testing.assert_array_equal(again[0]["layers"], first)
    file = data._file._file._file  # of h5py
    data.close()
    data.close()
    assert not file
    with data:
        np.testing.assert_array_equal(data[0]["layers"], first)
        file = data._file._file._file
    assert not file


@pytest.mark.extended
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_worker_processes(embedder, text, tmp_path, method):
    embedder.embed_file(text, tmp_path / "layers.hdf5", progress=False)
    (tmp_path / "train.py").write_text(
        "import multiprocessing, sys\n"
        "import keras, keras_elmo\n"
        "if __name__ == '__main__':\n"
        f"    multiprocessing.set_start_method('{method}')\n"
        "    how = {'workers': 1, 'use_multiprocessing': True, 'max_queue_size': 2}\n"
        "    data = keras_elmo.LayerDataset('layers.hdf5', list(range(10)), batch_size=4, **how)\n"
        "    data[0]\n"
        "    layers = keras.Input((None, 3, 12), name='layers')\n"
        "    mask = keras.Input((None,), dtype='bool', name='mask')\n"
        "    x = keras.layers.GlobalAveragePooling1D()(keras_elmo.ScalarMix()(layers, mask=mask))\n"
        "    model = keras.Model({'layers': layers, 'mask': mask}, keras.layers.Dense(1)(x))\n"
        "    model.compile('sgd', 'mse')\n"
        "    model.fit(data, epochs=1, verbose=0)\n"
        "    data.close()\n"
        "    print('trained')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2])}
    run = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.stdout == "trained\n", run.stderr


@pytest.mark.parametrize(
    "array, message",
    [
        (
            np.full((3, 5, 12), np.inf),
            "Layer file .* Received: '4' contains NaN or inf.* Embed the text again",
        ),
        (np.zeros((3, 5, 11)), r"shape \(3, tokens, 12\) for sentence 4 of .* \(3, 5, 11\)"),
        (np.zeros((5, 12)), r"for sentence 4 .* Received: float64 of shape \(5, 12\)"),
        (np.zeros((3, 5, 12), int), "Layer file .* '4' must contain floats, found dtype int64"),
        (None, "all from 0 on, .* Received: .*hdf5 with 9 names, such as .'0', '1', '2'"),
    ],
)
def test_sentences_that_do_not_fit(embedder, text, tmp_path, array, message):
    path = tmp_path / "layers.hdf5"
    embedder.embed_file(text, path, progress=False)
    with h5py.File(path, "a") as file:
        del file["4"]
        if array is not None:
            file["4"] = array
    with pytest.raises(ValueError, match=message):
        LayerDataset(path)[0]


def test_sentences_are_embedded_once(tiny_preset, tmp_path, monkeypatch):
    ours, file = Embedder(tiny_preset), tmp_path / "train.hdf5"
    labels, sentences = list(range(len(STORED))), STORED
    first = LayerDataset.from_sentences(ours, iter(sentences), labels, file=file, batch_size=4)
    inputs, found = first[0]
    assert found.tolist() == [0, 1, 2, 3] and inputs["layers"].shape[-2:] == (3, 12)
    monkeypatch.setattr(ours._engine, "represent", None)
    again = LayerDataset.from_sentences(ours, sentences, labels, file=file, batch_size=4)
    np.testing.assert_array_equal(again[0][0]["layers"], inputs["layers"])
    [array] = Embedder(tiny_preset).embed(sentences[:1])
    np.testing.assert_allclose(
        np.moveaxis(inputs["layers"][0, : len(sentences[0])], 1, 0), array, atol=2e-3
    )
    with pytest.raises(ValueError, match="train.hdf5, which contains other sentences"):
        LayerDataset.from_sentences(ours, sentences[:-1], file=file)
    marked = ["\ufeffa", "b"]  # a byte-order mark belongs to a file, never to a token
    other = Embedder(tiny_preset)
    assert LayerDataset.from_sentences(other, [marked], file=tmp_path / "m").sentences == [marked]
    with pytest.raises(ValueError, match="expects an Embedder. Received: embedder='elmo_mini_en'"):
        LayerDataset.from_sentences("elmo_mini_en", sentences, file=file)
    for wrong in ("a b", "a\n", "", b"a"):
        with pytest.raises(ValueError, match="no white space.* Received: b?'.*' in sentence 1"):
            LayerDataset.from_sentences(ours, [["a"], [wrong]], file=tmp_path / "no.hdf5")
    for texts in (["Good", "Bad"], ["今天天气很好"], [None]):
        with pytest.raises(ValueError, match="lists of tokens. Received: .* in sentence 0. Split"):
            LayerDataset.from_sentences(ours, texts, file=tmp_path / "no.hdf5")
