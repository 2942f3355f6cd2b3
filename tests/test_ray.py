"""Embed batches of Ray Data, and the example on a Ray of this machine."""

import numpy as np
import pytest

from keras_elmo import Embedder
from tests.embed.conftest import STORED
from tests.example_runs import EXAMPLES

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

from keras_elmo.ray import EmbedBatch, read_layers  # noqa: I001

ROWS = [*STORED[:2], None, *STORED[2:]]


def check(found, rows, expected, atol=1e-6):
    assert [array is None for array in found] == [row is None for row in rows]
    arrays = [array for array in found if array is not None]
    for array, right in zip(arrays, expected, strict=True):
        assert array.shape == right.shape
        np.testing.assert_allclose(array, right, atol=atol)


@pytest.mark.parametrize("layers, float16", [("all", False), ("top", True)])
def test_a_batch(tiny_preset, tmp_path, layers, float16):
    embed = EmbedBatch(tiny_preset, layers=layers, float16=float16)
    table = pyarrow.table({"id": list(range(len(ROWS))), "tokens": ROWS})
    embedded = embed(table)
    assert embedded.column_names == ["id", "tokens", "layers"]
    parquet.write_table(embedded, tmp_path / "a.parquet", row_group_size=4)
    expected, atol = Embedder(tiny_preset).embed(STORED, layers), 2e-3 if float16 else 1e-6
    for some in (embedded, parquet.read_table(tmp_path / "a.parquet")):
        check(read_layers(some), ROWS, expected, atol)
        check(read_layers(some.slice(4)), ROWS[4:], expected[3:], atol)
        assert read_layers(some[:0]) == []
    assert read_layers(embedded)[0].dtype == ("float16" if float16 else "float32")
    # The result does not depend on earlier batches.
    assert EmbedBatch(tiny_preset, layers=layers, float16=float16)(table).equals(embedded)


def test_strings_and_nulls(tiny_preset):
    embed = EmbedBatch(tiny_preset, "text", "top", layers="top", batch_tokens=64)
    table = embed(pyarrow.table({"text": [" ".join(row) if row else None for row in ROWS]}))
    rows = [row or None for row in ROWS]
    expected = Embedder(tiny_preset).embed([row for row in rows if row], "top")
    check(read_layers(table, "top"), rows, expected)
    nothing = pyarrow.table({"text": pyarrow.array([None], pyarrow.string())})
    assert read_layers(embed(nothing), "top") == [None]


def test_missing_columns(tiny_preset):
    table = pyarrow.table({"text": ["a"]})
    for work in (EmbedBatch(tiny_preset), read_layers):
        with pytest.raises(KeyError, match="(tokens|layers)"):
            work(table)


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore")  # Ray warns.
def test_the_example(tiny_preset, tmp_path, monkeypatch, capsys):
    ray = pytest.importorskip("ray")
    monkeypatch.syspath_prepend(EXAMPLES)
    import ray_embed

    text = tmp_path / "in.txt"
    text.write_text("".join(" ".join(row) + "\n" for row in STORED), encoding="utf-8")
    command = ["ray_embed.py", str(tiny_preset), str(text), str(tmp_path / "out"), "--actors", "2"]
    monkeypatch.setattr("sys.argv", command)
    try:
        ray_embed.main()
    finally:
        ray.shutdown()
    assert capsys.readouterr().out.endswith("(5, 12)\n")
    table = parquet.read_table(tmp_path / "out")
    rows = table["tokens"].to_pylist()
    assert sorted(rows) == sorted(map(" ".join, STORED))
    expected = Embedder(tiny_preset).embed([row.split() for row in rows], "top")
    check(read_layers(table), rows, expected, 2e-3)
