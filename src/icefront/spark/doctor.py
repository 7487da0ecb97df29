"""What `icefront doctor` looks at: each check says what is there and, if that is not enough, the exact fix.

The checks only look: nothing is fetched, created or printed. They must work where things are missing, so nothing here is imported
before it is known to be installed.
"""

from __future__ import annotations

import importlib.metadata
import os
import queue
import re
import shutil
import socket
import sys
import threading
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from icefront.core.errors import ConfigError
from icefront.spark import jars
from icefront.spark.java import require_java

OLDEST_PYTHON = (3, 11)
PACKAGES = ("pyspark", "pyarrow", "pyiceberg")
LITTLE_SPACE = 2 * 1024**3
ANSWER_WITHIN = 5.0

_TELLTALE = re.compile(r"token|credential|secret|password|passwd|key|auth", re.IGNORECASE)


class Level(StrEnum):
    """How much a finding matters: `missing` stops a run, `warn` may."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fix` is empty when nothing has to be done."""

    name: str
    level: Level
    found: str
    fix: str = ""


def examine(
    *,
    folders: Mapping[str, Path] | None = None,
    catalogs: Mapping[str, Mapping[str, str]] | None = None,
    jar_groups: Iterable[str] = (jars.RUNTIME,),
) -> list[Finding]:
    """Look at everything that a run needs.

    `folders` are the places that a run writes to (state, warehouse), `catalogs` the PyIceberg properties of each catalog by name.
    """
    findings = [check_python(), check_java()]
    findings += [check_package(name) for name in PACKAGES]
    findings += [check_jar(jar) for group in jar_groups for jar in jars.locked(group)]
    findings += [check_folder(name, path) for name, path in (folders or {}).items()]
    findings.append(check_loopback())
    findings += [check_catalog(name, properties) for name, properties in (catalogs or {}).items()]
    return findings


def check_python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Finding:
    text = ".".join(str(part) for part in version)
    if version >= OLDEST_PYTHON:
        return Finding("Python", Level.OK, text)
    return Finding(
        "Python", Level.MISSING, f"{text}; 3.11 or newer is needed", "install Python 3.11 or newer and run scripts/setup"
    )


def check_java() -> Finding:
    try:
        java = require_java()
    except ConfigError as error:
        return Finding("Java", Level.MISSING, error.fact, error.next_step)
    return Finding("Java", Level.OK, f"{java.version} at {java.home} (from {java.chosen_by})")


def check_package(name: str) -> Finding:
    """Compare what is installed with what this release asks for, without importing it."""
    wanted = _requirement(name)
    fix = f'pip install "{name}{wanted}"'
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, Level.MISSING, "not installed", fix)
    if _satisfies(version, wanted):
        return Finding(name, Level.OK, version)
    return Finding(name, Level.WARN, f"{version}; this release is tested with {wanted}", fix)


def check_jar(jar: jars.Jar) -> Finding:
    path, condition = jars.inspect(jar)
    closed = os.environ.get("ICEFRONT_JARS")
    fetch = f"python -m icefront.spark.jars --group {jar.group}"
    match condition:
        case jars.Intact():
            return Finding(jar.coordinates, Level.OK, str(path))
        case jars.Missing():
            fix = f"put {jar.file_name} (sha256 {jar.sha256}) into {path.parent}" if closed else fetch
            return Finding(jar.coordinates, Level.MISSING, f"not in {path.parent}", fix)
        case jars.Altered(found):
            fix = f"put the right {jar.file_name} into {path.parent}" if closed else f"rm '{path}' && {fetch}"
            return Finding(jar.coordinates, Level.MISSING, f"{path} has sha256 {found}, the lock says {jar.sha256}", fix)


def check_folder(name: str, path: Path) -> Finding:
    """Can a run write here, and is there room? The folder itself may not exist yet: then its nearest parent answers."""
    path = path.absolute()
    there = next(place for place in (path, *path.parents) if place.exists())
    if not there.is_dir():
        return Finding(
            name, Level.MISSING, f"{there} is a file, a folder is needed", f"move {there} away, or configure another path"
        )
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(name, Level.MISSING, f"{there} cannot be written", f"chmod u+rwx '{there}', or configure another path")
    free = shutil.disk_usage(there).free
    found = f"{path}: {free / 1e9:.1f} GB free" + ("" if there == path else ", will be made")
    if free < LITTLE_SPACE:
        return Finding(
            name, Level.WARN, found, f"make room on the disk of {there}; a run needs {LITTLE_SPACE / 1e9:.0f} GB and more"
        )
    return Finding(name, Level.OK, found)


def check_loopback() -> Finding:
    """Python and Spark's JVM talk over a socket on 127.0.0.1; some sandboxes forbid that, and Spark then only times out."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(2)
            with socket.create_connection(server.getsockname(), timeout=2) as client:
                accepted, _ = server.accept()
                with accepted:
                    client.sendall(b"?")
                    accepted.settimeout(2)
                    accepted.recv(1)
    except OSError as failure:
        fix = "allow connections to 127.0.0.1 (container, sandbox or firewall settings)"
        return Finding("loopback", Level.MISSING, f"127.0.0.1 does not work: {failure}", fix)
    return Finding("loopback", Level.OK, "127.0.0.1 works")


def check_catalog(name: str, properties: Mapping[str, str], within: float = ANSWER_WITHIN) -> Finding:
    """Ask the catalog for its namespaces. Secrets stay out of what is said, even when an error message quotes them."""
    title = f"catalog {name}"
    where = _address(properties)
    not_yet = _embedded_not_yet(properties)
    if not_yet is not None:
        return Finding(title, Level.OK, f"{not_yet} is not there yet; the first run makes it")
    answers: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()
    # Clients retry for minutes by themselves; a daemon thread lets us stop listening without waiting for them.
    threading.Thread(target=_ask, args=(name, properties, answers), daemon=True).start()
    try:
        answer = answers.get(timeout=within)
    except queue.Empty:
        return Finding(
            title, Level.MISSING, f"{where} did not answer within {within:g} s", f"check that the server at {where} is up"
        )
    if isinstance(answer, Exception):
        reason = _without_secrets(f"{type(answer).__name__}: {answer}", properties)
        return Finding(
            title, Level.MISSING, f"{where}: {reason}", f"check address, credentials and settings of the catalog {name}"
        )
    return Finding(title, Level.OK, f"{where}: {answer} namespace{'' if answer == 1 else 's'}")


def _ask(name: str, properties: Mapping[str, str], answers: queue.SimpleQueue[int | Exception]) -> None:
    try:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415  the doctor must also run where it is not installed

        # Looking must not create anything: without this a SQL catalog makes its tables.
        answers.put(len(load_catalog(name, **{**properties, "init_catalog_tables": "false"}).list_namespaces()))
    except Exception as failure:  # noqa: BLE001  whatever a client raises is the finding
        answers.put(failure)


def _embedded_not_yet(properties: Mapping[str, str]) -> Path | None:
    """The SQLite file of an embedded catalog that no run has made yet; asking would create an empty one."""
    prefix = "sqlite:///"
    uri = str(properties.get("uri", ""))
    if not uri.startswith(prefix):
        return None
    path = Path(uri.removeprefix(prefix).split("?")[0])
    return None if path.exists() else path


def _address(properties: Mapping[str, str]) -> str:
    """The catalog's address without user, password and query."""
    uri = str(properties.get("uri", ""))
    if not uri:
        return str(properties.get("type", "no address"))
    parts = urllib.parse.urlsplit(uri)
    if not parts.netloc:
        return parts.path  # a file: its scheme's empty host would be lost
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _without_secrets(text: str, properties: Mapping[str, str]) -> str:
    secrets = {str(value) for key, value in properties.items() if _TELLTALE.search(key)}
    secrets |= {secret.partition(":")[2] for secret in secrets}  # a credential is `id:secret`
    parts = urllib.parse.urlsplit(str(properties.get("uri", "")))
    secrets |= {parts.netloc.rpartition("@")[0], parts.password or "", parts.query}
    for secret in sorted(secrets - {""}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return " ".join(text.split())[:400]


def _requirement(name: str) -> str:
    """What our own metadata asks of a package: `==4.1.4`, `>=0.12,<0.13`, or nothing."""
    for line in importlib.metadata.requires("icefront") or []:
        found = re.match(rf"{re.escape(name)}(?:\[[^\]]*\])?\s*([^;]*)", line, re.IGNORECASE)
        if found and not re.match(r"[\w.-]", line[len(name) :]):
            return found.group(1).strip()
    return ""


def _satisfies(version: str, wanted: str) -> bool:
    have = _numbers(version)
    for sign, text in re.findall(r"(==|>=|<)\s*([\d.]+)", wanted):
        bound = _numbers(text)
        if not {"==": have == bound, ">=": have >= bound, "<": have < bound}[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    """`4.1.4` → (4, 1, 4); zeros at the end mean nothing, so that 26 and 26.0.0 are one version."""
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[+a-z]", version, maxsplit=1)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
