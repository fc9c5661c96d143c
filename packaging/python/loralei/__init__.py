# SPDX-License-Identifier: Apache-2.0
"""Starts and stops a Loralei server from Python: for tests, notebooks and scripts.

    import loralei

    with loralei.Server("my-model", adapters={"support": "my-adapter"}) as server:
        print(server.ask("support", "Hello"))
        print(server.url)            # http://127.0.0.1:PORT, for any client of OpenAI's API

The server is the program that this package brings, or the one that LORALEI_BINARY names.
"""
from loralei._server import LoraleiError, Server, binary

__all__ = ["LoraleiError", "Server", "binary"]
__version__ = "@VERSION@"
