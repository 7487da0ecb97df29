"""Find the Java that Spark will run on, and refuse one on which it cannot work.

Spark itself takes `$JAVA_HOME/bin/java`, else `java` from the PATH. We look in the same order and never pick another one silently:
what is checked here must be what Spark then starts.

Why not any newer Java: tried with Spark 4.1 on Java 25, a plain SQL job runs, but Hadoop's login asks for `Subject.getSubject`
(gone since 24) and Arrow's memory access fails in the first `mapInArrow` task. A clear refusal beats a job that dies half-way.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from icefront.core.errors import ConfigError

OLDEST = 17
NEWEST = 21
SUPPORTED = f"Java {OLDEST} or {NEWEST}"

_SPARK_MODULE = "jdk.incubator.vector"
_ANSWER_WITHIN = 30.0
_USUAL_PLACES = (
    ("/usr/lib/jvm", "*"),
    ("~/.sdkman/candidates/java", "*"),
    ("/Library/Java/JavaVirtualMachines", "*/Contents/Home"),
)


@dataclass(frozen=True, slots=True)
class Java:
    """One Java installation: `version` is the full text, `major` the number that decides."""

    executable: Path
    home: Path
    version: str
    major: int
    chosen_by: str

    @property
    def supported(self) -> bool:
        return OLDEST <= self.major <= NEWEST


def require_java() -> Java:
    """Return the Java that Spark will use; raise ConfigError with the exact fix when there is none that works."""
    executable, chosen_by = _locate()
    java = probe(executable, chosen_by)
    if java is None:
        raise ConfigError(f"{executable} (from {chosen_by}) does not run; Spark needs {SUPPORTED}.", how_to_install())
    if not java.supported:
        raise ConfigError(f"{executable} (from {chosen_by}) is Java {java.version}; Spark needs {SUPPORTED}.", how_to_install())
    if _lacks_module(java.home, _SPARK_MODULE):
        raise ConfigError(
            f"{java.home} is a cut-down Java {java.version} without the module {_SPARK_MODULE}; Spark needs it.", how_to_install()
        )
    return java


def probe(executable: Path, chosen_by: str = "the caller") -> Java | None:
    """Ask one `java` for its version and home; None when it does not answer (macOS has a stub that only says where to download)."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_WITHIN, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stderr + done.stdout
    version = re.search(r'version "([^"]+)"', said)
    if done.returncode != 0 or version is None:
        return None
    home = re.search(r"^\s*java\.home = (.+)$", said, re.MULTILINE)
    where = Path(home.group(1).strip()) if home else executable.resolve().parent.parent
    return Java(executable, where, version.group(1), _major(version.group(1)), chosen_by)


def how_to_install() -> str:
    """The exact fix for this machine: another Java that is already here, else the package to install."""
    ready = _already_here()
    if ready is not None:
        return f"export JAVA_HOME={ready}"
    if platform.system() == "Darwin":
        return f'brew install openjdk@{NEWEST} && export JAVA_HOME="$(brew --prefix openjdk@{NEWEST})/libexec/openjdk.jdk/Contents/Home"'
    return (
        f"Debian, Ubuntu: sudo apt-get install openjdk-{OLDEST}-jre-headless (or openjdk-{NEWEST}-jre-headless) · "
        f"Fedora: sudo dnf install java-{NEWEST}-openjdk-headless · "
        "then, if another Java comes first: export JAVA_HOME=<its folder>"
    )


def _locate() -> tuple[Path, str]:
    home = os.environ.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not executable.is_file():
            raise ConfigError(f"JAVA_HOME is {home}, but there is no {executable}.", how_to_install())
        return executable, "JAVA_HOME"
    on_path = shutil.which("java")
    if on_path is None:
        raise ConfigError(
            f"no Java found: JAVA_HOME is not set and there is no java on the PATH; Spark needs {SUPPORTED}.", how_to_install()
        )
    return Path(on_path), "PATH"


def _major(version: str) -> int:
    """`17.0.15` → 17, `21-ea` → 21, and the old style `1.8.0_402` → 8."""
    numbers = [int(n) for n in re.findall(r"\d+", version)]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _lacks_module(home: Path, module: str) -> bool:
    """Read the module list that every full Java writes into its `release` file; no list means no objection."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    return modules is not None and module not in modules.group(1).split()


def _already_here() -> Path | None:
    """A supported Java in the places where packages put it, newest first, so that the fix can be one `export`."""
    found = [java for home in _usual_homes() if (java := probe(home / "bin" / "java")) is not None and java.supported]
    usable = [java for java in found if not _lacks_module(java.home, _SPARK_MODULE)]
    return max(usable, key=lambda java: (java.major, java.version)).home if usable else None


def _usual_homes() -> list[Path]:
    homes = {home.resolve() for root, pattern in _USUAL_PLACES for home in Path(root).expanduser().glob(pattern)}
    return sorted(home for home in homes if (home / "bin" / "java").is_file())
