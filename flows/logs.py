"""Where the log of a flow goes when a person runs it: into the run directory, not over the screen."""

from __future__ import annotations

import logging
from pathlib import Path

from configs.rundir import RunDir

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _LazyFileHandler(logging.FileHandler):
    """Opens the file with the first record, and only if the run directory exists by then.

    Until the run directory is taken nothing may be created in it: wrong input leaves no trace.
    """

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not None or self._folder_exists():
            super().emit(record)

    def _folder_exists(self) -> bool:
        return Path(self.baseFilename).parent.is_dir()


def log_to_run_directory(run: RunDir) -> None:
    """From now on send what Prefect and the stages log to RUN_DIR/flow.log, not to the terminal.

    Prefect's own handlers, which feed its pages, stay. For the rest of the process: Prefect logs
    until its very end.
    """
    import prefect  # noqa: F401  (its import sets up the handlers that are replaced here)

    handler = _LazyFileHandler(run.path / "flow.log", delay=True)
    handler.setFormatter(logging.Formatter(FORMAT))
    logging.getLogger().handlers = [handler]
