"""The command of a launch: what is in it, what never is, what is refused."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from infctl.domain.errors import ConfigError
from infctl.store.records import GroupSpec
from infctl_daemon.engine import argv
from infctl_daemon.proc import spawn

KEY = "the-key-of-one-launch"


def spec(**other: Any) -> GroupSpec:
    base: dict[str, Any] = {
        "name": "a",
        "pool": "p",
        "node": "n1",
        "model_path": "/models/m",
        "max_running": 8,
        "max_queued": 16,
    }
    return GroupSpec(**(base | other))


def build(one: GroupSpec, served: str = "tiny") -> argv.Command:
    return argv.build(
        one,
        served_model=served,
        revision="abc",
        launch="a-22222222",
        port=12000,
        rendezvous=12261,
        config=Path("/run/infctl/keys/a.yaml"),
    )


def value(command: argv.Command, flag: str) -> str:
    assert command.argv.count(flag) == 1, flag
    return command.argv[command.argv.index(flag) + 1]


def test_the_engine_decides_the_module_and_nothing_else() -> None:
    real, sim = build(spec(python="/venv/bin/python")), build(spec(engine="sim"))
    assert real.argv[:3] == ("/venv/bin/python", "-m", "sglang.launch_server")
    assert sim.argv[:3] == (sys.executable, "-m", "infctl_daemon.engine.sim")
    quiet = ("--uvicorn-access-log-exclude-prefixes", "/v1/loads", "/ready", "/model_info")
    assert [a for a in real.argv[3:] if a not in quiet] == list(sim.argv[3:])


def test_what_the_specification_says_is_passed_once() -> None:
    command = build(spec(tp=2, context_length=2048))
    assert value(command, "--model-path") == "/models/m"
    assert value(command, "--host") == "127.0.0.1"
    assert value(command, "--port") == "12000"
    assert value(command, "--tp-size") == "2"
    assert value(command, "--weight-version") == "abc"
    assert value(command, "--served-model-name") == "tiny"
    assert value(command, "--max-running-requests") == "8"
    assert value(command, "--max-queued-requests") == "16"
    assert value(command, "--context-length") == "2048"
    assert value(command, "--nccl-port") == "12261"
    assert "--nccl-port" not in build(spec()).argv


def test_keys_are_in_the_file_and_never_in_arguments_or_environment() -> None:
    command = build(spec())
    assert yaml.safe_load(argv.key_file(KEY)) == {"api-key": KEY, "admin-api-key": KEY}
    assert value(command, "--config") == "/run/infctl/keys/a.yaml"
    assert not any("api-key" in a for a in command.argv)
    assert not any("key" in name.lower() for name in command.env)


def test_diagnostics_that_freeze_a_dying_engine_are_off_whatever_the_group_says() -> None:
    command = build(spec(env={"SGLANG_PYSPY_DUMP_BEFORE_CRASH": "1", "MINE": "x"}))
    assert command.env["SGLANG_PYSPY_DUMP_BEFORE_CRASH"] == "0"
    assert command.env["SGLANG_CUDA_COREDUMP_BEFORE_CRASH"] == "0"
    assert command.env["MINE"] == "x"


def test_only_named_variables_are_inherited_and_metrics_folders_never() -> None:
    own = {"PATH": "/bin", "SECRET_TOKEN": "x", "PROMETHEUS_MULTIPROC_DIR": "/m", "NOTIFY_SOCKET": "/n"}
    env = spawn.scrubbed_env(own, {"A": "1", "PROMETHEUS_MULTIPROC_DIR": "/other"})
    assert env == {"PATH": "/bin", "A": "1"}


def test_defaults_give_way_to_the_groups_own_arguments() -> None:
    assert value(build(spec()), "--random-seed") == str(argv.RANDOM_SEED)
    assert value(build(spec(engine_args=["--random-seed", "7"])), "--random-seed") == "7"
    command = build(spec(engine_args=["--watchdog-timeout=9"]))
    assert "--watchdog-timeout" not in command.argv
    assert command.argv[-1] == "--watchdog-timeout=9"


@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("--incremental-streaming-output", "breaks recovery"),
        ("--incremental_streaming_output", "breaks recovery"),
        ("--incremental", "breaks recovery"),
        ("--enable-custom-logit-processor", "client sends"),
        ("--skip-tokenizer-init", "stop strings"),
        ("--api-key=abc", "each launch"),
        ("--admin-api", "each launch"),
        ("--tokenizer-worker-num", "aborts get lost"),
        ("--port", "is set by port"),
        ("--model", "is set by modelPath"),
        ("--tp", "set by tp"),
        ("--weight-version=x", "is set by revision"),
        ("--config", "carries the keys"),
    ],
)
def test_arguments_that_break_recovery_or_are_ours_are_refused_with_the_reason(argument: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        build(spec(engine_args=[argument, "x"]))


def test_every_refusal_is_named_at_once() -> None:
    found = argv.refused(["--port", "1", "--skip-tokenizer-init", "--sleep-on-idle", "--device", "cpu"])
    assert len(found) == 2


def test_an_unknown_engine_and_a_model_name_with_a_colon_are_refused() -> None:
    with pytest.raises(ConfigError, match="engine 'vllm'"):
        build(spec(engine="vllm"))
    with pytest.raises(ConfigError, match="base:adapter"):
        build(spec(), served="a:b")


def test_each_launch_gets_another_rendezvous_port_inside_the_groups_range() -> None:
    ports = [argv.rendezvous_port(12000, n) for n in range(80)]
    assert len(set(ports)) == argv.RENDEZVOUS_PORTS
    assert min(ports) == 12260
    assert max(ports) < 12000 + argv.PORT_STEP
    assert all(a != b for a, b in pairwise(ports))
