"""A worker group: what it does, what its owner said last, and why it is not ready where it is not."""

from __future__ import annotations

from infctl.store.records import GroupSpec, GroupStatus
from infctl.view.describe import hosts
from infctl.view.describe.look import MOST_ROWS, STREAM_HEADS, Look, count, stream_rows
from infctl.view.describe.page import Page, Tone
from infctl.view.drains import INTENT_HEADS, group_phase, intent_rows, why_held
from infctl.view.hosts import HostPart, host_parts
from infctl.view.humanize import duration

MEANS = {
    "idle": "nothing runs and nothing is wanted",
    "draining": "takes no new requests; those it has go on, then it stops",
    "drained": "stopped on purpose; nothing starts it again until it is undrained",
    "claiming": "its daemon is taking a new launch and generation in etcd",
    "spawning": "its processes are being started",
    "loading": "the engine loads; every rank must be there before the canary is asked",
    "canary": "loaded; the canary's answer is compared with the one the pool knows",
    "publishing": "the canary passed; the endpoint is being written",
    "ready": "takes requests",
    "ending": "the launch is over: its processes are killed, its fault notice is written",
    "backoff": "waits before the next launch",
    "failed": "too many launches ended, its daemon has given up",
}
NEW_REQUESTS = {"suspect": "new ones come only where no ready group can take them", "unfit": "it gets no new ones"}
_ON_THE_WAY = frozenset({"claiming", "spawning", "loading", "canary", "publishing"})
# elsewhere a part that is not there has ended as it should
WAITS_FOR_HOSTS = _ON_THE_WAY | {"ready", "idle"}


def describe(look: Look, name: str) -> Page:
    s = look.snapshot
    spec, status, generation = s.groups.get(name), s.group_status.get(name), s.generations.get(name)
    endpoint = s.endpoints.get(name)
    node = spec.node if spec else (status.node if status else "")
    page = _headline(look, name, spec, status)
    parts = host_parts(s, name)
    if spec:
        pool = s.pools.get(spec.pool)
        ready = look.ready_in(spec.pool)
        page.fact("Pool", spec.pool, f"model {pool.model}, {ready} ready, {pool.min_ready} needed" if pool
                  else "which does not exist")  # fmt: skip
    if spec and spec.hosts and not parts:
        page.fact("GPUs", _gpus(spec))
    if node:
        page.fact("Node", node, f"owner, one of {len(parts)} hosts" if parts else "",
                  "" if look.node_is_heard(node) else "its daemon is not heard")  # fmt: skip
    if spec:
        page.fact("Engine", spec.engine, _sizes(spec), f"model {spec.model_path}",
                  f"revision {spec.revision}" if spec.revision else "")  # fmt: skip
    if generation:
        page.fact("Generation", str(generation.generation), f"registered {look.ago(generation.at)}".rstrip(),
                  f"by node/{generation.owner}" if generation.owner else "")  # fmt: skip
        _launch(look, page, generation.launch)
    if status:
        wanted = spec.ranks if spec else 0
        page.fact(
            "Ranks",
            f"{wanted} wanted" if wanted else "",
            f"{sum(one.part.ranks for one in parts if one.part)} seen on {len(parts)} hosts" if parts else "",
            f"{count(status.processes, 'process', 'processes')} of the engine alive" + (f" on {node}" if parts else ""),
            f"main pid {status.pid}" if status.pid else "",
        )
        page.fact("Restarts", f"{status.restarts} since its daemon started", _policy(spec))
    page.fact("Endpoint", *((endpoint.url, endpoint.state, f"generation {endpoint.generation}",
                             f"published {look.ago(endpoint.published_at)}") if endpoint else ("none",)))  # fmt: skip
    if spec:
        context = endpoint.context_length if endpoint else spec.context_length
        page.fact("Caps", f"{spec.max_running} running + {spec.max_queued} queued",
                  f"context {context} tokens" if context else "")  # fmt: skip
    launch = generation.launch if generation else ""
    live = look.live_streams(launch=launch) if launch else []
    page.fact("Streams", count(len(live), "stream") + " on this launch")
    if spec and status and status.spec_revision:
        seen = status.spec_revision == s.spec_revisions.get(name)
        page.fact("Spec", "the daemon has the newest" if seen else "the daemon has not seen the newest yet")
    if status:
        page.fact("Last change", look.ago(status.updated_at), f"told by node/{status.node}")
    hosts.table(look, page, parts)
    if status:
        page.table("Health", ("CONDITION", "STATUS", "SINCE", "REASON"),
                   [(c.type, c.status, look.ago(c.since), c.reason + (f": {c.message}" if c.message else ""))
                    for c in status.conditions])  # fmt: skip
    suspicions = look.suspicions_of(launch) if launch else []
    page.table("Suspected by", ("GATEWAY", "KIND", "WHEN", "WHY"),
               [(x.gateway, x.kind, look.ago(x.at), x.why) for x in suspicions])  # fmt: skip
    faults = look.faults_of(name)[-MOST_ROWS:]
    page.table("Faults of the last minutes, oldest first", ("LAUNCH", "GEN", "WHEN", "REASON", "EVIDENCE"),
               [(f.launch, str(f.generation), look.ago(f.at), f.reason, f.evidence or "-") for f in faults],
               right="GEN")  # fmt: skip
    nodes = {node, *(host.node for host in spec.placement)} if spec else {node}
    intents = intent_rows(s, f"group/{name}", *(f"node/{one}" for one in nodes))
    page.table("Intents", INTENT_HEADS, intents, right="STREAMS")
    page.table("Streams on this launch", STREAM_HEADS, stream_rows(look, live), right="TOKENS MOVES")
    look.tell(page, f"group/{name}")
    _advise(look, page, name, spec, status, parts, suspected=bool(suspicions))
    return page


def _headline(look: Look, name: str, spec: GroupSpec | None, status: GroupStatus | None) -> Page:
    address = f"group/{name}"
    if status is None:
        state = "Unknown" if spec else "Gone"
        why = "no daemon has said anything of it" if spec else "not wanted any more; only its generation is kept"
        return Page(address, state, Tone.WARN if spec else Tone.PLAIN, why)
    phase = group_phase(look.snapshot, name)
    meaning = MEANS.get(phase, "")
    if status.reason:
        meaning = f"{meaning}; {status.reason}" + (f": {status.message}" if status.message else "")
    elif status.message:
        meaning = f"{meaning}; {status.message}"
    elif held := why_held(look.snapshot, name):
        meaning = f"{meaning}; {held}"
    if not look.node_is_heard(status.node):
        return Page(address, phase.capitalize(), Tone.BAD, f"when node/{status.node} was last heard; that is over")
    tones = {"ready": Tone.GOOD, "failed": Tone.BAD, "idle": Tone.PLAIN, "drained": Tone.PLAIN}
    tone = tones.get(phase, Tone.WARN)
    if phase == "ready" and name not in look.snapshot.endpoints:
        return Page(address, "Ready", Tone.BAD, "but its endpoint is not in etcd, so no request reaches it")
    if phase == "ready" and status.reason:
        state = look.snapshot.endpoints[name].state
        why = f"the requests it has go on, {NEW_REQUESTS.get(state, 'new ones go elsewhere')}; {status.reason}"
        return Page(address, state.capitalize(), Tone.WARN, why + (f": {status.message}" if status.message else ""))
    return Page(address, phase.capitalize(), tone, meaning.lstrip("; "))


def _launch(look: Look, page: Page, launch: str) -> None:
    record = look.snapshot.launches.get(launch)
    if record is None:
        page.fact("Launch", launch)
        return
    ended = f"ended {look.ago(record.ended_at)} by {record.ended_by}: {record.ended_why}" if record.ended_at else ""
    page.fact("Launch", launch, f"started {look.ago(record.started_at)}", ended)


def _sizes(spec: GroupSpec) -> str:
    sizes = [f"{what} {size}" for what, size in (("PP", spec.pp), ("DP", spec.dp), ("EP", spec.ep)) if size > 1]
    role = [] if spec.role == "unified" else [spec.role]
    return " ".join([f"TP {spec.tp}", *sizes, *role])


def _gpus(spec: GroupSpec) -> str:
    """Every host with its GPUs; nothing for one host whose GPUs are not named."""
    return "; ".join(f"{h.node}: {', '.join(h.gpus) or 'any'}" for h in spec.hosts)


def _words(look: Look, group: str, how: str, launch: str, node: str) -> str:
    """Where the output lies that tells most: on the host whose daemon wrote the notice, else on the owner's."""
    fault = look.snapshot.faults.get((group, launch))
    kind, _, by = fault.by.partition("/") if fault else ("", "", "")
    if kind == "node" and by != node:
        node, how = by, f"--host {by} {how}"
    command = f"infctl logs group/{group} {how}"
    return f"engine's own words are shown by {command} (logs/{launch}.log below stateDir of the daemon on {node})."


def _policy(spec: GroupSpec | None) -> str:
    if spec is None:
        return ""
    r = spec.restart
    return (f"next launch after {duration(r.first_delay)} to {duration(r.max_delay)}; "
            f"given up after {r.attempts} ends within {duration(r.interval)}")  # fmt: skip


def _advise(
    look: Look,
    page: Page,
    name: str,
    spec: GroupSpec | None,
    status: GroupStatus | None,
    parts: list[HostPart],
    *,
    suspected: bool,
) -> None:
    follow = ("infctl get events --for", f"group/{name}")
    if spec is None:
        page.step("The group is not wanted any more. Its generation is kept for ever, so that a new one counts on.")
        return
    if not look.node_is_heard(spec.node):
        page.step(f"Is infctl-noded running on {spec.node}? Streams and engines there may go on without it.",
                  "infctl describe", f"node/{spec.node}")  # fmt: skip
        return
    if status is None:
        page.step(f"The daemon on {spec.node} has not taken it up; it does within seconds where it can.", *follow)
        return
    if name in look.snapshot.holds:
        page.step("It is held until it is undrained.", "infctl undrain", look.snapshot.holds[name].by)
    log = "The " + _words(look, name, f"--launch {status.launch}", status.launch, spec.node)
    if status.reason == "canary-failed":
        page.step("The engine answered otherwise than the pool knows. Same weights, same revision, same engine?",
                  "infctl describe", f"pool/{spec.pool}")  # fmt: skip
    if status.hint:
        page.step(f"{status.hint[0].upper()}{status.hint[1:]}.")
    if status.phase == "failed":
        if not status.hint:
            page.step("It starts again only after its specification changes, or when it is told to.",
                      "infctl restart", f"group/{name}")  # fmt: skip
        page.step(log)
    elif status.phase == "ready" and status.reason:
        page.step("One class of evidence kills nothing: its daemon goes on asking, and says what it finds.",
                  "infctl get events --for", f"group/{name}")  # fmt: skip
        page.step(log)
    elif status.phase in ("backoff", "ending"):
        page.step("It starts again by itself; its streams have moved to other groups of the pool.", *follow)
        page.step(log)
    elif status.phase in _ON_THE_WAY:
        for_long = look.since(status.updated_at) or 0.0
        limit = spec.restart.canary_deadline if status.phase == "canary" else spec.restart.load_deadline
        page.step(f"On its way: {status.phase} for {duration(for_long)}, at most {duration(limit)}.", *follow)
        if for_long > limit / 2:
            page.step(log)
    elif status.phase == "ready" and name not in look.snapshot.endpoints:
        page.step("The daemon writes the endpoint anew by itself. If it does not, it has lost etcd.",
                  "infctl describe", f"node/{spec.node}")  # fmt: skip
    elif status.phase == "ready" and (faults := look.faults_of(name)):
        page.step(
            f"It serves again after {count(len(faults), 'fault')} in the last minutes. Of the last lost launch, the "
            + _words(look, name, "--previous", faults[-1].launch, spec.node)
        )
    if status.phase in WAITS_FOR_HOSTS and name not in look.snapshot.holds:
        hosts.advise(page, name, parts)
    if suspected:
        page.step("A gateway lost this launch on the data path, and its daemon has not confirmed a fault: is the way "
                  "between them whole?", *follow)  # fmt: skip
    pool = look.snapshot.pools.get(spec.pool)
    if pool is None:
        page.step(
            f"Its pool does not exist, so nobody can ask for it: apply pool {spec.pool}.", "infctl apply -f POOL.yaml"
        )
    elif look.ready_in(spec.pool) < pool.min_ready:
        page.step(f"pool/{spec.pool} has fewer ready groups than it needs.", "infctl describe", f"pool/{spec.pool}")
