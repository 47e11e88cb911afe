"""The one table of refused flags and variables: both readers of a specification go by it, in every spelling."""

from __future__ import annotations

import pytest

from infctl.config.load import load_documents
from infctl.domain import engine_env
from infctl.domain.engine_flags import BREAKS, OURS, refusal, refused, value_of
from infctl.domain.errors import ConfigError
from tests.unit.test_engine_argv import build, spec

GROUP = """\
apiVersion: infctl/v1
kind: Group
metadata: {name: a}
spec: {pool: p, node: n, engine: sim, modelPath: /m, maxRunning: 1, maxQueued: 1, %s}
"""

# of SGLang 0.5.23, and what an operator may well need
_FINE = """
--mem-fraction-static --max-total-tokens --chunked-prefill-size --attention-backend --sampling-backend
--device --dtype --quantization --kv-cache-dtype --load-format --trust-remote-code --enable-metrics
--random-seed --watchdog-timeout --soft-watchdog-timeout --sleep-on-idle --dist-timeout --attn-dp-size
--moe-dp-size --enable-lora --lora-paths --speculative-algorithm --enable-hierarchical-cache
--reasoning-parser --tool-call-parser --chat-template --disaggregation-transfer-backend
--disaggregation-ib-device --stream-interval --revision --page-size --numa-node --disable-radix-cache
--enable-memory-saver --schedule-policy --log-level --crash-dump-folder --weight-cache-mode --tokenizer-mode
--enable-deepseek-v4-fp4-indexer --model-impl --ep-num-redundant-experts --dp-attention
"""
FINE = _FINE.split()


@pytest.mark.parametrize("flag", sorted({*OURS, *BREAKS}))
def test_each_flag_is_refused_by_documents_and_by_the_daemon_for_the_same_reason(flag: str) -> None:
    reason = OURS.get(flag) or BREAKS[flag]
    with pytest.raises(ConfigError) as by_daemon:
        build(spec(engine_args=[flag, "x"]))
    with pytest.raises(ConfigError) as by_document:
        load_documents([("g.yaml", GROUP % f"engineArgs: ['{flag}', x]")])
    assert by_daemon.value.message.endswith(reason)
    assert by_document.value.message == f"g.yaml:4: spec.engineArgs[0]: {by_daemon.value.message}"


@pytest.mark.parametrize("flag", sorted({*OURS, *BREAKS}))
def test_no_spelling_gets_through(flag: str) -> None:
    for spelling in (f"{flag}=1", flag.replace("-", "_").replace("__", "--", 1), flag[:-1], flag[:-1] + "=1"):
        assert refusal(spelling), spelling


def test_short_forms_and_the_end_of_flags_are_refused() -> None:
    for word in ("--tp", "--dp=2", "--pp", "--ep", "-h", "--"):
        assert refusal(word), word


@pytest.mark.parametrize("flag", FINE)
def test_what_is_not_named_passes_through(flag: str) -> None:
    assert refusal(flag) == ""
    assert flag in build(spec(engine_args=[flag, "x"])).argv


def test_values_are_no_flags() -> None:
    assert refused(["--chat-template", "port", "-1", "", "api-key"]) == []


def test_an_abbreviation_says_what_it_stands_for() -> None:
    assert refusal("--incremental").startswith("--incremental (--incremental-streaming-output) breaks recovery: ")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--a", "1"], "1"),
        (["--a=1"], "1"),
        (["--a=x=y"], "x=y"),
        (["--b", "--a"], ""),
        (["--a", "--b"], ""),
        (["--b", "a"], None),
    ],
)
def test_the_value_of_a_flag(arguments: list[str], found: str | None) -> None:
    assert value_of(arguments, "--a") == found


@pytest.mark.parametrize(
    "name",
    [*engine_env.OURS, *engine_env.BREAKS, "INFCTL_LAUNCH", "HF_TOKEN", "hf_token", "AWS_SECRET_ACCESS_KEY", "TOKEN",
     "OPENAI_API_KEY", "DB_PASSWORD", "A-B", "", "1A"],
)  # fmt: skip
def test_variables_that_would_leak_or_break_are_refused(name: str) -> None:
    assert engine_env.refusal(name)


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "SGLANG_USE_CPU_ENGINE", "SGLANG_MAX_NEW_TOKENS_LIMIT", "NCCL_DEBUG", "HF_HOME", "KEY",
     "SGLANG_NIXL_CONFIG_KEYS", "SGLANG_TEST_CRASH_AFTER_STREAM_OUTPUTS", "LD_PRELOAD", "_"],
)  # fmt: skip
def test_other_variables_are_the_groups_own(name: str) -> None:
    assert engine_env.refusal(name) == ""
