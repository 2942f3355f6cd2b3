import json

import pytest

import keras_elmo
from keras_elmo.cli import main
from tests.conftest import make_config, numpy


def test_info(tiny_preset, capsys):
    assert main(["info", str(tiny_preset), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    layer = keras_elmo.ElmoLayer.from_preset(tiny_preset)
    assert facts["parameters"] == sum(numpy(w.value).size for w in layer.weights)
    assert (facts["layers"], facts["width"], facts["max_characters"]) == (3, 12, 13)
    assert facts["fingerprint"] == layer.fingerprint()
    assert facts["options"] == json.loads(json.dumps(make_config().to_options()))
    assert main(["info", str(tiny_preset)]) == 0
    assert f"parameters      {facts['parameters']}" in capsys.readouterr().out


def test_errors_are_one_line(capsys):
    assert main(["info", "no_such_preset"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("keras-elmo info: from_preset expects") and error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["info", "--help"]])
def test_help(arguments, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    assert "preset" in capsys.readouterr().out
