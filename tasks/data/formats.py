"""Raw text out of one source, document by document; every fault is one sentence with file and place.

    .txt                 one document per file
    .jsonl[.gz|.zst]     one record per line, the text in a field
    .json (in a wheel)   a list of records, or an object of name -> record
    .parquet             one document per row, the text in a column
    datasets folder      the same; of a saved DatasetDict its `train` split, or its only one

Files are streamed, except .txt, .json and a wheel's .parquet, which are read whole.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import IO, Any, cast

import pyarrow
import pyarrow.parquet

from configs.errors import CorpusError
from tasks.data.sources import DATASETS_FORMAT, Source

_BYTE_ORDER_MARK = "\ufeff"
_ROWS_PER_BATCH = 1000


def read_documents(source: Source) -> Iterator[str]:
    """Yield the raw text of each document, in order."""
    try:
        yield from _READERS[source.format](source)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise CorpusError(f"{source.name} is no whole .{source.format} file: {error}") from error
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise CorpusError(f"{source.name} is no whole .{source.format} file: {reason}") from error
    except OSError as error:
        raise CorpusError(f"{source.name} cannot be read: {error.strerror or error}") from error


@contextmanager
def _open_stream(source: Source) -> Iterator[IO[bytes]]:
    """The source's bytes, decompressed."""
    with ExitStack() as stack:
        if source.member is not None:
            archive = stack.enter_context(zipfile.ZipFile(source.path))
            yield stack.enter_context(archive.open(source.member))
        elif source.format.endswith(".gz"):
            yield cast(IO[bytes], stack.enter_context(gzip.open(source.path)))
        elif source.format.endswith(".zst"):
            # Unlike the zstandard library's reader, this one refuses a file that was cut off.
            file = stack.enter_context(pyarrow.OSFile(str(source.path)))
            reader = stack.enter_context(pyarrow.CompressedInputStream(file, "zstd"))
            yield stack.enter_context(io.BufferedReader(reader))
        else:
            yield stack.enter_context(open(source.path, "rb"))


def _read_txt(source: Source) -> Iterator[str]:
    with _open_stream(source) as stream:
        yield _decode(stream.read(), source, 0)


def _read_jsonl(source: Source) -> Iterator[str]:
    offset = 0
    with _open_stream(source) as stream:
        for number, line in enumerate(stream, start=1):
            text = _decode(line, source, offset)
            offset += len(line)
            if text.strip():
                place = f"{source.name}:{number}"
                yield _text_of(_parse_json(text, place), source, place)


def _read_json(source: Source) -> Iterator[str]:
    with _open_stream(source) as stream:
        content = _parse_json(_decode(stream.read(), source, 0), source.name)
    if isinstance(content, list):
        records = list(enumerate(content))
    elif isinstance(content, dict):
        records = list(content.items())
    else:
        raise CorpusError(
            f"{source.name} must hold a list of records or an object of name -> record"
        )
    for key, record in records:
        yield _text_of(record, source, f"{source.name} record {key!r}")


def _read_parquet(source: Source) -> Iterator[str]:
    with _open_stream(source) as stream:
        # Parquet is read from its end: a compressed member must be in memory for that.
        seekable = stream if source.member is None else io.BytesIO(stream.read())
        with pyarrow.parquet.ParquetFile(seekable) as file:
            _check_column(file.schema_arrow.names, source)
            batches = file.iter_batches(batch_size=_ROWS_PER_BATCH, columns=[source.text_field])
            for batch in batches:
                for value in batch.column(0).to_pylist():
                    yield _checked_text(value, source, source.name)


def _read_datasets_folder(source: Source) -> Iterator[str]:
    import datasets  # takes a second to import, and few corpora need it

    try:
        saved = datasets.load_from_disk(str(source.path))
    except (ValueError, KeyError, TypeError, FileNotFoundError) as error:
        raise CorpusError(f"{source.name} is no whole saved datasets folder: {error}") from error
    table = _choose_split(saved, source) if isinstance(saved, datasets.DatasetDict) else saved
    _check_column(table.column_names, source)
    for batch in table.select_columns([source.text_field]).iter(batch_size=_ROWS_PER_BATCH):
        for value in batch[source.text_field]:
            yield _checked_text(value, source, source.name)


def _choose_split(splits: Mapping[str, Any], source: Source) -> Any:
    if len(splits) == 1:
        return next(iter(splits.values()))
    if "train" in splits:
        return splits["train"]
    raise CorpusError(
        f"{source.name} holds the splits {', '.join(splits)} and no train split: give the folder of one"
    )


_READERS: dict[str, Callable[[Source], Iterator[str]]] = {
    "txt": _read_txt,
    "jsonl": _read_jsonl,
    "jsonl.gz": _read_jsonl,
    "jsonl.zst": _read_jsonl,
    "json": _read_json,
    "parquet": _read_parquet,
    DATASETS_FORMAT: _read_datasets_folder,
}


def _decode(content: bytes, source: Source, offset: int) -> str:
    """Decode UTF-8; `offset` is where `content` begins in the (decompressed) file."""
    nul = content.find(b"\0")
    if nul >= 0:
        raise CorpusError(
            f"{source.name} is no text: it has a NUL byte at offset {offset + nul}; give UTF-8 text"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{source.name} is not UTF-8: byte 0x{content[error.start]:02x} at offset "
            f"{offset + error.start} cannot be decoded; convert the file to UTF-8"
        ) from error
    return text.removeprefix(_BYTE_ORDER_MARK) if offset == 0 else text


def _parse_json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise CorpusError(f"{place} is not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{place} is not JSON that can be read: {error}") from error


def _text_of(record: Any, source: Source, place: str) -> str:
    if not isinstance(record, dict):
        raise CorpusError(f"{place} must be a JSON object with the field {source.text_field!r}")
    if source.text_field not in record:
        fields = ", ".join(map(repr, record)) or "none"
        raise CorpusError(
            f"{place} has no field {source.text_field!r}: set {source.text_field_setting} to one of its "
            f"fields ({fields})"
        )
    return _checked_text(record[source.text_field], source, place)


def _checked_text(value: Any, source: Source, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CorpusError(
            f"the field {source.text_field!r} of {place} must hold text, not {type(value).__name__}: set "
            f"{source.text_field_setting} to the field with the text"
        )
    return value


def _check_column(columns: list[str], source: Source) -> None:
    if source.text_field not in columns:
        raise CorpusError(
            f"{source.name} has no column {source.text_field!r}: set {source.text_field_setting} to one "
            f"of its columns ({', '.join(map(repr, columns))})"
        )
