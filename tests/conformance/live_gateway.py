# SPDX-License-Identifier: Apache-2.0
"""A running loralei-epp, and a real Envoy that asks it where each request goes."""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request

from live_server import BINARY, ROOT, START_SECONDS, LiveServer

PICKER = pathlib.Path(os.environ.get("PICKER_BINARY", BINARY.parent / "loralei-epp"))
ENVOY = ROOT / "build/clients/of/envoy/envoy/_bin/envoy"
FILTERS = "type.googleapis.com/envoy.extensions.filters"
ENDPOINT = "x-gateway-destination-endpoint"


def why_not():
    """Why there is no gateway to test with; empty: there is."""
    if not PICKER.exists():
        return "loralei-epp is not built: install libgrpc++-dev, protobuf-compiler and protobuf-compiler-grpc (tools/setup.sh test)"
    if not ENVOY.exists():
        return "there is no Envoy: run tools/test_clients.sh"
    return ""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class LivePicker(LiveServer):
    """`request` and `metric` ask its port for figures; `grpc` is where gateways ask."""
    LAUNCH = [str(PICKER)]

    def __init__(self, replicas, *flags, port=0):
        named = [word for replica in replicas for word in ("--replica", replica.url)]
        self.start(["--port", str(port), "--metrics-port", "0", *named, *flags])
        deadline = time.monotonic() + START_SECONDS
        while not (found := re.search(r"grpc://127\.0\.0\.1:(\d+)", "\n".join(self.lines))):
            assert time.monotonic() < deadline, self.lines
            time.sleep(0.01)
        self.grpc = int(found.group(1))

    def of_replica(self, name, replica):
        """A figure of one replica; 0 where there is none yet."""
        page = self.request("GET", "/metrics")[2]
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines()
                   if line.startswith(name + "{") and f'"127.0.0.1:{replica.port}"' in line)

    def wait_up(self, count, seconds=60):
        deadline = time.monotonic() + seconds
        while (up := self.up()) != count:
            if time.monotonic() > deadline:
                raise AssertionError(f"{up} replicas are up, not {count}")
            time.sleep(0.02)

    def up(self):
        page = self.request("GET", "/metrics")[2]
        return sum(line.startswith("loralei_router_replica_up{") and line.endswith(" 1") for line in page.splitlines())


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def endpoints(name, *ports):
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(port)}} for port in ports]}]}


def external_processor(mode="FULL_DUPLEX_STREAMED"):
    return {"name": "picker", "typed_config": {
        "@type": FILTERS + ".http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "processing_mode": {
            "request_header_mode": "SEND", "request_body_mode": mode, "request_trailer_mode": "SEND",
            "response_header_mode": "SEND", "response_body_mode": mode, "response_trailer_mode": "SEND"},
        "metadata_options": {"forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint", "envoy.lb"]},
                             "receiving_namespaces": {"untyped": ["envoy.lb"]}},
        "message_timeout": "1000s"}}


def subset_hint(allowed):
    return {"name": "hint", "typed_config": {
        "@type": FILTERS + ".http.set_metadata.v3.Config",
        "metadata": [{"metadata_namespace": "envoy.lb.subset_hint", "value": {ENDPOINT + "-subset": allowed}}]}}


def replicas_by_header():
    """Envoy sends a request where the header says."""
    return {"name": "replicas", "type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED", "connect_timeout": "5s",
            "original_dst_lb_config": {"use_http_header": True, "http_header_name": ENDPOINT}}


def replicas_by_metadata(ports):
    """As gateways do it: a list of their own, and the metadata says which of it."""
    policy = "type.googleapis.com/envoy.extensions.load_balancing_policies"
    return {"name": "replicas", "type": "STATIC", "connect_timeout": "5s", "load_assignment": endpoints("replicas", *ports),
            "load_balancing_policy": {"policies": [{"typed_extension_config": {
                "name": "override_host", "typed_config": {
                    "@type": policy + ".override_host.v3.OverrideHost",
                    "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": ENDPOINT}]}}],
                    "selected_host_key": {"key": "envoy.lb", "path": [{"key": ENDPOINT + "-served"}]},
                    "fallback_policy": {"policies": [{"typed_extension_config": {
                        "name": "round_robin", "typed_config": {"@type": policy + ".round_robin.v3.RoundRobin"}}}]}}}}]}}


def configuration(port, admin_port, grpc_port, filters, replicas):
    picker = {"name": "picker", "type": "STATIC", "connect_timeout": "5s", "load_assignment": endpoints("picker", grpc_port),
              "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                  "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                  "explicit_http_config": {"http2_protocol_options": {}}}}}
    router = {"name": "router", "typed_config": {"@type": FILTERS + ".http.router.v3.Router"}}
    manager = {"@type": FILTERS + ".network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "in",
               "http_filters": [*filters, router],
               "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
                   {"match": {"prefix": "/"}, "route": {"cluster": "replicas", "timeout": "0s", "retry_policy": {"retry_on": "connect-failure", "num_retries": 2}}}]}]}}
    listener = {"name": "in", "address": address(port),
                "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}
    return {"admin": {"address": address(admin_port)},
            "static_resources": {"listeners": [listener], "clusters": [picker, replicas]}}


class LiveEnvoy(LiveServer):
    def __init__(self, picker, *, filters=None, replicas=None):
        self.port, self.admin_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = pathlib.Path(tempfile.mkdtemp())
        (self.folder / "envoy.json").write_text(json.dumps(configuration(
            self.port, self.admin_port, picker.grpc, filters or [external_processor()], replicas or replicas_by_header())))
        self.log = open(self.folder / "log", "w+")
        self.process = subprocess.Popen([ENVOY, "-c", self.folder / "envoy.json", "--disable-hot-restart", "--concurrency", "1",
                                         "--log-level", "warning"], stdout=self.log, stderr=subprocess.STDOUT)
        self.lines = []
        deadline = time.monotonic() + START_SECONDS
        while not self.started():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("Envoy did not start:\n" + self.said())
            time.sleep(0.05)

    def started(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/ready", timeout=10) as answer:
                return answer.status == 200
        except OSError:
            return False

    def said(self):
        return (self.folder / "log").read_text()[-6000:]

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder)
