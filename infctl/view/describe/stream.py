"""A stream: where it is, what it was promised, how it got there, and why it ended where it did."""

from __future__ import annotations

from infctl.store.records import StreamRecord
from infctl.view.describe.look import Look, count, is_live
from infctl.view.describe.page import Page, Tone
from infctl.view.humanize import duration

MEANS = {
    "ADMITTED": "waits for a worker",
    "PREFILLING": "its prompt is being read by a worker",
    "TRANSFERRING": "its cache goes from a prefill to a decode worker",
    "DECODING": "tokens are coming",
    "MIGRATING": "lost its worker; another one is being found",
    "CANCELLING": "the client or an operator ended it; the worker is being told",
    "COMPLETED": "ended as it should",
    "CANCELLED": "ended by the client, an operator or a deadline",
    "FAILED": "ended with an error",
}
PROMISES = {
    "exact": "after a fault the same tokens follow",
    "continuable": "after a fault it goes on from the tokens sent",
    "restart-only": "after a fault it can only begin again",
    "none": "a fault after the first token ends it",
}
ENDS = {
    "invalid_request": "The request itself was refused; the error says which field.",
    "overloaded": "Every ready group was full. The client was told when to try again.",
    "unavailable": "No group could take it, or it had moved as often as it may.",
    "deadline": "Its deadline passed.",
    "not_recoverable": "Its worker was lost, and it uses something that cannot be replayed elsewhere.",
    "poison": "Workers crashed while it ran on them, alone at last.",
}


def describe(look: Look, name: str) -> Page:
    r = look.snapshot.streams[name]
    live = is_live(r)
    tone = Tone.BAD if r.state == "FAILED" else (Tone.WARN if r.state in ("MIGRATING", "CANCELLING") else Tone.GOOD)
    page = Page(f"stream/{name}", r.state, tone, r.error or MEANS.get(r.state, ""))
    page.fact("Model", r.model)
    page.fact("Owner", f"gateway/{r.owner}", "" if look.gateway_is_heard(r.owner) else "which is not heard")
    page.fact("Epoch", f"{r.term}.{r.attempt} (term.attempt)", f"engine rid {r.rid}" if r.rid else "")
    page.fact("Contract", f"{r.contract}: {PROMISES.get(r.contract, '')}".rstrip(": "),
              f"reason {r.contract_reason}" if r.contract_reason else "")  # fmt: skip
    page.fact("Worker", f"group/{r.group}" if r.group else "none yet", f"launch {r.launch}" if r.launch else "")
    recorded = f"recorded {look.ago(r.updated_at)}" if live and r.updated_at else ""
    page.fact("Tokens", f"{r.prompt_tokens} in the prompt", f"{r.committed} sent", recorded)
    moves = count(r.migrations, "move")
    page.fact("Moves", moves, f"{r.replayed_tokens} tokens read again" if r.replayed_tokens else "")
    page.fact("Time", f"started {look.ago(r.started_at)}", _end(look, r, live))
    if r.finish_reason:
        page.fact("Finish", r.finish_reason)
    if r.detached:
        page.fact("Client", "gone; it may come back within the grace")
    own = [e for e in look.snapshot.events.values() if e.subject == f"stream/{name}"]
    left = [str(e.fields.get("launch", "")) for e in own if e.kind == "stream.migrating"]
    look.tell(page, f"stream/{name}", faults=[e.fault_id for e in own], lost=left)
    _advise(look, page, r, live)
    return page


def _end(look: Look, r: StreamRecord, live: bool) -> str:
    if not live:
        return f"ended {look.ago(r.updated_at)}"
    left = look.since(r.deadline_at)
    if left is None:
        return ""
    return f"deadline in {duration(-left)}" if left < 0 else f"deadline passed {duration(left)} ago"


def _advise(look: Look, page: Page, r: StreamRecord, live: bool) -> None:
    if live and not look.gateway_is_heard(r.owner):
        page.step("Its gateway is not heard: nobody else takes the stream over, its client must ask again.",
                  "infctl get gateways")  # fmt: skip
    if r.state in ("ADMITTED", "MIGRATING"):
        pools = sorted(p.name for p in look.snapshot.pools.values() if p.model == r.model)
        for pool in pools:
            page.step(f"It needs a ready group of pool/{pool}.", "infctl describe", f"pool/{pool}")
    if r.state == "FAILED":
        kind = r.error.partition(":")[0]
        page.step(ENDS.get(kind, "The error above is what the client got."))
        if r.group:
            page.step("What happened to the worker:", "infctl describe", f"group/{r.group}")
    elif r.migrations and live:
        told = "is in the events above" if page.events else "is no longer kept: events last some minutes"
        page.step(f"What happened to its earlier workers {told}.")
