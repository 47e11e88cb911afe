"""Configuration: every error at once, each with file, line and key; the shipped examples are right."""

from __future__ import annotations

from pathlib import Path

import pytest

from infctl.config.documents import GroupDocument
from infctl.config.load import load_documents, load_gateway_config, load_node_config
from infctl.config.source import parse
from infctl.domain.errors import ConfigError
from infctl.domain.model import Limits

CONFIGS = Path(__file__).parents[2] / "configs"


def lines_of(error: ConfigError) -> list[str]:
    return [line.strip() for line in error.message.splitlines()]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(text)
    return path


def test_all_errors_come_at_once_with_file_line_and_key(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\
cluster: default
nod: a
node: BAD_
endpoints: [1]
limits:
  stallSeconds: 20
  probeSecond: 3
  detachGraceSeconds: 500
""",
    )
    with pytest.raises(ConfigError) as caught:
        load_node_config(path)
    found = lines_of(caught.value)
    assert found[0] == "6 problems in the configuration"
    assert found[1] == f"{path}:2: nod: unknown key (did you mean node?)"
    assert found[2].startswith(f"{path}:3: node: name 'BAD_' is not a legal name")
    assert found[3] == f"{path}:4: endpoints[0]: input should be a valid string, not 1"
    assert found[4] == (
        f"{path}:6: limits.stallSeconds: stallSeconds (20 s) must be shorter than leaseTtlSeconds (10 s)"
    )
    assert found[5] == f"{path}:7: limits.probeSecond: unknown key (did you mean probeSeconds?)"
    assert found[6].startswith(f"{path}:8: limits.detachGraceSeconds: detachGraceSeconds (500 s) must not exceed")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ("{probeSeconds: 3}", "limits.probeSeconds"),
        ("{loadsPollSeconds: 2}", "limits.loadsPollSeconds"),
        ("{leaseTtlSeconds: 1}", "limits.stallSeconds"),
        ("{handOverSeconds: 880}", "limits.handOverSeconds"),
        ("{sigtermSeconds: 900}", "limits.sigtermSeconds"),
        ("{requestDeadlineSeconds: -1}", "limits.requestDeadlineSeconds"),
    ],
)
def test_impossible_timers_are_refused(tmp_path: Path, limits: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load_gateway_config(write(tmp_path, f"name: gw\nlimits: {limits}\n"))


def test_defaults_fit_together(tmp_path: Path) -> None:
    assert Limits().problems() == []
    assert load_node_config(write(tmp_path, "")).limits == Limits()


def test_examples_are_right() -> None:
    assert load_node_config(CONFIGS / "node.example.yaml").node == "gpu-01"
    assert load_gateway_config(CONFIGS / "gateway.example.yaml").listen == "0.0.0.0:8080"
    sources = [(p.name, p.read_text()) for p in sorted(CONFIGS.glob("[pg]*.example.yaml")) if "gateway" not in p.name]
    kinds = [located.document.kind for located in load_documents(sources)]
    assert kinds == ["Group", "Pool"]


GROUP = """\
apiVersion: infctl/v1
kind: Group
metadata: {name: a}
spec:
  pool: p
  node: n
  engine: sim
  modelPath: /m
"""


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_documents([("g.yaml", text)])
    return lines_of(caught.value)


def test_caps_are_required() -> None:
    assert problems(GROUP)[1:] == [
        "g.yaml:4: spec.maxRunning: required, but missing",
        "g.yaml:4: spec.maxQueued: required, but missing",
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("  maxRunning: 0", "g.yaml:10: spec.maxRunning: input should be greater than or equal to 1, not 0"),
        ('  maxRunning: "4"', "spec.maxRunning: input should be a valid integer, not '4'"),
        ("  maxRuning: 4", "g.yaml:10: spec.maxRuning: unknown key (did you mean maxRunning?)"),
        ("  max_running: 4", "spec.max_running: unknown key (did you mean maxRunning?)"),
        ("  engineArgs: ['--api-key=x']", "spec.engineArgs[0]: --api-key is set by infctl: a fresh key is made"),
        ("  modelPath: relative", "g.yaml:10: spec.modelPath: given twice (first on line 8)"),
        ("  python: bin/python", "spec.python: must be an absolute path on the node, not 'bin/python'"),
        ("  engine: sgl", "spec.engine: given twice"),
        ("  restart: {firstDelaySeconds: 90}", "firstDelaySeconds: firstDelaySeconds (90) must not exceed maxDelay"),
        ("  env: {A: 1}", "spec.env.A: input should be a valid string, not 1"),
    ],
)
def test_a_wrong_group_is_told_where(line: str, words: str) -> None:
    assert any(words in found for found in problems(f"{GROUP}  maxQueued: 1\n{line}\n")), problems(
        f"{GROUP}  maxQueued: 1\n{line}\n"
    )


def test_sglang_needs_its_interpreter() -> None:
    text = GROUP.replace("engine: sim", "engine: sglang") + "  maxRunning: 1\n  maxQueued: 1\n"
    assert problems(text) == [
        "g.yaml:4: spec.python: required with engine sglang (the interpreter of SGLang's own environment)"
    ]


def test_unknown_kinds_duplicates_and_broken_yaml_do_not_hide_each_other() -> None:
    good = GROUP + "  maxRunning: 1\n  maxQueued: 1\n"
    with pytest.raises(ConfigError) as caught:
        load_documents(
            [("a.yaml", f"{good}---\nkind: Gruop\n"), ("b.yaml", good), ("c.yaml", "a: [\n"), ("d.yaml", "3")]
        )
    found = lines_of(caught.value)
    assert "a.yaml:12: kind: unknown kind 'Gruop' (did you mean Group?)" in found
    assert "b.yaml:3: metadata.name: Group a is given twice (first at a.yaml:1)" in found
    assert any(line.startswith("c.yaml:") and "not valid YAML" in line for line in found)
    assert any(line.startswith("d.yaml:1: expected a mapping") for line in found)


def test_aliases_cannot_blow_up() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join('*' + chr(97 + i) for _ in range(9))}]\n" for i in range(8)
    )
    with pytest.raises(ConfigError, match="too many values"):
        parse(bomb, "bomb.yaml")
    with pytest.raises(ConfigError, match="contains itself"):
        parse("a: &a [*a]\n", "loop.yaml")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_node_config(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match="is a folder"):
        load_node_config(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"node: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_node_config(tmp_path / "latin.yaml")


def test_a_group_document_is_whole() -> None:
    found = load_documents([("g.yaml", GROUP + "  maxRunning: 3\n  maxQueued: 0\n")])
    document = found[0].document
    assert isinstance(document, GroupDocument)
    assert (document.spec.max_running, document.spec.max_queued, document.spec.tensor_parallel) == (3, 0, 1)
    assert (found[0].file, found[0].line) == ("g.yaml", 1)
