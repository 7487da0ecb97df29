"""Whatever the feed does and wherever we restart: every change once, and the true state at every frontier."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from icefront.proof import oracle
from icefront.sources.changefeed import Changefeed, Place
from icefront.testing.feeds import SHOP, Feed, FeedTable
from tests.sources.drive import TYPES, Target, schema_of

ODD = FeedTable(
    "shop.odd-names+f2",
    ("id", "part"),
    (
        {"big": "bigint", "ratio": "double", "token": "uuid", "raw": "bytes", "doc": "jsonb"},
        {"big": "bigint", "ratio": "double", "token": "uuid", "raw": "bytes", "doc": "jsonb", "day": "date"},
    ),
)


def target_for(table: FeedTable) -> Target:
    kinds = {"id": "long"} | dict.fromkeys(table.keys[1:], "string")
    return Target(table.name, table.keys, schema_of(kinds | {c: TYPES[m] for c, m in table.versions[-1].items()}))


def step(feed: Feed, rng: random.Random) -> None:
    dice = rng.random()
    if dice < 0.15:
        feed.restart()
    elif dice < 0.3:
        feed.lag(rng.randrange(1, 5))
    elif dice < 0.4:
        feed.alter(rng.choice(feed.tables).name)
    elif dice < 0.5:
        feed.advance(rng.randrange(40), resolve=False)
    else:
        feed.advance(rng.randrange(40))


def source_for(feed: Feed, rng: random.Random) -> Changefeed:
    return Changefeed(
        str(feed.root),
        keys={t.name: t.keys for t in feed.tables},
        split_bytes=rng.choice((300, 5000, 64 << 20)),
        clock_margin=0,
    )


SEEDS = [*range(200, 420)]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_change_comes_in_exactly_one_epoch_and_the_state_is_true_at_each(seed: int, tmp_path: Path):
    rng = random.Random(seed)
    feed = Feed(
        tmp_path,
        (*SHOP, ODD) if seed % 2 else SHOP,
        seed,
        nodes=rng.randrange(1, 4),
        codec=rng.choice(("", "", "gzip", "zstd")),
        partition=rng.choice(("daily", "hourly", "flat")),
        period=rng.choice((10.0, 4000.0, 40_000.0)),
    )
    feed.scan(rng.randrange(20))
    targets = [target_for(t) for t in feed.tables]
    source = source_for(feed, rng)
    for _ in range(25):
        step(feed, rng)
        if rng.random() < 0.3:
            source = source_for(feed, rng)  # the process was restarted: only the positions are left
        if rng.random() < 0.6:
            catch_up(source, feed, targets, rng)
    feed.advance(10)
    catch_up(source, feed, targets, rng, everything=True)
    for target in targets:
        expected = {(s.key, s.at) for s in feed.said if s.table == target.table and s.at < target.frontier}
        assert len(target.changes) == len(set(target.changes))
        assert set(target.changes) == expected


def catch_up(source: Changefeed, feed: Feed, targets: list[Target], rng: random.Random, *, everything: bool = False) -> None:
    """Take some epochs; targets may lag behind one another, as after a crash between two publishes."""
    slowest = min(targets, key=lambda t: t.frontier)
    cuts = source.observe(slowest.position, [t.table for t in targets]).cuts
    assert [c.frontier for c in cuts] == [r.next() for r in feed.resolved if r.next() > slowest.frontier]
    chosen = [c.frontier for c in cuts if rng.random() < 0.5]
    if everything and cuts:
        chosen = sorted({*chosen, cuts[-1].frontier})
    for upper in chosen:
        for target in targets:
            if target.frontier < upper and (everything or rng.random() < 0.8):
                target.take(source, upper)
                check_state(feed, target)
    slowest = min(targets, key=lambda t: t.frontier)
    source.release(slowest.position)


def check_state(feed: Feed, target: Target) -> None:
    expected = oracle.replay(feed.root, target.table, target.keys, str(target.frontier))
    assert len(expected) == len(feed.state(target.table, target.frontier))
    assert not oracle.compare(expected, target.rows.values(), target.schema, target.keys)


def test_positions_stay_small_and_low_water(tmp_path: Path):
    feed = Feed(tmp_path, seed=5)
    feed.scan()
    target = target_for(SHOP[1])
    source = Changefeed(str(tmp_path), clock_margin=0)
    lows = []
    for _ in range(10):
        feed.advance(50)
        target.take(source, source.observe(target.position, ["orders"]).cuts[-1].frontier)
        place = Place.of(target.position)
        assert place.resolved == feed.resolved[-1]
        assert place.low <= feed.resolved[-1]
        lows.append(place.low)
        assert len(target.position.text) < 200
    assert lows == sorted(lows)
    assert lows[-1] > lows[0]
