"""Errors end commands with one sentence, a next step and a code; never with a traceback, never with a secret."""

import errno
import logging
import re
from pathlib import Path

import pytest
import structlog
import typer
from typer.testing import CliRunner

from icefront.cli.errors import Commands
from icefront.core import errors
from icefront.log import configure
from icefront.settings.secrets import Secret
from tests.cli.projects import Shop, icefront


def app_that_raises(error: Exception) -> typer.Typer:
    app = typer.Typer(cls=Commands)

    @app.callback()
    def options(*, debug: bool = False) -> None: ...

    @app.command()
    def fail() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("a", "b"), 2),
        (errors.ConnectionFailed("a", "b"), 3),
        (errors.FencedOut("a", "b"), 4),
        (errors.BadRow("a", "b"), 5),
        (errors.RolledBack("a", "b"), 5),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error, code):
    result = CliRunner().invoke(app_that_raises(error), ["fail"])
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == "error: a\n  → b\n"


def test_an_unexpected_error_is_short_and_says_where_the_traceback_is():
    result = CliRunner().invoke(app_that_raises(ZeroDivisionError("by nothing")), ["fail"])
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.startswith("error: unexpected ZeroDivisionError: by nothing\n")
    file = re.search(r"the traceback is in (\S+);", result.stderr)
    assert file
    path = Path(file[1])
    assert "ZeroDivisionError: by nothing" in path.read_text()
    path.unlink()


def test_a_reader_that_has_gone_is_no_defect():
    result = CliRunner().invoke(app_that_raises(BrokenPipeError(errno.EPIPE, "Broken pipe")), ["fail"])
    assert (result.exit_code, result.stderr) == (1, "")


def test_debug_shows_the_traceback():
    result = CliRunner().invoke(app_that_raises(ZeroDivisionError("by nothing")), ["--debug", "fail"])
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


@pytest.mark.parametrize("command", ["check", "run", "status", "epochs", "verify"])
def test_a_mistake_in_a_file_is_told_with_its_place_and_the_closest_key(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shop = Shop.make(tmp_path)
    shop.file.write_text(shop.file.read_text() + "epocks: {every: 10s}\n")
    result = icefront(command, "orders.yaml")
    line = len(shop.file.read_text().splitlines())
    assert result.exit_code == 2
    assert f'error: orders.yaml:{line}:1: epocks: unknown key (did you mean "epochs"?)' in result.stderr
    assert "Traceback" not in result.stderr


def test_an_undefined_catalog_is_told_with_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Shop.make(tmp_path, sink={"iceberg": {"table": "lakee.shop.orders"}})
    result = icefront("run", "orders.yaml")
    assert result.exit_code == 2
    assert re.search(
        r'error: orders\.yaml:\d+:\d+: sink\.iceberg\.table: catalog "lakee" is not defined \(did you mean "lake"\?\)',
        result.stderr,
    )


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shop = Shop.make(tmp_path, mode="upset")
    shop.file.write_text(shop.file.read_text() + "epocks: 1\n")
    assert icefront("check", "orders.yaml").stderr.count("error: orders.yaml:") == 2


def test_a_missing_file_names_those_that_are_there(tmp_path):
    Shop.make(tmp_path)
    result = icefront("run", tmp_path / "order.yaml")
    assert result.exit_code == 2
    assert "there is no such file" in result.stderr
    assert "orders.yaml" in result.stderr


def test_secrets_are_never_printed(tmp_path, monkeypatch):
    monkeypatch.setenv("LAKE_CREDENTIAL", "me:hunter2-very-secret")
    (tmp_path / "icefront.yaml").write_text(
        'catalogs: {lake: {type: rest, uri: "http://127.0.0.1:9/hunter2-very-secret", credential: "${env:LAKE_CREDENTIAL}"}}\n'
    )
    shop = Shop.make(tmp_path)
    for result in (
        icefront("status", shop.file),
        icefront("status", "--json", shop.file),
        icefront("--debug", "check", shop.file),
    ):
        assert result.exit_code == 3
        assert "hunter2" not in result.output


def test_the_same_pipeline_cannot_run_twice_in_one_process(tmp_path):
    shop = Shop.make(tmp_path)
    (tmp_path / "again.yaml").write_text(shop.file.read_text())
    result = icefront("run", shop.file, tmp_path / "again.yaml")
    assert result.exit_code == 2
    assert "both pipeline orders" in result.stderr


def test_a_log_line_does_not_print_a_secret_either(capsys):
    secret = Secret("jdbc:foodb://host/?pwd=hunter2-very-secret")
    configure("plain")
    structlog.get_logger("test").warning("target stopped", error=f"no driver for {secret.reveal()}", note="a host/?pwd=hunter")
    logging.getLogger("a library").warning("gave up on %s", secret.reveal())
    shown = capsys.readouterr().err
    assert "target stopped" in shown
    assert "gave up on" in shown
    assert "hunter2" not in shown
