#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tools/grafana/loralei.json, the dashboard for Grafana 10 and later: what stands in it is easier to read and to change here.

tools/grafana/dashboard.py [FILE]"""
import json
import pathlib
import sys

S = '{instance=~"$instance"}'  # servers
R = '{instance=~"$router"}'  # routers
MET, USES, BUDGET, NEAR = 'met="yes"', 'use!~"budget|adapters_max"', 'use="budget"', 'tier=~"memory|device"'
WIDE, HIGH = 24, 8


def rate(name, by="", match=S, more=""):
    """Of a counter, a second; summed, by these labels."""
    return f"sum by ({by}) (rate({name}{labels(match, more)}[$__rate_interval]))"


def labels(match, more):
    return match[:-1] + "," + more + "}" if more else match


def quantiles(histogram, match=S):
    return [(f"histogram_quantile({q}, sum by (le) (rate({histogram}_bucket{match}[$__rate_interval])))", f"P{int(q * 100)}")
            for q in (0.5, 0.9, 0.99)]


def mean(histogram, match=S):
    return f"sum(rate({histogram}_sum{match}[$__rate_interval])) / sum(rate({histogram}_count{match}[$__rate_interval]))"


def gauge(name, by="", match=S, more=""):
    return f"sum by ({by}) ({name}{labels(match, more)})"


class Dashboard:
    def __init__(self):
        self.panels, self.x, self.y, self.high = [], 0, 0, 0

    def add(self, panel, width, height):
        if self.x + width > WIDE:
            self.x, self.y, self.high = 0, self.y + self.high, 0
        panel.update(id=len(self.panels) + 1, gridPos={"x": self.x, "y": self.y, "w": width, "h": height})
        self.panels.append(panel)
        self.x, self.high = self.x + width, max(self.high, height)

    def row(self, title):
        self.x, self.y, self.high = 0, self.y + self.high, 0
        self.add({"type": "row", "title": title, "collapsed": False, "panels": []}, WIDE, 1)

    def panel(self, kind, title, queries, unit, width, height, about, options, custom, defaults=None):
        targets = [{"refId": chr(ord("A") + i), "datasource": {"type": "prometheus", "uid": "$datasource"}, "expr": expr, "legendFormat": legend,
                    **({"format": "heatmap"} if kind == "heatmap" else {}), "range": True} for i, (expr, legend) in enumerate(queries)]
        self.add({"type": kind, "title": title, "description": about, "datasource": {"type": "prometheus", "uid": "$datasource"},
                  "targets": targets, "options": options,
                  "fieldConfig": {"defaults": {"unit": unit, "custom": custom, **(defaults or {})}, "overrides": []}}, width, height)

    def stat(self, title, expr, unit, about, steps=None):
        thresholds = {"thresholds": {"mode": "absolute", "steps": steps}} if steps else {}
        self.panel("stat", title, [(expr, "")], unit, 4, 4, about,
                   {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value" if steps else "none", "graphMode": "area"}, {}, thresholds)

    def lines(self, title, queries, unit, about, stacked=False, width=8):
        self.panel("timeseries", title, queries, unit, width, HIGH, about,
                   {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
                   {"fillOpacity": 25 if stacked else 5, "lineWidth": 1, "showPoints": "never", "spanNulls": False,
                    "stacking": {"mode": "normal" if stacked else "none"}}, {"min": 0})

    def heatmap(self, title, histogram, about):
        self.panel("heatmap", title, [(f"sum by (le) (increase({histogram}_bucket{S}[$__rate_interval]))", "{{le}}")], "short", 12, HIGH, about,
                   {"calculate": False, "yAxis": {"unit": "s"}, "color": {"scheme": "Viridis", "mode": "scheme"}, "cellGap": 1}, {})


def overview(board):
    board.row("At a glance")
    bad = [{"color": "red", "value": None}, {"color": "green", "value": 1}]
    board.stat("Servers ready", f"sum(loralei_ready{S})", "short", "Servers that answer /ready with 200.", bad)
    board.stat("Requests a second", rate("loralei_requests_total"), "reqps", "That ended, however.")
    board.stat("Tokens a second", rate("loralei_generation_tokens_total"), "short", "Of answers.")
    board.stat("First token, P99", quantiles("loralei_time_to_first_token_seconds")[2][0], "s", "From a request's arrival to its first token.")
    board.stat("Running", gauge("loralei_requests_running"), "short", "Requests that are computed.")
    board.stat("Waiting", gauge("loralei_requests_waiting"), "short", "Requests that are not computed yet.")


def latency(board):
    board.row("Latency")
    board.lines("Time to the first token", quantiles("loralei_time_to_first_token_seconds"), "s", "From a request's arrival.")
    board.lines("Time between tokens", quantiles("loralei_inter_token_latency_seconds"), "s", "Of one request.")
    board.lines("Whole requests", quantiles("loralei_request_latency_seconds"), "s", "From arrival to end.")
    board.heatmap("First tokens by time", "loralei_time_to_first_token_seconds", "How many took how long.")
    board.heatmap("Gaps between tokens by time", "loralei_inter_token_latency_seconds", "How many took how long.")
    board.lines("Where requests spend their time", [(mean(f"loralei_request_{part}_seconds"), part) for part in ("queue", "prefill", "decode")],
                "s", "In the mean.", stacked=True, width=12)
    board.lines("What requests wait for", [(rate("loralei_request_wait_seconds_total", "cause"), "{{cause}}")], "short",
                "Requests that wait at one time, by cause: a second of waiting a second is one.", stacked=True, width=12)


def load(board):
    board.row("Load and queues")
    board.lines("Requests that end", [(rate("loralei_requests_total", "end"), "{{end}}")], "reqps", "By how they end.", stacked=True)
    board.lines("Tokens a second", [(rate("loralei_prompt_tokens_total"), "of prompts"), (rate("loralei_cached_prompt_tokens_total"), "of these, from the cache"),
                                    (rate("loralei_generation_tokens_total"), "of answers")], "short", "Computed, and not.")
    board.lines("Requests", [(gauge("loralei_requests_running"), "running"), (gauge("loralei_requests_waiting"), "waiting"),
                             (gauge("loralei_requests_waiting_for_adapter"), "of these, for an adapter")], "short", "At one time.")
    board.lines("Queues: waiting", [(gauge("loralei_queue_waiting", "queue"), "queue {{queue}}")], "short", "Requests, by queue (--schedule-policy wrs has several).")
    board.lines("Queues: tokens", [(gauge("loralei_queue_taken_tokens", "queue"), "{{queue}} taken"), (gauge("loralei_queue_quota_tokens", "queue"), "{{queue}} quota")],
                "short", "What each queue may use, and uses.")
    board.lines("Within the objectives", [(f'sum by (slo) (rate(loralei_slo_requests_total{labels(S, MET)}[$__rate_interval]))'
                                           f' / sum by (slo) (rate(loralei_slo_requests_total{S}[$__rate_interval]))', "{{slo}}")],
                "percentunit", "Share of the requests that name an objective and keep it.")
    board.lines("Preempted", [(rate("loralei_preemptions_total"), "for want of KV"), (rate("loralei_squashes_total"), "for shorter ones")], "short", "Sequences a second that must begin anew.")
    board.lines("Steps", [(rate("loralei_steps_total"), "steps a second"), (mean("loralei_rows_per_step"), "rows of a step, mean")], "short", "One forward pass each.")
    board.lines("What steps compute", [(rate("loralei_work_seconds_total", "part"), "{{part}}")], "short", "Cores' worth of the engine thread, by part.", stacked=True)


def adapters(board):
    board.row("Adapters")
    board.lines("Adapters by place", [(gauge("loralei_adapters", "tier"), "{{tier}}")], "short", "Where each is at best.", stacked=True)
    board.lines("Requests by adapter", [(f"topk(10, {rate('loralei_adapter_requests_total', 'adapter')})", "{{adapter}}")], "reqps", "The ten asked for most.")
    board.lines("Loads and evictions", [(rate("loralei_adapter_loads_total"), "loads"), (rate("loralei_adapter_evictions_total"), "evictions"),
                                        (rate("loralei_adapter_load_failures_total"), "failures"), (rate("loralei_adapter_predicted_loads_total"), "loads ahead"),
                                        (rate("loralei_adapter_predicted_loads_used_total"), "loads ahead that were used")], "short", "A second.")
    board.lines("Bytes of adapters", [(f"topk(10, max by (adapter) (loralei_adapter_bytes{S}))", "{{adapter}}")], "bytes", "The ten largest in memory.")
    board.lines("Bytes loaded", [(rate("loralei_adapter_load_bytes_total"), "from disk"), (rate("loralei_adapter_upload_bytes_total"), "to the device")], "Bps", "A second.")
    board.lines("First requests to an adapter that is not there", [(rate("loralei_cold_requests_total", "way"), "{{way}}")], "reqps", "By what becomes of them (--cold-start).")


def memory(board):
    board.row("Memory and KV cache")
    board.lines("Memory by use", [(gauge("loralei_memory_bytes", "use", more=USES), "{{use}}")], "bytes", "Of --memory-budget.", stacked=True)
    board.lines("Memory of the budget", [(f'sum by (instance) (loralei_memory_bytes{labels(S, USES)}) / sum by (instance) '
                                          f'(loralei_memory_bytes{labels(S, BUDGET)})', "{{instance}}")], "percentunit", "Used of what may be.")
    board.lines("KV blocks", [(gauge("loralei_kv_blocks", "state"), "{{state}}")], "short", "Of 16 tokens each: in use, kept as prefixes, all.")
    board.lines("KV cache in use", [(f"max by (instance) (loralei_kv_cache_usage_ratio{S})", "{{instance}}")], "percentunit", "Blocks that running requests hold.")
    board.lines("Prompts found in the cache", [(f"sum(rate(loralei_prefix_cache_hits_total{S}[$__rate_interval])) / sum(rate(loralei_prefix_cache_queries_total{S}[$__rate_interval]))",
                                                "share of prompt tokens")], "percentunit", "Of those looked up.")
    board.lines("Life of KV blocks", [(mean("loralei_kv_block_lifetime_seconds"), "stored"), (mean("loralei_kv_block_idle_before_evict_seconds"), "unused before they go"),
                                      (mean("loralei_kv_block_reuse_gap_seconds"), "until used again")], "s", "Means; of a sample.")
    board.lines("KV encoded", [(gauge("loralei_kv_encoded_bytes"), "bytes"), (gauge("loralei_kv_encoded_page_bytes"), "that pages of them take")], "bytes", "--kv-sharing bounded.")
    board.lines("KV on disk", [(gauge("loralei_kv_disk_bytes"), "bytes")], "bytes", "--kv-dir.")
    board.lines("KV from and to disk", [(rate("loralei_kv_disk_read_bytes_total"), "read"), (rate("loralei_kv_disk_written_bytes_total"), "written")], "Bps", "A second.")


def streaming(board):
    board.row("Models larger than memory, and speculation")
    board.lines("Read from disk", [(rate("loralei_stream_read_bytes_total"), "weights")], "Bps", "Of a model that is streamed.")
    board.lines("Bytes of a pass", [(f"max by (instance) (loralei_stream_pass_bytes{S})", "{{instance}}")], "bytes", "That each step must read.")
    board.lines("Experts found", [(rate("loralei_expert_uses_total", "found"), "{{found}}")], "short", "Uses a second, by where.", stacked=True)
    board.lines("Paced steps that are late", [(rate("loralei_paced_steps_late_total"), "steps a second"), (rate("loralei_paced_late_seconds_total"), "seconds a second")], "short", "Behind the pace of --pace.")
    board.lines("Drafted tokens that are kept", [(f"sum(rate(loralei_speculation_accepted_tokens_total{S}[$__rate_interval])) / sum(rate(loralei_speculation_drafted_tokens_total{S}[$__rate_interval]))",
                                                  "accepted of drafted")], "percentunit", "Of speculation.")
    board.lines("Between ranks", [(rate("loralei_collective_bytes_total"), "bytes")], "Bps", "Of a model in several processes.")


def keys(board):
    board.row("Keys")
    board.lines("Requests by key", [(rate("loralei_key_requests_total", "key"), "{{key}}")], "reqps", "With --keys.")
    board.lines("Tokens by key", [(rate("loralei_key_prompt_tokens_total", "key"), "{{key}}, prompts"), (rate("loralei_key_generation_tokens_total", "key"), "{{key}}, answers")], "short", "A second.")
    board.lines("Refused by key", [(rate("loralei_key_refused_total", "key, reason"), "{{key}}: {{reason}}")], "reqps", "Beyond a limit, or an adapter that is not theirs.")


def errors(board):
    board.row("Errors")
    board.lines("HTTP answers", [(rate("http_requests_total", "status"), "{{status}}")], "reqps", "By status.", stacked=True)
    board.lines("Not taken in", [(rate("loralei_requests_refused_total", "reason"), "{{reason}}"), (rate("loralei_http_connections_refused_total"), "connections"),
                                 (rate("loralei_http_errors_total"), "no HTTP")], "short", "A second.")
    board.lines("Trouble", [(rate("loralei_adapter_load_failures_total"), "adapters that do not load"), (rate("loralei_kv_damaged_total"), "damaged KV"),
                            (rate("loralei_kv_disk_lost_total"), "lost KV on disk"), (rate("loralei_log_lines_dropped_total"), "log lines dropped")], "short", "A second.")
    board.lines("Connections", [(gauge("loralei_http_connections"), "open")], "short", "Of clients.", width=12)
    board.lines("Log stuck", [(f"max by (instance) (loralei_log_stuck_seconds{S})", "{{instance}}")], "s", "How long nobody has taken the log's lines.", width=12)


def router(board):
    board.row("Router")
    board.lines("Requests", [(rate("loralei_router_requests_total", "status", R), "{{status}}")], "reqps", "By status; 0: the client left.", stacked=True)
    board.lines("First bytes of the answer", quantiles("loralei_router_first_bytes_seconds", R), "s", "From a request's arrival.")
    board.lines("Requests by replica", [(rate("loralei_router_picks_total", "replica", R), "{{replica}}")], "reqps", "Sent there.", stacked=True)
    board.lines("Replicas up", [(f"max by (replica) (loralei_router_replica_up{R})", "{{replica}}")], "short", "1: requests are sent there.")
    board.lines("Under way by replica", [(gauge("loralei_router_replica_requests", "replica", R), "{{replica}}"), (gauge("loralei_router_replica_waiting", "replica", R), "{{replica}}, waiting")],
                "short", "This router's.")
    board.lines("Sent again", [(rate("loralei_router_retries_total", "", R), "retries"), (rate("loralei_router_hedges_total", "what", R), "hedges {{what}}"),
                               (rate("loralei_router_shed_total", "", R), "refused: no replica would keep the objective")], "reqps", "A second.")
    board.lines("Failures by replica", [(rate("loralei_router_replica_failures_total", "replica", R), "{{replica}}")], "short", "A second.")
    board.lines("Adapters brought", [(rate("loralei_router_prefetches_total", "end", R), "{{end}}")], "short", "Asked for beforehand, a second.")
    board.lines("Adapters by replica", [(f'sum by (replica) (loralei_router_replica_adapters{labels(R, NEAR)})', "{{replica}}")], "short", "In memory or on the device.")


def variable(name, label, metric):
    return {"name": name, "label": label, "type": "query", "datasource": {"type": "prometheus", "uid": "$datasource"}, "query": f"label_values({metric}, instance)",
            "definition": f"label_values({metric}, instance)", "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "sort": 1,
            "current": {"text": ["All"], "value": ["$__all"]}}


def dashboard():
    board = Dashboard()
    for part in (overview, latency, load, adapters, memory, streaming, keys, errors, router):
        part(board)
    return {"uid": "loralei", "title": "Loralei", "tags": ["loralei"], "schemaVersion": 39, "version": 1, "editable": True, "graphTooltip": 1,
            "refresh": "10s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
            "templating": {"list": [{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                                    variable("instance", "Server", "loralei_ready"), variable("router", "Router", "loralei_router_clients")]},
            "panels": board.panels}


def text():
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("loralei.json")).write_text(text())
