from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from icefront.core.errors import ConfigError, ConnectionFailed
from icefront.spark import jars
from tests.spark_setup.repository import Repository


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch) -> Path:
    """The empty cache of a new user."""
    monkeypatch.delenv("ICEFRONT_JARS", raising=False)
    monkeypatch.setenv("ICEFRONT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jars"


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Repository:
    made = Repository(tmp_path / "repository")
    made.folder.mkdir()
    made.write_settings()
    monkeypatch.setenv("ICEFRONT_IVY_SETTINGS", str(made.settings))
    return made


def kept(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()} - {".lock"}


# ── the lock ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_shipped_lock_names_jars_by_coordinates_and_no_host():
    text = jars.LOCK.read_text()
    assert "//" not in text
    assert {jar.coordinates.rsplit(":", 1)[0] for jar in jars.locked("runtime")} == {
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13",
        "org.xerial:sqlite-jdbc",
    }
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in jars.locked())


def test_an_unknown_group_is_refused_with_those_that_there_are():
    with pytest.raises(ConfigError, match=r'no jars of the group "azure" \(there are: aws, proof, runtime\)'):
        jars.locked("azure")


def test_a_damaged_line_is_named(tmp_path):
    lock = tmp_path / "some.lock"
    lock.write_text("# a comment\nruntime org.example:a:1.0 123\n")
    with pytest.raises(ConfigError, match=r"some\.lock:2: expected"):
        jars.locked("runtime", lock=lock)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"ICEFRONT_CACHE": "/one", "XDG_CACHE_HOME": "/two"}, "/one/jars"),
        ({"XDG_CACHE_HOME": "/two"}, "/two/icefront/jars"),
        ({"HOME": "/three"}, "/three/.cache/icefront/jars"),
    ],
)
def test_the_cache_is_where_people_expect_it(monkeypatch, environment, folder):
    for name in ("ICEFRONT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert jars.cache_folder() == Path(folder)


def test_nothing_of_spark_is_imported_to_find_jars():
    code = "import sys, icefront.spark.jars; sys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ── closed networks ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def closed(tmp_path: Path, monkeypatch, repository) -> Path:
    """A folder that somebody carried in. There is no Java: fetching would fail."""
    folder = tmp_path / "carried-in"
    folder.mkdir()
    monkeypatch.setenv("ICEFRONT_JARS", str(folder))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    return folder


def test_jars_are_taken_from_the_given_folder(closed, repository):
    name = repository.publish("left", b"left")
    (closed / name).write_bytes(b"left")
    assert jars.ensure(lock=repository.lock) == [closed / name]


def test_a_jar_that_was_not_carried_in_is_named_with_its_checksum(closed, repository):
    repository.publish("left", b"left")
    repository.publish("right", b"right", classifier="tests")
    with pytest.raises(ConfigError) as refused:
        jars.ensure(lock=repository.lock)
    for told in ("lacks 2 jars", "org.example:right:1.0:tests", "right-1.0-tests.jar", sha256(b"right"), sha256(b"left")):
        assert told in refused.value.fact


def test_a_wrong_jar_in_the_given_folder_is_refused_with_both_checksums_and_left_alone(closed, repository):
    name = repository.publish("left", b"left")
    (closed / name).write_bytes(b"evil")
    with pytest.raises(ConfigError) as refused:
        jars.ensure(lock=repository.lock)
    assert sha256(b"left") in refused.value.fact
    assert sha256(b"evil") in refused.value.fact
    assert (closed / name).read_bytes() == b"evil"


# ── fetching, with the real Ivy from a repository in a folder ────────────────────────────────────────────────────────────────────


@pytest.mark.process
def test_what_was_fetched_once_is_there_at_once(cache, repository, monkeypatch):
    names = [repository.publish("left", b"left"), repository.publish("left", b"left's tests", classifier="tests")]
    assert jars.ensure(lock=repository.lock) == [cache / name for name in names]
    assert (cache / names[1]).read_bytes() == b"left's tests"
    assert kept(cache) == set(names)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # a second fetch would need it
    assert jars.ensure(lock=repository.lock) == [cache / name for name in names]


@pytest.mark.process
def test_a_fetched_jar_with_a_wrong_checksum_is_not_kept(cache, repository):
    repository.publish("left", b"evil", locked_as=b"left")
    with pytest.raises(ConnectionFailed) as refused:
        jars.ensure(lock=repository.lock)
    assert sha256(b"left") in refused.value.fact
    assert sha256(b"evil") in refused.value.fact
    assert kept(cache) == set()


@pytest.mark.process
def test_a_damaged_jar_in_the_cache_is_fetched_again(cache, repository):
    name = repository.publish("left", b"left")
    cache.mkdir(parents=True)
    (cache / name).write_bytes(b"le")
    jars.ensure(lock=repository.lock)
    assert (cache / name).read_bytes() == b"left"


@pytest.mark.process
def test_a_jar_that_the_repository_lacks_is_named(cache, repository):
    repository.publish("left", b"left")
    repository.expect("gone", b"gone")
    with pytest.raises(ConnectionFailed, match=r"org\.example:gone:1\.0"):
        jars.ensure(lock=repository.lock)


@pytest.mark.process
def test_without_a_network_the_error_says_what_to_do(cache, monkeypatch):
    monkeypatch.delenv("ICEFRONT_IVY_SETTINGS", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(ConnectionFailed, match="Connection refused") as refused:
        jars.ensure()
    assert "ICEFRONT_JARS" in refused.value.next_step
    assert kept(cache) == set()


@pytest.mark.process
def test_two_processes_at_once_end_with_one_good_copy(cache, repository):
    names = {repository.publish(artifact, artifact.encode() * 50_000) for artifact in ("left", "right")}
    (cache / ".fetch-left-behind").mkdir(parents=True)  # by a process that was killed
    command = [sys.executable, "-m", "icefront.spark.jars", "--lock", str(repository.lock)]
    both = [
        subprocess.Popen(command, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert answers[0][0] == answers[1][0]
    assert kept(cache) == names
    assert sum("fetching 2 jars" in said for _, said in answers) == 1


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch, repository):
    repository.publish("left", b"left")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.delenv("ICEFRONT_JARS", raising=False)
    monkeypatch.setenv("ICEFRONT_CACHE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="cannot be written"):
        jars.ensure(lock=repository.lock)


# ── command line ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_list_for_couriers_has_coordinates_file_names_and_checksums(capsys):
    assert jars.main(["--list", "--group", "aws"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    coordinates, name, checksum = line.split()
    assert (coordinates, name, len(checksum)) == (
        "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
        "iceberg-aws-bundle-1.12.0.jar",
        64,
    )


def test_without_a_group_the_list_has_all_of_them(capsys):
    assert jars.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [jar.coordinates for jar in jars.locked()]
    assert {jar.group for jar in jars.locked()} == {"runtime", "aws", "proof"}


def test_an_error_becomes_its_exit_code(capsys):
    assert jars.main(["--group", "azure"]) == ConfigError.exit_code
    assert "error: " in capsys.readouterr().err
