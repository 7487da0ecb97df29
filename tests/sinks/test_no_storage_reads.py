"""No data file is listed or read to build a commit: the kernel tells us about every open."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from icefront.core.protocol import Published
from tests.sinks.test_iceberg_sink import claim, make, publish, stage, state

pytestmark = [pytest.mark.spark, pytest.mark.skipif(sys.platform != "linux", reason="the spy is inotify, which only Linux has")]
IN_ACCESS, IN_OPEN, IN_NONBLOCK = 0x1, 0x20, 0o4000


@contextmanager
def watch(folder: Path) -> Iterator[list[str]]:
    """Collect the names of everything below `folder` that any process opens or reads, listings included."""
    libc = ctypes.CDLL(None, use_errno=True)
    spy = libc.inotify_init1(IN_NONBLOCK)
    watched = {}
    for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        watched[libc.inotify_add_watch(spy, str(path).encode(), IN_ACCESS | IN_OPEN)] = path
    seen: list[str] = []
    try:
        yield seen
        seen += _events(spy, watched)
    finally:
        os.close(spy)


def _events(spy: int, watched: dict[int, Path]) -> Iterator[str]:
    try:
        data = os.read(spy, 1 << 20)
    except BlockingIOError:
        return
    while data:
        number, _, _, length = struct.unpack_from("iIII", data)
        name = data[16 : 16 + length].rstrip(b"\0").decode()
        yield str(watched[number] / name)
        data = data[16 + length :]


def folder_of(table: str, lake_folder: Path) -> Path:
    return lake_folder / "warehouse" / Path(*table.split(".")[1:]) / "data"


def test_the_spy_sees_a_listing_and_a_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    with watch(tmp_path) as seen:
        list(tmp_path.iterdir())
        (tmp_path / "a").read_text()
    assert {Path(s).name for s in seen} >= {tmp_path.name, "a"} or len(seen) >= 2


def test_a_publish_opens_and_lists_no_data_file(spark: Any, table: str, lake_folder: Path) -> None:
    sink = make(spark, table)
    mark = publish(sink, claim(sink), 10, {1: "a"})
    staged = stage(sink, mark, 20, {1: "b", 2: "c"})
    with watch(folder_of(table, lake_folder)) as seen:
        assert isinstance(sink.publish(staged, mark), Published)
    assert seen == []
    assert state(spark, table) == {1: "b", 2: "c"}
