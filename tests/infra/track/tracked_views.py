"""Views of written runs, for the tests of tracking, and a server that remembers what it was told."""

from __future__ import annotations

from collections.abc import Sequence

from tracked_runs import RunWriter

from infra.track.cursor import Cursor, load_cursor, open_cursor
from infra.track.errors import TrackingUnreachableError
from infra.track.points import Point
from infra.track.server import Server
from infra.track.uris import artifact_location, resolve_tracking_uri
from infra.track.view import View


def uri_of(writer: RunWriter) -> str:
    return resolve_tracking_uri(writer.tracking, writer.run)


def open_view(writer: RunWriter, server: Server | None = None) -> View:
    uri = uri_of(writer)
    server = server or Server(uri, artifact_location(uri, writer.run))
    return View(writer.run, server, open_cursor(writer.run, uri, "overland"), {"site": "here"})


def saved(writer: RunWriter) -> Cursor:
    cursor = load_cursor(writer.run)
    assert cursor is not None
    return cursor


class RecordingServer(Server):
    """Remembers pushes, and can lose the answer to one."""

    def __init__(self, writer: RunWriter, lose_answer_after: int | None = None) -> None:
        super().__init__(uri_of(writer), artifact_location(uri_of(writer), writer.run))
        self.pushed: list[int] = []
        self._lose_answer_after = lose_answer_after

    def log_points(self, run_id: str, points: Sequence[Point]) -> None:
        super().log_points(run_id, points)
        self.pushed.append(len(points))
        if len(self.pushed) == self._lose_answer_after:
            raise TrackingUnreachableError("the answer was lost")
