"""What the engine tells about itself and its load: the bodies of the calls that change nothing.

What stays true: the keys and their order are SGLang's; a value that means nothing in a simulation has SGLang's type.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from infctl_daemon.engine.sim.argv import Options
from infctl_daemon.engine.sim.board import Loads
from infctl_daemon.engine.sim.tokens import Vocabulary

VERSION = "0.5.23"
"""The SGLang whose answers these are."""


def loads(options: Options, now: Loads) -> dict[str, Any]:
    """GET /v1/loads. The outer time is that of the call, the inner one that of the scheduler's last turn."""
    total = options.max_total_tokens
    load = {
        "timestamp": now.timestamp,
        "dp_rank": 0,
        "num_running_reqs": now.running,
        "num_waiting_reqs": now.waiting,
        "num_waiting_uncached_tokens": 0,
        "num_used_tokens": now.used_tokens,
        "num_total_tokens": now.used_tokens,
        "num_active_tokens": now.used_tokens,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": total,
        "max_running_requests": options.max_running_requests,
        "token_usage": round(now.used_tokens / total, 4),
        "gen_throughput": 0.0,
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": now.prefilled,
        "total_prefill_busy_us": int(now.prefilled / options.prefill_rate * 1e6),
        "decode_moments": [float(now.steps)] * 6,
        "memory": {"weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": total},
        "disaggregation": {
            "mode": "null",
            "prefill_bootstrap_queue_reqs": 0,
            "prefill_inflight_queue_reqs": 0,
            "decode_prealloc_queue_reqs": 0,
            "decode_transfer_queue_reqs": 0,
            "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        },
        "queues": {"waiting": now.waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
    }
    return {
        "timestamp": datetime.now(UTC).isoformat(timespec="microseconds"),
        "version": VERSION,
        "accelerator": None,
        "num_accelerators": options.world,
        "loads": [load] if now.timestamp else [],
    }


def model_info(options: Options, name: str, vocab: Vocabulary, version: str) -> dict[str, Any]:
    """GET /model_info: answered by the HTTP process alone, whatever the scheduler does."""
    return {
        "model_path": options.model_path,
        "served_model_name": name,
        "tokenizer_path": options.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": version,
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": vocab.model_type,
        "architectures": vocab.architectures,
    }


def server_info(options: Options, name: str, longest_prompt: int, state: dict[str, Any]) -> dict[str, Any]:
    """GET /server_info; `state` came from the scheduler. The weight version stays the one of the start."""
    running = options.max_running_requests
    return {
        "model_path": options.model_path,
        "tokenizer_path": options.model_path,
        "served_model_name": name,
        "weight_version": options.weight_version,
        "host": options.host,
        "port": options.port,
        "tp_size": options.world,
        "nnodes": options.nnodes,
        "node_rank": options.node_rank,
        "dist_init_addr": options.dist_init_addr,
        "random_seed": options.random_seed,
        "context_length": options.context_length,
        "max_running_requests": running,
        "max_queued_requests": options.max_queued_requests,
        "max_total_tokens": options.max_total_tokens,
        "stream_interval": options.stream_interval,
        "watchdog_timeout": options.watchdog_timeout,
        "enable_deterministic_inference": options.deterministic,
        "incremental_streaming_output": False,
        "scheduler_info": {
            "max_total_num_tokens": options.max_total_tokens,
            "max_req_input_len": longest_prompt,
        },
        "internal_states": [{"effective_max_running_requests_per_dp": running, "last_gen_throughput": 0.0} | state],
        "version": VERSION,
        "frontend": "sim",
    }


def model_card(name: str, context: int) -> dict[str, Any]:
    """One entry of GET /v1/models."""
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": context,
    }


def adapter_card(name: str, path: str, parent: str) -> dict[str, Any]:
    """An adapter's entry: without a length of its own."""
    return {**model_card(name, 0), "root": path, "parent": parent, "max_model_len": None}


def model_missing(name: str) -> dict[str, Any]:
    error = {
        "message": f"The model '{name}' does not exist",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    return {"error": error}
