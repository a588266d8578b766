"""Appends this job's events to attempts/NNN/events.jsonl, one line each."""

from __future__ import annotations

import logging
from pathlib import Path

from configs.events import Event
from configs.files import append_json_line

logger = logging.getLogger(__name__)


class EventLog:
    """The attempt's event file. Rank 0 tells what the job does; others only what strikes them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, event: Event) -> None:
        """Add one event; a reader sees it at once, as a whole line.

        One that cannot be written (disk full) is dropped: training goes on without it.
        """
        try:
            append_json_line(self._path, event.model_dump())
        except OSError as error:
            # A warning, for diagnosis to know it as dealt with.
            logger.warning("the event %r was dropped: %s", event.event, error)
