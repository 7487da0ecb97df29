from __future__ import annotations

import hashlib
import os
import socket
from collections import namedtuple
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from icefront.spark import doctor, jars
from icefront.spark.doctor import Level
from tests.servers.rest import RestCatalog

JAR = jars.Jar("runtime", "org.example", "left", "1.0", "", hashlib.sha256(b"left").hexdigest(), 4)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.delenv("ICEFRONT_JARS", raising=False)
    monkeypatch.setenv("ICEFRONT_CACHE", str(tmp_path))
    (tmp_path / "jars").mkdir()
    return tmp_path / "jars"


def test_every_finding_that_is_not_ok_comes_with_a_fix(tmp_path, monkeypatch, cache):
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    findings = doctor.examine(folders={"state": tmp_path / "state"}, catalogs={"lake": {"type": "nonsense"}})
    levels = {finding.name: finding.level for finding in findings}
    assert levels["Python"] == levels["pyspark"] == levels["state"] == levels["loopback"] == Level.OK
    assert levels["Java"] == levels["catalog lake"] == Level.MISSING
    assert all(bool(finding.fix) == (finding.level != Level.OK) for finding in findings)


def test_an_old_python_is_named():
    assert doctor.check_python((3, 10, 4)).found.startswith("3.10.4")
    assert doctor.check_python((3, 10, 4)).level == Level.MISSING


def test_a_package_that_is_not_installed_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "_requirement", lambda _: ">=2")
    assert doctor.check_package("no-such-package-anywhere") == doctor.Finding(
        "no-such-package-anywhere", Level.MISSING, "not installed", 'pip install "no-such-package-anywhere>=2"'
    )


def test_another_version_than_the_tested_one_is_a_warning(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda _: "4.0.1")
    found = doctor.check_package("pyspark")
    assert (found.level, found.found) == (Level.WARN, "4.0.1; this release is tested with ==4.1.4")


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("4.1.4", "==4.1.4", True),
        ("4.1.3", "==4.1.4", False),
        ("26.0.0", ">=19", True),
        ("0.12.1", "<0.13,>=0.12", True),
        ("0.13.0", "<0.13,>=0.12", False),
        ("1.0rc1", "", True),
    ],
)
def test_versions_are_compared_as_numbers(version, wanted, fits):
    assert doctor._satisfies(version, wanted) is fits


def test_a_jar_is_looked_at_byte_for_byte(cache):
    assert doctor.check_jar(JAR).level == Level.MISSING
    (cache / "left-1.0.jar").write_bytes(b"evil")
    altered = doctor.check_jar(JAR)
    assert altered.level == Level.MISSING
    assert JAR.sha256 in altered.found
    assert altered.fix.startswith("rm ")
    (cache / "left-1.0.jar").write_bytes(b"left")
    assert doctor.check_jar(JAR).level == Level.OK


def test_a_folder_that_will_be_made_is_fine_and_is_not_made(tmp_path):
    found = doctor.check_folder("state", tmp_path / "a" / "b")
    assert found.level == Level.OK
    assert "will be made" in found.found
    assert not (tmp_path / "a").exists()


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "state").write_text("")
    assert "is a file" in doctor.check_folder("state", tmp_path / "state" / "db").found


def test_a_folder_that_cannot_be_written_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere, so modes would prove nothing
    assert doctor.check_folder("warehouse", tmp_path).level == Level.MISSING


def test_little_space_is_a_warning(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")  # noqa: PYI024
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**12, 10**12 - 10**8, 10**8))
    found = doctor.check_folder("warehouse", tmp_path)
    assert (found.level, "0.1 GB free" in found.found) == (Level.WARN, True)


# ── catalogs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def embedded(folder: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": folder.as_uri()}


def test_an_embedded_catalog_that_no_run_has_made_is_fine_and_is_not_made(tmp_path):
    assert doctor.check_catalog("lake", embedded(tmp_path)).level == Level.OK
    assert not (tmp_path / "catalog.db").exists()


def test_an_embedded_catalog_tells_its_namespaces(tmp_path):
    load_catalog("lake", **embedded(tmp_path)).create_namespace("shop")
    found = doctor.check_catalog("lake", embedded(tmp_path))
    assert (found.level, found.found.endswith("1 namespace")) == (Level.OK, True)


@pytest.mark.process
def test_a_real_catalog_server_is_reached_and_a_dead_one_is_not(tmp_path):
    with RestCatalog(tmp_path) as server:
        assert doctor.check_catalog("lake", server.properties).level == Level.OK
        server.kill()
        found = doctor.check_catalog("lake", server.properties)
        assert (found.level, "refused" in found.found) == (Level.MISSING, True)


def test_a_catalog_that_keeps_silent_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        properties = {"type": "rest", "uri": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        found = doctor.check_catalog("lake", properties, within=0.5)
    assert (found.level, "did not answer within 0.5 s" in found.found) == (Level.MISSING, True)


def test_secrets_never_show_even_when_an_error_quotes_them(monkeypatch):
    properties = {
        "type": "rest",
        "uri": "https://bob:hunter2@lake.example/api?sig=abcdef",
        "credential": "client:swordfish",
        "token": "eyJhbGciOi",
        "s3.secret-access-key": "wJalrXUtn",
    }

    def fail(*_: object, **given: str) -> None:
        raise ValueError(f"cannot log in with {given} nor with swordfish")

    monkeypatch.setattr("pyiceberg.catalog.load_catalog", fail)
    text = repr(doctor.check_catalog("lake", properties))
    assert "cannot log in" in text
    assert "https://lake.example/api" in text
    for secret in ("hunter2", "abcdef", "swordfish", "eyJhbGciOi", "wJalrXUtn"):
        assert secret not in text
