"""Damage for bytes: flipped bits, parts that are cut out, repeated or swapped, and extreme numbers in headers."""

import random
import struct

EXTREME = (0, 1, 2, 7, 8, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 1 << 20, 1 << 24, 1 << 28, 2**31 - 1, 2**31)
EXTREME += (2**32 - 1, 16384, 30000, 46341, 3)


def flip(rng: random.Random, data: bytes, most: int = 20, start: int = 0) -> bytes:
    """Flips up to `most` bits."""
    raw = bytearray(data)
    for _ in range(rng.randint(1, most) if len(raw) > start else 0):
        raw[rng.randrange(start, len(raw))] ^= 1 << rng.randrange(8)
    return bytes(raw)


def overwrite(rng: random.Random, data: bytes, end: int) -> bytes:
    """Writes an extreme number of 1, 2, 4 or 8 bytes somewhere in the first `end` bytes."""
    raw, size = bytearray(data), rng.choice((1, 2, 4, 4, 8))
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(max(min(end, len(raw) - size), 1))
        number = rng.choice(EXTREME) % 256**size
        raw[place : place + size] = number.to_bytes(size, rng.choice(("little", "big")))
    return bytes(raw)


def rearrange(rng: random.Random, data: bytes) -> bytes:
    """Cuts the end off, or removes, repeats, zeroes or swaps parts."""
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    part = data[a:b]
    return rng.choice(
        (
            data[:a],
            data[: len(data) - rng.randint(1, 8)],
            data[:a] + data[b:],
            data[:b] + part + data[b:],
            data[:a] + bytes(b - a) + data[b:],
            data[b:] + data[:b],
            data[:a] + rng.randbytes(min(b - a, 1000)) + data[b:],
            data + rng.randbytes(rng.randint(1, 500)),
            b"",
        )
    )


def spoil(rng: random.Random, data: bytes, head: int = 64) -> bytes:
    """Damages bytes in one of these ways; `head`: bytes of the header."""
    how = rng.random()
    if how < 0.35:
        return flip(rng, data)
    if how < 0.45:
        return flip(rng, data[:head], 3) + data[head:]
    if how < 0.65:
        return overwrite(rng, data, head)
    return rearrange(rng, data)


def be32(number: int) -> bytes:
    """Four bytes, big-endian."""
    return struct.pack(">I", number)
