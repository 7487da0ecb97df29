"""Write the JSON Schemas and docs/configuration.md from the model: ``python -m icefront.settings.reference``.

A test compares the committed files with what this makes, so the three never drift apart.
"""

from __future__ import annotations

import argparse
import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pyiceberg.types import IcebergType

from icefront.settings.part import Part
from icefront.settings.pipeline import (
    Commit,
    Epochs,
    IcebergSink,
    PipelineSettings,
    SchemaPolicy,
    Sink,
    TableSettings,
    Write,
)
from icefront.settings.project import Catalog, Changefeed, IcebergSource, Project, Source, Spark, Start
from icefront.settings.secrets import Secret
from icefront.settings.upkeep import Compact, Expire, Settle, Upkeep
from icefront.settings.values import Duration, Hours, PartitionBy, Share, Size

PROJECT_EXAMPLE = """\
catalogs:
  lake: {type: sqlite, path: .icefront}      # .icefront/catalog.db (SQLite) and .icefront/warehouse/, for Spark and PyIceberg
  # lake: {type: rest, uri: "https://…", warehouse: "…", credential: "${env:LAKE_CREDENTIAL}"}
sources: {}                                  # named sources, shared by several pipelines
state: .icefront/state.db
spark: {master: "local[*]", conf: {}}        # any Spark master: spark://…, yarn, k8s://…
"""
PIPELINE_EXAMPLE = """\
pipeline: orders
source:                                      # inline, or the name of one in icefront.yaml
  changefeed: {path: feed/}                  # or s3://…; NDJSON and .RESOLVED files
  # iceberg: {table: lake.shop.orders, start: initial, poll: 30s}   # initial | latest | {snapshot: …} | {timestamp: …}
keys: [id]                                   # default: the source's own key
mode: upsert                                 # or append
columns: {id: bigint, amount: "decimal(12,2)", created_at: timestamptz}
sequence_by: updated
sink:
  iceberg: {table: lake.shop.orders, format_version: 3, partition_by: ["day(created_at)"]}
write: {target_file_size: 128MiB, distribution: auto, publish: immediate}
epochs: {every: 10s, max_changes: 2000000, in_flight: 3, heartbeat: 5m}
commit: {retries: 5, patience: 60s}
schema: {add_column: evolve, widen_type: evolve, rename_column: evolve, drop_column: keep, other: stop}
bad_rows: stop
upkeep: auto                                 # or off, or {settle: {files: 10}, compact: off, expire: {keep: 1d}, quiet_hours: ["08:00-18:00"]}
"""
TABLES_EXAMPLE = """\
pipeline: shop
source:
  changefeed: {path: "s3://feeds/shop", storage: {s3.endpoint: "http://127.0.0.1:9000"}}
tables:
  orders:                                    # a table's own entry wins
    keys: [id]
    sink:                                    # several sinks: several targets of one table
      - iceberg: {table: lake.shop.orders, partition_by: ["bucket(16, id)"]}
      - iceberg: {table: lake.audit.orders}
  "*": {sink: {iceberg: {table: "lake.shop.{table}"}}}
"""

_SECTIONS: dict[str, tuple[tuple[str, type[Part]], ...]] = {
    "icefront.yaml": (
        ("", Project),
        ("catalogs.<name>", Catalog),
        ("sources.<name>", Source),
        ("spark", Spark),
    ),
    "The pipeline file": (
        ("", PipelineSettings),
        ("source.changefeed", Changefeed),
        ("source.iceberg", IcebergSource),
        ("sink", Sink),
        ("sink.iceberg", IcebergSink),
        ("tables.<table>", TableSettings),
        ("write", Write),
        ("epochs", Epochs),
        ("commit", Commit),
        ("schema", SchemaPolicy),
        ("upkeep", Upkeep),
        ("upkeep.settle", Settle),
        ("upkeep.compact", Compact),
        ("upkeep.expire", Expire),
    ),
}
_EXAMPLES = {"icefront.yaml": (PROJECT_EXAMPLE,), "The pipeline file": (PIPELINE_EXAMPLE, TABLES_EXAMPLE)}
_WORDS: dict[Any, str] = {
    str: "text",
    int: "number",
    bool: "`true` or `false`",
    Path: "path",
    Duration: "duration",
    Size: "size",
    PartitionBy: "partition field",
    Share: "share",
    Hours: "stretch of hours",
    float: "number",
    Upkeep: "`auto`, `off` or mapping",
    Settle: "`auto`, `off` or mapping",
    Compact: "`auto`, `off` or mapping",
    Expire: "`auto`, `off` or mapping",
    IcebergType: "type",
    Secret: "secret",
    Start: "`initial`, `latest` or mapping",
}
_DEFAULTS: dict[tuple[str, type[Part]], str] = {
    ("catalogs", Project): "`lake: {type: sqlite, path: .icefront}`",
    ("state", Project): "`.icefront/state.db`",
    ("upkeep", PipelineSettings): "`auto`",
    ("settle", Upkeep): "`auto`",
    ("compact", Upkeep): "`auto`",
    ("expire", Upkeep): "`auto`",
}

_INTRODUCTION = """\
# Configuration

This page is made from the model by `python -m icefront.settings.reference`. Icefront reads YAML 1.2. An unknown key is an error
that names its file, line and column, and the closest key there is. Paths are relative to the file that names them.

`icefront.yaml` is optional. It is looked for in the pipeline file's folder, then in the folders above, up to the root of the git
repository or of the file system. Without one, its defaults hold, relative to the pipeline file's folder.

## Values

| value | is written |
|---|---|
| duration | a number and a unit: `500ms`, `10s`, `5m`, `2h`, `1d` (also `us`, `ns`) |
| size | a number and a unit: `64MB`, `128MiB`, `1GiB` |
| type | an Iceberg type: `boolean`, `int`, `long`, `float`, `double`, `decimal(p,s)`, `date`, `time`, `timestamp`, `timestamptz`, `timestamp_ns`, `timestamptz_ns`, `string`, `uuid`, `binary`, `fixed[n]`, `list<…>`, `map<…, …>`, `struct<name: …>`; or SQL's name for one: `bigint`, `integer`, `smallint`, `numeric(p,s)`, `text`, `varchar(n)`, `jsonb`, `bytes`, `double precision`, … |
| share | a percentage or a number: `30%`, `0.3` |
| stretch of hours | from and until, in UTC: `22:00-06:00` |
| partition field | `region`, `day(ts)`, `year(ts)`, `month(ts)`, `hour(ts)`, `bucket(16, id)`, `truncate(4, name)` |
| secret | `${env:NAME}` or `${file:path}`, never the secret itself. Filled in when the file is read, printed as `***`. Both may stand in any text; `$${` means `${` |

## Known, but not available in this version

`source.kafka`, `sink.kafka`, `sink.opensearch`, `bad_rows: {reject: …}` and `state: postgresql://…` are refused with exactly these words and their place in the file.

## In Python

The same model, with the same errors: `PipelineSettings.of({"pipeline": "orders", …})` takes what a file would hold; the
constructors take values. In editors, `src/icefront/schemas/` has a JSON Schema for each file.
"""


def generated() -> dict[str, str]:
    """Return every generated file: path in the repository → text."""
    return {
        "src/icefront/schemas/project.schema.json": _schema_text(Project, "icefront.yaml"),
        "src/icefront/schemas/pipeline.schema.json": _schema_text(PipelineSettings, "A pipeline file of Icefront"),
        "docs/configuration.md": _configuration(),
    }


def main(root: Path) -> None:
    for name, text in generated().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


# ── JSON Schema ────────────────────────────────────────────────────────────────────────────
def _schema_text(model: type[Part], title: str) -> str:
    raw = model.model_json_schema(by_alias=True)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title} | _tidy(raw)
    for hidden in model.HIDDEN:
        schema["properties"].pop(hidden, None)
    if model is PipelineSettings:
        schema["oneOf"] = [{"required": ["sink"]}, {"required": ["tables"]}]
    used = _reachable({key: value for key, value in schema.items() if key != "$defs"}, schema.get("$defs", {}))
    schema["$defs"] = {name: body for name, body in schema.get("$defs", {}).items() if name in used}
    if "Catalog" in schema["$defs"]:
        beside = schema["$defs"]["Catalog"]["properties"].pop("properties")
        schema["$defs"]["Catalog"]["additionalProperties"] = beside["additionalProperties"]
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _tidy(node: Any) -> Any:
    """Drop what only pydantic needs: titles, nulls for "not given", defaults that are filled in elsewhere."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    tidy = {key: _tidy(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    match tidy.get("default", ...):
        case None | {} | [] if not tidy["default"]:
            del tidy["default"]
        case {"nanoseconds": amount}:
            tidy["default"] = str(Duration(amount))
        case {"bytes": amount}:
            tidy["default"] = str(Size(amount))
        case {"part": part}:
            tidy["default"] = str(Share(part))
    if isinstance(options := tidy.get("anyOf"), list):
        options = [option for option in options if option != {"type": "null"}]
        if len(options) == 1:
            del tidy["anyOf"]
            return {**options[0], **tidy}
        tidy["anyOf"] = options
    return tidy


def _reachable(node: Any, definitions: Mapping[str, Any]) -> set[str]:
    found: set[str] = set()
    pending = [node]
    while pending:
        match pending.pop():
            case Mapping() as mapping:
                name = str(mapping.get("$ref", "")).removeprefix("#/$defs/")
                if name in definitions and name not in found:
                    found.add(name)
                    pending.append(definitions[name])
                pending.extend(mapping.values())
            case list() as items:
                pending.extend(items)
    return found


# ── the page ───────────────────────────────────────────────────────────────────────────────
def _configuration() -> str:
    parts = [_INTRODUCTION]
    for title, models in _SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [f"```yaml\n{example}```\n" for example in _EXAMPLES[title]]
        parts += [_section(path, model) for path, model in models]
    return "\n".join(parts)


def _section(path: str, model: type[Part]) -> str:
    heading = f"### `{path}`\n\n" if path else ""
    rows = [_row(name, field, model) for name, field in model.model_fields.items() if name not in model.HIDDEN]
    return (
        f"{heading}{(model.__doc__ or '').strip()}\n\n| key | value | default | meaning |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def _row(name: str, field: FieldInfo, model: type[Part]) -> str:
    key = "*any other*" if (model, name) == (Catalog, "properties") else f"`{field.alias or name}`"
    return f"| {key} | {_words(field.annotation)} | {_default(name, field, model)} | {field.description} |"


def _words(annotation: Any) -> str:
    if annotation in _WORDS:
        return _WORDS[annotation]
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return "mapping"
    origin, arguments = get_origin(annotation), [a for a in get_args(annotation) if a is not type(None)]
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in {Union, types.UnionType}:
        return " or ".join(_words(a) for a in arguments)
    if origin is tuple:
        return {
            Sink: "mapping, or a list of them",
            str: "list of names",
            Hours: "list of stretches of hours",
        }.get(arguments[0], f"list of {_words(arguments[0])}s")
    if hasattr(annotation, "__metadata__"):
        return _words(arguments[0])
    return "mapping"


def _default(name: str, field: FieldInfo, model: type[Part]) -> str:
    if (known := _DEFAULTS.get((name, model))) is not None:
        return known
    if field.is_required():
        return "**required**"
    value = field.default
    if value is PydanticUndefined or value in (None, {}, ()):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m icefront.settings.reference", description="Write schemas and reference of the model."
    )
    parser.add_argument("root", type=Path, nargs="?", default=Path(), help="where they go (default: the current folder)")
    main(parser.parse_args().root)
