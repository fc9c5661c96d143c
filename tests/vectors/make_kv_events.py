# SPDX-License-Identifier: Apache-2.0
"""Prints the bytes that msgspec 0.23.0 makes of KV cache events as vLLM declares them; src/events/kv_event_message_test.cc has them."""
from typing import Any

import msgspec


class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class Event(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    pass


class BlockStored(Event):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[Any] | None = None


class BlockRemoved(Event):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(Event):
    pass


def main():
    largest = 2**64 - 1
    tokens = [0, 127, 128, 65535, 65536, *range(5, 16)]
    salt = [("loralei-salt:00000000000000ff",)]
    events = [
        AllBlocksCleared(),
        BlockStored([1, largest], None, tokens + [7] * 16, 16, None, "GPU", None),
        BlockStored([300], largest, [9] * 16, 16, None, "GPU", "sql*0.5", salt),
        BlockStored([1, 300], None, [], 16, None, "STORAGE", None),
        BlockRemoved([300, 1], "GPU"),
        BlockRemoved([300], "STORAGE"),
    ]
    text = msgspec.msgpack.encode(EventBatch(1764500000.1, events, 0)).hex()
    for begin in range(0, len(text), 96):
        print(text[begin:begin + 96])


if __name__ == "__main__":
    main()
