"""``ElmoVectorizer`` with scikit-learn."""

import pathlib
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

import keras_elmo

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.utils import estimator_checks

from keras_elmo.sklearn import ElmoVectorizer

WEIGHTS = pathlib.Path(__file__).parents[1] / "weights"
TOKENS = [["A", "fine", ",", "moving", "film", "."], ["Too", "long", "!"], ["Great"]]
TEXTS = ["A fine, moving film.", "Too long!", "Great"]


@pytest.fixture
def texts_preset(preset):
    """A directory with a tiny random biLM and its tokenizer."""
    shutil.copy(WEIGHTS / "elmo_mini_en" / "tokenizer.json", preset)
    return str(preset)


@pytest.mark.parametrize("layers", ["average", "all", 0, [0.2, 0.5, 0.3]])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_vectors_are_the_pooled_layers(texts_preset, layers, pooling):
    vectorizer = ElmoVectorizer(texts_preset, layers, pooling, normalize=True)
    vectors = vectorizer.fit_transform(TEXTS)
    arrays = keras_elmo.Embedder(texts_preset).embed(TOKENS, layers=layers)
    expected = np.stack([getattr(a, pooling)(axis=-2).ravel() for a in arrays])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert vectors.dtype == "float32"
    assert len(vectorizer.get_feature_names_out()) == vectors.shape[1]
    np.testing.assert_array_equal(vectorizer.transform(TOKENS), vectors)
    assert not vectorizer.transform([[], ["One"]])[0].any()


def test_a_clone_and_a_pickle_contain_the_name_and_not_the_weights(texts_preset):
    vectorizer = ElmoVectorizer(texts_preset, layers=[0, 1, 0]).fit(TEXTS)
    stored = pickle.dumps(vectorizer)
    assert len(stored) < 1000
    for copy in (clone(vectorizer), pickle.loads(stored)):
        assert copy.get_params() == vectorizer.get_params()
        np.testing.assert_array_equal(copy.transform(TEXTS), vectorizer.transform(TEXTS))


def test_a_pandas_column_stays_a_table_with_its_index(texts_preset):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": TEXTS, "stars": [5, 1, 4]}, index=[7, 8, 9])
    vectorizer = ElmoVectorizer(texts_preset)
    columns = make_column_transformer((vectorizer, "text"), remainder="passthrough")
    found = columns.set_output(transform="pandas").fit_transform(table)
    assert found.index.tolist() == [7, 8, 9]
    assert found.columns[[0, -1]].tolist() == [
        "elmovectorizer__elmovectorizer0",
        "remainder__stars",
    ]
    np.testing.assert_array_equal(found.iloc[:, :-1], vectorizer.fit_transform(TEXTS))


SEARCH = """
import sys
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from keras_elmo.sklearn import ElmoVectorizer

pipeline = make_pipeline(ElmoVectorizer(sys.argv[1]), LogisticRegression(C=1e6))
grid = {"elmovectorizer__layers": [0, "average"]}
search = GridSearchCV(pipeline, grid, cv=2, n_jobs=2, error_score="raise")
search.fit(["Good film", "Bad", "Good", "Bad film"] * 2, [1, 0, 1, 0] * 2)
assert search.predict(["Good film", "Bad film"]).tolist() == [1, 0]
"""


@pytest.mark.extended
def test_a_grid_search_in_two_processes(texts_preset):
    subprocess.run([sys.executable, "-c", SEARCH, texts_preset], check=True)


# check_estimator runs only the first of these for transformers of texts: it has no texts.
CHECKS = [
    "estimator_cloneable",
    "parameters_default_constructible",
    "no_attributes_set_in_init",
    "get_params_invariance",
    "set_params",
    "estimator_repr",
    "valid_tag_types",
]


@pytest.mark.parametrize("name", CHECKS)
def test_the_checks_of_scikit_learn(name):
    getattr(estimator_checks, f"check_{name}")("ElmoVectorizer", ElmoVectorizer())


@pytest.mark.parametrize(
    "changes, X, message",
    [
        ({"pooling": "sum"}, TEXTS, "pooling to be 'mean' or 'max'. Received: pooling='sum'"),
        ({"layers": 3}, TEXTS, "Expected layers to be .* Received: layers=3"),
        ({"preset": "elmo_mini_e"}, TEXTS, "from_preset expects"),
        ({}, "A film.", "one column of texts .* Received: X of type str, 'A film.'"),
        ({}, np.array([TEXTS]), "one column of texts .* Received: X of type ndarray"),
        ({}, [], "at least one row. Received: X of type list"),
        ({}, ["A film.", None], "None"),
    ],
)
def test_invalid_arguments(texts_preset, changes, X, message):
    vectorizer = ElmoVectorizer(**{"preset": texts_preset} | changes)
    with pytest.raises(ValueError, match=message):
        vectorizer.fit_transform(X)
