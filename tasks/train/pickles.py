"""Refuses pickles that could run code, before anything unpickles them.

A distributed checkpoint holds two pickles: `.metadata` (torch's index of the tensors) and the
`data.pkl` inside `common.pt`. A pickle runs code through the names that it imports, so each name is
compared with the few that torch and megatron-core write. The opcodes are read, never executed; what
this reader cannot follow is refused.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Iterable
from pathlib import Path

from configs.errors import CheckpointError

_ALLOWED = frozenset(
    {
        "collections OrderedDict",
        "pathlib PosixPath",
        "pathlib._local PosixPath",
        "torch FloatStorage",
        "torch BFloat16Storage",
        "torch HalfStorage",
        "torch DoubleStorage",
        "torch IntStorage",
        "torch LongStorage",
        "torch ByteStorage",
        "torch BoolStorage",
        "torch Size",
        "torch bfloat16",
        "torch bool",
        "torch float16",
        "torch float32",
        "torch float64",
        "torch int32",
        "torch int64",
        "torch uint8",
        "torch.serialization _get_layout",
        "torch._utils _rebuild_tensor_v2",
        "torch.distributed.checkpoint.metadata BytesStorageMetadata",
        "torch.distributed.checkpoint.metadata ChunkStorageMetadata",
        "torch.distributed.checkpoint.metadata Metadata",
        "torch.distributed.checkpoint.metadata MetadataIndex",
        "torch.distributed.checkpoint.metadata StorageMeta",
        "torch.distributed.checkpoint.metadata TensorProperties",
        "torch.distributed.checkpoint.metadata TensorStorageMetadata",
        "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING",
        "torch.distributed.checkpoint.filesystem _StorageInfo",
    }
)
_STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_NEUTRAL = frozenset({"PROTO", "FRAME"})
_EXTENSIONS = frozenset({"EXT1", "EXT2", "EXT4"})


def check_pickle(content: bytes, source: str) -> None:
    """Raise CheckpointError when the pickle imports a name that no checkpoint of ours needs."""
    for name in _imported_names(content, source):
        if name not in _ALLOWED:
            raise CheckpointError(
                f"{source} holds a pickle that imports {name.replace(' ', '.')}, which no checkpoint "
                "needs: it was not written by this program and was not loaded"
            )


def check_torch_file(path: Path) -> None:
    """Check the pickle inside a file that torch.save wrote."""
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith(".pkl")]
            if len(pickles) != 1:
                raise CheckpointError(f"{path} holds {len(pickles)} pickles; torch writes one")
            content = archive.read(pickles[0])
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{path} is not a file that torch.save wrote: {error}") from error
    check_pickle(content, str(path))


def _imported_names(content: bytes, source: str) -> Iterable[str]:
    """Every `module name` that the pickle imports."""
    memo: dict[int, str | None] = {}
    # What the last opcodes left on the stack: strings, or None where that is not known.
    first: str | None = None
    second: str | None = None
    try:
        for opcode, argument, _ in pickletools.genops(content):
            kind = opcode.name
            if kind in ("GLOBAL", "INST"):
                yield str(argument)
                first, second = second, None
            elif kind == "STACK_GLOBAL":
                if first is None or second is None:
                    raise CheckpointError(f"{source} imports a name that is hidden in its pickle")
                yield f"{first} {second}"
                first, second = None, None
            elif kind in _EXTENSIONS:
                raise CheckpointError(f"{source} holds a pickle that uses extension codes")
            elif kind in _STRINGS:
                first, second = second, str(argument)
            elif kind in _GETS:
                first, second = second, memo.get(int(str(argument)))
            elif kind == "MEMOIZE":
                memo[len(memo)] = second
            elif kind in _PUTS:
                memo[int(str(argument))] = second
            elif kind not in _NEUTRAL:
                first, second = None, None
    except ValueError as error:
        raise CheckpointError(f"{source} holds a broken pickle: {error}") from error
