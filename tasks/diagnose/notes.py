"""What a report says of logs that could not be seen whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def notes_on_files(cut_off: Sequence[str], unreadable: Mapping[str, str]) -> list[str]:
    """Files that end early, and those that could not be read."""
    notes = []
    if cut_off:
        notes.append(f"{cut_off[0]}{_and_others(len(cut_off))} is cut off: what it holds was read")
    if unreadable:
        first = next(iter(unreadable.values()))
        notes.append(f"not read: {first}{_and_others(len(unreadable))}")
    return notes


def notes_on_room(max_ranks: int, crowded_lines: int, errors: int, left_out: int) -> list[str]:
    """What there was no room for."""
    notes = []
    if crowded_lines:
        notes.append(
            f"the logs name more than {max_ranks:,} ranks: {crowded_lines:,} lines of "
            "further ones were read as those of no known rank"
        )
    if left_out:
        notes.append(f"{left_out:,} errors beyond {errors:,} were left out")
    return notes


def _and_others(count: int) -> str:
    return f" (and {count - 1} others)" if count > 1 else ""
