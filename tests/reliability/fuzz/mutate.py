"""Mutations of valid files: flipped bits, cuts, splices, repeats, and tokens that parsers trip over."""

from __future__ import annotations

import json
import random
from typing import Any

TOKENS = [
    b"", b"\x00", b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xef\xbb\xbf", b"\xed\xa0\x80",
    b"0", b"-1", b"1e999", b"NaN", b"Infinity", b"-0.0", b"99999999999999999999999", b"null", b"true", b"{}", b"[]",
    b'""', b"[[[[[[[[", b'{"a":' * 30, b",", b";", b"\t", b"\r", b"\n", b"\n\n", b'"', b"'", b"\\", b" ", b"=1+1",
    b"..", b"../../x", b"/etc/passwd", b"con\x00", b"\xe2\x80\xa8", b"\xf0\x9f\x99\x82", b"\x93NUMPY\x01\x00",
    b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"\x1f\x8b", b"PAR1", b"(4294967296, 4294967296)", b"(-1,)", b"'|O'",
    b"'<U1'", b"'<f8'", b"c__builtin__\neval\n", b"cos\nsystem\n", b"%n%s", b"{{7*7}}", b"<script>",
]  # fmt: skip


def mutated(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """One to six mutations of `data`; pieces of `others` may be spliced in."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        data = rng.choice(STEPS)(data, others, rng)
    return data[: 1 << 20]


def _at(data: bytes, rng: random.Random) -> int:
    """A place in the file; headers are short and matter most, so every other one is near an end."""
    size = len(data) + 1
    near = min(size, 64)
    return rng.choice((rng.randrange(size), rng.randrange(near), size - 1 - rng.randrange(near)))


def _flip(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    if not data:
        return data
    at = min(_at(data, rng), len(data) - 1)
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _overwrite(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    at, new = _at(data, rng), rng.randbytes(rng.choice((1, 2, 4, 8)))
    return data[:at] + new + data[at + len(new) :]


def _insert(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    at = _at(data, rng)
    return data[:at] + rng.choice(TOKENS) + data[at:]


def _replace(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    at, end = sorted((_at(data, rng), _at(data, rng)))
    return data[:at] + rng.choice(TOKENS) + data[min(end, at + rng.choice((1, 4, 16, 4096))) :]


def _word(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Replace one number or word of a text, which keeps the structure around it."""
    words = data.replace(b",", b" ").replace(b":", b" ").split()
    if not words:
        return data
    return data.replace(rng.choice(words), rng.choice((*TOKENS, rng.choice(words))), rng.choice((1, -1)))


def _cut(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    return data[: _at(data, rng)]


def _drop(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    at, end = sorted((_at(data, rng), _at(data, rng)))
    return data[:at] + data[end:]


def _repeat(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    at, end = sorted((_at(data, rng), _at(data, rng)))
    return data[:end] + data[at:end] * rng.choice((1, 2, 50)) + data[end:]


def _splice(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others)
    return data[: _at(data, rng)] + other[_at(other, rng) :]


ODD: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, 1e308, "", "a", "../x", "\u202e<b>", [], [[]], {}, {"a": 1}, [None], ["a", 1],
]  # fmt: skip


def _value(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Replace or remove a value of a JSON text, or of one of its lines; the rest stays valid."""
    lines = data.splitlines() if data.count(b"\n{") else [data]
    at = rng.randrange(len(lines)) if lines else 0
    try:
        content = json.loads(lines[at])
    except (ValueError, IndexError, RecursionError):
        return _flip(data, others, rng)
    lines[at] = json.dumps(_changed(content, rng)).encode()
    return b"\n".join(lines)


def _changed(content: Any, rng: random.Random) -> Any:
    if not isinstance(content, (dict, list)) or not content or rng.random() < 0.08:
        return rng.choice(ODD)
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    key = rng.choice(keys)
    if rng.random() < 0.15:
        del content[key]
    else:
        content[key] = _changed(content[key], rng)
    return content


STEPS = (_value, _value, _flip, _overwrite, _insert, _replace, _word, _cut, _drop, _repeat, _splice)
