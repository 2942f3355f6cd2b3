"""Embed on a Ray cluster: a callable for Ray Data, and whole files with it.

Ray comes with ``pip install 'keras-elmo[ray]'``.
"""

import dataclasses
import hashlib
import inspect
import io
import itertools
import json
import os
import pathlib

from keras_elmo.embed.parquet import (
    add_layers,
    import_pyarrow,
    layers_shape,
    parquet_files,
    read_layers,
)
from keras_elmo.presets import bundled, read_preset
from keras_elmo.tokenizers.text import read_lines, split_tokens
from keras_elmo.utils.file_lock import locked
from keras_elmo.utils.files import atomic_write, digest_of, holds_files

__all__ = ["EmbedBatch", "embed_files", "layers_shape", "read_layers"]

# A file of the output ends where it would exceed this, and a row group of it.
ROWS_IN_A_FILE, BYTES_IN_A_FILE = 10_000, 2_000_000
ROWS_IN_A_GROUP, TOKENS_IN_A_GROUP = 1000, 10_000


class EmbedBatch:
    """Add a column of layer representations to a batch of Ray Data.

    For ``map_batches`` with actors, each of which keeps one ``Embedder``. Its backend uses as
    many threads as Ray gives CPUs to the actor, and what a batch gives depends on its own
    rows alone: computed again, after a failure, it has the same bits.

    Args:
        preset: Name or path, as for ``ElmoLayer.from_preset``; a path must be there on every
            node.
        column: Of the sentences: lists of tokens, or strings with spaces between them. A
            null stays one.
        output: Of the new column, ``large_list<fixed_size_list<float>>``, a list a token;
            ``read_layers`` gives the arrays back.
        layers: As for ``Embedder.embed``.
        float16: Whether to keep half precision.
        **kwargs: Passed on to ``Embedder``: ``dtype``, ``batch_tokens``, ...

    Call arguments:
        table: ``pyarrow.Table``.

    Returns:
        The table with one column more.

    Raises:
        ImportError: If pyarrow is missing.
        ValueError: If the table lacks the column, or has the new one already; errors of
            ``Embedder``.

    Example:

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
        self, preset, column="tokens", output="layers", layers="all", float16=False, **kwargs
    ):
        import_pyarrow()
        _use_threads(_cpus_of_actor())
        from keras_elmo.embed.embedder import Embedder

        self._embedder = Embedder(preset, **kwargs)
        self._column, self._output = column, output
        self._layers, self._float16 = layers, float16
        shape = self._embedder.embed([[]], layers)[0].shape
        self._shape = (shape[0], shape[2]) if layers == "all" else shape[1:]

    def __call__(self, table):
        names = table.column_names
        if self._column not in names or self._output in names:
            raise ValueError(
                f"EmbedBatch expects a column {self._column!r} of sentences, and none "
                f"{self._output!r} yet. Received: columns {', '.join(names)}"
            )
        sentences = [
            split_tokens(value) if isinstance(value, str) else value
            for value in table.column(self._column).to_pylist()
        ]
        given = [sentence for sentence in sentences if sentence is not None]
        found = iter(self._embedder.embed(given, self._layers, remember=False))
        arrays = [None if sentence is None else self._tokens_first(found) for sentence in sentences]
        return add_layers(table, self._output, arrays, self._shape, self._float16)

    def _tokens_first(self, found):
        array = next(found)
        return array.swapaxes(0, 1) if array.ndim == 3 else array


def _cpus_of_actor():
    """Return how many CPUs Ray gives this process, None outside of an actor."""
    import sys

    if "ray" not in sys.modules:
        return None
    import ray

    if not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return None
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))


def _use_threads(count):
    """Let the backend use so many threads; variables that are set count more."""
    if count is None:
        return
    # Read when the backend starts, with the first tensor.
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ.setdefault(name, str(count))


@dataclasses.dataclass(frozen=True)
class _Part:
    """Rows of the input that make a file of the output."""

    number: int
    file: str
    start: int  # a byte of a text, a row of Parquet
    stop: int
    first_id: int


def embed_files(
    preset,
    input_path,
    output_folder,
    *,
    address=None,
    column="tokens",
    layers="all",
    float16=False,
    resume=False,
    cpus=1,
    gpus=0,
    progress=True,
    **kwargs,
) -> dict:
    """Embed text or Parquet files into a folder of Parquet files, on a Ray cluster.

    Every file of the output is of some rows of the input, in their order, and is renamed when
    it is whole. A part that fails is computed again.

    Args:
        preset: Name or path, as for ``ElmoLayer.from_preset``. All paths must be there on every
            node.
        input_path: A UTF-8 text, a sentence a line; or a Parquet file or a folder of them.
        output_folder: Folder to make: files with the columns ``id``, the line from 0,
            ``tokens`` and ``layers`` of a text; all columns and ``layers`` of Parquet.
        address: Of the cluster, as for ``ray.init``; None for the one that runs, or a new
            one on this machine.
        column: Of the sentences in Parquet.
        layers: As for ``Embedder.embed``.
        float16: Whether to keep half precision.
        resume: Go on with the folder of a job that was stopped.
        cpus: Of each actor, 0 or more.
        gpus: Of each actor, 0 or more; one of the two is above 0.
        progress: Whether Ray shows its progress.
        **kwargs: Passed on to ``Embedder``.

    Returns:
        Dict of ``sentences``, ``tokens`` and ``files`` of this job, and ``resumed_files``.

    Raises:
        ImportError: If Ray is missing.
        OSError: If a file cannot be read or written.
        ValueError: If the folder holds files and ``resume`` is False, or those of a job with
            other settings or input; if an argument or the input is not as above.
    """
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ImportError("Ray is missing: pip install 'keras-elmo[ray]'") from error
    import keras

    from keras_elmo.embed.embedder import Embedder

    if min(cpus, gpus) < 0 or max(cpus, gpus) == 0:
        raise ValueError(
            "embed_files expects cpus and gpus of 0 or more, and one of them above 0. "
            f"Received: cpus={cpus}, gpus={gpus}"
        )
    folder, source = pathlib.Path(output_folder).absolute(), pathlib.Path(input_path).absolute()
    arguments = {"preset": _absolute(preset), **kwargs}
    for name in {"options", "token_cache"} & arguments.keys():
        arguments[name] = _absolute(arguments[name])
    is_parquet = source.is_dir() or source.suffix == ".parquet"
    parts, digest = _cut_parquet(source, column) if is_parquet else _cut_text(source)
    arguments |= {"column": column, "layers": layers, "float16": float16}
    settings = {
        "preset": _fingerprint(arguments["preset"], arguments.get("options")),
        "input": digest,
        **_defaults(Embedder),
        **{name: value for name, value in arguments.items() if name != "preset"},
        # What else the bits depend on.
        "backend": keras.backend.backend(),
        "cache_sha256": _digests(arguments.get("token_cache")),
        "files": len(parts),  # a folder with fewer of them is of a job that was stopped
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(folder.name + ".lock"), f"writes {folder}"):
        _claim(folder, json.loads(json.dumps(settings)), resume)
        left = [part for part in parts if not _file_of(folder, part.number).exists()]
        counts = {"sentences": 0, "tokens": 0, "files": len(left)}
        if left:
            given = [str(folder), is_parquet, settings["preset"], settings["backend"], arguments]
            for row in _map_parts(left, given, address, cpus, gpus, progress):
                counts["sentences"] += row["sentences"]
                counts["tokens"] += row["tokens"]
        for unfinished in folder.glob("*.tmp"):  # of an actor that was killed
            unfinished.unlink()
    return {**counts, "resumed_files": len(parts) - len(left)}


def _absolute(path):
    """Return a path, or a list of them, as it is called from anywhere on this machine."""
    if isinstance(path, list | tuple):
        return [_absolute(one) for one in path]
    if isinstance(path, str | os.PathLike) and str(path) and path not in bundled():
        return os.path.abspath(path)
    return path


def _map_parts(parts, given, address, cpus, gpus, progress):
    """Yield what ``_EmbedPart(*given)`` returns for each part, on the cluster."""
    import ray

    started = not ray.is_initialized()
    if started:
        import keras

        variables = {"KERAS_BACKEND": keras.backend.backend()}
        ray.init(
            address, runtime_env={"env_vars": variables}, log_to_driver=False, logging_level=30
        )
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = progress
        done = ray.data.from_items(
            [dataclasses.asdict(part) for part in parts], override_num_blocks=len(parts)
        ).map_batches(
            _EmbedPart,
            fn_constructor_args=given,
            batch_size=1,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=_most_actors(cpus, gpus)),
            num_cpus=cpus,
            num_gpus=gpus,
        )
        yield from done.iter_rows()
    finally:
        if started:
            ray.shutdown()


class _EmbedPart:
    """Read a part of the input, embed it, write a file of the output."""

    def __init__(self, folder, is_parquet, fingerprint, backend, arguments):
        import keras

        if keras.backend.backend() != backend:
            raise ValueError(
                f"Expected the backend of the job, {backend}, in every process. Received: "
                f"{keras.backend.backend()}. Set KERAS_BACKEND in the runtime_env of ray.init"
            )
        found = _fingerprint(arguments["preset"], arguments.get("options"))
        if found != fingerprint:
            raise ValueError(
                f"Expected the same biLM on every node. Received: {arguments['preset']}, with "
                "other weights or options on this one"
            )
        self._folder = pathlib.Path(folder)
        self._read = _read_parquet if is_parquet else _read_text
        self._column = arguments["column"] if is_parquet else "tokens"
        self._embed = EmbedBatch(**{**arguments, "column": self._column})

    def __call__(self, batch):
        pyarrow, parquet = import_pyarrow()
        made = []
        for part in batch.to_pylist():
            part = _Part(**part)
            table = self._read(part)
            lengths = [_length(value) for value in table.column(self._column).to_pylist()]
            with atomic_write(_file_of(self._folder, part.number)) as (temporary,):
                writer = None
                for start, stop in _groups(lengths):
                    embedded = self._embed(table.slice(start, stop - start))
                    writer = writer or parquet.ParquetWriter(temporary, embedded.schema)
                    writer.write_table(embedded)
                writer.close()
            made.append({"sentences": len(lengths), "tokens": sum(lengths)})
        return pyarrow.Table.from_pylist(made)


def _length(value):
    return len(split_tokens(value) if isinstance(value, str) else value or ())


def _groups(lengths):
    """Yield the bounds of the row groups, which decide what is computed together."""
    start = tokens = 0
    for i, length in enumerate(lengths):
        if i > start and (i - start == ROWS_IN_A_GROUP or tokens + length > TOKENS_IN_A_GROUP):
            yield start, i
            start, tokens = i, 0
        tokens += length
    yield start, len(lengths)


def _cut_text(path):
    """Return the parts of a text and its digest."""
    parts: list[_Part] = []
    digest = hashlib.sha256()
    start = stop = first = line = 0

    def contents(file):
        nonlocal stop
        for content in file:
            digest.update(content)
            stop += len(content)
            yield content

    with open(path, "rb") as file:
        for line, _ in enumerate(read_lines(contents(file)), start=1):  # it checks the text
            if line - first == ROWS_IN_A_FILE or stop - start >= BYTES_IN_A_FILE:
                parts.append(_Part(len(parts), str(path), start, stop, first))
                start, first = stop, line
    if stop > start:
        parts.append(_Part(len(parts), str(path), start, stop, first))
    if not parts:
        raise ValueError(f"Expected a text to embed. Received: {path}, which is empty")
    return parts, digest.hexdigest()


def _cut_parquet(path, column):
    _, parquet = import_pyarrow()
    parts: list[_Part] = []
    facts = []
    for file in parquet_files(path):
        with parquet.ParquetFile(file) as opened:
            if column not in opened.schema_arrow.names:
                raise ValueError(
                    f"Expected a column {column!r} of sentences in {file}. "
                    f"Received: columns {', '.join(opened.schema_arrow.names)}"
                )
            rows = opened.metadata.num_rows
        facts.append((file.name, file.stat().st_size, rows))
        for start in range(0, rows, ROWS_IN_A_FILE):
            stop = min(start + ROWS_IN_A_FILE, rows)
            parts.append(_Part(len(parts), str(file), start, stop, start))
    if not parts:
        raise ValueError(f"Expected Parquet files with rows. Received: {path}, with none")
    return parts, hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _read_text(part):
    pyarrow, _ = import_pyarrow()
    with open(part.file, "rb") as file:
        file.seek(part.start)
        content = file.read(part.stop - part.start)
    # A mark at the very start of a text alone is none of its first token.
    before = [b"\n"] * (part.start > 0)
    lines = read_lines(itertools.chain(before, io.BytesIO(content)))
    sentences = [split_tokens(line) for line in lines][len(before) :]
    ids = pyarrow.array(range(part.first_id, part.first_id + len(sentences)), pyarrow.int64())
    tokens = pyarrow.array(sentences, pyarrow.list_(pyarrow.string()))
    return pyarrow.table({"id": ids, "tokens": tokens})


def _read_parquet(part):
    pyarrow, parquet = import_pyarrow()
    tables, first = [], 0
    with parquet.ParquetFile(part.file) as file:
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            start, stop = max(part.start - first, 0), min(part.stop - first, rows)
            if start < stop:
                tables.append(file.read_row_group(group).slice(start, stop - start))
            first += rows
    return pyarrow.concat_tables(tables)


def _file_of(folder, number):
    return folder / f"layers-{number:08}.parquet"


def _fingerprint(preset, options):
    """Return what tells a biLM from others: the digests of its weights and of its options."""
    bilm = read_preset(preset, options)
    return [bilm.fingerprint(), bilm.config.digest()]


def _digests(token_cache):
    """Return the SHA-256 of each file of a token cache; ``Embedder`` checks that it is a pair."""
    if not isinstance(token_cache, list | tuple):
        return None
    return list(map(digest_of, token_cache))


def _defaults(callable):
    parameters = inspect.signature(callable).parameters.items()
    return {name: p.default for name, p in parameters if p.default is not p.empty}


def _most_actors(cpus, gpus):
    import ray

    there = ray.cluster_resources()
    most = there.get("GPU", 0) / gpus if gpus else there.get("CPU", 1) / cpus
    return max(1, int(most))


def _claim(folder, settings, resume):
    """Make the output folder, or check that a job can go on in it."""
    stored = folder / "_settings.json"  # readers of Parquet leave out what begins so
    # A job that wrote nothing, as one with a wrong argument, leaves its place to the next.
    if stored.exists() and any(path != stored for path in folder.iterdir()):
        if not resume:
            raise ValueError(
                f"Expected a new folder. Received: {folder}, with the files of another job. "
                "Resume it (resume=True, --resume), or remove the folder"
            )
        earlier = json.loads(stored.read_text())
        if earlier != settings:
            other = [name for name in settings if earlier.get(name) != settings[name]]
            raise ValueError(
                "A job is resumed with the preset, input and settings that it began with. "
                f"Received for {folder}: another {', '.join(other)}"
            )
        return
    if folder.exists() and not stored.exists() and holds_files(folder):
        raise ValueError(f"Expected a new folder. Received: {folder}, which is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(stored) as (temporary,):
        temporary.write_text(json.dumps(settings))
