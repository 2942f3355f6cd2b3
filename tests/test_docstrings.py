"""The examples in docstrings run and print the shown results."""

import doctest
import importlib
import pkgutil

import keras
import numpy as np
import pytest

import keras_elmo

MODULES = [
    module.name
    for module in pkgutil.walk_packages(keras_elmo.__path__, "keras_elmo.")
    if not module.ispkg
]


@pytest.mark.extended
@pytest.mark.parametrize("name", MODULES)
def test_examples(name, tmp_path, monkeypatch):
    if name in ("keras_elmo.sklearn", "keras_elmo.spacy"):
        pytest.importorskip(name.removeprefix("keras_elmo."))
    monkeypatch.chdir(tmp_path)
    names = {"keras": keras, "np": np, "keras_elmo": keras_elmo}
    result = doctest.testmod(
        importlib.import_module(name), extraglobs=names, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.failed == 0


@pytest.mark.parametrize("name", keras_elmo.__all__)
def test_public_names_have_an_example_and_a_reference_where_the_paper_has_one(name):
    text = getattr(keras_elmo, name).__doc__
    assert ">>> " in text and "Reference:" in text
