"""Write the layer representations of many sentences to one hdf5 file, in parts.

bilm-tf and AllenNLP use this layout. Each line of the input has a dataset named by its index
from 0, of shape ``(layers, tokens, width)`` or ``(tokens, width)``. The dataset ``sentences``
contains the lines.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

import h5py
import numpy as np

from keras_elmo.embed.run_folder import claim_folder, leave_folder
from keras_elmo.formats.hdf5 import Hdf5Reader, create_hdf5
from keras_elmo.tokenizers.token_lists import split_tokens
from keras_elmo.utils.batches import cut
from keras_elmo.utils.file_lock import locked
from keras_elmo.utils.files import atomic_write, digest_of, local_path

# The bounds of a part.
SENTENCES_IN_A_PART = 2000
TOKENS_IN_A_PART = 50_000

# A sentence is in memory as a whole: 40,000 tokens take 4 GB in the largest released biLM.
_MOST_TOKENS = 40_000

# A finished file may have other values of these settings: only the rounding differs.
_CHANGES_ROUNDING = {"engine", "backend", "batch_tokens"}

_REMEDY = "Remove it, or call embed_file with overwrite=True (--force) and without resume"
_NOT_IN_HDF5 = re.compile("[\0\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Part:
    """Lines of the input that are embedded together."""

    number: int
    start: int  # The index of the first line in the input.
    lines: list[str]  # Without line ends.
    sentences: list[list[str]]  # The tokens of each line.
    already_written: bool  # By an earlier run.

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return sum(map(len, self.sentences))


class LayerFileWriter:
    """Write a file of layer representations in parts that survive an interruption.

    The parts are files in the folder ``OUTPUT.parts`` until ``finish`` merges them. Parts and
    output are first written under a temporary name and then renamed. A second file next to each
    part contains two SHA-256 digests: of the lines and settings it was made from, and of the
    part, so that damage is noticed. The lock ``OUTPUT.lock`` is held inside ``with``, whose
    start raises the errors of ``claim_folder`` and ``locked``.

    Args:
        output: Path of the hdf5 file.
        settings: dict for JSON. Everything that the arrays depend on, apart from the lines.
        resume: bool. Whether to use the parts of an earlier run, or its finished file.
        compression: str or None. ``"gzip"`` or ``"lzf"``, as in ``h5py``.

    Examples:
        >>> with LayerFileWriter(Path("layers.hdf5"), {"layers": "top"}) as writer:
        ...     for part in writer.parts(["a b", "c"]):
        ...         writer.write(part, enumerate([np.zeros((2, 6)), np.zeros((1, 6))]))
        ...     writer.finish()
    """

    def __init__(
        self, output: Path, settings: dict, resume: bool = False, compression: str | None = None
    ) -> None:
        self._output = output = local_path(output).resolve()  # the parts are next to it
        self._folder = output.with_name(output.name + ".parts")
        bounds = {"sentences": SENTENCES_IN_A_PART, "tokens": TOKENS_IN_A_PART}
        self._settings = json.loads(json.dumps({**settings, "part": bounds}))
        self._resume = resume
        self._compression = compression
        self._finished_lines: int | None = None
        self._count = 0

    def __enter__(self) -> Self:
        if not self._output.parent.is_dir():
            raise FileNotFoundError(f"There is no folder {self._output.parent} for the output")
        with contextlib.ExitStack() as stack:
            lock = self._output.with_name(self._output.name + ".lock")
            stack.enter_context(locked(lock, f"writes {self._output}"))
            if self._resume and self._output.exists() and not self._folder.exists():
                self._finished_lines = self._check_finished()
            else:
                claim_folder(self._folder, self._settings, self._resume)
            self._exit = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        leave_folder(self._folder)
        self._exit.close()

    def parts(
        self, lines: Iterable[str], place: Callable[[int], str] = "sentence {}".format
    ) -> Iterator[Part]:
        """Cut lines without line ends into parts, and check which parts are written.

        ``place`` describes in errors where in the input a line, numbered from 0, is.

        Raises:
            OSError: If a written part is damaged.
            ValueError: If hdf5 cannot store a line, if a line has too many tokens, or if an
                earlier run had other lines.
        """
        start = 0
        bounds = SENTENCES_IN_A_PART, TOKENS_IN_A_PART
        for part in cut(lines, lambda line: len(split_tokens(line)), *bounds):
            _check_lines(part, start, place)
            if self._finished_lines is None:
                is_written = self._is_written(self._count, part)
            else:
                with self._open_finished() as file:
                    is_written = file.read_strings("sentences", start, start + len(part)) == part
                if not is_written:
                    raise self._other_lines()
            yield Part(self._count, start, part, [split_tokens(line) for line in part], is_written)
            start += len(part)
            self._count += 1
        if self._finished_lines not in (None, start):
            raise self._other_lines()

    def write(self, part: Part, arrays: Iterable[tuple[int, np.ndarray]]) -> None:
        """Write a part: the index in the part and the array of each sentence, in any order."""
        path = self._part_file(part.number)
        digests = path.with_suffix(".sha256")
        with atomic_write(digests) as digests, atomic_write(path) as temporary:
            with create_hdf5(temporary) as file:
                file["sentences"] = np.array(part.lines, h5py.string_dtype())
                for i, array in arrays:
                    kind = self._compression if array.size else None
                    file.create_dataset(str(part.start + i), data=array, compression=kind)
            digests.write_text(f"{self._source_digest(part.lines)} {digest_of(temporary)}")

    def finish(self) -> None:
        """Merge the parts into the output, once all of them are written."""
        if self._finished_lines is not None:
            return
        parts = [self._part_file(number) for number in range(self._count)]
        merged = self._folder / "merged.hdf5"
        with atomic_write(merged) as temporary, create_hdf5(temporary) as whole:
            whole.attrs["settings"] = json.dumps(self._settings)
            lines = np.array([], h5py.string_dtype())
            whole.create_dataset("sentences", data=lines, maxshape=(None,))
            for part in parts:
                with Hdf5Reader(part, kind="Part", remedy="Remove it, and resume") as file:
                    for name in file.names():
                        if name != "sentences":
                            file.copy(name, whole)
                    _append_lines(file.read_strings("sentences"), whole)
        os.replace(merged, self._output)
        # Remove the settings last: without them the folder would be refused at the next run.
        for part in parts:
            part.unlink()
            part.with_suffix(".sha256").unlink()
        shutil.rmtree(self._folder)

    def _part_file(self, number: int) -> Path:
        return self._folder / f"{number:08}.hdf5"

    def _source_digest(self, lines: list[str]) -> str:
        return hashlib.sha256("\n".join([json.dumps(self._settings), *lines]).encode()).hexdigest()

    def _is_written(self, number: int, lines: list[str]) -> bool:
        """Return whether an earlier run wrote this part; raise if it had other lines."""
        path = self._part_file(number)
        digests = path.with_suffix(".sha256")
        if not (path.exists() and digests.exists()):
            return False
        source, _, content = digests.read_bytes().partition(b" ")
        if source != self._source_digest(lines).encode():
            raise ValueError(
                f"{path} was made from other lines. Was the input changed? Remove {self._folder} "
                "to start again"
            )
        if content != digest_of(path).encode():
            raise OSError(f"{path} is damaged. Remove it and resume: it is computed again")
        return True

    def _check_finished(self) -> int:
        """Check that the output has the settings of this run; return the number of lines."""
        with self._open_finished() as file:
            names = file.names()
            settings, count = None, -1
            with contextlib.suppress(ValueError):  # a file without settings
                count = file.declared("sentences").shape[0]
                settings = json.loads(file.attribute("settings"))
        ours, theirs = self._settings, settings if isinstance(settings, dict) else {}
        names_of_both = sorted(ours.keys() | theirs.keys())
        differing = [name for name in names_of_both if ours.get(name) != theirs.get(name)]
        if not _CHANGES_ROUNDING.issuperset(differing):
            raise ValueError(
                f"{self._output} exists and was made with other settings. "
                f"Expected: { ({name: theirs.get(name) for name in differing}) }. "
                f"Received: { ({name: ours.get(name) for name in differing}) }. {_REMEDY}"
            )
        if len(names) != count + 1:  # the sentences, and their text
            raise ValueError(
                f"{self._output} is damaged. Expected: {count} sentences. "
                f"Received: {len(names) - 1}. {_REMEDY}"
            )
        return count

    def _open_finished(self) -> Hdf5Reader:
        return Hdf5Reader(self._output, kind="Layer file", remedy=_REMEDY)

    def _other_lines(self) -> ValueError:
        return ValueError(
            f"{self._output} is finished and contains other lines. Was the input changed? {_REMEDY}"
        )


def _append_lines(lines: list[str], whole: h5py.File) -> None:
    sentences = whole["sentences"]
    start = len(sentences)
    sentences.resize(start + len(lines), axis=0)
    sentences[start:] = lines


def _check_lines(lines: list[str], start: int, place: Callable[[int], str]) -> None:
    for i, line in enumerate(lines, start=start):
        if wrong := _NOT_IN_HDF5.search(line):
            raise ValueError(
                "The output also stores the lines, and hdf5 cannot store NUL characters or lone "
                f"surrogates. Received: {wrong[0]!r} in {place(i)}. Remove it"
            )
        if len(line) > _MOST_TOKENS and (tokens := len(split_tokens(line))) > _MOST_TOKENS:
            raise ValueError(
                f"Expected sentences of at most {_MOST_TOKENS} tokens. Received: {tokens} in "
                f"{place(i)}. Put each sentence on its own line"
            )
