"""icefront.yaml: what pipelines share: catalogs, sources, the state store, Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, ValidationInfo, WithJsonSchema

from icefront.core.errors import ConfigError
from icefront.settings.part import Found, Part, Properties, folder_of
from icefront.settings.problems import Problem, closest, describe, failure, unavailable, unknown_key
from icefront.settings.secrets import has_password, reveal
from icefront.settings.values import Duration, Size, check_table_name

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
# Several processes on one file: readers never wait, writers queue up instead of failing.
_SQLITE_OPTIONS = "journal_mode=WAL&busy_timeout=10000&transaction_mode=IMMEDIATE"
# Iceberg's client by itself waits for ever; a commit whose answer does not come is looked up.
_REST_PATIENCE = {"rest.client.connection-timeout-ms": "10000", "rest.client.socket-timeout-ms": "60000"}


def _absolute(value: Any, info: ValidationInfo) -> Path:
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str):
        raise Problem(f"expected a path, got {describe(value)}", "put it in quotes")
    if not value:
        raise Problem("the path is empty", "name a folder or file")
    return Path(folder_of(info).absolute(), Path(value).expanduser())


LocalPath = Annotated[Path, PlainValidator(_absolute), WithJsonSchema({"type": "string"})]


def _local_or_uri(value: str, info: ValidationInfo) -> str:
    if not _URI.match(value):
        return str(_absolute(value, info))
    if has_password(value):
        raise Problem("a password is written into the address", "put credentials under storage, as ${env:NAME}", hides=False)
    return value


class Catalog(Part):
    """An Iceberg catalog. The keys besides `type` and `path` are properties, passed on to Iceberg as they are."""

    type: str = Field(
        description="`sqlite` (embedded, a file), `rest`, or any type that Iceberg knows: `glue`, `hive`, `jdbc`, `nessie`, … "
        "`hadoop` is refused: renaming a file is no compare-and-swap, two writers could both win."
    )
    path: LocalPath | None = Field(
        default=None, description="Of type `sqlite`: the folder of `catalog.db` and `warehouse/`. Default: `.icefront`."
    )
    properties: Properties = Field(
        default={},
        description="Everything else, e.g. `uri`, `warehouse`, `credential`, `s3.endpoint`. A name that begins with `spark.` or "
        "`pyiceberg.` goes to that reader only, without the prefix.",
    )

    @classmethod
    def arrange(cls, data: dict[str, Any]) -> dict[str, Any]:
        if data.get("type") == "sqlite" and data.get("path") is None:
            data["path"] = ".icefront"
        own = {key: value for key, value in data.items() if key in cls.model_fields}
        beside = {key: value for key, value in data.items() if key not in cls.model_fields}
        given = own.get("properties", {})
        return {**own, "properties": {**given, **beside} if isinstance(given, Mapping) else given}

    @classmethod
    def cross_check(cls, data: Mapping[str, Any]) -> Iterable[Found]:
        match data.get("type"):
            case "hadoop":
                yield (
                    ("type",),
                    Problem(
                        "hadoop is refused: renaming a file is no compare-and-swap, two writers could both win",
                        "use sqlite (embedded), rest, glue, hive, jdbc or nessie",
                    ),
                )
            case "sqlite":
                yield from cls._check_sqlite(data)
            case "rest":
                if "uri" not in data["properties"]:
                    yield ("uri",), Problem("required, but missing", "write the REST catalog's address, https://…", on_key=True)
                yield from cls._check_no_path(data)
            case _:
                yield from cls._check_no_path(data)

    @staticmethod
    def _check_sqlite(data: Mapping[str, Any]) -> Iterator[Found]:
        known = ("type", "path", "warehouse")
        for name in data["properties"]:
            if "." not in name and name not in known:
                yield ("properties", name), unknown_key(name, known)
        path = data.get("path")
        if isinstance(path, str | Path) and re.search(r"[?#%]", str(path)):
            yield (
                ("path",),
                Problem(f"{describe(str(path))} has one of ? # %, which mean something in URIs", "name another folder"),
            )

    @staticmethod
    def _check_no_path(data: Mapping[str, Any]) -> Iterator[Found]:
        if data.get("path") is not None:
            yield (
                ("path",),
                Problem("only a catalog of type sqlite has a path", "write warehouse and uri", on_key=True, hides=False),
            )

    def spark_conf(self, name: str) -> dict[str, str]:
        """Return what a Spark session needs in order to know this catalog as `name`. Holds secrets in plain text."""
        properties = self._properties("spark.", "pyiceberg.")
        if self.type == "sqlite":
            properties = {
                "type": "jdbc",
                "uri": f"jdbc:sqlite:{self._folder / 'catalog.db'}?{_SQLITE_OPTIONS}",
                "jdbc.schema-version": "V1",
                "warehouse": f"file://{self._folder / 'warehouse'}",
            } | properties
        elif "catalog-impl" not in properties:
            # Iceberg refuses a type beside a class.
            properties = {"type": self.type} | (_REST_PATIENCE if self.type == "rest" else {}) | properties
        prefix = f"spark.sql.catalog.{name}"
        return {prefix: _SPARK_CATALOG} | {f"{prefix}.{key}": value for key, value in properties.items()}

    def pyiceberg_properties(self, name: str) -> dict[str, str]:
        """Return what `pyiceberg.catalog.load_catalog(name, **…)` needs. Holds secrets in plain text."""
        del name
        properties = self._properties("pyiceberg.", "spark.")
        if self.type == "sqlite":
            own = {"uri": f"sqlite:///{self._folder / 'catalog.db'}", "warehouse": f"file://{self._folder / 'warehouse'}"}
            return {"type": "sql"} | own | properties
        if self.type == "jdbc":
            return {"type": "sql"} | properties | {"uri": properties.get("uri", "").removeprefix("jdbc:")}
        return {"type": self.type} | properties

    def create_folder(self) -> None:
        """Make the folder of an embedded catalog: SQLite makes its file, but no folder. Other catalogs need nothing."""
        if self.type != "sqlite":
            return
        try:
            (self._folder / "warehouse").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            fact = f"the catalog's folder {self._folder} cannot be made: {error.strerror}"
            raise ConfigError(fact, "name a folder that this user may write, with `path` in icefront.yaml") from error

    @property
    def _folder(self) -> Path:
        assert self.path is not None
        return self.path

    def _properties(self, mine: str, theirs: str) -> dict[str, str]:
        plain = reveal(self.properties)
        shared = {key: value for key, value in plain.items() if not key.startswith((mine, theirs))}
        return shared | {key.removeprefix(mine): value for key, value in plain.items() if key.startswith(mine)}


class Changefeed(Part):
    """Files that a CockroachDB changefeed writes: NDJSON, and .RESOLVED files."""

    path: Annotated[str, AfterValidator(_local_or_uri)] = Field(description="The folder of the feed: a local path or `s3://…`.")
    envelope: Literal["wrapped", "bare", "row"] = Field(default="wrapped", description="The feed's `envelope` option.")
    poll: Duration = Field(default=Duration(10**9), description="How often to look for new files.")
    table: str | None = Field(
        default=None, description="Which of the feed's tables to take. Needed when it holds several and `tables` is not used."
    )
    id: str | None = Field(
        default=None, description="A stable identity of the feed. Default: its path. Set it before moving the folder elsewhere."
    )
    storage: Properties = Field(
        default={}, description="Properties of the object store, e.g. `s3.endpoint`, `s3.access-key-id`, `s3.secret-access-key`."
    )


Start = str | int | datetime
"""Where a reader of a table begins: `initial`, `latest`, after a snapshot, after what was current at a time."""


def _start(value: Any) -> Start:
    """Read where to begin; once read, a snapshot is its number and a time is a time."""
    if isinstance(value, datetime) or (isinstance(value, str) and value in {"initial", "latest"}):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, Mapping) or len(value) != 1 or not {*value} <= {"snapshot", "timestamp"}:
        raise Problem(
            f"expected initial, latest, a snapshot or a timestamp, got {describe(value)}",
            'write initial, latest, {snapshot: 123} or {timestamp: "2026-01-31T12:00:00Z"}',
        )
    ((kind, given),) = value.items()
    if kind == "snapshot":
        if not isinstance(given, int) or isinstance(given, bool) or given < 0:
            wrong = Problem(f"expected a snapshot id, got {describe(given)}", "write digits, without quotes")
            raise failure("start", [((kind,), wrong)])
        return int(given)
    try:
        return given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    except ValueError:
        wrong = Problem(f"expected a time, got {describe(given)}", 'write it as "2026-01-31T12:00:00Z"')
        raise failure("start", [((kind,), wrong)]) from None


def _print_start(start: Start) -> object:
    match start:
        case int():
            return {"snapshot": start}
        case datetime():
            return {"timestamp": start.isoformat()}
    return start


_START_SCHEMA = {
    "anyOf": [
        {"enum": ["initial", "latest"]},
        {
            "type": "object",
            "properties": {"snapshot": {"type": "integer"}},
            "required": ["snapshot"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"timestamp": {"type": "string"}},
            "required": ["timestamp"],
            "additionalProperties": False,
        },
    ]
}


class IcebergSource(Part):
    """Snapshots of an Iceberg table, whatever writes it."""

    table: Annotated[str, AfterValidator(check_table_name)] | None = Field(
        default=None, description="`catalog.namespace.table`. Not needed when `tables` names them."
    )
    start: Annotated[Start, PlainValidator(_start), PlainSerializer(_print_start), WithJsonSchema(_START_SCHEMA)] = Field(
        default="initial",
        description="Where a new target begins. `initial`: with all rows that the table has now. `latest`: with what changes from now on. "
        "`{snapshot: ID}`, `{timestamp: …}`: with what changed after that snapshot, or after the one that was current then.",
    )
    poll: Duration = Field(default=Duration(30 * 10**9), description="How often to look for new snapshots.")
    batch: Size = Field(
        default=Size(4 * 2**30), description="The rows of `initial` come in epochs of about so many bytes of files."
    )


class Kinds(Part):
    """A mapping with exactly one key: the kind."""

    @classmethod
    def cross_check(cls, data: Mapping[str, Any]) -> Iterable[Found]:
        given = [key for key in data if key in cls.known_keys()]
        told = [key for key in given if data[key] is not None]
        if len(told) > 1:
            yield (told[1],), Problem(f"two kinds are given, {told[0]} and {told[1]}", "keep one", on_key=True, hides=False)
        elif not data:
            yield (), Problem(f"no kind is given{closest('', [*cls.known_keys()])}", "see docs/configuration.md for an example")
        elif given and not told:
            yield (given[0],), Problem("expected a mapping, got nothing", "write {key: value}")

    @property
    def kind(self) -> str:
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)


class Source(Kinds):
    """Where changes come from; one kind."""

    UNAVAILABLE: ClassVar[Mapping[str, str]] = {"kafka": "a kafka source"}

    changefeed: Changefeed | None = Field(default=None, description="A CockroachDB changefeed in files.")
    iceberg: IcebergSource | None = Field(default=None, description="The changes of an Iceberg table.")


class Spark(Part):
    """The Spark session that `icefront run` makes."""

    master: str = Field(default="local[*]", description="Any Spark master: `local[*]`, `spark://…`, `yarn`, `k8s://…`.")
    conf: Properties = Field(
        default={},
        description="Further Spark settings, `spark.…`. In local mode `spark.home` names the folder of the Spark whose JVM is started; default: `$SPARK_HOME`, or else PySpark's own.",
    )

    @classmethod
    def cross_check(cls, data: Mapping[str, Any]) -> Iterable[Found]:
        conf = data.get("conf")
        for name in conf if isinstance(conf, Mapping) else ():
            if not str(name).startswith("spark."):
                fact = f'Spark\'s settings begin with "spark." (did you mean "spark.{name}"?)'
                yield ("conf", name), Problem(fact, on_key=True, hides=False)


def _state(value: Any, info: ValidationInfo) -> Path:
    if isinstance(value, str) and (scheme := _URI.match(value)):
        # Only the scheme is named: the rest may hold a password.
        name = scheme[0].removesuffix("://")
        if name in {"postgresql", "postgres"}:
            raise unavailable(f"a state store in {name}://…", "name a file, e.g. .icefront/state.db")
        raise Problem(f"{name}:// is no state store", "name a file, e.g. .icefront/state.db")
    return _absolute(value, info)


class Project(Part):
    """icefront.yaml. Without one, these defaults hold, relative to the pipeline file's folder."""

    catalogs: Mapping[str, Catalog] = Field(
        default_factory=lambda: _raw({"lake": {"type": "sqlite", "path": ".icefront"}}),
        description="Catalogs by name: the first part of every table's name.",
    )
    sources: Mapping[str, Source] = Field(
        default={}, description="Sources by name, shared by several pipelines: one timeline, one minter."
    )
    state: Annotated[Path, PlainValidator(_state), WithJsonSchema({"type": "string"})] = Field(
        default_factory=lambda: _raw(".icefront/state.db"),
        description="The state store, a SQLite file: notes that make a restart cheaper. Losing it loses no data.",
    )
    spark: Spark = Field(default_factory=Spark, description="The Spark session.")

    @classmethod
    def cross_check(cls, data: Mapping[str, Any]) -> Iterable[Found]:
        catalogs = data.get("catalogs")
        if isinstance(catalogs, Mapping):
            for name in catalogs:
                if not re.fullmatch(r"[A-Za-z_]\w*", name):
                    fact = f"{describe(name)} cannot name a catalog"
                    yield ("catalogs", name), Problem(fact, "use letters, digits and _", on_key=True, hides=False)
            if not catalogs:
                yield ("catalogs",), Problem("there is no catalog", "write lake: {type: sqlite, path: .icefront}")

    def spark_conf(self) -> dict[str, str]:
        """Return the session's settings: the master, every catalog, then `spark.conf`, which wins. Holds secrets."""
        conf = {"spark.master": self.spark.master}
        for name, catalog in self.catalogs.items():
            conf |= catalog.spark_conf(name)
        return conf | reveal(self.spark.conf)


def _raw(value: Any) -> Any:
    """Pass a default in the form in which a file would give it: validation makes it absolute."""
    return value
