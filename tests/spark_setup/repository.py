"""A small repository of jars in a folder, laid out as Maven lays it out, and a lock that names what should be in it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Repository:
    folder: Path

    @property
    def lock(self) -> Path:
        return self.folder / "test.lock"

    @property
    def settings(self) -> Path:
        return self.folder / "ivysettings.xml"

    def publish(self, artifact: str, content: bytes, *, classifier: str = "", locked_as: bytes | None = None) -> str:
        """Put a jar into the repository; `locked_as` is what the lock believes it to be. Returns its file name."""
        name = f"{artifact}-1.0{'-' + classifier if classifier else ''}.jar"
        path = self.folder / "maven" / "org" / "example" / artifact / "1.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.expect(artifact, content if locked_as is None else locked_as, classifier=classifier)
        return name

    def expect(self, artifact: str, content: bytes, *, classifier: str = "") -> None:
        """Name a jar in the lock without having it."""
        coordinates = f"org.example:{artifact}:1.0{':' + classifier if classifier else ''}"
        with self.lock.open("a") as lock:
            lock.write(f"runtime  {coordinates}  {hashlib.sha256(content).hexdigest()}  {len(content)}\n")

    def write_settings(self) -> None:
        self.settings.write_text(
            '<ivysettings><settings defaultResolver="here"/><resolvers>'
            f'<ibiblio name="here" m2compatible="true" usepoms="false" root="{(self.folder / "maven").as_uri()}/"/>'
            "</resolvers></ivysettings>"
        )
