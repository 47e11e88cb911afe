"""The command of a launch: what is in it, what never is, what is refused."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from infctl.domain.errors import ConfigError
from infctl.store.records import GroupSpec, Host
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


def build(one: GroupSpec, served: str = "tiny", **other: Any) -> argv.Command:
    return argv.build(
        one,
        served_model=served,
        revision="abc",
        launch="a-22222222",
        port=12000,
        rendezvous=12261,
        config=Path("/run/infctl/keys/a.yaml"),
        **other,
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


def test_parallel_sizes_become_flags_and_ones_do_not() -> None:
    command = build(spec(tp=4, pp=2, ep=2))
    assert [value(command, f"--{size}-size") for size in ("tp", "pp", "ep")] == ["4", "2", "2"]
    assert not {"--dp-size", "--nnodes", "--dist-init-addr"} & set(command.argv)
    assert not {"--pp-size", "--ep-size"} & set(build(spec(tp=4)).argv)


def test_replicas_choose_their_own_rendezvous_ports_since_the_engine_binds_a_given_one_twice() -> None:
    command = build(spec(tp=2, dp=2))
    assert value(command, "--dp-size") == "2"
    assert "--nccl-port" not in command.argv


def test_the_caps_of_a_group_are_shared_out_to_its_replicas_which_have_their_own() -> None:
    command = build(spec(dp=4))
    assert value(command, "--max-running-requests") == "2"
    assert value(command, "--max-queued-requests") == "4"


def test_each_host_is_told_its_rank_and_where_the_ranks_of_this_launch_meet() -> None:
    one = spec(tp=4, hosts=[Host(node="n1", gpus=["0", "1"]), Host(node="n2", gpus=["2", "3"])])
    for rank, gpus in enumerate(("0,1", "2,3")):
        command = build(one, host=rank, leader="10.0.0.1")
        assert value(command, "--nnodes") == "2"
        assert value(command, "--node-rank") == str(rank)
        assert value(command, "--dist-init-addr") == "10.0.0.1:12261"
        assert "--nccl-port" not in command.argv
        assert command.env["CUDA_VISIBLE_DEVICES"] == gpus
    with pytest.raises(ConfigError, match="address of the first"):
        build(one)


def test_an_engine_sees_the_gpus_of_its_group_in_the_order_of_the_bus() -> None:
    uuid = "GPU-5a3e2f40-0000-1111-2222-333344445555"
    command = build(spec(hosts=[Host(node="n1", gpus=[uuid])], env={"CUDA_VISIBLE_DEVICES": "7"}))
    assert command.env["CUDA_VISIBLE_DEVICES"] == uuid
    assert command.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in build(spec()).env
    assert build(spec(env={"CUDA_VISIBLE_DEVICES": "7"})).env["CUDA_VISIBLE_DEVICES"] == "7"


def test_a_role_becomes_a_mode_and_the_cap_that_it_ignores_is_not_pretended() -> None:
    prefill, decode = build(spec(role="prefill")), build(spec(role="decode"))
    assert value(prefill, "--disaggregation-mode") == "prefill"
    assert value(decode, "--disaggregation-mode") == "decode"
    assert "--max-queued-requests" not in (*prefill.argv, *decode.argv)
    assert value(prefill, "--max-running-requests") == "8"
    # base + 140 + the launch's count, as the rendezvous is base + 260 + the count
    assert value(prefill, "--disaggregation-bootstrap-port") == "12141"
    assert "--disaggregation-bootstrap-port" not in decode.argv
    assert "--disaggregation-mode" not in build(spec()).argv


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
        ("--port", "use spec.port"),
        ("--model", "use spec.modelPath"),
        ("--tp", "use spec.tensorParallel"),
        ("--weight-version=x", "use spec.revision"),
        ("--config", "with the keys in it"),
    ],
)
def test_arguments_that_break_recovery_or_are_ours_are_refused_with_the_reason(argument: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        build(spec(engine_args=[argument, "x"]))


def test_every_refusal_is_named_at_once() -> None:
    args = ["--port", "1", "--skip-tokenizer-init", "--sleep-on-idle", "--device", "cpu"]
    with pytest.raises(ConfigError) as caught:
        build(spec(engine_args=args))
    assert len(caught.value.message.split("; ")) == 2


def test_an_unknown_engine_and_a_model_name_with_a_colon_are_refused() -> None:
    with pytest.raises(ConfigError, match="engine 'vllm'"):
        build(spec(engine="vllm"))
    with pytest.raises(ConfigError, match="base:adapter"):
        build(spec(), served="a:b")


def test_each_launch_gets_another_rendezvous_port_inside_the_groups_range() -> None:
    over_hosts = [argv.rendezvous_port(12000, n, 3) for n in range(80)]
    assert len(set(over_hosts)) > 20 and max(over_hosts) + 13 < 12000 + argv.PORT_STEP
    ports = [argv.rendezvous_port(12000, n) for n in range(80)]
    assert len(set(ports)) == argv.RENDEZVOUS_PORTS
    assert min(ports) == 12260
    assert max(ports) < 12000 + argv.PORT_STEP
    assert all(a != b for a, b in pairwise(ports))
