"""Every mistake is named with its file, line, column, path, the closest valid word and the next step."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from icefront.core.errors import ConfigError
from icefront.settings import Catalog, Epochs, PipelineSettings, Project, load_pipeline, load_project

GOOD = """\
pipeline: orders
source:
  changefeed: {path: feed/}
sink:
  iceberg: {table: lake.shop.orders}
"""


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("  → ")]


@pytest.mark.parametrize(
    ("source", "added", "expected"),
    [
        ("{}", "", "orders.yaml:3:3: source.iceberg.table: required, but missing"),
        ("{table: orders}", "", 'orders.yaml:3:20: source.iceberg.table: "orders" has 1 parts'),
        (
            "{table: lakee.a.b}",
            "",
            'orders.yaml:3:20: source.iceberg.table: catalog "lakee" is not defined (did you mean "lake"?)',
        ),
        ("{table: lake.a.*}", "", 'orders.yaml:3:13: source.iceberg.table: "lake.a.*" is a pattern'),
        ("{table: lake.a.b, strat: latest}", "", 'orders.yaml:3:30: source.iceberg.strat: unknown key (did you mean "start"?)'),
        (
            "{table: lake.a.b, start: newest}",
            "",
            "orders.yaml:3:37: source.iceberg.start: expected initial, latest, a snapshot or a",
        ),
        (
            "{table: lake.a.b, start: {snapshot: x}}",
            "",
            'orders.yaml:3:48: source.iceberg.start.snapshot: expected a snapshot id, got "x"',
        ),
        (
            "{table: lake.a.b, start: {timestamp: x}}",
            "",
            'orders.yaml:3:49: source.iceberg.start.timestamp: expected a time, got "x"',
        ),
        ("{table: lake.a.b, poll: 30}", "", "orders.yaml:3:36: source.iceberg.poll: expected a duration, got 30"),
        ("{table: lake.a.b, batch: 1}", "", "orders.yaml:3:37: source.iceberg.batch: expected a size, got 1"),
        (
            "{table: lake.a.b}",
            "epochs: {every: 10s}",
            "orders.yaml:6:10: epochs.every: an iceberg source has one epoch per snapshot",
        ),
    ],
)
def test_a_mistake_in_a_table_that_is_followed_is_named_with_its_place(refused, source, added, expected):
    found = refused(GOOD.replace("changefeed: {path: feed/}", f"iceberg: {source}") + added)
    assert [line for line in lines(found) if line.startswith(expected)], found


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ("{lake.a.b: {sink: {iceberg: {table: lake.c.d}}}}", ""),
        ("{lake.*: {sink: {iceberg: {table: lake.c.d}}}}", 'orders.yaml:4:10: tables.lake.*: "lake.*" is a pattern'),
        ("{nolake.a.b: {sink: {iceberg: {table: lake.c.d}}}}", 'tables.nolake.a.b: catalog "nolake" is not defined'),
    ],
)
def test_several_tables_that_are_followed(refused, tables, expected):
    text = f"pipeline: orders\nsource:\n  iceberg: {{}}\ntables: {tables}\n"
    if not expected:
        settings = PipelineSettings.of({"pipeline": "p", "source": {"iceberg": {}}, "tables": {"lake.a.b": _sink("lake.c.d")}})
        assert [target.source_table for target in settings.targets_for(())] == ["lake.a.b"]
        return
    assert expected in refused(text)


def _sink(table: str) -> dict[str, object]:
    return {"sink": {"iceberg": {"table": table}}}


def test_a_table_cannot_follow_itself():
    settings = PipelineSettings.of({"pipeline": "p", "source": {"iceberg": {"table": "lake.a.b"}}, **_sink("lake.a.b")})
    with pytest.raises(ConfigError, match=r"lake\.a\.b would be its own target"):
        settings.targets_for(())


def test_the_example_of_the_contract(refused):
    text = refused("""\
        pipeline: orders
        source:
          changefeed: {path: feed/}
        keys: [id]
        mode: upsert
        sink:
          iceberg:
            table:      lakee.shop.orders
        """)
    assert text == (
        'orders.yaml:8:17: sink.iceberg.table: catalog "lakee" is not defined (did you mean "lake"?)\n'
        "  → define it under catalogs in icefront.yaml"
    )


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ("upkep: auto", 'orders.yaml:6:1: upkep: unknown key (did you mean "upkeep"?)'),
        ("zzz: 1", "orders.yaml:6:1: zzz: unknown key"),
        ("epochs: {evry: 10s}", 'orders.yaml:6:10: epochs.evry: unknown key (did you mean "every"?)'),
        ("project: {}", "orders.yaml:6:1: project: unknown key"),
        ("epochs: {every: 10}", "orders.yaml:6:17: epochs.every: expected a duration, got 10"),
        ('epochs: {every: "10"}', 'orders.yaml:6:17: epochs.every: "10" has no unit'),
        ("epochs: {every: 10sec}", 'orders.yaml:6:17: epochs.every: "10sec" has an unknown unit "sec"'),
        ("epochs: {every: soon}", 'orders.yaml:6:17: epochs.every: expected a duration, got "soon"'),
        ("epochs: {heartbeat: 0s}", 'orders.yaml:6:21: epochs.heartbeat: "0s" is out of range'),
        ("epochs: {heartbeat: 5q}", 'orders.yaml:6:21: epochs.heartbeat: "5q" has an unknown unit "q"'),
        ("epochs: {max_changes: many}", 'orders.yaml:6:23: epochs.max_changes: expected a whole number, got "many"'),
        ('epochs: {max_changes: "5"}', 'orders.yaml:6:23: epochs.max_changes: expected a whole number, got "5"'),
        ("epochs: {max_changes: true}", "orders.yaml:6:23: epochs.max_changes: expected a whole number, got true"),
        ("epochs: {max_changes: 1.5}", "orders.yaml:6:23: epochs.max_changes: expected a whole number, got 1.5"),
        ("epochs: {in_flight: 0}", "orders.yaml:6:21: epochs.in_flight: must be at least 1, got 0"),
        ("commit: {retries: -1}", "orders.yaml:6:19: commit.retries: must be at least 0, got -1"),
        ("commit:", "orders.yaml:6:1: commit: expected a mapping, got nothing"),
        ("commit: 5", "orders.yaml:6:9: commit: expected a mapping, got 5"),
        ("commit: [5]", "orders.yaml:6:9: commit: expected a mapping, got a list"),
        ("keys: id", 'orders.yaml:6:7: keys: expected a list, got "id"'),
        ("keys: [id, 5]", "orders.yaml:6:12: keys[1]: expected text, got 5"),
        ("keys: [id, id]", 'orders.yaml:6:12: keys[1]: "id" is written twice'),
        ("mode: upsrt", 'orders.yaml:6:7: mode: must be upsert or append, got "upsrt" (did you mean "upsert"?)'),
        ("keys: []\nmode: upsert", "orders.yaml:7:7: mode: upsert needs a key, and keys is empty"),
        ("write: {target_file_size: 128}", "orders.yaml:6:27: write.target_file_size: expected a size, got 128"),
        ("write: {target_file_size: 128MX}", 'orders.yaml:6:27: write.target_file_size: "128MX" has an unknown unit "MX"'),
        ("write: {distribution: hsah}", 'orders.yaml:6:23: write.distribution: must be auto, none or hash, got "hsah"'),
        ("columns: {id: bigintt}", 'orders.yaml:6:15: columns.id: type "bigintt" is not known (did you mean "bigint"?)'),
        ("columns: {id: decimal}", 'orders.yaml:6:15: columns.id: type "decimal" has no precision and scale'),
        ("columns: {id: 5}", "orders.yaml:6:15: columns.id: expected a type, got 5"),
        ("keys: [id]\ncolumns: {id: double}", 'orders.yaml:7:15: columns.id: "id" is a key, and keys cannot be float or double'),
        ("schema: {add_column: evolv}", 'orders.yaml:6:22: schema.add_column: must be evolve, ignore or stop, got "evolv"'),
        ("schema: {drop_column: drop}", 'orders.yaml:6:23: schema.drop_column: must be keep, got "drop"'),
        ("schema: {renames: {a: a}}", 'orders.yaml:6:23: schema.renames.a: "a" is renamed to itself'),
        ("schema: {renames: {a: x, b: x}}", 'orders.yaml:6:29: schema.renames.b: "x" is renamed to "a" already'),
        ("upkeep: {settel: auto}", 'orders.yaml:6:10: upkeep.settel: unknown key (did you mean "settle"?)'),
        ("upkeep: {settle: never}", 'orders.yaml:6:18: upkeep.settle: must be auto, off or a mapping of conditions, got "never"'),
        ("upkeep: {settle: {files: 0}}", "orders.yaml:6:26: upkeep.settle.files: must be at least 1, got 0"),
        (
            "upkeep: {compact: {dead: 3}}",
            "orders.yaml:6:26: upkeep.compact.dead: 3 is no share: it must be above 0 and at most 1",
        ),
        ("upkeep: {compact: {dead: 30}}", "orders.yaml:6:26: upkeep.compact.dead: 30 is no share"),
        ("upkeep: {compact: {dead: some}}", 'orders.yaml:6:26: upkeep.compact.dead: expected a share, got "some"'),
        ("upkeep: {expire: {orphans: 5m}}", "orders.yaml:6:28: upkeep.expire.orphans: 5m is too young"),
        ("upkeep: {expire: {at_most: 5}}", "orders.yaml:6:28: upkeep.expire.at_most: at least 10 snapshots stay, and at most 5"),
        ("upkeep: {quiet_hours: [noon]}", 'orders.yaml:6:24: upkeep.quiet_hours[0]: expected hours, got "noon"'),
        (
            "upkeep: {quiet_hours: ['25:00-26:00']}",
            'orders.yaml:6:24: upkeep.quiet_hours[0]: "25:00-26:00" has a time that no day',
        ),
        ("upkeep: {quiet_hours: ['08:00-08:00']}", 'orders.yaml:6:24: upkeep.quiet_hours[0]: "08:00-08:00" begins and ends at'),
        (
            "upkeep: {quiet_hours: ['0:00-12:00', '12:00-24:00']}",
            "orders.yaml:6:23: upkeep.quiet_hours: they cover the whole day",
        ),
        ("upkeep: sometimes", 'orders.yaml:6:9: upkeep: must be auto, off or a mapping, got "sometimes"'),
        ("sequence_by: [a]", "orders.yaml:6:14: sequence_by: expected text, got a list"),
        ("tables: {a: {keys: [id]}}", "orders.yaml:6:10: tables.a.sink: required, but missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(refused, added, expected):
    text = refused(GOOD + added + "\n")
    assert any(line.startswith(expected) for line in lines(text)), text


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        ("{table: orders}", 'orders.yaml:4:25: sink.iceberg.table: "orders" has 1 parts, a table\'s name has at least 3'),
        ("{table: lake.a b.c}", 'orders.yaml:4:25: sink.iceberg.table: "lake.a b.c" has a part "a b"'),
        ("{table: '{table}.a.b'}", 'orders.yaml:4:25: sink.iceberg.table: "{table}.a.b" leaves the catalog open'),
        ("{table: 5}", "orders.yaml:4:25: sink.iceberg.table: expected text, got 5"),
        ("{tabel: lake.a.b}", 'orders.yaml:4:18: sink.iceberg.tabel: unknown key (did you mean "table"?)'),
        ("{}", "orders.yaml:4:8: sink.iceberg.table: required, but missing"),
        ("{table: lake.a.b, format_version: 4}", "orders.yaml:4:51: sink.iceberg.format_version: must be 2 or 3, got 4"),
        ("{table: lake.a.b, format_version: '3'}", 'orders.yaml:4:51: sink.iceberg.format_version: must be 2 or 3, got "3"'),
        ("{table: lake.a.b, shared: 'yes'}", 'orders.yaml:4:43: sink.iceberg.shared: expected true or false, got "yes"'),
        (
            "{table: lake.a.b, partition_by: day(ts)}",
            'orders.yaml:4:49: sink.iceberg.partition_by: expected a list, got "day(ts)"',
        ),
        ("{table: lake.a.b, partition_by: [x, dya(ts)]}", 'orders.yaml:4:53: sink.iceberg.partition_by[1]: transform "dya"'),
        ("{table: lake.a.b, partition_by: ['bucket(id)']}", 'sink.iceberg.partition_by[0]: "bucket(id)" needs a number'),
        ("{table: lake.a.b, partition_by: ['bucket(0, id)']}", 'sink.iceberg.partition_by[0]: "bucket(0, id)" needs a number'),
        ("{table: lake.a.b, partition_by: ['day(3, ts)']}", 'sink.iceberg.partition_by[0]: "day(3, ts)" has a number'),
        ("{table: lake.a.b, partition_by: ['day(']}", 'sink.iceberg.partition_by[0]: "day(" is not a partition field'),
        ("{table: lake.a.b, partition_by: [x, x]}", 'orders.yaml:4:53: sink.iceberg.partition_by[1]: "x" is written twice'),
        ("{table: lake.a.b, properties: {icefront.x: 1}}", "orders.yaml:4:48: sink.iceberg.properties.icefront.x: icefront.* is"),
        (
            "{table: lake.a.b, properties: {format-version: 2}}",
            "sink.iceberg.properties.format-version: the format is not set here",
        ),
        (
            "{table: lake.a.b, properties: {a: {b: 1}}}",
            "orders.yaml:4:51: sink.iceberg.properties.a: expected one value, got a mapping",
        ),
        ("{table: lake.a.b, properties: {a: }}", "sink.iceberg.properties.a: expected text, a number, true or false"),
        ("{table: lake.a.b, properties: [a]}", "orders.yaml:4:47: sink.iceberg.properties: expected a mapping, got a list"),
    ],
)
def test_a_mistake_in_the_sink_is_named_with_its_place(refused, sink, expected):
    text = f"pipeline: orders\nsource:\n  changefeed: {{path: feed/}}\nsink: {{iceberg: {sink}}}\n"
    found = refused(text)
    assert any(expected in line for line in lines(found)), found


def test_scoped_deletes_need_partitions_by_keys(refused):
    sink = '{table: lake.shop.orders, deletes: scoped, partition_by: ["bucket(4, id)", "day(created_at)"]}'
    found = lines(refused(f"pipeline: orders\nsource:\n  changefeed: {{path: feed/}}\nkeys: [id]\nsink:\n  iceberg: {sink}\n"))
    assert [line for line in found if line.startswith("orders.yaml:")] == [
        'orders.yaml:6:87: sink.iceberg.partition_by[1]: "created_at" is no key, and deletes are scoped to one partition'
    ]


def test_settled_epochs_have_no_scoped_deletes(refused):
    sink = "  iceberg: {table: lake.shop.orders}"
    text = refused(GOOD.replace(sink, "  iceberg: {table: lake.shop.orders, deletes: scoped}\nwrite: {publish: settled}"))
    assert "orders.yaml:5:47: sink.iceberg.deletes: scoped deletes and publish: settled exclude each other" in lines(text)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "  changefeed: {path: feed/}",
            "  kafka: {}",
            "orders.yaml:3:3: source.kafka: a kafka source is not available in this version",
        ),
        ("  iceberg: {table: lake.shop.orders}", "  kafka: {}", "orders.yaml:5:3: sink.kafka: a kafka sink is not available"),
        (
            "  iceberg: {table: lake.shop.orders}",
            "  opensearch: {}",
            "orders.yaml:5:3: sink.opensearch: an opensearch sink is not",
        ),
        (
            "pipeline: orders",
            "pipeline: orders\nbad_rows: {reject: lake.a.b}",
            'orders.yaml:2:11: bad_rows: "reject" is not available',
        ),
    ],
)
def test_what_is_not_built_yet_says_so(refused, old, new, expected):
    text = refused(GOOD.replace(old, new))
    assert lines(text) == [line for line in lines(text) if line.startswith(expected)]
    assert "is not available in this version" in text


def test_a_state_store_in_postgresql_says_so_without_its_password(write, refused):
    write("state: postgresql://user:hush@host/db\n", "icefront.yaml")
    text = refused(GOOD)
    assert lines(text) == ["icefront.yaml:1:8: state: a state store in postgresql://… is not available in this version"]


def test_all_mistakes_of_a_file_are_listed_in_the_order_of_its_lines(refused):
    text = refused("""\
        pipeline: or ders
        source:
          changefed: {path: feed/}
        keys: [id, id]
        columns: {id: float, amount: "decimall(12,2)"}
        sink:
          iceberg: {table: lakee.shop.orders, partition_by: ["dya(ts)"], tabel: 3}
        epochs: {every: 10, in_flight: 0}
        upkeep: auto
        upkep: auto
        upkeep: off
        """)
    assert [line.split(": ")[0] + " " + line.split(": ")[1] for line in lines(text)] == [
        "orders.yaml:1:11 pipeline",
        "orders.yaml:3:3 source.changefed",
        "orders.yaml:4:12 keys[1]",
        "orders.yaml:5:15 columns.id",
        "orders.yaml:5:30 columns.amount",
        "orders.yaml:7:20 sink.iceberg.table",
        "orders.yaml:7:54 sink.iceberg.partition_by[0]",
        "orders.yaml:7:66 sink.iceberg.tabel",
        "orders.yaml:8:17 epochs.every",
        "orders.yaml:8:32 epochs.in_flight",
        "orders.yaml:10:1 upkep",
        "orders.yaml:11:1 upkeep",
    ]
    assert "orders.yaml:11:1: upkeep: written twice, first at 9:1" in text


def test_every_error_has_a_next_step(refused):
    text = refused(GOOD + "epochs: {every: 10, in_flight: 0}\nmode: x\ncommit: 5\nzzz: 1\n")
    assert len(lines(text)) == 5
    assert text.count("\n  → ") == 5


@pytest.mark.parametrize("key", ["keys: [id]", "columns: {id: bigint}", "sink: {iceberg: {table: lake.a.b}}"])
def test_tables_and_what_they_replace_exclude_each_other(refused, key):
    name = key.split(":")[0]
    text = refused(f"""\
        pipeline: orders
        source: {{changefeed: {{path: feed/}}}}
        tables: {{a: {{sink: {{iceberg: {{table: lake.a.b}}}}}}}}
        {key}
        """)
    assert lines(text) == [f"orders.yaml:4:1: {name}: {name} and tables exclude each other"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "orders.yaml:1:1: the file is empty"),
        ("# nothing\n", "orders.yaml:1:1: the file is empty"),
        ("just text\n", 'orders.yaml:1:1: expected a mapping, got "just text"'),
        ("- a\n", "orders.yaml:1:1: expected a mapping, got a list"),
        ("a: b: c\n", "orders.yaml:1:5: not valid YAML: mapping values are not allowed here"),
        ("a: [1\n", "orders.yaml:2:1: not valid YAML: expected ',' or ']'"),
        ("a:\n\t- b\n", "orders.yaml:2:1: not valid YAML: found character '\\t' that cannot start any token"),
        ("a: 1\n---\nb: 2\n", "orders.yaml:2:1: a second document begins here"),
        ("a: *b\n", "orders.yaml:1:4: not valid YAML: found undefined alias 'b'"),
        ("a: \x01\n", "orders.yaml:1:1: not valid YAML"),
    ],
)
def test_a_file_that_is_no_mapping_is_refused(refused, text, expected):
    assert refused(text).startswith(expected)


def test_missing_keys_are_shown_at_the_mapping_that_lacks_them(refused):
    text = refused("source:\n  changefeed: {}\nsink:\n  iceberg:\n    format_version: 3\n")
    assert lines(text) == [
        "orders.yaml:1:1: pipeline: required, but missing",
        "orders.yaml:2:3: source.changefeed.path: required, but missing",
        "orders.yaml:4:3: sink.iceberg.table: required, but missing",
    ]


def test_a_pipeline_needs_a_sink_or_tables(refused):
    assert lines(refused("pipeline: a\nsource: {changefeed: {path: x}}\n")) == ["orders.yaml:1:1: sink: required, but missing"]


def test_a_source_has_one_kind(refused):
    assert "source: no kind is given (known: changefeed, iceberg)" in refused(GOOD.replace("  changefeed: {path: feed/}", "  {}"))
    assert "source.changefeed: expected a mapping, got nothing" in refused(GOOD.replace(" {path: feed/}", ""))
    assert "sink: must not be empty" in refused(GOOD.replace("  iceberg: {table: lake.shop.orders}", "  []"))


def test_a_missing_file_names_those_that_are_there(write, folder):
    write(GOOD, "shop.yaml")
    with pytest.raises(ConfigError) as caught:
        load_pipeline("oders.yaml")
    assert str(caught.value) == "oders.yaml: there is no such file\n  → in that folder there are: shop.yaml"
    with pytest.raises(ConfigError, match="cannot be read"):
        load_pipeline(folder)


def test_a_file_that_is_not_utf_8_is_refused(folder):
    (folder / "orders.yaml").write_bytes(b"pipeline: \xff\n")
    with pytest.raises(ConfigError, match=r"^orders.yaml: byte 11 is not UTF-8"):
        load_pipeline("orders.yaml")


def test_a_file_elsewhere_is_named_in_full(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "orders.yaml"
    elsewhere.write_text("a: 1\nb: 2\n")
    with pytest.raises(ConfigError) as caught:
        load_pipeline(elsewhere)
    assert f"{elsewhere}:1:1: a: unknown key" in str(caught.value)


def test_keys_that_are_no_text_tags_and_endless_aliases_are_refused(refused):
    assert "a key must be text" in refused("? [a]\n: 1\n" + GOOD)
    assert "orders.yaml:6:7: mode: the tag !x means nothing here" in refused(GOOD + "mode: !x upsert\n")
    assert "an alias repeats what contains it" in refused(GOOD + "tables: &a {x: *a}\n")


def test_aliases_that_multiply_are_refused_quickly(refused):
    layers = "\n".join(f"x{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))
    assert "too much" in refused(f"x0: &a0 [a]\n{layers}\n")


def test_the_same_mistakes_in_python_have_the_same_words_without_positions():
    with pytest.raises(ConfigError) as caught:
        PipelineSettings.of(
            {
                "pipeline": "orders",
                "source": {"changefeed": {"path": "feed"}},
                "sink": {"iceberg": {"table": "lakee.shop.orders"}},
                "upkep": "auto",
            }
        )
    assert lines(str(caught.value)) == [
        'upkep: unknown key (did you mean "upkeep"?)',
        'sink.iceberg.table: catalog "lakee" is not defined (did you mean "lake"?)',
    ]
    with pytest.raises(ConfigError, match=r'^every: "10" has no unit'):
        Epochs(every="10")  # type: ignore[arg-type]


def test_parts_built_in_python_are_checked_together(tmp_path):
    project = Project(catalogs={"warm": Catalog(type="sqlite", path=tmp_path)})
    with pytest.raises(ConfigError) as caught:
        PipelineSettings.of(
            {
                "project": project,
                "pipeline": "a",
                "source": {"changefeed": {"path": "x"}},
                "sink": [{"iceberg": {"table": "warm.a.b"}}, {"iceberg": {"table": "wram.a.b"}}],
            }
        )
    assert caught.value.fact == 'sink[1].iceberg.table: catalog "wram" is not defined (did you mean "warm"?)'


def test_the_project_file_has_positions_too(write, refused):
    write(
        """\
        catalogs:
          lake: {type: sqlite, pth: .icefront}
          old: {type: hadoop, warehouse: x}
          far: {type: rest}
          own: {type: rest, uri: "http://h", token: abc}
          pg: {type: jdbc, uri: "jdbc:postgresql://h/db?user=a&password=b"}
          two-words: {type: glue}
          odd: {type: glue, path: x}
          sharp: {type: sqlite, path: "a#b"}
        spark: {conf: {x.y: 4g}}
        """,
        "icefront.yaml",
    )
    assert lines(refused(GOOD)) == [
        'icefront.yaml:2:24: catalogs.lake.pth: unknown key (did you mean "path"?)',
        "icefront.yaml:3:15: catalogs.old.type: hadoop is refused: renaming a file is no compare-and-swap, two writers could both win",
        "icefront.yaml:4:3: catalogs.far.uri: required, but missing",
        "icefront.yaml:5:45: catalogs.own.token: a secret is written here in plain text",
        "icefront.yaml:6:25: catalogs.pg.uri: a secret is written here in plain text",
        'icefront.yaml:7:3: catalogs.two-words: "two-words" cannot name a catalog',
        "icefront.yaml:8:21: catalogs.odd.path: only a catalog of type sqlite has a path",
        'icefront.yaml:9:31: catalogs.sharp.path: "a#b" has one of ? # %, which mean something in URIs',
        'icefront.yaml:10:16: spark.conf.x.y: Spark\'s settings begin with "spark." (did you mean "spark.x.y"?)',
    ]


def test_a_named_source_must_exist(write, refused):
    write("sources: {shop: {changefeed: {path: feed}}}\n", "icefront.yaml")
    text = refused(GOOD.replace("source:\n  changefeed: {path: feed/}", "source: shp"))
    assert lines(text) == ['orders.yaml:2:9: source: source "shp" is not defined (did you mean "shop"?)']


def test_an_error_that_shows_later_has_its_place_too(write):
    settings = load_pipeline(write(GOOD))
    error = settings.problem(("sink", 0, "iceberg", "table"), "the table is a view", "name a table")
    assert str(error) == "orders.yaml:5:20: sink.iceberg.table: the table is a view\n  → name a table"


def test_an_error_that_shows_later_names_the_path_in_python_too():
    settings = PipelineSettings.of(
        {"pipeline": "a", "source": {"changefeed": {"path": "x"}}, "sink": {"iceberg": {"table": "lake.a.b"}}}
    )
    assert settings.problem(("sink", 0, "iceberg", "table"), "it is a view").fact == "sink.iceberg.table: it is a view"


def test_an_empty_project_file_is_refused(write):
    write("", "icefront.yaml")
    with pytest.raises(ConfigError, match=r"icefront.yaml:1:1: the file is empty"):
        load_project(Path())


def test_partition_fields_must_fit_the_declared_columns(refused):
    text = refused(
        dedent("""\
        pipeline: orders
        source: {changefeed: {path: feed}}
        columns: {id: bigint}
        sink:
          - iceberg: {table: lake.a.b, partition_by: [id, "day(id)"]}
        """)
    )
    assert lines(text) == ['orders.yaml:5:51: sink[0].iceberg.partition_by[1]: "id" is long, which day does not apply to']
