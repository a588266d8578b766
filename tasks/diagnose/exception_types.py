"""The failure class of an exception's type, by its name alone."""

from __future__ import annotations

import builtins

from tasks.diagnose.classes import CLASSES

WRAPPERS = (
    "ChildFailedError",
    "ProcessExitedException",
    "ProcessRaisedException",
    "CheckpointException",
    "SignalException",
    "BackendCompilerFailed",
    "TorchRuntimeError",
    "RayTaskError",
    "RayActorError",
    "ActorDiedError",
    "ActorUnavailableError",
    "NodeDiedError",
    "TrainingFailedError",
    "WorkerGroupError",
    "WorkerCrashedError",
    "RemoteError",
    "EngineDeadError",
    "SystemExit",
    "ProcessGroupError",
    "ExceptionGroup",
    "BaseExceptionGroup",
)
"""Exceptions that only report another process's failure, or wrap another exception."""
_BY_SUFFIX = (
    ("OutOfMemoryError", "OutOfMemoryError"),
    ("ModuleNotFoundError", "ImportError"),
    ("JSONDecodeError", "ValueError"),
    ("AcceleratorError", "CUDAError"),
    ("CommError", "ConnectionError"),
    ("ConnectionClosed", "ConnectionError"),
    ("DisconnectedError", "ConnectionError"),
    ("ConnectorError", "ConnectionError"),
    ("ConnectError", "ConnectionError"),
    ("ConnectTimeout", "ConnectionError"),
    ("ReadTimeout", "ConnectionError"),
    ("ReadTimeoutError", "ConnectionError"),
    ("SSLError", "ConnectionError"),
    ("ProxyError", "ConnectionError"),
    ("gaierror", "ConnectionError"),
    ("IncompleteRead", "ConnectionError"),
    ("UsageError", "ArgumentError"),
    ("BadParameter", "ArgumentError"),
    ("ConfigAttributeError", "AttributeError"),
    ("MissingMandatoryValue", "ArgumentError"),
    ("TimeoutExpired", "CalledProcessError"),
    ("MemoryError", "OutOfMemoryError"),
    ("ValidationError", "ValueError"),
    ("UnpicklingError", "ModelLoadingError"),
    ("ScannerError", "ValueError"),
    ("ParserError", "ValueError"),
    ("ConstructorError", "ValueError"),
    ("DecodeError", "ValueError"),
    ("CudaCallError", "CUDAError"),
    ("BrokenProcessPool", "DataloaderKilled"),
)
_BUILTIN_CLASS = {
    "MemoryError": "OutOfMemoryError",
    "KeyboardInterrupt": "SlurmCancelled",
    "FileExistsError": "OSError",
    "EOFError": "OSError",
    "TimeoutError": "ConnectionError",
}


def class_of_type(type_name: str) -> str:
    """Failure class of an exception type, by name alone; see `class_of`."""
    short = type_name.rpartition(".")[2]
    for suffix, name in _BY_SUFFIX:
        if short.endswith(suffix):
            return name
    builtin = getattr(builtins, short, None)
    if isinstance(builtin, type) and issubclass(builtin, BaseException):
        bases = (base.__name__ for base in builtin.__mro__)
        known = (_BUILTIN_CLASS.get(b, b) for b in bases if b in _BUILTIN_CLASS or b in CLASSES)
        return next(known, "RuntimeError")
    endings = [name for name in CLASSES if name.endswith("Error") and short.endswith(name)]
    return max(endings, key=len, default="RuntimeError")
