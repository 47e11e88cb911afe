"""Which engine flags a group may not carry: those that infctl sets itself, and those that take recovery's ground away.

The only table of this kind: documents are checked against it when they are read, and the daemon checks again before
a launch, since a specification may have been written by another version. What is not named here is passed through.
"""

from __future__ import annotations

from collections.abc import Sequence

# ours to set: a second value would win or lose silently. What to write instead, or why nobody else may
OURS = {
    "--model-path": "use spec.modelPath",
    "--model": "use spec.modelPath",
    "--served-model-name": "clients ask for the pool's model",
    "--weight-version": "use spec.revision",
    "--context-length": "use spec.contextLength",
    "--enable-deterministic-inference": "use spec.deterministic, which clients are told of",
    "--host": "engines listen on the loopback only",
    "--port": "use spec.port",
    "--tp-size": "use spec.tensorParallel",
    "--tensor-parallel-size": "use spec.tensorParallel",
    "--pp-size": "use spec.pipelineParallel",
    "--pipeline-parallel-size": "use spec.pipelineParallel",
    "--dp-size": "use spec.dataParallel",
    "--data-parallel-size": "use spec.dataParallel",
    "--ep-size": "use spec.expertParallel",
    "--expert-parallel-size": "use spec.expertParallel",
    "--nnodes": "use spec.hosts",
    "--node-rank": "it follows from the order of spec.hosts",
    "--dist-init-addr": "the rendezvous is new at each launch",
    "--nccl-init-addr": "the rendezvous is new at each launch",
    "--nccl-port": "it comes from the group's port range, new at each launch",
    "--base-gpu-id": "use spec.hosts[].gpus",
    "--gpu-id-step": "use spec.hosts[].gpus",
    "--disaggregation-mode": "use spec.role",
    "--disaggregation-bootstrap-port": "it comes from the group's port range, new at each launch",
    "--max-running-requests": "use spec.maxRunning",
    "--max-queued-requests": "use spec.maxQueued",
    "--config": "the daemon writes its own, with the keys in it",
    "--api-key": "a fresh key is made for each launch and never appears in arguments",
    "--admin-api-key": "a fresh key is made for each launch and never appears in arguments",
}

_LOOPBACK = "engines listen on the loopback only, without TLS"
_ELASTIC = "the engine would go on with fewer ranks: one rank's death ends the launch"
_GRPC = "the HTTP API is what gateways speak, and this opens another way in"
_NO_TEXT = "it puts out no text token by token, so there is no committed prefix to go on from"

BREAKS = {
    # frames and requests
    "--incremental-streaming-output": "frames must be cumulative: the committed prefix is checked in each",
    "--skip-tokenizer-init": "frames would carry no text and stop strings would not work",
    "--enable-custom-logit-processor": "it runs code that a client sends",
    "--allow-auto-truncate": "it silently shortens a replayed prompt",
    "--preferred-sampling-params": "the engine would add parameters that a gateway neither knows nor replays",
    "--enable-watermark": "the mark depends on the history of one request, which a replay does not have",
    "--tokenizer-path": "gateways check the digest of spec.tokenizer, and the engine would read another one",
    "--is-embedding": _NO_TEXT,
    "--encoder-only": _NO_TEXT,
    "--dllm-algorithm": _NO_TEXT,
    # state that dies with one worker
    "--enable-streaming-session": "its state lives in one worker and cannot be replayed",
    "--enable-session-radix-cache": "its state lives in one worker and cannot be replayed",
    "--enable-response-store": "stored responses live in one worker and are lost with it",
    # who may speak to the engine, and how
    "--tokenizer-worker-num": "with more than one, keys are not checked and aborts get lost",
    "--smg-grpc-mode": _GRPC,
    "--grpc-mode": _GRPC,
    "--grpc-port": _GRPC,
    "--sidecar": _GRPC,
    "--sidecar-args": _GRPC,
    "--smg-http-sidecar-port": _GRPC,
    "--grpc-http-sidecar-port": _GRPC,
    "--enable-http2": "another HTTP server, whose aborts and shutdown are not those that recovery counts on",
    "--fastapi-root-path": "daemon and gateway ask at fixed paths",
    "--ssl-keyfile": _LOOPBACK,
    "--ssl-certfile": _LOOPBACK,
    "--ssl-ca-certs": _LOOPBACK,
    "--ssl-keyfile-password": _LOOPBACK,
    "--enable-ssl-refresh": _LOOPBACK,
    # processes, start and restart
    "--use-ray": "ranks must be children of the launch so that their death is seen",
    "--gated-launch-port": "nobody opens the gate, so the launch would never be loaded",
    "--enable-dp-attention": "it changes what spec.dataParallel means; write --attn-dp-size",
    "--elastic-ep-backend": _ELASTIC,
    "--elastic-ep-join-mode": _ELASTIC,
    "--elastic-ep-join-rank-offset": _ELASTIC,
    "--elastic-ep-initial-size": _ELASTIC,
    "--elastic-ep-scale-timeout": _ELASTIC,
    "--enable-elastic-expert-backup": _ELASTIC,
    "--max-ep-size": _ELASTIC,
    "--enable-pd-role-switch": "the role of a group is spec.role, and gateways route by it",
    "--checkpoint-engine-wait-weights-before-ready": "nobody pushes weights into a launch, and theirs has no revision",
    "--delete-ckpt-after-loading": "the next launch would find no model",
    "--help": "the engine would print its help and end",
}

_SHORT = {"-h": "--help"}
# the short forms that people write
_WHOLE = {"--tp": "--tp-size", "--pp": "--pp-size", "--dp": "--dp-size", "--ep": "--ep-size"}


def flag_name(argument: str) -> str:
    """`--Some_flag=3` as `--Some-flag`; empty for what is not a long flag."""
    return argument.split("=", 1)[0].replace("_", "-") if argument.startswith("--") else ""


def refusal(argument: str) -> str:
    """Why this argument is refused, as one sentence; "" when it is not.

    An abbreviation counts as the flag it stands for: the engine's parser accepts any unambiguous prefix.
    """
    name = _SHORT.get(argument) or flag_name(argument)
    if not name:
        return ""
    if name == "--":
        return "-- would turn every flag after it into a value"
    name = _WHOLE.get(name, name)
    for table, what in ((BREAKS, "breaks recovery"), (OURS, "is set by infctl")):
        hit = name if name in table else next((flag for flag in table if flag.startswith(name)), "")
        if hit:
            given = argument.split("=", 1)[0]
            meant = "" if hit == flag_name(given) else f" ({hit})"
            return f"{given}{meant} {what}: {table[hit]}"
    return ""


def refused(arguments: Sequence[str]) -> list[tuple[int, str]]:
    """(index, sentence) of each argument that a group must not hold."""
    return [(i, why) for i, argument in enumerate(arguments) if (why := refusal(argument))]


def value_of(arguments: Sequence[str], flag: str) -> str | None:
    """The value of one flag among the arguments ("" where it has none); None when it is not there."""
    for i, argument in enumerate(arguments):
        if flag_name(argument) == flag:
            if "=" in argument:
                return argument.split("=", 1)[1]
            following = arguments[i + 1] if i + 1 < len(arguments) else ""
            return "" if following.startswith("--") else following
    return None
