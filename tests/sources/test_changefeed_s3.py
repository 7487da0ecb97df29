"""The same source on an object store, against a server that speaks S3."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from icefront.core.epochs import Epoch
from icefront.core.errors import ConfigError, ConnectionFailed, Overcompacted
from icefront.core.marks import START
from icefront.core.timestamps import ORIGIN
from icefront.proof import oracle
from icefront.sources.changefeed import Changefeed
from icefront.testing.feeds import ORDERS, Feed
from tests.sources.drive import TYPES, Target, schema_of

BUCKET = "feeds"


@pytest.fixture(scope="module")
def storage() -> Iterator[dict[str, str]]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    properties = {
        "s3.endpoint": f"http://{host}:{port}",
        "s3.access-key-id": "a",
        "s3.secret-access-key": "b",
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
    }
    client(properties).create_bucket(Bucket=BUCKET)
    yield properties
    server.stop()


def client(storage: dict[str, str]):
    return boto3.client(
        "s3",
        endpoint_url=storage["s3.endpoint"],
        aws_access_key_id=storage["s3.access-key-id"],
        aws_secret_access_key=storage["s3.secret-access-key"],
        region_name=storage["s3.region"],
    )


def upload(root: Path, prefix: str, storage: dict[str, str]) -> None:
    """Put what is new under the prefix, in the order in which a feed writes it."""
    s3 = client(storage)
    there = {o["Key"] for o in s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())}
    files = sorted((p for p in root.rglob("*") if p.is_file()), key=lambda p: p.stat().st_mtime_ns)
    for path in files:
        key = f"{prefix}/{path.relative_to(root)}"
        if key not in there:
            s3.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())


def orders() -> Target:
    return Target("orders", ["id"], schema_of({"id": "long"} | {c: TYPES[m] for c, m in ORDERS.versions[-1].items()}))


@pytest.mark.parametrize(("partition", "codec"), [("daily", ""), ("hourly", "gzip"), ("flat", "zstd")])
def test_a_feed_in_a_bucket_is_read_like_a_directory(partition: str, codec: str, storage: dict[str, str], tmp_path: Path):
    feed = Feed(tmp_path, seed=7, partition=partition, codec=codec, period=4000.0)
    feed.scan(20)
    target = orders()
    location = f"s3://{BUCKET}/{partition}/feed"
    source = Changefeed(location, storage=storage)
    for step in range(4):
        upload(tmp_path, f"{partition}/feed", storage)
        cuts = source.observe(target.position, ["orders"]).cuts
        assert [c.frontier for c in cuts] == [feed.resolved[-1].next()]
        target.take(source, cuts[-1].frontier)
        source.release(target.position)
        expected = oracle.replay(tmp_path, "orders", ["id"], str(target.frontier))
        assert not oracle.compare(expected, target.rows.values(), target.schema, ["id"])
        feed.advance(30)
        if step == 1:
            feed.lag()
            source = Changefeed(location, storage=storage)
    assert source.tables(START) == ["customers", "orders"]
    assert source.keys("orders") == ("id",)


def test_byte_ranges_of_an_object_are_read(storage: dict[str, str], tmp_path: Path):
    feed = Feed(tmp_path, seed=8)
    feed.scan(300)
    upload(tmp_path, "ranges", storage)
    source = Changefeed(f"s3://{BUCKET}/ranges", storage=storage, split_bytes=5000)
    target = orders()
    target.take(source, feed.resolved[-1].next())
    assert len(source.splits("orders", Epoch(ORIGIN, feed.resolved[-1].next()), START)) > 5
    assert len(target.rows) == 300


def test_a_prefix_without_files_is_a_feed_that_has_not_begun(storage: dict[str, str]):
    assert Changefeed(f"s3://{BUCKET}/nothing-yet", storage=storage).observe(START, []).cuts == ()


def test_a_missing_bucket_is_a_matter_of_settings(storage: dict[str, str]):
    with pytest.raises(ConfigError, match="does not exist"):
        Changefeed("s3://no-such-bucket/feed", storage=storage).observe(START, [])


def test_a_deleted_object_is_named(storage: dict[str, str], tmp_path: Path):
    feed = Feed(tmp_path, seed=9)
    feed.scan(5)
    upload(tmp_path, "deleted", storage)
    source = Changefeed(f"s3://{BUCKET}/deleted", storage=storage)
    source.observe(START, ["orders"])
    s3 = client(storage)
    for item in s3.list_objects_v2(Bucket=BUCKET, Prefix="deleted")["Contents"]:
        if "orders" in item["Key"]:
            s3.delete_object(Bucket=BUCKET, Key=item["Key"])
    with pytest.raises(Overcompacted, match="s3://feeds/deleted/"):
        orders().take(source, feed.resolved[-1].next())


def test_a_store_that_does_not_answer_may_be_tried_again(storage: dict[str, str]):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = {**storage, "s3.endpoint": f"http://127.0.0.1:{unused.getsockname()[1]}", "s3.connect-timeout": "1"}
        with pytest.raises(ConnectionFailed, match="s3://feeds"):
            Changefeed(f"s3://{BUCKET}/feed", storage=nobody).observe(START, [])
