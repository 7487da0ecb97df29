"""Help, version and usage errors."""

import pytest

from icefront import __version__
from tests.cli.projects import icefront

COMMANDS = [
    "init",
    "demo",
    "doctor",
    "check",
    "run",
    "status",
    "epochs",
    "verify",
    "changes",
    "settle",
    "compact",
    "expire",
    "upkeep",
    "prove",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    result = icefront(command, "--help")
    assert result.exit_code == 0
    assert f"Example: icefront {command}" in result.stdout


@pytest.mark.parametrize(
    "command",
    ["doctor", "check", "run", "status", "epochs", "verify", "changes", "settle", "compact", "expire", "upkeep", "prove"],
)
def test_every_listing_can_be_json(command):
    assert "--json" in icefront(command, "--help").stdout


def test_the_version_is_printed():
    result = icefront("--version")
    assert (result.exit_code, result.stdout.strip()) == (0, f"icefront {__version__}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("rum", "orders.yaml"),
        ("run",),
        ("run", "orders.yaml", "--until", "tomorrow"),
        ("run", "orders.yaml", "--for", "5 parsecs"),
        ("compact", "lake.t.x", "--max-bytes", "5 parsecs"),
        ("expire", "lake.t.x", "--keep", "5 parsecs"),
        ("expire", "lake.t.x", "--orphans", "never"),
    ],
)
def test_wrong_usage_exits_with_2(arguments):
    result = icefront(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_a_wrong_duration_says_how_to_write_one():
    result = icefront("status", "--max-lag", "5 parsecs")
    assert result.exit_code == 2
    assert "parsecs" in result.stderr
