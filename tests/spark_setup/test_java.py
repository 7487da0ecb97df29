from __future__ import annotations

from pathlib import Path

import pytest

from icefront.core.errors import ConfigError
from icefront.spark import java


def fake_java(home: Path, version: str, *, exit_code: int = 0, modules: str = "java.base jdk.incubator.vector") -> Path:
    """A `java` that only knows its version."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"#!/bin/sh\necho '    java.home = {home}' >&2\necho 'openjdk version \"{version}\" 2025-04-15' >&2\nexit {exit_code}\n"
    )
    executable.chmod(0o755)
    (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return executable


@pytest.fixture
def machine(tmp_path: Path, monkeypatch) -> Path:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "_USUAL_PLACES", ((str(tmp_path / "jvm"), "*"),))
    monkeypatch.setattr("platform.system", lambda: "Linux")
    return tmp_path


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("21-ea", 21), ("1.8.0_402", 8), ("25.0.3", 25), ("odd", 0)]
)
def test_old_and_new_version_texts_are_understood(version, major):
    assert java._major(version) == major


def test_java_from_the_path_is_found(machine):
    fake_java(machine, "17.0.15")
    found = java.require_java()
    assert (found.major, found.home, found.chosen_by) == (17, machine, "PATH")


def test_java_home_wins_over_the_path(machine, monkeypatch):
    fake_java(machine, "17.0.15")
    fake_java(machine / "other", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(machine / "other"))
    assert java.require_java().major == 21


def test_a_machine_without_java_is_told_what_to_install(machine):
    with pytest.raises(ConfigError, match="no Java found") as refused:
        java.require_java()
    assert "apt-get install openjdk-17-jre-headless" in refused.value.next_step
    assert "dnf install java-21-openjdk-headless" in refused.value.next_step


def test_on_macos_the_fix_is_for_macos(machine, monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(ConfigError) as refused:
        java.require_java()
    assert refused.value.next_step.startswith("brew install openjdk@21")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.25", "16.0.2", "22.0.1", "25.0.3"])
def test_a_java_on_which_spark_does_not_work_is_refused_with_both_versions(machine, version):
    fake_java(machine, version)
    with pytest.raises(ConfigError) as refused:
        java.require_java()
    assert version in refused.value.fact
    assert java.SUPPORTED in refused.value.fact


def test_where_a_good_java_is_installed_the_fix_is_one_export(machine):
    fake_java(machine, "25.0.3")
    fake_java(machine / "jvm" / "seventeen", "17.0.15")
    fake_java(machine / "jvm" / "twenty-one", "21.0.2")
    fake_java(machine / "jvm" / "twenty-five", "25.0.3")
    with pytest.raises(ConfigError) as refused:
        java.require_java()
    assert refused.value.next_step == f"export JAVA_HOME={machine / 'jvm' / 'twenty-one'}"


def test_a_java_home_that_leads_nowhere_is_named(machine, monkeypatch):
    fake_java(machine, "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(machine / "gone"))
    with pytest.raises(ConfigError, match=r"JAVA_HOME is .*gone"):
        java.require_java()


def test_a_stub_that_only_prints_an_advertisement_is_no_java(machine):
    fake_java(machine, "17", exit_code=1)
    with pytest.raises(ConfigError, match="does not run"):
        java.require_java()


def test_a_cut_down_java_is_refused_before_spark_fails_on_it(machine):
    fake_java(machine, "17.0.15", modules="java.base java.logging")
    with pytest.raises(ConfigError, match=r"without the module jdk\.incubator\.vector"):
        java.require_java()
