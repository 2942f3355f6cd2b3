"""Test layer representations in Arrow tables and Parquet files."""

import concurrent.futures
import time

import numpy as np
import pytest

from keras_elmo import LayerDataset
from tests.embed.conftest import MANY

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

from keras_elmo.embed.parquet import ParquetLayers, add_layers, layers_shape, read_layers  # noqa: I001

RANDOM = np.random.default_rng(0)


def table_of(arrays, shape=(3, 4), name="layers", **kwargs):
    ids = pyarrow.table({"id": list(range(len(arrays)))})
    return add_layers(ids, name, arrays, shape, **kwargs)


@pytest.mark.parametrize("shape", [(3, 4), (4,)])
@pytest.mark.parametrize("float16", [False, True])
def test_arrays_come_back_from_a_file(tmp_path, shape, float16):
    dtype = "float16" if float16 else "float32"
    arrays = [RANDOM.normal(size=(*shape[:-1], n, 4)).astype(dtype) for n in (2, 0, 5, 1)]
    arrays.insert(1, None)
    table = table_of(arrays, shape, float16=float16)
    kind = pyarrow.float16() if float16 else pyarrow.float32()
    field = table.schema.field("layers")
    assert field.type == pyarrow.large_list(pyarrow.list_(kind, int(np.prod(shape))))
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    read = parquet.read_table(tmp_path / "a.parquet")
    assert layers_shape(read.schema, "layers") == shape
    for some, expected in ((read, arrays), (table.slice(2, 3), arrays[2:]), (table[:0], [])):
        found = read_layers(some)
        assert [x is None for x in found] == [x is None for x in expected]
        for ours, right in zip(found, expected, strict=True):
            if right is not None:
                assert ours.dtype == dtype
                np.testing.assert_array_equal(ours, right)


def test_a_column_whose_tokens_are_a_slice():
    arrays = [RANDOM.normal(size=(3, n, 4)).astype("float32") for n in (1, 2)]
    table = table_of(arrays)
    tokens = table["layers"].combine_chunks().values[1:]
    column = pyarrow.LargeListArray.from_arrays(pyarrow.array([0, 2]), tokens)
    [found] = read_layers(pyarrow.table([column], schema=table.select(["layers"]).schema))
    np.testing.assert_array_equal(found, arrays[1])


def test_layer_dataset_of_parquet_is_that_of_hdf5(embedder, text, tmp_path):
    embedder.embed_file(text, tmp_path / "layers.hdf5", progress=False)
    sentences = [line.split() for line in text.read_text(encoding="utf-8").split("\n")[:-1]]
    arrays = embedder.embed(sentences)
    (tmp_path / "folder").mkdir()
    for i in (0, 4, 8):
        table = table_of(arrays[i : i + 4], (3, 12))
        parquet.write_table(table, tmp_path / "folder" / f"{i}.parquet", row_group_size=3)
    labels = [[len(token) for token in sentence] for sentence in sentences]
    kwargs = {"batch_size": 4, "shuffle": True, "seed": 3}
    with (
        LayerDataset(tmp_path / "layers.hdf5", labels, **kwargs) as one,
        LayerDataset(tmp_path / "folder", labels, **kwargs) as two,
    ):
        assert len(one) == len(two) == -(-len(MANY) // 4)
        for (inputs, targets), (others, other_targets) in zip(one, two, strict=True):
            np.testing.assert_allclose(inputs["layers"], others["layers"], atol=1e-5)
            np.testing.assert_array_equal(inputs["mask"], others["mask"])
            np.testing.assert_array_equal(targets, other_targets)
        files = two._file._files
    assert files and all(file.closed for file in files)


def test_threads_share_a_dataset(tmp_path):
    arrays = [RANDOM.normal(size=(3, n % 4, 4)).astype("float32") for n in range(200)]
    parquet.write_table(table_of(arrays), tmp_path / "a.PARQUET", row_group_size=5)
    orders = [RANDOM.permutation(200) for _ in range(8)]
    with LayerDataset(tmp_path / "a.PARQUET") as dataset:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda rows: [dataset.gather([row]) for row in rows], orders))
    for rows, batches in zip(orders, found, strict=True):
        for row, batch in zip(rows, batches, strict=True):
            kept = batch["layers"][0][batch["mask"][0]]
            np.testing.assert_array_equal(kept, np.moveaxis(arrays[row], 0, 1))


def test_errors(tmp_path):
    arrays = [np.zeros((3, 2, 4), "float32"), None, np.full((3, 1, 4), np.nan, "float32")]
    parquet.write_table(table_of(arrays), tmp_path / "a.parquet")
    data = LayerDataset(tmp_path / "a.parquet", batch_size=1)
    with pytest.raises(ValueError, match=r"floats of shape \(3, tokens, 4\) for sentence 1 .*none"):
        data.gather([1])
    with pytest.raises(ValueError, match="Expected finite layers in .* NaN or inf in row 2"):
        data.gather([2])
    with pytest.raises(ValueError, match="Expected a column 'other' of layer .* id: int64, layers"):
        layers_shape(table_of(arrays).schema, "other")
    with pytest.raises(ValueError, match="Expected a column 'id' of layer representations"):
        read_layers(table_of(arrays), "id")
    with pytest.raises(ValueError, match="Expected a folder of Parquet files. .*, without any"):
        (tmp_path / "empty").mkdir()
        LayerDataset(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="missing.parquet"):
        LayerDataset(tmp_path / "missing.parquet")
    (tmp_path / "a").mkdir()
    parquet.write_table(table_of(arrays), tmp_path / "a" / "a.parquet")
    parquet.write_table(table_of([np.zeros((1, 4))], (4,)), tmp_path / "a" / "b.parquet")
    with pytest.raises(ValueError, match="Expected layers of one shape in .* Received: .*3, 4"):
        LayerDataset(tmp_path / "a")
    parquet.write_table(table_of([np.zeros((1, 4))], (4,)), tmp_path / "top.parquet")
    assert LayerDataset(tmp_path / "top.parquet")[0]["layers"].shape == (1, 1, 1, 4)
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(OSError, match="b.parquet is damaged or not a Parquet file"):
        LayerDataset(tmp_path / "b.parquet")


def test_a_parquet_file_serves_one_thread_at_a_time(tmp_path, monkeypatch):
    read_group, inside, most = ParquetLayers._read_group, [], []

    def spy(self, place):
        inside.append(1)
        most.append(len(inside))
        time.sleep(1e-3)
        inside.pop()
        return read_group(self, place)

    monkeypatch.setattr(ParquetLayers, "_read_group", spy)
    arrays = [np.zeros((3, 1, 4), "float32") for _ in range(40)]
    parquet.write_table(table_of(arrays), tmp_path / "a.parquet", row_group_size=2)
    with LayerDataset(tmp_path / "a.parquet") as dataset:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda row: dataset.gather([row]), range(40)))
    assert set(most) == {1}
