"""Groups and pools in full: every broken rule in one reading, with line, key and hint; one form in the store."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import given

from infctl.client.diff import canonical, changes, unified
from infctl.client.specs import to_specs
from infctl.config.group import GroupPart
from infctl.config.load import load_documents, read_documents
from infctl.domain.errors import ConfigError
from infctl.store.records import GroupSpec, Host, PoolSpec

UUIDS = [f"GPU-0000000{i}-0000-0000-0000-000000000000" for i in range(4)]

GROUP = {"pool": "p", "node": "n", "python": "/py", "modelPath": "/m", "maxRunning": 4, "maxQueued": 8}


def text(kind: str = "Group", name: str = "a", **spec: Any) -> str:
    """A document; a key that is None is left out."""
    base = {**(GROUP if kind == "Group" else {"model": "m"}), **spec}
    body = {k: v for k, v in base.items() if v is not None}
    return yaml.safe_dump({"apiVersion": "infctl/v1", "kind": kind, "metadata": {"name": name}, "spec": body})


def read(*texts: str) -> list[Any]:
    return list(to_specs(load_documents([("g.yaml", "---\n".join(texts))])))


def wrong(*texts: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(*texts)
    lines = [line.strip() for line in caught.value.message.splitlines()]
    found = lines[1:] if len(lines) > 1 else lines
    return [line.split(": ", 1)[1] for line in found]


def group(**spec: Any) -> GroupSpec:
    (found,) = read(text(**spec))
    assert isinstance(found, GroupSpec)
    return found


def pool(**spec: Any) -> PoolSpec:
    (found,) = read(text("Pool", **spec))
    assert isinstance(found, PoolSpec)
    return found


def test_every_broken_rule_of_a_group_comes_at_once_and_with_its_line() -> None:
    broken = """\
apiVersion: infctl/v1
kind: Group
metadata: {name: a}
spec:
  pool: p
  node: n
  hosts:
    - {node: n1, gpus: [0, 0, GPU-1]}
    - {node: n1}
    - {nod: n2}
  role: prefil
  engine: sglang
  modelPath: /m
  tensorParallel: 4
  expertParallel: 3
  dataParallel: 2
  maxRunning: 4
  deterministic: true
  port: 80
  engineArgs: [--speculative-algorithm, EAGLE, --tp, --ssl-keyfile-password=x]
  env:
    HF_TOKEN: hf_x
    CUDA_VISIBLE_DEVICES: "0"
  restart: {maxDelaySeconds: 700, firstDelaySeconds: 800}
  drain: {handOverSeconds: 870}
"""
    with pytest.raises(ConfigError) as caught:
        load_documents([("g.yaml", broken)])
    found = [line.strip().removeprefix("g.yaml:") for line in caught.value.message.splitlines()]
    starts = [
        "4: spec.maxQueued: required, but missing",
        "4: spec.python: required with engine sglang (the interpreter of SGLang's own environment)",
        "6: spec.node: is given and hosts too (node is the short form for one host: keep one of the two)",
        "7: spec.hosts: 8 ranks do not spread evenly over 3 hosts",
        "8: spec.hosts[0].gpus: a GPU is given twice",
        "8: spec.hosts[0].gpus: indexes and UUIDs are mixed (UUIDs stay when a GPU falls out and the others move up)",
        "8: spec.hosts[0].gpus[2]: 'GPU-1' is neither an index nor a whole UUID",
        "9: spec.hosts[1].node: node n1 is given twice (one entry for each host, with all its GPUs)",
        "10: spec.hosts[2].nod: unknown key (did you mean node?)",
        "10: spec.hosts[2].node: required, but missing",
        "11: spec.role: input should be 'unified', 'prefill' or 'decode', not 'prefil'",
        "15: spec.expertParallel: expertParallel (3) must divide tensorParallel (4)",
        "16: spec.dataParallel: the engine cannot spread replicas over several hosts (make each replica a group",
        "18: spec.deterministic: speculative decoding is in engineArgs, and with it a replayed stream",
        "19: spec.port: must be 0 (chosen by the daemon) or from 1024 to 65235, not 80",
        "20: spec.engineArgs[2]: --tp (--tp-size) is set by infctl: use spec.tensorParallel",
        "20: spec.engineArgs[3]: --ssl-keyfile-password breaks recovery: engines listen on the loopback only",
        "22: spec.env.HF_TOKEN: looks like a secret, and a specification is kept and shown in plain text",
        "23: spec.env.CUDA_VISIBLE_DEVICES: use spec.hosts[].gpus",
        "24: spec.restart.firstDelaySeconds: firstDelaySeconds (800) must not exceed maxDelaySeconds (700)",
        "24: spec.restart.maxDelaySeconds: maxDelaySeconds (700) must be shorter than intervalSeconds (600)",
        "25: spec.drain.handOverSeconds: handOverSeconds (870) must come before SIGTERM at 870 s",
    ]
    for start in starts:
        assert any(line.startswith(start) for line in found), (start, found)
    # two more: no GPUs on the other hosts, where they are named on the first
    assert len(found) == len(starts) + 2 + 1, found


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"node": None}, "spec.node: required, but missing (or hosts, a list of nodes with their GPUs)"),
        ({"node": None, "hosts": []}, "spec.node: required, but missing (or hosts, a list of nodes with their GPUs)"),
        ({"hosts": [{"node": "n1", "gpus": [0]}], "node": None, "tensorParallel": 2},
         "spec.hosts[0].gpus: GPUs: 1, ranks here: 2 (one GPU for each rank)"),
        ({"dataParallel": 2, "maxRunning": 5},
         "spec.maxRunning: maxRunning (5) must be a multiple of dataParallel (2) (each replica gets its share)"),
        ({"engine": "sim", "role": "decode"}, "spec.role: the simulated engine is unified only"),
        ({"engine": "sim", "dataParallel": 2}, "spec.dataParallel: the simulated engine has one replica only"),
        ({"drain": {"deadlineSeconds": 20}},
         "spec.drain.killGraceSeconds: killGraceSeconds (30) must be shorter than deadlineSeconds (20) "
         "(SIGTERM comes that long before the deadline, SIGKILL at it)"),
        ({"drain": {"deadlineSeconds": 140}},
         "spec.drain.handOverSeconds: handOverSeconds (120) must come before SIGTERM at 110 s "
         "(that is deadlineSeconds - killGraceSeconds)"),
        ({"drain": {"killGraceSeconds": 0}}, "spec.drain.killGraceSeconds: input should be greater than 0, not 0"),
        ({"restart": {"loadDeadlineSeconds": 0}},
         "spec.restart.loadDeadlineSeconds: input should be greater than 0, not 0"),
        ({"port": 65400}, "spec.port: must be 0 (chosen by the daemon) or from 1024 to 65235, not 65400: "
                          "the 300 ports from it on are the group's"),
        ({"engineArgs": ["--x\0"]}, "spec.engineArgs[0]: holds a NUL character"),
        ({"env": {"A": "\0"}}, "spec.env.A: holds a NUL character"),
        ({"env": {"A=B": "x"}}, "spec.env.A=B: not a name of an environment variable"),
        ({"tensorParallel": 0}, "spec.tensorParallel: input should be greater than or equal to 1, not 0"),
    ],
)  # fmt: skip
def test_a_group_that_cannot_hold_is_refused(spec: dict[str, Any], says: str) -> None:
    assert wrong(text(**spec)) == [says]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"model": "a:b"}, "spec.model: 'a:b' must not hold ':', which the engine reads as base:adapter"),
        ({"budgets": {"disruptions": -1}},
         "spec.budgets.disruptions: input should be greater than or equal to 0, not -1"),
        ({"budgets": {"disruption": 1}}, "spec.budgets.disruption: unknown key (did you mean disruptions?)"),
        ({"canary": {"answer": [1, 2], "tokens": 3}}, "spec.canary.answer: has 2 token ids, but the canary asks for 3 "
                                                      "(leave tokens out, or make them agree)"),
        ({"canary": {"revision": "r1"}}, "spec.canary.revision: says to which revision an answer belongs "
                                         "(give canary.answer too, or take it out)"),
        ({"canary": {"answer": [-1]}}, "spec.canary.answer[0]: input should be greater than or equal to 0, not -1"),
    ],
)  # fmt: skip
def test_a_pool_that_cannot_hold_is_refused(spec: dict[str, Any], says: str) -> None:
    assert wrong(text("Pool", **spec)) == [says]


def test_defaults_of_documents_are_those_of_the_records() -> None:
    bare = GroupSpec(name="a", pool="p", node="n", python="/py", model_path="/m", max_running=4, max_queued=8)
    assert group() == bare
    assert pool() == PoolSpec(name="a", model="m")


def test_one_host_has_one_form_however_it_is_written() -> None:
    assert group() == group(node=None, hosts=[{"node": "n"}])
    assert group().placement == (Host(node="n"),)
    pinned = group(node=None, hosts=[{"node": "n", "gpus": [3]}])
    assert (pinned.node, pinned.placement) == ("n", (Host(node="n", gpus=["3"]),))


def test_a_group_in_full() -> None:
    hosts = [{"node": "n1", "gpus": UUIDS[:2]}, {"node": "n2", "gpus": UUIDS[2:]}]
    drain = {"handOverSeconds": 5, "deadlineSeconds": 60, "killGraceSeconds": 10}
    sizes = {"tensorParallel": 2, "pipelineParallel": 2, "expertParallel": 2}
    found = group(node=None, hosts=hosts, role="decode", revision="r1", drain=drain, **sizes)
    assert (found.node, found.ranks, found.role, found.ep) == ("n1", 4, "decode", 2)
    assert [h.gpus for h in found.hosts] == [UUIDS[:2], UUIDS[2:]]
    assert (found.drain.hand_over, found.drain.sigterm, found.drain.deadline) == (5.0, 50.0, 60.0)


def test_a_pool_in_full() -> None:
    canary = {"answer": [5, 6], "revision": "r"}
    found = pool(minReady=2, budgets={"disruptions": 0, "recoveryTokens": 9}, canary=canary)
    assert (found.disruptions, found.recovery_tokens, found.min_ready) == (0, 9, 2)
    assert (found.canary_tokens, found.canary_answer, found.canary_revision) == (2, [5, 6], "r")


def test_fixed_ports_of_one_node_keep_their_distance() -> None:
    assert wrong(text(port=12000), text(name="b", port=12299)) == [
        "spec.port: 12299 is less than 300 from 12000 of group a on the same node (or leave both to the daemon: port 0)"
    ]
    read(text(port=12000), text(name="b", port=12300), text(name="c", port=12000, node="other"))


def test_notes_say_what_may_surprise() -> None:
    texts = [
        text("Pool", name="p", budgets={"recoveryTokens": 1000}),
        text(role="prefill", node=None, hosts=[{"node": "n", "gpus": [0]}]),
        text(name="b", contextLength=500, node=None, hosts=[{"node": "n", "gpus": [0]}]),
    ]
    _, notes = read_documents([("g.yaml", "---\n".join(texts))])
    assert [str(note).split(": ", 1)[1] for note in notes] == [
        "spec.maxQueued: SGLang ignores the queue cap of a prefill worker (gateways alone hold it)",
        "spec.hosts[0].gpus: GPU 0 of n is used by group a too (both must fit into it)",
        "spec.budgets.recoveryTokens: 1000 is less than the 2000 tokens that group b may hold (maxRunning x "
        "contextLength) (after a fault some of its streams would wait or end)",
    ]


FULL = [
    {},
    {"node": None, "hosts": [{"node": "n", "gpus": [1]}]},
    {"env": {"A": "1"}, "engineArgs": ["--sleep-on-idle", "-1"], "contextLength": 9, "deterministic": True},
    {"tensorParallel": 2, "node": None, "hosts": [{"node": "n"}, {"node": "m"}], "restart": {"attempts": 0}},
]


@pytest.mark.parametrize("spec", FULL)
def test_the_canonical_document_gives_the_same_spec_again(spec: dict[str, Any]) -> None:
    made = group(**spec)
    assert read(yaml.safe_dump(canonical(made))) == [made]
    assert changes(made, made) == ()
    assert unified(made, made) == []


def test_the_canonical_document_of_a_pool_gives_the_same_pool_again() -> None:
    made = pool(canary={"prompt": "Grüße", "answer": [1]}, budgets={"recoveryTokens": 7})
    assert read(yaml.safe_dump(canonical(made))) == [made]


def test_a_host_that_is_pinned_is_a_change_of_hosts_and_no_move() -> None:
    found = changes(group(), group(node=None, hosts=[{"node": "n", "gpus": [0]}]))
    assert [(c.field, c.before, str(c.takes_effect)) for c in found] == [
        ("hosts", None, "next-launch"),
        ("node", "n", "next-launch"),
    ]


KEYS = [info.alias or name for name, info in GroupPart.model_fields.items()] + ["budgets", "canary", "model"]
PLAIN = st.none() | st.booleans() | st.integers(-5, 1000) | st.floats(allow_nan=False) | st.sampled_from(
    ["", "n", "GPU-1", "--tp", "sim", "prefill", "HF_TOKEN", "answer", "node", "gpus", "killGraceSeconds"]
)  # fmt: skip
ANY = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["node", "gpus", "answer", "tokens", "maxDelaySeconds", "deadlineSeconds", "A"]), inner, max_size=3
), max_leaves=8)  # fmt: skip


@given(kind=st.sampled_from(["Group", "Pool"]), spec=st.dictionaries(st.sampled_from(KEYS), ANY, max_size=12) | ANY)
def test_whatever_is_written_is_refused_or_survives_its_canonical_form(kind: str, spec: Any) -> None:
    base = GROUP if kind == "Group" else {"model": "m"}
    full = {**base, **spec} if isinstance(spec, dict) else spec
    body = {"apiVersion": "infctl/v1", "kind": kind, "metadata": {"name": "a"}, "spec": full}
    try:
        (made,) = read(yaml.safe_dump(body))
    except ConfigError as error:
        assert "spec" in error.message
        return
    assert read(yaml.safe_dump(canonical(made))) == [made]
