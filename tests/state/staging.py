"""Staged epochs to note."""

from __future__ import annotations

from icefront.core.epochs import Epoch, epoch_id
from icefront.core.files import ClosedFile, FileKind, Staged
from icefront.core.marks import Position
from icefront.core.timestamps import Timestamp

TARGET = "lake.shop.orders"


def staged(number: int, *, pipeline: str = "orders", target: str = TARGET, files: int = 2) -> Staged:
    """Return the staged epoch [number, number + 1) seconds."""
    epoch = Epoch(Timestamp(number * 10**9), Timestamp((number + 1) * 10**9))
    name = epoch_id(pipeline, target, epoch)
    return Staged(
        pipeline=pipeline,
        target=target,
        epoch=epoch,
        epoch_id=name,
        position=Position.of({"resolved": str(epoch.upper)}),
        files=tuple(
            ClosedFile(FileKind.DATA, target, str(name), i, "attempt", f"file:///{name}/{i}.parquet", 1000, 10, 0, 0)
            for i in range(files)
        ),
        schema_id=0,
        settings="settings",
        counts={"upserts": 10 * files, "deletes": 1},
    )
