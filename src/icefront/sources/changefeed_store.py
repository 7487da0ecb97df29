"""Where a changefeed's files lie: a directory, or a prefix in an object store.

A store lists and opens; it decides nothing. Its errors come out in Icefront's own words.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs

from icefront.core.errors import ConfigError, ConnectionFailed, Overcompacted

_USE = "use a directory, file:///… or s3://bucket/prefix"
_REFUSALS = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "SIGNATURE_DOES_NOT_MATCH",
    "INVALID_CLIENT_TOKEN_ID",
    "UNRECOGNIZED_CLIENT",
)


@dataclass(frozen=True, slots=True)
class Stat:
    """Size in bytes, and the modification time as the store tells it, in milliseconds."""

    size: int
    mtime: int


class Entry(Protocol):
    """Something that a listing found; `name` is relative to the folder that was listed."""

    @property
    def name(self) -> str: ...

    @property
    def is_folder(self) -> bool: ...

    def stat(self) -> Stat | None:
        """Return size and time; None when the file has vanished since it was listed. A link that leads nowhere stops."""
        ...


class Store(Protocol):
    """A place with files. Paths are relative to its root, with slashes. Pickled into workers."""

    def where(self, path: str = "") -> str:
        """Name a file as people would, without credentials."""
        ...

    def top(self) -> Iterator[Entry]:
        """List what lies directly in the root."""
        ...

    def walk(self, folder: str) -> Iterator[Entry]:
        """List all files below a folder; none when there is no such folder."""
        ...

    def open(self, path: str, offset: int = 0) -> Any:
        """Open a file for reading from `offset` on; the result has `read(n)` and `close()`."""
        ...


def open_store(location: str, properties: Mapping[str, str]) -> Store:
    """Return the store for a path, a file: URI or an s3: URI."""
    try:
        parts = urlsplit(location)
    except ValueError as error:
        raise ConfigError(f"the changefeed's location cannot be read as a URI: {error}", _USE) from error
    match parts.scheme:
        case "":
            return LocalStore(_resolved(location))
        case "file":
            return LocalStore(_resolved(unquote(parts.path)))
        case "s3" | "s3a" if parts.netloc:
            return S3Store(f"{parts.netloc}{parts.path}".strip("/"), tuple(sorted(properties.items())))
        case other:
            shown = f"{other}://{parts.hostname or ''}{parts.path}"
            raise ConfigError(f"the changefeed's location {shown} has the scheme {other!r} and the host {parts.hostname!r}", _USE)


def _resolved(path: str) -> str:
    try:
        return str(Path(path).resolve())
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"the changefeed's location {path} cannot be followed: {error}", "correct the path, or its links"
        ) from error


# ── a directory ────────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _LocalEntry:
    name: str
    found: os.DirEntry[str]

    @property
    def is_folder(self) -> bool:
        with _in_our_words(self.found.path):
            return self.found.is_dir()

    def stat(self) -> Stat | None:
        try:
            found = self.found.stat()
        except FileNotFoundError as error:
            if Path(self.found.path).is_symlink():
                raise _leads_nowhere(self.found.path) from error
            return None
        except OSError as error:
            raise unreachable(self.found.path, error) from error
        return Stat(found.st_size, found.st_mtime_ns // 1_000_000)


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A directory. `os.scandir` asks for no file's size before somebody wants to know."""

    root: str

    def where(self, path: str = "") -> str:
        return f"{self.root}/{path}" if path else self.root

    def top(self) -> Iterator[Entry]:
        try:
            yield from self._scan("", "")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise (_not_a_folder if Path(self.root).is_file() else _no_such_place)(self.root) from error

    def walk(self, folder: str) -> Iterator[Entry]:
        for entry in self._scan_if_there(folder, ""):
            if entry.is_folder:
                yield from self._scan_if_there(f"{folder}/{entry.name}", f"{entry.name}/")
            else:
                yield entry

    def _scan_if_there(self, folder: str, prefix: str) -> Iterator[_LocalEntry]:
        try:
            yield from self._scan(folder, prefix)
        except (FileNotFoundError, NotADirectoryError):
            return

    def _scan(self, folder: str, prefix: str) -> Iterator[_LocalEntry]:
        with _in_our_words(self.where(folder)), os.scandir(self.where(folder)) as found:
            for entry in found:
                yield _LocalEntry(prefix + entry.name, entry)

    def open(self, path: str, offset: int = 0) -> Any:
        try:
            with _in_our_words(self.where(path)):
                file = open(self.where(path), "rb", buffering=0)  # noqa: SIM115, PTH123 - the caller closes it, after long reads
        except (FileNotFoundError, NotADirectoryError) as error:
            raise vanished(self.where(path)) from error
        file.seek(offset)
        return file


# ── an object store ────────────────────────────────────────────────────────────────────────
@dataclass(frozen=True, slots=True)
class _ArrowEntry:
    name: str
    info: Any

    @property
    def is_folder(self) -> bool:
        return bool(self.info.type == pafs.FileType.Directory)

    def stat(self) -> Stat | None:
        return Stat(int(self.info.size or 0), int(self.info.mtime_ns or 0) // 1_000_000)


@dataclass(frozen=True, slots=True)
class S3Store:
    """A prefix in an S3-compatible store, set up by Iceberg's `s3.…` properties."""

    root: str
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def where(self, path: str = "") -> str:
        return f"s3://{self.root}/{path}" if path else f"s3://{self.root}"

    def top(self) -> Iterator[Entry]:
        found = list(self._list("", recursive=False))
        if not found:
            self._check_bucket()
        return iter(found)

    def _check_bucket(self) -> None:
        """Tell a feed that has not begun from a bucket that does not exist."""
        bucket = self.root.split("/")[0]
        with _in_our_words(self.where()):
            missing = _s3(self.properties).get_file_info(bucket).type == pafs.FileType.NotFound
        if missing:
            raise _no_such_place(self.where())

    def walk(self, folder: str) -> Iterator[Entry]:
        # One request per thousand keys; folder by folder would be one per hour of the day.
        return (entry for entry in self._list(folder, recursive=True) if not entry.is_folder)

    def _list(self, folder: str, *, recursive: bool) -> Iterator[Entry]:
        base = f"{self.root}/{folder}" if folder else self.root
        with _in_our_words(self.where(folder)):
            selector = pafs.FileSelector(base, recursive=recursive, allow_not_found=True)
            found = _s3(self.properties).get_file_info(selector)
        for info in found:
            yield _ArrowEntry(info.path[len(base) :].lstrip("/"), info)

    def open(self, path: str, offset: int = 0) -> Any:
        try:
            with _in_our_words(self.where(path)):
                file = _s3(self.properties).open_input_file(f"{self.root}/{path}")
                file.seek(offset)
                return file
        except FileNotFoundError as error:
            raise vanished(self.where(path)) from error


@lru_cache(maxsize=8)
def _s3(properties: tuple[tuple[str, str], ...]) -> Any:
    """Connect once per process and set of properties."""
    try:
        return pafs.S3FileSystem(**_options(dict(properties)))
    except ValueError as error:
        raise ConfigError(f"the store's s3.… properties cannot be used: {error}", "correct them") from error


def _options(given: Mapping[str, str]) -> dict[str, object]:
    """Say Iceberg's properties as Arrow calls them."""
    options: dict[str, object] = {
        "access_key": given.get("s3.access-key-id"),
        "secret_key": given.get("s3.secret-access-key"),
        "session_token": given.get("s3.session-token"),
        "region": given.get("s3.region") or given.get("client.region"),
        "connect_timeout": float(given.get("s3.connect-timeout", "10")),
        "request_timeout": float(given.get("s3.request-timeout", "60")),
    }
    if endpoint := given.get("s3.endpoint"):
        parts = urlsplit(endpoint)
        options["endpoint_override"] = parts.netloc or endpoint
        options["scheme"] = parts.scheme or "https"
        options["force_virtual_addressing"] = given.get("s3.path-style-access", "true").lower() != "true"
    return {name: value for name, value in options.items() if value is not None}


# ── errors ─────────────────────────────────────────────────────────────────────────────────
@contextmanager
def _in_our_words(where: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except PermissionError as error:
        raise _not_allowed(where) from error
    except OSError as error:
        text = str(error)
        if "NO_SUCH_BUCKET" in text or "NoSuchBucket" in text:
            raise _no_such_place(where) from error
        if any(refusal in text for refusal in _REFUSALS):
            raise _not_allowed(where) from error
        raise unreachable(where, error) from error


def unreachable(where: str, error: Exception) -> ConnectionFailed:
    return ConnectionFailed(f"{where} cannot be read: {error}", "check the network and the store; reading can be tried again")


def vanished(where: str) -> Overcompacted:
    return Overcompacted(
        f"{where} was listed and is gone",
        "a clean-up deletes changefeed files that are still needed: restore the file, and let the clean-up keep more days",
    )


def _no_such_place(where: str) -> ConfigError:
    return ConfigError(f"the changefeed's location {where} does not exist", "correct the path, or create the changefeed first")


def _not_a_folder(where: str) -> ConfigError:
    return ConfigError(
        f"the changefeed's location {where} is a file, not a folder", "name the folder that the changefeed writes to"
    )


def _leads_nowhere(where: str) -> Overcompacted:
    return Overcompacted(
        f"{where} is a link to {_target_of(where)}, which does not exist",
        "restore what it links to, or mount it; remove the link only if all changes behind it are published",
    )


def _target_of(link: str) -> str:
    try:
        return str(Path(link).readlink())
    except OSError:
        return "a file"


def _not_allowed(where: str) -> ConfigError:
    return ConfigError(f"no permission to read {where}", "allow this user to list and read the changefeed's files")
