#!/usr/bin/env python3
"""The test vectors of the handshake and of frames, computed from ADR 40 and ADR 48 alone.

How: BLAKE3 as its specification has it, for inputs of one chunk, in keyed mode, and POLYVAL as RFC
8452 has it; nothing of Orcheck is used, so the vectors are more than what its code happens to do.
Without arguments it compares handshake.txt beside it with what it computes, and exits with 1 where
they differ; with --write it writes that file. Encrypted frames are not here:
AES-256-GCM has vectors of its own.
"""

import pathlib
import sys

VECTORS = pathlib.Path(__file__).with_name("handshake.txt")

# ---- BLAKE3, one chunk (specification, sections 2.2 to 2.5) ----
IV = (
    0x6A09E667,
    0xBB67AE85,
    0x3C6EF372,
    0xA54FF53A,
    0x510E527F,
    0x9B05688C,
    0x1F83D9AB,
    0x5BE0CD19,
)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, ROOT, KEYED_HASH = 1, 2, 8, 16
BLOCK_BYTES, CHUNK_BYTES = 64, 1024


def words(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


def rotated(value: int, by: int) -> int:
    return (value >> by | value << 32 - by) & 0xFFFFFFFF


def mix(v: list[int], a: int, b: int, c: int, d: int, x: int, y: int) -> None:
    v[a] = (v[a] + v[b] + x) & 0xFFFFFFFF
    v[d] = rotated(v[d] ^ v[a], 16)
    v[c] = (v[c] + v[d]) & 0xFFFFFFFF
    v[b] = rotated(v[b] ^ v[c], 12)
    v[a] = (v[a] + v[b] + y) & 0xFFFFFFFF
    v[d] = rotated(v[d] ^ v[a], 8)
    v[c] = (v[c] + v[d]) & 0xFFFFFFFF
    v[b] = rotated(v[b] ^ v[c], 7)


def compress(chaining: list[int], block: bytes, flags: int) -> list[int]:
    message = words(block.ljust(BLOCK_BYTES, b"\0"))
    v = [*chaining, *IV[:4], 0, 0, len(block), flags]
    for _ in range(7):
        for column in range(4):
            mix(
                v,
                column,
                column + 4,
                column + 8,
                column + 12,
                *message[2 * column : 2 * column + 2],
            )
        for diagonal in range(4):
            mix(
                v,
                diagonal,
                4 + (diagonal + 1) % 4,
                8 + (diagonal + 2) % 4,
                12 + (diagonal + 3) % 4,
                *message[8 + 2 * diagonal : 10 + 2 * diagonal],
            )
        message = [message[source] for source in PERMUTATION]
    return [v[at] ^ v[at + 8] for at in range(8)]


def keyed_hash(key: bytes, data: bytes) -> bytes:
    """32 bytes of keyed BLAKE3 over at most one chunk."""
    assert len(key) == 32 and 0 < len(data) <= CHUNK_BYTES
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    chaining = words(key)
    for number, block in enumerate(blocks):
        flags = KEYED_HASH
        flags |= CHUNK_START if number == 0 else 0
        flags |= CHUNK_END | ROOT if number == len(blocks) - 1 else 0
        chaining = compress(chaining, block, flags)
    return b"".join(word.to_bytes(4, "little") for word in chaining)


# ---- POLYVAL (RFC 8452, section 3), bit by bit ----
FIELD = 1 << 128 | 1 << 127 | 1 << 126 | 1 << 121 | 1


def dot(one: int, other: int) -> int:
    """one · other · x^-128."""
    found = 0
    for bit in range(128):
        found ^= one if other >> bit & 1 else 0
        found = (found ^ FIELD if found & 1 else found) >> 1
    return found


def polyval(point: bytes, data: bytes) -> bytes:
    found = 0
    for at in range(0, len(data), 16):
        block = int.from_bytes(data[at : at + 16].ljust(16, b"\0"), "little")
        found = dot(found ^ block, int.from_bytes(point, "little"))
    return found.to_bytes(16, "little")


# ---- frames (ADR 48) ----
def proof(key: bytes, head: bytes, body: bytes) -> bytes:
    point = keyed_hash(key, b"orc2 frame point")[:16]
    return keyed_hash(key, b"orc2 frame proof" + polyval(point, body) + head)[:16]


# ---- the handshake (ADR 40) ----
FORM = {"plain": b"", "encrypted": b"aes-256-gcm"}


def vectors() -> dict[str, bytes]:
    key = bytes(range(32))
    random = bytes(range(0xA0, 0xB0))
    listener = bytes(range(0xC0, 0xE0))
    caller = random + keyed_hash(key, b"orc2 which key  " + random)[:16]
    found = {"key": key, "caller random": random, "listener challenge": listener}
    found["caller challenge"] = caller
    found["hello"] = b"ORCnet2\n" + caller
    for form, mark in FORM.items():

        def derived(label: bytes, mark: bytes = mark) -> bytes:
            assert len(label) == 16
            return keyed_hash(key, label + caller + listener + mark)

        found[f"{form} answer"] = listener + derived(b"orc2 listener ok")
        found[f"{form} caller proof"] = derived(b"orc2 caller ok  ")
        found[f"{form} key to listener"] = derived(b"orc2 to listener")
        found[f"{form} key to caller"] = derived(b"orc2 to caller  ")
    # The first frame of the caller: kind 1, no flags, {1: 3, 2: 0}, number 0.
    payload = bytes.fromhex("a201030200")
    header = b"ORCf" + bytes([1, 1]) + bytes(2) + len(payload).to_bytes(4, "little") + bytes(8)
    key = found["plain key to listener"]
    found["plain first frame"] = header + payload + proof(key, header, payload)
    # Its second frame: bytes of a file, kind 254, at the offset 2^40; with the place in the head.
    raw = bytes(at * 7 & 0xFF for at in range(1000))
    place = (1 << 40).to_bytes(8, "little")
    head = b"ORCf" + bytes([1, 254]) + bytes(2) + (len(place) + len(raw)).to_bytes(4, "little")
    head += (1).to_bytes(8, "little") + place
    found["plain bytes"] = head + raw + proof(key, head, raw)
    # Its third: bytes of a replica, kind 253, for slot 7; the slot is in the head too.
    place = (7).to_bytes(4, "little") + place
    head = b"ORCf" + bytes([1, 253]) + bytes(2) + (len(place) + len(raw)).to_bytes(4, "little")
    head += (2).to_bytes(8, "little") + place
    found["plain piece"] = head + raw + proof(key, head, raw)
    return found


def main() -> int:
    text = "".join(f"{name} = {value.hex()}\n" for name, value in vectors().items())
    if sys.argv[1:] == ["--write"]:
        VECTORS.write_text(text)
        return 0
    committed = VECTORS.read_text()
    if committed != text:
        print(f"{VECTORS} differs from what ADR 40 gives; with --write this program writes it")
        return 1
    print(f"{len(text.splitlines())} values agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
