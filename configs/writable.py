"""Whether a folder can be written, before anything is begun there."""

from __future__ import annotations

import os
from pathlib import Path

from configs.errors import RunDirectoryError


def check_writable(folder: Path, *, hint: str, name: str = "") -> None:
    """RunDirectoryError when the folder cannot be written, or cannot be made. Leaves nothing.

    `name`: what it is called where it was given; `hint`: what to do about it.
    """
    place, said = folder, f"{name} {folder}".strip()
    try:
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise RunDirectoryError(f"{said} cannot be made: {place} is not a folder: {hint}")
        probe = place / f".overland-probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RunDirectoryError(
            f"{said} cannot be written ({error.strerror} in {place}): {hint}"
        ) from error
