"""What a run's log says, line by line: where each target was when the source was released.

    claimed orders 10 ─▶ published orders 20 ─▶ released 20      as it should be
    claimed orders 10 ─▶ released 20 ─▶ published orders 20      too early, though the table is right in the end

A run logs what it published when it knows that it did and before that counts for a release, and a release when it is done: a line that
comes too late is a deed that came too late. Written with `--log json -v`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

At = tuple[int, int]


def early_releases(log: str) -> Iterator[tuple[str, At]]:
    """Find the releases above what the run had said by then, with that: what it had published, or found in the mark that it claimed.

    Of several targets the least counts. A target that has no table yet has said nothing, and holds nothing back.
    Logs of other runs do not matter: whatever was published before this one, its claim says.
    """
    reached: dict[str, At] = {}
    for said in events(log, "claimed", "published", "released"):
        at = _at(said["frontier"])
        match said["event"]:
            case "claimed":
                reached[said["table"]] = at
            case "published":
                reached[said["target"]] = at
            case _ if at > (least := min(reached.values(), default=(0, 0))):
                yield said["frontier"], least


def events(log: str, *names: str) -> Iterator[dict[str, Any]]:
    """Read the events of these names in the log of one run.

    Its last line may be half written, by a run that lives or was killed; a JVM may have gone on in it. Raises ValueError when a run said more
    after a line of its own that is not whole: what was checked without it would hold for less than it seems. Its own is a line that begins as
    one, or names an event anywhere.
    """
    cut = ""
    for line in log.split("\n")[:-1]:
        own, said = line == "{" or line.startswith('{"') or '"event": ' in line, _said(line)
        if cut and (own or said):
            raise ValueError(f"a run went on after a line of its log that cannot be read: {cut[:300]}")
        if own and said is None:
            cut = line
        elif said and said.get("event") in names:
            yield said


def _said(line: str) -> dict[str, Any] | None:
    """Read what a run has said in a line, also behind the words of something else; None where that is nothing whole."""
    try:
        said = json.loads(line[max(line.find('{"'), 0) :])
    except json.JSONDecodeError:
        return None
    return said if isinstance(said, dict) else None


def _at(printed: str) -> At:
    wall, _, logical = printed.partition(".")
    return int(wall), int(logical)
