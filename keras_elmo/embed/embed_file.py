"""Embed many sentences into one hdf5 file, in parts that survive an interruption.

bilm-tf and AllenNLP use this layout. Each sentence has a dataset named by its index from 0, of
shape ``(layers, tokens, width)`` or ``(tokens, width)``. The dataset ``sentences`` contains the
tokens of each sentence, with spaces between them.
"""

import contextlib
import itertools
import json
import os
import pathlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, TextIO, cast

import h5py
import numpy as np

from keras_elmo.formats.hdf5 import Hdf5Reader
from keras_elmo.layer_choice import LayerChoice, Layers
from keras_elmo.text_input import read_token_lists
from keras_elmo.utils.batches import cut
from keras_elmo.utils.checks import invalid, shorten
from keras_elmo.utils.files import PathLike, check_output, locked
from keras_elmo.utils.progress import progress_bar

# The bounds of a part.
SENTENCES_IN_A_PART = 2000
TOKENS_IN_A_PART = 50_000

_BEGIN_ANEW = "Pass overwrite=True (--force) without resume to begin anew"
# No characters that hdf5 cannot store, or that would separate tokens in the dataset ``sentences``.
_TOKEN = re.compile("[^ \t\r\n\0\ud800-\udfff]+")


def embed_file(  # noqa: D417 - a method of Embedder
    embedder: Any,
    input_file: PathLike | BinaryIO | TextIO | Iterable[Sequence[str]],
    output_file: PathLike,
    layers: Layers = "all",
    float16: bool = False,
    compression: str | None = None,
    resume: bool = False,
    progress: bool = True,
    raw: bool = False,
    column: str | None = None,
    overwrite: bool = False,
) -> dict[str, int | float]:
    """Embed sentences into an hdf5 file, in bounded memory.

    Args:
        input_file: Path, open file, or iterable of lists of str. A file is a UTF-8 text with one
            sentence a line, and spaces or tabs between tokens. A path that ends with .gz, .bz2
            or .xz is decompressed. Other white space, such as the no-break space, is part of a
            token. A blank line is an empty sentence.
        output_file: str or path. The hdf5 file to write. It gets one dataset for each sentence,
            named by the index of the sentence from 0, with the array of ``embed``; and the
            sentences, with spaces between tokens, as the dataset ``sentences``.
        layers: As in ``embed``.
        float16: bool. Whether to store float16, half the size.
        compression: str or None. ``"gzip"`` or ``"lzf"``, as in ``h5py``.
        resume: bool. Whether to continue an interrupted run. An unfinished output is a
            folder next to it, ``OUTPUT.parts``. A finished output of the same sentences and
            settings is left unchanged. The engine, backend and batches may be others.
        progress: bool. Whether to show a progress bar on stderr.
        raw: bool. Whether to split lines and cells, which are raw text, with ``tokenize`` first.
        column: str or None. Column of the sentences, if the input is the path of a table:
            CSV, TSV, JSON lines or Parquet. A cell is a str, or a list of tokens.
        overwrite: bool. Whether to replace an output that exists, finished or not.

    Returns:
        A dict of ``sentences``, ``tokens``, ``seconds`` and ``tokens_per_s`` of this run,
        and ``resumed_tokens``, the tokens that an earlier run embedded.

    Raises:
        OSError: If a file cannot be read or written, if another process writes the output
            (it locks the file ``.OUTPUT.lock``), or if the files of an earlier run are damaged.
        ValueError: If an argument is invalid or the text is not UTF-8; if the output
            exists, or there is an unfinished run and ``resume`` is False; if an earlier run
            had other settings or other sentences; if a cell of the column has no text; if a
            token is not a str, is empty or contains white space.
    """
    if compression not in (None, "gzip", "lzf"):
        raise invalid(
            "embed_file expects compression to be None, 'gzip' or 'lzf'", f"{compression=}"
        )
    if overwrite and resume:
        raise invalid("embed_file expects overwrite (--force) or resume (--resume)", "both")
    choice = LayerChoice.of(layers, embedder.config.n_layers + 1)
    inputs, sentences = embedder.preset_files, cast(Any, input_file)
    if isinstance(input_file, PathLike):
        inputs = [*inputs, input_file]
    if isinstance(input_file, PathLike) or hasattr(input_file, "read"):
        sentences = read_token_lists(sentences, column, embedder.tokenize if raw else None)
    output = check_output(output_file, overwrite or resume, inputs).resolve()  # a link stays
    settings = {
        **embedder.settings(),
        "layers": choice.name,
        "float16": bool(float16),
        "compression": compression,
    }
    dtype = "float16" if float16 else "float32"
    counts = {"sentences": 0, "tokens": 0, "resumed_tokens": 0}
    start = time.perf_counter()
    parts = cut(_checked(sentences), SENTENCES_IN_A_PART, TOKENS_IN_A_PART)
    # Read some of the input before anything is made or shown: it may be invalid.
    first = list(itertools.islice(parts, 1))
    with (
        locked(output.with_name(f".{output.name}.lock"), f"writes {output}"),
        progress_bar(progress, unit=" sentences") as bar,
    ):
        check_output(output, overwrite or resume, inputs)  # Reading may have taken long.
        file = _LayerFile(output, settings, resume, overwrite)
        earlier = file.earlier_sentences()
        for part in itertools.chain(first, parts):
            lines = [" ".join(sentence) for sentence in part]
            found = list(itertools.islice(earlier, len(lines)))
            if not found:
                # A token's last bit can depend on its batch. Each part computes its tokens anew,
                # so that a resumed run gives the same file.
                arrays = embedder.iterate(part, choice, remember=False, progress=False)
                arrays = ((i, array.astype(dtype)) for i, array in arrays)
                file.write(counts["sentences"], lines, arrays)
            elif found != lines:
                raise _differs(output, "other sentences")
            counts["sentences"] += len(part)
            counts["resumed_tokens" if found else "tokens"] += sum(map(len, part))
            bar.update(len(part))
            bar.set_postfix_str(f"{counts['tokens'] / (time.perf_counter() - start):.0f} tokens/s")
        if next(earlier, None) is not None:  # the earlier input was longer
            raise _differs(output, "other sentences")
        file.finish(counts["sentences"])
    seconds = time.perf_counter() - start
    return {**counts, "seconds": seconds, "tokens_per_s": counts["tokens"] / seconds}


class _LayerFile:
    """An hdf5 file that is written in parts, which survive an interruption, and then merged.

    The parts are hdf5 files in the folder ``OUTPUT.parts``. Parts and output are written under
    another name and then renamed, so that a file with its final name is complete. Each part
    stores its sentences, and the settings that its arrays depend on.
    """

    def __init__(self, output: pathlib.Path, settings: dict, resume: bool, overwrite: bool) -> None:
        self._output, self._folder = output, output.with_name(output.name + ".parts")
        self._settings, self._compression = json.dumps(settings), settings["compression"]
        self._is_finished = resume and output.exists() and not self._folder.exists()
        self._parts: list[pathlib.Path] = []
        if overwrite:
            self._remove_parts()
        elif self._folder.exists() and not resume:
            raise invalid(
                "embed_file expects resume=True (--resume) to continue an unfinished run",
                f"resume=False, and its folder {self._folder}",
                _BEGIN_ANEW,
            )

    def earlier_sentences(self) -> Iterator[str]:
        """Yield the sentences that an earlier run embedded; raise if it had other settings."""
        parts = map(self._part, itertools.count())
        paths = [self._output] if self._is_finished else itertools.takewhile(os.path.exists, parts)
        for path in paths:
            with self._open(path) as file:
                stored = file.attribute("settings")
                if stored != self._settings:
                    raise _differs(path, f"the settings {stored} in place of {self._settings}")
                lines = file.read_strings("sentences")
            self._parts.append(path)
            yield from lines

    def write(self, start: int, lines: list[str], arrays: Iterable[tuple[int, np.ndarray]]) -> None:
        """Write a part: its sentences; and in any order, the index and the array of each.

        ``start`` is the number of sentences before the part.
        """
        if self._is_finished:
            raise _differs(self._output, "other sentences")
        path = self._part(len(self._parts))
        with self._new_file(path) as file:
            file.create_dataset("sentences", data=np.array(lines, h5py.string_dtype()))
            for i, array in arrays:
                compression = self._compression if array.size else None
                file.create_dataset(str(start + i), data=array, compression=compression)
        self._parts.append(path)

    def finish(self, count: int) -> None:
        """Merge the parts, with this number of sentences, into the output."""
        if self._is_finished:
            return
        with self._new_file(self._output) as whole:
            lines = whole.create_dataset("sentences", (count,), h5py.string_dtype())
            start = 0
            for path in self._parts:
                with self._open(path) as part:
                    stored = part.read_strings("sentences")
                    lines[start : start + len(stored)] = stored
                    for i in range(start, start + len(stored)):
                        part.copy(str(i), whole)
                start += len(stored)
        self._remove_parts()

    @contextlib.contextmanager
    def _new_file(self, path: pathlib.Path) -> Iterator[h5py.File]:
        """Open a new file with our settings. It gets its name when it is complete."""
        self._folder.mkdir(exist_ok=True)
        unfinished = self._folder / "unfinished.hdf5"
        with h5py.File(unfinished, "w") as file:
            file.attrs["settings"] = self._settings
            yield file
        os.replace(unfinished, path)

    def _part(self, number: int) -> pathlib.Path:
        return self._folder / f"{number:08}.hdf5"

    def _remove_parts(self) -> None:
        """Remove the parts, and the folder if it contains nothing else."""
        # Remove the last part first: after a kill, a new run can resume with the first parts.
        for path in sorted(self._folder.glob("[0-9u]*.hdf5"), reverse=True):
            path.unlink()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _open(self, path: pathlib.Path) -> Hdf5Reader:
        return Hdf5Reader(path, kind="Layer file", remedy=f"Remove it and resume. {_BEGIN_ANEW}")


def _differs(path: pathlib.Path, has: str) -> ValueError:
    expected = "embed_file(resume=True) expects the input and the settings of the earlier run"
    return invalid(expected, f"{path}, which has {has}", _BEGIN_ANEW)


def _checked(sentences: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    """Yield the sentences as lists; raise if the output cannot store one."""
    for i, sentence in enumerate(sentences):
        is_text = isinstance(sentence, str | bytes) or not isinstance(sentence, Iterable)
        tokens: list[Any] = [sentence] if is_text else list(sentence)
        for token in tokens:
            if is_text or not isinstance(token, str) or not _TOKEN.fullmatch(token):
                raise invalid(
                    "Expected lists of tokens, which are str, not empty, and contain no white "
                    "space, NUL character or lone surrogate",
                    f"{shorten(token)} in sentence {i}",
                    "Split a text first, for example with a WordTokenizer",
                )
        yield tokens
