"""Embed on a Ray cluster: a class for ``map_batches``, and a function for whole files.

Ray is optional: ``pip install 'keras-elmo[ray]'``.
"""

import dataclasses
import inspect
import itertools
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from keras_elmo.embed.embedder import Embedder, check_sizes
from keras_elmo.embed.engine_choice import check_engine, choose_engine
from keras_elmo.embed.parquet import (
    add_layers,
    import_pyarrow,
    is_parquet,
    parquet_errors,
    parquet_files,
    read_layers,
)
from keras_elmo.embed.run_folder import claim_folder, leave_folder
from keras_elmo.formats.base import BiLMFile
from keras_elmo.layer_choice import LayerChoice
from keras_elmo.presets import Preset, absolute_preset
from keras_elmo.text_input import read_lines
from keras_elmo.tokenizers.token_lists import split_tokens
from keras_elmo.utils.batches import cut
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.file_lock import locked
from keras_elmo.utils.files import PathLike, atomic_write, digest_of, local_path

__all__ = ["EmbedBatch", "embed_files", "read_layers"]

# Bounds of a file of the output, and of a row group in it.
ROWS_IN_A_FILE, BYTES_IN_A_FILE = 10_000, 2_000_000
ROWS_IN_A_GROUP, TOKENS_IN_A_GROUP = 1000, 10_000


class EmbedBatch:
    """Add a column of layer representations to a batch of Ray Data.

    Each actor of ``map_batches`` has one ``Embedder``, with as many threads as Ray gives CPUs to
    the actor. The result depends only on the rows of the batch, so a batch that Ray computes
    again has the same bits.

    Args:
        preset: str or path. As in ``ElmoLayer.from_preset``; a path must exist on every node.
        column: str. Column of the sentences: lists of tokens, or strings with spaces between
            tokens. A null stays null.
        output: str. Name of the new column, a ``large_list<fixed_size_list<float>>`` with one
            list for each token. ``read_layers`` returns its arrays.
        layers: str or int. As in ``Embedder.embed``.
        float16: bool. Whether to store float16.
        **kwargs: Arguments of ``Embedder``, such as ``dtype`` and ``batch_tokens``.

    Call arguments:
        table: pyarrow.Table.

    Returns:
        The table with one more column.

    Raises:
        ImportError: If pyarrow is not installed.
        ValueError: If the table does not have the column, or already has the new one; errors of
            ``Embedder``.

    Examples:
        >>> import pyarrow
        >>> embed = EmbedBatch("elmo_mini_en", layers="top")
        >>> table = embed(pyarrow.table({"id": [7], "tokens": [["One", "sentence"]]}))
        >>> table.column_names, read_layers(table)[0].shape
        (['id', 'tokens', 'layers'], (2, 256))

        In Ray::

            ds.map_batches(
                EmbedBatch,
                fn_constructor_args=["elmo_mini_en"],
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=8),
            )
    """

    def __init__(
        self,
        preset: PathLike,
        column: str = "tokens",
        output: str = "layers",
        layers: str | int = "all",
        float16: bool = False,
        **kwargs: Any,
    ) -> None:
        import_pyarrow()
        _limit_threads()
        self._embedder = Embedder(preset, **kwargs)
        self._column, self._output = column, output
        self._layers, self._float16 = layers, float16
        shape = self._embedder.embed([[]], layers)[0].shape
        self._shape = shape[:-2] + shape[-1:]

    def __call__(self, table: Any) -> Any:
        names = table.column_names
        if self._column not in names or self._output in names:
            raise ValueError(
                f"EmbedBatch expects a column {self._column!r} of sentences, and no column "
                f"{self._output!r}. Received: columns {', '.join(names)}"
            )
        sentences = _sentences(table, self._column)
        present = [sentence for sentence in sentences if sentence is not None]
        found = iter(self._embedder.embed(present, self._layers, remember=False))
        arrays = [None if sentence is None else next(found) for sentence in sentences]
        return add_layers(table, self._output, arrays, self._shape, self._float16)


def embed_files(
    preset: PathLike,
    input_path: PathLike,
    output_folder: PathLike,
    *,
    address: str | None = None,
    column: str = "tokens",
    layers: str | int = "all",
    float16: bool = False,
    resume: bool = False,
    cpus: float = 1,
    gpus: float = 0,
    progress: bool = True,
    **kwargs: Any,
) -> dict[str, int]:
    """Embed text or Parquet files into a folder of Parquet files, on a Ray cluster.

    Each file of the output contains consecutive rows of the input. It is written under a
    temporary name and renamed when it is complete. Ray repeats the work of a process or node
    that fails.

    Args:
        preset: str or path. As in ``ElmoLayer.from_preset``. All paths must exist on every node.
        input_path: Path of a UTF-8 text with one sentence a line, of a Parquet file, or of a
            folder of Parquet files.
        output_folder: Path of the folder to make. For a text its files have the columns ``id``
            (the line from 0), ``tokens`` and ``layers``; for Parquet, all columns and ``layers``.
        address: str or None. Address of the cluster, as in ``ray.init``. None uses the running
            cluster, or starts Ray on this machine.
        column: str. Column of the sentences in Parquet.
        layers: str or int. As in ``Embedder.embed``.
        float16: bool. Whether to store float16.
        resume: bool. Whether to continue an interrupted run in the folder.
        cpus: float. CPUs of each actor.
        gpus: float. GPUs of each actor. ``cpus`` or ``gpus`` must be above 0.
        progress: bool. Whether Ray shows its progress.
        **kwargs: Arguments of ``Embedder``.

    Returns:
        A dict of ``sentences``, ``tokens`` and ``files`` of this run, and ``resumed_files``.

    Raises:
        ImportError: If Ray is not installed.
        OSError: If this process cannot read or write a file, or another process writes the
            folder.
        ValueError: If an argument or the input is invalid; if the folder contains files and
            ``resume`` is False; if its run had other settings or input; if Ray or an actor
            fails.
    """
    import_extra("ray", "embed_files", "Ray", "ray")
    if min(cpus, gpus) < 0 or max(cpus, gpus) == 0:
        raise ValueError(
            "embed_files expects cpus and gpus of 0 or more, and one of them above 0. "
            f"Received: cpus={cpus}, gpus={gpus}"
        )
    folder, source = local_path(output_folder).absolute(), local_path(input_path).absolute()
    has_columns = is_parquet(source)
    bound = inspect.signature(Embedder).bind(preset, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    sizes = arguments["cache"], arguments["batch_tokens"]
    arguments["cache"], arguments["batch_tokens"] = check_sizes(*sizes, arguments["token_cache"])
    parts = _parts_of_parquet(source, column) if has_columns else _parts_of_text(source)
    if not parts:
        raise ValueError(f"Expected sentences to embed. Received: {source}, without any")
    # Actors have another working directory.
    for name in ("preset", "options", "token_cache"):
        arguments[name] = absolute_preset(arguments[name])
    arguments |= {"column": column if has_columns else "tokens"}
    bilm = Preset(preset, arguments["options"]).read()
    arguments |= {
        "layers": LayerChoice.of(layers, bilm.config.n_layers + 1).name,
        "float16": bool(float16),
    }
    fingerprint = _fingerprint(bilm)
    engine, dtype = arguments["engine"], arguments["dtype"]
    if engine == "auto" and gpus:
        engine = "keras"
    check_engine(engine, dtype)
    if engine == "auto":  # The nodes may have different CPUs.
        engine, _ = choose_engine(bilm.config, dtype)
    arguments["engine"] = engine
    cache = arguments["token_cache"]
    settings = {
        **arguments,
        "preset": fingerprint,
        "options": None,  # They are part of the fingerprint.
        "token_cache": cache and [digest_of(file) for file in cache],
        "input": [digest_of(file) for file in sorted({part.file for part in parts})],
        "backend": keras.backend.backend(),
        "files": len(parts),  # LayerDataset refuses a folder with fewer files.
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(folder.name + ".lock"), f"writes {folder}"):
        claim_folder(folder, settings, resume)
        left = [part for part in parts if not _file_of(folder, part.number).exists()]
        counts = {"sentences": 0, "tokens": 0, "files": len(left)}
        constructor = (folder, fingerprint, arguments)
        try:
            rows = _map_parts(left, constructor, address, cpus, gpus, progress) if left else ()
            for row in rows:
                counts["sentences"] += row["sentences"]
                counts["tokens"] += row["tokens"]
        except BaseException:
            leave_folder(folder)
            raise
        for unfinished in folder.glob("*.tmp"):  # Left by actors that were killed.
            unfinished.unlink()
    return {**counts, "resumed_files": len(parts) - len(left)}


@dataclasses.dataclass(frozen=True)
class _Part:
    """Rows of the input that become one file of the output."""

    number: int
    file: str
    group: int | None  # The row group of Parquet; None for a text.
    start: int  # A row of the group, or a byte of the text.
    stop: int
    first: int  # The index of the first line of a text.

    def read(self) -> Any:
        pyarrow, parquet = import_pyarrow()
        size = self.stop - self.start
        if self.group is not None:
            with parquet_errors(self.file), parquet.ParquetFile(self.file) as file:
                return file.read_row_group(self.group).slice(self.start, size)
        with open(self.file, "rb") as file:
            file.seek(self.start)
            text = file.read(size).decode("utf-8").removesuffix("\n")
        if self.start == 0:
            text = text.removeprefix("\ufeff")
        sentences = [split_tokens(line) for line in text.split("\n")]
        ids = pyarrow.array(range(self.first, self.first + len(sentences)), pyarrow.int64())
        tokens = pyarrow.array(sentences, pyarrow.list_(pyarrow.string()))
        return pyarrow.table({"id": ids, "tokens": tokens})


def _parts_of_text(path: pathlib.Path) -> list[_Part]:
    parts: list[_Part] = []
    start = first = 0
    with open(path, "rb") as file:
        for _ in read_lines(file):  # Check the encoding: the error names the line.
            pass
        file.seek(0)
        for lines in cut(file, len, ROWS_IN_A_FILE, BYTES_IN_A_FILE):
            stop = start + sum(map(len, lines))
            parts.append(_Part(len(parts), str(path), None, start, stop, first))
            start, first = stop, first + len(lines)
    return parts


def _parts_of_parquet(path: pathlib.Path, column: str) -> list[_Part]:
    _, parquet = import_pyarrow()
    parts: list[_Part] = []
    for file in parquet_files(path):
        with parquet_errors(file), parquet.ParquetFile(file) as opened:
            if column not in (names := opened.schema_arrow.names):
                raise ValueError(
                    f"Expected a column {column!r} of sentences in {file}. "
                    f"Received: columns {', '.join(names)}"
                )
            if "layers" in names:
                raise ValueError(
                    f"Expected no column 'layers' in {file}, because embed_files adds it. "
                    "Received: one. Rename it, or leave it out"
                )
            for group in range(opened.num_row_groups):
                rows = opened.metadata.row_group(group).num_rows
                for start in range(0, rows, ROWS_IN_A_FILE):
                    stop = min(start + ROWS_IN_A_FILE, rows)
                    parts.append(_Part(len(parts), str(file), group, start, stop, 0))
    return parts


class _EmbedPart:
    """Read a part of the input, embed it, and write a file of the output."""

    def __init__(self, folder: pathlib.Path, fingerprint: list[str], arguments: dict) -> None:
        bilm = Preset(arguments["preset"], arguments.get("options")).read()
        if _fingerprint(bilm) != fingerprint:
            raise ValueError(
                f"Expected the same biLM on every node. Received: {arguments['preset']} with "
                "other weights or options on this node"
            )
        self._folder = folder
        self._column = arguments["column"]
        self._embed = EmbedBatch(**arguments)

    def __call__(self, batch: Any) -> Any:
        pyarrow, parquet = import_pyarrow()
        counts = []
        for part in (_Part(**row) for row in batch.to_pylist()):
            table = part.read()
            lengths = [len(sentence or ()) for sentence in _sentences(table, self._column)]
            bounds = ROWS_IN_A_GROUP, TOKENS_IN_A_GROUP
            groups = cut(range(len(lengths)), lengths.__getitem__, *bounds)
            tables = (self._embed(table.slice(rows[0], len(rows))) for rows in groups)
            with atomic_write(_file_of(self._folder, part.number)) as temporary:
                first = next(tables)
                with parquet.ParquetWriter(temporary, first.schema) as writer:
                    for embedded in itertools.chain([first], tables):
                        writer.write_table(embedded)
            counts.append({"sentences": len(lengths), "tokens": sum(lengths)})
        return pyarrow.Table.from_pylist(counts)


def _map_parts(
    parts: list[_Part],
    constructor: Iterable,
    address: str | None,
    cpus: float,
    gpus: float,
    progress: bool,
) -> Iterator[dict]:
    """Yield what ``_EmbedPart(*constructor)`` returns for each part, on the cluster."""
    import ray

    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(address, log_to_driver=False, logging_level=30)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = progress
        available = ray.cluster_resources()
        most = available.get("GPU", 0) / gpus if gpus else available.get("CPU", 1) / cpus
        rows = [dataclasses.asdict(part) for part in parts]
        counts = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _EmbedPart,
            fn_constructor_args=constructor,
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=max(1, int(most))),
            num_cpus=cpus,
            num_gpus=gpus,
            runtime_env={"env_vars": {"KERAS_BACKEND": keras.backend.backend()}},
        )
        yield from counts.iter_rows()
    except ray.exceptions.RayError as error:
        raise ValueError(
            f"Expected Ray to embed all of the input. Received: {_reason(error)}. Mend this, and "
            "continue with resume=True (--resume), which keeps the finished files"
        ) from error
    finally:
        if is_ours:
            ray.shutdown()


def _limit_threads() -> None:
    """Let the backend use as many threads as Ray gives CPUs to this actor."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return
    context = ray.get_runtime_context()
    if context.get_actor_id() is not None:
        cpus = max(1, int(context.get_assigned_resources().get("CPU", 1)))
        # The backend reads these when it makes its first tensor. Values of the user stay.
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
            os.environ.setdefault(name, str(cpus))


def _sentences(table: Any, column: str) -> list[list[str] | None]:
    values = table.column(column).to_pylist()
    return [split_tokens(value) if isinstance(value, str) else value for value in values]


def _file_of(folder: pathlib.Path, number: int) -> pathlib.Path:
    return folder / f"layers-{number:08}.parquet"


def _fingerprint(bilm: BiLMFile) -> list[str]:
    """Return the digests of the weights and the options of a biLM."""
    return [bilm.fingerprint(), bilm.config.digest()]


def _reason(error: Exception) -> str:
    """Return the last error in the traceback that Ray passes on, or Ray's own error."""
    found = re.findall(r"^[\w.]*Error: .*$", str(error), re.MULTILINE)
    own = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return (found[-1] if found else own).rstrip(".")
