"""The Spark session: pinned jars, the catalogs of the project, and settings that were measured."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError

import icefront
from icefront.core.errors import ConfigError, ConnectionFailed, IcefrontError, Stopped
from icefront.spark import jars
from icefront.spark.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL = {
    # Its workers have imported what ours need before they are forked.
    "spark.python.daemon.module": "icefront.spark.daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    # Polars would give memory back to the system between two tasks, and ask for it again, page by page.
    "spark.executorEnv._RJEM_MALLOC_CONF": "dirty_decay_ms:10000,muzzy_decay_ms:10000",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
if sys.platform == "linux":
    # Hadoop starts a chmod for every file that it writes to a local disk, eight per commit: Java's usual way to start one is slower.
    _LOCAL["spark.driver.extraJavaOptions"] = "-Djdk.lang.Process.launchMechanism=VFORK"
_SUBMIT = "PYSPARK_SUBMIT_ARGS"
_ALWAYS = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.catalogImplementation": "in-memory",
}


def start(name: str, master: str, conf: Mapping[str, str], *, log: Path | None = None) -> SparkSession:
    """Start (or join) the session of this process; `conf` names the project's catalogs and wins over ours; its jars come beside ours.

    With `log`, what the JVM prints goes to that file. In local mode it is the JVM of the Spark at `spark.home`, if that is set: on a cluster
    that is the home of executors.
    """
    require_java()
    # Imported late: `import icefront` never starts Spark, and pyspark is an extra.
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = dict(_ALWAYS)
    if master.startswith("local"):
        settings |= _LOCAL
    settings |= {**conf, "spark.jars": _jars(conf.get("spark.jars"))}
    builder = SparkSession.builder.master(master).appName(name)
    with _stderr_into(log):
        if SparkContext._gateway is not None:  # noqa: SLF001 — PySpark has no other name for a living JVM
            spark = builder.config(map=settings).getOrCreate()
        else:
            # Given to the builder they would be on the new JVM's command line, secrets too.
            home = _home(settings.get("spark.home")) if master.startswith("local") else None
            with _submitted(settings), _environment("SPARK_HOME", home):
                spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN" if log else "ERROR")
    return spark


def _jars(own: str | None) -> str:
    """Name ours and a project's own. An empty text of the project's says that ours are on the class path already."""
    return own if own == "" else ",".join([*map(str, jars.ensure()), *filter(None, [own])])


def _home(folder: str | None) -> str | None:
    """Return the home of the Spark to start; raises ConfigError where there is none."""
    if folder is not None and not Path(folder, "bin", "spark-submit").exists():
        raise ConfigError(
            f"spark.home is {folder}, and there is no bin/spark-submit in it",
            "name a Spark's folder, or none: PySpark has its own",
        )
    return folder


@contextmanager
def _submitted(settings: Mapping[str, str]) -> Iterator[None]:
    """Let the JVM that starts now read its settings from a file that only we can read."""
    before = os.environ.get(_SUBMIT)
    with tempfile.TemporaryDirectory(prefix="icefront-") as folder:
        file = Path(folder) / "spark.properties"
        file.touch(0o600)
        file.write_text("".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items()), encoding="utf-8")
        arguments = f"--properties-file {shlex.quote(str(file))} --load-spark-defaults"
        with _environment(_SUBMIT, f"{arguments} {before or 'pyspark-shell'}"):
            yield


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Have this in the environment for a while, if there is a value for it."""
    if value is None:
        yield
        return
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _escaped(text: str) -> str:
    """Write a text as Java's properties files have it."""
    return re.sub(r"[\\\s:=#!]", lambda found: f"\\u{ord(found[0]):04x}", text)


def for_jobs(spark: SparkSession) -> SparkSession:
    """Return a session of our own on the same context: our jobs are planned our way, the user's are left alone.

    An epoch's stages are known beforehand, so planning them again between stages (adaptive execution) only costs time.
    """
    context = spark.sparkContext
    if getattr(context, "_icefront_jobs", None) is None:
        own = spark.newSession()
        own.conf.set("spark.sql.adaptive.enabled", "false")
        # Each batch that we hand out is a task of its own.
        own.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
        _know_classes(own)
        context._icefront_jobs = own  # noqa: SLF001 — remembers it for exactly as long as the context lives
    jobs: SparkSession = context._icefront_jobs  # noqa: SLF001
    return jobs


def _know_classes(spark: SparkSession) -> None:
    """Keep what PySpark asks the JVM for at every job: each time py4j would look for it in all jars, for every package it may be in."""
    jvm = spark._jvm  # noqa: SLF001
    for name in ("PythonRDD", "PythonUtils", "SimplePythonFunction"):
        setattr(jvm, name, getattr(jvm, name))


def ship_package(spark: SparkSession) -> None:
    """Send Icefront itself to executors, whose Python may not have it."""
    context = spark.sparkContext
    if context.master.startswith("local") or getattr(context, "_icefront_shipped", False):
        return
    context.addPyFile(str(package_zip()))
    context._icefront_shipped = True  # noqa: SLF001 — remembers it for exactly as long as the context lives


def package_zip() -> Path:
    """Zip the running package, so that executors run exactly this code."""
    root = Path(icefront.__file__).parent
    target = Path(tempfile.mkdtemp(prefix="icefront-")) / "icefront.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, Path("icefront") / path.relative_to(root))
    return target


@contextmanager
def living(spark: SparkSession) -> Iterator[None]:
    """Say so when the JVM has ended: all that py4j knows of it is a refused connection, which PySpark may take for something else."""
    try:
        yield
    except Exception as error:
        # A job whose result could not be fetched is a stop by now.
        told = isinstance(error, IcefrontError) and type(error) is not Stopped
        if told or not _is_unheard(error) or (code := _exit_code(spark)) is None:
            raise
        raise ConnectionFailed(
            f"the JVM that Spark runs in has ended (exit {code})",
            "see spark.log beside the state, then run again: what is staged is published as it is",
        ) from error


def _is_unheard(error: BaseException | None) -> bool:
    """Say whether this, or what it came from, is a call that Java did not answer."""
    while error is not None:
        if isinstance(error, ConnectionError | EOFError) or (
            isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


def _exit_code(spark: SparkSession) -> int | None:
    """Return how the JVM ended; None while it lives, or where somebody else started it."""
    process = getattr(spark.sparkContext._gateway, "proc", None)  # noqa: SLF001 — PySpark has no other name for it
    try:
        # A process closes its connections a moment before it is gone.
        return int(process.wait(5)) if process is not None else None
    except subprocess.TimeoutExpired:
        return None


@contextmanager
def _stderr_into(log: Path | None) -> Iterator[None]:
    """Let the JVM that starts now inherit a log file as its stderr: the screen stays the user's.

    What goes wrong in Spark comes as an exception; the file has the rest.
    """
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    screen = os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        os.close(file)
