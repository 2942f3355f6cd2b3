import pickle

import h5py
import keras
import numpy as np
import pytest

from keras_elmo import Embedder, LayerDataset, ScalarMix
from tests.conftest import BACKEND, numpy, tokenize
from tests.embed.conftest import STORED


def test_training_on_a_layer_file(embedder, layers):
    """A ScalarMix over stored layers equals one over the biLM in the model."""
    tags = [[len(token) % 3 for token in sentence] for sentence in STORED]
    data = LayerDataset(layers, tags, batch_size=4)
    assert len(data) == 3
    inputs, targets = data[1]
    assert inputs["layers"].shape == (4, *targets.shape[1:], 3, 12)
    np.testing.assert_array_equal(inputs["mask"].sum(1), [len(s) for s in STORED[4:8]])

    layers = keras.Input((None, 3, 12), name="layers")
    mask = keras.Input((None,), dtype="bool", name="mask")
    mixed = ScalarMix(layer_norm=True)(layers, mask=mask)
    tagged = keras.layers.Dense(3, activation="softmax")(mixed)
    model = keras.Model({"layers": layers, "mask": mask}, tagged)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(data, epochs=2, verbose=0)

    ids = tokenize(STORED[4:8], 13)
    inside = embedder.elmo(ids)
    mix = next(layer for layer in model.layers if isinstance(layer, ScalarMix))
    found = numpy(model.layers[-1](mix(inside)))
    expected = numpy(model(inputs))
    real = inputs["mask"]
    np.testing.assert_allclose(found[real], expected[real], atol=1e-5)


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
            ([0], f"{name} for each of the {count} sentences of .* Received: 1 {name}"),
            (
                {"label": [0] * count},
                f"{name} for each of .* one column of a table. Received: dict",
            ),
            (3, f"{name} for each of .* Received: int"),
            (["a"] * count, f"{name} to be numbers. Received: ..a"),
            ([1, None] * (count // 2), f"{name} to be numbers. Received: .1, None"),
            ([[[0, 1], [1]]] * count, "inhomogeneous shape"),
            ([[[0, 1]], [0, 1]] * (count // 2), f"{name} of one shape for all tokens"),
            ([0, [0]] * (count // 2), f"{name} of one shape for all tokens"),
        ):
            with pytest.raises(ValueError, match=message):
                LayerDataset(layers, **{"labels": labels, name: wrong})
    with pytest.raises(ValueError, match="sample_weight with labels. Received: no labels"):
        LayerDataset(layers, sample_weight=[1] * count)
    with pytest.raises(ValueError, match="each of the 5 tokens of sentence 0, .*: 1 labels"):
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
@pytest.mark.parametrize("workers", [1, 3])
def test_steps_that_are_not_a_pass(embedder, tmp_path, workers):
    """Labels stay with their layers, and without workers every pass is complete."""
    count = 40
    sentences = [["a"] * (1 + i) for i in range(count)]
    how = {"file": tmp_path / "l.hdf5", "batch_size": 2, "shuffle": True, "workers": workers}
    data = LayerDataset.from_sentences(embedder, sentences, range(1, count + 1), **how)
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
    if workers == 1:  # Keras begins each epoch with batch 0 for workers
        assert all(sorted(order) == list(range(1, count + 1)) for order in orders)
        assert len(set(map(tuple, orders))) == 4


def test_labels_in_columns_of_tables(embedder, tmp_path):
    """The index of a shuffled table is in another order than its rows."""
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    table = pandas.DataFrame({"tokens": [["a"], ["b", "c"], ["d"]], "label": [0, 1, 2]})
    table = table.iloc[[1, 2, 0]]
    file = tmp_path / "layers.hdf5"
    data = LayerDataset.from_sentences(embedder, table["tokens"], table["label"], file=file)
    assert data.sentences == [["b", "c"], ["d"], ["a"]] and data[0][1].tolist() == [1, 2, 0]
    for labels in ([0.5, 1, 2], [[1, 2], [3], [4]]):
        found = LayerDataset(file, pyarrow.array(labels))[0][1]
        np.testing.assert_array_equal(found, LayerDataset(file, labels)[0][1])
    for labels in (table[["label"]], pyarrow.Table.from_pandas(table[["label"]])):
        with pytest.raises(ValueError, match="one column of a table. Received: (DataFrame|Table)"):
            LayerDataset(file, labels)


@pytest.mark.backends("torch")
def test_first_batches_of_one_width(embedder, tmp_path):
    """Keras on TensorFlow would assume this width for all batches."""
    sentences = [["a"] * length for length in (1, 3, 3, 2, 5)]
    tags = [[1] * len(sentence) for sentence in sentences]
    file = tmp_path / "layers.hdf5"
    data = LayerDataset.from_sentences(embedder, sentences, tags, file=file, batch_size=2)
    second = 4 if BACKEND == "tensorflow" else 3
    assert [batch[1].shape[1] for batch in data] == [3, second, 5]
    assert data[1][0]["mask"].sum(axis=1).tolist() == [3, 2] and not data[1][1][:, 3:].any()
    assert data.gather([2, 3])[1].shape[1] == 3
    model = token_model((3, 12))
    model.compile("sgd", "sparse_categorical_crossentropy")
    assert np.isfinite(model.fit(data, verbose=0).history["loss"][0])
    half = LayerDataset(file, [[0] * len(x) for x in sentences[:-1]] + [[0.5] * 5], batch_size=5)
    assert half[0][1].max() == 0.5


def test_gathering_chosen_sentences(embedder, layers):
    count = len(STORED)
    data = LayerDataset(layers, list(range(count)))
    inputs, labels = data.gather([2, 0, 2])
    assert labels.tolist() == [2, 0, 2]
    for row, i in enumerate([2, 0, 2]):
        expected = np.moveaxis(embedder.embed([STORED[i]])[0], 0, 1)
        length = len(STORED[i])
        assert inputs["mask"][row].sum() == length
        np.testing.assert_allclose(inputs["layers"][row, :length], expected, atol=1e-5)
        assert not inputs["layers"][row, length:].any()
    mask = np.arange(count) < 2
    for wrong in ([], [count], [-1], mask, [1.0], [[0], [1]], 0):
        with pytest.raises(ValueError, match=f"gather expects indices of 0 to {count - 1}, one"):
            data.gather(wrong)


# The tokens and the dtype of the arrays in a file of another program.
KINDS = [(2, "float16"), (0, "float32"), (5, ">f4")]


def write_layers(path, arrays):
    with h5py.File(path, "w") as file:
        for i, array in enumerate(arrays):
            file.create_dataset(str(i), data=array, compression="gzip" if array.size else None)


@pytest.mark.parametrize("n_layers", [3, 0], ids=["all", "average"])
def test_files_of_other_programs(tmp_path, n_layers):
    """bilm-tf stores no sentences; AllenNLP stores them in its own way."""
    normal, shape = np.random.default_rng(0).normal, (n_layers,) if n_layers else ()
    arrays = [normal(size=(*shape, tokens, 4)).astype(kind) for tokens, kind in KINDS]
    write_layers(tmp_path / "layers.hdf5", arrays)
    with h5py.File(tmp_path / "layers.hdf5", "a") as file:
        file["sentence_to_index"] = ['{"a b": "0"}']
    data = LayerDataset(tmp_path / "layers.hdf5")
    assert data.sentences is None and len(data) == 1
    inputs = data.gather([2, 1, 0])
    assert inputs["mask"].sum(axis=1).tolist() == [5, 0, 2]
    for row, array in zip(inputs["layers"], arrays[::-1], strict=True):
        array = array.reshape(n_layers or 1, -1, 4)
        np.testing.assert_array_equal(row[: array.shape[1]], np.moveaxis(array, 0, 1))


@pytest.mark.parametrize(
    "shapes, message",
    [
        ({}, r"with 0 names, such as \[\]"),
        ({"softmax/W": (7, 4), "softmax/b": (7,)}, "with 2 names, such as .'softmax/W'"),
        ({"0": (2, 3, 4, 5)}, "with . names, such as .'0'"),
        ({"doc/0": (3, 2, 4), "doc/1": (3, 2, 4)}, "with 2 names, such as .'doc/0'"),
    ],
)
def test_hdf5_files_with_something_else(tmp_path, shapes, message):
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        for name, shape in shapes.items():
            file.create_dataset(name, data=np.zeros(shape, "float32"))
    with pytest.raises(ValueError, match=f"all from 0 on. Received: .*other.hdf5 {message}"):
        LayerDataset(tmp_path / "other.hdf5")


def test_a_pickle_reads_the_file(layers):
    data = LayerDataset(layers, batch_size=4)
    first = data[0]["layers"]
    with h5py.File(layers, "a"):  # it is closed between batches
        content = pickle.dumps(data)
    np.testing.assert_array_equal(pickle.loads(content)[0]["layers"], first)


@pytest.mark.parametrize(
    "array, message",
    [
        (
            np.full((3, 5, 12), np.inf),
            "finite layers in .*hdf5. Received: NaN or inf.* .0, 1, 2, .* Embed the text again",
        ),
        (np.zeros((3, 5, 11)), r"shape \(3, tokens, 12\) for sentence 4 of .* \(3, 5, 11\)"),
        (np.zeros((5, 12)), r"for sentence 4 .* Received: float64 of shape \(5, 12\)"),
        (np.zeros((3, 5, 12), int), r"for sentence 4 .* Received: int64 of shape \(3, 5, 12\)"),
        (None, "all from 0 on. Received: .*hdf5 with 10 names, such as .'0', '1', '2'"),
    ],
)
def test_sentences_that_do_not_fit(layers, array, message):
    with h5py.File(layers, "a") as file:
        del file["4"]
        if array is not None:
            file["4"] = array
    with pytest.raises(ValueError, match=message):
        LayerDataset(layers)[0]


def test_sentences_are_embedded_once(tiny_preset, tmp_path, monkeypatch):
    ours, file = Embedder(tiny_preset), tmp_path / "train.hdf5"
    first = LayerDataset.from_sentences(ours, iter(STORED), range(10), file=file, batch_size=4)
    inputs, found = first[0]
    assert found.tolist() == [0, 1, 2, 3] and inputs["layers"].shape[-2:] == (3, 12)
    monkeypatch.setattr(ours._engine, "represent", None)
    again = LayerDataset.from_sentences(ours, STORED, range(10), file=file, batch_size=4)
    np.testing.assert_array_equal(again[0][0]["layers"], inputs["layers"])
    [array] = Embedder(tiny_preset).embed(STORED[:1])
    np.testing.assert_allclose(np.moveaxis(inputs["layers"][0, :5], 1, 0), array, atol=2e-3)
    with pytest.raises(ValueError, match="train.hdf5, which has other sentences"):
        LayerDataset.from_sentences(ours, STORED[:-1], file=file)
    marked = ["\ufeffa", "b"]  # a byte-order mark belongs to a file, never to a token
    other = Embedder(tiny_preset)
    assert LayerDataset.from_sentences(other, [marked], file=tmp_path / "m").sentences == [marked]
