"""An embedded catalog on a disk that gets full: `python -m tests.rest.full_disk FOLDER`, in a mount namespace of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from icefront.core.errors import ConnectionFailed
from icefront.core.protocol import Published
from icefront.spark.session import start
from tests.conftest import quick
from tests.process.full_disk import filled, mount
from tests.rest.embedded import FIRST, SECOND, Embedded

PLACES = ("the database's disk", "the table's disk")


def main(folder: Path) -> None:
    """Fill the disk of the database, then that of the table, while an epoch is staged."""
    small, large = folder / "small", folder / "large"
    small.mkdir(parents=True)
    subprocess.run(mount(small), check=True)
    spark = start("full-disk", "local[1]", quick())
    catalogs: tuple[Callable[[], Embedded], ...] = (
        lambda: Embedded(spark, small, warehouse=f"file://{large}/warehouse"),
        lambda: Embedded(spark, large, warehouse=f"file://{small}/warehouse"),
    )
    for place, catalog in zip(PLACES, catalogs, strict=True):
        publish_on(catalog(), small)
        print(place, flush=True)  # noqa: T201 — read by the test
    spark.stop()


def publish_on(catalog: Embedded, disk: Path) -> None:
    """A full disk stops the publish, and changes nothing; with room again the same epoch is published."""
    sink, mark, staged = catalog.begin(retries=1)
    with filled(disk):
        with pytest.raises(ConnectionFailed, match="was not accepted in 2 attempts") as stopped:
            sink.publish(staged, mark)
        assert "make room on the disk" in stopped.value.next_step
        catalog.check(FIRST)
    assert isinstance(sink.publish(staged, mark), Published)
    catalog.check(FIRST, SECOND)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
