"""Embed on Ray: batches alone, and a cluster of two nodes that loses processes."""

import dataclasses
import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import types

import numpy as np
import pytest

from keras_elmo import Embedder, LayerDataset
from keras_elmo.cli import main
from keras_elmo.embed.run_folder import claim_folder
from keras_elmo.utils.file_lock import locked

pytestmark = pytest.mark.extended

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

from keras_elmo import ray as on_ray  # noqa: I001

LINES = random.Random(0)
LINES = [
    " ".join("".join(LINES.choices("abcdé", k=LINES.randint(1, 9))) for _ in range(length))
    for length in [LINES.randint(0, 9) for _ in range(90)]
]


@pytest.fixture(scope="module")
def expected(tiny_preset):
    """The arrays of one Embedder for the lines."""
    return Embedder(tiny_preset).embed([line.split() for line in LINES])


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return path


def same(found, expected, atol=1e-5):
    assert len(found) == len(expected)
    for ours, right in zip(found, expected, strict=True):
        assert ours.shape == right.shape
        np.testing.assert_allclose(ours, right, atol=atol)


def test_a_batch(tiny_preset, expected):
    embed = on_ray.EmbedBatch(str(tiny_preset))
    ids = list(range(len(LINES)))
    lists = pyarrow.table({"id": ids, "tokens": [line.split() for line in LINES]})
    embedded = embed(lists)
    assert embedded.column_names == ["id", "tokens", "layers"]
    same(on_ray.read_layers(embedded), expected)
    # The result does not depend on earlier batches.
    other = on_ray.EmbedBatch(str(tiny_preset))
    other(lists.slice(50))
    assert other(lists.slice(0, 20)).equals(embed(lists.slice(0, 20)))
    strings = on_ray.EmbedBatch(
        str(tiny_preset), "text", "top", layers="top", float16=True, batch_tokens=64
    )
    found = on_ray.read_layers(strings(pyarrow.table({"text": [*LINES, None]})), "top")
    assert found.pop() is None and found[0].dtype == "float16"
    same(found, [array[-1] for array in expected], atol=2e-3)
    for table in (pyarrow.table({"text": LINES}), embedded):
        with pytest.raises(
            ValueError, match="expects a column 'tokens' .* no column 'layers'. Rec"
        ):
            embed(table)


def test_inputs_that_do_not_fit(tiny_preset, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))  # Nothing calls it.
    arguments = str(tiny_preset), text, tmp_path / "out"
    claim_folder(tmp_path / "out", {"preset": "x", "input": "y"}, resume=False)
    (tmp_path / "out" / "layers-00000000.parquet").touch()
    with pytest.raises(ValueError, match="out contains the files of an earlier run. Continue"):
        on_ray.embed_files(*arguments)
    with pytest.raises(ValueError, match="other settings. Expected: .*'preset': 'x'.*'input': 'y'"):
        on_ray.embed_files(*arguments, resume=True)
    with pytest.raises(ValueError, match="which this run would write to, contains other files"):
        on_ray.embed_files(str(tiny_preset), text, tmp_path)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(
        ValueError, match="Expected sentences to embed. Received: .*empty.txt, without any"
    ):
        on_ray.embed_files(str(tiny_preset), tmp_path / "empty.txt", tmp_path / "new")
    (tmp_path / "latin.txt").write_bytes(b"a\n\xe9\n")
    with pytest.raises(ValueError, match="Expected UTF-8 text. Received: line 2 "):
        on_ray.embed_files(str(tiny_preset), tmp_path / "latin.txt", tmp_path / "new")
    parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="a column 'tokens' of sentences in .*: columns a$"):
        on_ray.embed_files(str(tiny_preset), tmp_path / "a.parquet", tmp_path / "new")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(OSError, match="cut.parquet"):
        on_ray.embed_files(str(tiny_preset), tmp_path / "cut.parquet", tmp_path / "new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        ValueError, match="Expected sentences to embed. Received: .*folder, without any"
    ):
        on_ray.embed_files(str(tiny_preset), tmp_path / "folder", tmp_path / "new")
    parquet.write_table(pyarrow.table({"tokens": ["a"], "layers": [1]}), tmp_path / "l.parquet")
    with pytest.raises(ValueError, match="no column 'layers' in .*l.parquet, because .*: one"):
        on_ray.embed_files(str(tiny_preset), tmp_path / "l.parquet", tmp_path / "new")
    with pytest.raises(ValueError, match="batch_tokens to be a whole number, 1 .*batch_tokens=0"):
        on_ray.embed_files(str(tiny_preset), text, tmp_path / "new", batch_tokens=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'batch'"):
        on_ray.embed_files(str(tiny_preset), text, tmp_path / "new", batch=64)
    with pytest.raises(ValueError, match="from -3 to 2. Received: layers=3"):
        on_ray.embed_files(str(tiny_preset), text, tmp_path / "new", layers=3)
    with pytest.raises(ValueError, match="'bfloat16'.* for engine='keras'. Received: dtype='int8'"):
        on_ray.embed_files(str(tiny_preset), text, tmp_path / "new", gpus=1, dtype="int8")
    assert not (tmp_path / "new").exists()


def test_parts_hold_every_line_once(tiny_preset, tmp_path, monkeypatch):
    """Wherever a text or Parquet is cut, the parts contain all lines or rows."""
    monkeypatch.setattr(on_ray, "ROWS_IN_A_FILE", 7)
    lines = ["\ufeffone two", "", " ", "no\u2028break", *LINES]
    path = tmp_path / "text.txt"
    for end in ("", "\n"):
        path.write_text("\n".join(lines) + end, encoding="utf-8")
        tables = [part.read() for part in on_ray._parts_of_text(path)]
        assert max(map(len, tables)) == 7
        whole = pyarrow.concat_tables(tables)
        assert whole["id"].to_pylist() == list(range(len(lines)))
        assert whole["tokens"].to_pylist()[:4] == [["one", "two"], [], [], ["no\u2028break"]]
        assert whole["tokens"].to_pylist()[4:] == [line.split() for line in LINES]
    path.write_bytes("\r\n".join(lines).encode())
    tables = [part.read() for part in on_ray._parts_of_text(path)]
    assert pyarrow.concat_tables(tables).equals(whole)
    table = pyarrow.table({"key": lines, "tokens": lines})
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=5)
    parts = on_ray._parts_of_parquet(tmp_path / "rows.parquet", "tokens")
    assert pyarrow.concat_tables(part.read() for part in parts).equals(table)


def test_one_job_in_a_folder_and_one_bilm_on_all_nodes(tiny_preset, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    with locked(tmp_path / "out.lock", "writes out"):
        with pytest.raises(OSError, match="writes .*out already. Received: its lock"):
            on_ray.embed_files(str(tiny_preset), text, tmp_path / "out")
    arguments = {"preset": str(tiny_preset), "column": "tokens"}
    with pytest.raises(ValueError, match="same biLM on every node. Received: .*with other weights"):
        on_ray._EmbedPart(tmp_path, ["another"], arguments)
    with pytest.raises(ValueError, match="one of them above 0. Received: cpus=0, gpus=0"):
        on_ray.embed_files(str(tiny_preset), text, tmp_path / "out", cpus=0)


@pytest.mark.parametrize("changed", ["backend", "cache", "options"])
def test_a_job_is_resumed_with_its_bilm_backend_and_token_cache(
    changed, tiny_preset, text, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setenv("HOME", str(tmp_path))
    pair = [tmp_path / "vocab.txt", tmp_path / "vocab.hdf5"]
    for path in pair:
        path.write_bytes(b"one")
    given: list[dict] = []
    monkeypatch.setattr(on_ray, "ROWS_IN_A_FILE", 50)
    monkeypatch.setattr(on_ray, "_map_parts", lambda _, actor, *__: given.append(actor[2]) or [])
    preset = tmp_path / "preset"
    shutil.copytree(tiny_preset, preset)
    arguments = str(preset), text, tmp_path / "out"
    on_ray.embed_files("~/preset", *arguments[1:], token_cache=[f"~/{x.name}" for x in pair])
    assert given[0]["preset"] == str(preset)
    assert given[0]["token_cache"] == list(map(str, pair))
    (tmp_path / "out" / "layers-00000099.parquet").touch()
    on_ray.embed_files(*arguments, token_cache=pair, resume=True)
    with pytest.raises(ValueError, match="the 2 files of the run .*out. Received: 1. Wait for the"):
        LayerDataset(tmp_path / "out")
    if changed == "cache":
        pair[1].write_bytes(b"two")
    elif changed == "options":
        options = json.loads((preset / "options.json").read_text())
        options["lstm"]["cell_clip"] = 0.5
        (preset / "options.json").write_text(json.dumps(options))
    else:
        monkeypatch.setattr("keras.backend.backend", lambda: "numpy")
    expected = {"cache": "token_cache", "backend": "backend", "options": "preset"}[changed]
    with pytest.raises(ValueError, match=f"other settings. Expected: {{'{expected}': [^:]*}}. Rec"):
        on_ray.embed_files(*arguments, token_cache=pair, resume=True)


def test_files_without_a_cluster(tiny_preset, text, expected, tmp_path, monkeypatch):
    """A part that is missing is written again, with the same bits; Parquet keeps its columns."""

    def in_this_process(parts, constructor, *_):
        embed = on_ray._EmbedPart(*constructor)
        for part in parts:
            yield from embed(pyarrow.Table.from_pylist([dataclasses.asdict(part)])).to_pylist()

    ray = types.ModuleType("ray")
    ray.is_initialized = lambda: False
    monkeypatch.setitem(sys.modules, "ray", ray)
    for name, value in (("_map_parts", in_this_process), ("ROWS_IN_A_FILE", 40)):
        monkeypatch.setattr(on_ray, name, value)
    monkeypatch.setattr(on_ray, "ROWS_IN_A_GROUP", 15)
    arguments = str(tiny_preset), text, tmp_path / "out"
    counts = on_ray.embed_files(*arguments)
    tokens = sum(len(line.split()) for line in LINES)
    assert counts == {"sentences": 90, "tokens": tokens, "files": 3, "resumed_files": 0}
    table = parquet.read_table(tmp_path / "out")
    assert table["id"].to_pylist() == list(range(90))
    same(on_ray.read_layers(table), expected)
    first = tmp_path / "out" / "layers-00000000.parquet"
    assert parquet.ParquetFile(first).num_row_groups == 3
    first.rename(first.with_suffix(".parquet.1.tmp"))
    again = on_ray.embed_files(*arguments, resume=True)
    assert (again["files"], again["resumed_files"], again["sentences"]) == (1, 2, 40)
    assert parquet.read_table(tmp_path / "out").equals(table)
    assert not list((tmp_path / "out").glob("*.tmp"))
    rows = pyarrow.table({"key": list(range(90)), "text": LINES})
    parquet.write_table(rows, tmp_path / "rows.parquet", row_group_size=50)
    arguments = str(tiny_preset), tmp_path / "rows.parquet", tmp_path / "top"
    on_ray.embed_files(*arguments, column="text", layers="top")
    table = parquet.read_table(tmp_path / "top")
    assert table.column_names == ["key", "text", "layers"] and table["text"].to_pylist() == LINES
    same(on_ray.read_layers(table), [array[-1] for array in expected])


def test_flags_of_the_cluster(monkeypatch):
    given = []
    monkeypatch.setattr(on_ray, "embed_files", lambda *_, **kwargs: given.append(kwargs) or {})
    command = ["embed", "elmo_mini_en", "in.txt", "out", "--ray", "--quiet"]
    assert main([*command, "--column", "text", "--ray-cpus", "0", "--ray-gpus", "0.5"]) == 0
    assert given[0].items() >= {"column": "text", "cpus": 0, "gpus": 0.5, "address": None}.items()
    assert main(command) == 0 and not given[1].keys() & {"column", "cpus", "gpus"}


def test_ray_is_missing(tiny_preset, text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ImportError, match=r"embed_files needs Ray. .*: pip install 'keras-elmo\[ray\]'"
    ):
        on_ray.embed_files(str(tiny_preset), text, tmp_path / "out")


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    ray.init(cluster.address, log_to_driver=False, logging_level=40)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def workers_of(node):
    """Return the processes of a node that embed."""
    import psutil

    [raylet] = node.all_processes["raylet"]
    children = psutil.Process(raylet.process.pid).children(recursive=True)
    return [child for child in children if "_EmbedPart" in "".join(child.cmdline())]


def when_begun(folder, act):
    """Call ``act`` once the folder contains a file, in a thread."""

    done = threading.Event()

    def wait():
        while not list(folder.glob("*.parquet")):
            time.sleep(0.01)
        act()
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    return done


@pytest.mark.filterwarnings("ignore")  # Ray warns.
def test_a_cluster_that_loses_processes(
    cluster, tiny_preset, text, expected, tmp_path, monkeypatch
):
    monkeypatch.setattr(on_ray, "ROWS_IN_A_FILE", 4)
    arguments = {"progress": False}

    def kill_a_worker():
        [worker, *_] = [x for node in cluster.list_all_nodes() for x in workers_of(node)]
        os.kill(worker.pid, signal.SIGKILL)

    def kill_a_node():
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    for name, act in (("whole", None), ("worker", kill_a_worker), ("node", kill_a_node)):
        folder = tmp_path / name
        done = act and when_begun(folder, act)
        counts = on_ray.embed_files(str(tiny_preset), text, folder, **arguments)
        assert counts["sentences"] == len(LINES) and counts["files"] == 23, name
        assert not act or done.wait(60), f"no {name} was killed"
        table = parquet.read_table(folder)
        assert table["id"].to_pylist() == list(range(len(LINES)))
        same(on_ray.read_layers(table), expected)
    # Make the folder of an interrupted run: without some files, which were being written.
    for path in sorted((tmp_path / "node").glob("*.parquet"))[3::4]:
        path.rename(path.with_suffix(".parquet.1.tmp"))
    command = ["embed", str(tiny_preset), str(text), str(tmp_path / "node"), "--ray", "--quiet"]
    assert main(command) == 1
    assert main([*command, "--resume"]) == 0
    assert not list((tmp_path / "node").glob("*.tmp"))
    for path in (tmp_path / "whole").glob("*.parquet"):
        other = parquet.read_table(tmp_path / "node" / path.name)
        assert other.equals(parquet.read_table(path))
    with LayerDataset(tmp_path / "node", list(range(len(LINES))), batch_size=90) as data:
        inputs, labels = data[0]
        rows = zip(inputs["layers"], inputs["mask"], strict=True)
        same([np.moveaxis(row[mask], 0, 1) for row, mask in rows], expected)
    assert labels.tolist() == list(range(len(LINES)))


def test_the_reason_of_an_error_of_ray():
    inside = "ray::f()\n  File ...\nOSError: no room.\n\nTo change retry attempts, see the page"
    assert on_ray._reason(RuntimeError(inside)) == "OSError: no room"
    assert on_ray._reason(RuntimeError("2 nodes\ndied.")) == "RuntimeError: 2 nodes died"


@pytest.mark.filterwarnings("ignore")
def test_an_error_of_an_actor(cluster, tiny_preset, tmp_path):
    parquet.write_table(pyarrow.table({"tokens": [[1, 2]]}), tmp_path / "numbers.parquet")
    arguments = str(tiny_preset), tmp_path / "numbers.parquet", tmp_path / "out"
    with pytest.raises(
        ValueError,
        match="Received: ValueError: .*Received: 1 of type int.* Mend this, and continue",
    ):
        on_ray.embed_files(*arguments, progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("gpus, engine", [(0, "onnxruntime"), (0.5, "keras")])
def test_all_actors_have_one_engine_and_gpus_get_keras(
    gpus, engine, tiny_preset, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setattr(on_ray, "choose_engine", lambda *_: ("onnxruntime", "float32"))
    given: list[dict] = []
    monkeypatch.setattr(on_ray, "_map_parts", lambda _, actor, *__: given.append(actor[2]) or [])
    (tmp_path / "text.txt").write_text("a b\n")
    on_ray.embed_files(str(tiny_preset), tmp_path / "text.txt", tmp_path / "out", gpus=gpus)
    assert given[0]["engine"] == engine
