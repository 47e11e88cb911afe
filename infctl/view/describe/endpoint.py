"""An endpoint: whether gateways may route to it, and by which rule not."""

from __future__ import annotations

from infctl.view.describe.look import STREAM_HEADS, Look, count, stream_rows
from infctl.view.describe.page import Page, Tone
from infctl.view.humanize import short


def describe(look: Look, name: str) -> Page:
    s = look.snapshot
    e = s.endpoints[name]
    generation = s.generations.get(name)
    floor = generation.generation if generation else 0
    fault = s.faults.get((name, e.launch))
    page = Page(f"endpoint/{name}", e.state.capitalize(), Tone.GOOD, "takes new requests")
    if fault:
        page.tone, page.why = Tone.BAD, f"but launch {e.launch} is over: {fault.reason}; gateways ignore it"
    elif e.generation < floor:
        page.tone, page.why = (
            Tone.BAD,
            f"but it is of generation {e.generation} and {floor} is registered; gateways ignore it",
        )
    elif e.state != "ready":
        few = e.state == "suspect"
        takes = "takes new requests only where no ready group can" if few else "takes no new requests"
        page.tone, page.why = Tone.WARN, f"{takes}; those it has go on"
    live = look.live_streams(launch=e.launch)
    page.fact("Group", e.group, f"pool {e.pool}", f"node {e.node}")
    page.fact("Generation", str(e.generation), f"the highest registered is {floor}" if floor else "")
    page.fact("Launch", e.launch, f"published {look.ago(e.published_at)}")
    page.fact("URL", e.url)
    page.fact("Model", e.model, f"revision {e.revision}" if e.revision else "")
    page.fact("Tokenizer", e.tokenizer, f"sha256 {short(e.tokenizer_digest, 20)}" if e.tokenizer_digest else "")
    page.fact("Caps", f"{e.max_running} running + {e.max_queued} queued", f"context {e.context_length} tokens",
              f"vocabulary {e.vocab_size}")  # fmt: skip
    page.fact("Contract", "exact: the engine is declared deterministic" if e.deterministic
              else "continuable: the engine is not declared deterministic")  # fmt: skip
    page.fact("Streams", f"{count(len(live), 'stream')} on this launch")
    suspicions = look.suspicions_of(e.launch)
    page.table("Suspected by", ("GATEWAY", "KIND", "WHEN", "WHY"),
               [(x.gateway, x.kind, look.ago(x.at), x.why) for x in suspicions])  # fmt: skip
    page.table("Streams on this launch", STREAM_HEADS, stream_rows(look, live), right="TOKENS MOVES")
    look.tell(page, f"group/{name}", f"endpoint/{name}")
    if fault or e.generation < floor or suspicions:
        page.step("Why, and what its daemon does about it:", "infctl describe", f"group/{name}")
    if not look.node_is_heard(e.node):
        page.step(f"The daemon on {e.node} is not heard; the endpoint goes when its lease ends.",
                  "infctl describe", f"node/{e.node}")  # fmt: skip
    return page
